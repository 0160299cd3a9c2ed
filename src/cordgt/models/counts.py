"""Counts: a small network on what history counts of a pair. Nothing is sampled, nothing attends: a floor that learns.

It reads the columns that CorDGT+ calls ``pairs`` (`cordgt.past.proximity`), and so shows what they are worth alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cordgt.errors import DataError, check_choice
from cordgt.models.base import LinkModel
from cordgt.models.parts import check_sizes, true_among_all, two_layers
from cordgt.past import proximity
from cordgt.past.history import History, Queries


@dataclass(frozen=True)
class CountsSettings:
    """Settings of the small network."""

    hidden: int = 64
    loss: str = "binary"  # or "ranking": the true candidate against all others of the query

    def __post_init__(self) -> None:
        check_sizes(self, "hidden")
        check_choice("loss", self.loss, ("binary", "ranking"))


class PairReader:
    """Reads what is known of every pair."""

    def pairs(self, history: History, queries: Queries) -> Tensor:
        """(B, M, P) float32."""
        return proximity.pairs(history.index, queries)

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Tensor:
        raise DataError("Counts knows pairs, not nodes: it has no embeddings.")


class Counts(LinkModel):
    """Two layers on the columns of a pair."""

    embeds = False
    uses_features = False
    pairs_at_once = 20_000

    def __init__(self, settings: CountsSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = PairReader()
        self.score = two_layers(proximity.PER_PAIR, settings.hidden, 1)
        self.ranks = settings.loss == "ranking"

    def forward(self, batch: Tensor) -> Tensor:
        """Logits (B, M)."""
        return self.score(batch).squeeze(-1)

    def losses(self, batch: Tensor) -> Tensor:
        """(B,) cross-entropy of every candidate, or of the true one among all."""
        return true_among_all(self(batch)) if self.ranks else super().losses(batch)
