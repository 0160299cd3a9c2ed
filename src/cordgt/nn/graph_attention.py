"""TGN's attention of a node to its most recent events, with a compiled loop for the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.runtime.kernel_loader import is_plain_forced


class GraphAttention(nn.Module):
    """TGN's attention of a node to its most recent events: neighbors' memory, edge features and time encodings.

    One query attends to many keys, so keys and values are never projected: the query is multiplied by the weights of
    the keys, and the attended average by those of the values. Consecutive weights are multiplied first, so a node needs
    one product before attention and one after. A node without events attends to nothing.

    Shapes: S nodes with n events each, H heads, D width of memory, Dt of a time encoding, K = D + De + Dt.
    """

    def __init__(self, *, dim: int, time_dim: int, edge_dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout, self.head_dim = heads, dropout, (dim + time_dim) // heads
        inner, key_dim = dim + time_dim, dim + edge_dim + time_dim
        self.query = nn.Linear(inner, inner)
        self.key = nn.Parameter(torch.empty(inner, key_dim))
        self.value = nn.Parameter(torch.empty(inner, key_dim))
        self.value_bias = nn.Parameter(torch.zeros(inner))
        self.out = nn.Linear(inner, inner)
        self.fc1 = nn.Linear(inner + dim, dim)
        self.fc2 = nn.Linear(dim, dim)
        for weight in (self.query.weight, self.key, self.value):
            nn.init.xavier_uniform_(weight)
        for bias in (self.query.bias, self.out.bias):
            nn.init.zeros_(bias)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, own: Tensor, own_time: Tensor, nbr: Tensor, attn_mask: Tensor) -> Tensor:
        """Return (S, D) for own (S, D), own_time (Dt,), nbr (S, n, D+De+Dt) and attn_mask (S, n), True: may attend."""
        scale = None  # dropout of the attention weights: 0 or 1 / (1 - p)
        if self.training and self.dropout:
            scale = F.dropout(own.new_ones(len(own), self.heads, nbr.shape[1]), self.dropout)
        attended = attend(self._query(own, own_time), nbr, attn_mask, scale)  # (S, H, K)
        w_attended, w_own = self.fc1.weight.split([len(self.value), own.shape[1]], dim=1)
        out = w_attended @ self.out.weight  # (D, H*d)
        weight = torch.cat(
            [o @ v for o, v in zip(out.chunk(self.heads, 1), self.value.chunk(self.heads), strict=True)], 1
        )
        bias = (out @ self.value_bias + w_attended @ self.out.bias) * attn_mask.any(dim=1, keepdim=True)
        hidden = attended.flatten(1) @ weight.T + F.linear(own, w_own, self.fc1.bias) + bias
        return self.fc2(F.relu(hidden))

    def _query(self, own: Tensor, own_time: Tensor) -> Tensor:
        """Return the queries (S, H, K), multiplied by the weights of the keys."""
        w_own, w_time = self.query.weight.split([own.shape[1], len(own_time)], dim=1)
        query = torch.cat([w_own, (w_time @ own_time + self.query.bias).unsqueeze(1)], dim=1)  # (H*d, D+1)
        query = query / math.sqrt(self.head_dim)
        heads = zip(query.chunk(self.heads), self.key.chunk(self.heads), strict=True)
        weight = torch.cat([q.T @ k for q, k in heads], dim=1)  # (D+1, H*K)
        return torch.addmm(weight[-1], own, weight[:-1]).unflatten(1, (self.heads, -1))


def attend(query: Tensor, x: Tensor, attn_mask: Tensor, scale: Tensor | None) -> Tensor:
    """Return ``softmax(query x) x`` (S, H, K) over the unmasked events; zeros for a node without any.

    Uses a compiled loop on the CPU, where a node's matrices are too small for BLAS; torch operations elsewhere.

    Shapes: query (S, H, K), x (S, n, K), attn_mask (S, n) bool, True: may attend; scale (S, H, n) or None, multiplies
    the weights.
    """
    if x.device.type == "cpu" and not is_plain_forced():
        out: Tensor = _Attend.apply(query, x, attn_mask, scale)
        return out
    return attend_reference(query, x, attn_mask, scale)


def attend_reference(query: Tensor, x: Tensor, attn_mask: Tensor, scale: Tensor | None) -> Tensor:
    """Compute `attend` with torch operations."""
    attn_mask = attn_mask.unsqueeze(1)
    weight = (query @ x.transpose(1, 2)).masked_fill(~attn_mask, -1e10).softmax(dim=-1) * attn_mask
    return (weight if scale is None else weight * scale) @ x


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, x: Tensor, attn_mask: Tensor, scale: Tensor | None) -> Tensor:
        query, x = query.contiguous(), x.contiguous()
        if scale is None:
            scale = query.new_ones(*query.shape[:2], x.shape[1])
        weight, out = query.new_empty(*query.shape[:2], x.shape[1]), torch.empty_like(query)
        _attend(*_to_numpy(query, x, attn_mask, scale, weight, out))
        ctx.save_for_backward(query, x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        query, x, weight, scale = ctx.saved_tensors
        d_query, d_x = torch.empty_like(query), torch.empty_like(x)
        _attend_backward(*_to_numpy(grad.contiguous(), query, x, weight, scale, d_query, d_x))
        return d_query, d_x, None, None


def _to_numpy(*tensors: Tensor) -> list[np.ndarray]:
    return [x.detach().numpy() for x in tensors]


@njit(parallel=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _attend(query, x, attn_mask, scale, weight, out):  # type: ignore[no-untyped-def]
    for s in prange(len(query)):
        for h in range(query.shape[1]):
            max_logit = np.float32(-np.inf)
            for j in range(x.shape[1]):
                logit = np.float32(0.0)
                if attn_mask[s, j]:
                    for k in range(x.shape[2]):
                        logit += query[s, h, k] * x[s, j, k]
                    max_logit = max(max_logit, logit)
                weight[s, h, j] = logit
            total = np.float32(0.0)
            for j in range(x.shape[1]):
                weight[s, h, j] = np.exp(weight[s, h, j] - max_logit) if attn_mask[s, j] else np.float32(0.0)
                total += weight[s, h, j]
            for k in range(x.shape[2]):
                out[s, h, k] = 0.0
            for j in range(x.shape[1]):
                if attn_mask[s, j]:
                    weight[s, h, j] /= total
                    w = weight[s, h, j] * scale[s, h, j]
                    for k in range(x.shape[2]):
                        out[s, h, k] += w * x[s, j, k]


@njit(parallel=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _attend_backward(grad, query, x, weight, scale, d_query, d_x):  # type: ignore[no-untyped-def]
    for s in prange(len(query)):
        d_x[s] = 0.0
        d_query[s] = 0.0
        d_weight = np.empty(x.shape[1], dtype=np.float32)
        for h in range(query.shape[1]):
            mean = np.float32(0.0)
            for j in range(x.shape[1]):
                d_weight[j] = 0.0
                if weight[s, h, j] > 0:
                    product = np.float32(0.0)
                    for k in range(x.shape[2]):
                        product += grad[s, h, k] * x[s, j, k]
                    d_weight[j] = product * scale[s, h, j]
                    mean += d_weight[j] * weight[s, h, j]
            for j in range(x.shape[1]):
                w = weight[s, h, j]
                if w > 0:
                    d_logit = w * (d_weight[j] - mean)
                    dropped = w * scale[s, h, j]
                    for k in range(x.shape[2]):
                        d_query[s, h, k] += d_logit * x[s, j, k]
                        d_x[s, j, k] += d_logit * query[s, h, k] + dropped * grad[s, h, k]
