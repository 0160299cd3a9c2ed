"""Attention over short sequences, a program for each (sequence, head): nothing of size C x C ever leaves the chip.

A sequence of C slots lies in two tiles of rows, A and B, whose sizes are powers of two (65 slots: 64 and 16), so little
is wasted on padding. The backward pass computes the weights anew. Dropout is a hash of (seed, sequence, head, row,
column), so that both passes agree without storing it.

Twin: `cordgt.models.cordgt.Attention`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.nn.kernels.dropout import kept, key_of, threshold


def tiles(size: int) -> tuple[int, int]:
    """Two powers of two, each at least 16, that together hold ``size`` rows; the second 0 where one is enough."""
    first = max(16, 1 << (size.bit_length() - 1))
    rest = size - first
    return (first, 0) if rest <= 0 else (first, max(16, triton.next_power_of_2(rest)))


@triton.jit
def _rows(base, row, size, stride, D: tl.constexpr):
    """(rows, D) values of one head; zero past the sequence."""
    d = tl.arange(0, D)
    return tl.load(base + row[:, None] * stride + d[None, :], mask=(row < size)[:, None], other=0.0)


@triton.jit
def _put(base, row, value, size, stride, D: tl.constexpr):
    """Stores what `_rows` would read."""
    d = tl.arange(0, D)
    tl.store(base + row[:, None] * stride + d[None, :], value.to(base.dtype.element_ty), mask=(row < size)[:, None])


@triton.jit
def _logits(
    q, k, edge_k, row, column, attn_mask, parent, size, scale,
    ROWS: tl.constexpr, EVENTS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Scaled logits of rows against columns; minus infinity where a row may not attend to a column."""
    logits = tl.dot(q, tl.trans(k), input_precision=EXACT)
    if EVENTS:
        at = tl.load(parent + column, mask=column < size, other=-1)
        event = tl.dot(q, tl.trans(edge_k), input_precision=EXACT)
        logits += tl.where(row[:, None] == at[None, :], event, 0.0)
    if ROWS:  # each row has its own mask
        inside = (row < size)[:, None] & (column < size)[None, :]
        allowed = tl.load(attn_mask + row[:, None] * size + column[None, :], mask=inside, other=0) != 0
    else:
        allowed = (tl.load(attn_mask + column, mask=column < size, other=0) != 0)[None, :]
    return tl.where(allowed, logits * scale, float("-inf"))


@triton.jit
def _weights(a, b, TWO: tl.constexpr):
    """Softmax over the columns of both tiles; rows past the sequence get zeros."""
    top = tl.max(a, axis=1)
    if TWO:
        top = tl.maximum(top, tl.max(b, axis=1))
    top = tl.where(top == float("-inf"), 0.0, top)
    a = tl.exp(a - top[:, None])
    total = tl.sum(a, axis=1)
    if TWO:
        b = tl.exp(b - top[:, None])
        total += tl.sum(b, axis=1)
    share = 1.0 / tl.where(total > 0, total, 1.0)
    a = a * share[:, None]
    if TWO:
        b = b * share[:, None]
    return a, b


@triton.jit
def _to_parent(weight, row, column, parent, size):
    """``weight`` where the row is the column's parent, else 0."""
    at = tl.load(parent + column, mask=column < size, other=-1)
    return tl.where(row[:, None] == at[None, :], weight, 0.0)


@triton.jit
def _forward_tile(
    qkv, out, attn_mask, parent, key, row, size, stride, out_stride, scale, drop, least,
    k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, column_a, column_b,
    D: tl.constexpr, TWO: tl.constexpr, ROWS: tl.constexpr, EVENTS: tl.constexpr, DROP: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of rows: stores its attention over both tiles of columns, a and b."""
    q = _rows(qkv, row, size, stride, D)
    a = _logits(q, k_a, ek_a, row, column_a, attn_mask, parent, size, scale, ROWS, EVENTS, EXACT)
    b = a
    if TWO:
        b = _logits(q, k_b, ek_b, row, column_b, attn_mask, parent, size, scale, ROWS, EVENTS, EXACT)
    a, b = _weights(a, b, TWO)
    if DROP:
        gain = 1.0 / (1.0 - drop)
        a = tl.where(kept(key, row[:, None] * size + column_a[None, :], least), a * gain, 0.0)
        if TWO:
            b = tl.where(kept(key, row[:, None] * size + column_b[None, :], least), b * gain, 0.0)
    y = tl.dot(a.to(v_a.dtype), v_a, input_precision=EXACT)
    if EVENTS:
        y += tl.dot(_to_parent(a, row, column_a, parent, size).to(v_a.dtype), ev_a, input_precision=EXACT)
    if TWO:
        y += tl.dot(b.to(v_b.dtype), v_b, input_precision=EXACT)
        if EVENTS:
            y += tl.dot(_to_parent(b, row, column_b, parent, size).to(v_b.dtype), ev_b, input_precision=EXACT)
    _put(out, row, y, size, out_stride, D)


@triton.jit
def _attend(
    qkv, edge, attn_mask, parent, seed, out, size, mask_stride, scale, drop, least,
    H: tl.constexpr, D: tl.constexpr, A: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, EVENTS: tl.constexpr,
    DROP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    program = sequence * H + head
    stride: tl.constexpr = 3 * H * D
    edge_stride: tl.constexpr = 2 * H * D
    out_stride: tl.constexpr = H * D
    qkv += sequence * size * stride + head * D
    out += sequence * size * out_stride + head * D
    attn_mask += sequence * mask_stride
    if EVENTS:
        edge += sequence * size * edge_stride + head * D
    key = key_of(tl.load(seed), program)
    TWO: tl.constexpr = B > 0
    BB: tl.constexpr = B if B > 0 else 16
    row_a = tl.arange(0, A)
    row_b = A + tl.arange(0, BB)
    k_a = _rows(qkv + H * D, row_a, size, stride, D)
    v_a = _rows(qkv + 2 * H * D, row_a, size, stride, D)
    k_b, v_b, ek_a, ev_a, ek_b, ev_b = k_a, v_a, k_a, v_a, k_a, v_a
    if TWO:
        k_b = _rows(qkv + H * D, row_b, size, stride, D)
        v_b = _rows(qkv + 2 * H * D, row_b, size, stride, D)
        ek_b, ev_b = k_b, v_b
    if EVENTS:
        ek_a = _rows(edge, row_a, size, edge_stride, D)
        ev_a = _rows(edge + H * D, row_a, size, edge_stride, D)
        if TWO:
            ek_b = _rows(edge, row_b, size, edge_stride, D)
            ev_b = _rows(edge + H * D, row_b, size, edge_stride, D)
    _forward_tile(
        qkv, out, attn_mask, parent, key, row_a, size, stride, out_stride, scale,
        drop, least, k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, row_a, row_b, D, TWO, ROWS, EVENTS, DROP, EXACT,
    )  # fmt: skip
    if TWO:
        _forward_tile(
            qkv, out, attn_mask, parent, key, row_b, size, stride, out_stride, scale,
            drop, least, k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, row_a, row_b, D, TWO, ROWS, EVENTS, DROP, EXACT,
        )  # fmt: skip


@triton.jit
def _backward_columns(
    dy, weight, v, ev, row, column, parent, key, size, drop, least,
    EVENTS: tl.constexpr, DROP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """For a tile of columns: what reaches the weights from above, and the weights as they were used (dropped)."""
    dw = tl.dot(dy, tl.trans(v), input_precision=EXACT)
    if EVENTS:
        dw += _to_parent(tl.dot(dy, tl.trans(ev), input_precision=EXACT), row, column, parent, size)
    used = weight
    if DROP:
        keep = kept(key, row[:, None] * size + column[None, :], least)
        gain = 1.0 / (1.0 - drop)
        used = tl.where(keep, weight * gain, 0.0)
        dw = tl.where(keep, dw * gain, 0.0)
    return dw, used


@triton.jit
def _gather(q, dy, ds, used, dk, dv, dek, dev, row, column, parent, size, EVENTS: tl.constexpr, EXACT: tl.constexpr):
    """The sums over rows that belong to a tile of columns, with this tile of rows added."""
    dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=EXACT)
    dv += tl.dot(tl.trans(used.to(dy.dtype)), dy, input_precision=EXACT)
    if EVENTS:
        dek += tl.dot(tl.trans(_to_parent(ds, row, column, parent, size).to(q.dtype)), q, input_precision=EXACT)
        dev += tl.dot(tl.trans(_to_parent(used, row, column, parent, size).to(dy.dtype)), dy, input_precision=EXACT)
    return dk, dv, dek, dev


@triton.jit
def _backward_tile(
    qkv, d_out, d_qkv, attn_mask, parent, key, row, size, stride, out_stride, scale, drop, least,
    k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b, column_a, column_b,
    D: tl.constexpr, TWO: tl.constexpr, ROWS: tl.constexpr, EVENTS: tl.constexpr, DROP: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """One tile of rows: stores its dq, and returns the columns' sums with its part added."""
    q = _rows(qkv, row, size, stride, D)
    dy = _rows(d_out, row, size, out_stride, D)
    a = _logits(q, k_a, ek_a, row, column_a, attn_mask, parent, size, scale, ROWS, EVENTS, EXACT)
    b = a
    if TWO:
        b = _logits(q, k_b, ek_b, row, column_b, attn_mask, parent, size, scale, ROWS, EVENTS, EXACT)
    a, b = _weights(a, b, TWO)
    da, used_a = _backward_columns(dy, a, v_a, ev_a, row, column_a, parent, key, size, drop, least, EVENTS, DROP, EXACT)
    shared = tl.sum(a * da, axis=1)
    if TWO:
        db, used_b = _backward_columns(
            dy, b, v_b, ev_b, row, column_b, parent, key, size, drop, least, EVENTS, DROP, EXACT
        )
        shared += tl.sum(b * db, axis=1)
    ds = a * (da - shared[:, None]) * scale
    dq = tl.dot(ds.to(k_a.dtype), k_a, input_precision=EXACT)
    if EVENTS:
        dq += tl.dot(_to_parent(ds, row, column_a, parent, size).to(k_a.dtype), ek_a, input_precision=EXACT)
    dk_a, dv_a, dek_a, dev_a = _gather(
        q, dy, ds, used_a, dk_a, dv_a, dek_a, dev_a, row, column_a, parent, size, EVENTS, EXACT
    )
    if TWO:
        ds = b * (db - shared[:, None]) * scale
        dq += tl.dot(ds.to(k_b.dtype), k_b, input_precision=EXACT)
        if EVENTS:
            dq += tl.dot(_to_parent(ds, row, column_b, parent, size).to(k_b.dtype), ek_b, input_precision=EXACT)
        dk_b, dv_b, dek_b, dev_b = _gather(
            q, dy, ds, used_b, dk_b, dv_b, dek_b, dev_b, row, column_b, parent, size, EVENTS, EXACT
        )
    _put(d_qkv, row, dq, size, stride, D)
    return dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b


@triton.jit
def _attend_backward(
    qkv, edge, attn_mask, parent, seed, d_out, d_qkv, d_edge, size, mask_stride, scale, drop, least,
    H: tl.constexpr, D: tl.constexpr, A: tl.constexpr, B: tl.constexpr, ROWS: tl.constexpr, EVENTS: tl.constexpr,
    DROP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    program = sequence * H + head
    stride: tl.constexpr = 3 * H * D
    edge_stride: tl.constexpr = 2 * H * D
    out_stride: tl.constexpr = H * D
    qkv += sequence * size * stride + head * D
    d_qkv += sequence * size * stride + head * D
    d_out += sequence * size * out_stride + head * D
    attn_mask += sequence * mask_stride
    if EVENTS:
        edge += sequence * size * edge_stride + head * D
        d_edge += sequence * size * edge_stride + head * D
    key = key_of(tl.load(seed), program)
    TWO: tl.constexpr = B > 0
    BB: tl.constexpr = B if B > 0 else 16
    row_a = tl.arange(0, A)
    row_b = A + tl.arange(0, BB)
    k_a = _rows(qkv + H * D, row_a, size, stride, D)
    v_a = _rows(qkv + 2 * H * D, row_a, size, stride, D)
    k_b, v_b, ek_a, ev_a, ek_b, ev_b = k_a, v_a, k_a, v_a, k_a, v_a
    if TWO:
        k_b = _rows(qkv + H * D, row_b, size, stride, D)
        v_b = _rows(qkv + 2 * H * D, row_b, size, stride, D)
        ek_b, ev_b = k_b, v_b
    if EVENTS:
        ek_a = _rows(edge, row_a, size, edge_stride, D)
        ev_a = _rows(edge + H * D, row_a, size, edge_stride, D)
        if TWO:
            ek_b = _rows(edge, row_b, size, edge_stride, D)
            ev_b = _rows(edge + H * D, row_b, size, edge_stride, D)
    zero_a = tl.zeros((A, D), tl.float32)
    zero_b = tl.zeros((BB, D), tl.float32)
    dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b = _backward_tile(
        qkv, d_out, d_qkv, attn_mask, parent, key, row_a, size, stride, out_stride, scale, drop, least,
        k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, zero_a, zero_a, zero_a, zero_a, zero_b, zero_b, zero_b, zero_b,
        row_a, row_b, D, TWO, ROWS, EVENTS, DROP, EXACT,
    )  # fmt: skip
    if TWO:
        dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b = _backward_tile(
            qkv, d_out, d_qkv, attn_mask, parent, key, row_b, size, stride, out_stride, scale, drop, least,
            k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b,
            row_a, row_b, D, TWO, ROWS, EVENTS, DROP, EXACT,
        )  # fmt: skip
        _put(d_qkv + H * D, row_b, dk_b, size, stride, D)
        _put(d_qkv + 2 * H * D, row_b, dv_b, size, stride, D)
        if EVENTS:
            _put(d_edge, row_b, dek_b, size, edge_stride, D)
            _put(d_edge + H * D, row_b, dev_b, size, edge_stride, D)
    _put(d_qkv + H * D, row_a, dk_a, size, stride, D)
    _put(d_qkv + 2 * H * D, row_a, dv_a, size, stride, D)
    if EVENTS:
        _put(d_edge, row_a, dek_a, size, edge_stride, D)
        _put(d_edge + H * D, row_a, dev_a, size, edge_stride, D)


def forward(qkv: Tensor, edge: Tensor | None, attn_mask: Tensor, parent: Tensor, seed: Tensor, drop: float) -> Tensor:
    """Attention (S, C, H, D) of qkv (S, C, 3, H, D).

    ``attn_mask`` (S, C or 1, C) bool, True: row i may attend to j. ``edge`` (S, C, 2, H, D): keys and values of the
    event that led to each slot, for its ``parent`` (C,) int32 alone, -1 for the root. ``seed`` (1,) int64, for dropout.
    """
    n, size, _, heads, dim = qkv.shape
    out = torch.empty((n, size, heads, dim), dtype=qkv.dtype, device=qkv.device)
    events = qkv if edge is None else edge
    _attend[(n, heads)](
        qkv, events, attn_mask, parent, seed, out, *_numbers(qkv, attn_mask, drop), **_how(qkv, edge, attn_mask, drop)
    )
    return out


def backward(
    d_out: Tensor, qkv: Tensor, edge: Tensor | None, attn_mask: Tensor, parent: Tensor, seed: Tensor, drop: float
) -> tuple[Tensor, Tensor | None]:
    """The gradients of qkv and of edge; the rest as it was given forwards."""
    d_qkv = torch.empty_like(qkv)
    d_edge = None if edge is None else torch.empty_like(edge)
    _attend_backward[(len(qkv), qkv.shape[3])](
        qkv, qkv if edge is None else edge, attn_mask, parent, seed, d_out, d_qkv, d_qkv if d_edge is None else d_edge,
        *_numbers(qkv, attn_mask, drop), **_how(qkv, edge, attn_mask, drop), maxnreg=168,  # so that three programs fit
    )  # fmt: skip
    return d_qkv, d_edge


def _numbers(qkv: Tensor, attn_mask: Tensor, drop: float) -> tuple[int, int, float, float, int]:
    """Size of a sequence, stride of ``attn_mask`` over sequences, scale of the logits, dropout and its threshold."""
    return qkv.shape[1], attn_mask.stride(0), 1 / math.sqrt(qkv.shape[4]), drop, threshold(drop)


def _how(qkv: Tensor, edge: Tensor | None, attn_mask: Tensor, drop: float) -> dict[str, Any]:
    first, second = tiles(qkv.shape[1])
    exact = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return {
        "H": qkv.shape[3], "D": qkv.shape[4], "A": first, "B": second, "ROWS": attn_mask.shape[1] > 1,
        "EVENTS": edge is not None, "DROP": drop > 0, "EXACT": exact, "num_warps": 4,
    }  # fmt: skip


def fits(size: int, dim: int, events: bool) -> bool:
    """True where the kernels take sequences of this size and heads of this width; longer ones outgrow the chip."""
    return size <= (80 if events else 96) and dim in (16, 32, 64)
