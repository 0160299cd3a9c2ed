"""Popularity: predicts the destinations with the most events, for any source. No parameters; a baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.nn.layers import check_non_negative


@dataclass(frozen=True)
class PopularitySettings:
    """Settings of popularity."""

    window: int = 0  # count a destination's events among so many latest events of the stream; 0: among all

    def __post_init__(self) -> None:
        check_non_negative(self, "window")


@dataclass(frozen=True)
class PopularityReader:
    """Reads the number of events of each candidate within the window."""

    window: int = 0

    def read(self, history: History, queries: Queries) -> Tensor:
        """Return (B, M) int64."""
        cut = queries.cut[:, None]
        count = history.index.degree(queries.dst, cut)
        return count - history.index.degree(queries.dst, (cut - self.window).clamp_min(0)) if self.window else count


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
        self.reader = PopularityReader(settings.window)

    def forward(self, batch: Tensor) -> Tensor:
        return torch.log1p(batch.double())
