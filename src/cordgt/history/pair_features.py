"""Proximity: what history says of a context node and of a pair, counted exactly and without parameters.

Everything is a pure function of ``cut``. Counts and ages enter as ``log(1 + x)``; ages are measured in the stream's own
pace, ``elapsed / t * cut``: how many events the stream usually has in that time. So no unit of time matters.

Axes: B queries, M candidates of a query, T = 1 + M ends, S = 2 M sequences (as in `cordgt.models.cordgt`), C context
slots, W windows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cordgt.history.context import Context, in_pairs
from cordgt.history.cooccurrence import appearances
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import Queries
from cordgt.runtime import kernel_loader as kernels

SCALE = 0.25  # brings logarithms of counts, which reach 15, near 1
WINDOWS = 4  # the latest 64, 512, 4096 and 32768 events of the stream

# The columns in their order, which the kernels have by number.
OF_SLOT = (
    "age of its event", "events of the stream since", "events of its node",
    "times in its own tree", "meetings with its own root", "how long ago the last of them",
    "sent (1) or received (-1)",
    "times in the other tree", "meetings with the other root", "how long ago the last of them",
)  # fmt: skip
OF_PAIR = (
    "meetings", "how long ago the last of them", "events of the source since", "events of the candidate since",
    "events of the source", "events of the candidate", "how long the source was quiet",
    "how long the candidate was quiet",
    *(f"{what} in window {k}" for what in ("source", "candidate", "meetings") for k in range(WINDOWS)),
    "the source sent the last (1) or received it (-1)",
)  # fmt: skip
PER_SLOT = len(OF_SLOT)  # F, columns of `slots`
PER_PAIR = len(OF_PAIR)  # P, columns of `pairs`


def slots(index: TemporalIndex, trees: Context, t: Tensor, cut: Tensor, pair_cut: Tensor) -> Tensor:
    """What is known of every slot of every sequence: (B, S, C, F) float32; S is 1 where a tree stands alone.

    Of its event the age, how many events of the stream followed, and whether the node sent it or was sent to; of its
    node how many events it has, how often it stands in its own tree and in the other end's, how often and how long ago
    it met either end. 0 for padding, and for the other end where there is none.

    Shapes: trees (B, T, C); t, cut and pair_cut (B,).
    """
    fused = _fused(index)
    if fused is not None:
        return fused.slots(index, trees.node, trees.pos, t, cut, pair_cut, width=PER_SLOT, scale=SCALE)
    return _slots_plain(index, trees, t, cut, pair_cut)


def _slots_plain(index: TemporalIndex, trees: Context, t: Tensor, cut: Tensor, pair_cut: Tensor) -> Tensor:
    t, cut, pair_cut = t[:, None, None], cut[:, None, None], pair_cut[:, None, None]

    def beside(node: Tensor, tree: Tensor) -> list[Tensor]:
        """What nodes (B, ., C) have to do with the trees (B, ., C) and with their roots."""
        count, last = index.meetings(node, tree[..., :1], pair_cut)
        return [appearances(node, tree, compiled=index.runs_compiled), count, _pace(t - index.time_of(last), t, cut)]

    node, drawn = trees.node, trees.pos >= 0
    age = torch.where(drawn, _pace(t - index.time_of(trees.pos), t, cut), 0.0)
    of_node = [age, torch.where(drawn, cut - trees.pos, 0), index.degree(node, cut), *beside(node, node)]
    own = torch.log1p(torch.stack([x.float() for x in of_node], dim=-1))
    sent = torch.where(drawn, 2.0 * index.sent(node, trees.pos) - 1.0, 0.0) / SCALE
    own = in_pairs(torch.cat([own, sent.float().unsqueeze(-1)], dim=-1))
    if node.shape[1] == 1:
        other = torch.zeros(*own.shape[:-1], 3, device=own.device)
    else:
        source, candidates = node[:, :1].expand_as(node[:, 1:]), node[:, 1:]
        found = beside(torch.cat([source, candidates], dim=1), torch.cat([candidates, source], dim=1))
        other = torch.log1p(torch.stack([x.float() for x in found], dim=-1))
    known = SCALE * torch.cat([own, other], dim=-1)
    return torch.where(in_pairs(trees.valid).unsqueeze(-1), known, 0.0)


def pairs(index: TemporalIndex, queries: Queries) -> Tensor:
    """What is known of every pair: (B, M, P) float32.

    How often and how long ago they met, who sent what was last, and how many events of either end came since; of either
    end how many events it has and how long ago its latest was; and, for each window, the events of the source, those of
    the candidate, and their meetings in it.
    """
    fused = _fused(index)
    if fused is not None:
        return fused.pairs(index, **vars(queries), windows=WINDOWS, width=PER_PAIR, scale=SCALE)
    return _pairs_plain(index, queries)


def _fused(index: TemporalIndex) -> Any:
    """The kernels that answer on a GPU, or None."""
    return kernels.fused("history.kernels.pair_features", index.device) if index.compiled else None


def _pairs_plain(index: TemporalIndex, queries: Queries) -> Tensor:
    source, t, cut, pair_cut = (x[:, None] for x in (queries.src, queries.t, queries.cut, queries.pair_cut))
    ends, others = queries.ends, queries.dst
    count, last = index.meetings(source, others, pair_cut)  # (B, M)
    degree = index.degree(ends, cut)  # (B, T)
    since = [degree[:, :1] - index.degree(source, last + 1), degree[:, 1:] - index.degree(others, last + 1)]
    quiet = _pace(t - index.time_of(index.latest(ends, degree)), t, cut)  # (B, T)
    window = 8 * 8 ** torch.arange(1, WINDOWS + 1, device=cut.device)
    begin = (cut.unsqueeze(-1) - window).clamp_min(0)  # (B, 1, W)
    active = degree.unsqueeze(-1) - index.degree(ends.unsqueeze(-1), begin)  # (B, T, W)
    before = index.meetings(source.unsqueeze(-1), others.unsqueeze(-1), torch.minimum(begin, pair_cut.unsqueeze(-1)))[0]
    met = _pace(t - index.time_of(last), t, cut)
    single = [count, met, *since, degree[:, :1], degree[:, 1:], quiet[:, :1], quiet[:, 1:]]
    alone = torch.stack([x.expand_as(count).float() for x in single], dim=-1)
    wide = (*others.shape, WINDOWS)
    counted = torch.cat([alone, active[:, :1].expand(wide), active[:, 1:], count.unsqueeze(-1) - before], dim=-1)
    sent = torch.where(count > 0, 2.0 * index.sent(source, last) - 1.0, 0.0).float()
    return torch.cat([SCALE * torch.log1p(counted.float()), sent.unsqueeze(-1)], dim=-1)


def _pace(elapsed: Tensor, t: Tensor, cut: Tensor) -> Tensor:
    """An elapsed time as the number of events that the stream usually has in it; 0 at the stream's start.

    Divided first: a part of the time is at most 1, where ``elapsed * cut`` could be too large for a number.
    """
    return torch.where(t > 0, elapsed.clamp_min(0.0) / t.clamp_min(1e-300) * cut, 0.0)
