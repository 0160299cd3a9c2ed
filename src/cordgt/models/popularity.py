"""Popularity: whoever has met most will be met next, whatever the source. No parameters; another floor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cordgt.errors import DataError
from cordgt.models.base import LinkModel
from cordgt.past.history import History, Queries


@dataclass(frozen=True)
class PopularitySettings:
    """Popularity has none."""


class DegreeReader:
    """Reads how many events each candidate has had."""

    def pairs(self, history: History, queries: Queries) -> Tensor:
        """(B, M) int64."""
        return history.index.degree(queries.dst, queries.cut[:, None])

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Tensor:
        raise DataError("Popularity is a number, not an embedding.")


class Popularity(LinkModel):
    """The logarithm of one plus the candidate's number of events; float64, so that large counts stay apart."""

    trains = False
    embeds = False
    uses_features = False
    pairs_at_once = 500_000

    def __init__(self, settings: PopularitySettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = DegreeReader()

    def forward(self, batch: Tensor) -> Tensor:
        return torch.log1p(batch.double())
