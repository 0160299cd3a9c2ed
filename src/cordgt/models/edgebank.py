"""EdgeBank: predicts the pairs that interacted before. No parameters; a baseline that every model should beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cordgt.errors import SettingError
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel


@dataclass(frozen=True)
class EdgebankSettings:
    """Settings of EdgeBank."""

    window: float = 1.0  # how long an event counts, as a share of the time since the first event; 1: no limit

    def __post_init__(self) -> None:
        if not 0 < self.window <= 1:
            raise SettingError(f"window={self.window}: it must be above 0 and at most 1.")


@dataclass(frozen=True)
class EdgebankReader:
    """Reads whether each pair interacted within the window, in either direction."""

    window: float

    def read(self, history: History, queries: Queries) -> Tensor:
        """Return (B, M) bool."""
        count, last = history.index.pair_history(queries.src[:, None], queries.dst, queries.pair_cut[:, None])
        t = queries.t[:, None]
        return (count > 0) & (t - last <= self.window * t)


class Edgebank(LinkModel):
    """A logit of +1 for a pair seen before, -1 otherwise."""

    is_trainable = False
    has_embeddings = False
    uses_features = False
    is_cheap = True
    max_pairs_per_batch = 500_000

    def __init__(self, settings: EdgebankSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = EdgebankReader(settings.window)

    def forward(self, batch: Tensor) -> Tensor:
        return torch.where(batch, 1.0, -1.0)
