"""Features of context slots and of pairs: exact counts and ages from history, without parameters.

All are pure functions of ``cut``. Counts and ages enter as ``log(1 + x)``. Ages are in units of the stream's own rate,
``elapsed / t * cut`` (the average number of events in that time), so the unit of time does not matter.

Axes: B queries, M candidates of a query, T = 1 + M endpoints, S = 2 M sequences (as in `cordgt.models.cordgt`), C
context slots, W windows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cordgt.history.context import Context, expand_to_pairs
from cordgt.history.cooccurrence import count_occurrences
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import Queries
from cordgt.runtime import kernel_loader as kernels

LOG_SCALE = 0.25  # brings logarithms of counts, which reach 15, near 1
N_WINDOWS = 4  # the latest 64, 512, 4096 and 32768 events of the stream

# Names of the columns in order; the kernels write them by number.
SLOT_COLUMNS = (
    "age of the slot's event", "stream events since then", "events of the node",
    "occurrences in its own tree", "interactions with its own root", "age of the last of them",
    "node is the event's source (1) or destination (-1)",
    "occurrences in the other tree", "interactions with the other root", "age of the last of them",
)  # fmt: skip
PAIR_COLUMNS = (
    "interactions", "age of the last of them", "events of the source since then", "events of the candidate since then",
    "events of the source", "events of the candidate", "age of the source's last event",
    "age of the candidate's last event",
    *(f"{what} in window {k}" for what in ("source", "candidate", "interactions") for k in range(N_WINDOWS)),
    "source of the last interaction: the source (1) or the candidate (-1)",
)  # fmt: skip
SLOT_DIM = len(SLOT_COLUMNS)  # F, columns of `slot_features`
PAIR_DIM = len(PAIR_COLUMNS)  # P, columns of `pair_features`


def slot_features(index: TemporalIndex, trees: Context, t: Tensor, cut: Tensor, pair_cut: Tensor) -> Tensor:
    """Return the `SLOT_COLUMNS` of every slot of every sequence: (B, S, C, F) float32; S is 1 if M is 0.

    0 for padding, and in the columns of the other tree if there is none.

    Shapes: trees (B, T, C); t, cut and pair_cut (B,).
    """
    fused = _triton_kernels(index)
    if fused is not None:
        return fused.slot_features(index, trees.node, trees.pos, t, cut, pair_cut, dim=SLOT_DIM, scale=LOG_SCALE)
    return _slot_features_torch(index, trees, t, cut, pair_cut)


def _slot_features_torch(index: TemporalIndex, trees: Context, t: Tensor, cut: Tensor, pair_cut: Tensor) -> Tensor:
    t, cut, pair_cut = t[:, None, None], cut[:, None, None], pair_cut[:, None, None]

    def relate(node: Tensor, tree: Tensor) -> list[Tensor]:
        """Return occurrences of nodes (B, ., C) in trees (B, ., C), and count and age of events with the roots."""
        count, last = index.pair_interactions(node, tree[..., :1], pair_cut)
        occurrences = count_occurrences(node, tree, use_numba=index.uses_numba)
        return [occurrences, count, _to_event_count(t - index.event_time(last), t, cut)]

    node, has_event = trees.node, trees.pos >= 0
    age = torch.where(has_event, _to_event_count(t - index.event_time(trees.pos), t, cut), 0.0)
    columns = [age, torch.where(has_event, cut - trees.pos, 0), index.degree(node, cut), *relate(node, node)]
    own = torch.log1p(torch.stack([x.float() for x in columns], dim=-1))
    direction = torch.where(has_event, 2.0 * index.is_source(node, trees.pos) - 1.0, 0.0) / LOG_SCALE
    own = expand_to_pairs(torch.cat([own, direction.float().unsqueeze(-1)], dim=-1))
    if node.shape[1] == 1:
        other = torch.zeros(*own.shape[:-1], 3, device=own.device)
    else:
        source, candidates = node[:, :1].expand_as(node[:, 1:]), node[:, 1:]
        columns = relate(torch.cat([source, candidates], dim=1), torch.cat([candidates, source], dim=1))
        other = torch.log1p(torch.stack([x.float() for x in columns], dim=-1))
    features = LOG_SCALE * torch.cat([own, other], dim=-1)
    return torch.where(expand_to_pairs(trees.valid).unsqueeze(-1), features, 0.0)


def pair_features(index: TemporalIndex, queries: Queries) -> Tensor:
    """Return the `PAIR_COLUMNS` of every pair: (B, M, P) float32."""
    fused = _triton_kernels(index)
    if fused is not None:
        return fused.pair_features(index, **vars(queries), n_windows=N_WINDOWS, dim=PAIR_DIM, scale=LOG_SCALE)
    return _pair_features_torch(index, queries)


def _triton_kernels(index: TemporalIndex) -> Any:
    """Return the module of Triton kernels if the index uses them, else None."""
    return kernels.load_kernels("history.kernels.pair_features", index.device) if index.use_kernels else None


def _pair_features_torch(index: TemporalIndex, queries: Queries) -> Tensor:
    source, t, cut, pair_cut = (x[:, None] for x in (queries.src, queries.t, queries.cut, queries.pair_cut))
    endpoints, candidates = queries.endpoints, queries.dst
    count, last = index.pair_interactions(source, candidates, pair_cut)  # (B, M)
    degree = index.degree(endpoints, cut)  # (B, T)
    since = [degree[:, :1] - index.degree(source, last + 1), degree[:, 1:] - index.degree(candidates, last + 1)]
    last_age = _to_event_count(t - index.event_time(index.last_position(endpoints, degree)), t, cut)  # (B, T)
    window = 8 * 8 ** torch.arange(1, N_WINDOWS + 1, device=cut.device)
    begin = (cut.unsqueeze(-1) - window).clamp_min(0)  # (B, 1, W)
    active = degree.unsqueeze(-1) - index.degree(endpoints.unsqueeze(-1), begin)  # (B, T, W)
    pair_begin = torch.minimum(begin, pair_cut.unsqueeze(-1))
    before = index.pair_interactions(source.unsqueeze(-1), candidates.unsqueeze(-1), pair_begin)[0]
    pair_age = _to_event_count(t - index.event_time(last), t, cut)
    columns = [count, pair_age, *since, degree[:, :1], degree[:, 1:], last_age[:, :1], last_age[:, 1:]]
    totals = torch.stack([x.expand_as(count).float() for x in columns], dim=-1)
    size = (*candidates.shape, N_WINDOWS)
    counts = torch.cat([totals, active[:, :1].expand(size), active[:, 1:], count.unsqueeze(-1) - before], dim=-1)
    direction = torch.where(count > 0, 2.0 * index.is_source(source, last) - 1.0, 0.0).float()
    return torch.cat([LOG_SCALE * torch.log1p(counts.float()), direction.unsqueeze(-1)], dim=-1)


def _to_event_count(elapsed: Tensor, t: Tensor, cut: Tensor) -> Tensor:
    """Return the average number of stream events in an elapsed time; 0 at the stream's start.

    The division comes first: the quotient is at most 1, whereas ``elapsed * cut`` could overflow.
    """
    return torch.where(t > 0, elapsed.clamp_min(0.0) / t.clamp_min(1e-300) * cut, 0.0)
