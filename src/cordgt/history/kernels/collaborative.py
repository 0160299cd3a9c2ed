"""Triton kernels for the collaborative columns: one launch reads the source of each query, one scores its candidates.

Torch reference: `cordgt.history.collaborative`, whose `COLLABORATIVE_COLUMNS` are written by number here. Nothing is
added atomically and every sum has a fixed order, so the same input gives the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.history.kernels.index_arrays import IndexArrays
from cordgt.history.kernels.pair_features import to_event_count
from cordgt.history.kernels.trees import lower_bound, row_degree, search_steps

MAX_QUERIES = 4096  # of a launch: at most 200 MB between the two kernels with the default options
SOURCE_WARPS = 2
FEW_PAIRS = 2048  # up to so many, several warps per pair finish sooner; above, one warp leaves room for others
PAIR_WARPS = 4
UNROLL = 8  # loads of visitors in flight
MIN_BLOCK = 8  # of partners, visits and steps, so that small options share compiled kernels
N_FACTS = 3  # of a source: number of distinct partners, start of its row, number of its events
N_SCALES = 3  # of a partner: 1 / sqrt(distinct visitors), 1 / visits, 1 / sqrt(visits)

# Arguments for which kernels are compiled once, whatever their values. A kernel has some of them.
SIZES = ("n_candidates", "n_nodes", "degree_steps", "n_partners", "n_visits", "n_sequences", "n_steps")


@triton.jit
def _rarity(n_events):
    """Return the weight of a visitor that had ``n_events`` events before its visit, ``1 / log2(2 + n)``."""
    return 0.6931471805599453 / tl.log(2.0 + n_events.to(tl.float64))


@triton.jit
def _latest_visits(row_start, nbr, pos, node, exclude, limit, n_nodes, degree_steps, n_visits, VISITS: tl.constexpr):
    """Return the start of a node's row, the number of its events before ``limit``, and the latest of them.

    Of each (VISITS,), latest first: row entry, neighbor, whether it is valid (among the latest ``n_visits``, and the
    neighbor is neither the node nor ``exclude``), whether it is also the latest with this neighbor.
    """
    begin, degree = row_degree(row_start, pos, node, limit, n_nodes, degree_steps)
    begin = begin.to(tl.int64)
    k = tl.arange(0, VISITS)
    at = begin + degree - 1 - k
    inside = k < tl.minimum(degree, n_visits)
    visitor = tl.load(nbr + at, mask=inside, other=-1)
    valid = inside & (visitor != node) & (visitor != exclude)
    is_repeat = (visitor[:, None] == visitor[None, :]) & (k[None, :] < k[:, None])
    is_distinct = valid & (tl.sum(is_repeat.to(tl.int32), axis=1) == 0)
    return begin, degree, at, visitor, valid, is_distinct


@triton.jit(do_not_specialize=SIZES)
def _source(
    row_start, nbr, pos, nbr_degree, source, cut, facts, partners, partner_rarity, scales, visitors, rarity, after,
    n_nodes, degree_steps, n_partners, n_visits, n_sequences, n_steps,
    PARTNERS: tl.constexpr, VISITS: tl.constexpr, STEPS: tl.constexpr, FACTS: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """One program per (query, latest event of its source): the visitors of that partner, and what they visited next.

    It does nothing if a later event has the same partner. Otherwise it writes at the rank of the partner.
    """
    query, event = (tl.program_id(0) // n_partners).to(tl.int64), tl.program_id(0) % n_partners
    u, limit = tl.load(source + query), tl.load(cut + query)
    begin, degree, at, partner, _is_valid, is_new = _latest_visits(
        row_start, nbr, pos, u, u, limit, n_nodes, degree_steps, n_partners, PARTNERS
    )
    r = tl.arange(0, PARTNERS)
    if event == 0:
        tl.store(facts + query * FACTS, tl.sum(is_new.to(tl.int64), axis=0))
        tl.store(facts + query * FACTS + 1, begin)
        tl.store(facts + query * FACTS + 2, degree)
    is_own = is_new & (r == event)
    if tl.sum(is_own.to(tl.int32), axis=0) > 0:
        rank = tl.sum((is_new & (r < event)).to(tl.int64), axis=0)
        i = tl.sum(tl.where(is_own, partner, 0).to(tl.int64), axis=0)
        n_before = tl.sum(tl.load(nbr_degree + at, mask=is_own, other=0).to(tl.int64), axis=0)
        slot = query * n_partners + rank
        tl.store(partners + slot, i)
        tl.store(partner_rarity + slot, _rarity(n_before))
        _begin, _degree, at_visit, visitor, valid, is_distinct = _latest_visits(
            row_start, nbr, pos, i, u, limit, n_nodes, degree_steps, n_visits, VISITS
        )
        n_distinct = tl.sum(is_distinct.to(tl.int32), axis=0)
        n_valid = tl.maximum(tl.sum(valid.to(tl.int32), axis=0), 1).to(tl.float64)
        tl.store(scales + slot * SCALES, 1.0 / tl.sqrt(tl.maximum(n_distinct, 1).to(tl.float64)))
        tl.store(scales + slot * SCALES + 1, 1.0 / n_valid)
        tl.store(scales + slot * SCALES + 2, 1.0 / tl.sqrt(n_valid))
        k = tl.arange(0, VISITS)
        visit = (query * n_visits + k) * n_partners + rank
        before = tl.load(nbr_degree + at_visit, mask=valid, other=0).to(tl.int64)
        tl.store(visitors + visit, tl.where(is_distinct, visitor, -1), mask=k < n_visits)
        tl.store(rarity + visit, _rarity(before), mask=is_distinct)
        if rank < n_sequences:
            row = tl.load(row_start + visitor, mask=valid, other=0).to(tl.int64)
            end = tl.load(row_start + visitor + 1, mask=valid, other=0).to(tl.int64)
            later = tl.load(pos + at_visit, mask=valid, other=0).to(tl.int64) + 1
            first = lower_bound(pos, row + before, end, later, degree_steps)
            step = tl.arange(0, STEPS)[:, None]
            entry = first[None, :] + step
            inside = (entry < tl.where(valid, end, 0)[None, :]) & (step < n_steps)
            exists = inside & (tl.load(pos + entry, mask=inside, other=0) < limit)
            node = tl.load(nbr + entry, mask=exists, other=-1)
            out = after + ((query * n_sequences + rank) * n_steps + step) * n_visits + k[None, :]
            tl.store(out, node, mask=(step < n_steps) & (k < n_visits)[None, :])


@triton.jit
def _put(row, c, COLUMN: tl.constexpr, value):
    """Return the row with a value in one column."""
    return tl.where(c == COLUMN, value, row)


@triton.jit(do_not_specialize=SIZES)
def _pairs(
    row_start, nbr, pos, elapsed, candidates, source, t, cut, facts, partners, partner_rarity, scales, visitors,
    rarity, after, out, n_candidates, n_nodes, degree_steps, n_partners, n_visits, n_sequences, n_steps,
    PARTNERS: tl.constexpr, VISITS: tl.constexpr, STEPS: tl.constexpr, FACTS: tl.constexpr, SCALES: tl.constexpr,
    RANKS: tl.constexpr, DIM: tl.constexpr, COLUMNS: tl.constexpr, SHARES: tl.constexpr, SHARE_SCALE: tl.constexpr,
    SCALE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One program per (query, candidate)."""
    pair, query = tl.program_id(0).to(tl.int64), (tl.program_id(0) // n_candidates).to(tl.int64)
    u, v = tl.load(source + query), tl.load(candidates + pair)
    now, limit = tl.load(t + query), tl.load(cut + query)
    n_found = tl.load(facts + query * FACTS).to(tl.int32)
    begin, degree, _at, visitor, _valid, is_distinct = _latest_visits(
        row_start, nbr, pos, v, u, limit, n_nodes, degree_steps, n_visits, VISITS
    )
    n_visitors = tl.sum(is_distinct.to(tl.int32), axis=0)
    wanted = tl.where(is_distinct, visitor, -2)

    a = tl.arange(0, PARTNERS)
    is_partner = a < n_found
    of_partner = query * n_partners + a
    partner = tl.load(partners + of_partner, mask=is_partner, other=-1)
    is_common = tl.sum((wanted[:, None] == partner[None, :]).to(tl.int32), axis=0)
    common_rarity = tl.load(partner_rarity + of_partner, mask=is_common > 0, other=0.0)

    # 1 + the number of the visit of partner a that has the candidate's visitor k, 0 if there is none
    place = tl.zeros((VISITS, PARTNERS), tl.int32)
    n_keys = tl.where((n_found > 0) & (n_visitors > 0), n_visits, 0)
    for start in range(0, n_keys, UNROLL):
        for ahead in tl.static_range(UNROLL):
            j = start + ahead
            slot = (query * n_visits + j) * n_partners + a
            key = tl.load(visitors + slot, mask=a < tl.where(j < n_visits, n_found, 0), other=-1)
            place += tl.where(wanted[:, None] == key[None, :], j + 1, 0)
    shared = place > 0
    shared_rarity = tl.load(rarity + (query * n_visits + place - 1) * n_partners + a[None, :], mask=shared, other=0.0)
    n_shared = tl.sum(tl.max(shared.to(tl.int32), axis=1), axis=0)
    share = tl.load(scales + of_partner * SCALES, mask=is_partner, other=0.0)
    decayed = share / (1 + a).to(tl.float64)
    n_with = tl.sum(shared.to(tl.int32), axis=0).to(tl.float64)
    own_share = 1.0 / tl.sqrt(tl.maximum(n_visitors, 1).to(tl.float64))

    s = tl.arange(0, STEPS)[:, None]
    k = tl.arange(0, VISITS)[None, :]
    n_read = tl.where(v >= 0, tl.minimum(n_found, n_sequences), 0)
    n_next = tl.zeros((STEPS, VISITS), tl.int32)
    n_last = tl.zeros((STEPS, VISITS), tl.int32)
    soon = tl.zeros((STEPS, VISITS), tl.float64)
    for b in range(n_sequences):
        exists = (s < n_steps) & (k < tl.where(b < n_read, n_visits, 0))
        node = tl.load(after + ((query * n_sequences + b) * n_steps + s) * n_visits + k, mask=exists, other=-1)
        is_here = exists & (node == v)
        n_next += (is_here & (b == 0) & (s == 0)).to(tl.int32)
        n_last += (is_here & (b == 0)).to(tl.int32)
        scale = tl.load(scales + (query * n_partners + b) * SCALES + 2, mask=b < n_read, other=0.0)
        soon += tl.where(is_here, scale / (1.0 + b), 0.0)
    by_step = 1.0 / (1 + s).to(tl.float64)
    last_scales = scales + query * n_partners * SCALES
    next_share = tl.load(last_scales + 1, mask=n_found > 0, other=0.0)
    soon_share = tl.load(last_scales + 2, mask=n_found > 0, other=0.0)
    soon_sum = tl.sum(tl.sum(soon * by_step, axis=1), axis=0)

    c = tl.arange(0, COLUMNS)
    FIRST_AGE: tl.constexpr = 12
    row = tl.zeros((COLUMNS,), tl.float64)
    row = _put(row, c, 0, n_shared.to(tl.float64))
    row = _put(row, c, 1, tl.sum(n_with * share, axis=0) * own_share)
    row = _put(row, c, 2, tl.sum(n_with * decayed, axis=0) * own_share)
    row = _put(row, c, 3, tl.sum(tl.sum(shared_rarity, axis=0) * decayed, axis=0) * own_share)
    row = _put(row, c, 4, tl.sum(is_common, axis=0).to(tl.float64))
    row = _put(row, c, 5, tl.sum(common_rarity, axis=0))
    row = _put(row, c, 6, tl.sum(tl.sum(n_next, axis=1), axis=0).to(tl.float64) * next_share)
    row = _put(row, c, 7, tl.sum(tl.sum(n_last.to(tl.float64) * by_step, axis=1), axis=0) * soon_share)
    row = _put(row, c, 8, soon_sum)
    row = _put(row, c, 9, soon_sum / tl.sqrt(tl.maximum(degree, 1).to(tl.float64)))
    row = _put(row, c, 10, n_found.to(tl.float64))
    row = _put(row, c, 11, n_visitors.to(tl.float64))

    of_source = (c == FIRST_AGE) | ((c >= FIRST_AGE + 2) & (c < FIRST_AGE + 2 + RANKS))
    begin_u, degree_u = tl.load(facts + query * FACTS + 1), tl.load(facts + query * FACTS + 2)
    n_events = tl.where(of_source, degree_u, degree.to(tl.int64))
    begins = tl.where(of_source, begin_u, begin)
    power = tl.maximum(tl.where(c < FIRST_AGE + 2 + RANKS, c - FIRST_AGE - 1, c - FIRST_AGE - 1 - RANKS), 0)
    back = tl.where(c < FIRST_AGE + 2, tl.maximum(n_events, 1), tl.full((COLUMNS,), 1, tl.int64) << (2 * power))
    is_age = (c >= FIRST_AGE) & (c < DIM)
    exists_then = is_age & (n_events >= back)
    position = tl.load(pos + begins + n_events - back, mask=exists_then, other=0)
    since = tl.load(elapsed + position, mask=exists_then, other=0.0)
    row = tl.where(is_age, to_event_count(now - since, now, limit), row)
    row = tl.where(((SHARES >> c) & 1) > 0, SHARE_SCALE * row, row)
    tl.store(out + pair * DIM + c, (SCALE * tl.log(1.0 + row)).to(tl.float32), mask=c < DIM)


class Columns(NamedTuple):
    """How the columns are written."""

    dim: int
    n_ranks: int
    shares: tuple[int, ...]  # columns that are multiplied by `share_scale`
    share_scale: float
    scale: float


def collaborative_features(
    index: IndexArrays, src: Tensor, dst: Tensor, t: Tensor, cut: Tensor, *, n_partners: int, n_visits: int,
    n_sequences: int, n_steps: int, columns: Columns,
) -> Tensor:  # fmt: skip
    """Return (B, M, dim) float32 for sources (B,) and their candidates (B, M)."""
    out = torch.empty((*dst.shape, columns.dim), device=dst.device)
    sizes = (n_partners, n_visits, n_sequences, n_steps)
    for start in range(0, len(src) if dst.numel() else 0, MAX_QUERIES):
        part = slice(start, start + MAX_QUERIES)
        _launch(index, src[part], dst[part], t[part], cut[part], out[part], sizes, columns)
    return out


def _launch(
    index: IndexArrays, src: Tensor, dst: Tensor, t: Tensor, cut: Tensor, out: Tensor,
    sizes: tuple[int, int, int, int], columns: Columns,
) -> None:  # fmt: skip
    """Write the columns of some queries."""
    n, (row_start, nbr, pos, nbr_degree), device = len(src), index.row_arrays, src.device
    n_partners, n_visits, n_sequences, n_steps = sizes
    src, dst, t, cut = (x.contiguous() for x in (src, dst, t, cut))
    facts = torch.empty((n, N_FACTS), dtype=torch.int64, device=device)
    partners = torch.empty((n, n_partners), dtype=torch.int64, device=device)
    partner_rarity = torch.empty((n, n_partners), dtype=torch.float64, device=device)
    scales = torch.empty((n, n_partners, N_SCALES), dtype=torch.float64, device=device)
    visitors = torch.empty((n, n_visits, n_partners), dtype=nbr.dtype, device=device)
    rarity = torch.empty((n, n_visits, n_partners), dtype=torch.float64, device=device)
    after = torch.empty((n, n_sequences, n_steps, n_visits), dtype=nbr.dtype, device=device)
    between = (facts, partners, partner_rarity, scales, visitors, rarity, after)
    blocks = {"PARTNERS": _block(n_partners), "VISITS": _block(n_visits), "STEPS": _block(n_steps)}
    common = blocks | {"FACTS": N_FACTS, "SCALES": N_SCALES}
    bounds = (index.n_nodes, search_steps(index.max_degree), *sizes)
    _source[(n * n_partners,)](
        row_start, nbr, pos, nbr_degree, src, cut, *between, *bounds, **common, num_warps=SOURCE_WARPS
    )
    _pairs[(dst.numel(),)](
        row_start, nbr, pos, index.elapsed, dst, src, t, cut, *between, out, dst.shape[1], *bounds, **common,
        RANKS=columns.n_ranks, DIM=columns.dim, COLUMNS=triton.next_power_of_2(columns.dim),
        SHARES=sum(1 << column for column in columns.shares), SHARE_SCALE=columns.share_scale, SCALE=columns.scale,
        UNROLL=UNROLL, num_warps=PAIR_WARPS if dst.numel() <= FEW_PAIRS else 1,
    )  # fmt: skip


def _block(n: int) -> int:
    """Return the size of a block that holds ``n`` values."""
    return max(MIN_BLOCK, triton.next_power_of_2(n))
