"""Walks: backward through time from a root, each step to an earlier event, later ones preferred.

A step draws among the earlier events of where it stands with weights ``exp(scale * t)``. Their running sums, as
logarithms, turn a draw into one binary search; as logarithms, because the weights of a long stream span more than
floating point does. The sums of a row before ``cut`` do not depend on what comes later, like everything in the index.
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
from cordgt.history.index import TemporalIndex, lower_bound, lower_bound_scalar
from cordgt.history.rng import child_u64, mix_u64, share_u64

_SUMS: WeakKeyDictionary[TemporalIndex, dict[float, Tensor]] = WeakKeyDictionary()  # made once an index and scale


@dataclass(frozen=True)
class Walks:
    """A batch of walks without their roots. A walk that ends early is padded; the first step shows whether it began."""

    node: Tensor  # (..., W, L) int64, -1 for padding
    pos: Tensor  # (..., W, L) int64, position of the event of the step; -1 for padding


def sample_walks(
    index: TemporalIndex,
    root: Tensor,
    cut: Tensor,
    *,
    walks: int,
    length: int,
    scale: float,
    seed: int,
    epoch: Tensor | int = 0,
) -> Walks:
    """``walks`` walks of ``length`` steps from each root over the first ``cut`` events. ``root`` and ``cut`` broadcast.

    A step looks strictly before the event that led to where it stands. ``scale`` is per unit of the stream's time; 0
    draws uniformly. A draw depends on (seed, epoch, root, cut, walk, step) alone.
    """
    root, cut = torch.broadcast_tensors(root, cut)
    sums = running_sums(index, scale)
    if not index.runs_compiled:
        return _sample_plain(index, sums, root, cut, walks, length, seed, epoch)
    node, pos = (np.empty((root.numel(), walks, length), dtype=np.int64) for _ in range(2))
    _fill_walks(
        index.row_start.numpy(),
        index.nbr.numpy(),
        index.pos.numpy(),
        index.nbr_degree.numpy(),
        sums.numpy(),
        root.reshape(-1).numpy(),
        cut.reshape(-1).numpy(),
        np.uint64(seed % 2**64),
        np.uint64(int(epoch)),
        node,
        pos,
    )
    return Walks(*(torch.from_numpy(x).view(*root.shape, walks, length) for x in (node, pos)))


def running_sums(index: TemporalIndex, scale: float) -> Tensor:
    """(R,) float64: for each row entry the logarithm of the summed weights of its row up to and with it."""
    known = _SUMS.setdefault(index, {})
    if scale not in known:
        row_start, pos, elapsed = (x.cpu().numpy() for x in (index.row_start, index.pos, index.elapsed))
        known[scale] = torch.from_numpy(_sum_rows(row_start, pos, elapsed, scale)).to(index.device)
    return known[scale]


@njit(cache=True)
def _sum_rows(row_start, pos, elapsed, scale):  # type: ignore[no-untyped-def]
    out = np.empty(len(pos), dtype=np.float64)
    for u in range(len(row_start) - 1):
        for at in range(row_start[u], row_start[u + 1]):
            out[at] = scale * elapsed[pos[at]]
            if at > row_start[u]:
                high, low = max(out[at - 1], out[at]), min(out[at - 1], out[at])
                out[at] = high + math.log1p(math.exp(low - high))
    return out


@njit(parallel=True, cache=True)
def _fill_walks(row_start, nbr, pos, nbr_degree, sums, root, cut, seed, epoch, out_node, out_pos):  # type: ignore[no-untyped-def]
    n_nodes, length = len(row_start) - 1, out_node.shape[2]
    for i in prange(len(root)):
        first = child_u64(child_u64(child_u64(mix_u64(seed), epoch), root[i]), cut[i])
        u = root[i]
        seen = 0
        if 0 <= u < n_nodes:
            seen = lower_bound_scalar(pos, row_start[u], row_start[u + 1], cut[i]) - row_start[u]
        for walk in range(out_node.shape[1]):
            key, node, degree = child_u64(first, walk), u, seen
            for step in range(length):
                if degree == 0:
                    out_node[i, walk, step], out_pos[i, walk, step] = -1, -1
                    continue
                key = child_u64(key, step)
                start = row_start[node]
                end = start + degree
                target = sums[end - 1] + math.log(share_u64(key))
                at = min(lower_bound_scalar(sums, start, end, target), end - 1)
                node, degree = nbr[at], nbr_degree[at]
                out_node[i, walk, step], out_pos[i, walk, step] = node, pos[at]


def _sample_plain(
    index: TemporalIndex,
    sums: Tensor,
    root: Tensor,
    cut: Tensor,
    walks: int,
    length: int,
    seed: int,
    epoch: Tensor | int,
) -> Walks:
    size = (*root.shape, walks)
    if len(index.nbr) == 0:
        nothing = torch.full((*size, length), -1, device=root.device)
        return Walks(nothing, nothing)
    key = rng.root_key(seed, epoch, root, cut).unsqueeze(-1)
    key = rng.child(key, torch.arange(walks, device=root.device))  # (..., W)
    node = root.unsqueeze(-1).expand(size)
    degree = index.degree(root, cut).unsqueeze(-1).expand(size)
    nodes, positions = [], []
    for step in range(length):
        key = rng.child(key, torch.full_like(key, step))
        start = index.entry(node, torch.zeros_like(degree))
        end = start + degree
        last = (end - 1).clamp_min(0)
        target = sums[last] + rng.share(key).log()
        at = torch.minimum(lower_bound(sums, start, end, target, index.max_degree), last)
        exists = degree > 0
        node = torch.where(exists, index.nbr[at].long(), -1)
        degree = torch.where(exists, index.nbr_degree[at].long(), 0)
        nodes.append(node)
        positions.append(torch.where(exists, index.pos[at].long(), -1))
    return Walks(torch.stack(nodes, dim=-1), torch.stack(positions, dim=-1))
