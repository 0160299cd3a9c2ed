"""Counts: a small MLP on the counts of a pair. No sampling, no attention: a baseline that learns.

It reads the features that CorDGT+ calls ``pair_features`` (`cordgt.history.pair_features`), and shows what they are
worth alone. ``collaborative`` adds the columns of `cordgt.history.collaborative`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cordgt.errors import check_choice
from cordgt.history.pair_columns import column_names, read_columns
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.nn.layers import check_positive, make_mlp


@dataclass(frozen=True)
class CountsSettings:
    """Settings of Counts."""

    hidden: int = 64
    loss: str = "binary"  # or "ranking": the true candidate against all others of the query
    collaborative: bool = False  # also read who met what alike: co-visits, sequences, ages

    def __post_init__(self) -> None:
        check_positive(self, "hidden")
        check_choice("loss", self.loss, ("binary", "ranking"))

    @property
    def column_groups(self) -> tuple[str, ...]:
        """Names in `cordgt.history.pair_columns.COLUMN_GROUPS`."""
        return ("pair", "collaborative") if self.collaborative else ("pair",)


@dataclass(frozen=True)
class CountsReader:
    """Reads the columns of every pair."""

    groups: tuple[str, ...]

    def read(self, history: History, queries: Queries) -> Tensor:
        """Return (B, M, P) float32."""
        return read_columns(history.index, queries, self.groups)


class Counts(LinkModel):
    """An MLP on the features of a pair."""

    has_embeddings = False
    uses_features = False
    is_cheap = True
    max_pairs_per_batch = 20_000

    def __init__(self, settings: CountsSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = CountsReader(settings.column_groups)
        self.score = make_mlp(len(column_names(settings.column_groups)), settings.hidden, 1)
        self.learns_ranking = settings.loss == "ranking"

    def forward(self, batch: Tensor) -> Tensor:
        return self.score(batch).squeeze(-1)
