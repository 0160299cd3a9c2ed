"""Models that encode the source and its candidates separately, then score each pair with a head on both embeddings.

Axes: B queries, M candidates, R nodes of a query (the source, then its candidates: R = 1 + M; a node alone: R = 1),
D width of an embedding.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cordgt.models.base import LinkModel
from cordgt.nn.layers import MergeHead


class TwoTowerModel(LinkModel):
    """Logits and embeddings from one encoder. A subclass defines `encode` and sets ``reader`` and ``head``.

    The subclass creates the head itself, because the order in which parameters are created decides their random values
    and their place in a checkpoint.
    """

    head: MergeHead

    def encode(self, batch: Any) -> Tensor:
        """Return embeddings (B, R, D)."""
        raise NotImplementedError

    def forward(self, batch: Any) -> Tensor:
        x = self.encode(batch)
        return self.head(x[:, :1], x[:, 1:])

    def embed(self, batch: Any) -> Tensor:
        return self.encode(batch).squeeze(1)
