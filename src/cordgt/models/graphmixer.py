"""GraphMixer: an MLP-Mixer over a node's latest events, and the mean features of its neighbors. No attention.

Cong, Zhang, Kang, Yuan, Wu, Zhou, Tong, Mahdavi: Do We Really Need Complicated Model Architectures For Temporal
Networks?, ICLR 2023.

Axes: B queries, R nodes of a query (the source, then its candidates), n events a node, D width, De event features,
Dn node features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.history.queries import History, Queries
from cordgt.history.recent import recent_events, recent_neighbor_mean
from cordgt.models.two_tower import TwoTowerModel
from cordgt.nn.layers import MergeHead, TimeEncoding, check_dropout, check_positive, features_or_empty


@dataclass(frozen=True)
class GraphmixerSettings:
    """Settings of GraphMixer."""

    num_neighbors: int = 20  # n, latest events for the link encoder
    time_gap: int = 2000  # latest events the node encoder averages over; events, not seconds
    layers: int = 2
    hidden: int = 172  # D; at least the number of node features
    time_dim: int = 100
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check_positive(self, "num_neighbors", "time_gap", "layers", "hidden", "time_dim")
        check_dropout(self)


@dataclass(frozen=True)
class GraphmixerBatch:
    """A node's latest events, latest first, and its own features plus the mean of its neighbors'."""

    edge_x: Tensor  # (B, R, n, De)
    age: Tensor  # (B, R, n) float64
    valid: Tensor  # (B, R, n) True: an event; False: padding
    node_x: Tensor  # (B, R, Dn)


@dataclass(frozen=True)
class GraphmixerReader:
    """Reads the ``n`` latest events, and the mean of the node features over ``time_gap`` of them."""

    n: int
    time_gap: int

    def read(self, history: History, queries: Queries) -> GraphmixerBatch:
        node, cut = queries.endpoints, queries.cut[:, None]
        events = recent_events(history.index, node, queries.t[:, None], cut, self.n)
        node_x = features_or_empty(history.node_features(node), node)
        if history.node_x is not None:
            node_x = node_x + recent_neighbor_mean(history.index, history.node_x, node, cut, self.time_gap)
        edge_x = features_or_empty(history.edge_features(events.pos), events.pos)
        return GraphmixerBatch(edge_x, events.elapsed, events.valid, node_x)


class MixerLayer(nn.Module):
    """A mixer layer: an MLP across the events of each channel, then one across the channels of each event."""

    def __init__(self, *, n: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(n), nn.LayerNorm(dim)
        self.events1, self.events2 = nn.Linear(n, max(n // 2, 1)), nn.Linear(max(n // 2, 1), n)
        self.channels1, self.channels2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(S, n, D) to (S, n, D)."""
        x = x + self._mlp(self.norm1(x.transpose(1, 2)), self.events1, self.events2).transpose(1, 2)
        return x + self._mlp(self.norm2(x), self.channels1, self.channels2)

    def _mlp(self, x: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
        x = F.dropout(F.gelu(first(x)), self.dropout, self.training)
        return F.dropout(second(x), self.dropout, self.training)


class Graphmixer(TwoTowerModel):
    """A linear map of two parts: the link encoder's mean over events, and the node encoder's features.

    Padding counts as events without features and takes part in mixing and mean, as in the released code. So the mean
    also depends on the number of events. No one-hot ids, as in the CorDGT paper.
    """

    reader: GraphmixerReader

    def __init__(self, settings: GraphmixerSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        dim = max(settings.hidden, node_dim)
        self.reader = GraphmixerReader(settings.num_neighbors, settings.time_gap)
        self.time = TimeEncoding(settings.time_dim, learnable=False)
        self.project = nn.Linear(edge_dim + settings.time_dim, dim)
        self.layers = nn.ModuleList(
            MixerLayer(n=settings.num_neighbors, dim=dim, dropout=settings.dropout) for _ in range(settings.layers)
        )
        self.out = nn.Linear(dim + node_dim, dim)
        self.head = MergeHead(dim)

    def encode(self, batch: GraphmixerBatch) -> Tensor:
        age = self.time(batch.age) * batch.valid.unsqueeze(-1)  # (B, R, n, T), 0 for padding
        x = self.project(torch.cat([batch.edge_x, age], dim=-1)).flatten(0, 1)  # (B*R, n, D)
        for layer in self.layers:
            x = layer(x)
        x = x.mean(dim=1).unflatten(0, batch.valid.shape[:2])
        return self.out(torch.cat([x, batch.node_x], dim=-1))
