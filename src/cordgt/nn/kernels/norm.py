"""Fused residual add, dropout and layer norm; weighted pooling. One pass over the rows each way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.nn.kernels.dropout import block_key, dropout_threshold, keep_mask

ROWS = 32  # rows per block
MAX_PROGRAMS = 264  # of a backward pass; each sums the parameters' gradients over its rows


@triton.jit
def _add_norm(
    x, branch, bias, seed, scale, shift, out, normal, mean_out, rstd_out, n, dropout_p, threshold, eps,
    D: tl.constexpr, ROWS: tl.constexpr, BRANCH: tl.constexpr, BIAS: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    local = tl.arange(0, ROWS)
    row = block * ROWS + local
    d = tl.arange(0, D)
    at = row[:, None] * D + d[None, :]
    in_range = (row < n)[:, None]
    value = tl.load(x + at, mask=in_range, other=0.0)
    update = tl.zeros((ROWS, D), tl.float32)
    if BRANCH:
        update += tl.load(branch + at, mask=in_range, other=0.0).to(tl.float32)
    if BIAS:
        update += tl.load(bias + d)[None, :]
    if DROP:
        keep = keep_mask(block_key(tl.load(seed), block), local[:, None] * D + d[None, :], threshold)
        update = tl.where(keep, update * (1.0 / (1.0 - dropout_p)), 0.0)
    value += update
    tl.store(out + at, value, mask=in_range)
    mean = tl.sum(value, axis=1) / D
    centered = value - mean[:, None]
    rstd = 1.0 / tl.sqrt(tl.sum(centered * centered, axis=1) / D + eps)
    result = centered * rstd[:, None] * tl.load(scale + d)[None, :] + tl.load(shift + d)[None, :]
    tl.store(normal + at, result.to(normal.dtype.element_ty), mask=in_range)
    tl.store(mean_out + row, mean, mask=row < n)
    tl.store(rstd_out + row, rstd, mask=row < n)


@triton.jit
def _add_norm_backward(
    d_out, d_normal, value, seed, scale, mean_in, rstd_in, d_x, d_branch, partial, width, n, dropout_p, threshold,
    D: tl.constexpr, ROWS: tl.constexpr, BRANCH: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, D)
    local = tl.arange(0, ROWS)
    gain = tl.load(scale + d)[None, :]
    d_scale = tl.zeros((D,), tl.float32)
    d_shift = tl.zeros((D,), tl.float32)
    d_bias = tl.zeros((D,), tl.float32)
    for block_id in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        block = block_id + tl.zeros((), tl.int64)
        row = block * ROWS + local
        at = row[:, None] * D + d[None, :]
        in_range = (row < n)[:, None]
        rstd = tl.load(rstd_in + row, mask=row < n, other=0.0)[:, None]
        mean = tl.load(mean_in + row, mask=row < n, other=0.0)[:, None]
        normal = (tl.load(value + at, mask=in_range, other=0.0) - mean) * rstd
        grad = tl.load(d_normal + at, mask=in_range, other=0.0).to(tl.float32)
        d_scale += tl.sum(grad * normal, axis=0)
        d_shift += tl.sum(grad, axis=0)
        grad = grad * gain
        inner = tl.sum(grad * normal, axis=1)[:, None] / D
        result = (grad - tl.sum(grad, axis=1)[:, None] / D - normal * inner) * rstd
        result = tl.where(in_range, result + tl.load(d_out + at, mask=in_range, other=0.0), 0.0)
        tl.store(d_x + at, result, mask=in_range)
        if DROP:
            keep = keep_mask(block_key(tl.load(seed), block), local[:, None] * D + d[None, :], threshold)
            result = tl.where(keep, result * (1.0 / (1.0 - dropout_p)), 0.0)
        if BRANCH:
            tl.store(d_branch + at, result.to(d_branch.dtype.element_ty), mask=in_range)
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
    dropout_p: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``x + dropout(branch + bias)``, its layer norm in ``dtype``, and each row's mean and 1 / std.

    Shapes: x (N, D) float32; branch (N, D) or None; bias (D,) or None. Returns (N, D), (N, D), (N,), (N,).
    """
    n, dim = x.shape
    out = torch.empty_like(x)
    normal = torch.empty(x.shape, dtype=dtype, device=x.device)
    mean = torch.empty(n, device=x.device)
    rstd = torch.empty(n, device=x.device)
    _add_norm[(triton.cdiv(n, ROWS),)](
        x, x if branch is None else branch, x if bias is None else bias, seed, scale, shift, out, normal, mean, rstd,
        n, dropout_p, dropout_threshold(dropout_p), eps, D=dim, ROWS=ROWS, BRANCH=branch is not None,
        BIAS=bias is not None, DROP=dropout_p > 0,
    )  # fmt: skip
    return out, normal, mean, rstd


def backward(
    d_out: Tensor,
    d_normal: Tensor,
    out: Tensor,
    seed: Tensor,
    scale: Tensor,
    mean: Tensor,
    rstd: Tensor,
    partial: Tensor,
    *,
    dropout_p: float,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of x and of the branch (in ``dtype``; None if ``dtype`` is None).

    Writes the gradients of scale, shift and bias, to be summed over P, to ``partial`` (P, 3 D): columns of a tensor
    from `empty_partial_sums`.
    """
    n, dim = out.shape
    d_x = torch.empty_like(out)
    d_branch = None if dtype is None else torch.empty_like(out, dtype=dtype)
    _add_norm_backward[(len(partial),)](
        d_out, d_normal, out, seed, scale, mean, rstd, d_x, d_x if d_branch is None else d_branch, partial,
        partial.stride(0), n, dropout_p, dropout_threshold(dropout_p), D=dim, ROWS=ROWS, BRANCH=d_branch is not None,
        DROP=dropout_p > 0,
    )  # fmt: skip
    return d_x, d_branch


def empty_partial_sums(n: int, width: int, device: torch.device) -> Tensor:
    """Return an empty (P, width) float32 tensor for the sums of P programs, each over its share of the n rows."""
    return torch.empty((max(1, min(MAX_PROGRAMS, triton.cdiv(n, ROWS))), width), device=device)


@triton.jit
def _pool(x, branch, weight, out, size, D: tl.constexpr, SLOTS: tl.constexpr):
    sequence = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SLOTS)
    d = tl.arange(0, D)
    at = (sequence * size + c)[:, None] * D + d[None, :]
    in_range = (c < size)[:, None]
    value = tl.load(x + at, mask=in_range, other=0.0) + tl.load(branch + at, mask=in_range, other=0.0).to(tl.float32)
    slot_weight = tl.load(weight + sequence * size + c, mask=c < size, other=0.0)
    tl.store(out + sequence * D + d, tl.sum(value * slot_weight[:, None], axis=0))


@triton.jit
def _pool_backward(d_pooled, weight, d_x, d_branch, size, D: tl.constexpr, SLOTS: tl.constexpr):
    sequence = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SLOTS)
    d = tl.arange(0, D)
    at = (sequence * size + c)[:, None] * D + d[None, :]
    in_range = (c < size)[:, None]
    slot_weight = tl.load(weight + sequence * size + c, mask=c < size, other=0.0)
    value = tl.load(d_pooled + sequence * D + d)[None, :] * slot_weight[:, None]
    tl.store(d_x + at, value, mask=in_range)
    tl.store(d_branch + at, value.to(d_branch.dtype.element_ty), mask=in_range)


def pool(x: Tensor, branch: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted sum of ``x + branch`` over the slots, (S, D); x and branch (S * C, D), weight (S, C)."""
    n, size = weight.shape
    out = torch.empty((n, x.shape[1]), device=x.device)
    _pool[(n,)](x, branch, weight, out, size, D=x.shape[1], SLOTS=triton.next_power_of_2(size))
    return out


def pool_backward(d_pooled: Tensor, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the gradients of x (float32) and of the branch (``dtype``)."""
    n, size = weight.shape
    d_x = torch.empty((n * size, d_pooled.shape[1]), device=d_pooled.device)
    d_branch = torch.empty_like(d_x, dtype=dtype)
    slots = triton.next_power_of_2(size)
    _pool_backward[(n,)](d_pooled, weight, d_x, d_branch, size, D=d_pooled.shape[1], SLOTS=slots)
    return d_x, d_branch
