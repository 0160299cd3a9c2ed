"""Layers that several models share: time encoding, attention, score head, loss; and checks of model settings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import SettingError
from cordgt.nn.time_encoding import encode_time


def check_positive(settings: Any, *names: str) -> None:
    """Raise SettingError if one of these settings is less than 1."""
    for name in names:
        if getattr(settings, name) < 1:
            raise SettingError(f"{name}={getattr(settings, name)}: must be at least 1.")


def check_non_negative(settings: Any, *names: str) -> None:
    """Raise SettingError if one of these settings is negative or not finite."""
    for name in names:
        if not 0 <= getattr(settings, name) < math.inf:
            raise SettingError(f"{name}={getattr(settings, name)}: must be a finite number of at least 0.")


def check_dropout(settings: Any) -> None:
    """Raise SettingError if dropout is not in [0, 1)."""
    if not 0 <= settings.dropout < 1:
        raise SettingError(f"dropout={settings.dropout}: must be at least 0 and less than 1.")


def check_heads(dim: int, heads: int, dim_name: str) -> None:
    """Raise SettingError if ``dim``, called ``dim_name`` in the message, is not a multiple of ``heads``."""
    if dim % heads:
        raise SettingError(f"heads={heads}: {dim_name} is {dim}, which is not a multiple of {heads}.")


def features_or_empty(x: Tensor | None, like: Tensor) -> Tensor:
    """Return the features, or empty features (..., 0) for ``like`` (...,) if the stream has none."""
    return torch.zeros(*like.shape, 0, device=like.device) if x is None else x


class TimeEncoding(nn.Module):
    """``cos(t w + b)`` of an elapsed time: TGAT's encoding, which most models share.

    Frequencies start log-spaced from 1 down to 1e-9, phases at 0. Both are parameters unless ``learnable`` is False,
    as in GraphMixer.
    """

    frequency: Tensor
    phase: Tensor

    def __init__(self, dim: int, *, learnable: bool = True) -> None:
        super().__init__()
        # computed in float64 and rounded once, so the values are the same on every machine
        frequency = (10.0 ** -torch.linspace(0, 9, dim, dtype=torch.float64, device="cpu")).float()
        for name, value in (("frequency", frequency), ("phase", torch.zeros(dim))):
            if learnable:
                self.register_parameter(name, nn.Parameter(value))
            else:  # not a frozen parameter: the optimizer keeps state for every parameter
                self.register_buffer(name, value)

    def forward(self, elapsed: Tensor) -> Tensor:
        """Return (..., dim) for elapsed times (...,), which are differences taken in float64.

        The product is rounded before the sum, so every device computes the same angle.
        """
        return encode_time(elapsed, self.frequency, self.phase)


class TemporalAttention(nn.Module):
    """TGAT's attention of a node over its events. Query: the node now. Keys and values: neighbor, event and age.

    One query attends to each set of events, so the projections of keys and values move to the query:
    ``q (W x) = (q W) x`` and ``sum a (W x) = W (sum a x)``. No event is projected, which saves nearly all work.

    Differs: a node without events attends to nothing. The released code averages its padding, with the time since zero
    as its age.

    Shapes: S nodes with n events each, H heads, D width of a node's state, T width of a time encoding.
    """

    def __init__(
        self, *, dim: int, in_dim: int, edge_dim: int, time_dim: int, heads: int, dropout: float = 0.1
    ) -> None:
        """``in_dim``: width of the input state, which is padded with zeros to ``dim``."""
        super().__init__()
        self.dim, self.width, self.heads, self.dropout = dim, dim + time_dim, heads, dropout
        self.key_dims = [in_dim, edge_dim, time_dim]
        head_dim = self.width // heads
        self.query = nn.Linear(in_dim + time_dim, self.width, bias=False)
        self.key = nn.Parameter(torch.empty(heads, head_dim, sum(self.key_dims)))
        self.value = nn.Parameter(torch.empty(heads, head_dim, sum(self.key_dims)))
        self.out = nn.Linear(self.width, self.width)
        self.norm = nn.LayerNorm(self.width)
        for weight in (self.query.weight, self.key, self.value):
            nn.init.normal_(weight, std=math.sqrt(2.0 / (self.width + head_dim)))
        nn.init.xavier_normal_(self.out.weight)

    def forward(self, own: Tensor, now: Tensor, nbr: Tensor, edge_x: Tensor, age: Tensor, valid: Tensor) -> Tensor:
        """Return the attended states (S, D + T).

        own: (S, in_dim), now: (T,) the encoding of age 0, nbr: (S, n, in_dim), edge_x: (S, n, De), age: (S, n, T),
        valid: (S, n), True: an event; False: padding. ``in_dim`` and De may be 0.
        """
        now = now.expand(len(own), -1)
        query = torch.cat([own, now], dim=-1)
        query = self.query(query if own.shape[-1] else query[:1])  # (S, D + T); (1, D + T) if all queries are equal
        query = torch.einsum("shd,hdk->shk", query.unflatten(-1, (self.heads, -1)), self.key)  # (S or 1, H, K)
        parts = [
            (x, query_x)
            for x, query_x in zip((nbr, edge_x, age), query.split(self.key_dims, dim=-1), strict=True)
            if x.shape[-1]
        ]
        logits = torch.stack([_products(x, query_x) for x, query_x in parts]).sum(0)  # (S, n, H)
        attn_mask = valid.unsqueeze(-1)  # True: may attend
        logits = (logits / math.sqrt(self.key.shape[1])).masked_fill(~attn_mask, -1e10)
        weight = logits.softmax(dim=1) * attn_mask  # all 0 without events
        weight = F.dropout(weight, self.dropout, self.training).transpose(1, 2)  # (S, H, n)
        attended = torch.cat([weight @ x for x, _ in parts], dim=-1)  # (S, H, K)
        attended = torch.einsum("shk,hdk->shd", attended, self.value).flatten(1)  # (S, D + T)
        state = torch.cat([F.pad(own, (0, self.dim - own.shape[-1])), now], dim=-1)
        return self.norm(F.dropout(self.out(attended), self.dropout, self.training) + state)


def _products(x: Tensor, query: Tensor) -> Tensor:
    """Return the products (S, n, H) of x (S, n, K) and query (S or 1, H, K)."""
    return x @ query[0].T if len(query) == 1 else x @ query.transpose(1, 2)


class TransformerLayer(nn.Module):
    """Attention and a feed-forward net four times as wide, each with a residual connection.

    ``pre_norm``: norms come before, with GELU (DyGFormer); otherwise after, with ReLU (TCL and CAWN).
    """

    def __init__(self, *, dim: int, heads: int, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.pre_norm = heads, dropout, pre_norm
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        for bias in (self.qkv.bias, self.out.bias):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor, other: Tensor | None = None, valid: Tensor | None = None) -> Tensor:
        """Return the states (S, L, D) after self-attention, or cross-attention to ``other`` (S, K, D) if given.

        valid: (S, L or K), True: may be attended to; None: all. At least one per row is True.
        """
        if self.pre_norm:
            x = x + self._drop(self._attend(self.norm1(x), None if other is None else self.norm1(other), valid))
            return x + self._drop(self.fc2(self._drop(F.gelu(self.fc1(self.norm2(x))))))
        x = self.norm1(x + self._drop(self._attend(x, other, valid)))
        return self.norm2(x + self._drop(self.fc2(self._drop(F.relu(self.fc1(x))))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _attend(self, x: Tensor, other: Tensor | None, valid: Tensor | None) -> Tensor:
        dim = x.shape[-1]
        if other is None:
            q, k, v = self.qkv(x).split(dim, dim=-1)
        else:
            q = F.linear(x, self.qkv.weight[:dim], self.qkv.bias[:dim])
            k, v = F.linear(other, self.qkv.weight[dim:], self.qkv.bias[dim:]).split(dim, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))  # (S, H, L or K, d)
        attn_mask = None if valid is None else valid[:, None, None, :]
        drop = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=drop)
        return self.out(y.transpose(1, 2).flatten(-2))


class MergeHead(nn.Module):
    """Score of a pair: an MLP on both embeddings, concatenated."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2 * dim, dim)
        self.fc2 = nn.Linear(dim, 1)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return the logits (...,) of embeddings (..., D), whose shapes broadcast."""
        src, dst = torch.broadcast_tensors(src, dst)
        return self.fc2(F.relu(self.fc1(torch.cat([src, dst], dim=-1)))).squeeze(-1)


def make_mlp(in_dim: int, hidden_dim: int, out_dim: int) -> nn.Sequential:
    """Build a linear layer, ReLU, a linear layer."""
    return nn.Sequential(nn.Linear(in_dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, out_dim))


def ranking_loss(logits: Tensor) -> Tensor:
    """Return the softmax cross-entropy (B,) of the true candidate, the first; logits (B, M)."""
    return -logits.log_softmax(dim=1)[:, 0]
