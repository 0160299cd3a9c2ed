"""TGAT: layers of attention over sampled events, each told how long ago it was.

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
from cordgt.models.base import LinkModel
from cordgt.models.parts import (
    MergeHead,
    TemporalAttention,
    TimeEncoding,
    check_dropout,
    check_heads,
    check_sizes,
    features,
)
from cordgt.past.context import SAMPLINGS, Context, TreeShape, sample_trees
from cordgt.past.history import History, Queries


@dataclass(frozen=True)
class TgatSettings:
    """Settings of TGAT."""

    neighbours: int = 20  # n, events drawn for every node of a tree
    layers: int = 2  # and as many hops
    heads: int = 2
    hidden: int = 172  # D; at least as many as there are node features
    time_dim: int = 100  # T
    dropout: float = 0.1
    sampling: str = "uniform"  # as in its paper; "recent": the latest events; "mixed": half of each

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_sizes(self, "neighbours", "layers", "heads", "hidden", "time_dim")
        check_dropout(self)
        check_heads(self.hidden + self.time_dim, self.heads, "hidden + time_dim")


@dataclass(frozen=True)
class Trees:
    """What is read of the trees. Slot 0 is the root; the children of slot p are slots 1 + p n to (p + 1) n."""

    node_x: Tensor  # (B, R, C, Dn)
    edge_x: Tensor  # (B, R, C-1, De), of the event that drew the slot
    age: Tensor  # (B, R, C-1) float64, from the slot's event to its parent's, or to the question
    valid: Tensor  # (B, R, C-1) True: an event stands there


@dataclass(frozen=True)
class AgedTreeReader:
    """Samples the trees and reads how much older each event is than the one that led to it."""

    shape: TreeShape
    sampling: str

    def pairs(self, history: History, queries: Queries) -> Trees:
        """The trees of the source and of its candidates: R = 1 + M."""
        return self.read(history, queries.ends, queries.t, queries.cut)[1]

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Trees:
        """The nodes' own trees: R = 1."""
        return self.read(history, node[:, None], t, cut)[1]

    def read(self, history: History, root: Tensor, t: Tensor, cut: Tensor) -> tuple[Context, Trees]:
        """The trees of roots (B, R) as they were sampled, and what is read of them."""
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


class Tgat(LinkModel):
    """Layer by layer, from the leaves of the trees to their roots.

    Differs: a root's events are drawn once for all layers, where the released code draws anew for each.
    """

    reader: AgedTreeReader
    pairs_at_once = 400

    def __init__(self, settings: TgatSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.n = settings.neighbours
        self.reader = AgedTreeReader(TreeShape((self.n,) * settings.layers), settings.sampling)
        dim = max(settings.hidden, node_dim)
        dim += -(dim + settings.time_dim) % settings.heads  # where node features are many: still for all heads alike
        self.time = TimeEncoding(settings.time_dim)
        self.layers = nn.ModuleList(
            TgatLayer(
                dim=dim,
                in_dim=dim if k else node_dim,  # before the first layer a state is the node's features
                node_dim=node_dim,
                edge_dim=edge_dim,
                time_dim=settings.time_dim,
                heads=settings.heads,
                dropout=settings.dropout,
            )
            for k in range(settings.layers)
        )
        self.head = MergeHead(dim)

    def forward(self, batch: Trees) -> Tensor:
        """Logits (B, M)."""
        state = self._embed(batch)  # (B, R, D)
        return self.head(state[:, :1], state[:, 1:])

    def embed(self, batch: Trees) -> Tensor:
        """Embeddings (B, D)."""
        return self._embed(batch).squeeze(1)

    def _embed(self, trees: Trees) -> Tensor:
        """The states of the roots after the last layer, (B, R, D)."""
        age, now = self.time(trees.age), self.time(trees.age.new_zeros(()))  # (B, R, C-1, T), (T,)
        state = trees.node_x  # (B, R, slots, D), of fewer and fewer slots
        for layer in self.layers:
            parents = (state.shape[2] - 1) // self.n
            heard = (children(x, parents, self.n) for x in (state[:, :, 1:], trees.edge_x, age, trees.valid))
            own, node_x = (x[:, :, :parents].flatten(0, 2) for x in (state, trees.node_x))
            state = layer(own, now, *heard, node_x).unflatten(0, (*state.shape[:2], parents))
        return state.squeeze(2)


def children(x: Tensor, parents: int, n: int) -> Tensor:
    """Each of the first parents' n children: (B, R, C-1, ...) to (B*R*parents, n, ...)."""
    return x[:, :, : parents * n].unflatten(2, (parents, n)).flatten(0, 2)
