"""TGAT: layers of attention over sampled events and the encodings of their ages.

Xu, Ruan, Korpeoglu, Kumar, Achan: Inductive Representation Learning on Temporal Graphs, ICLR 2020.

Axes: B queries, R roots of a query (the source, then its candidates), n events a node, C slots of a tree, D width of a
state, T of a time encoding, De event features, Dn node features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import check_choice
from cordgt.history.context import SAMPLINGS, Context, TreeShape, sample_trees
from cordgt.history.queries import History, Queries
from cordgt.models.two_tower import TwoTowerModel
from cordgt.nn.layers import (
    MergeHead,
    TemporalAttention,
    TimeEncoding,
    check_dropout,
    check_heads,
    check_positive,
    features_or_empty,
)


@dataclass(frozen=True)
class TreeAttentionSettings:
    """Settings of models with attention over sampled trees."""

    num_neighbors: int = 20  # n, events sampled for every node of a tree
    layers: int = 2  # also the number of hops
    heads: int = 2
    hidden: int = 172  # D
    time_dim: int = 100  # T
    dropout: float = 0.1
    sampling: str = "uniform"  # as in the paper; "recent": the latest events; "mixed": half of each

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_positive(self, "num_neighbors", "layers", "heads", "hidden", "time_dim")
        check_dropout(self)
        check_heads(self.hidden + self.time_dim, self.heads, "hidden + time_dim")

    @property
    def shape(self) -> TreeShape:
        return TreeShape((self.num_neighbors,) * self.layers)


@dataclass(frozen=True)
class TgatSettings(TreeAttentionSettings):
    """Settings of TGAT. ``hidden`` is raised to the number of node features if it is smaller."""


@dataclass(frozen=True)
class TgatBatch:
    """Sampled trees. Slot 0 is the root; the children of slot p are slots 1 + p n to (p + 1) n."""

    node_x: Tensor  # (B, R, C, Dn)
    edge_x: Tensor  # (B, R, C-1, De), of the event that led to the slot
    age: Tensor  # (B, R, C-1) float64, from the slot's event to its parent's, or to the query
    valid: Tensor  # (B, R, C-1) True: an event; False: padding


@dataclass(frozen=True)
class TgatReader:
    """Samples trees and reads how much older each event is than the one that led to it."""

    shape: TreeShape
    sampling: str

    def read(self, history: History, queries: Queries) -> TgatBatch:
        return self.sample(history, queries)[1]

    def sample(self, history: History, queries: Queries) -> tuple[Context, TgatBatch]:
        """Return the sampled trees (B, R, C), and the network's input made from them."""
        index, root, n = history.index, queries.endpoints, self.shape.fanout[0]
        cut = queries.cut[:, None]
        trees = sample_trees(
            index, self.shape, root, cut, seed=history.seed, epoch=history.epoch, sampling=self.sampling
        )
        pos = trees.pos[..., 1:]
        valid = pos >= 0
        event_t = index.elapsed[pos.clamp_min(0)] if len(index.elapsed) else torch.zeros_like(pos).double()
        n_parents = pos.shape[-1] // n
        query_t = queries.t[:, None, None].expand(*root.shape, 1)
        parent_t = torch.cat([query_t, event_t[..., : n_parents - 1]], dim=-1)
        return trees, TgatBatch(
            node_x=features_or_empty(history.node_features(trees.node), trees.node),
            edge_x=features_or_empty(history.edge_features(pos), pos),
            age=torch.where(valid, parent_t.repeat_interleave(n, dim=-1) - event_t, 0.0),
            valid=valid,
        )


class TgatLayer(nn.Module):
    """Attention over a node's events, merged with the node's own features."""

    def __init__(
        self, *, dim: int, in_dim: int, node_dim: int, edge_dim: int, time_dim: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.attention = TemporalAttention(
            dim=dim, in_dim=in_dim, edge_dim=edge_dim, time_dim=time_dim, heads=heads, dropout=dropout
        )
        self.fc1 = nn.Linear(dim + time_dim + node_dim, dim)
        self.fc2 = nn.Linear(dim, dim)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_normal_(layer.weight)

    def forward(
        self, own: Tensor, now: Tensor, nbr: Tensor, edge_x: Tensor, age: Tensor, valid: Tensor, node_x: Tensor
    ) -> Tensor:
        """Return states (S, D); shapes as in `TemporalAttention`, and node_x (S, Dn)."""
        state = self.attention(own, now, nbr, edge_x, age, valid)
        return self.fc2(F.relu(self.fc1(torch.cat([state, node_x], dim=-1))))


class TreeAttentionModel(TwoTowerModel):
    """Layers of attention from the leaves of a tree to its root. A subclass calls `encode_trees` in its `encode`."""

    time: TimeEncoding
    layers: nn.ModuleList
    n: int

    @staticmethod
    def make_layers(
        settings: TreeAttentionSettings, *, dim: int, in_dim: int, node_dim: int, edge_dim: int
    ) -> nn.ModuleList:
        """Make the layers. ``in_dim``: width of a slot's first state."""
        s = settings
        return nn.ModuleList(
            TgatLayer(
                dim=dim,
                in_dim=dim if k else in_dim,
                node_dim=node_dim,
                edge_dim=edge_dim,
                time_dim=s.time_dim,
                heads=s.heads,
                dropout=s.dropout,
            )
            for k in range(s.layers)
        )

    def encode_trees(
        self, state: Tensor, edge_x: Tensor | None, age: Tensor, valid: Tensor, node_x: Tensor | None
    ) -> Tensor:
        """Return states (B, R, D) of the roots after the last layer, from the first state of every slot.

        state: (B, R, C, D); the rest as in `TgatBatch`. edge_x None: no event features. node_x None: a layer merges
        with the state of the layer before.
        """
        encoded, now = self.time(age), self.time(age.new_zeros(()))  # (B, R, C-1, T), (T,)
        edge_x = encoded[..., :0] if edge_x is None else edge_x
        for layer in self.layers:  # each layer has fewer slots than the one before
            n_parents = (state.shape[2] - 1) // self.n
            context = (_children(x, n_parents, self.n) for x in (state[:, :, 1:], edge_x, encoded, valid))
            own = state[:, :, :n_parents].flatten(0, 2)
            merged = own if node_x is None else node_x[:, :, :n_parents].flatten(0, 2)
            state = layer(own, now, *context, merged).unflatten(0, (*state.shape[:2], n_parents))
        return state.squeeze(2)


def _children(x: Tensor, n_parents: int, n: int) -> Tensor:
    """Return the n children of each of the first parents: (B, R, C-1, ...) to (B*R*parents, n, ...)."""
    return x[:, :, : n_parents * n].unflatten(2, (n_parents, n)).flatten(0, 2)


class Tgat(TreeAttentionModel):
    """TGAT. The first state of a node is its features.

    Differs: a root's events are sampled once for all layers; the released code samples again for each layer.
    """

    reader: TgatReader
    max_pairs_per_batch = 400

    def __init__(self, settings: TgatSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.n = settings.num_neighbors
        self.reader = TgatReader(settings.shape, settings.sampling)
        dim = max(settings.hidden, node_dim)
        dim += -(dim + settings.time_dim) % settings.heads  # many node features: round up to a multiple of the heads
        self.time = TimeEncoding(settings.time_dim)
        self.layers = self.make_layers(settings, dim=dim, in_dim=node_dim, node_dim=node_dim, edge_dim=edge_dim)
        self.head = MergeHead(dim)

    def encode(self, batch: TgatBatch) -> Tensor:
        return self.encode_trees(batch.node_x, batch.edge_x, batch.age, batch.valid, batch.node_x)
