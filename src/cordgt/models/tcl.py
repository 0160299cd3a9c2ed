"""TCL: self-attention over either end's events, then cross-attention between both ends.

Wang, Chang, Li, Chu, Li, Zhang, He, Song, Zhou, Yang: TCL: Transformer-based Dynamic Graph Modelling via Contrastive
Learning, 2021; after the implementation in DyGLib, which the CorDGT paper used.

Axes: B queries, M candidates, R nodes of a query (the source, then its candidates), n events a node, L = n + 1 tokens,
D width, De event features, Dn node features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import check_choice
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


@dataclass(frozen=True)
class TclSettings:
    """Settings of TCL."""

    num_neighbors: int = 20  # n, latest events of a node
    layers: int = 2
    heads: int = 2
    hidden: int = 172  # D
    time_dim: int = 100
    dropout: float = 0.1
    loss: str = "binary"  # cross-entropy, as in DyGLib; "contrastive": InfoNCE, as in its own paper

    def __post_init__(self) -> None:
        check_choice("loss", self.loss, ("contrastive", "binary"))
        check_positive(self, "num_neighbors", "layers", "heads", "hidden", "time_dim")
        check_dropout(self)
        check_heads(self.hidden, self.heads, "hidden")


@dataclass(frozen=True)
class TclBatch:
    """The tokens of a node's stream: the node itself, then its events, latest first."""

    node_x: Tensor  # (B, R, L, Dn)
    edge_x: Tensor  # (B, R, L, De)
    age: Tensor  # (B, R, L) float64
    valid: Tensor  # (B, R, L) True: a node; False: padding


@dataclass(frozen=True)
class TclReader:
    """Reads the latest events of a node."""

    n: int

    def read(self, history: History, queries: Queries) -> TclBatch:
        ends = queries.endpoints
        events = recent_events(history.index, ends, queries.t[:, None], queries.cut[:, None], self.n)
        node = torch.cat([ends.unsqueeze(-1), events.node], dim=-1)  # (B, R, L)
        pos = F.pad(events.pos, (1, 0), value=-1)
        return TclBatch(
            node_x=features_or_empty(history.node_features(node), node),
            edge_x=features_or_empty(history.edge_features(pos), pos),
            age=F.pad(events.elapsed, (1, 0)),
            valid=node >= 0,
        )


class Tcl(LinkModel):
    """Tokens of node, event, time and depth. Each layer applies self-attention, then cross-attention.

    Both steps of a layer share their weights. The first token of a stream becomes its node's embedding, so the last
    cross-attention computes that token alone.

    Differs: the contrastive loss (InfoNCE) contrasts the query's own candidates only, because cross-attention makes a
    node's state depend on the other end. So AP over several sources is lower.
    """

    reader: TclReader
    max_pairs_per_batch = 1000

    def __init__(self, settings: TclSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        dim = settings.hidden
        self.learns_ranking = settings.loss == "contrastive"
        self.reader = TclReader(settings.num_neighbors)
        self.time = TimeEncoding(settings.time_dim)
        self.project = nn.Linear(node_dim + edge_dim + settings.time_dim, dim)  # the sum of one map for each
        self.depth = nn.Parameter(torch.randn(settings.num_neighbors + 1, dim))
        self.layers = nn.ModuleList(
            TransformerLayer(dim=dim, heads=settings.heads, dropout=settings.dropout, pre_norm=False)
            for _ in range(settings.layers)
        )
        self.out = nn.Linear(dim, dim)
        self.head = MergeHead(dim)

    def forward(self, batch: TclBatch) -> Tensor:
        n = batch.valid.shape[1] - 1
        tokens = self._tokens(batch)  # (B, R, L, D)
        src, dst = (part.flatten(0, 1) for part in (tokens[:, :1], tokens[:, 1:]))  # (B, L, D), (B*M, L, D)
        src_valid, dst_valid = (part.flatten(0, 1) for part in (batch.valid[:, :1], batch.valid[:, 1:]))
        for k, layer in enumerate(self.layers):
            src, dst = layer(src, valid=src_valid), layer(dst, valid=dst_valid)
            if k == 0:  # so far the source's stream is the same for all its candidates
                src, src_valid = src.repeat_interleave(n, dim=0), src_valid.repeat_interleave(n, dim=0)
            query = slice(0, 1 if k == len(self.layers) - 1 else None)
            src, dst = layer(src[:, query], dst, dst_valid), layer(dst[:, query], src, src_valid)
        src, dst = (self.out(part[:, 0]).unflatten(0, (-1, n)) for part in (src, dst))  # (B, M, D)
        return self.head(src, dst)

    def embed(self, batch: TclBatch) -> Tensor:
        """Return embeddings (B, D) of single nodes: self-attention only."""
        state, valid = self._tokens(batch).flatten(0, 1), batch.valid.flatten(0, 1)
        for layer in self.layers:
            state = layer(state, valid=valid)
        return self.out(state[:, 0])

    def _tokens(self, batch: TclBatch) -> Tensor:
        """Return (B, R, L, D)."""
        return self.project(torch.cat([batch.node_x, batch.edge_x, self.time(batch.age)], dim=-1)) + self.depth
