"""`Predictor`: query a trained model in memory. It scores pairs, recommends destinations and embeds nodes.

`inference.run.Run` loads one from a run folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError, SettingError
from cordgt.events.id_table import SortedIdLookup
from cordgt.events.ids import NodeIds, Side
from cordgt.events.stream import EventStream
from cordgt.history.queries import History, Queries
from cordgt.inference.id_lists import known_nodes
from cordgt.inference.retrieval.budget import choose_budget
from cordgt.inference.retrieval.destinations import Destinations
from cordgt.inference.retrieval.first_scorer import FirstScorer, distill_first_scorer
from cordgt.inference.retrieval.gatherers import Question
from cordgt.inference.retrieval.neighborhood import NodeRows
from cordgt.inference.retrieval.ranking import CandidateFilter, Ranking, StageCounts, rank_destinations
from cordgt.models.base import LinkModel, to_device
from cordgt.tasks.scoring import score_queries

SIDES: tuple[Side, Side] = ("src", "dst")
MIN_LOOKUP_NODES = 10_000  # with so many nodes, a sorted lookup of ids is built at first use
# Notes on a node in an answer; see `Predictor.notes`.
NOTE_NONE = ""
NOTE_NOT_IN_TRAINING = "not in training"
NOTE_NO_HISTORY = "no history"
NOTE_NO_EMBEDDING = "no embedding"
NOTE_NOT_IN_MEMORY = "not yet in memory"


@dataclass(frozen=True)
class Recommendation:
    """One recommended destination, or one recommended source of a destination."""

    node: Any  # id as in the user's data
    score: float  # between 0 and 1
    met: int  # number of earlier events of the pair
    note: str = ""  # see `Predictor.notes`
    probability: float | None = None  # that the pair has an event within the horizon; None without a horizon
    rate: float | None = None  # expected events of the pair per day, or per time without a unit; of a source only


@dataclass(frozen=True)
class RecommendResult:
    """The answer to one question of `Predictor.answer`."""

    recommendations: list[Recommendation]  # best first
    note: str  # on the source; see `Predictor.notes`
    candidates: StageCounts | None = None  # how many candidates each stage saw; None if there are no stages
    question: Question | None = field(default=None, compare=False, repr=False)
    ranking: Ranking | None = field(default=None, compare=False, repr=False)  # the same nodes, with their logits


@dataclass(frozen=True)
class Predictor:
    """A trained model with a history to answer from."""

    model: LinkModel
    stream: EventStream
    history: History
    has_training_events: np.ndarray  # (N,) bool; True if the node has a training event
    make_first_scorer: Callable[[Predictor], FirstScorer] | None = None  # None: train one from the whole history

    @cached_property
    def destinations(self) -> Destinations:
        """The destinations of the history, for any ``cut``."""
        return Destinations(self.stream.dst, self.stream.n_nodes)

    @cached_property
    def node_rows(self) -> NodeRows:
        """The events of each node, in host memory, for the gatherers."""
        return NodeRows.from_index(self.history.index)

    def question(self, source: int, t: float, cut: int) -> Question:
        """Return the question of a node index at elapsed time ``t``, over the first ``cut`` events."""
        history = self.history
        return Question(history.index, self.destinations, source, cut, t, history.seed, self.node_rows)

    @cached_property
    def first_scorer(self) -> FirstScorer:
        """The first scorer, loaded or trained at first use; see `cordgt.inference.retrieval`."""
        if self.make_first_scorer is not None:
            return self.make_first_scorer(self)
        events = np.arange(self.stream.n_events)
        scorer = distill_first_scorer(self.model, self.history, self.destinations, events)
        latest = events[int(0.85 * len(events)) :]
        return scorer.with_budget(choose_budget(self.model, scorer, self.history, self.destinations, latest).budget)

    @cached_property
    def ids(self) -> NodeIds:
        """The ids of the nodes. A question about many nodes does not search all of them."""
        ids = self.stream.ids
        if ids.lookup is not None or len(ids) < MIN_LOOKUP_NODES:
            return ids
        return replace(ids, lookup=SortedIdLookup.from_names(ids.names))

    @property
    def device(self) -> torch.device:
        return self.history.index.device

    def times_and_cuts(self, at: np.ndarray | None, n: int) -> tuple[Tensor, Tensor]:
        """Return elapsed times ``t`` and numbers of visible events ``cut``, (n,) each.

        ``at`` has n times on the stream's axis; None means after the last event of the history.
        """
        stream = self.stream
        if at is None:
            t = np.full(n, stream.elapsed[-1])
            cut = np.full(n, stream.n_events)
        else:
            too_early = np.flatnonzero(at < stream.t[0])
            if len(too_early):
                first, time = (stream.format_time(x) for x in (stream.t[0], at[too_early[0]]))
                row = f" (row {too_early[0] + 1} of the queries)" if (at != at[0]).any() else ""
                raise DataError(f"The time {time}{row} is before the history, which begins at {first}.")
            t, cut = stream.elapsed_at(at), stream.cut_at(at)
        return torch.from_numpy(t).to(self.device), torch.from_numpy(cut).to(self.device)

    def node_indices(self, *columns: tuple[Any, Side]) -> list[np.ndarray]:
        """Return the node indices of columns of ids, each given as (ids, side).

        An unknown id gets a new index from ``n_nodes`` on, the same in every column of its id space.
        """
        ids = self.ids
        new: dict[tuple[str, str], int] = {}
        indices = [ids.encode(values, side).copy() for values, side in columns]
        for index, (values, side) in zip(indices, columns, strict=True):
            for i in np.flatnonzero(index < 0).tolist():
                key = (str(values[i]), "" if ids.shared else side)
                index[i] = self.stream.n_nodes + new.setdefault(key, len(new))
        return indices

    def node_indices_of_either_side(self, ids: Any, sides: Sequence[str] | None = None) -> np.ndarray:
        """Return the node indices (n,) of ids that may be sources or destinations.

        ``sides`` is "src" or "dst" for each id; None searches both. DataError if an id is in both of two separate
        id spaces and ``sides`` is None.
        """
        src, dst = (self.node_indices((ids, side))[0] for side in SIDES)
        if self.stream.ids.shared:
            return src
        if sides is not None:
            return np.where(_parse_sides(ids, sides) == "src", src, dst)
        n = self.stream.n_nodes
        both = np.flatnonzero((src < n) & (dst < n))
        if len(both):
            raise DataError(
                f"The id {str(ids[int(both[0])])!r} belongs to a source and to a different destination. "
                "Add a column 'side' with src or dst."
            )
        return np.where(dst < n, dst, src)

    def notes(self, node: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """Return a note (n,) for each node index that is new to the model, and an empty one for the others.

        - "no history": the node has no event before ``cut``.
        - "not in training": the node has no training event.
        - "no embedding": the model has no vector for the node; its pairs get the score 0.5.
        - "not yet in memory": the model has not processed the node's events; it treats the node as one without history.
        """
        ids, until = (torch.from_numpy(x).to(self.device) for x in (node, cut))
        degree, seen = (
            self.history.index.degree(ids, at).cpu().numpy() for at in (until, self.model.visible_events(until))
        )
        is_trained = np.zeros(len(node), dtype=bool)
        is_known = node < len(self.has_training_events)
        is_trained[is_known] = self.has_training_events[node[is_known]]
        no_embedding = self.model.is_unknown(to_device(ids, self.model.device)).cpu().numpy()
        return np.select(
            [no_embedding, degree == 0, seen == 0, ~is_trained],
            [NOTE_NO_EMBEDDING, NOTE_NO_HISTORY, NOTE_NOT_IN_MEMORY, NOTE_NOT_IN_TRAINING],
            NOTE_NONE,
        )

    def score(
        self, src: Any, dst: Any, at: np.ndarray | None = None, callbacks: Callback = NO_CALLBACK
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores (n,) between 0 and 1 of pairs of the user's ids, and notes (n,) on their nodes, see `notes`."""
        queries = self.pair_queries(src, dst, at)
        logits = score_queries(self.model, self.history, queries, callbacks=callbacks)[:, 0]
        return sigmoid(logits), self.pair_notes(queries)

    def pair_queries(self, src: Any, dst: Any, at: np.ndarray | None = None) -> Queries:
        """Return queries (n,) with one candidate each for pairs of the user's ids."""
        src_index, dst_index = self.node_indices((src, "src"), (dst, "dst"))
        t, cut = self.times_and_cuts(at, len(src_index))
        u, v = (torch.from_numpy(x).to(self.device) for x in (src_index, dst_index))
        return Queries(u, v[:, None], t, cut, cut)

    def pair_notes(self, queries: Queries) -> np.ndarray:
        """Return notes (n,) on the nodes of `pair_queries`."""
        src, dst, cut = (x.cpu().numpy() for x in (queries.src, queries.dst[:, 0], queries.cut))
        return _pair_notes(self.notes(src, cut), self.notes(dst, cut))

    def make_filter(
        self,
        side: Side = "dst",
        *,
        candidates: Any = None,
        exclude: Any = None,
        new_only: bool = False,
        groups: Mapping[Any, Any] | None = None,
        per_group: int | None = None,
    ) -> CandidateFilter:
        """Return a filter of destinations, or of sources (``src``), from the user's ids, to use for many questions.

        ``candidates``: only these; DataError if the history has none of them. ``exclude``: none of these. Unknown ids
        are left out of both. ``groups``: the group of each id; ids without a group are not limited.
        """
        given = None if candidates is None else np.unique(known_nodes(self.ids, candidates, side))
        without = None if exclude is None else np.unique(self.ids.encode(exclude, side)) if len(exclude) else None
        group = None
        if groups is not None:
            if not isinstance(groups, Mapping):
                raise SettingError("groups: give a dictionary with the group of each id.")
            numbers = {name: i for i, name in enumerate(dict.fromkeys(groups.values()))}
            node = self.ids.encode(list(groups), side)
            group = np.full(self.stream.n_nodes, -1, np.int64)
            group[node[node >= 0]] = np.array([numbers[g] for g in groups.values()], np.int64)[node >= 0]
        return CandidateFilter(given, without, new_only, per_group, group)

    def answer(
        self,
        node: Any,
        at: float | None = None,
        top: int = 10,
        *,
        allowed: CandidateFilter = CandidateFilter(),  # noqa: B008
        budget: int | None = None,
        exhaustive: bool = False,
        delay: float = 0.0,
    ) -> RecommendResult:
        """Return the ``top`` destinations most likely to interact with ``node``, best first, and what each stage saw.

        A first stage chooses ``budget`` candidates (by default as many as were measured for it, and at least four
        times ``top``), and the model ranks them. With no more candidates than that, or if ``exhaustive``, the model
        ranks all. ``node`` itself is no candidate. There are fewer than ``top`` only if ``allowed`` (`make_filter`)
        leaves fewer. Near-equal scores are made equal (`merge_near_ties`), and nodes with equal scores stand in order
        of first appearance in the stream. So rounding does not decide the order. ``delay`` is the elapsed time from
        the end of the visible history to the interaction.
        """
        source = self.node_indices(([node], "src"))[0]
        t, cut = self.times_and_cuts(None if at is None else np.array([at]), 1)
        t = t + delay
        n_visible = int(cut[0])
        question = self.question(int(source[0]), float(t[0]), n_visible)
        ranking = rank_destinations(
            self.model,
            self.history,
            question,
            top,
            allowed=allowed,
            first_scorer=lambda: self.first_scorer,
            budget=budget,
            exhaustive=exhaustive,
        )
        best = ranking.node
        notes = self.notes(np.append(best, source), np.full(len(best) + 1, n_visible))
        ids = self.stream.ids.decode(best).to_pylist()
        recommendations = [
            Recommendation(i, float(s), int(m), str(n))
            for i, s, m, n in zip(ids, sigmoid(ranking.logit), ranking.n_met, notes[:-1], strict=True)
        ]
        return RecommendResult(recommendations, str(notes[-1]), ranking.counts, question, ranking)

    def recommend(
        self,
        node: Any,
        at: float | None = None,
        top: int = 10,
        *,
        budget: int | None = None,
        exhaustive: bool = False,
        delay: float = 0.0,
        **filters: Any,
    ) -> tuple[list[Recommendation], str]:
        """Return the recommendations of `answer` and the note on ``node``. ``filters`` are those of `make_filter`."""
        allowed = self.make_filter(**filters)
        result = self.answer(node, at, top, allowed=allowed, budget=budget, exhaustive=exhaustive, delay=delay)
        return result.recommendations, result.note

    def embed(self, node: np.ndarray, at: float | None = None, batch_size: int = 1000) -> np.ndarray:
        """Return the embeddings (n, D), float32, of node indices; DataError if the model has none."""
        if not self.model.has_embeddings:
            raise DataError(f"This model ({type(self.model).__name__.lower()}) has no node embeddings.")
        t, cut = self.times_and_cuts(None if at is None else np.full(len(node), at), len(node))
        ids = torch.from_numpy(node).to(self.device)
        self.model.eval()
        with torch.inference_mode():
            batches = [
                self.model.embed(self.model.read_nodes(self.history, *(x[i : i + batch_size] for x in (ids, t, cut))))
                for i in range(0, len(node), batch_size)
            ]
        return torch.cat(batches).float().cpu().numpy() if batches else np.empty((0, 0), dtype=np.float32)


def _parse_sides(ids: Any, sides: Sequence[str]) -> np.ndarray:
    """Return the sides in lower case. DataError if there is not one per node, or one is neither src nor dst."""
    if len(sides) != len(ids):
        raise DataError(f"{len(sides)} sides for {len(ids)} nodes: give one per node.")
    parsed = np.array([str(side).strip().lower() for side in sides])
    wrong = np.flatnonzero(~np.isin(parsed, SIDES))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"The side of {str(ids[row])!r} is {str(sides[row])!r}; it must be src or dst.")
    return parsed


def sigmoid(logits: np.ndarray | float) -> np.ndarray:
    """Return scores between 0 and 1, float64, without overflow for large logits."""
    return np.exp(-np.logaddexp(0.0, -np.asarray(logits, dtype=np.float64)))


def _pair_notes(src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Return one note per pair: "src: no history; dst: not in training", or empty."""
    src, dst = (
        np.where(notes == "", "", np.char.add(f"{side}: ", notes)) for side, notes in (("src", src), ("dst", dst))
    )
    separator = np.where((src != "") & (dst != ""), "; ", "")
    return np.char.add(np.char.add(src, separator), dst)
