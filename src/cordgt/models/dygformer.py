"""DyGFormer: a transformer over patches of both ends' latest events, with counts of neighbors that co-occur.

Yu, Sun, Du, Lv: Towards Better Dynamic Graph Learning: New Architecture and Unified Library, NeurIPS 2023.

Axes: B queries, M candidates, R nodes of a query (the source, then its candidates), L positions of a sequence,
P patches, D width of a token, De event features, Dn node features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import SettingError
from cordgt.history.cooccurrence import count_occurrences
from cordgt.history.queries import History, Queries
from cordgt.history.recent import recent_events
from cordgt.models.base import LinkModel
from cordgt.nn.layers import (
    MergeHead,
    TimeEncoding,
    TransformerLayer,
    check_dropout,
    check_heads,
    check_positive,
    features_or_empty,
)

CHANNELS = 4  # node, event, time, co-occurrence


@dataclass(frozen=True)
class DygformerSettings:
    """Settings of DyGFormer."""

    max_seq_len: int = 32  # L: the node itself and its latest events
    patch_size: int = 1  # positions in a token
    channel_dim: int = 50  # of each of the four channels; a token is four times as wide
    layers: int = 2
    heads: int = 2
    hidden: int = 172  # of an embedding
    time_dim: int = 100
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "patch_size", "channel_dim", "layers", "heads", "hidden", "time_dim")
        check_dropout(self)
        check_heads(CHANNELS * self.channel_dim, self.heads, f"{CHANNELS} * channel_dim")
        if self.max_seq_len < 2 or self.max_seq_len % self.patch_size:
            raise SettingError(
                f"max_seq_len={self.max_seq_len}: it must be at least 2 and divisible by patch_size={self.patch_size}."
            )


@dataclass(frozen=True)
class DygformerBatch:
    """Both ends' sequences: the node itself, its latest events from the oldest on, padding."""

    node_x: Tensor  # (B, R, L, Dn)
    edge_x: Tensor  # (B, R, L, De)
    age: Tensor  # (B, R, L) float64
    valid: Tensor  # (B, R, L) True: a node; False: padding
    in_own: Tensor  # (B, R, L) int64, occurrences of the position's node in its own sequence
    in_other: tuple[
        Tensor, Tensor
    ]  # (B, M, L) int64: the source's nodes in the candidates', and theirs in the source's


@dataclass(frozen=True)
class DygformerReader:
    """Reads the sequences and counts the nodes that occur in both."""

    length: int

    def read(self, history: History, queries: Queries) -> DygformerBatch:
        """R = 1 + M: the source's sequence is read once for all its candidates."""
        index, ends = history.index, queries.endpoints
        t, cut = queries.t[:, None], queries.cut[:, None]
        events = recent_events(index, ends, t, cut, self.length - 1, oldest_first=True)
        node = torch.cat([ends.unsqueeze(-1), events.node], dim=-1)  # (B, R, L)
        pos = F.pad(events.pos, (1, 0), value=-1)
        count = partial(count_occurrences, use_numba=index.uses_numba)
        src, dst = node[:, :1], node[:, 1:]
        return DygformerBatch(
            node_x=features_or_empty(history.node_features(node), node),
            edge_x=features_or_empty(history.edge_features(pos), pos),
            age=F.pad(events.elapsed, (1, 0)),
            valid=node >= 0,
            in_own=count(node, node),
            in_other=(count(src, dst), count(dst, src)),
        )


class Channel(nn.Module):
    """A linear map of one kind of feature of a patch; only its bias if the stream has no such features."""

    def __init__(self, in_dim: int, dim: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.map = nn.Linear(patch * in_dim, dim, bias=False) if in_dim else None
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """(..., L, in_dim) to (..., P, dim)."""
        x = x.unflatten(-2, (-1, self.patch)).flatten(-2)
        if self.map is None:
            return self.bias.expand(*x.shape[:-1], -1)
        return F.linear(x, self.map.weight, self.bias)


class Dygformer(LinkModel):
    """Four channels a patch, layers of attention over the patches of both ends together, the mean of each end.

    Padding takes part as positions without features, as in the released code. Differs: a sequence is always padded to
    ``max_seq_len``. The released code pads to the longest of its batch, so that scores depend on the batch.
    """

    reader: DygformerReader
    max_pairs_per_batch = 400

    def __init__(self, settings: DygformerSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        dim, patch = settings.channel_dim, settings.patch_size
        self.reader = DygformerReader(settings.max_seq_len)
        self.time = TimeEncoding(settings.time_dim)
        self.count1, self.count2 = nn.Linear(1, dim), nn.Linear(dim, dim)
        self.node_channel = Channel(node_dim, dim, patch)
        self.edge_channel = Channel(edge_dim, dim, patch)
        self.time_channel = Channel(settings.time_dim, dim, patch)
        self.count_channel = Channel(dim, dim, patch)
        self.layers = nn.ModuleList(
            TransformerLayer(dim=CHANNELS * dim, heads=settings.heads, dropout=settings.dropout, pre_norm=True)
            for _ in range(settings.layers)
        )
        self.out = nn.Linear(CHANNELS * dim, settings.hidden)
        self.head = MergeHead(settings.hidden)

    def forward(self, batch: DygformerBatch) -> Tensor:
        base = self._pair_independent(batch)  # (B, R, P, 3 dim)
        n = batch.valid.shape[1] - 1
        src_in_dst, dst_in_src = batch.in_other
        src = self._tokens(base[:, :1].expand(-1, n, -1, -1), batch.in_own[:, :1], src_in_dst)  # (B, M, P, D)
        dst = self._tokens(base[:, 1:], batch.in_own[:, 1:], dst_in_src)
        states = self._encode(torch.cat([src, dst], dim=2))  # (B, M, 2P, D)
        src, dst = (self.out(part.mean(dim=2)) for part in states.chunk(2, dim=2))
        return self.head(src, dst)

    def embed(self, batch: DygformerBatch) -> Tensor:
        """Return embeddings (B, hidden) of single nodes, with no co-occurrence."""
        tokens = self._tokens(self._pair_independent(batch), batch.in_own, torch.zeros_like(batch.in_own))
        return self.out(self._encode(tokens).mean(dim=2)).squeeze(1)

    def _pair_independent(self, batch: DygformerBatch) -> Tensor:
        """Return the three channels that do not depend on the other end, (B, R, P, 3 dim)."""
        age = self.time(batch.age) * batch.valid.unsqueeze(-1)
        parts = (self.node_channel(batch.node_x), self.edge_channel(batch.edge_x), self.time_channel(age))
        return torch.cat(parts, dim=-1)

    def _tokens(self, base: Tensor, in_own: Tensor, in_other: Tensor) -> Tensor:
        """Return tokens (B, M, P, D). The counts' last layer is linear, so it is applied to the sum."""
        own, other = (F.relu(self.count1(x.unsqueeze(-1).to(base.dtype))) for x in (in_own, in_other))
        both = F.linear(own + other, self.count2.weight, 2 * self.count2.bias)  # (B, M, L, dim)
        return torch.cat([base, self.count_channel(both)], dim=-1)

    def _encode(self, tokens: Tensor) -> Tensor:
        states = tokens.flatten(0, 1)
        for layer in self.layers:
            states = layer(states)
        return states.unflatten(0, tokens.shape[:2])
