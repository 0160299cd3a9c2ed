"""Triton kernels for the features of context slots and of pairs, one launch each.

Torch reference: `cordgt.history.pair_features`, whose `SLOT_COLUMNS` and `PAIR_COLUMNS` are written by number here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.history.kernels.index_arrays import IndexArrays
from cordgt.history.kernels.trees import find_pair, pair_search_steps, row_degree, search_steps

PAIRS_PER_PROGRAM = 16


@triton.jit
def _log(x, SCALE: tl.constexpr):
    """Return ``SCALE * log(1 + x)``, computed in float64, as float32."""
    return (SCALE * tl.log(1.0 + x.to(tl.float64))).to(tl.float32)


@triton.jit
def to_event_count(elapsed, t, cut):
    """Return the average number of stream events in an elapsed time; 0 at the stream's start."""
    n_events = tl.maximum(elapsed, 0.0) / tl.maximum(t, 1e-300) * cut.to(tl.float64)
    return tl.where(t > 0.0, n_events, 0.0)


@triton.jit
def _slot_features(
    row_start, row_pos, pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, src, trees, trees_pos, t, cut,
    pair_cut, out, n_candidates, n_sequences, size, n_nodes, degree_steps, nbr_steps, pos_steps,
    SLOTS: tl.constexpr, MEMBERS: tl.constexpr, DIM: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """One program per (query, sequence): features of its tree's slots, relative to its own and to the other tree."""
    query, sequence = tl.program_id(0).to(tl.int64) // n_sequences, tl.program_id(0) % n_sequences
    candidate = sequence % tl.maximum(n_candidates, 1) + 1
    own_tree = tl.where((sequence < n_candidates) | (n_candidates == 0), 0, candidate)
    other_tree = tl.where(sequence < n_candidates, candidate, 0)
    c = tl.arange(0, SLOTS)
    in_range = c < size
    own = (query * (n_candidates + 1) + own_tree) * size
    node = tl.load(trees + own + c, mask=in_range, other=-1)
    at = tl.load(trees_pos + own + c, mask=in_range, other=-1)
    now = tl.load(t + query)
    limit = tl.load(cut + query)
    pair_limit = tl.load(pair_cut + query)
    valid = in_range & (node >= 0)
    has_event = valid & (at >= 0)
    out += ((query * n_sequences + sequence) * size + c) * DIM
    event_time = tl.load(elapsed + at, mask=has_event, other=0.0)
    age = tl.where(has_event, to_event_count(now - event_time, now, limit), 0.0)
    tl.store(out, _log(age, SCALE), mask=in_range)
    tl.store(out + 1, _log(tl.where(has_event, limit - at, 0), SCALE), mask=in_range)
    _, degree = row_degree(row_start, row_pos, node, limit + tl.zeros((SLOTS,), tl.int64), n_nodes, degree_steps)
    tl.store(out + 2, _log(tl.where(valid, degree, 0), SCALE), mask=in_range)
    event_src = tl.load(src + at, mask=has_event, other=-1).to(tl.int64)
    tl.store(out + 6, tl.where(has_event, tl.where(event_src == node, 1.0, -1.0), 0.0), mask=in_range)
    for side in range(2):
        tree = (query * (n_candidates + 1) + tl.where(side == 0, own_tree, other_tree)) * size
        column = tl.where(side == 0, 3, 7)
        has_tree = valid & ((side == 0) | (n_candidates > 0))
        root = tl.load(trees + tree)
        occurrences = tl.zeros((SLOTS,), tl.int32)
        for start in range(0, size, MEMBERS):
            k = start + tl.arange(0, MEMBERS)
            members = tl.load(trees + tree + k, mask=k < size, other=-2)
            occurrences += tl.sum((node[:, None] == members[None, :]).to(tl.int32), axis=1)
        count, last = find_pair(
            pair_start, pair_nbr, pair_pos_start, pair_pos, node, root + tl.zeros((SLOTS,), tl.int64),
            pair_limit + tl.zeros((SLOTS,), tl.int64), n_nodes, nbr_steps, pos_steps,
        )  # fmt: skip
        last_time = tl.load(elapsed + last, mask=count > 0, other=0.0)
        tl.store(out + column, _log(tl.where(has_tree, occurrences, 0), SCALE), mask=in_range)
        tl.store(out + column + 1, _log(tl.where(has_tree, count, 0), SCALE), mask=in_range)
        last_age = tl.where(has_tree, to_event_count(now - last_time, now, limit), 0.0)
        tl.store(out + column + 2, _log(last_age, SCALE), mask=in_range)


def slot_features(
    index: IndexArrays, node: Tensor, pos: Tensor, t: Tensor, cut: Tensor, pair_cut: Tensor, *, dim: int, scale: float
) -> Tensor:
    """Return (B, S, C, dim) float32 for the nodes and positions of trees (B, T, C)."""
    n, n_trees, size = node.shape
    sequences = max(1, 2 * (n_trees - 1))
    out = torch.empty((n, sequences, size, dim), device=node.device)
    if n:
        _slot_features[(n * sequences,)](
            index.row_start, index.pos, *index.pair_arrays, index.elapsed, index.src, node.contiguous(),
            pos.contiguous(), t.contiguous(), cut.contiguous(), pair_cut.contiguous(), out, n_trees - 1, sequences,
            size, index.n_nodes, search_steps(index.max_degree), *pair_search_steps(index),
            SLOTS=triton.next_power_of_2(size), MEMBERS=16, DIM=dim, SCALE=scale,
        )  # fmt: skip
    return out


@triton.jit
def _column0(x, k):
    """Return column 0 of a block, (ROWS,); ``k`` numbers its columns."""
    return tl.sum(tl.where(k == 0, x, 0), axis=1)


@triton.jit
def _pair_features(
    row_start, row_pos, pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, src, source, candidates, t, cut,
    pair_cut, out, n, n_candidates, n_nodes, degree_steps, nbr_steps, pos_steps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WINDOWS: tl.constexpr, DIM: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Column 0 counts all events before the cut, column k those before the k-th window."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_range = i < n
    query = tl.where(in_range, i // n_candidates, 0)
    k = tl.arange(0, COLUMNS)[None, :]
    u, v = tl.load(source + query), tl.load(candidates + i, mask=in_range, other=-1)
    now, limit, pair_limit = tl.load(t + query), tl.load(cut + query), tl.load(pair_cut + query)
    window = tl.where(k > 0, 8, 0).to(tl.int64) << (3 * k)
    begin = tl.maximum(limit[:, None] - window, 0)
    zeros = tl.zeros((ROWS, COLUMNS), tl.int64)
    counts, lasts = find_pair(
        pair_start, pair_nbr, pair_pos_start, pair_pos, u[:, None] + zeros, v[:, None] + zeros,
        tl.minimum(begin, pair_limit[:, None]), n_nodes, nbr_steps, pos_steps,
    )  # fmt: skip
    count, last = _column0(counts, k), _column0(lasts, k)
    row_u, degrees_u = row_degree(row_start, row_pos, u[:, None] + zeros, begin, n_nodes, degree_steps)
    row_v, degrees_v = row_degree(row_start, row_pos, v[:, None] + zeros, begin, n_nodes, degree_steps)
    degree_u, degree_v = _column0(degrees_u, k), _column0(degrees_v, k)
    _, before_u = row_degree(row_start, row_pos, u, last + 1, n_nodes, degree_steps)
    _, before_v = row_degree(row_start, row_pos, v, last + 1, n_nodes, degree_steps)
    latest_u = tl.load(row_pos + _column0(row_u, k) + degree_u - 1, mask=in_range & (degree_u > 0), other=0)
    latest_v = tl.load(row_pos + _column0(row_v, k) + degree_v - 1, mask=in_range & (degree_v > 0), other=0)
    last_age_u = now - tl.load(elapsed + latest_u, mask=in_range & (degree_u > 0), other=0.0)
    last_age_v = now - tl.load(elapsed + latest_v, mask=in_range & (degree_v > 0), other=0.0)
    pair_age = now - tl.load(elapsed + last, mask=in_range & (count > 0), other=0.0)
    event_src = tl.load(src + last, mask=in_range & (count > 0), other=-1).to(tl.int64)
    row = out + i * DIM
    tl.store(row, _log(count, SCALE), mask=in_range)
    tl.store(row + 1, _log(to_event_count(pair_age, now, limit), SCALE), mask=in_range)
    tl.store(row + 2, _log(degree_u - before_u, SCALE), mask=in_range)
    tl.store(row + 3, _log(degree_v - before_v, SCALE), mask=in_range)
    tl.store(row + 4, _log(degree_u, SCALE), mask=in_range)
    tl.store(row + 5, _log(degree_v, SCALE), mask=in_range)
    tl.store(row + 6, _log(to_event_count(last_age_u, now, limit), SCALE), mask=in_range)
    tl.store(row + 7, _log(to_event_count(last_age_v, now, limit), SCALE), mask=in_range)
    block = out + i[:, None] * DIM + 7 + k
    inside = in_range[:, None] & (k > 0) & (k <= WINDOWS)
    tl.store(block, _log(degree_u[:, None] - degrees_u, SCALE), mask=inside)
    tl.store(block + WINDOWS, _log(degree_v[:, None] - degrees_v, SCALE), mask=inside)
    tl.store(block + 2 * WINDOWS, _log(count[:, None] - counts, SCALE), mask=inside)
    tl.store(row + DIM - 1, tl.where(count > 0, tl.where(event_src == u, 1.0, -1.0), 0.0), mask=in_range)


def pair_features(
    index: IndexArrays, src: Tensor, dst: Tensor, t: Tensor, cut: Tensor, pair_cut: Tensor, *, n_windows: int, dim: int,
    scale: float,
) -> Tensor:  # fmt: skip
    """Return (B, M, dim) float32 for sources (B,) and their candidates (B, M)."""
    n_candidates, n = dst.shape[1], dst.numel()
    out = torch.empty((*dst.shape, dim), device=dst.device)
    if n:
        _pair_features[(triton.cdiv(n, PAIRS_PER_PROGRAM),)](
            index.row_start, index.pos, *index.pair_arrays, index.elapsed, index.src, src.contiguous(),
            dst.contiguous(), t.contiguous(), cut.contiguous(), pair_cut.contiguous(), out, n, n_candidates,
            index.n_nodes, search_steps(index.max_degree), *pair_search_steps(index), ROWS=PAIRS_PER_PROGRAM,
            COLUMNS=triton.next_power_of_2(n_windows + 1), WINDOWS=n_windows, DIM=dim, SCALE=scale,
        )  # fmt: skip
    return out
