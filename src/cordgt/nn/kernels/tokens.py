"""Tokens from the sinusoids of distances, in one launch each way: the hidden units are never written to memory.

Torch reference: `cordgt.models.cordgt.Cordgt._from_distances`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.nn.kernels.sums import sum_rows

ROWS = 32  # slots per block
MAX_PROGRAMS = 132  # of the backward pass; each sums the parameters' gradients over its rows


@triton.jit
def _distance_offsets(row, n_sequences, n_relations, n_candidates, size, BOTH: tl.constexpr):
    """Return the offsets of a row's distances to its own root and to the other endpoint.

    Distances are in the order of `cordgt.history.distance.tree_relations`.
    """
    sequence = row // size
    query, j = sequence // n_sequences, sequence % n_sequences
    source = j < n_candidates
    first = (query * n_relations).to(tl.int64) * size + row % size
    if BOTH:
        return first + tl.where(source, 0, j + 1) * size, first + tl.where(source, j + 1, j + n_candidates + 1) * size
    return first + tl.where(source, 0, j - n_candidates + tl.minimum(n_candidates, 1)) * size, first


@triton.jit
def _load_sinusoids(sinusoids, at, in_range, width, WIDE: tl.constexpr):
    """Return the sinusoids at the given offsets, (ROWS, WIDE); zero past the last."""
    k = tl.arange(0, WIDE)
    mask = in_range[:, None] & (k < width)[None, :]
    return tl.load(sinusoids + at[:, None] * width + k[None, :], mask=mask, other=0.0)


@triton.jit
def _embed(
    sinusoids, sd, w1, b1, w2, table, bias, out, n, n_sequences, n_relations, n_candidates, size, width,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BOTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_range = row < n
    d = tl.arange(0, D)
    k = tl.arange(0, WIDE)
    weight1 = tl.load(w1 + d[:, None] * width + k[None, :], mask=(k < width)[None, :], other=0.0)
    bias1 = tl.load(b1 + d)[None, :]
    own, other = _distance_offsets(row, n_sequences, n_relations, n_candidates, size, BOTH)
    x = _load_sinusoids(sinusoids, own, in_range, width, WIDE)
    hidden = tl.maximum(tl.dot(x, tl.trans(weight1), input_precision=PRECISION) + bias1, 0.0)
    distance = tl.load(sd + own, mask=in_range, other=0)
    token = tl.load(table + distance[:, None] * D + d[None, :]) + tl.load(bias + d)[None, :]
    if BOTH:
        x = _load_sinusoids(sinusoids, other, in_range, width, WIDE)
        hidden += tl.maximum(tl.dot(x, tl.trans(weight1), input_precision=PRECISION) + bias1, 0.0)
        distance = tl.load(sd + other, mask=in_range, other=0)
        token += tl.load(table + distance[:, None] * D + d[None, :])
    weight2 = tl.load(w2 + d[:, None] * D + d[None, :])
    token += tl.dot(hidden, tl.trans(weight2), input_precision=PRECISION)
    tl.store(out + row.to(tl.int64)[:, None] * D + d[None, :], token, mask=in_range[:, None])


@triton.jit
def _embed_backward(
    sinusoids, sd, w1, b1, w2, d_out, partial, n, n_sequences, n_relations, n_candidates, size, width,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, VALUES: tl.constexpr, BOTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, D)
    k = tl.arange(0, WIDE)
    value = tl.arange(0, VALUES)
    weight1 = tl.load(w1 + d[:, None] * width + k[None, :], mask=(k < width)[None, :], other=0.0)
    bias1 = tl.load(b1 + d)[None, :]
    weight2 = tl.load(w2 + d[:, None] * D + d[None, :])
    d_w1 = tl.zeros((D, WIDE), tl.float32)
    d_w2 = tl.zeros((D, D), tl.float32)
    d_table = tl.zeros((VALUES, D), tl.float32)
    d_b1 = tl.zeros((D,), tl.float32)
    d_bias = tl.zeros((D,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        in_range = row < n
        own, other = _distance_offsets(row, n_sequences, n_relations, n_candidates, size, BOTH)
        grad = tl.load(d_out + row.to(tl.int64)[:, None] * D + d[None, :], mask=in_range[:, None], other=0.0)
        d_hidden = tl.dot(grad, weight2, input_precision=PRECISION)
        x = _load_sinusoids(sinusoids, own, in_range, width, WIDE)
        hidden = tl.dot(x, tl.trans(weight1), input_precision=PRECISION) + bias1
        d_active = tl.where(hidden > 0, d_hidden, 0.0)
        d_w1 += tl.dot(tl.trans(d_active), x, input_precision=PRECISION)
        d_b1 += tl.sum(d_active, axis=0)
        hidden = tl.maximum(hidden, 0.0)
        counts = (tl.load(sd + own, mask=in_range, other=-1)[None, :] == value[:, None]).to(tl.float32)
        if BOTH:
            x = _load_sinusoids(sinusoids, other, in_range, width, WIDE)
            second = tl.dot(x, tl.trans(weight1), input_precision=PRECISION) + bias1
            d_active = tl.where(second > 0, d_hidden, 0.0)
            d_w1 += tl.dot(tl.trans(d_active), x, input_precision=PRECISION)
            d_b1 += tl.sum(d_active, axis=0)
            hidden += tl.maximum(second, 0.0)
            counts += (tl.load(sd + other, mask=in_range, other=-1)[None, :] == value[:, None]).to(tl.float32)
        d_w2 += tl.dot(tl.trans(grad), hidden, input_precision=PRECISION)
        d_table += tl.dot(counts, grad, input_precision=PRECISION)
        d_bias += tl.sum(grad, axis=0)
    partial += tl.program_id(0) * D * (width + D + VALUES + 2)
    tl.store(partial + d[:, None] * width + k[None, :], d_w1, mask=(k < width)[None, :])
    partial += D * width
    tl.store(partial + d[:, None] * D + d[None, :], d_w2)
    partial += D * D
    tl.store(partial + value[:, None] * D + d[None, :], d_table)
    partial += VALUES * D
    tl.store(partial + d, d_b1)
    tl.store(partial + D + d, d_bias)


class _Tokens(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sinusoids: Tensor, sd: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, table: Tensor, bias: Tensor,
        n_candidates: int,
    ) -> Tensor:  # fmt: skip
        n_queries, n_relations, size = sd.shape
        dim, width, n_sequences = len(b1), sinusoids.shape[-1], max(1, 2 * n_candidates)
        out = torch.empty((n_queries, n_sequences, size, dim), device=sd.device)
        n = n_queries * n_sequences * size
        w2, table = w2.contiguous(), table.contiguous()
        ctx.sizes = (n, n_sequences, n_relations, n_candidates, size, width)
        ctx.constants = {
            "D": dim, "WIDE": max(16, triton.next_power_of_2(width)), "ROWS": ROWS,
            "BOTH": n_relations > n_candidates + 1,
            "PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        }  # fmt: skip
        ctx.save_for_backward(sinusoids, sd, w1, b1, w2)
        ctx.n_values = len(table)
        _embed[(triton.cdiv(n, ROWS),)](
            sinusoids, sd, w1, b1, w2, table, bias, out, *ctx.sizes, **ctx.constants, num_warps=4
        )
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        dim, width = ctx.constants["D"], ctx.sizes[-1]
        values = max(16, triton.next_power_of_2(ctx.n_values))
        programs = max(1, min(MAX_PROGRAMS, triton.cdiv(ctx.sizes[0], ROWS)))
        sizes = [dim * width, dim * dim, values * dim, dim, dim]
        partial = torch.empty((programs, sum(sizes)), device=d_out.device)
        _embed_backward[(programs,)](
            *ctx.saved_tensors, d_out.contiguous(), partial, *ctx.sizes, **ctx.constants, VALUES=values, num_warps=8
        )
        d_w1, d_w2, d_table, d_b1, d_bias = sum_rows(partial).split(sizes)
        d_table = d_table.view(values, dim)[: ctx.n_values]
        return None, None, d_w1.view(dim, width), d_b1, d_w2.view(dim, dim), d_table, d_bias, None


def supports_shape(hidden: int, dim: int, n_values: int) -> bool:
    """Return True if the kernels handle this many hidden units, sinusoids and spatial distances."""
    return hidden in (16, 32, 64) and dim <= 128 and n_values <= 16


def tokens(
    sinusoids: Tensor, sd: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, table: Tensor, bias: Tensor, n_candidates: int
) -> Tensor:
    """Return ``w2 @ sum(relu(w1 @ sinusoids + b1)) + sum(table[sd]) + bias``: (B, 2M or 1, C, D) float32.

    The sums are over a slot's distances to its own root and, if sinusoids (B, R, C, F) and sd (B, R, C) include them,
    to the other endpoint. Shapes: w1 (D, F); b1 (D,); w2 (D, D); table (V, D); bias (D,).
    """
    return _Tokens.apply(sinusoids.contiguous(), sd.contiguous(), w1, b1, w2, table, bias, n_candidates)
