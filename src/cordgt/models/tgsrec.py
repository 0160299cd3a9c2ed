"""TGSRec: attention over whom one met and when, on embeddings that every node learns for itself.

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
from cordgt.models.base import LinkModel
from cordgt.models.parts import MergeHead, TimeEncoding, check_dropout, check_from_zero, check_heads, check_sizes
from cordgt.models.tgat import AgedTreeReader, TgatLayer, children
from cordgt.past.context import SAMPLINGS, TreeShape
from cordgt.past.history import History, Queries


@dataclass(frozen=True)
class TgsrecSettings:
    """Settings of TGSRec."""

    neighbours: int = 20  # n, events drawn for every node of a tree
    layers: int = 2  # and as many hops
    heads: int = 2
    hidden: int = 172  # D
    time_dim: int = 100
    dropout: float = 0.1
    sampling: str = "uniform"  # as in its paper; "recent": the latest events
    rows: int = 16384  # of the table of embeddings; where there are more nodes, some share a row
    decay: float = 0.1  # weight of the norm of that table in the loss

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLINGS)
        check_sizes(self, "neighbours", "layers", "heads", "hidden", "time_dim", "rows")
        check_dropout(self)
        check_heads(self.hidden + self.time_dim, self.heads, "hidden + time_dim")
        check_from_zero(self, "decay")


@dataclass(frozen=True)
class KnownTrees:
    """The trees by the rows of their nodes in the table."""

    row: Tensor  # (B, R, C) int64; `rows`, one past the last, for padding and for a root without history
    age: Tensor  # (B, R, C-1) float64, from the slot's event to its parent's, or to the question
    valid: Tensor  # (B, R, C-1) True: an event stands there


@dataclass(frozen=True)
class KnownTreeReader:
    """Samples the trees. Who has no history yet is nobody in particular, whatever number it will get one day."""

    trees: AgedTreeReader
    rows: int

    def pairs(self, history: History, queries: Queries) -> KnownTrees:
        """The trees of the source and of its candidates: R = 1 + M."""
        return self._read(history, queries.ends, queries.t, queries.cut)

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> KnownTrees:
        """The nodes' own trees: R = 1."""
        return self._read(history, node[:, None], t, cut)

    def _read(self, history: History, root: Tensor, t: Tensor, cut: Tensor) -> KnownTrees:
        context, trees = self.trees.read(history, root, t, cut)
        known = torch.cat([trees.valid[..., :1], trees.valid], dim=-1)  # a root with history has a first event
        row = torch.where(known, context.node.remainder(self.rows), self.rows)
        return KnownTrees(row, trees.age, trees.valid)


class Tgsrec(LinkModel):
    """TGAT's layers, merged with a node's own state of the layer before, from the table of embeddings up.

    Features of nodes and events are not used: the paper has none.
    """

    reader: KnownTreeReader
    by_number = True
    uses_features = False
    ranks = True
    pairs_at_once = 300

    def __init__(self, settings: TgsrecSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        s = settings
        self.n, self.decay = s.neighbours, s.decay
        self.reader = KnownTreeReader(AgedTreeReader(TreeShape((s.neighbours,) * s.layers), s.sampling), s.rows)
        self.table = nn.Parameter(torch.empty(s.rows + 1, s.hidden).uniform_(-1, 1))
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

    def forward(self, batch: KnownTrees) -> Tensor:
        """Logits (B, M)."""
        state = self._embed(batch)  # (B, R, D)
        return self.head(state[:, :1], state[:, 1:])

    def losses(self, batch: KnownTrees) -> Tensor:
        """(B,) how little the true partner stands above the others (BPR), and the norm of the table on top of each."""
        logits = self(batch)
        ahead = F.logsigmoid(logits[:, :1] - logits[:, 1:])  # (B, M-1)
        return self.decay * torch.linalg.vector_norm(self.table) - ahead.mean(dim=1)

    def embed(self, batch: KnownTrees) -> Tensor:
        """Embeddings (B, D)."""
        return self._embed(batch).squeeze(1)

    def _embed(self, trees: KnownTrees) -> Tensor:
        """The states of the roots after the last layer, (B, R, D)."""
        age, now = self.time(trees.age), self.time(trees.age.new_zeros(()))  # (B, R, C-1, T), (T,)
        state = F.embedding(trees.row, self.table)  # (B, R, slots, D), of fewer and fewer slots
        nothing = age[..., :0]  # no event features
        for layer in self.layers:
            parents = (state.shape[2] - 1) // self.n
            heard = (children(x, parents, self.n) for x in (state[:, :, 1:], nothing, age, trees.valid))
            own = state[:, :, :parents].flatten(0, 2)
            state = layer(own, now, *heard, own).unflatten(0, (*state.shape[:2], parents))
        return state.squeeze(2)
