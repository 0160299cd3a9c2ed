"""`Forecasts`: who acts, when, and how likely. Answers of a predictor together with the activity of its run.

All horizons and delays are elapsed times: seconds for dates, the file's own unit for numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import check_choice
from cordgt.events.arrays import unique_nodes
from cordgt.events.durations import format_duration, time_after, time_per_rate
from cordgt.events.stream import EventStream
from cordgt.history.queries import Queries
from cordgt.inference.predictor import Predictor, Recommendation, RecommendResult, sigmoid
from cordgt.inference.retrieval.gatherers import Question
from cordgt.inference.retrieval.ranking import CandidateFilter, StageCounts, check_budget, take_best
from cordgt.tasks.forecast import ACT_ROLES, ActRole, Forecaster
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import merge_near_ties

QUANTILES = (0.1, 0.5, 0.9)  # of the next event's time: the 80 % interval and the median
MAX_SOURCES = 10_000  # sources that a model scores for one destination
NOTE_BEYOND_HISTORY = "the wait is longer than the history"
NOTE_LATE = "the query is later than the last event by more than the history's length"
_BATCH = 1_000_000  # nodes whose activity is computed at once


@dataclass(frozen=True)
class NextEvent:
    """When a source acts next, and with whom. Times are numbers, or ISO text for dates."""

    node: Any  # id as in the user's data
    time: int | float | str  # of the query
    median: int | float | str | None  # None: the next event may never come
    low: int | float | str | None  # the next event is earlier with a probability of 10 %
    high: int | float | str | None  # the next event is earlier with a probability of 90 %
    wait: float  # from the query to the median: seconds for dates, the file's own unit for numbers; may be infinite
    partners: tuple[Recommendation, ...]  # the most likely destinations at the median, best first
    note: str = ""


@dataclass(frozen=True)
class ActiveNode:
    """A node and the probability that it acts within a horizon."""

    node: Any  # id as in the user's data
    probability: float
    events: int  # number of earlier events in the role
    last: int | float | str  # time of the last one
    note: str = ""  # see `Predictor.notes`


@dataclass(frozen=True)
class Forecasts:
    """A predictor, and the forecaster of its run."""

    predictor: Predictor
    forecaster: Forecaster

    @property
    def stream(self) -> EventStream:
        return self.predictor.stream

    def score(
        self, src: Any, dst: Any, horizon: float, at: np.ndarray | None = None, callbacks: Callback = NO_CALLBACK
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return scores, probabilities of an event within the horizon, and notes, (n,) each, of pairs of ids."""
        predictor = self.predictor
        queries = predictor.pair_queries(src, dst, at)
        logits = score_queries(predictor.model, predictor.history, queries, callbacks=callbacks)
        probability = self._probability(queries, self._log_partner(queries, logits), horizon)
        return sigmoid(logits[:, 0]), probability[:, 0], predictor.pair_notes(queries)

    def with_probabilities(self, results: Sequence[RecommendResult], horizon: float) -> list[RecommendResult]:
        """Return the results of `Predictor.answer` with the probability of an event within the horizon, best first.

        They go on from the logits of the results. The probability grows with the score of the candidates of one
        source, so the best by score are the best by probability.
        """
        found = list(results)
        index, model = self.predictor.history.index, self.predictor.model
        for i, result in enumerate(results):
            question, ranking = result.question, result.ranking
            if question is None or ranking is None or not len(ranking.node):
                continue
            logits = ranking.logit[None]
            if model.learns_ranking:
                log_partner = self._log_partner(self._one_query(question, ranking.node), logits)
            else:
                log_partner = self.forecaster.log_partner_of_logits(logits)
            source, cut, t = question.source, question.cut, question.t
            row = self.forecaster.pair_probability(index, log_partner, source, cut, t, horizon)[0]
            best = [
                replace(result.recommendations[k], probability=float(row[k]))
                for k in np.argsort(-row, kind="stable").tolist()
            ]
            found[i] = replace(result, recommendations=best)
        return found

    def recommend_sources(
        self,
        destination: Any,
        horizon: float | None = None,
        at: float | None = None,
        top: int = 10,
        *,
        allowed: CandidateFilter = CandidateFilter(),  # noqa: B008
        budget: int | None = None,
        exhaustive: bool = False,
        callbacks: Callback = NO_CALLBACK,
    ) -> RecommendResult:
        """Return the ``top`` sources most likely to interact with a destination, best first, and the note on it.

        Without a horizon, they are ranked by the rate of the pair, ``rate(u, t) * P(v | u, t)``; with one, by the
        probability of an event within it. Of more than ``budget`` sources (by default `MAX_SOURCES`), the model scores
        earlier partners of the destination and those that act most often; of all if ``exhaustive``. Ties stand in order
        of first appearance in the stream.
        """
        predictor = self.predictor
        target = predictor.node_indices(([destination], "dst"))[0]
        t, cut = predictor.times_and_cuts(None if at is None else np.array([at]), 1)
        n_visible, v = int(cut[0]), torch.from_numpy(target).to(predictor.device)
        if budget is not None:
            check_budget(budget, top)
        nodes, n_met, rate = self._all_sources(v, t, cut, allowed)
        counts = StageCounts(len(nodes), 0, len(nodes))
        limit = budget or max(MAX_SOURCES, top)
        if len(nodes) > limit and not exhaustive:
            order = np.lexsort((-rate, n_met == 0))
            enough = take_best(order, nodes, top, allowed)  # so that full groups leave as many answers as they can
            chosen = np.union1d(order[:limit], enough)
            nodes, n_met, rate = nodes[chosen], n_met[chosen], rate[chosen]
            counts = replace(counts, ranked=len(nodes))
        u = torch.from_numpy(nodes).to(predictor.device)
        times = t.repeat(len(u)), cut.repeat(len(u)), cut.repeat(len(u))
        queries = Queries(u, v.repeat(len(u))[:, None], *times)
        logits = score_queries(predictor.model, predictor.history, queries, callbacks=callbacks)
        logits = merge_near_ties(logits, predictor.model.score_tolerance)
        log_partner = self._log_partner(queries, logits)
        pair_rate = rate * np.exp(np.minimum(log_partner[:, 0], 0.0))
        probability = None if horizon is None else self._probability(queries, log_partner, horizon)[:, 0]
        order = np.lexsort((nodes, -pair_rate, np.zeros(len(nodes)) if probability is None else -probability))
        best = take_best(order, nodes, top, allowed)
        notes = predictor.notes(nodes[best], np.full(len(best), n_visible))
        answers = [
            Recommendation(
                node=node,
                score=float(sigmoid(logits[i, 0])),
                met=int(n_met[i]),
                note=str(note),
                probability=None if probability is None else float(probability[i]),
                rate=float(pair_rate[i] * time_per_rate(self.stream)),
            )
            for node, i, note in zip(self.stream.ids.decode(nodes[best]).to_pylist(), best.tolist(), notes, strict=True)
        ]
        note = str(predictor.notes(target, np.array([n_visible]))[0])
        return RecommendResult(answers, note, counts)

    def _all_sources(
        self, target: Tensor, t: Tensor, cut: Tensor, allowed: CandidateFilter
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sources (n,) that may be answers, their numbers of events with the target, and their rates.

        ``target``, ``t`` and ``cut`` are (1,). The nodes are ascending.
        """
        index = self.predictor.history.index
        if allowed.candidates is None:
            nodes = unique_nodes(self.stream.src[: int(cut[0])], self.stream.n_nodes)
        else:
            nodes = allowed.candidates
        nodes = allowed.allowed_for(int(target[0]), nodes)
        n_met = index.pair_history(torch.from_numpy(nodes).to(self.predictor.device), target, cut)[0].cpu().numpy()
        if allowed.new_only:
            nodes, n_met = nodes[n_met == 0], n_met[n_met == 0]
        return nodes, n_met, _in_batches(lambda part: self.forecaster.rate(index, part, cut, t), nodes)

    def next_events(
        self, nodes: Sequence[Any], at: float | None = None, top: int = 3, callbacks: Callback = NO_CALLBACK
    ) -> list[NextEvent]:
        """Return when each source acts next, with median and 80 % interval, and its ``top`` partners at the median.

        A source without history gets the answer of a new node. Partners are those of the history before the query.
        """
        predictor, stream = self.predictor, self.stream
        index = predictor.node_indices((nodes, "src"))[0]
        t, cut = predictor.times_and_cuts(None if at is None else np.full(len(index), at), len(index))
        waits = self.forecaster.next_time(predictor.history.index, index, cut, t, np.array(QUANTILES))
        notes = predictor.notes(index, cut.cpu().numpy())
        now = stream.t[-1].item() if at is None else at
        end = float(stream.elapsed[-1])
        is_late = at is not None and float(stream.elapsed_at(at)) - end > end
        answers = []
        for node, wait, start, note in zip(nodes, waits, t.tolist(), notes, strict=True):
            low, median, high = (self._format_time(self._time_after(start, w)) for w in wait.tolist())
            is_far = not wait[1] <= self._history_length(at)
            delay = float(wait[1]) if median is not None else 0.0
            partners = predictor.recommend(node, at, top, delay=delay)[0] if top else []
            all_notes = "; ".join([str(note)] * bool(note) + [NOTE_LATE] * is_late + [NOTE_BEYOND_HISTORY] * is_far)
            shown = self._format_time(now)
            answers.append(NextEvent(node, shown, median, low, high, float(wait[1]), tuple(partners), all_notes))
            callbacks.on_step(1)
        return answers

    def active(
        self, horizon: float, at: float | None = None, top: int | None = 10, *, role: ActRole = "source"
    ) -> list[ActiveNode]:
        """Return the ``top`` nodes of the history most likely to act within the horizon, best first; None: all."""
        check_choice("role", role, ACT_ROLES)
        predictor, stream = self.predictor, self.stream
        t, cut = predictor.times_and_cuts(None if at is None else np.array([at]), 1)
        n_visible = int(cut[0])
        ends = (stream.src if role == "source" else stream.dst)[:n_visible]
        nodes = unique_nodes(ends, stream.n_nodes)
        index = predictor.history.index
        probability = _in_batches(
            lambda part: self.forecaster.act_probability(index, part, cut, t, horizon, role), nodes
        )
        best = np.lexsort((nodes, -probability))[:top]
        n_events = np.bincount(ends, minlength=stream.n_nodes)
        last = np.zeros(stream.n_nodes, dtype=np.int64)
        last[ends] = np.arange(n_visible)  # the last one of several stays
        chosen = nodes[best]
        notes = predictor.notes(chosen, np.full(len(chosen), n_visible))
        ids = stream.ids.decode(chosen).to_pylist()
        return [
            ActiveNode(node, float(p), int(n_events[i]), self._format_time(stream.t[last[i]].item()), str(note))
            for node, i, p, note in zip(ids, chosen.tolist(), probability[best], notes, strict=True)
        ]

    def horizon_note(self, horizon: float, at: Any = None) -> str:
        """Say that a horizon reaches further than any in the data, so that its probabilities are extrapolated; or "".

        ``at`` is a time of the query, or several, or None for the end of the history. Times before the history have no
        note, because they are refused.
        """
        end = float(self.stream.elapsed[-1])
        times = np.array([end]) if at is None else np.atleast_1d(self.stream.elapsed_at(np.atleast_1d(at)))
        if not len(times) or times.min() < 0:
            return ""
        span, longest = min(float(times.min()), end), self.forecaster.longest_horizon
        silence = max(float(times.max()) - end, 0.0)  # between the last event and the query
        text = partial(format_duration, stream=self.stream)
        if horizon > span:
            return (
                f"no event of this kind was seen for so long: the horizon is {text(horizon)}, the history before the "
                f"query {text(span)}. The probability is an extrapolation."
            )
        if silence and silence + horizon > end:
            return (
                f"no event of this kind was seen for so long: the query is {text(silence)} after the last event, the "
                f"history is {text(end)} long. The probability is an extrapolation."
            )
        if longest and horizon > longest:
            return (
                f"the horizon ({text(horizon)}) is longer than those that were calibrated (up to {text(longest)}). "
                "The probability is an extrapolation."
            )
        return ""

    def _history_length(self, at: float | None) -> float:
        """Return the time from the first event to the query, or to the last event if that is earlier."""
        end = float(self.stream.elapsed[-1])
        return end if at is None else min(max(float(self.stream.elapsed_at(at)), 0.0), end)

    def _log_partner(self, queries: Queries, logits: np.ndarray) -> np.ndarray:
        return self.forecaster.log_partner(self.predictor.model, self.predictor.history, queries, logits=logits)

    def _one_query(self, question: Question, nodes: np.ndarray) -> Queries:
        device = self.predictor.device
        source, cut = (torch.tensor([x], device=device) for x in (question.source, question.cut))
        t = torch.tensor([question.t], dtype=torch.float64, device=device)
        return Queries(source, torch.from_numpy(nodes[None]).to(device), t, cut, cut)

    def _probability(self, queries: Queries, log_partner: np.ndarray, horizon: float) -> np.ndarray:
        """Return (B, M): the probability that each pair has an event within the horizon."""
        index = self.predictor.history.index
        return self.forecaster.pair_probability(index, log_partner, queries.src, queries.cut, queries.t, horizon)

    def _time_after(self, start: float, wait: float) -> int | float | None:
        """Return the time ``wait`` after ``start``, on the stream's axis. Dates far away are whole seconds."""
        time = time_after(self.stream, start + wait)
        return round(time, -6) if time is not None and self.stream.time.kind == "date" and wait >= 100 else time

    def _format_time(self, time: Any) -> Any:
        """Return a time of the stream's axis as the user writes it: a number, or ISO text for a date."""
        return None if time is None else self.stream.time.format([time])[0].as_py()


def _in_batches(function: Callable[[np.ndarray], np.ndarray], nodes: np.ndarray) -> np.ndarray:
    """Return a function of nodes (n,), computed for some nodes at a time."""
    parts = [function(nodes[i : i + _BATCH]) for i in range(0, len(nodes), _BATCH)]
    return np.concatenate(parts) if parts else np.empty(0)
