"""Models that encode the source and its candidates separately, then score each pair with a head on both embeddings.

Axes: B queries, M candidates, R nodes of a query (the source, then its candidates: R = 1 + M; a node alone: R = 1),
D width of an embedding.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from torch import Tensor

from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.nn.layers import MergeHead

Batch = TypeVar("Batch")


class PerNodeReader(Generic[Batch]):
    """A reader that reads each node on its own. A source is read once for all its candidates."""

    def read(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Batch:
        """The network's input for nodes (B, R); t and cut are (B,)."""
        raise NotImplementedError

    def pairs(self, history: History, queries: Queries) -> Batch:
        """The input for the source and its candidates."""
        return self.read(history, queries.ends, queries.t, queries.cut)

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Batch:
        """The input for single nodes."""
        return self.read(history, node[:, None], t, cut)


class TwoTowerModel(LinkModel):
    """Logits and embeddings from one encoder. A subclass defines `encode` and sets ``reader`` and ``head``.

    The subclass creates the head itself, because the order in which parameters are created decides their random values
    and their place in a checkpoint.
    """

    head: MergeHead

    def encode(self, batch: Any) -> Tensor:
        """Embeddings (B, R, D)."""
        raise NotImplementedError

    def forward(self, batch: Any) -> Tensor:
        """Logits (B, M)."""
        x = self.encode(batch)
        return self.head(x[:, :1], x[:, 1:])

    def embed(self, batch: Any) -> Tensor:
        """Embeddings (B, D)."""
        return self.encode(batch).squeeze(1)
