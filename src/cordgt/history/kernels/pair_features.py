"""What history knows of context nodes and of pairs, on CUDA: one launch each.

Twins: `cordgt.history.pair_features._slots_plain` and `_pairs_plain`, whose columns these have, in the order of `OF_SLOT` and
`OF_PAIR` there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.history.kernels.index_arrays import IndexArrays
from cordgt.history.kernels.trees import _meetings, lower_bound, steps

PAIRS = 16  # of one program


@triton.jit
def _log(x, SCALE: tl.constexpr):
    """``SCALE * log(1 + x)``, from float64 to float32."""
    return (SCALE * tl.log(1.0 + x.to(tl.float64))).to(tl.float32)


@triton.jit
def _pace(elapsed, t, cut):
    """An elapsed time as the number of events that the stream usually has in it; 0 at the stream's start."""
    paced = tl.maximum(elapsed, 0.0) / tl.maximum(t, 1e-300) * cut.to(tl.float64)
    return tl.where(t > 0.0, paced, 0.0)


@triton.jit
def _degree(row_start, pos, node, cut, n_nodes, n_steps):
    """Where each node's row begins, and how many of its events come before ``cut``; of one shape."""
    known = (node >= 0) & (node < n_nodes)
    begin = tl.load(row_start + node, mask=known, other=0)
    end = tl.load(row_start + node + 1, mask=known, other=0)
    return begin, lower_bound(pos, begin, end, cut, n_steps) - begin


@triton.jit
def _slots(
    row_start, row_pos, pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, src, trees, trees_pos, t, cut,
    pair_cut, out, n_others, n_sequences, size, n_nodes, degree_steps, nbr_steps, pos_steps,
    SLOTS: tl.constexpr, OTHERS: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """A program for each (query, sequence): the slots of its tree, beside its own root and beside the other end."""
    query, sequence = tl.program_id(0).to(tl.int64) // n_sequences, tl.program_id(0) % n_sequences
    other_end = sequence % tl.maximum(n_others, 1) + 1
    of = tl.where((sequence < n_others) | (n_others == 0), 0, other_end)  # the tree that is read,
    beside = tl.where(sequence < n_others, other_end, 0)  # and the other one
    c = tl.arange(0, SLOTS)
    real = c < size
    own = (query * (n_others + 1) + of) * size
    node = tl.load(trees + own + c, mask=real, other=-1)
    at = tl.load(trees_pos + own + c, mask=real, other=-1)
    now = tl.load(t + query)
    limit = tl.load(cut + query)
    pair_limit = tl.load(pair_cut + query)
    valid = real & (node >= 0)
    drawn = valid & (at >= 0)
    out += ((query * n_sequences + sequence) * size + c) * WIDTH
    when = tl.load(elapsed + at, mask=drawn, other=0.0)
    age = tl.where(drawn, _pace(now - when, now, limit), 0.0)
    tl.store(out, _log(age, SCALE), mask=real)
    tl.store(out + 1, _log(tl.where(drawn, limit - at, 0), SCALE), mask=real)
    _, degree = _degree(row_start, row_pos, node, limit + tl.zeros((SLOTS,), tl.int64), n_nodes, degree_steps)
    tl.store(out + 2, _log(tl.where(valid, degree, 0), SCALE), mask=real)
    whose = tl.load(src + at, mask=drawn, other=-1).to(tl.int64)
    tl.store(out + 6, tl.where(drawn, tl.where(whose == node, 1.0, -1.0), 0.0), mask=real)
    for side in range(2):
        theirs = (query * (n_others + 1) + tl.where(side == 0, of, beside)) * size
        column = tl.where(side == 0, 3, 7)
        there = valid & ((side == 0) | (n_others > 0))
        root = tl.load(trees + theirs)
        among = tl.zeros((SLOTS,), tl.int32)
        for start in range(0, size, OTHERS):
            k = start + tl.arange(0, OTHERS)
            others = tl.load(trees + theirs + k, mask=k < size, other=-2)
            among += tl.sum((node[:, None] == others[None, :]).to(tl.int32), axis=1)
        count, last = _meetings(
            pair_start, pair_nbr, pair_pos_start, pair_pos, node, root + tl.zeros((SLOTS,), tl.int64),
            pair_limit + tl.zeros((SLOTS,), tl.int64), n_nodes, nbr_steps, pos_steps,
        )  # fmt: skip
        met = tl.load(elapsed + last, mask=count > 0, other=0.0)
        tl.store(out + column, _log(tl.where(there, among, 0), SCALE), mask=real)
        tl.store(out + column + 1, _log(tl.where(there, count, 0), SCALE), mask=real)
        tl.store(out + column + 2, _log(tl.where(there, _pace(now - met, now, limit), 0.0), SCALE), mask=real)


def slots(
    index: IndexArrays, node: Tensor, pos: Tensor, t: Tensor, cut: Tensor, pair_cut: Tensor, *, width: int, scale: float
) -> Tensor:
    """(B, S, C, ``width``) float32 of trees (B, T, C), whose nodes and positions these are."""
    n, n_trees, size = node.shape
    sequences = max(1, 2 * (n_trees - 1))
    out = torch.empty((n, sequences, size, width), device=node.device)
    if n:
        _slots[(n * sequences,)](
            index.row_start, index.pos, index.pair_start, index.pair_nbr, index.pair_pos_start, index.pair_pos,
            index.elapsed, index.src, node.contiguous(), pos.contiguous(), t.contiguous(), cut.contiguous(),
            pair_cut.contiguous(), out, n_trees - 1, sequences, size, index.n_nodes, steps(index.max_degree),
            steps(index.max_pairs), steps(index.max_meetings), SLOTS=triton.next_power_of_2(size), OTHERS=16,
            WIDTH=width, SCALE=scale,
        )  # fmt: skip
    return out


@triton.jit
def _first(x, k):
    """The column 0 of a block, (ROWS,); k numbers its columns."""
    return tl.sum(tl.where(k == 0, x, 0), axis=1)


@triton.jit
def _pairs(
    row_start, row_pos, pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, src, source, others, t, cut, pair_cut,
    out, n, n_others, n_nodes, degree_steps, nbr_steps, pos_steps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WINDOWS: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Column 0 is everything before the cut, column k what came before the k-th window."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = i < n
    query = tl.where(real, i // n_others, 0)
    k = tl.arange(0, COLUMNS)[None, :]
    u, v = tl.load(source + query), tl.load(others + i, mask=real, other=-1)
    now, limit, pair_limit = tl.load(t + query), tl.load(cut + query), tl.load(pair_cut + query)
    window = tl.where(k > 0, 8, 0).to(tl.int64) << (3 * k)
    begin = tl.maximum(limit[:, None] - window, 0)
    wide = tl.zeros((ROWS, COLUMNS), tl.int64)
    counts, lasts = _meetings(
        pair_start, pair_nbr, pair_pos_start, pair_pos, u[:, None] + wide, v[:, None] + wide,
        tl.minimum(begin, pair_limit[:, None]), n_nodes, nbr_steps, pos_steps,
    )  # fmt: skip
    count, last = _first(counts, k), _first(lasts, k)
    row_u, degrees_u = _degree(row_start, row_pos, u[:, None] + wide, begin, n_nodes, degree_steps)
    row_v, degrees_v = _degree(row_start, row_pos, v[:, None] + wide, begin, n_nodes, degree_steps)
    degree_u, degree_v = _first(degrees_u, k), _first(degrees_v, k)
    _, before_u = _degree(row_start, row_pos, u, last + 1, n_nodes, degree_steps)
    _, before_v = _degree(row_start, row_pos, v, last + 1, n_nodes, degree_steps)
    latest_u = tl.load(row_pos + _first(row_u, k) + degree_u - 1, mask=real & (degree_u > 0), other=0)
    latest_v = tl.load(row_pos + _first(row_v, k) + degree_v - 1, mask=real & (degree_v > 0), other=0)
    quiet_u = now - tl.load(elapsed + latest_u, mask=real & (degree_u > 0), other=0.0)
    quiet_v = now - tl.load(elapsed + latest_v, mask=real & (degree_v > 0), other=0.0)
    met = now - tl.load(elapsed + last, mask=real & (count > 0), other=0.0)
    whose = tl.load(src + last, mask=real & (count > 0), other=-1).to(tl.int64)
    row = out + i * WIDTH
    tl.store(row, _log(count, SCALE), mask=real)
    tl.store(row + 1, _log(_pace(met, now, limit), SCALE), mask=real)
    tl.store(row + 2, _log(degree_u - before_u, SCALE), mask=real)
    tl.store(row + 3, _log(degree_v - before_v, SCALE), mask=real)
    tl.store(row + 4, _log(degree_u, SCALE), mask=real)
    tl.store(row + 5, _log(degree_v, SCALE), mask=real)
    tl.store(row + 6, _log(_pace(quiet_u, now, limit), SCALE), mask=real)
    tl.store(row + 7, _log(_pace(quiet_v, now, limit), SCALE), mask=real)
    block = out + i[:, None] * WIDTH + 7 + k
    inside = real[:, None] & (k > 0) & (k <= WINDOWS)
    tl.store(block, _log(degree_u[:, None] - degrees_u, SCALE), mask=inside)
    tl.store(block + WINDOWS, _log(degree_v[:, None] - degrees_v, SCALE), mask=inside)
    tl.store(block + 2 * WINDOWS, _log(count[:, None] - counts, SCALE), mask=inside)
    tl.store(row + WIDTH - 1, tl.where(count > 0, tl.where(whose == u, 1.0, -1.0), 0.0), mask=real)


def pairs(
    index: IndexArrays, src: Tensor, dst: Tensor, t: Tensor, cut: Tensor, pair_cut: Tensor, *, windows: int, width: int,
    scale: float,
) -> Tensor:  # fmt: skip
    """(B, M, ``width``) float32 of sources (B,) and their candidates (B, M)."""
    n_others, n = dst.shape[1], dst.numel()
    out = torch.empty((*dst.shape, width), device=dst.device)
    if n:
        _pairs[(triton.cdiv(n, PAIRS),)](
            index.row_start, index.pos, index.pair_start, index.pair_nbr, index.pair_pos_start, index.pair_pos,
            index.elapsed, index.src, src.contiguous(), dst.contiguous(), t.contiguous(), cut.contiguous(),
            pair_cut.contiguous(), out, n, n_others, index.n_nodes, steps(index.max_degree), steps(index.max_pairs),
            steps(index.max_meetings), ROWS=PAIRS, COLUMNS=triton.next_power_of_2(windows + 1), WINDOWS=windows,
            WIDTH=width, SCALE=scale,
        )  # fmt: skip
    return out
