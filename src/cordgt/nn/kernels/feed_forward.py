"""Feed-forward net of a layer, in one launch forward: the hidden units are never written to memory.

The backward pass recomputes them, in one launch for the input's gradient and one for those of the weights.

Torch reference: ``fc2(relu(fc1(x)))`` in `cordgt.models.cordgt.CordgtLayer`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.nn.kernels.sums import sum_rows

ROWS = 64  # rows per block
MAX_GROUPS = 66  # of rows in the backward pass of the weights; each sums the gradients over its rows


@triton.jit
def _load_rows(x, row, n, D: tl.constexpr):
    d = tl.arange(0, D)
    return tl.load(x + row[:, None] * D + d[None, :], mask=(row < n)[:, None], other=0.0)


@triton.jit
def _hidden(x, w1, b1, unit, D: tl.constexpr, PRECISION: tl.constexpr):
    """Return some hidden units before ReLU, (ROWS, UNITS), and their weights (UNITS, D)."""
    d = tl.arange(0, D)
    weight = tl.load(w1 + unit[:, None] * D + d[None, :])
    return tl.dot(x, tl.trans(weight), input_precision=PRECISION) + tl.load(b1 + unit)[None, :], weight


@triton.jit
def _feed_forward(
    x, w1, b1, w2, out, n, D: tl.constexpr, WIDE: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    values = _load_rows(x, row, n, D)
    total = tl.zeros((ROWS, D), tl.float32)
    for first in tl.static_range(0, WIDE, UNITS):
        unit = first + tl.arange(0, UNITS)
        hidden, _ = _hidden(values, w1, b1, unit, D, PRECISION)
        hidden = tl.maximum(hidden, 0.0).to(values.dtype)
        weight2 = tl.load(w2 + d[:, None] * WIDE + unit[None, :])
        total += tl.dot(hidden, tl.trans(weight2), input_precision=PRECISION)
    at = row[:, None] * D + d[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=(row < n)[:, None])


@triton.jit
def _input_gradient(
    d_out, x, w1, b1, w2, d_x, n, D: tl.constexpr, WIDE: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    values = _load_rows(x, row, n, D)
    grad = _load_rows(d_out, row, n, D)
    total = tl.zeros((ROWS, D), tl.float32)
    for first in tl.static_range(0, WIDE, UNITS):
        unit = first + tl.arange(0, UNITS)
        hidden, weight1 = _hidden(values, w1, b1, unit, D, PRECISION)
        weight2 = tl.load(w2 + d[:, None] * WIDE + unit[None, :])
        d_hidden = tl.where(hidden > 0, tl.dot(grad, weight2, input_precision=PRECISION), 0.0)
        total += tl.dot(d_hidden.to(values.dtype), weight1, input_precision=PRECISION)
    at = row[:, None] * D + d[None, :]
    tl.store(d_x + at, total.to(d_x.dtype.element_ty), mask=(row < n)[:, None])


@triton.jit
def _weight_gradients(
    d_out, x, w1, b1, w2, partial, n, D: tl.constexpr, WIDE: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, D)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    weight2 = tl.load(w2 + d[:, None] * WIDE + unit[None, :])
    d_w1 = tl.zeros((UNITS, D), tl.float32)
    d_w2 = tl.zeros((D, UNITS), tl.float32)
    d_b1 = tl.zeros((UNITS,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        row = (block + tl.zeros((), tl.int64)) * ROWS + tl.arange(0, ROWS)
        values = _load_rows(x, row, n, D)
        grad = _load_rows(d_out, row, n, D)
        hidden, _ = _hidden(values, w1, b1, unit, D, PRECISION)
        d_hidden = tl.where(hidden > 0, tl.dot(grad, weight2, input_precision=PRECISION), 0.0)
        d_b1 += tl.sum(d_hidden, axis=0)
        d_w1 += tl.dot(tl.trans(d_hidden.to(values.dtype)), values, input_precision=PRECISION)
        hidden = tl.maximum(hidden, 0.0).to(values.dtype)
        d_w2 += tl.dot(tl.trans(grad), hidden, input_precision=PRECISION)
    partial += tl.program_id(0).to(tl.int64) * (2 * WIDE * D + WIDE)
    tl.store(partial + unit[:, None] * D + d[None, :], d_w1)
    tl.store(partial + WIDE * D + d[:, None] * WIDE + unit[None, :], d_w2)
    tl.store(partial + 2 * WIDE * D + unit, d_b1)


def forward(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """Return ``relu(x @ w1.t() + b1) @ w2.t()`` (N, D) for x (N, D), w1 (W, D), b1 (W,) and w2 (D, W)."""
    out = torch.empty_like(x)
    _feed_forward[(triton.cdiv(len(x), ROWS),)](x, w1, b1, w2, out, len(x), **_constants(w1), num_warps=4)
    return out


def backward(d_out: Tensor, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, and in float32 those of w1, b1 and w2; the other arguments are those of `forward`."""
    wide, dim = w1.shape
    constants, n_blocks = _constants(w1), triton.cdiv(len(x), ROWS)
    d_x = torch.empty_like(x)
    _input_gradient[(n_blocks,)](d_out, x, w1, b1, w2, d_x, len(x), **constants, num_warps=4)
    groups = max(1, min(MAX_GROUPS, n_blocks))
    partial = torch.empty((groups, 2 * wide * dim + wide), device=x.device)
    _weight_gradients[(groups, wide // constants["UNITS"])](
        d_out, x, w1, b1, w2, partial, len(x), **constants, num_warps=4
    )
    d_w1, d_w2, d_b1 = sum_rows(partial).split([wide * dim, wide * dim, wide])
    return d_x, d_w1.view(wide, dim), d_b1, d_w2.view(dim, wide)


def _constants(w1: Tensor) -> dict[str, Any]:
    wide, dim = w1.shape
    exact = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return {"D": dim, "WIDE": wide, "UNITS": min(64, wide), "ROWS": ROWS, "PRECISION": exact}
