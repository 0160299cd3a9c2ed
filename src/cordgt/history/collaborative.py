"""Collaborative columns of a pair: who met what alike. Exact, without parameters, pure functions of ``cut``.

For a source u, a candidate v and the first ``cut`` events:

- P: the distinct partners of the latest ``partners`` events of u, latest first, without u. The a-th of them has rank a.
- V(x): the distinct partners (*visitors*) of the latest ``visits`` events of x, without x and without u.
- *Co-visits* of v: the sum of ``|V(i) and V(v)| / sqrt(|V(i)| |V(v)|)`` over i in P, as cosine item-kNN does. *Decayed*
  divides each term by 1 + rank. *Rare* also weighs each visitor by ``1 / log2(2 + n)``, n: its events before its latest
  visit to i, so that busy visitors count less, as BM25 and Adamic-Adar do.
- *Next* and *soon*: a visitor w visits i at one of these ``visits`` events; its following events lead to other nodes.
  *Next after the last partner* is the share of the visits to the latest partner after which v comes at once. *Soon*
  sums ``1 / s`` over the visits after which v comes at step s, divided by the square root of the number of visits; over
  the first ``sequences`` partners of P each partner is divided by 1 + rank too.
- Ages are those of `cordgt.history.pair_features`. A node with fewer events has the age of the stream.

The work per query is at most ``partners * visits`` row entries, ``sequences * visits`` searches, and ``visits`` entries
per candidate. Only the rows of a `TemporalIndex` are read, so a memory-mapped index works too.

Axes: B queries, M candidates, L partners, K visits, S steps, Q columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import torch
from torch import Tensor
from torch.nn import functional as F

from cordgt.history.collaborative_loops import fill_collaborative
from cordgt.history.index import TemporalIndex, lower_bound, run_loop
from cordgt.history.queries import Queries

LOG_SCALE = 0.25  # brings logarithms of counts near 1
SHARE_SCALE = 256.0  # sums of shares are small: they enter as log(1 + SHARE_SCALE * x)
MAX_QUERIES = 256  # that torch operations process at once: 40 MB for the largest tensor with the default options
N_RANKS = 3  # ages of the 4th, 16th and 64th latest event: popularity at several time scales

COLLABORATIVE_COLUMNS = (
    "shared visitors", "co-visits", "co-visits, decayed", "co-visits, decayed and rare",
    "common partners", "common partners, rare",
    "next after the last partner", "soon after the last partner", "soon after recent partners",
    "soon after recent partners, by events of the candidate",
    "distinct partners of the source", "distinct visitors of the candidate",
    "age of the source's first event", "age of the candidate's first event",
    *(f"age of the {what}'s event {4 ** (k + 1)} from the end" for what in ("source", "candidate")
      for k in range(N_RANKS)),
)  # fmt: skip
COLLABORATIVE_DIM = len(COLLABORATIVE_COLUMNS)
_SHARES = (1, 2, 3, 5, 6, 7, 8, 9)  # columns that are sums of shares


@dataclass(frozen=True)
class CollaborativeOptions:
    """Bounds of the work per query."""

    partners: int = 20  # latest events of the source
    visits: int = 64  # latest events of a partner, and of a candidate
    sequences: int = 10  # latest partners whose next nodes are counted
    steps: int = 5  # following events of a visitor


def collaborative_features(
    index: TemporalIndex, queries: Queries, options: CollaborativeOptions = CollaborativeOptions()
) -> Tensor:  # fmt: skip
    """Return the `COLLABORATIVE_COLUMNS` of every pair: (B, M, Q) float32.

    Compiled loops on the CPU; torch operations without host synchronization on a GPU.
    """
    if index.uses_numba:
        columns = _columns_numba(index, queries, options)
    else:
        starts = range(0, max(len(queries.src), 1), MAX_QUERIES)
        chunks = [queries.take(slice(start, start + MAX_QUERIES)) for start in starts]
        columns = torch.cat([_columns_torch(index, chunk, options) for chunk in chunks])
    is_share = torch.zeros(COLLABORATIVE_DIM, dtype=torch.bool, device=columns.device)
    for column in _SHARES:
        is_share[column : column + 1].fill_(True)
    return (LOG_SCALE * torch.log1p(torch.where(is_share, SHARE_SCALE * columns, columns))).float()


def _columns_numba(index: TemporalIndex, queries: Queries, options: CollaborativeOptions) -> Tensor:
    out = torch.empty((*queries.dst.shape, COLLABORATIVE_DIM), dtype=torch.float64)
    run_loop(
        fill_collaborative,
        *(*index.row_arrays, index.elapsed),
        *(x.contiguous() for x in (queries.src, queries.dst, queries.t, queries.cut)),
        *(options.partners, options.visits, options.sequences, options.steps, N_RANKS),
        *(numba.get_num_threads(), out),
    )
    return out


def _columns_torch(index: TemporalIndex, queries: Queries, options: CollaborativeOptions) -> Tensor:
    """`_columns_numba` in torch operations. Shapes depend on the options alone."""
    q, cut = queries, queries.cut[:, None]
    source = _latest_events(index, q.src[:, None], cut, options.partners)  # (B, 1, L)
    partner, partner_rarity = source.node[:, 0], source.rarity[:, 0]
    is_new = source.valid[:, 0] & ~(partner[:, :, None] == partner[:, None, :]).tril(-1).any(-1)  # (B, L)
    rank = is_new.long().cumsum(-1) - 1
    partner = torch.where(is_new, partner, -1)
    visits = _latest_events(index, partner, cut, options.visits, q.src)  # (B, L, K)
    n_distinct = visits.is_distinct.sum(-1, keepdim=True)
    share = torch.where(visits.is_distinct, n_distinct.clamp_min(1).double().rsqrt(), 0.0)
    decayed = share / (1 + rank.clamp_min(0)).unsqueeze(-1)
    values = torch.stack([share, decayed, decayed * visits.rarity], dim=-1)  # (B, L, K, 3)
    candidate = _latest_events(index, q.dst, cut, options.visits, q.src)  # (B, M, K)
    wanted = torch.where(candidate.is_distinct, candidate.node, -2)
    distinct = torch.where(visits.is_distinct, visits.node, -1)
    n_shared, co_visits = _sum_by_key(distinct, values, wanted)
    n_visitors = candidate.is_distinct.sum(-1)  # (B, M)
    co_visits = co_visits * n_visitors.clamp_min(1).double().rsqrt().unsqueeze(-1)
    n_common, common = _sum_by_key(partner, partner_rarity.unsqueeze(-1), wanted)
    after = _sum_after(index, visits, rank, cut, q.dst, options)  # (B, M, 3)
    by_events = after[..., 2:] * index.degree(q.dst, cut).clamp_min(1).double().rsqrt().unsqueeze(-1)
    n_partners = is_new.sum(-1, keepdim=True).expand_as(q.dst)
    counts = [x.double().unsqueeze(-1) for x in (n_shared, n_common, n_partners, n_visitors)]
    return torch.cat(
        [counts[0], co_visits, counts[1], common, after, by_events, *counts[2:], _ages(index, queries)], dim=-1
    )


@dataclass(frozen=True)
class _LatestEvents:
    """The latest n events of nodes, latest first."""

    entry: Tensor  # (..., n) row entry; any if not valid
    node: Tensor  # (..., n) the neighbor; any if not valid
    rarity: Tensor  # (..., n) weight of the neighbor by its number of events before this one
    valid: Tensor  # (..., n) True: an event with another node than the node itself and the one to exclude
    is_distinct: Tensor  # (..., n) True: valid, and the latest event with this neighbor


def _latest_events(
    index: TemporalIndex, node: Tensor, cut: Tensor, n: int, exclude: Tensor | None = None
) -> _LatestEvents:
    """Return the latest ``n`` events of nodes (B, R) among the first ``cut`` (B, 1). ``exclude``: (B,) or None."""
    r = torch.arange(n, device=node.device)
    degree = index.degree(node, cut).unsqueeze(-1)
    entry = index.row_entry(node.unsqueeze(-1), degree - 1 - r)
    nbr = _take(index.nbr, entry)
    valid = (r < degree) & (nbr != node.unsqueeze(-1))
    if exclude is not None:
        valid = valid & (nbr != exclude[:, None, None])
    rarity = 1.0 / torch.log2(2.0 + _take(index.nbr_degree, entry).double())
    ordered, order = torch.where(valid, nbr, -1).sort(dim=-1, stable=True)
    is_first = F.pad(ordered[..., 1:] != ordered[..., :-1], (1, 0), value=True)
    is_distinct = torch.zeros_like(valid).scatter(-1, order, is_first) & valid
    return _LatestEvents(entry, nbr, rarity, valid, is_distinct)


def _sum_after(
    index: TemporalIndex, visits: _LatestEvents, rank: Tensor, cut: Tensor, dst: Tensor, options: CollaborativeOptions
) -> Tensor:
    """Return the columns *next* and *soon* of every candidate, (B, M, 3) float64."""
    is_used = visits.valid & (rank < options.sequences).unsqueeze(-1)  # (B, L, K)
    visitor = torch.where(is_used, visits.node, 0)
    row, end = index.row_start[visitor].long(), index.row_start[visitor + 1].long()
    after = _take(index.pos, visits.entry) + 1
    first = lower_bound(index.pos, row + _take(index.nbr_degree, visits.entry), end, after, index.max_degree)
    step = torch.arange(options.steps, device=dst.device)
    entry = first.unsqueeze(-1) + step  # (B, L, K, S)
    inside = entry.clamp_max(max(len(index.nbr) - 1, 0))
    is_visible = _take(index.pos, inside) < cut[:, :, None, None]
    exists = is_used.unsqueeze(-1) & (entry < end.unsqueeze(-1)) & is_visible
    node = torch.where(exists, _take(index.nbr, inside), -1)
    n_visits = visits.valid.sum(-1).clamp_min(1).double()[:, :, None, None]
    rank = rank[:, :, None, None]
    soon = 1.0 / ((1 + step) * n_visits.sqrt())  # (B, L, 1, S)
    is_last, is_next = rank == 0, step == 0
    zero = torch.zeros((), dtype=torch.float64, device=dst.device)
    parts = [
        torch.where(is_last & is_next, 1.0 / n_visits, zero),
        torch.where(is_last, soon, zero),
        soon / (1 + rank.clamp_min(0)),
    ]
    values = torch.stack([torch.where(exists, part, zero) for part in parts], dim=-1)  # (B, L, K, S, 3)
    return _sum_by_key(node, values, dst.unsqueeze(-1))[1]


def _sum_by_key(keys: Tensor, values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Look up the last axis of ``wanted`` (B, M, K) among ``keys`` (B, ...) with ``values`` (B, ..., V) float64.

    Keys of -1 match nothing. Returns how many of the K are found, (B, M), and the sum of their values, (B, M, V).
    """
    keys, order = keys.flatten(1).sort(dim=-1)
    values = values.flatten(1, -2)  # (B, keys, V)
    values = values.gather(1, order.unsqueeze(-1).expand_as(values))
    total = F.pad(values.cumsum(1), (0, 0, 1, 0))  # (B, keys + 1, V)
    flat = torch.where(wanted < 0, -2, wanted).flatten(1).contiguous()
    low, high = (torch.searchsorted(keys, flat, right=right) for right in (False, True))
    size = (*low.shape, total.shape[-1])
    sums = total.gather(1, high.unsqueeze(-1).expand(size)) - total.gather(1, low.unsqueeze(-1).expand(size))
    return (high > low).view(wanted.shape).sum(-1), sums.view(*wanted.shape, total.shape[-1]).sum(-2)


def _ages(index: TemporalIndex, queries: Queries) -> Tensor:
    """Return the ages of first and earlier events of both ends, (B, M, 2 + 2 N_RANKS) float64."""
    t, cut, nodes = queries.t[:, None, None], queries.cut[:, None], queries.endpoints
    degree = index.degree(nodes, cut).unsqueeze(-1)  # (B, 1 + M, 1)
    ranks = 4 ** torch.arange(1, N_RANKS + 1, device=nodes.device)
    back = torch.cat([degree.clamp_min(1), ranks.expand(*nodes.shape, N_RANKS)], dim=-1)
    position = _take(index.pos, index.row_entry(nodes.unsqueeze(-1), degree - back))
    since = index.event_time(torch.where(degree >= back, position, -1))
    age = torch.where(t > 0, (t - since).clamp_min(0.0) / t.clamp_min(1e-300) * cut.unsqueeze(-1), 0.0)
    source, candidate = age[:, :1].expand(*queries.dst.shape, -1), age[:, 1:]
    return torch.cat([source[..., :1], candidate[..., :1], source[..., 1:], candidate[..., 1:]], dim=-1)


def _take(array: Tensor, at: Tensor) -> Tensor:
    """Return the entries of an array of the index as int64; 0 if it is empty."""
    return array[at].long() if len(array) else torch.zeros_like(at)
