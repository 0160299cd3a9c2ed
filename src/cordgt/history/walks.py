"""Temporal random walks from a root, backward in time.

A step samples one of the earlier events of the current node with weights ``exp(scale * t)``, so later events are more
likely. Cumulative weights turn a draw into one binary search. They are logarithms, because the weights of a long stream
exceed the range of floating point. The prefix of a row before ``cut`` does not depend on later events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history import rng
from cordgt.history.index import TemporalIndex, degree_scalar, flat_int64, lower_bound, lower_bound_scalar, run_loop
from cordgt.history.rng import fold_in_u64, mix64_u64, uniform_u64

_CACHE: WeakKeyDictionary[TemporalIndex, dict[float, Tensor]] = WeakKeyDictionary()  # log weights by index and scale


@dataclass(frozen=True)
class Walks:
    """A batch of walks without their roots. A walk that ends early is padded, from its first step if it has none."""

    node: Tensor  # (..., W, L) int64, -1 for padding
    pos: Tensor  # (..., W, L) int64, position of the step's event; -1 for padding


def sample_walks(
    index: TemporalIndex,
    root: Tensor,
    cut: Tensor,
    *,
    n_walks: int,
    length: int,
    scale: float,
    seed: int,
    epoch: Tensor | int = 0,
) -> Walks:
    """Sample ``n_walks`` walks of ``length`` steps from each root over the first ``cut`` events.

    ``root`` and ``cut`` broadcast. A step is strictly earlier in time than the step before it. ``scale`` is per unit of
    the stream's time; 0 samples uniformly. A draw depends only on (seed, epoch, root, cut, walk, step).
    """
    root, cut = torch.broadcast_tensors(root, cut)
    log_weights = log_cumulative_weights(index, scale)
    if not index.uses_numba:
        return _sample_torch(index, log_weights, root, cut, n_walks, length, seed, epoch)
    walks = Walks(*(torch.empty((*root.shape, n_walks, length), dtype=torch.int64) for _ in range(2)))
    run_loop(
        _fill_walks,
        *index.row_arrays,
        log_weights,
        flat_int64(root),
        flat_int64(cut),
        np.uint64(seed % 2**64),
        np.uint64(int(epoch)),
        walks.node.view(-1, n_walks, length),
        walks.pos.view(-1, n_walks, length),
    )
    return walks


def log_cumulative_weights(index: TemporalIndex, scale: float) -> Tensor:
    """Return (R,) float64: for each row entry, the log of the summed weights of its row up to and including it."""
    cache = _CACHE.setdefault(index, {})
    if scale not in cache:
        row_start, pos, elapsed = (x.cpu().numpy() for x in (index.row_start, index.pos, index.elapsed))
        cache[scale] = torch.from_numpy(_log_cumsum_rows(row_start, pos, elapsed, scale)).to(index.device)
    return cache[scale]


@njit(cache=True)
def _log_cumsum_rows(row_start, pos, elapsed, scale):  # type: ignore[no-untyped-def]
    out = np.empty(len(pos), dtype=np.float64)
    for u in range(len(row_start) - 1):
        for at in range(row_start[u], row_start[u + 1]):
            out[at] = scale * elapsed[pos[at]]
            if at > row_start[u]:
                high, low = max(out[at - 1], out[at]), min(out[at - 1], out[at])
                out[at] = high + math.log1p(math.exp(low - high))
    return out


@njit(parallel=True, cache=True)
def _fill_walks(  # type: ignore[no-untyped-def]
    row_start, nbr, pos, nbr_degree, log_weights, root, cut, seed, epoch, out_node, out_pos
):
    length = out_node.shape[2]
    for i in prange(len(root)):
        root_key = fold_in_u64(fold_in_u64(fold_in_u64(mix64_u64(seed), epoch), root[i]), cut[i])
        root_degree = degree_scalar(row_start, pos, root[i], cut[i])
        for walk in range(out_node.shape[1]):
            key, node, degree = fold_in_u64(root_key, walk), root[i], root_degree
            for step in range(length):
                if degree == 0:
                    out_node[i, walk, step], out_pos[i, walk, step] = -1, -1
                    continue
                key = fold_in_u64(key, step)
                start = row_start[node]
                end = start + degree
                target = log_weights[end - 1] + math.log(uniform_u64(key))
                at = min(lower_bound_scalar(log_weights, start, end, target), end - 1)
                node, degree = nbr[at], nbr_degree[at]
                out_node[i, walk, step], out_pos[i, walk, step] = node, pos[at]


def _sample_torch(
    index: TemporalIndex,
    log_weights: Tensor,
    root: Tensor,
    cut: Tensor,
    n_walks: int,
    length: int,
    seed: int,
    epoch: Tensor | int,
) -> Walks:
    size = (*root.shape, n_walks)
    if len(index.nbr) == 0:
        padding = torch.full((*size, length), -1, device=root.device)
        return Walks(padding, padding)
    key = rng.root_key(seed, epoch, root, cut).unsqueeze(-1)
    key = rng.fold_in(key, torch.arange(n_walks, device=root.device))  # (..., W)
    node = root.unsqueeze(-1).expand(size)
    degree = index.degree(root, cut).unsqueeze(-1).expand(size)
    nodes, positions = [], []
    for step in range(length):
        key = rng.fold_in(key, torch.full_like(key, step))
        start = index.row_entry(node, torch.zeros_like(degree))
        end = start + degree
        last = (end - 1).clamp_min(0)
        target = log_weights[last] + rng.uniform(key).log()
        at = torch.minimum(lower_bound(log_weights, start, end, target, index.max_degree), last)
        exists = degree > 0
        node = torch.where(exists, index.nbr[at].long(), -1)
        degree = torch.where(exists, index.nbr_degree[at].long(), 0)
        nodes.append(node)
        positions.append(torch.where(exists, index.pos[at].long(), -1))
    return Walks(torch.stack(nodes, dim=-1), torch.stack(positions, dim=-1))
