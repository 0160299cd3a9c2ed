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
from cordgt.history.queries import History
from cordgt.models.two_tower import PerNodeReader, TwoTowerModel
from cordgt.nn.layers import (
    MergeHead,
    TemporalAttention,
    TimeEncoding,
    check_dropout,
    check_heads,
    check_sizes,
    features,
)


@dataclass(frozen=True)
class TgatSettings:
    """Settings of TGAT."""

    num_neighbors: int = 20  # n, events sampled for every node of a tree
    layers: int = 2  # also the number of hops
    heads: int = 2
    hidden: int = 172  # D; at least the number of node features
    time_dim: int = 100  # T
    dropout: float = 0.1
    sampling: str = "uniform"  # as in the paper; "recent": the latest events; "mixed": half of each

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_sizes(self, "num_neighbors", "layers", "heads", "hidden", "time_dim")
        check_dropout(self)
        check_heads(self.hidden + self.time_dim, self.heads, "hidden + time_dim")


@dataclass(frozen=True)
class Trees:
    """Sampled trees. Slot 0 is the root; the children of slot p are slots 1 + p n to (p + 1) n."""

    node_x: Tensor  # (B, R, C, Dn)
    edge_x: Tensor  # (B, R, C-1, De), of the event that led to the slot
    age: Tensor  # (B, R, C-1) float64, from the slot's event to its parent's, or to the query
    valid: Tensor  # (B, R, C-1) True: an event; False: padding


@dataclass(frozen=True)
class AgedTreeReader(PerNodeReader[Trees]):
    """Samples trees and reads how much older each event is than the one that led to it."""

    shape: TreeShape
    sampling: str

    def read(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Trees:
        return self.sample(history, node, t, cut)[1]

    def sample(self, history: History, root: Tensor, t: Tensor, cut: Tensor) -> tuple[Context, Trees]:
        """The sampled trees of roots (B, R), and the network's input made from them."""
        index, n = history.index, self.shape.fanout[0]
        trees = sample_trees(
            index, self.shape, root, cut[:, None], seed=history.seed, epoch=history.epoch, sampling=self.sampling
        )
        pos = trees.pos[..., 1:]
        valid = pos >= 0
        then = index.elapsed[pos.clamp_min(0)] if len(index.elapsed) else torch.zeros_like(pos).double()
        n_parents = pos.shape[-1] // n
        since = torch.cat([t[:, None, None].expand(*root.shape, 1), then[..., : n_parents - 1]], dim=-1)
        return trees, Trees(
            node_x=features(history.node_features(trees.node), trees.node),
            edge_x=features(history.edge_features(pos), pos),
            age=torch.where(valid, since.repeat_interleave(n, dim=-1) - then, 0.0),
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
        """States (S, D); shapes as in `TemporalAttention`, and node_x (S, Dn)."""
        state = self.attention(own, now, nbr, edge_x, age, valid)
        return self.fc2(F.relu(self.fc1(torch.cat([state, node_x], dim=-1))))


class TreeAttentionModel(TwoTowerModel):
    """Layers of attention from the leaves of a tree to its root. A subclass calls `encode_trees` in its `encode`."""

    time: TimeEncoding
    layers: nn.ModuleList
    n: int

    def encode_trees(
        self, state: Tensor, edge_x: Tensor | None, age: Tensor, valid: Tensor, node_x: Tensor | None
    ) -> Tensor:
        """States (B, R, D) of the roots after the last layer, from the first state of every slot.

        state: (B, R, C, D); the rest as in `Trees`. edge_x None: no event features. node_x None: a layer merges with
        the state of the layer before.
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
    """The n children of each of the first parents: (B, R, C-1, ...) to (B*R*parents, n, ...)."""
    return x[:, :, : n_parents * n].unflatten(2, (n_parents, n)).flatten(0, 2)


class Tgat(TreeAttentionModel):
    """TGAT. The first state of a node is its features.

    Differs: a root's events are sampled once for all layers; the released code samples again for each layer.
    """

    reader: AgedTreeReader
    max_pairs_per_batch = 400

    def __init__(self, settings: TgatSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.n = settings.num_neighbors
        self.reader = AgedTreeReader(TreeShape((self.n,) * settings.layers), settings.sampling)
        dim = max(settings.hidden, node_dim)
        dim += -(dim + settings.time_dim) % settings.heads  # many node features: round up to a multiple of the heads
        self.time = TimeEncoding(settings.time_dim)
        self.layers = nn.ModuleList(
            TgatLayer(
                dim=dim,
                in_dim=dim if k else node_dim,
                node_dim=node_dim,
                edge_dim=edge_dim,
                time_dim=settings.time_dim,
                heads=settings.heads,
                dropout=settings.dropout,
            )
            for k in range(settings.layers)
        )
        self.head = MergeHead(dim)

    def encode(self, batch: Trees) -> Tensor:
        return self.encode_trees(batch.node_x, batch.edge_x, batch.age, batch.valid, batch.node_x)
