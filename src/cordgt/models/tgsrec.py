"""TGSRec: attention over sampled events, on an embedding that is learnt for each node id.

Fan, Liu, Zhang, Xiong, Zheng, Yu: Continuous-Time Sequential Recommendation with Temporal Graph Collaborative
Transformer, CIKM 2021.

Axes as in `tgat`: B queries, R roots of a query, n events a node, C slots of a tree, D width of a state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import check_choice
from cordgt.history.context import SAMPLINGS, TreeShape
from cordgt.history.queries import History
from cordgt.models.tgat import AgedTreeReader, TgatLayer, TreeAttentionModel
from cordgt.models.two_tower import PerNodeReader
from cordgt.nn.layers import MergeHead, TimeEncoding, check_dropout, check_from_zero, check_heads, check_sizes


@dataclass(frozen=True)
class TgsrecSettings:
    """Settings of TGSRec."""

    num_neighbors: int = 20  # n, events sampled for every node of a tree
    layers: int = 2  # also the number of hops
    heads: int = 2
    hidden: int = 172  # D
    time_dim: int = 100
    dropout: float = 0.1
    sampling: str = "uniform"  # as in the paper; "recent": the latest events
    num_embeddings: int = 16384  # of the embedding table; if there are more nodes, some share a row
    decay: float = 0.1  # weight of the table's norm in the loss

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_sizes(self, "num_neighbors", "layers", "heads", "hidden", "time_dim", "num_embeddings")
        check_dropout(self)
        check_heads(self.hidden + self.time_dim, self.heads, "hidden + time_dim")
        check_from_zero(self, "decay")


@dataclass(frozen=True)
class IdTrees:
    """Sampled trees, with the row of every node in the embedding table."""

    row: Tensor  # (B, R, C) int64; `rows`, one past the last, for padding and for a root without history
    age: Tensor  # (B, R, C-1) float64, from the slot's event to its parent's, or to the query
    valid: Tensor  # (B, R, C-1) True: an event; False: padding


@dataclass(frozen=True)
class IdTreeReader(PerNodeReader[IdTrees]):
    """Samples trees. Nodes without history share one embedding row."""

    trees: AgedTreeReader
    num_embeddings: int

    def read(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> IdTrees:
        context, trees = self.trees.sample(history, node, t, cut)
        known = torch.cat([trees.valid[..., :1], trees.valid], dim=-1)  # a root with history has a first event
        row = torch.where(known, context.node.remainder(self.num_embeddings), self.num_embeddings)
        return IdTrees(row, trees.age, trees.valid)


class Tgsrec(TreeAttentionModel):
    """TGAT's layers, from an embedding table up. A layer merges with the state of the layer before.

    Features of nodes and events are not used: the paper has none.
    """

    reader: IdTreeReader
    uses_node_ids = True
    uses_features = False
    learns_ranking = True
    max_pairs_per_batch = 300

    def __init__(self, settings: TgsrecSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        s = settings
        self.n, self.decay = s.num_neighbors, s.decay
        self.reader = IdTreeReader(
            AgedTreeReader(TreeShape((s.num_neighbors,) * s.layers), s.sampling), s.num_embeddings
        )
        self.table = nn.Parameter(torch.empty(s.num_embeddings + 1, s.hidden).uniform_(-1, 1))
        self.time = TimeEncoding(s.time_dim)
        self.layers = nn.ModuleList(
            TgatLayer(
                dim=s.hidden,
                in_dim=s.hidden,
                node_dim=s.hidden,
                edge_dim=0,
                time_dim=s.time_dim,
                heads=s.heads,
                dropout=s.dropout,
            )
            for _ in range(s.layers)
        )
        self.head = MergeHead(s.hidden)

    def losses(self, batch: IdTrees) -> Tensor:
        """Bayesian personalised ranking (B,), plus the norm of the table for each query."""
        logits = self(batch)
        margin = F.logsigmoid(logits[:, :1] - logits[:, 1:])  # (B, M-1)
        return self.decay * torch.linalg.vector_norm(self.table) - margin.mean(dim=1)

    def encode(self, batch: IdTrees) -> Tensor:
        return self.encode_trees(F.embedding(batch.row, self.table), None, batch.age, batch.valid, None)
