"""Logistic regression on number and age of a pair's events, and the activity of its destination."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import cordgt
from cordgt.history.queries import History, Queries


@dataclass(frozen=True)
class RecencySettings:
    """Settings of the regression."""

    power: float = 1.0  # exponent of the recency; a larger value makes old events count less

    def __post_init__(self) -> None:
        if self.power <= 0:
            raise cordgt.SettingError(f"power={self.power}: it must be above 0.")


@dataclass(frozen=True)
class RecencyReader:
    """Reads three features of every pair."""

    power: float

    def read(self, history: History, queries: Queries) -> Tensor:
        """Return (B, M, 3) float32: pair events, recency from 0 to 1, events of the destination."""
        src, cut, pair_cut = (x[:, None] for x in (queries.src, queries.cut, queries.pair_cut))
        count, last = history.index.pair_history(src, queries.dst, pair_cut)
        recency = (last / queries.t[:, None].clamp(min=1)) ** self.power
        degree = history.index.degree(queries.dst, cut)
        return torch.stack([count.log1p(), recency, degree.log1p()], dim=-1).float()


@cordgt.register_model("recency", training={"lr": 0.01})
class Recency(cordgt.LinkModel):
    """Regression on pair counts."""

    has_embeddings = False

    def __init__(self, settings: RecencySettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = RecencyReader(settings.power)
        self.score = nn.Linear(3, 1)

    def forward(self, batch: Tensor) -> Tensor:
        return self.score(batch).squeeze(-1)  # (B, M)
