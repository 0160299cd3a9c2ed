"""EdgeBank: a pair that met before will meet again. No parameters; the floor every model should clear."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cordgt.errors import CordgtError
from cordgt.history import History, Queries
from cordgt.models.base import LinkModel


@dataclass(frozen=True)
class EdgebankSettings:
    """EdgeBank has none."""


class PairReader:
    """Reads how often each pair met."""

    def pairs(self, history: History, queries: Queries) -> Tensor:
        """(B, M) int64 counts."""
        count, _ = history.index.pair_history(queries.src[:, None], queries.dst, queries.pair_cut[:, None])
        return count

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Tensor:
        raise CordgtError("EdgeBank knows pairs, not nodes: it has no embeddings.")


class Edgebank(LinkModel):
    """A logit of +1 for a pair seen before, -1 otherwise."""

    trains = False
    embeds = False

    def __init__(self, settings: EdgebankSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = PairReader()

    def forward(self, batch: Tensor) -> Tensor:
        return (batch > 0).float() * 2 - 1
