"""Counts: a small MLP on the counts of a pair. No sampling, no attention: a baseline that learns.

It reads the features that CorDGT+ calls ``pair_features`` (`cordgt.history.pair_features`), and shows what they are
worth alone. ``collaborative`` adds the columns of `cordgt.history.collaborative`, ``likeness`` those of
`cordgt.history.likeness`, ``identities`` learned embeddings of nodes (`cordgt.models.identities`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cordgt.errors import check_choice
from cordgt.history.pair_columns import column_names, read_columns
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.models.identities import Identities, IdentityBatch, read_identities
from cordgt.nn.layers import check_positive, make_mlp


@dataclass(frozen=True)
class CountsSettings:
    """Settings of Counts."""

    hidden: int = 64
    loss: str = "binary"  # or "ranking": the true candidate against all others of the query
    collaborative: bool = False  # also read who met what alike: co-visits, sequences, ages
    votes: bool = False  # also read the votes of item-kNN
    likeness: bool = False  # also read the similarity of the candidate's features to the source's partners
    identities: bool = False  # learn an embedding per node; see `cordgt.models.identities`
    num_embeddings: int = 16384  # rows of its table; if there are more nodes, the busiest get one

    def __post_init__(self) -> None:
        check_positive(self, "hidden", "num_embeddings")
        check_choice("loss", self.loss, ("binary", "ranking"))

    @property
    def column_groups(self) -> tuple[str, ...]:
        """Names in `cordgt.history.pair_columns.COLUMN_GROUPS`."""
        optional = {"collaborative": self.collaborative, "votes": self.votes, "likeness": self.likeness}
        return ("pair", *(name for name, is_read in optional.items() if is_read))


@dataclass(frozen=True)
class CountsBatch:
    """Columns of pairs, and the nodes whose embeddings are looked up."""

    columns: Tensor  # (B, M, P)
    identity: IdentityBatch


@dataclass(frozen=True)
class CountsReader:
    """Reads the columns of every pair."""

    groups: tuple[str, ...]
    identities: bool = False

    def read(self, history: History, queries: Queries) -> Tensor | CountsBatch:
        """Return the columns (B, M, P) float32; with ``identities``, also the nodes to look up."""
        columns = read_columns(history, queries, self.groups)
        return CountsBatch(columns, read_identities(history.index, queries)) if self.identities else columns


class Counts(LinkModel):
    """An MLP on the features of a pair."""

    has_embeddings = False
    uses_features = False
    is_cheap = True
    max_pairs_per_batch = 20_000

    def __init__(self, settings: CountsSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = CountsReader(settings.column_groups, settings.identities)
        self.score = make_mlp(len(column_names(settings.column_groups)), settings.hidden, 1)
        self.identities = Identities(settings.num_embeddings) if settings.identities else None
        self.uses_node_ids = settings.identities
        self.uses_features = settings.likeness
        self.learns_ranking = settings.loss == "ranking"

    def prepare(self, history: History, cut: int) -> None:
        if self.identities is not None:
            self.identities.assign_rows(history.index, cut)

    def forward(self, batch: Tensor | CountsBatch) -> Tensor:
        if isinstance(batch, Tensor):
            return self.score(batch).squeeze(-1)
        assert self.identities is not None
        return self.score(batch.columns).squeeze(-1) + self.identities(batch.identity)
