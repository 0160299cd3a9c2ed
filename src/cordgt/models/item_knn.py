"""Item-kNN: recommends what others interacted with around the time of the source's latest partners.

For each of the source's latest partners, the latest visitors of that partner vote for what they interacted with just
before and just after it. Votes fade with the age of the partner and with the number of events in between, and count
less for popular candidates. Everything is read from the first ``cut`` events, so there is nothing to train.

Votes are sums of integers, so the compiled loops and the torch operations agree bit for bit in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from cordgt.errors import SettingError
from cordgt.history.queries import History, Queries
from cordgt.history.votes import PENALTY, UNIT, VoteOptions, count_votes, votes_score
from cordgt.models.base import LinkModel
from cordgt.nn.layers import check_non_negative, check_positive


@dataclass(frozen=True)
class ItemKnnSettings:
    """Settings of item-kNN."""

    num_partners: int = VoteOptions.num_partners  # latest partners of the source
    num_visitors: int = VoteOptions.num_visitors  # latest visitors of each partner
    window: int = VoteOptions.window  # events of a visitor before and after its event with the partner
    decay: float = VoteOptions.decay  # weight of a partner, relative to the next later one
    penalty: float = PENALTY  # votes are divided by (events of the candidate) ** penalty; 0.5 is the cosine

    def __post_init__(self) -> None:
        check_positive(self, "num_partners", "num_visitors", "window")
        check_non_negative(self, "penalty")
        if not 0 < self.decay <= 1:
            raise SettingError(f"decay={self.decay}: it must be above 0 and at most 1.")


class Votes(NamedTuple):
    """What item-kNN reads for B queries with M candidates."""

    votes: Tensor  # (B, M) int64, in units of UNIT * UNIT
    degree: Tensor  # (B, M) int64, events of the candidate
    cut: Tensor  # (B, 1) int64


@dataclass(frozen=True)
class ItemKnnReader:
    """Reads the votes for each candidate."""

    settings: ItemKnnSettings

    def read(self, history: History, queries: Queries) -> Votes:
        index, cut = history.index, queries.cut[:, None]
        own = self.settings
        options = VoteOptions(own.num_partners, own.num_visitors, own.window, own.decay)
        return Votes(count_votes(index, queries, options), index.degree(queries.dst, cut), cut)


class ItemKnn(LinkModel):
    """The logarithm of the votes, divided by the candidate's popularity; float64."""

    is_trainable = False
    has_embeddings = False
    uses_features = False
    is_cheap = True
    learns_ranking = True
    max_pairs_per_batch = 500_000
    score_tolerance = 1e-12  # float64, no matrix product

    def __init__(self, settings: ItemKnnSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__()
        self.reader = ItemKnnReader(settings)
        self.penalty = settings.penalty

    def forward(self, batch: Votes) -> Tensor:
        degree = batch.degree.double()
        votes = batch.votes.double() / (UNIT * UNIT) / (degree + 1) ** self.penalty
        return votes_score(votes, degree, batch.cut)
