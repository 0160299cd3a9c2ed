"""Parts that several models are made of: checks of settings, the encoding of elapsed times, attention, the score."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import SettingError
from cordgt.models.cosines import cosines


def check_sizes(settings: Any, *names: str) -> None:
    """SettingError where one of these settings is less than 1."""
    for name in names:
        if getattr(settings, name) < 1:
            raise SettingError(f"{name}={getattr(settings, name)}: it is at least 1.")


def check_from_zero(settings: Any, *names: str) -> None:
    """SettingError where one of these settings is negative or no number."""
    for name in names:
        if not 0 <= getattr(settings, name) < math.inf:
            raise SettingError(f"{name}={getattr(settings, name)}: it is a number from 0 up.")


def check_dropout(settings: Any) -> None:
    """SettingError where dropout is no share."""
    if not 0 <= settings.dropout < 1:
        raise SettingError(f"dropout={settings.dropout}: it lies between 0 and 1.")


def check_heads(width: int, heads: int, what: str) -> None:
    """SettingError where so many heads cannot share the width evenly; ``what`` is what the width is called."""
    if width % heads:
        raise SettingError(f"heads={heads}: {what} is {width}, which so many heads cannot share evenly.")


def features(x: Tensor | None, like: Tensor) -> Tensor:
    """The features, or none of them: (..., 0) beside ``like`` (...,) where the stream has none."""
    return torch.zeros(*like.shape, 0, device=like.device) if x is None else x


class TimeEncoding(nn.Module):
    """``cos(t w + b)`` of an elapsed time: TGAT's encoding, which most rivals share.

    Frequencies start at 1 and go down to 1e-9, spread evenly in their logarithm; phases start at 0. Both are learnt
    unless ``learnt`` is False, as in GraphMixer.
    """

    frequency: Tensor
    phase: Tensor

    def __init__(self, dim: int, *, learnt: bool = True) -> None:
        super().__init__()
        # in float64 and rounded once: the same start everywhere
        frequency = (10.0 ** -torch.linspace(0, 9, dim, dtype=torch.float64)).float()
        for name, value in (("frequency", frequency), ("phase", torch.zeros(dim))):
            if learnt:
                self.register_parameter(name, nn.Parameter(value))
            else:  # no parameter, so that an optimiser has a state for every parameter that it is given
                self.register_buffer(name, value)

    def forward(self, elapsed: Tensor) -> Tensor:
        """(..., dim) of elapsed times (...,), which are differences taken in float64.

        The product and the sum are rounded one after the other, so that every device turns by the same angle.
        """
        return cosines(elapsed, self.frequency, self.phase)


class TemporalAttention(nn.Module):
    """TGAT's attention of a node over its events: the query is the node now, keys and values are neighbour, event, age.

    One query hears each set of events, so the maps of keys and values move to the query's side: ``q (W x) = (q W) x``
    and ``sum a (W x) = W (sum a x)``. No event is ever projected, which saves nearly all of the work.

    Differs: a node without events hears nothing. The released code lets it average its padding, whose age it takes
    for the time since zero.

    Shapes: S nodes with n events each, H heads, D width of a node's state, T of a time encoding.
    """

    def __init__(
        self, *, dim: int, in_dim: int, edge_dim: int, time_dim: int, heads: int, dropout: float = 0.1
    ) -> None:
        """``in_dim`` is how much of a state of width ``dim`` can differ from 0; the rest is filled up with zeros."""
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
        """The attended states (S, D + T) of nodes, from what they are and what they met.

        own: (S, in_dim), now: (T,) the encoding of age 0, nbr: (S, n, in_dim), edge_x: (S, n, De), age: (S, n, T),
        valid: (S, n), True where an event stands. ``in_dim`` and De may be 0.
        """
        now = now.expand(len(own), -1)
        asked = torch.cat([own, now], dim=-1)
        asked = self.query(asked if own.shape[-1] else asked[:1])  # (S, D + T); (1, D + T) where all ask the same
        asked = torch.einsum("shd,hdk->shk", asked.unflatten(-1, (self.heads, -1)), self.key)  # (S or 1, H, K)
        heard = [
            (x, asked_x)
            for x, asked_x in zip((nbr, edge_x, age), asked.split(self.key_dims, dim=-1), strict=True)
            if x.shape[-1]
        ]
        logits = torch.stack([_products(x, asked_x) for x, asked_x in heard]).sum(0)  # (S, n, H)
        hears = valid.unsqueeze(-1)
        logits = (logits / math.sqrt(self.key.shape[1])).masked_fill(~hears, -1e10)
        weight = logits.softmax(dim=1) * hears  # 0 throughout where there is no event
        weight = F.dropout(weight, self.dropout, self.training).transpose(1, 2)  # (S, H, n)
        told = torch.cat([weight @ x for x, _ in heard], dim=-1)  # (S, H, K)
        told = torch.einsum("shk,hdk->shd", told, self.value).flatten(1)  # (S, D + T)
        state = torch.cat([F.pad(own, (0, self.dim - own.shape[-1])), now], dim=-1)
        return self.norm(F.dropout(self.out(told), self.dropout, self.training) + state)


def _products(x: Tensor, asked: Tensor) -> Tensor:
    """``x (S, n, K)`` times ``asked (S or 1, H, K)`` as (S, n, H); one product for all where they ask the same."""
    return x @ asked[0].T if len(asked) == 1 else x @ asked.transpose(1, 2)


class TransformerLayer(nn.Module):
    """Attention and a feed-forward net four times as wide, each with its residual.

    ``pre_norm``: norms come before (with GELU, as in DyGFormer) and not after (with ReLU, as in TCL and CAWN).
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
        """States (S, L, D) after hearing themselves or, where given, ``other`` (S, K, D).

        valid: (S, L or K), True: is heard; None: all are. At least one is.
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
        hears = None if valid is None else valid[:, None, None, :]
        drop = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=hears, dropout_p=drop)
        return self.out(y.transpose(1, 2).flatten(-2))


class MergeHead(nn.Module):
    """The score of a pair from both embeddings: an MLP on the two, side by side."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2 * dim, dim)
        self.fc2 = nn.Linear(dim, 1)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, src: Tensor, dst: Tensor) -> Tensor:
        """Logits (...,) of embeddings (..., D), whose shapes broadcast."""
        src, dst = torch.broadcast_tensors(src, dst)
        return self.fc2(F.relu(self.fc1(torch.cat([src, dst], dim=-1)))).squeeze(-1)


def two_layers(width: int, hidden: int, out: int) -> nn.Sequential:
    """A small network: a layer, ReLU, a layer."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))


def true_among_all(logits: Tensor) -> Tensor:
    """(B,) cross-entropy of the first candidate, the true one, among all of its query; logits (B, M)."""
    return -logits.log_softmax(dim=1)[:, 0]
