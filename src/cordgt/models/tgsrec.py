"""TGSRec: attention over sampled events, on an embedding that is learned for each node id.

Fan, Liu, Zhang, Xiong, Zheng, Yu: Continuous-Time Sequential Recommendation with Temporal Graph Collaborative
Transformer, CIKM 2021.

Axes as in `tgat`: B queries, R roots of a query, n events a node, C slots of a tree, D width of a state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.history.queries import History, Queries
from cordgt.models.tgat import TgatReader, TreeAttentionModel, TreeAttentionSettings
from cordgt.nn.layers import MergeHead, TimeEncoding, check_non_negative, check_positive


@dataclass(frozen=True)
class TgsrecSettings(TreeAttentionSettings):
    """Settings of TGSRec."""

    num_embeddings: int = 16384  # of the embedding table; if there are more nodes, some share a row
    decay: float = 0.1  # weight of the table's norm in the loss

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_embeddings")
        check_non_negative(self, "decay")


@dataclass(frozen=True)
class TgsrecBatch:
    """Sampled trees, with the row of every node in the embedding table."""

    row: Tensor  # (B, R, C) int64; `num_embeddings`, one past the last id, for padding and for a root without history
    age: Tensor  # (B, R, C-1) float64, from the slot's event to its parent's, or to the query
    valid: Tensor  # (B, R, C-1) True: an event; False: padding


@dataclass(frozen=True)
class TgsrecReader:
    """Samples trees. Nodes without history share one embedding row."""

    trees: TgatReader
    num_embeddings: int

    def read(self, history: History, queries: Queries) -> TgsrecBatch:
        context, trees = self.trees.sample(history, queries)
        known = torch.cat([trees.valid[..., :1], trees.valid], dim=-1)  # a root with history has a first event
        row = torch.where(known, context.node.remainder(self.num_embeddings), self.num_embeddings)
        return TgsrecBatch(row, trees.age, trees.valid)


class Tgsrec(TreeAttentionModel):
    """TGAT's layers, from an embedding table up. A layer merges with the state of the layer before.

    Features of nodes and events are not used: the paper has none.
    """

    reader: TgsrecReader
    uses_node_ids = True
    uses_features = False
    learns_ranking = True
    max_pairs_per_batch = 300

    def __init__(self, settings: TgsrecSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        s = settings
        self.n, self.decay = s.num_neighbors, s.decay
        self.reader = TgsrecReader(TgatReader(s.shape, s.sampling), s.num_embeddings)
        self.table = nn.Parameter(torch.empty(s.num_embeddings + 1, s.hidden).uniform_(-1, 1))
        self.time = TimeEncoding(s.time_dim)
        self.layers = self.make_layers(s, dim=s.hidden, in_dim=s.hidden, node_dim=s.hidden, edge_dim=0)
        self.head = MergeHead(s.hidden)

    def losses(self, batch: TgsrecBatch, log_ratio: Tensor | None = None) -> Tensor:
        """Return the Bayesian personalized ranking loss (B,), plus the norm of the table for each query."""
        logits = self(batch)
        if log_ratio is not None:
            logits = logits - log_ratio
        margin = F.logsigmoid(logits[:, :1] - logits[:, 1:])  # (B, M-1)
        return self.decay * torch.linalg.vector_norm(self.table) - margin.mean(dim=1)

    def encode(self, batch: TgsrecBatch) -> Tensor:
        return self.encode_trees(F.embedding(batch.row, self.table), None, batch.age, batch.valid, None)
