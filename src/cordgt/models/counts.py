"""Counts: a small MLP on the counts of a pair. No sampling, no attention: a baseline that learns.

It reads the features that CorDGT+ calls ``pair_features`` (`cordgt.history.pair_features`), and so shows their value alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cordgt.errors import DataError, check_choice
from cordgt.history import pair_features
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.nn.layers import check_sizes, make_mlp, ranking_loss


@dataclass(frozen=True)
class CountsSettings:
    """Settings of Counts."""

    hidden: int = 64
    loss: str = "binary"  # or "ranking": the true candidate against all others of the query

    def __post_init__(self) -> None:
        check_sizes(self, "hidden")
        check_choice("loss", self.loss, ("binary", "ranking"))


class PairReader:
    """Reads the features of every pair."""

    def pairs(self, history: History, queries: Queries) -> Tensor:
        """(B, M, P) float32."""
        return pair_features.pairs(history.index, queries)

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Tensor:
        raise DataError("Counts scores pairs and has no node embeddings.")


class Counts(LinkModel):
    """An MLP on the features of a pair."""

    has_embeddings = False
    uses_features = False
    max_pairs_per_batch = 20_000

    def __init__(self, settings: CountsSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = PairReader()
        self.score = make_mlp(pair_features.PER_PAIR, settings.hidden, 1)
        self.learns_ranking = settings.loss == "ranking"

    def forward(self, batch: Tensor) -> Tensor:
        """Logits (B, M)."""
        return self.score(batch).squeeze(-1)

    def losses(self, batch: Tensor) -> Tensor:
        """Losses (B,): binary cross-entropy, or softmax cross-entropy if ``loss`` is "ranking"."""
        return ranking_loss(self(batch)) if self.learns_ranking else super().losses(batch)
