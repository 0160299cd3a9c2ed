"""Answerer: answers questions about a live history with one model, in the two stages of `cordgt recommend`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cordgt.events.arrays import Ints
from cordgt.history.index import as_tensor
from cordgt.history.queries import Queries
from cordgt.inference.predictor import Predictor, Recommendation, sigmoid
from cordgt.inference.retrieval.ranking import CHEAP_POOL_SIZE, CandidateFilter
from cordgt.models.base import LinkModel
from cordgt.serving.live_history import LiveHistory
from cordgt.serving.questions import Question
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import find_contenders, merge_near_ties

FirstScorerMaker = Callable[[Predictor], Any]  # returns the first scorer of `Predictor`
MAX_PAIRS = 1_000_000  # scored in one call
FEW_CANDIDATES = 32  # a model ranks so few in any case, without a first stage


class Answerer:
    """Answers questions about a live history with one model."""

    def __init__(
        self,
        live: LiveHistory,
        model: LinkModel,
        seed: int,
        has_training_events: np.ndarray,
        make_first_scorer: FirstScorerMaker | None = None,
    ) -> None:
        self._live, self._model, self._seed = live, model, seed
        self._has_training_events, self._make_first_scorer = has_training_events, make_first_scorer

    def predictor(self, cut: int | None = None) -> Predictor:
        """Return the model with the first ``cut`` events, or all, as its history. Nothing is copied or indexed."""
        live = self._live
        stream = live.stream() if cut is None else live.stream_at(cut)
        history = live.history(self._seed)  # it knows later events too, but a query sees only those before its cut
        predictor = Predictor(self._model, stream, history, self._has_training_events, self._make_first_scorer)
        vars(predictor)["destinations"] = live.destinations  # a cached property, which would read all events
        return predictor

    def answer(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        """Answer questions together. Those that rank the same candidates at one ``cut`` share one call of the model."""
        answers: list[dict[str, Any]] = [{} for _ in questions]
        groups: dict[Any, list[int]] = defaultdict(list)
        for i, question in enumerate(questions):
            groups[question.kind, question.cut, question.candidates].append(i)
        for (kind, _, _), rows in groups.items():
            group = [questions[i] for i in rows]
            found = self._score(group) if kind == "score" else self._recommend(group)
            for i, answer in zip(rows, found, strict=True):
                answers[i] = answer
        return answers

    def _recommend(self, questions: list[Question]) -> list[dict[str, Any]]:
        """Answer questions at one ``cut`` with the same candidates."""
        live, cut = self._live, questions[0].cut
        n_nodes = live.n_nodes_at(cut)
        given, n_unknown = None, 0
        if questions[0].candidates is not None:
            encoded = live.encode(list(questions[0].candidates), "dst", n_nodes)
            given, n_unknown = np.unique(encoded[encoded >= 0]), int((encoded < 0).sum())
        n_candidates = live.destinations.count(cut) if given is None else len(given)
        if n_candidates <= (CHEAP_POOL_SIZE if self._model.is_cheap else FEW_CANDIDATES):
            answers = self._rank_all(questions, live.destinations_at(cut) if given is None else given, n_nodes)
        else:
            answers = self._rank_in_stages(questions, given, n_nodes)
        for answer in answers if n_unknown else ():
            answer["unknown_candidates"] = n_unknown
        return answers

    def _rank_in_stages(self, questions: list[Question], given: Ints | None, n_nodes: int) -> list[dict[str, Any]]:
        """Answer as `cordgt recommend` does: a first stage chooses candidates, and the model ranks them."""
        predictor = self.predictor(questions[0].cut)
        answers = []
        for question in questions:
            exclude = np.unique(self._live.encode(list(question.exclude), "dst", n_nodes)) if question.exclude else None
            allowed = CandidateFilter(given, exclude, question.new_only)
            result = predictor.answer(question.source, question.at, question.n, allowed=allowed)
            rows = [_partner(found) for found in result.recommendations]
            answers.append({"source": question.source, "note": result.note, "partners": rows})
        return answers

    def _rank_all(self, questions: list[Question], candidates: Ints, n_nodes: int) -> list[dict[str, Any]]:
        """Rank the same candidates for every question, in as few calls of the model as possible."""
        live = self._live
        step = max(1, MAX_PAIRS // max(1, len(candidates)))
        answers = []
        for start in range(0, len(questions), step):
            part = questions[start : start + step]
            sources = [live.encode([question.source], "src", n_nodes)[0] for question in part]  # type: ignore[list-item]
            src = np.array([node if node >= 0 else n_nodes for node in sources], np.int64)
            queries, visible = self._queries(src, np.broadcast_to(candidates, (len(src), len(candidates))), part)
            history = live.history(self._seed)
            logits = score_queries(self._model, history, queries)
            for i, question in enumerate(part):
                answers.append(self._rank(question, src[i], candidates, logits[i], int(visible[i]), n_nodes))
        return answers

    def _rank(
        self, question: Question, src: int, candidates: Ints, logits: np.ndarray, cut: int, n: int
    ) -> dict[str, Any]:
        """Return the best partners, in the order of `Predictor.recommend`."""
        allowed = candidates != src
        if question.candidates is None and cut < question.cut:  # an earlier time sees fewer destinations
            allowed &= self._live.destinations.is_visible(candidates, cut)
        if question.new_only:
            allowed &= self._n_met(src, candidates, cut) == 0
        if question.exclude:
            allowed &= ~np.isin(candidates, self._live.encode(list(question.exclude), "dst", n))
        allowed = np.flatnonzero(allowed)
        allowed = allowed[find_contenders(logits[allowed], question.n, self._model.score_tolerance)]
        candidates = candidates[allowed]
        logits = merge_near_ties(logits[allowed], self._model.score_tolerance)
        best = np.lexsort((candidates, -logits))[: question.n]
        predictor = self.predictor()
        notes = predictor.notes(candidates[best], np.full(len(best), cut))
        ids = predictor.stream.ids.decode(candidates[best]).to_pylist()
        n_met = self._n_met(src, candidates[best], cut).tolist()
        rows = zip(ids, sigmoid(logits[best]).tolist(), n_met, notes.tolist(), strict=True)
        return {
            "source": question.source,
            "note": str(predictor.notes(np.array([src]), np.array([cut]))[0]),
            "partners": [{"node": node, "score": score, "met": met, "note": note} for node, score, met, note in rows],
        }

    def _n_met(self, src: int, candidates: Ints, cut: int) -> Ints:
        """Return the number of events of a source with each candidate among the first ``cut`` events."""
        index = self._live.history(self._seed).index
        ends = as_tensor(np.full(1, src)), as_tensor(candidates), as_tensor(np.full(1, cut))
        return np.asarray(index.pair_history(*ends)[0].numpy())

    def _score(self, questions: list[Question]) -> list[dict[str, Any]]:
        live = self._live
        n_nodes = live.n_nodes_at(questions[0].cut)
        pairs = [pair for question in questions for pair in question.pairs]
        one_per_pair = [replace(question, pairs=()) for question in questions for _ in question.pairs]
        src, dst = (live.encode([pair[i] for pair in pairs], side, n_nodes) for i, side in enumerate(("src", "dst")))  # type: ignore[arg-type]
        is_shared = live.stream().ids.shared
        new: dict[Any, int] = {}
        for nodes, side, end in ((src, "src", 0), (dst, "dst", 1)):
            for i in np.flatnonzero(nodes < 0).tolist():
                nodes[i] = n_nodes + new.setdefault((pairs[i][end], "" if is_shared else side), len(new))
        queries, visible = self._queries(src, dst[:, None], one_per_pair)
        logits = score_queries(self._model, live.history(self._seed), queries)[:, 0]
        predictor = self.predictor()
        src_notes, dst_notes = (predictor.notes(nodes, visible).tolist() for nodes in (src, dst))
        rows = [
            {"src": pair[0], "dst": pair[1], "score": score, "src_note": src_note, "dst_note": dst_note}
            for pair, score, src_note, dst_note in zip(
                pairs, sigmoid(logits).tolist(), src_notes, dst_notes, strict=True
            )
        ]
        ends = np.cumsum([len(question.pairs) for question in questions])
        return [
            {"scores": rows[end - len(question.pairs) : end]} for question, end in zip(questions, ends, strict=True)
        ]

    def _queries(self, src: Ints, dst: Ints, questions: list[Question]) -> tuple[Queries, Ints]:
        """Return queries with one row per question, and their numbers of visible events."""
        stream = self._live.stream()
        t, visible = np.empty(len(questions)), np.empty(len(questions), np.int64)
        for i, question in enumerate(questions):
            if question.at is None:
                t[i], visible[i] = stream.elapsed[question.cut - 1], question.cut
            else:
                t[i] = stream.elapsed_at(np.asarray(question.at))
                visible[i] = min(stream.cut_at(question.at), question.cut)
        cut = as_tensor(visible)
        return Queries(as_tensor(src), as_tensor(dst), as_tensor(t), cut, cut), visible


def _partner(found: Recommendation) -> dict[str, Any]:
    return {"node": found.node, "score": found.score, "met": found.met, "note": found.note}
