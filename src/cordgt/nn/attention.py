"""Attention and dropout on the CPU, head by head so that the working set stays in the cache.

Queries, keys and values of a head are read in place, without a copy. Dropout is counter-based: a hash of (key, element)
that both passes recompute. Keys come from torch's generator, or from a generator per thread (`dropout_seed`), so that
the results of parallel threads do not depend on their order.

Torch reference: `torch.nn.functional.scaled_dot_product_attention` and `dropout`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from cordgt.runtime import kernel_loader as kernels

_thread = threading.local()  # .generator: source of this thread's dropout keys, if set


def is_supported(x: Tensor) -> bool:
    """Return True if this module handles ``x``; otherwise use the torch reference."""
    is_known = x.dtype in (torch.float32, torch.bfloat16)
    return x.device.type == "cpu" and is_known and not kernels.is_plain_forced()


def attention(qkv: Tensor, attn_mask: Tensor, dropout_p: float) -> Tensor:
    """Return the attention (S, C, H, D) of qkv (S, C, 3, H, D) float32 or bfloat16.

    attn_mask: (S, C or 1, C) bool, True: row i may attend to column j. dropout_p: probability of dropping a weight.
    """
    function = _Attention if qkv.dtype == torch.float32 else _Bf16Attention
    return function.apply(qkv.contiguous(), attn_mask, dropout_p, new_key() if dropout_p else 0)


def dropout(x: Tensor, dropout_p: float) -> Tensor:
    """Apply dropout, as `torch.nn.functional.dropout` does in training. The result is float32."""
    x = x.float()
    return _Dropout.apply(x.contiguous(), dropout_p, new_key()) if dropout_p else x


@contextmanager
def dropout_seed(seed: int) -> Iterator[None]:
    """Seed the dropout of this thread within the context."""
    _thread.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _thread.generator = None


def new_key() -> int:
    """Return a random key from this thread's generator, or from torch's."""
    return int(torch.randint(2**31 - 1, (), generator=getattr(_thread, "generator", None)))


class _Bf16Attention(torch.autograd.Function):
    """`_Attention` with matrix products in bfloat16. Softmax, dropout and sums within a product stay in float32."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, attn_mask: Tensor, dropout_p: float, key: int) -> Tensor:
        n, size, _, heads, dim = qkv.shape
        scale = 1 / math.sqrt(dim)
        bias = torch.where(attn_mask, 0.0, -torch.inf)  # (S, C or 1, C)
        weights = qkv.new_empty(heads, n, size, size)  # bfloat16: half the memory traffic
        out = qkv.new_empty(n, size, heads, dim)
        logits = torch.empty(n, size, size)
        for h in range(heads):
            q, k, v = qkv[:, :, :, h].unbind(2)  # (S, C, D) each
            torch.add(bias, torch.bmm(q, k.transpose(1, 2)), alpha=scale, out=logits)
            weight = torch.softmax(logits, dim=-1)
            weights[h] = weight
            out[:, :, h] = torch.bmm(_apply_dropout(weight, dropout_p, key + h, weight).bfloat16(), v)
        ctx.save_for_backward(qkv, weights)
        ctx.dropout_p, ctx.key = dropout_p, key
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        qkv, weights = ctx.saved_tensors
        heads, scale = qkv.shape[3], 1 / math.sqrt(qkv.shape[4])
        d_qkv = torch.empty_like(qkv)
        for h in range(heads):
            q, k, v = qkv[:, :, :, h].unbind(2)
            grad, key, weight = d_out[:, :, h], ctx.key + h, weights[h].float()
            dropped = _apply_dropout(weight, ctx.dropout_p, key).bfloat16()
            d_qkv[:, :, 2, h] = torch.bmm(dropped.transpose(1, 2), grad)
            d_weight = torch.bmm(grad, v.transpose(1, 2)).float()
            d_weight = _apply_dropout(d_weight, ctx.dropout_p, key, d_weight)
            d_logits = torch._softmax_backward_data(d_weight, weight, -1, torch.float32).mul_(scale).bfloat16()
            d_qkv[:, :, 0, h] = torch.bmm(d_logits, k)
            d_qkv[:, :, 1, h] = torch.bmm(d_logits.transpose(1, 2), q)
        return d_qkv, None, None, None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, attn_mask: Tensor, dropout_p: float, key: int) -> Tensor:
        n, size, _, heads, dim = qkv.shape
        scale = 1 / math.sqrt(dim)
        bias = torch.where(attn_mask, 0.0, -torch.inf)  # (S, C or 1, C)
        weights = qkv.new_empty(heads, n, size, size)
        out = qkv.new_empty(n, size, heads, dim)
        for h in range(heads):
            q, k, v = qkv[:, :, :, h].unbind(2)  # (S, C, D) each
            logits = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)
            torch.softmax(logits, dim=-1, out=weights[h])
            out[:, :, h] = torch.bmm(_apply_dropout(weights[h], dropout_p, key + h, logits), v)
        ctx.save_for_backward(qkv, weights)
        ctx.dropout_p, ctx.key = dropout_p, key
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        qkv, weights = ctx.saved_tensors
        heads, scale = qkv.shape[3], 1 / math.sqrt(qkv.shape[4])
        d_qkv = torch.empty_like(qkv)
        zero = qkv.new_zeros(1, 1, 1)
        for h in range(heads):
            q, k, v = qkv[:, :, :, h].unbind(2)
            grad, key = d_out[:, :, h], ctx.key + h
            d_qkv[:, :, 2, h] = torch.bmm(_apply_dropout(weights[h], ctx.dropout_p, key).transpose(1, 2), grad)
            d_weight = torch.bmm(grad, v.transpose(1, 2))
            d_logits = torch._softmax_backward_data(
                _apply_dropout(d_weight, ctx.dropout_p, key, d_weight), weights[h], -1, torch.float32
            )
            d_qkv[:, :, 0, h] = torch.baddbmm(zero, d_logits, k, beta=0, alpha=scale)
            d_qkv[:, :, 1, h] = torch.baddbmm(zero, d_logits.transpose(1, 2), q, beta=0, alpha=scale)
        return d_qkv, None, None, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout_p: float, key: int) -> Tensor:
        ctx.dropout_p, ctx.key = dropout_p, key
        return _apply_dropout(x, dropout_p, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _apply_dropout(grad.contiguous(), ctx.dropout_p, ctx.key), None, None


def _apply_dropout(x: Tensor, dropout_p: float, key: int, out: Tensor | None = None) -> Tensor:
    """Return ``x`` after dropout with the mask of ``key``, written into ``out`` if given."""
    if dropout_p == 0:
        return x
    out = torch.empty_like(x) if out is None else out
    threshold, gain = np.uint32(min(int(dropout_p * 2**32), 2**32 - 1)), np.float32(1 / (1 - dropout_p))
    _dropout_loop(x.view(-1).numpy(), out.view(-1).numpy(), np.uint32(key % 2**32), threshold, gain)
    return out


@njit(nogil=True, cache=True)
def _dropout_loop(x, out, key, threshold, gain):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        z = np.uint32(key + np.uint32(np.uint32(i) * np.uint32(0x9E3779B1)))
        z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D))
        z = np.uint32((z ^ (z >> np.uint32(15))) * np.uint32(0x846CA68B))
        z = np.uint32(z ^ (z >> np.uint32(16)))
        out[i] = x[i] * gain if z >= threshold else np.float32(0)
