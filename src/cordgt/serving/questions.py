"""Questions to a live history. The id of an answer holds its question, so that it can be repeated."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import asdict, dataclass

from cordgt.serving.errors import UnknownAnswerError
from cordgt.serving.event_batch import NodeId

MAX_ID_BYTES = 700  # a longer question is kept in the log, and the id has its hash
KINDS = ("recommend", "score", "active", "next")


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
    mark: str = ""  # of the events that it saw; see `LiveHistory.mark`

    @property
    def is_forecast(self) -> bool:
        """Whether it asks when, or how likely within a time; see `serving.forecast_answers`."""
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
            whole = all(type(value) is int and value > 0 for value in (question.cut, question.n))
            texts = all(isinstance(value, str) for value in (question.kind, question.model, question.mark))
            if not whole or not texts or question.kind not in KINDS or not isinstance(question.new_only, bool):
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
