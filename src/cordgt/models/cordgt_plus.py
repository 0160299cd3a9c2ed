"""CorDGT+: CorDGT with more features of the past than its two distances. Each part is a setting.

``sampling=mixed`` adds a node's latest events to the sampled ones. ``slot_features`` adds features of every context
node, ``pair_features`` of every pair (`cordgt.history.pair_features`). ``collaborative`` adds those of
`cordgt.history.collaborative`, ``identities`` learned embeddings of nodes (`cordgt.models.identities`). All others are
counted from the first ``cut`` events, without parameters. ``counts_blend`` adds the logits of a `Counts` network,
trained on its own, with a weight that validation data choose (`cordgt.training.blend`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cordgt.errors import SettingError, check_choice
from cordgt.history import pair_features
from cordgt.history.context import Context
from cordgt.history.pair_columns import column_names, read_columns
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.models.cordgt import Cordgt, CordgtBatch, CordgtReader, CordgtSettings, Slots, full_precision
from cordgt.models.counts import Counts, CountsSettings
from cordgt.models.identities import Identities, IdentityBatch, read_identities
from cordgt.nn.layers import check_positive, make_mlp


@dataclass(frozen=True)
class CordgtPlusSettings(CordgtSettings):
    """Settings of CorDGT+: those of CorDGT, with other defaults, and its additions."""

    fanout: tuple[int, ...] = (32, 1)
    sampling: str = "mixed"
    alpha: float = 1.0
    beta: float = 1.0
    slot_features: bool = True  # features of every context node: age, counts, relation to either end
    pair_features: bool = True  # features of every pair: number and age of its events, activity of both ends
    collaborative: bool = False  # also columns of who met what alike: co-visits, sequences, ages
    votes: bool = False  # also read the votes of item-kNN
    likeness: bool = False  # also read the similarity of the candidate's features to the source's partners
    identities: bool = False  # learn an embedding per node; see `cordgt.models.identities`
    num_embeddings: int = 16384  # rows of its table; if there are more nodes, the busiest get one
    counts_blend: bool = True  # also trains `counts`, and adds its logits with a weight chosen on validation data
    loss: str = "binary"  # or "ranking": the true candidate against all others of the query

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("loss", self.loss, ("binary", "ranking"))
        check_positive(self, "num_embeddings")
        for name in ("collaborative", "votes", "likeness"):
            if getattr(self, name) and not self.pair_features:
                raise SettingError(f"{name}=true adds columns to pair_features: set pair_features=true.")

    @property
    def column_groups(self) -> tuple[str, ...]:
        """Names in `cordgt.history.pair_columns.COLUMN_GROUPS`."""
        return self.of_counts.column_groups

    @property
    def of_counts(self) -> CountsSettings:
        """Settings of the `Counts` network, which reads the same columns."""
        names = ("loss", "collaborative", "votes", "likeness")
        return CountsSettings(**{name: getattr(self, name) for name in names})

    @property
    def has_counts(self) -> bool:
        """Whether the model contains a `Counts` network: it reads the same pair features."""
        return self.counts_blend and self.pair_features


@dataclass(frozen=True)
class CordgtSmallSettings(CordgtPlusSettings):
    """Settings of a small CorDGT+ for machines without a GPU: other defaults, the same network."""

    fanout: tuple[int, ...] = (8, 1)
    hidden: int = 32
    heads: int = 2
    layers: int = 1
    collaborative: bool = True


@dataclass(frozen=True)
class CordgtPlusBatch(CordgtBatch):
    """Trees, with features of their slots and of the pairs."""

    slot_x: Tensor | None = None  # (B, S, C, F)
    pair_x: Tensor | None = None  # (B, M, P); None without candidates
    identity: IdentityBatch | None = None  # None without candidates


@dataclass(frozen=True)
class CordgtPlusReader(CordgtReader):
    """Reads what CorDGT reads, and the features of slots and pairs."""

    settings: CordgtPlusSettings

    def _measure(self, history: History, queries: Queries, trees: Context) -> CordgtPlusBatch:
        index, q = history.index, queries
        slot_x = pair_x = identity = None
        if self.settings.slot_features:
            slot_x = pair_features.slot_features(index, trees, q.t, q.cut, q.pair_cut)
        if self.settings.pair_features and q.dst.shape[1]:
            pair_x = read_columns(history, q, self.settings.column_groups)
        if self.settings.identities and q.dst.shape[1]:
            identity = read_identities(index, q)
        distances = vars(super()._measure(history, q, trees))
        return CordgtPlusBatch(**distances, slot_x=slot_x, pair_x=pair_x, identity=identity)


class CordgtPlus(Cordgt):
    """The network of CorDGT, and two MLPs: one adds to each slot's token, one to the pair's score.

    With ``counts_blend`` the logit is ``(1 - w) * own + w * counts``. The `Counts` network is trained before, then
    frozen. ``counts_weight`` holds two values of w: for the candidates of one source, and for pairs of different
    sources. Both are 0 until `cordgt.training.blend` chooses them.
    """

    settings: CordgtPlusSettings
    counts_weight: Tensor  # (2,)

    def __init__(self, settings: CordgtPlusSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim)
        self.reader = CordgtPlusReader(settings, self.shape)
        dim = settings.hidden
        self.of_slot = make_mlp(pair_features.SLOT_DIM, dim, dim) if settings.slot_features else None
        pair_dim = len(column_names(settings.column_groups))
        self.of_pair = make_mlp(pair_dim, dim, dim) if settings.pair_features else None
        self.of_all = make_mlp((2 + settings.pair_features) * dim, dim, 1) if settings.head == "mlp" else None
        linear_pair = settings.head == "linear" and settings.pair_features
        self.of_pair_alone = nn.Linear(dim, 1, bias=False) if linear_pair else None
        self.head_mlp = None  # replaced by `of_all`
        self.learns_ranking = settings.loss == "ranking"
        self.identities = Identities(settings.num_embeddings) if settings.identities else None
        self.uses_node_ids = settings.identities
        self.counts: Counts | None = None
        if settings.has_counts:
            self.counts = Counts(settings.of_counts, edge_dim=edge_dim, node_dim=node_dim)
            self.counts.requires_grad_(False)
            self.register_buffer("counts_weight", torch.zeros(2))

    def prepare(self, history: History, cut: int) -> None:
        if self.identities is not None:
            self.identities.assign_rows(history.index, cut)

    def scoring_model(self) -> LinkModel:
        """Return the `Counts` network where it has the whole weight. Not on a GPU, where reading the weight waits."""
        if self.counts is None or self.training or self.counts_weight.device.type != "cpu":
            return self
        return self.counts if self.counts_weight[int(self.compares_sources)] == 1 else self

    def _scores(self, batch: CordgtBatch, pooled: Tensor) -> Tensor:
        """Return logits (B, M): those of the network itself in training, otherwise blended with those of `Counts`."""
        assert isinstance(batch, CordgtPlusBatch)
        own = self._own_scores(batch, pooled)
        with full_precision(pooled):
            if self.counts is None or self.training:
                return own
            return torch.lerp(own, self.counts(batch.pair_x), self.counts_weight[int(self.compares_sources)])

    def own_and_counts(self, batch: CordgtPlusBatch) -> Tensor:
        """Return the logits of the network itself and those of `Counts`, (B, M, 2)."""
        assert self.counts is not None
        return torch.stack([self._own_scores(batch, self._pooled(batch)), self.counts(batch.pair_x)], dim=-1)

    def _own_scores(self, batch: CordgtPlusBatch, pooled: Tensor) -> Tensor:
        """Return the logits (B, M) of the network itself."""
        own = self._head_scores(batch, pooled)
        if self.identities is None:
            return own
        with full_precision(pooled):
            return own + self.identities(batch.identity)

    def _head_scores(self, batch: CordgtPlusBatch, pooled: Tensor) -> Tensor:
        """Return logits (B, M). With the linear head the pair adds its own share to those of the context nodes."""
        n = pooled.shape[1] // 2
        src, dst = pooled[:, :n], pooled[:, n:]
        with full_precision(pooled):
            pair = [] if self.of_pair is None else [self.of_pair(batch.pair_x)]  # (B, M, D)
            if self.of_all is not None:
                return self.of_all(torch.cat([src, dst, *pair], dim=-1)).squeeze(-1)
            assert self.head_linear is not None
            logits = self.head_linear(src + dst)
            return (logits if self.of_pair_alone is None else logits + self.of_pair_alone(pair[0])).squeeze(-1)

    def _tokens(self, batch: CordgtBatch) -> Tensor:
        assert isinstance(batch, CordgtPlusBatch)
        tokens = super()._tokens(batch)
        return tokens if self.of_slot is None else tokens + self.of_slot(batch.slot_x)

    def _slot_tokens(self, batch: CordgtBatch, at: Slots) -> Tensor:
        assert isinstance(batch, CordgtPlusBatch)
        tokens = super()._slot_tokens(batch, at)
        if self.of_slot is None or batch.slot_x is None:
            return tokens
        return tokens + self.of_slot(batch.slot_x[at.row, at.sequence, at.slot])
