"""A branch joins the residual stream and the sum is normalised: one pass over the rows each way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.nn.kernels.dropout import kept, key_of, threshold

ROWS = 32  # taken at a time by a program
PROGRAMS = 264  # of the backward pass at most: each sums the parameters' gradients over its rows


@triton.jit
def _add_norm(
    x, branch, bias, seed, scale, shift, out, normal, mean_out, spread_out, n, drop, least, eps,
    D: tl.constexpr, ROWS: tl.constexpr, BRANCH: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    local = tl.arange(0, ROWS)
    row = block * ROWS + local
    d = tl.arange(0, D)
    at = row[:, None] * D + d[None, :]
    real = (row < n)[:, None]
    value = tl.load(x + at, mask=real, other=0.0)
    told = tl.zeros((ROWS, D), tl.float32)
    if BRANCH:
        told += tl.load(branch + at, mask=real, other=0.0).to(tl.float32)
    if BIAS:
        told += tl.load(bias + d)[None, :]
    if DROP:
        keep = kept(key_of(tl.load(seed), block), local[:, None] * D + d[None, :], least)
        told = tl.where(keep, told * (1.0 / (1.0 - drop)), 0.0)
    value += told
    tl.store(out + at, value, mask=real)
    mean = tl.sum(value, axis=1) / D
    centred = value - mean[:, None]
    spread = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / D + eps)
    result = centred * spread[:, None] * tl.load(scale + d)[None, :] + tl.load(shift + d)[None, :]
    tl.store(normal + at, result.to(normal.dtype.element_ty), mask=real)
    tl.store(mean_out + row, mean, mask=row < n)
    tl.store(spread_out + row, spread, mask=row < n)


@triton.jit
def _add_norm_backward(
    d_out, d_normal, value, seed, scale, mean_in, spread_in, d_x, d_branch, partial, width, n, drop, least,
    D: tl.constexpr, ROWS: tl.constexpr, BRANCH: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, D)
    local = tl.arange(0, ROWS)
    gain = tl.load(scale + d)[None, :]
    d_scale = tl.zeros((D,), tl.float32)
    d_shift = tl.zeros((D,), tl.float32)
    d_bias = tl.zeros((D,), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        block = number + tl.zeros((), tl.int64)
        row = block * ROWS + local
        at = row[:, None] * D + d[None, :]
        real = (row < n)[:, None]
        spread = tl.load(spread_in + row, mask=row < n, other=0.0)[:, None]
        mean = tl.load(mean_in + row, mask=row < n, other=0.0)[:, None]
        normal = (tl.load(value + at, mask=real, other=0.0) - mean) * spread
        above = tl.load(d_normal + at, mask=real, other=0.0).to(tl.float32)
        d_scale += tl.sum(above * normal, axis=0)
        d_shift += tl.sum(above, axis=0)
        above = above * gain
        inner = tl.sum(above * normal, axis=1)[:, None] / D
        result = (above - tl.sum(above, axis=1)[:, None] / D - normal * inner) * spread
        result = tl.where(real, result + tl.load(d_out + at, mask=real, other=0.0), 0.0)
        tl.store(d_x + at, result, mask=real)
        if DROP:
            keep = kept(key_of(tl.load(seed), block), local[:, None] * D + d[None, :], least)
            result = tl.where(keep, result * (1.0 / (1.0 - drop)), 0.0)
        if BRANCH:
            tl.store(d_branch + at, result.to(d_branch.dtype.element_ty), mask=real)
        d_bias += tl.sum(result, axis=0)
    partial += tl.program_id(0) * width
    tl.store(partial + d, d_scale)
    tl.store(partial + D + d, d_shift)
    tl.store(partial + 2 * D + d, d_bias)


def forward(
    x: Tensor,
    branch: Tensor | None,
    bias: Tensor | None,
    seed: Tensor,
    scale: Tensor,
    shift: Tensor,
    *,
    drop: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``x + dropout(branch + bias)``, its layer norm in ``dtype``, and mean and inverse spread of each row.

    Shapes: x (N, D) float32; branch (N, D) or None; bias (D,) or None; (N, D), (N, D), (N,), (N,) come back.
    """
    n, dim = x.shape
    out = torch.empty_like(x)
    normal = torch.empty(x.shape, dtype=dtype, device=x.device)
    mean = torch.empty(n, device=x.device)
    spread = torch.empty(n, device=x.device)
    _add_norm[(triton.cdiv(n, ROWS),)](
        x, x if branch is None else branch, x if bias is None else bias, seed, scale, shift, out, normal, mean, spread,
        n, drop, threshold(drop), eps, D=dim, ROWS=ROWS, BRANCH=branch is not None, BIAS=bias is not None,
        DROP=drop > 0,
    )  # fmt: skip
    return out, normal, mean, spread


def backward(
    d_out: Tensor,
    d_normal: Tensor,
    out: Tensor,
    seed: Tensor,
    scale: Tensor,
    mean: Tensor,
    spread: Tensor,
    partial: Tensor,
    *,
    drop: float,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of x and of the branch (in ``dtype``; None where that is).

    Those of scale, shift and bias are left in ``partial`` (P, 3 D), columns of a tensor from `partial_sums`: its sum
    over P.
    """
    n, dim = out.shape
    d_x = torch.empty_like(out)
    d_branch = None if dtype is None else torch.empty_like(out, dtype=dtype)
    _add_norm_backward[(len(partial),)](
        d_out, d_normal, out, seed, scale, mean, spread, d_x, d_x if d_branch is None else d_branch, partial,
        partial.stride(0), n, drop, threshold(drop), D=dim, ROWS=ROWS, BRANCH=d_branch is not None, DROP=drop > 0,
    )  # fmt: skip
    return d_x, d_branch


def partial_sums(n: int, width: int, device: torch.device) -> Tensor:
    """(P, width) float32: room for what each of P programs sums over its part of n rows."""
    return torch.empty((max(1, min(PROGRAMS, triton.cdiv(n, ROWS))), width), device=device)


@triton.jit
def _bias_relu(x, bias, n, D: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    at = row[:, None] * D + d[None, :]
    value = tl.load(x + at, mask=(row < n)[:, None], other=0.0).to(tl.float32) + tl.load(bias + d)[None, :]
    tl.store(x + at, tl.maximum(value, 0.0).to(x.dtype.element_ty), mask=(row < n)[:, None])


@triton.jit
def _bias_relu_backward(d_y, y, partial, width, n, D: tl.constexpr, ROWS: tl.constexpr):
    d = tl.arange(0, D)
    d_bias = tl.zeros((D,), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        row = (number + tl.zeros((), tl.int64)) * ROWS + tl.arange(0, ROWS)
        at = row[:, None] * D + d[None, :]
        real = (row < n)[:, None]
        passed = tl.load(y + at, mask=real, other=0.0) > 0
        above = tl.where(passed, tl.load(d_y + at, mask=real, other=0.0), 0.0)
        tl.store(d_y + at, above, mask=real)
        d_bias += tl.sum(above.to(tl.float32), axis=0)
    tl.store(partial + tl.program_id(0) * width + d, d_bias)


def bias_relu_(x: Tensor, bias: Tensor) -> Tensor:
    """``relu(x + bias)`` in place; x (N, D), D a power of two."""
    _bias_relu[(triton.cdiv(len(x), 16),)](x, bias, len(x), D=x.shape[1], ROWS=16)
    return x


def bias_relu_backward_(d_y: Tensor, y: Tensor, partial: Tensor) -> Tensor:
    """The gradient of x, in place of ``d_y``, for y = relu(x + bias); that of bias is left in ``partial`` (P, D)."""
    _bias_relu_backward[(len(partial),)](d_y, y, partial, partial.stride(0), len(y), D=y.shape[1], ROWS=16)
    return d_y


@triton.jit
def _pool(x, branch, weight, out, size, D: tl.constexpr, SLOTS: tl.constexpr):
    sequence = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SLOTS)
    d = tl.arange(0, D)
    at = (sequence * size + c)[:, None] * D + d[None, :]
    real = (c < size)[:, None]
    value = tl.load(x + at, mask=real, other=0.0) + tl.load(branch + at, mask=real, other=0.0).to(tl.float32)
    share = tl.load(weight + sequence * size + c, mask=c < size, other=0.0)
    tl.store(out + sequence * D + d, tl.sum(value * share[:, None], axis=0))


@triton.jit
def _pool_backward(d_pooled, weight, d_x, d_branch, size, D: tl.constexpr, SLOTS: tl.constexpr):
    sequence = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SLOTS)
    d = tl.arange(0, D)
    at = (sequence * size + c)[:, None] * D + d[None, :]
    real = (c < size)[:, None]
    share = tl.load(weight + sequence * size + c, mask=c < size, other=0.0)
    value = tl.load(d_pooled + sequence * D + d)[None, :] * share[:, None]
    tl.store(d_x + at, value, mask=real)
    tl.store(d_branch + at, value.to(d_branch.dtype.element_ty), mask=real)


def pool(x: Tensor, branch: Tensor, weight: Tensor) -> Tensor:
    """The weighted sum over the slots of ``x + branch``: (S, D) of (S * C, D) and weight (S, C)."""
    n, size = weight.shape
    out = torch.empty((n, x.shape[1]), device=x.device)
    _pool[(n,)](x, branch, weight, out, size, D=x.shape[1], SLOTS=triton.next_power_of_2(size))
    return out


def pool_backward(d_pooled: Tensor, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The gradients of x, float32, and of the branch, in ``dtype``."""
    n, size = weight.shape
    d_x = torch.empty((n * size, d_pooled.shape[1]), device=d_pooled.device)
    d_branch = torch.empty_like(d_x, dtype=dtype)
    slots = triton.next_power_of_2(size)
    _pool_backward[(n,)](d_pooled, weight, d_x, d_branch, size, D=d_pooled.shape[1], SLOTS=slots)
    return d_x, d_branch
