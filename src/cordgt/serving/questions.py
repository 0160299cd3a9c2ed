"""Questions to a live history, and their answers. An answer's id holds its question, so it can be asked again."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from cordgt.events.arrays import Ints
from cordgt.history.index import as_tensor
from cordgt.history.queries import Queries
from cordgt.inference.predictor import Predictor, sigmoid
from cordgt.models.base import LinkModel
from cordgt.serving.errors import UnknownAnswerError
from cordgt.serving.event_batch import NodeId
from cordgt.serving.live_history import LiveHistory
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import merge_near_ties

MAX_ID_BYTES = 700  # a longer question is kept in the log, and the id has its hash
KINDS = ("recommend", "score", "active", "next")
MAX_PAIRS = 1_000_000  # scored in one call


@dataclass(frozen=True)
class Question:
    """A question at a ``cut``. Two answers to one question are equal, whenever they are computed."""

    kind: str  # see `KINDS`
    model: str  # id of the model
    cut: int  # number of visible events
    at: int | float | None = None  # time on the stream's axis; None: time of the last visible event
    source: NodeId | None = None  # recommend
    n: int = 10
    new_only: bool = False
    exclude: tuple[NodeId, ...] = ()
    candidates: tuple[NodeId, ...] | None = None  # None: every destination
    pairs: tuple[tuple[NodeId, NodeId], ...] = ()  # score
    within: str | None = None  # a horizon such as "7d": active, and recommend with probabilities
    role: str = "source"  # active

    @property
    def needs_run(self) -> bool:
        """Whether only a whole run can answer it; see `serving.run_questions`."""
        return self.kind in ("active", "next") or self.within is not None

    def to_json(self) -> bytes:
        """Return the question as JSON, without values that are the default."""
        defaults = {field.name: field.default for field in self.__dataclass_fields__.values()}
        given = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        return json.dumps(given, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_json(cls, body: bytes) -> Question:
        """Restore the output of `to_json`. UnknownAnswerError if it is something else."""
        try:
            values = json.loads(body)
            for name in ("exclude", "candidates"):
                if name in values:
                    values[name] = tuple(values[name])
            if "pairs" in values:
                values["pairs"] = tuple((src, dst) for src, dst in values["pairs"])
            question = cls(**values)
            is_valid = question.kind in KINDS and isinstance(question.cut, int) and question.cut > 0
            if not is_valid or not isinstance(question.n, int) or question.n < 1:
                raise ValueError
            return question
        except (ValueError, TypeError, KeyError, RecursionError):
            raise unknown_answer() from None


def unknown_answer() -> UnknownAnswerError:
    """Return the error for an id that is not that of an answer."""
    return UnknownAnswerError("This is not the id of an answer of this service.")


def encode_answer_id(question: Question) -> tuple[str, bytes | None]:
    """Return the id of the answer to a question, and the body to keep in the log if it is too long for the id."""
    body = question.to_json()
    packed = zlib.compress(body, 6)
    if len(packed) <= MAX_ID_BYTES:
        return "a" + base64.urlsafe_b64encode(packed).decode().rstrip("="), None
    return "q" + hashlib.sha256(body).hexdigest(), packed


def decode_answer_id(answer_id: str) -> Question | str:
    """Return the question of an answer, or the hash of a question that is kept in the log."""
    kind, text = answer_id[:1], answer_id[1:]
    if kind == "q":
        return text
    if kind != "a" or len(text) > 2 * MAX_ID_BYTES:
        raise unknown_answer()
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise unknown_answer() from None
    return unpack_question(packed)


def unpack_question(packed: bytes) -> Question:
    """Return the question of a compressed body. UnknownAnswerError if it is damaged or larger than 64 MB."""
    try:
        unpacker = zlib.decompressobj()
        body = unpacker.decompress(packed, 64 * 2**20)
    except zlib.error:
        raise unknown_answer() from None
    if unpacker.unconsumed_tail:
        raise unknown_answer()
    return Question.from_json(body)


class Answerer:
    """Answers questions about a live history with one model."""

    def __init__(self, live: LiveHistory, model: LinkModel, seed: int, has_training_events: np.ndarray) -> None:
        self._live, self._model, self._seed = live, model, seed
        self._has_training_events = has_training_events

    def predictor(self) -> Predictor:
        """Return the model with the whole history so far."""
        live = self._live
        return Predictor(self._model, live.stream(), live.history(self._seed), self._has_training_events)

    def answer(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        """Answer questions together. Those at one ``cut`` with the same candidates share one call of the model."""
        answers: list[dict[str, Any]] = [{} for _ in questions]
        groups: dict[Any, list[int]] = defaultdict(list)
        for i, question in enumerate(questions):
            groups[question.kind, question.cut, question.candidates].append(i)
        for (kind, _, _), rows in groups.items():
            group = [questions[i] for i in rows]
            found = self._recommend(group) if kind == "recommend" else self._score(group)
            for i, answer in zip(rows, found, strict=True):
                answers[i] = answer
        return answers

    def _recommend(self, questions: list[Question]) -> list[dict[str, Any]]:
        live, cut = self._live, questions[0].cut
        n_nodes = live.n_nodes_at(cut)
        n_unknown = 0
        if questions[0].candidates is None:
            candidates = live.destinations_at(cut)
        else:
            encoded = live.encode(list(questions[0].candidates), "dst", n_nodes)
            candidates = np.unique(encoded[encoded >= 0])
            n_unknown = int((encoded < 0).sum())
        step = max(1, MAX_PAIRS // max(1, len(candidates)))
        answers = []
        for start in range(0, len(questions), step):
            part = questions[start : start + step]
            sources = [live.encode([question.source], "src", n_nodes)[0] for question in part]  # type: ignore[list-item]
            src = np.array([node if node >= 0 else n_nodes for node in sources], np.int64)
            queries, visible = self._queries(src, np.broadcast_to(candidates, (len(src), len(candidates))), part)
            history = live.history(self._seed)
            logits = score_queries(self._model, history, queries)
            n_met = history.index.pair_history(queries.src[:, None], queries.dst, queries.cut[:, None])[0].numpy()
            for i, question in enumerate(part):
                answer = self._rank(question, src[i], candidates, logits[i], n_met[i], int(visible[i]), n_nodes)
                if n_unknown:
                    answer["unknown_candidates"] = n_unknown
                answers.append(answer)
        return answers

    def _rank(
        self, question: Question, src: int, candidates: Ints, logits: np.ndarray, n_met: np.ndarray, cut: int, n: int
    ) -> dict[str, Any]:
        """Return the best partners, in the order of `Predictor.recommend`."""
        allowed = candidates != src
        if question.candidates is None and cut < question.cut:  # an earlier time sees fewer destinations
            allowed &= np.isin(candidates, self._live.destinations_at(cut))
        if question.new_only:
            allowed &= n_met == 0
        if question.exclude:
            allowed &= ~np.isin(candidates, self._live.encode(list(question.exclude), "dst", n))
        candidates, n_met = candidates[allowed], n_met[allowed]
        logits = merge_near_ties(logits[allowed], self._model.score_tolerance)
        best = np.lexsort((candidates, -logits))[: question.n]
        predictor = self.predictor()
        notes = predictor.notes(candidates[best], np.full(len(best), cut))
        ids = predictor.stream.ids.decode(candidates[best]).to_pylist()
        rows = zip(ids, sigmoid(logits[best]).tolist(), n_met[best].tolist(), notes.tolist(), strict=True)
        return {
            "source": question.source,
            "note": str(predictor.notes(np.array([src]), np.array([cut]))[0]),
            "partners": [{"node": node, "score": score, "met": met, "note": note} for node, score, met, note in rows],
        }

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
