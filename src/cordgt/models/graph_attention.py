"""Attention of a node to its most recent events, as in TGN, and the one loop that it spends its time in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor, nn
from torch.nn import functional as F


class GraphAttention(nn.Module):
    """TGN's attention of a node to its most recent events: what the others remember, the features, and how long ago.

    One query attends to many keys, so keys and values are never projected: the query goes through the keys' weights,
    and the average of what is attended to through the values'. Weights that follow each other are multiplied first:
    what is left to do for a node is one product before it hears, and one after. Nodes without events hear nothing.

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

    def forward(self, own: Tensor, own_time: Tensor, nbr: Tensor, valid: Tensor) -> Tensor:
        """(S, D) from own (S, D), own_time (Dt,), nbr (S, n, D+De+Dt) and valid (S, n), False for padding."""
        stays = None  # what dropout multiplies weights by: 0, or more than 1 to make up for those
        if self.training and self.dropout:
            stays = F.dropout(own.new_ones(len(own), self.heads, nbr.shape[1]), self.dropout)
        heard = hear(self._asked(own, own_time), nbr, valid, stays)  # (S, H, K)
        from_heard, from_own = self.fc1.weight.split([len(self.value), own.shape[1]], dim=1)
        out = from_heard @ self.out.weight  # (D, H*d)
        through = torch.cat(
            [o @ v for o, v in zip(out.chunk(self.heads, 1), self.value.chunk(self.heads), strict=True)], 1
        )
        bias = (out @ self.value_bias + from_heard @ self.out.bias) * valid.any(dim=1, keepdim=True)
        hidden = heard.flatten(1) @ through.T + F.linear(own, from_own, self.fc1.bias) + bias
        return self.fc2(F.relu(hidden))

    def _asked(self, own: Tensor, own_time: Tensor) -> Tensor:
        """(S, H, K) the queries, through the weights of the keys."""
        weight, of_time = self.query.weight.split([own.shape[1], len(own_time)], dim=1)
        query = torch.cat([weight, (of_time @ own_time + self.query.bias).unsqueeze(1)], dim=1)  # (H*d, D+1)
        query = query / math.sqrt(self.head_dim)
        parts = zip(query.chunk(self.heads), self.key.chunk(self.heads), strict=True)
        through = torch.cat([q.T @ k for q, k in parts], dim=1)  # (D+1, H*K)
        return torch.addmm(through[-1], own, through[:-1]).unflatten(1, (self.heads, -1))


def hear(asked: Tensor, x: Tensor, valid: Tensor, stays: Tensor | None) -> Tensor:
    """``softmax(asked x) x`` over what is valid; zeros where nothing is.

    A compiled loop on the CPU, where a node has too little for matrix products; torch operations elsewhere.

    Shapes: asked (S, H, K), x (S, n, K), valid (S, n), stays (S, H, n) or None, multiplies the weights; (S, H, K)
    comes back.
    """
    if x.device.type == "cpu":
        found: Tensor = _Hear.apply(asked, x, valid, stays)
        return found
    return hear_plain(asked, x, valid, stays)


def hear_plain(asked: Tensor, x: Tensor, valid: Tensor, stays: Tensor | None) -> Tensor:
    """`hear` in torch operations."""
    weight = (asked @ x.transpose(1, 2)).masked_fill(~valid.unsqueeze(1), -1e10).softmax(dim=-1)
    weight = weight * valid.unsqueeze(1)
    return (weight if stays is None else weight * stays) @ x


class _Hear(torch.autograd.Function):
    """`hear` with its derivative, both as loops over the nodes."""

    @staticmethod
    def forward(ctx: Any, asked: Tensor, x: Tensor, valid: Tensor, stays: Tensor | None) -> Tensor:
        asked, x = asked.contiguous(), x.contiguous()
        if stays is None:
            stays = asked.new_ones(*asked.shape[:2], x.shape[1])
        weight, found = asked.new_empty(*asked.shape[:2], x.shape[1]), torch.empty_like(asked)
        _hear(*_arrays(asked, x, valid, stays, weight, found))
        ctx.save_for_backward(asked, x, weight, stays)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        asked, x, weight, stays = ctx.saved_tensors
        d_asked, d_x = torch.empty_like(asked), torch.empty_like(x)
        _hear_backwards(*_arrays(grad.contiguous(), asked, x, weight, stays, d_asked, d_x))
        return d_asked, d_x, None, None


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return [x.detach().numpy() for x in tensors]


@njit(parallel=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _hear(asked, x, valid, stays, weight, found):  # type: ignore[no-untyped-def]
    for s in prange(len(asked)):
        for h in range(asked.shape[1]):
            highest = np.float32(-np.inf)
            for j in range(x.shape[1]):
                logit = np.float32(0.0)
                if valid[s, j]:
                    for k in range(x.shape[2]):
                        logit += asked[s, h, k] * x[s, j, k]
                    highest = max(highest, logit)
                weight[s, h, j] = logit
            total = np.float32(0.0)
            for j in range(x.shape[1]):
                weight[s, h, j] = np.exp(weight[s, h, j] - highest) if valid[s, j] else np.float32(0.0)
                total += weight[s, h, j]
            for k in range(x.shape[2]):
                found[s, h, k] = 0.0
            for j in range(x.shape[1]):
                if valid[s, j]:
                    weight[s, h, j] /= total
                    w = weight[s, h, j] * stays[s, h, j]
                    for k in range(x.shape[2]):
                        found[s, h, k] += w * x[s, j, k]


@njit(parallel=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _hear_backwards(grad, asked, x, weight, stays, d_asked, d_x):  # type: ignore[no-untyped-def]
    for s in prange(len(asked)):
        d_x[s] = 0.0
        d_asked[s] = 0.0
        d_weight = np.empty(x.shape[1], dtype=np.float32)
        for h in range(asked.shape[1]):
            mean = np.float32(0.0)
            for j in range(x.shape[1]):
                d_weight[j] = 0.0
                if weight[s, h, j] > 0:
                    product = np.float32(0.0)
                    for k in range(x.shape[2]):
                        product += grad[s, h, k] * x[s, j, k]
                    d_weight[j] = product * stays[s, h, j]
                    mean += d_weight[j] * weight[s, h, j]
            for j in range(x.shape[1]):
                w = weight[s, h, j]
                if w > 0:
                    d_logit = w * (d_weight[j] - mean)
                    said = w * stays[s, h, j]
                    for k in range(x.shape[2]):
                        d_asked[s, h, k] += d_logit * x[s, j, k]
                        d_x[s, j, k] += d_logit * asked[s, h, k] + said * grad[s, h, k]
