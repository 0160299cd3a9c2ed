"""The paper's spatial distance (SD) and temporal distance (TD) between context nodes and the endpoints of a pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history.context import Context, TreeShape
from cordgt.history.index import TemporalIndex, pair_interactions_scalar, run_loop


@dataclass(frozen=True)
class DistanceOptions:
    """The paper's weights, and the distances of pairs without events and of nodes outside a tree."""

    alpha: float  # weight of (inverse) intensity in TD
    beta: float  # weight of recency in TD
    td_unseen: float  # TD of a pair without events
    sd_unseen: int  # SD of a node that is not in the tree


def tree_relations(n_candidates: int, correlated: bool) -> tuple[list[int], list[int]]:
    """Return, for each relation, the tree whose nodes are measured and the tree to whose root: the R axis of distances.

    Tree 0 is the source's, trees 1 to M are the candidates'. ``correlated``: source to itself, source to each
    candidate, each candidate to itself, each candidate to the source (R = 1 + 3 M). Otherwise each tree to itself
    (R = 1 + M).
    """
    source, candidates = [0] * n_candidates, list(range(1, n_candidates + 1))
    if not correlated:
        return [0, *candidates], [0, *candidates]
    return [0, *source, *candidates, *candidates], [0, *candidates, *candidates, *source]


def group_by_endpoint(x: Tensor) -> Tensor:
    """Regroup the correlated distances (B, 4, C) of one candidate by endpoint: (2, B, 2, C).

    First the distances of both trees' nodes to the source, then to the candidate.
    """
    return torch.stack([torch.stack([x[:, 0], x[:, 3]], dim=1), torch.stack([x[:, 1], x[:, 2]], dim=1)])


def tree_distances(
    index: TemporalIndex,
    shape: TreeShape,
    trees: Context,
    t: Tensor,
    pair_cut: Tensor,
    options: DistanceOptions,
    *,
    correlated: bool,
) -> tuple[Tensor, Tensor]:
    """Return TD (B, R, C) float64 and SD (B, R, C) int64 between nodes and roots of trees (B, 1 + M, C).

    R as in `tree_relations`. ``t`` (B,) float64 is the query time since the stream's first event. TD counts the first
    ``pair_cut`` (B,) events.
    """
    fused = index.triton_kernels
    if fused is not None:
        hop = shape.slot_hop_on(index.device)
        return fused.distances(
            index, trees.node, hop, shape.n_hops, t, pair_cut, correlated=correlated, **vars(options)
        )
    if index.uses_numba:
        return _tree_distances_numba(index, shape, trees.node, t, pair_cut, options, correlated)
    node, target = trees.node, trees.node  # (B, R, C)
    if correlated:  # the order of `tree_relations`; indexing by its lists would synchronize a GPU
        candidates = trees.node[:, 1:]
        first, source = trees.node[:, :1], trees.node[:, :1].expand_as(candidates)
        node = torch.cat([first, source, candidates, candidates], 1)
        target = torch.cat([first, candidates, candidates, source], 1)
    sd = spatial_distance(node, Context(target, target), shape, options.sd_unseen)
    return temporal_distance(index, node, target[..., 0], t[:, None], pair_cut[:, None], options), sd


def spatial_distance(node: Tensor, to: Context, shape: TreeShape, sd_unseen: int) -> Tensor:
    """Return the smallest hop at which each node occurs in the tree ``to``; 0 for its root, ``sd_unseen`` if nowhere.

    Padding occurs nowhere. Shapes: node and ``to.node`` (..., C), leading axes broadcast. Returns (..., C) int64.
    """
    same = node.unsqueeze(-1) == to.node.unsqueeze(-2)  # (..., C, C)
    none = shape.n_hops + 1
    hop = torch.where(same, shape.slot_hop_on(node.device), none).amin(dim=-1)
    return torch.where((node >= 0) & (hop < none), hop, sd_unseen)


def temporal_distance(
    index: TemporalIndex, node: Tensor, root: Tensor, t: Tensor, pair_cut: Tensor, options: DistanceOptions
) -> Tensor:
    """Return ``alpha * last / (t * n) + beta * (t - last) / t`` for n events of node and root, the last at ``last``.

    ``alpha`` weighs the inverse of the Poisson intensity n / last, ``beta`` the recency. 0 if the node is the root;
    ``td_unseen`` for padding and if there is no event among the first ``pair_cut``.

    Shapes: node (..., C); root, t, pair_cut (...,), leading axes broadcast. Times are float64 since the stream's first
    event. Returns (..., C) float64.
    """
    root, t = root.unsqueeze(-1), t.unsqueeze(-1)
    count, last = index.pair_history(node, root, pair_cut.unsqueeze(-1))
    ratio = last / t.clamp_min(_TINY)  # in [0, 1]; 0 / tiny at the stream's start
    distance = options.alpha * ratio / count.clamp_min(1) + options.beta * (1 - ratio)
    distance = torch.where(count > 0, distance, options.td_unseen)
    return torch.where((node == root) & (node >= 0), 0.0, distance)


_TINY = float(np.finfo(np.float64).tiny)


def _tree_distances_numba(
    index: TemporalIndex,
    shape: TreeShape,
    node: Tensor,
    t: Tensor,
    pair_cut: Tensor,
    options: DistanceOptions,
    correlated: bool,
) -> tuple[Tensor, Tensor]:
    of, to = tree_relations(node.shape[1] - 1, correlated)
    size = (node.shape[0], len(of), node.shape[2])
    td, sd = torch.empty(size, dtype=torch.float64), torch.empty(size, dtype=torch.int64)
    run_loop(
        _fill_distances,
        *index.pair_arrays,
        index.elapsed,
        shape.slot_hop,
        np.array(of),
        np.array(to),
        *(x.contiguous() for x in (node, t, pair_cut)),
        *(float(x) for x in (options.alpha, options.beta, options.td_unseen)),
        options.sd_unseen,
        td,
        sd,
    )
    return td, sd


@njit(parallel=True, cache=True)
def _fill_distances(  # type: ignore[no-untyped-def]
    pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, hop, of, to, node, t, pair_cut, alpha, beta, td_unseen,
    sd_unseen, td, sd,
):  # fmt: skip
    size = node.shape[2]
    none = hop[-1] + 1
    for i in prange(node.shape[0]):
        now = max(t[i], _TINY)
        for r in range(len(of)):
            tree, target = node[i, of[r]], node[i, to[r]]
            root = target[0]
            order = np.argsort(target, kind="mergesort") if size > _MAX_SCAN else np.empty(0, dtype=np.int64)
            for c in range(size):
                w = tree[c]
                nearest = none
                if w >= 0:
                    slot = _find_first(target, order, w)
                    if slot < size:
                        nearest = hop[slot]
                sd[i, r, c] = nearest if nearest < none else sd_unseen
                if w == root and w >= 0:
                    td[i, r, c] = 0.0
                    continue
                count, last = pair_interactions_scalar(
                    pair_start, pair_nbr, pair_pos_start, pair_pos, w, root, pair_cut[i]
                )
                if count > 0:
                    ratio = elapsed[last] / now
                    td[i, r, c] = alpha * ratio / count + beta * (1 - ratio)
                else:
                    td[i, r, c] = td_unseen


_MAX_SCAN = 256  # up to this many slots a linear scan is faster than sorting first


@njit(inline="always")
def _find_first(target, order, w):  # type: ignore[no-untyped-def]
    """Return the first slot of ``target`` that holds ``w``, or the number of slots if none does.

    Hops never decrease along the slots, so it is the nearest. ``order`` is a stable sort of ``target``; empty: scan.
    """
    if len(order) == 0:
        for slot in range(len(target)):
            if target[slot] == w:
                return slot
        return len(target)
    start, stop = 0, len(order)
    while start < stop:
        middle = (start + stop) >> 1
        if target[order[middle]] < w:
            start = middle + 1
        else:
            stop = middle
    return order[start] if start < len(order) and target[order[start]] == w else len(target)
