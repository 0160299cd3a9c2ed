"""Transformer encoder over short sequences, with fused kernels and a hand-written backward pass.

A layer needs 6 launches forward and 11 backward; 2 and 4 of them are matrix products. The last bias of a feed-forward
net is added with its branch in the next layer's norm, which passes over the rows anyway.

Torch reference: `cordgt.models.cordgt.CordgtLayer` and the pooling after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cordgt.nn.kernels import attention, feed_forward, norm
from cordgt.nn.kernels.sums import sum_rows


def supports_shape(size: int, dim: int, events: bool) -> bool:
    """Return True if the kernels handle sequences of ``size`` slots with heads ``dim`` wide."""
    return attention.supports_shape(size, dim, events)


def encode(
    layers: Sequence[Any], x: Tensor, attn_mask: Tensor, edge_x: Tensor | None, weight: Tensor, dropout_p: float
) -> Tensor:
    """Return the sequences after all layers, pooled with the slots' weights: (S, D) float32.

    Shapes: x (S, C, D) float32; attn_mask (S, C or 1, C) bool, True: row i may attend to column j; edge_x (S, C, De) or
    None; weight (S, C) float32, each row sums to 1.
    """
    n, size, dim = x.shape
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    states, branch, bias = x.reshape(n * size, dim), None, None
    attn_mask = attn_mask.contiguous()
    edge_x = None if edge_x is None else edge_x.to(dtype).contiguous()
    with torch.autocast(kind, enabled=False):
        for layer, products in zip(layers, _product_weights(layers, dtype), strict=True):
            a = layer.attention
            edge_weight = None if edge_x is None else a.edge_kv.weight
            seed = torch.randint(2**31 - 1, (2,), device=x.device)
            states, branch = _Layer.apply(
                states, branch, bias, layer.norm1.weight, layer.norm1.bias, a.qkv.weight, edge_weight, a.out.weight,
                a.out.bias, layer.norm2.weight, layer.norm2.bias, layer.fc1.weight, layer.fc1.bias, layer.fc2.weight,
                products, attn_mask, edge_x, a.parent, seed, a.heads, dropout_p, layer.norm1.eps,
            )  # fmt: skip
            bias = layer.fc2.bias
        return _Pool.apply(states, branch, weight.contiguous()) + bias


def _product_weights(layers: Sequence[Any], dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """Return the weights of each layer's matrix products in ``dtype``, without gradients, with one launch for all."""
    weights = [
        (layer.attention.qkv.weight, layer.attention.out.weight, layer.fc1.weight, layer.fc2.weight) for layer in layers
    ]
    own = [weight.detach() for row in weights for weight in row]
    if dtype != torch.float32:
        copies = [torch.empty_like(weight, dtype=dtype) for weight in own]
        torch._foreach_copy_(copies, own)
        own = copies
    return [tuple(own[i : i + 4]) for i in range(0, len(own), 4)]


class _Layer(torch.autograd.Function):
    """One layer. Returns the residual stream and the branch to be added to it next, (S * C, D) each."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor, branch: Tensor | None, bias: Tensor | None, scale1: Tensor, shift1: Tensor, w_qkv: Tensor,
        w_edge: Tensor | None, w_out: Tensor, b_out: Tensor, scale2: Tensor, shift2: Tensor, w_fc1: Tensor,
        b_fc1: Tensor, w_fc2: Tensor,
        products: tuple[Tensor, ...], attn_mask: Tensor, edge_x: Tensor | None, parent: Tensor, seed: Tensor,
        heads: int, dropout_p: float, eps: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        dim, size, dtype = x.shape[1], attn_mask.shape[2], products[0].dtype
        w_qkv, w_out, w_fc1, w_fc2 = products  # the arguments of these names receive the gradients
        joined, normal1, mean1, rstd1 = norm.forward(
            x, branch, bias, seed, scale1, shift1, dropout_p=0.0, eps=eps, dtype=dtype
        )
        qkv = (normal1 @ w_qkv.t()).view(-1, size, 3, heads, dim)
        edge = None
        if edge_x is not None and w_edge is not None:
            edge = (edge_x @ w_edge.to(dtype).t()).view(-1, size, 2, heads, dim)
        attended = attention.forward(qkv, edge, attn_mask, parent, seed[1:], dropout_p).view(len(x), -1)
        out, normal2, mean2, rstd2 = norm.forward(
            joined, attended @ w_out.t(), b_out, seed, scale2, shift2, dropout_p=dropout_p, eps=eps, dtype=dtype
        )
        ctx.save_for_backward(
            joined, normal1, mean1, rstd1, scale1, qkv, edge, attended, out, normal2, mean2, rstd2, scale2,
            w_qkv, w_out, w_fc1, b_fc1, w_fc2, attn_mask, edge_x, parent, seed,
        )  # fmt: skip
        ctx.dropout_p, ctx.has_branch, ctx.has_bias = dropout_p, branch is not None, bias is not None
        return out, feed_forward.forward(normal2, w_fc1, b_fc1, w_fc2)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_branch: Tensor) -> tuple[Tensor | None, ...]:
        (
            joined, normal1, mean1, rstd1, scale1, qkv, edge, attended, out, normal2, mean2, rstd2, scale2,
            w_qkv, w_out, w_fc1, b_fc1, w_fc2, attn_mask, edge_x, parent, seed,
        ) = ctx.saved_tensors  # fmt: skip
        dropout_p, dtype, dim = ctx.dropout_p, qkv.dtype, out.shape[1]
        partial = norm.empty_partial_sums(len(out), 6 * dim, out.device)
        d_normal2, d_fc1, d_b_fc1, d_fc2 = feed_forward.backward(d_branch.contiguous(), normal2, w_fc1, b_fc1, w_fc2)
        d_joined, d_attended = norm.backward(
            d_out, d_normal2, out, seed, scale2, mean2, rstd2, partial, dropout_p=dropout_p, dtype=dtype
        )
        assert d_attended is not None
        d_w_out = _weight_gradient(d_attended, attended)
        d_qkv, d_edge = attention.backward(d_attended @ w_out, qkv, edge, attn_mask, parent, seed[1:], dropout_p)
        d_w_edge = None
        if d_edge is not None:
            d_w_edge = _weight_gradient(d_edge.view(len(attended), -1), edge_x.view(len(attended), -1))
        d_qkv = d_qkv.view(len(attended), -1)
        d_w_qkv = _weight_gradient(d_qkv, normal1)
        d_x, d_before = norm.backward(
            d_joined, d_qkv @ w_qkv, joined, seed, scale1, mean1, rstd1, partial[:, 3 * dim :], dropout_p=0.0,
            dtype=dtype if ctx.has_branch else None,
        )  # fmt: skip
        d_scale2, d_shift2, d_b_out, d_scale1, d_shift1, d_bias = sum_rows(partial).split(dim)
        return (
            d_x, d_before, d_bias if ctx.has_bias else None, d_scale1, d_shift1, d_w_qkv, d_w_edge, d_w_out, d_b_out,
            d_scale2, d_shift2, d_fc1, d_b_fc1, d_fc2, *([None] * 8),
        )  # fmt: skip


def _weight_gradient(d_y: Tensor, x: Tensor) -> Tensor:
    """Return the float32 gradient of the weight in ``y = x @ weight.t()``."""
    if d_y.dtype == torch.float32 or d_y.device.type == "cpu" or not _MM_HAS_OUT_DTYPE:
        return (d_y.t() @ x).float()
    return torch.mm(d_y.t(), x, out_dtype=torch.float32)


_MM_HAS_OUT_DTYPE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


class _Pool(torch.autograd.Function):
    """Weighted sum of the residual stream plus its last branch over each sequence: (S, D) float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.dtype = branch.dtype
        return norm.pool(x, branch, weight)

    @staticmethod
    def backward(ctx: Any, d_pooled: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return *norm.pool_backward(d_pooled.contiguous(), weight, ctx.dtype), None
