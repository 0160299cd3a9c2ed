"""CorDGT+: CorDGT with more features of the past than its two distances. Each part is a setting.

``sampling=mixed`` adds a node's latest events to the sampled ones. ``slot_features`` adds features of every context node,
``pair_features`` of every pair (`cordgt.history.pair_features`). All are counted from the first ``cut`` events, without parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cordgt.errors import check_choice
from cordgt.history import pair_features
from cordgt.history.context import Context
from cordgt.history.queries import History, Queries
from cordgt.models.cordgt import Cordgt, CordgtSettings, TreeReader, Trees, in_full
from cordgt.nn.layers import make_mlp, ranking_loss


@dataclass(frozen=True)
class CordgtPlusSettings(CordgtSettings):
    """Settings of CorDGT+: those of CorDGT, with other defaults, and its additions."""

    fanout: tuple[int, ...] = (32, 1)
    sampling: str = "mixed"
    alpha: float = 1.0
    beta: float = 1.0
    slot_features: bool = True  # features of every context node: age, counts, relation to either end
    pair_features: bool = (
        True  # features of every pair: how often and how recently it met, and how active both ends are
    )
    loss: str = "binary"  # or "ranking": the true candidate against all others of the query

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, ("binary", "ranking"))


@dataclass(frozen=True)
class InformedTrees(Trees):
    """Trees, with features of their slots and of the pairs."""

    slot_x: Tensor | None  # (B, S, C, F)
    pair_x: Tensor | None  # (B, M, P)


@dataclass(frozen=True)
class ProximityReader(TreeReader):
    """Reads what CorDGT reads, and the features of slots and pairs."""

    settings: CordgtPlusSettings

    def pairs(self, history: History, queries: Queries) -> InformedTrees:
        """The trees of the sources and of their candidates, and the features of their pairs."""
        read = super().pairs(history, queries)
        assert isinstance(read, InformedTrees)
        return (
            replace(read, pair_x=pair_features.pairs(history.index, queries)) if self.settings.pair_features else read
        )

    def _measure(
        self, history: History, trees: Context, t: Tensor, cut: Tensor, pair_cut: Tensor, correlated: bool
    ) -> InformedTrees:
        read = super()._measure(history, trees, t, cut, pair_cut, correlated)
        slot_x = pair_features.slots(history.index, trees, t, cut, pair_cut) if self.settings.slot_features else None
        return InformedTrees(**vars(read), slot_x=slot_x, pair_x=None)


class CordgtPlus(Cordgt):
    """The network of CorDGT, and two MLPs: one adds to each slot's token, one to the pair's score."""

    settings: CordgtPlusSettings

    def __init__(self, settings: CordgtPlusSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim)
        self.reader = ProximityReader(settings, self.shape)
        dim = settings.hidden
        self.of_slot = make_mlp(pair_features.PER_SLOT, dim, dim) if settings.slot_features else None
        self.of_pair = make_mlp(pair_features.PER_PAIR, dim, dim) if settings.pair_features else None
        self.of_all = make_mlp((2 + settings.pair_features) * dim, dim, 1) if settings.head == "mlp" else None
        self.of_pair_alone = (
            nn.Linear(dim, 1, bias=False) if settings.head == "linear" and settings.pair_features else None
        )
        self.head_mlp = None  # replaced by `of_all`
        self.learns_ranking = settings.loss == "ranking"

    def _scores(self, batch: Trees, pooled: Tensor) -> Tensor:
        """Logits (B, M). With the linear head the pair adds its own share to those of the context nodes."""
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
        """Losses (B,): binary cross-entropy, or softmax cross-entropy over the candidates if ``loss`` is "ranking".

        The latter ranks the candidates of one source. It leaves open how scores of different sources compare, so a
        score of one half, and AP over several sources, mean nothing then.
        """
        return ranking_loss(self(batch)) if self.learns_ranking else super().losses(batch)

    def _tokens(self, batch: Trees) -> Tensor:
        assert isinstance(batch, InformedTrees)
        tokens = super()._tokens(batch)
        return tokens if self.of_slot is None else tokens + self.of_slot(batch.slot_x)
