"""Attention over short sequences, one program per (sequence, head): no C x C matrix is written to memory.

A sequence of C slots is held in two tiles of rows, A and B, whose sizes are powers of two (65 slots: 64 and 16), so
padding wastes little. The backward pass recomputes the weights. Dropout is a hash of (seed, sequence, head, row,
column), so both passes agree without storing it.

Torch reference: `cordgt.models.cordgt.TreeAttention`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.nn.kernels.dropout import block_key, dropout_threshold, keep_mask_of_pairs


def tile_sizes(size: int) -> tuple[int, int]:
    """Return two powers of two, each at least 16, that together hold ``size`` rows; the second may be 0."""
    first = max(16, 1 << (size.bit_length() - 1))
    rest = size - first
    return (first, 0) if rest <= 0 else (first, max(16, triton.next_power_of_2(rest)))


@triton.jit
def _load(base, row, size, stride, D: tl.constexpr):
    """Load (rows, D) values of one head; zero past the end of the sequence."""
    d = tl.arange(0, D)
    return tl.load(base + row[:, None] * stride + d[None, :], mask=(row < size)[:, None], other=0.0)


@triton.jit
def _store(base, row, value, size, stride, D: tl.constexpr):
    """Store (rows, D) values of one head, in the layout of `_load`."""
    d = tl.arange(0, D)
    tl.store(base + row[:, None] * stride + d[None, :], value.to(base.dtype.element_ty), mask=(row < size)[:, None])


@triton.jit
def _logits(
    q, k, edge_k, row, column, attn_mask, parent, size, scale,
    ROW_MASK: tl.constexpr, EDGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the scaled logits of rows against columns; minus infinity where a row may not attend to a column."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if EDGES:
        at = tl.load(parent + column, mask=column < size, other=-1)
        event = tl.dot(q, tl.trans(edge_k), input_precision=PRECISION)
        logits += tl.where(row[:, None] == at[None, :], event, 0.0)
    if ROW_MASK:  # each row has its own mask
        inside = (row < size)[:, None] & (column < size)[None, :]
        allowed = tl.load(attn_mask + row[:, None] * size + column[None, :], mask=inside, other=0) != 0
    else:
        allowed = (tl.load(attn_mask + column, mask=column < size, other=0) != 0)[None, :]
    return tl.where(allowed, logits * scale, float("-inf"))


@triton.jit
def _weights(a, b, TWO: tl.constexpr):
    """Return the softmax over the columns of both tiles; zeros for rows past the end of the sequence."""
    top = tl.max(a, axis=1)
    if TWO:
        top = tl.maximum(top, tl.max(b, axis=1))
    top = tl.where(top == float("-inf"), 0.0, top)
    a = tl.exp(a - top[:, None])
    total = tl.sum(a, axis=1)
    if TWO:
        b = tl.exp(b - top[:, None])
        total += tl.sum(b, axis=1)
    normalizer = 1.0 / tl.where(total > 0, total, 1.0)
    a = a * normalizer[:, None]
    if TWO:
        b = b * normalizer[:, None]
    return a, b


@triton.jit
def _for_parent(weight, row, column, parent, size):
    """Return ``weight`` where the row is the column's parent, else 0."""
    at = tl.load(parent + column, mask=column < size, other=-1)
    return tl.where(row[:, None] == at[None, :], weight, 0.0)


@triton.jit
def _load_columns(
    qkv, edge, row_a, row_b, size, H: tl.constexpr, D: tl.constexpr, TWO: tl.constexpr, EDGES: tl.constexpr
):
    """Load keys, values, edge keys and edge values of tile A, then of tile B; absent ones repeat others."""
    stride: tl.constexpr = 3 * H * D
    edge_stride: tl.constexpr = 2 * H * D
    k_a = _load(qkv + H * D, row_a, size, stride, D)
    v_a = _load(qkv + 2 * H * D, row_a, size, stride, D)
    k_b, v_b, ek_a, ev_a, ek_b, ev_b = k_a, v_a, k_a, v_a, k_a, v_a
    if TWO:
        k_b = _load(qkv + H * D, row_b, size, stride, D)
        v_b = _load(qkv + 2 * H * D, row_b, size, stride, D)
        ek_b, ev_b = k_b, v_b
    if EDGES:
        ek_a = _load(edge, row_a, size, edge_stride, D)
        ev_a = _load(edge + H * D, row_a, size, edge_stride, D)
        if TWO:
            ek_b = _load(edge, row_b, size, edge_stride, D)
            ev_b = _load(edge + H * D, row_b, size, edge_stride, D)
    return k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b


@triton.jit
def _forward_tile(
    qkv, out, attn_mask, parent, key, row, size, stride, out_stride, scale, dropout_p, threshold,
    k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, column_a, column_b,
    D: tl.constexpr, TWO: tl.constexpr, ROW_MASK: tl.constexpr, EDGES: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the attention of one tile of rows over both tiles of columns, a and b."""
    q = _load(qkv, row, size, stride, D)
    a = _logits(q, k_a, ek_a, row, column_a, attn_mask, parent, size, scale, ROW_MASK, EDGES, PRECISION)
    b = a
    if TWO:
        b = _logits(q, k_b, ek_b, row, column_b, attn_mask, parent, size, scale, ROW_MASK, EDGES, PRECISION)
    a, b = _weights(a, b, TWO)
    if DROP:
        gain = 1.0 / (1.0 - dropout_p)
        a = tl.where(keep_mask_of_pairs(key, row[:, None], column_a[None, :], size, threshold), a * gain, 0.0)
        if TWO:
            b = tl.where(keep_mask_of_pairs(key, row[:, None], column_b[None, :], size, threshold), b * gain, 0.0)
    y = tl.dot(a.to(v_a.dtype), v_a, input_precision=PRECISION)
    if EDGES:
        y += tl.dot(_for_parent(a, row, column_a, parent, size).to(v_a.dtype), ev_a, input_precision=PRECISION)
    if TWO:
        y += tl.dot(b.to(v_b.dtype), v_b, input_precision=PRECISION)
        if EDGES:
            y += tl.dot(_for_parent(b, row, column_b, parent, size).to(v_b.dtype), ev_b, input_precision=PRECISION)
    _store(out, row, y, size, out_stride, D)


@triton.jit
def _attend(
    qkv, edge, attn_mask, parent, seed, out, size, mask_stride, scale, dropout_p, threshold,
    H: tl.constexpr, D: tl.constexpr, A: tl.constexpr, B: tl.constexpr, ROW_MASK: tl.constexpr, EDGES: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    program = sequence * H + head
    stride: tl.constexpr = 3 * H * D
    edge_stride: tl.constexpr = 2 * H * D
    out_stride: tl.constexpr = H * D
    qkv += sequence * size * stride + head * D
    out += sequence * size * out_stride + head * D
    attn_mask += sequence * mask_stride
    if EDGES:
        edge += sequence * size * edge_stride + head * D
    key = block_key(tl.load(seed), program)
    TWO: tl.constexpr = B > 0
    BB: tl.constexpr = B if B > 0 else 16
    row_a = tl.arange(0, A)
    row_b = A + tl.arange(0, BB)
    k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b = _load_columns(qkv, edge, row_a, row_b, size, H, D, TWO, EDGES)
    _forward_tile(
        qkv, out, attn_mask, parent, key, row_a, size, stride, out_stride, scale, dropout_p, threshold,
        k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, row_a, row_b, D, TWO, ROW_MASK, EDGES, DROP, PRECISION,
    )  # fmt: skip
    if TWO:
        _forward_tile(
            qkv, out, attn_mask, parent, key, row_b, size, stride, out_stride, scale, dropout_p, threshold,
            k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, row_a, row_b, D, TWO, ROW_MASK, EDGES, DROP, PRECISION,
        )  # fmt: skip


@triton.jit
def _backward_columns(
    dy, weight, v, ev, row, column, parent, key, size, dropout_p, threshold,
    EDGES: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return, for a tile of columns, the gradient of the weights and the weights after dropout."""
    dw = tl.dot(dy, tl.trans(v), input_precision=PRECISION)
    if EDGES:
        dw += _for_parent(tl.dot(dy, tl.trans(ev), input_precision=PRECISION), row, column, parent, size)
    dropped = weight
    if DROP:
        keep = keep_mask_of_pairs(key, row[:, None], column[None, :], size, threshold)
        gain = 1.0 / (1.0 - dropout_p)
        dropped = tl.where(keep, weight * gain, 0.0)
        dw = tl.where(keep, dw * gain, 0.0)
    return dw, dropped


@triton.jit
def _accumulate(
    q, dy, ds, dropped, dk, dv, dek, dev, row, column, parent, size, EDGES: tl.constexpr, PRECISION: tl.constexpr
):
    """Add a tile of rows to the gradients of a tile of columns: keys, values, edge keys, edge values."""
    dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=PRECISION)
    dv += tl.dot(tl.trans(dropped.to(dy.dtype)), dy, input_precision=PRECISION)
    if EDGES:
        ds = _for_parent(ds, row, column, parent, size)
        dropped = _for_parent(dropped, row, column, parent, size)
        dek += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision=PRECISION)
        dev += tl.dot(tl.trans(dropped.to(dy.dtype)), dy, input_precision=PRECISION)
    return dk, dv, dek, dev


@triton.jit
def _backward_tile(
    qkv, d_out, d_qkv, attn_mask, parent, key, row, size, stride, out_stride, scale, dropout_p, threshold,
    k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b, column_a, column_b,
    D: tl.constexpr, TWO: tl.constexpr, ROW_MASK: tl.constexpr, EDGES: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Store dq of one tile of rows; return the gradients of the columns with this tile added."""
    q = _load(qkv, row, size, stride, D)
    dy = _load(d_out, row, size, out_stride, D)
    a = _logits(q, k_a, ek_a, row, column_a, attn_mask, parent, size, scale, ROW_MASK, EDGES, PRECISION)
    b = a
    if TWO:
        b = _logits(q, k_b, ek_b, row, column_b, attn_mask, parent, size, scale, ROW_MASK, EDGES, PRECISION)
    a, b = _weights(a, b, TWO)
    da, dropped_a = _backward_columns(
        dy, a, v_a, ev_a, row, column_a, parent, key, size, dropout_p, threshold, EDGES, DROP, PRECISION
    )
    shared = tl.sum(a * da, axis=1)
    if TWO:
        db, dropped_b = _backward_columns(
            dy, b, v_b, ev_b, row, column_b, parent, key, size, dropout_p, threshold, EDGES, DROP, PRECISION
        )
        shared += tl.sum(b * db, axis=1)
    ds = a * (da - shared[:, None]) * scale
    dq = tl.dot(ds.to(k_a.dtype), k_a, input_precision=PRECISION)
    if EDGES:
        dq += tl.dot(_for_parent(ds, row, column_a, parent, size).to(k_a.dtype), ek_a, input_precision=PRECISION)
    dk_a, dv_a, dek_a, dev_a = _accumulate(
        q, dy, ds, dropped_a, dk_a, dv_a, dek_a, dev_a, row, column_a, parent, size, EDGES, PRECISION
    )
    if TWO:
        ds = b * (db - shared[:, None]) * scale
        dq += tl.dot(ds.to(k_b.dtype), k_b, input_precision=PRECISION)
        if EDGES:
            dq += tl.dot(_for_parent(ds, row, column_b, parent, size).to(k_b.dtype), ek_b, input_precision=PRECISION)
        dk_b, dv_b, dek_b, dev_b = _accumulate(
            q, dy, ds, dropped_b, dk_b, dv_b, dek_b, dev_b, row, column_b, parent, size, EDGES, PRECISION
        )
    _store(d_qkv, row, dq, size, stride, D)
    return dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b


@triton.jit
def _attend_backward(
    qkv, edge, attn_mask, parent, seed, d_out, d_qkv, d_edge, size, mask_stride, scale, dropout_p, threshold,
    H: tl.constexpr, D: tl.constexpr, A: tl.constexpr, B: tl.constexpr, ROW_MASK: tl.constexpr, EDGES: tl.constexpr,
    DROP: tl.constexpr, PRECISION: tl.constexpr,
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
    if EDGES:
        edge += sequence * size * edge_stride + head * D
        d_edge += sequence * size * edge_stride + head * D
    key = block_key(tl.load(seed), program)
    TWO: tl.constexpr = B > 0
    BB: tl.constexpr = B if B > 0 else 16
    row_a = tl.arange(0, A)
    row_b = A + tl.arange(0, BB)
    k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b = _load_columns(qkv, edge, row_a, row_b, size, H, D, TWO, EDGES)
    zero_a = tl.zeros((A, D), tl.float32)
    zero_b = tl.zeros((BB, D), tl.float32)
    dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b = _backward_tile(
        qkv, d_out, d_qkv, attn_mask, parent, key, row_a, size, stride, out_stride, scale, dropout_p, threshold,
        k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, zero_a, zero_a, zero_a, zero_a, zero_b, zero_b, zero_b, zero_b,
        row_a, row_b, D, TWO, ROW_MASK, EDGES, DROP, PRECISION,
    )  # fmt: skip
    if TWO:
        dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b = _backward_tile(
            qkv, d_out, d_qkv, attn_mask, parent, key, row_b, size, stride, out_stride, scale, dropout_p, threshold,
            k_a, v_a, ek_a, ev_a, k_b, v_b, ek_b, ev_b, dk_a, dv_a, dek_a, dev_a, dk_b, dv_b, dek_b, dev_b,
            row_a, row_b, D, TWO, ROW_MASK, EDGES, DROP, PRECISION,
        )  # fmt: skip
        _store(d_qkv + H * D, row_b, dk_b, size, stride, D)
        _store(d_qkv + 2 * H * D, row_b, dv_b, size, stride, D)
        if EDGES:
            _store(d_edge, row_b, dek_b, size, edge_stride, D)
            _store(d_edge + H * D, row_b, dev_b, size, edge_stride, D)
    _store(d_qkv + H * D, row_a, dk_a, size, stride, D)
    _store(d_qkv + 2 * H * D, row_a, dv_a, size, stride, D)
    if EDGES:
        _store(d_edge, row_a, dek_a, size, edge_stride, D)
        _store(d_edge + H * D, row_a, dev_a, size, edge_stride, D)


def forward(
    qkv: Tensor, edge: Tensor | None, attn_mask: Tensor, parent: Tensor, seed: Tensor, dropout_p: float
) -> Tensor:
    """Return the attention (S, C, H, D) of qkv (S, C, 3, H, D).

    ``attn_mask`` (S, C or 1, C) bool, True: row i may attend to column j. ``edge`` (S, C, 2, H, D): keys and values of
    the event that sampled each slot; only its ``parent`` (C,) int32, -1 for the root, attends to them. ``seed`` (1,)
    int64, for dropout.
    """
    n, size, _, heads, dim = qkv.shape
    out = torch.empty((n, size, heads, dim), dtype=qkv.dtype, device=qkv.device)
    _attend[(n, heads)](
        qkv, qkv if edge is None else edge, attn_mask, parent, seed, out, *_scalars(qkv, attn_mask, dropout_p),
        **_constants(qkv, edge, attn_mask, dropout_p),
    )  # fmt: skip
    return out


def backward(
    d_out: Tensor, qkv: Tensor, edge: Tensor | None, attn_mask: Tensor, parent: Tensor, seed: Tensor, dropout_p: float
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of qkv and edge; the other arguments are those of `forward`."""
    d_qkv = torch.empty_like(qkv)
    d_edge = None if edge is None else torch.empty_like(edge)
    _attend_backward[(len(qkv), qkv.shape[3])](
        qkv, qkv if edge is None else edge, attn_mask, parent, seed, d_out, d_qkv, d_qkv if d_edge is None else d_edge,
        *_scalars(qkv, attn_mask, dropout_p), **_constants(qkv, edge, attn_mask, dropout_p),
        maxnreg=168,  # lets three programs share a multiprocessor
    )  # fmt: skip
    return d_qkv, d_edge


def _scalars(qkv: Tensor, attn_mask: Tensor, dropout_p: float) -> tuple[int, int, float, float, int]:
    """Return the sequence length, stride of ``attn_mask`` over sequences, logit scale, dropout and its threshold."""
    return qkv.shape[1], attn_mask.stride(0), 1 / math.sqrt(qkv.shape[4]), dropout_p, dropout_threshold(dropout_p)


def _constants(qkv: Tensor, edge: Tensor | None, attn_mask: Tensor, dropout_p: float) -> dict[str, Any]:
    first, second = tile_sizes(qkv.shape[1])
    exact = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return {
        "H": qkv.shape[3], "D": qkv.shape[4], "A": first, "B": second, "ROW_MASK": attn_mask.shape[1] > 1,
        "EDGES": edge is not None, "DROP": dropout_p > 0, "PRECISION": exact, "num_warps": 4,
    }  # fmt: skip


def supports_shape(size: int, dim: int, has_edges: bool) -> bool:
    """Return True if the kernels handle sequences of ``size`` slots with heads ``dim`` wide; longer ones do not fit."""
    return size <= (80 if has_edges else 96) and dim in (16, 32, 64)
