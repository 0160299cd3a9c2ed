"""Spatial and temporal distance: how near a context node is to an end of the pair in question."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history.context import Context, TreeShape
from cordgt.history.index import TemporalIndex, meetings_scalar


@dataclass(frozen=True)
class Scale:
    """How distances are measured: the paper's weights, and what stands for "never met" and "absent"."""

    alpha: float  # weight of (inverse) intensity in TD
    beta: float  # weight of recency in TD
    never_met: float  # TD of a pair that never met
    absent: int  # SD of a node that a tree does not hold


def relations(n_others: int, correlated: bool) -> tuple[list[int], list[int]]:
    """Which tree's nodes are measured, and to the root of which tree: the order of `tree_distances`' R axis.

    Tree 0 is the source's, 1 to M the candidates'. Correlated: the source's own, the source's to each candidate, each
    candidate's own, each candidate's to the source (R = 1 + 3 M). Otherwise each tree's own (R = 1 + M).
    """
    source, others = [0] * n_others, list(range(1, n_others + 1))
    if not correlated:
        return [0, *others], [0, *others]
    return [0, *source, *others, *others], [0, *others, *others, *source]


def to_both_ends(x: Tensor) -> Tensor:
    """Distances (B, 4, C) of one candidate, correlated, as `relations` orders them, sorted by the end they are to.

    (2, B, 2, C) comes back: those of both trees' nodes to the source, then to the candidate.
    """
    return torch.stack([torch.stack([x[:, 0], x[:, 3]], dim=1), torch.stack([x[:, 1], x[:, 2]], dim=1)])


def tree_distances(
    index: TemporalIndex,
    shape: TreeShape,
    trees: Context,
    t: Tensor,
    pair_cut: Tensor,
    scale: Scale,
    *,
    correlated: bool,
) -> tuple[Tensor, Tensor]:
    """TD (B, R, C) float64 and SD (B, R, C) int64 of the nodes of trees (B, 1 + M, C) to roots; R as in `relations`.

    ``t`` (B,) float64 is the time asked about, since the stream's first event; records stop at ``pair_cut`` (B,).
    """
    past = index.fused
    if past is not None:
        return past.distances(
            index, trees.node, shape.hop_on(index.device), shape.hops, t, pair_cut, correlated=correlated, **vars(scale)
        )
    if index.runs_compiled:
        return _tree_distances_compiled(index, shape, trees.node, t, pair_cut, scale, correlated)
    own, theirs = trees.node, trees.node  # (B, R, C)
    if correlated:  # the order of `relations`
        source, others = trees.node[:, :1], trees.node[:, 1:]
        again = source.expand_as(others)
        own, theirs = torch.cat([source, again, others, others], 1), torch.cat([source, others, others, again], 1)
    sd = spatial_distance(own, Context(theirs, theirs), shape, scale.absent)
    weights = {"alpha": scale.alpha, "beta": scale.beta, "never_met": scale.never_met}
    return temporal_distance(index, own, theirs[..., 0], t[:, None], pair_cut[:, None], **weights), sd


def spatial_distance(node: Tensor, to: Context, shape: TreeShape, absent: int) -> Tensor:
    """The smallest hop at which each node stands in the tree ``to``; 0 for its root, ``absent`` if nowhere.

    Padding is absent. Shapes: node and ``to.node`` (..., C), leading axes broadcast; (..., C) int64 comes back.
    """
    same = node.unsqueeze(-1) == to.node.unsqueeze(-2)  # (..., C, C)
    beyond = shape.hops + 1
    hop = torch.where(same, shape.hop_on(node.device), beyond).amin(dim=-1)
    return torch.where((node >= 0) & (hop < beyond), hop, absent)


def temporal_distance(
    index: TemporalIndex,
    node: Tensor,
    root: Tensor,
    t: Tensor,
    pair_cut: Tensor,
    *,
    alpha: float,
    beta: float,
    never_met: float,
) -> Tensor:
    """``alpha * last / (t * n) + beta * (t - last) / t`` for n meetings of node and root, the last one at ``last``.

    ``alpha`` weighs the inverse of the Poisson intensity n / last, ``beta`` the recency. 0 where node is the root,
    ``never_met`` where they have not met among the first ``pair_cut`` events, and for padding.

    Shapes: node (..., C); root, t, pair_cut (...,), leading axes broadcast. Times are float64 since the stream's first
    event. float64 (..., C) comes back.
    """
    root, t = root.unsqueeze(-1), t.unsqueeze(-1)
    count, last = index.pair_history(node, root, pair_cut.unsqueeze(-1))
    share = last / t.clamp_min(_TINY)  # last / t in [0, 1]; 0 / tiny at the stream's start
    distance = alpha * share / count.clamp_min(1) + beta * (1 - share)
    distance = torch.where(count > 0, distance, never_met)
    return torch.where((node == root) & (node >= 0), 0.0, distance)


_TINY = float(np.finfo(np.float64).tiny)


def _tree_distances_compiled(
    index: TemporalIndex, shape: TreeShape, node: Tensor, t: Tensor, pair_cut: Tensor, scale: Scale, correlated: bool
) -> tuple[Tensor, Tensor]:
    of, to = relations(node.shape[1] - 1, correlated)
    size = (node.shape[0], len(of), node.shape[2])
    td, sd = np.empty(size, dtype=np.float64), np.empty(size, dtype=np.int64)
    _measure(
        index.pair_start.numpy(),
        index.pair_nbr.numpy(),
        index.pair_pos_start.numpy(),
        index.pair_pos.numpy(),
        index.elapsed.numpy(),
        shape.hop.numpy(),
        np.array(of),
        np.array(to),
        node.contiguous().numpy(),
        t.contiguous().numpy(),
        pair_cut.contiguous().numpy(),
        float(scale.alpha),
        float(scale.beta),
        float(scale.never_met),
        scale.absent,
        td,
        sd,
    )
    return torch.from_numpy(td), torch.from_numpy(sd)


@njit(parallel=True, cache=True)
def _measure(  # type: ignore[no-untyped-def]
    pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, hop, of, to, node, t, pair_cut, alpha, beta, never_met,
    absent, td, sd,
):  # fmt: skip
    size = node.shape[2]
    beyond = hop[-1] + 1
    for i in prange(node.shape[0]):
        moment = max(t[i], _TINY)
        for r in range(len(of)):
            own, theirs = node[i, of[r]], node[i, to[r]]
            root = theirs[0]
            order = np.argsort(theirs, kind="mergesort") if size > _SCANNED else np.empty(0, dtype=np.int64)
            for c in range(size):
                w = own[c]
                nearest = beyond
                if w >= 0:
                    slot = _first(theirs, order, w)
                    if slot < size:
                        nearest = hop[slot]
                sd[i, r, c] = nearest if nearest < beyond else absent
                if w == root and w >= 0:
                    td[i, r, c] = 0.0
                    continue
                count, last = meetings_scalar(pair_start, pair_nbr, pair_pos_start, pair_pos, w, root, pair_cut[i])
                if count > 0:
                    share = elapsed[last] / moment
                    td[i, r, c] = alpha * share / count + beta * (1 - share)
                else:
                    td[i, r, c] = never_met


_SCANNED = 256  # slots up to which looking at one after the other is faster than sorting them first


@njit(inline="always")
def _first(theirs, order, w):  # type: ignore[no-untyped-def]
    """The first slot that holds ``w``, the number of slots if none does. Hops never decrease along the slots, so it is
    the nearest. ``order`` sorts them stably, and is empty where they are few."""
    if len(order) == 0:
        for slot in range(len(theirs)):
            if theirs[slot] == w:
                return slot
        return len(theirs)
    start, stop = 0, len(order)
    while start < stop:
        middle = (start + stop) >> 1
        if theirs[order[middle]] < w:
            start = middle + 1
        else:
            stop = middle
    return order[start] if start < len(order) and theirs[order[start]] == w else len(theirs)
