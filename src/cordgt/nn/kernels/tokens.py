"""Tokens from the sinusoids of distances in one launch each way: hidden units and their sum never leave the chip.

Twin: `cordgt.models.cordgt.Cordgt._from_distances`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # slots taken at a time by a program
PROGRAMS = 264  # of the backward pass at most: each sums the parameters' gradients over its rows


@triton.jit
def _places(row, n_sequences, n_relations, n_others, size, BOTH: tl.constexpr):
    """Where a row's distances to its own root and to the other end stand; the order of `distance.relations`."""
    sequence = row // size
    query, j = sequence // n_sequences, sequence % n_sequences
    source = j < n_others
    first = (query * n_relations).to(tl.int64) * size + row % size
    if BOTH:
        return first + tl.where(source, 0, j + 1) * size, first + tl.where(source, j + 1, j + n_others + 1) * size
    return first + tl.where(source, 0, j - n_others + tl.minimum(n_others, 1)) * size, first


@triton.jit
def _rows(waves, at, real, width, WIDE: tl.constexpr):
    """(ROWS, WIDE) sinusoids of the given places, zero past the last."""
    k = tl.arange(0, WIDE)
    return tl.load(waves + at[:, None] * width + k[None, :], mask=real[:, None] & (k < width)[None, :], other=0.0)


@triton.jit
def _embed(
    waves, sd, w1, b1, w2, table, bias, out, n, n_sequences, n_relations, n_others, size, width,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, BOTH: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < n
    d = tl.arange(0, D)
    k = tl.arange(0, WIDE)
    first = tl.load(w1 + d[:, None] * width + k[None, :], mask=(k < width)[None, :], other=0.0)
    start = tl.load(b1 + d)[None, :]
    own, other = _places(row, n_sequences, n_relations, n_others, size, BOTH)
    hidden = tl.dot(_rows(waves, own, real, width, WIDE), tl.trans(first), input_precision=EXACT) + start
    hidden = tl.maximum(hidden, 0.0)
    near = tl.load(sd + own, mask=real, other=0)
    token = tl.load(table + near[:, None] * D + d[None, :]) + tl.load(bias + d)[None, :]
    if BOTH:
        second = tl.dot(_rows(waves, other, real, width, WIDE), tl.trans(first), input_precision=EXACT) + start
        hidden += tl.maximum(second, 0.0)
        near = tl.load(sd + other, mask=real, other=0)
        token += tl.load(table + near[:, None] * D + d[None, :])
    weight = tl.load(w2 + d[:, None] * D + d[None, :])
    token += tl.dot(hidden, tl.trans(weight), input_precision=EXACT)
    tl.store(out + row.to(tl.int64)[:, None] * D + d[None, :], token, mask=real[:, None])


@triton.jit
def _embed_backward(
    waves, sd, w1, b1, w2, d_out, partial, n, n_sequences, n_relations, n_others, size, width,
    D: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, VALUES: tl.constexpr, BOTH: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, D)
    k = tl.arange(0, WIDE)
    value = tl.arange(0, VALUES)
    first = tl.load(w1 + d[:, None] * width + k[None, :], mask=(k < width)[None, :], other=0.0)
    start = tl.load(b1 + d)[None, :]
    weight = tl.load(w2 + d[:, None] * D + d[None, :])
    d_w1 = tl.zeros((D, WIDE), tl.float32)
    d_w2 = tl.zeros((D, D), tl.float32)
    d_table = tl.zeros((VALUES, D), tl.float32)
    d_b1 = tl.zeros((D,), tl.float32)
    d_bias = tl.zeros((D,), tl.float32)
    for number in range(tl.program_id(0), tl.cdiv(n, ROWS), tl.num_programs(0)):
        row = number * ROWS + tl.arange(0, ROWS)
        real = row < n
        own, other = _places(row, n_sequences, n_relations, n_others, size, BOTH)
        above = tl.load(d_out + row.to(tl.int64)[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
        d_hidden = tl.dot(above, weight, input_precision=EXACT)
        x = _rows(waves, own, real, width, WIDE)
        hidden = tl.dot(x, tl.trans(first), input_precision=EXACT) + start
        passed = tl.where(hidden > 0, d_hidden, 0.0)
        d_w1 += tl.dot(tl.trans(passed), x, input_precision=EXACT)
        d_b1 += tl.sum(passed, axis=0)
        hidden = tl.maximum(hidden, 0.0)
        counts = (tl.load(sd + own, mask=real, other=-1)[None, :] == value[:, None]).to(tl.float32)
        if BOTH:
            x = _rows(waves, other, real, width, WIDE)
            second = tl.dot(x, tl.trans(first), input_precision=EXACT) + start
            passed = tl.where(second > 0, d_hidden, 0.0)
            d_w1 += tl.dot(tl.trans(passed), x, input_precision=EXACT)
            d_b1 += tl.sum(passed, axis=0)
            hidden += tl.maximum(second, 0.0)
            counts += (tl.load(sd + other, mask=real, other=-1)[None, :] == value[:, None]).to(tl.float32)
        d_w2 += tl.dot(tl.trans(above), hidden, input_precision=EXACT)
        d_table += tl.dot(counts, above, input_precision=EXACT)
        d_bias += tl.sum(above, axis=0)
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
    """The two kernels, joined for autograd."""

    @staticmethod
    def forward(
        ctx: Any, waves: Tensor, sd: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, table: Tensor, bias: Tensor,
        n_others: int,
    ) -> Tensor:  # fmt: skip
        n_queries, n_relations, size = sd.shape
        dim, width, n_sequences = len(b1), waves.shape[-1], max(1, 2 * n_others)
        out = torch.empty((n_queries, n_sequences, size, dim), device=sd.device)
        n = n_queries * n_sequences * size
        w2, table = w2.contiguous(), table.contiguous()
        ctx.numbers = (n, n_sequences, n_relations, n_others, size, width)
        ctx.how = {
            "D": dim, "WIDE": max(16, triton.next_power_of_2(width)), "ROWS": ROWS, "BOTH": n_relations > n_others + 1,
            "EXACT": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee",
        }  # fmt: skip
        ctx.save_for_backward(waves, sd, w1, b1, w2)
        ctx.n_values = len(table)
        _embed[(triton.cdiv(n, ROWS),)](waves, sd, w1, b1, w2, table, bias, out, *ctx.numbers, **ctx.how, num_warps=4)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        dim, width = ctx.how["D"], ctx.numbers[-1]
        values = max(16, triton.next_power_of_2(ctx.n_values))
        programs = max(1, min(PROGRAMS, triton.cdiv(ctx.numbers[0], ROWS)))
        sizes = [dim * width, dim * dim, values * dim, dim, dim]
        partial = torch.empty((programs, sum(sizes)), device=d_out.device)
        _embed_backward[(programs,)](
            *ctx.saved_tensors, d_out.contiguous(), partial, *ctx.numbers, **ctx.how, VALUES=values, num_warps=8
        )
        d_w1, d_w2, d_table, d_b1, d_bias = partial.sum(dim=0).split(sizes)
        d_table = d_table.view(values, dim)[: ctx.n_values]
        return None, None, d_w1.view(dim, width), d_b1, d_w2.view(dim, dim), d_table, d_bias, None


def fits(hidden: int, dim: int, n_values: int) -> bool:
    """True where the kernels take so many hidden units, sinusoids and spatial distances."""
    return hidden in (16, 32, 64) and dim <= 128 and n_values <= 16


def tokens(
    waves: Tensor, sd: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, table: Tensor, bias: Tensor, n_others: int
) -> Tensor:
    """``w2 @ sum(relu(w1 @ waves + b1)) + sum(table[sd]) + bias``: (B, 2M or 1, C, D) float32.

    The sums are over a slot's distances to its own root and, where waves (B, R, C, F) and sd (B, R, C) hold them, to
    the other end. Shapes: w1 (D, F); b1 (D,); w2 (D, D); table (V, D); bias (D,).
    """
    return _Tokens.apply(waves.contiguous(), sd.contiguous(), w1, b1, w2, table, bias, n_others)
