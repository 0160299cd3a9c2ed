"""CorDGT+: CorDGT, told more of the past than its two distances. Each part is a setting, and can be left out.

``sampling=mixed`` shows a node's latest events beside drawn ones; ``slots`` tells every context node what history knows
of it, ``pairs`` every pair (`cordgt.past.proximity`). All of it is counted from the first ``cut`` events, without
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cordgt.errors import check_choice
from cordgt.models.cordgt import Cordgt, CordgtSettings, TreeReader, Trees, in_full
from cordgt.models.parts import true_among_all, two_layers
from cordgt.past import proximity
from cordgt.past.context import Context
from cordgt.past.history import History, Queries


@dataclass(frozen=True)
class CordgtPlusSettings(CordgtSettings):
    """Settings of CorDGT+: those of CorDGT, with other defaults, and what is added to it."""

    fanout: tuple[int, ...] = (32, 1)
    sampling: str = "mixed"
    alpha: float = 1.0
    beta: float = 1.0
    slots: bool = True  # tell every context node its age, its counts and what it has to do with either end
    pairs: bool = True  # tell every pair how often, how lately and among how much else it met
    loss: str = "binary"  # or "ranking": the true candidate against all others of the query

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, ("binary", "ranking"))


@dataclass(frozen=True)
class InformedTrees(Trees):
    """Trees, and what else is known of their slots and of the pairs."""

    slot_x: Tensor | None  # (B, S, C, F)
    pair_x: Tensor | None  # (B, M, P)


@dataclass(frozen=True)
class ProximityReader(TreeReader):
    """Reads what CorDGT reads, and counts what stands around it."""

    settings: CordgtPlusSettings

    def pairs(self, history: History, queries: Queries) -> InformedTrees:
        """The trees of the sources and of their candidates, and what is known of their pairs."""
        read = super().pairs(history, queries)
        assert isinstance(read, InformedTrees)
        return replace(read, pair_x=proximity.pairs(history.index, queries)) if self.settings.pairs else read

    def _measure(
        self, history: History, trees: Context, t: Tensor, cut: Tensor, pair_cut: Tensor, correlated: bool
    ) -> InformedTrees:
        read = super()._measure(history, trees, t, cut, pair_cut, correlated)
        slot_x = proximity.slots(history.index, trees, t, cut, pair_cut) if self.settings.slots else None
        return InformedTrees(**vars(read), slot_x=slot_x, pair_x=None)


class CordgtPlus(Cordgt):
    """The network of CorDGT with two small ones beside it: one for each slot's token, one for the pair's score."""

    settings: CordgtPlusSettings

    def __init__(self, settings: CordgtPlusSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim)
        self.reader = ProximityReader(settings, self.shape)
        dim = settings.hidden
        self.of_slot = two_layers(proximity.PER_SLOT, dim, dim) if settings.slots else None
        self.of_pair = two_layers(proximity.PER_PAIR, dim, dim) if settings.pairs else None
        self.of_all = two_layers((2 + settings.pairs) * dim, dim, 1) if settings.head == "mlp" else None
        self.of_pair_alone = nn.Linear(dim, 1, bias=False) if settings.head == "linear" and settings.pairs else None
        self.head_mlp = None  # `of_all` stands in its place
        self.ranks = settings.loss == "ranking"

    def _scores(self, batch: Trees, pooled: Tensor) -> Tensor:
        """Logits (B, M). With the linear head the pair has its own share, beside those of the context nodes."""
        assert isinstance(batch, InformedTrees)
        n = pooled.shape[1] // 2
        src, dst = pooled[:, :n], pooled[:, n:]
        with in_full(pooled):
            pair = [] if self.of_pair is None else [self.of_pair(batch.pair_x)]  # (B, M, D)
            if self.of_all is not None:
                return self.of_all(torch.cat([src, dst, *pair], dim=-1)).squeeze(-1)
            assert self.head_linear is not None
            logits = self.head_linear(src + dst)
            return (logits if self.of_pair_alone is None else logits + self.of_pair_alone(pair[0])).squeeze(-1)

    def losses(self, batch: Trees) -> Tensor:
        """(B,) cross-entropy of every candidate, or of the true one among all.

        The latter ranks the partners of one source, but leaves open how those of different sources compare: a score of
        one half means nothing then, nor does AP over several sources.
        """
        return true_among_all(self(batch)) if self.ranks else super().losses(batch)

    def _tokens(self, batch: Trees) -> Tensor:
        assert isinstance(batch, InformedTrees)
        tokens = super()._tokens(batch)
        return tokens if self.of_slot is None else tokens + self.of_slot(batch.slot_x)
