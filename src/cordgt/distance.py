"""Spatial and temporal distance: how near a context node is to an end of the pair in question."""

from __future__ import annotations

import torch
from torch import Tensor

from cordgt.context import Context, TreeShape
from cordgt.index import TemporalIndex


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
    share = last / t.clamp_min(torch.finfo(torch.float64).tiny)  # last / t in [0, 1]; 0 / tiny at the stream's start
    distance = alpha * share / count.clamp_min(1) + beta * (1 - share)
    distance = torch.where(count > 0, distance, never_met)
    return torch.where((node == root) & (node >= 0), 0.0, distance)
