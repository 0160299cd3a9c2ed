"""Attention over short sequences on the CPU, head by head, so that the working set stays in the cache.

A head's queries, keys and values are read in place, without a copy. Dropout is a hash of (key, position), which both
passes compute instead of storing it. Keys come from torch's generator, or from one set for a thread (`drawing_from`),
so that the results of parallel threads do not depend on their order.

Twin: `torch.nn.functional.scaled_dot_product_attention` and `dropout`.
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

_own = threading.local()  # the generator of each thread's keys, if one was set


def serves(x: Tensor) -> bool:
    """True if this module handles a tensor; otherwise use the twins."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and not kernels.plain_asked()


def attention(qkv: Tensor, attn_mask: Tensor, drop: float) -> Tensor:
    """Attention (S, C, H, D) of qkv (S, C, 3, H, D) float32.

    attn_mask: (S, C or 1, C) bool, True: row i may attend to column j. drop: share of weights to drop.
    """
    return _Attention.apply(qkv.contiguous(), attn_mask, drop, _key() if drop else 0)


def dropout(x: Tensor, drop: float) -> Tensor:
    """`torch.nn.functional.dropout` in training."""
    return _Dropout.apply(x.contiguous(), drop, _key()) if drop else x


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Seed the dropout of this thread within the context."""
    _own.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        _own.generator = None


def _key() -> int:
    """A new key from this thread's generator or torch's."""
    return int(torch.randint(2**31 - 1, (), generator=getattr(_own, "generator", None)))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, attn_mask: Tensor, drop: float, key: int) -> Tensor:
        n, size, _, heads, dim = qkv.shape
        scale = 1 / math.sqrt(dim)
        bias = torch.where(attn_mask, 0.0, -torch.inf)  # (S, C or 1, C)
        weights = qkv.new_empty(heads, n, size, size)
        out = qkv.new_empty(n, size, heads, dim)
        for h in range(heads):
            q, k, v = qkv[:, :, :, h].unbind(2)  # (S, C, D) each
            logits = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)
            torch.softmax(logits, dim=-1, out=weights[h])
            out[:, :, h] = torch.bmm(_dropped(weights[h], drop, key + h, logits), v)
        ctx.save_for_backward(qkv, weights)
        ctx.drop, ctx.key = drop, key
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
            d_qkv[:, :, 2, h] = torch.bmm(_dropped(weights[h], ctx.drop, key).transpose(1, 2), grad)
            d_weight = torch.bmm(grad, v.transpose(1, 2))
            d_logits = torch._softmax_backward_data(
                _dropped(d_weight, ctx.drop, key, d_weight), weights[h], -1, torch.float32
            )
            d_qkv[:, :, 0, h] = torch.baddbmm(zero, d_logits, k, beta=0, alpha=scale)
            d_qkv[:, :, 1, h] = torch.baddbmm(zero, d_logits.transpose(1, 2), q, beta=0, alpha=scale)
        return d_qkv, None, None, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, drop: float, key: int) -> Tensor:
        ctx.drop, ctx.key = drop, key
        return _dropped(x, drop, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _dropped(grad.contiguous(), ctx.drop, ctx.key), None, None


def _dropped(x: Tensor, drop: float, key: int, out: Tensor | None = None) -> Tensor:
    """Dropout of ``x``, the same for the same key; written into ``out`` if given."""
    if drop == 0:
        return x
    out = torch.empty_like(x) if out is None else out
    least, gain = np.uint32(min(int(drop * 2**32), 2**32 - 1)), np.float32(1 / (1 - drop))
    _drop(x.view(-1).numpy(), out.view(-1).numpy(), np.uint32(key % 2**32), least, gain)
    return out


@njit(nogil=True, cache=True)
def _drop(x, out, key, least, gain):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        z = np.uint32(key + np.uint32(np.uint32(i) * np.uint32(0x9E3779B1)))
        z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D))
        z = np.uint32((z ^ (z >> np.uint32(15))) * np.uint32(0x846CA68B))
        z = np.uint32(z ^ (z >> np.uint32(16)))
        out[i] = x[i] * gain if z >= least else np.float32(0)
