"""Counts: a small MLP on the counts of a pair. No sampling, no attention: a baseline that learns.

It reads the features that CorDGT+ calls ``pair_features`` (`cordgt.history.pair_features`), and shows what they are
worth alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cordgt.errors import check_choice
from cordgt.history import pair_features
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.nn.layers import check_positive, make_mlp


@dataclass(frozen=True)
class CountsSettings:
    """Settings of Counts."""

    hidden: int = 64
    loss: str = "binary"  # or "ranking": the true candidate against all others of the query

    def __post_init__(self) -> None:
        check_positive(self, "hidden")
        check_choice("loss", self.loss, ("binary", "ranking"))


class CountsReader:
    """Reads the features of every pair."""

    def read(self, history: History, queries: Queries) -> Tensor:
        """Return (B, M, P) float32."""
        return pair_features.pair_features(history.index, queries)


class Counts(LinkModel):
    """An MLP on the features of a pair."""

    has_embeddings = False
    uses_features = False
    is_cheap = True
    max_pairs_per_batch = 20_000

    def __init__(self, settings: CountsSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = CountsReader()
        self.score = make_mlp(pair_features.PAIR_DIM, settings.hidden, 1)
        self.learns_ranking = settings.loss == "ranking"

    def forward(self, batch: Tensor) -> Tensor:
        return self.score(batch).squeeze(-1)
