"""Popularity: predicts the destinations with the most events, for any source. No parameters; a baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel


@dataclass(frozen=True)
class PopularitySettings:
    """Popularity has no settings."""


class PopularityReader:
    """Reads the number of events of each candidate."""

    def read(self, history: History, queries: Queries) -> Tensor:
        """Return (B, M) int64."""
        return history.index.degree(queries.dst, queries.cut[:, None])


class Popularity(LinkModel):
    """The logarithm of one plus the candidate's number of events; float64, so that large counts differ."""

    is_trainable = False
    has_embeddings = False
    uses_features = False
    is_cheap = True
    max_pairs_per_batch = 500_000
    score_tolerance = 1e-12  # float64, no matrix product: counts above 100,000 still differ

    def __init__(self, settings: PopularitySettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = PopularityReader()

    def forward(self, batch: Tensor) -> Tensor:
        return torch.log1p(batch.double())
