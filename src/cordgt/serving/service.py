"""Service: a live history, its event log and the current model behind one object. `serving.app` speaks HTTP for it."""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from cordgt.errors import RunError, SettingError, check_choice
from cordgt.events.stream import EventStream
from cordgt.files import file_lock, sync_folder
from cordgt.serving.answerer import Answerer
from cordgt.serving.committer import Committer, Receipt
from cordgt.serving.engine import Engine
from cordgt.serving.errors import NotReadyError, RequestError, UnknownAnswerError
from cordgt.serving.event_batch import EventSchema, NodeId
from cordgt.serving.event_log import BINDING_FILE, EventLog
from cordgt.serving.forecast_answers import ForecastAnswerer
from cordgt.serving.live_history import LiveHistory
from cordgt.serving.model_store import LoadedModel, ModelStore, check_same_history
from cordgt.serving.quality import QualityMonitor
from cordgt.serving.questions import (
    Question,
    decode_answer_id,
    encode_answer_id,
    unknown_answer,
    unpack_question,
)
from cordgt.serving.replay import BASE_FOLDER, CheckpointWriter, replay_log
from cordgt.serving.sqlite_log import LOG_FILE, SqliteLog
from cordgt.serving.time_limit import TimeLimit

logger = logging.getLogger("cordgt.serving")
LATE_RULES = ("refuse", "accept")
ROLES = ("source", "destination")
MAX_PARTNERS = 10_000
MAX_LIST = 100_000  # ids in one request


@dataclass(frozen=True)
class ServiceOptions:
    """Settings of a service."""

    data_dir: Path
    late: str = "refuse"  # events earlier than the last accepted one; "accept" gives them its time
    max_ahead: str = ""  # how far in the future an event may be; see `serving.time_limit`
    device: str = "auto"
    log_url: str = ""  # postgresql://…; empty: SQLite in the data folder

    def __post_init__(self) -> None:
        check_choice("late", self.late, LATE_RULES)


class Service:
    """Takes events and answers questions. Every answer names its ``cut`` and its model, and can be replayed."""

    def __init__(self, run: str | Path, options: ServiceOptions) -> None:
        self.options = options
        self._run_path = Path(run)
        self._stack = ExitStack()
        self._failure = ""
        self._is_closed = False
        self._swap_lock = threading.Lock()
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    def _open(self) -> None:
        folder = self.options.data_dir
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(f"--data-dir {folder} cannot be made: {error.strerror}.") from None
        busy = RunError(f"{folder} is in use by another service. Stop that one, or use another --data-dir.")
        self._stack.enter_context(file_lock(folder, busy))
        self._models = ModelStore(folder, self.options.device)
        given = self._models.load(self._run_path)
        base = _load_base(folder, given)
        self._log: EventLog = self._open_log()
        self._stack.callback(self._log.close)
        stream, n_saved = replay_log(self._log, base, folder)
        self.live = LiveHistory(stream)
        self._forecasts = ForecastAnswerer(self.live)
        self.schema = EventSchema.of_stream(base, given.run.columns)
        self._model = self._choose_model(given)
        self.quality = QualityMonitor()
        self._warm_up()
        self._engine = Engine(
            self.live,
            self._answer,
            on_append=self._on_append,
            when_idle=lambda live: self.quality.step(live, self._answerer(self._model)),
            on_failure=self._on_failure,
        )
        self._committer = Committer(
            self._log,
            self.schema,
            n_base=base.n_events,
            last_time=self.live.last_time,
            accept_late=self.options.late == "accept",
            limit=TimeLimit.of_stream(base, self.options.max_ahead),
            on_commit=self._engine.append,
        )
        self._checkpoints = CheckpointWriter(folder, base.n_events, n_saved)
        self._stack.callback(self._checkpoints.close)  # before the folder is released
        self._checkpoints.update(self.live.n_events, self.live.stream)
        self._engine.start()
        self._committer.start()

    def close(self) -> None:
        """Commit the waiting events, answer the waiting questions, and release the log."""
        if self._is_closed:
            return
        self._is_closed = True
        self._committer.stop()
        self._engine.stop()
        self._stack.close()

    # -------------------- state

    @property
    def cut(self) -> int:
        """Number of durable events."""
        return self._committer.cut

    @property
    def model(self) -> LoadedModel:
        """The model that answers now."""
        return self._model

    def readiness(self) -> tuple[bool, str]:
        """Return whether the service can take events and answer questions, and the reason if not."""
        reason = "The service is stopping." if self._is_closed else self._failure or self._committer.problem
        return not reason, reason

    def call(self, function: Any) -> Future[Any]:
        """Call ``function(live_history)`` in the thread that owns the history."""
        self._check_ready()
        return self._engine.call(function)

    # -------------------- events and questions

    def add_events(self, events: Any, key: str | None = None) -> Future[Receipt]:
        """Accept events: one object or a list. The future has a receipt once they are durable."""
        self._check_ready()
        if isinstance(events, dict):
            events = [events]
        if not isinstance(events, list):
            raise RequestError("'events' must be a list of objects with src, dst and time.")
        return self._committer.submit(events, key)

    def recommend(
        self,
        source: Any,
        *,
        n: int = 10,
        at: Any = None,
        new_only: bool = False,
        exclude: Sequence[Any] = (),
        candidates: Sequence[Any] | None = None,
        within: Any = None,
    ) -> Future[dict[str, Any]]:
        """Return the most likely partners of a source."""
        _check_n(n)
        question = Question(
            kind="recommend",
            model="",
            cut=0,
            at=self._parse_at(at),
            source=self.schema.parse_id(source, "source"),
            n=n,
            new_only=new_only,
            exclude=tuple(self._parse_ids(exclude, "exclude")),
            candidates=None if candidates is None else tuple(self._parse_ids(candidates, "candidates")),
            within=_parse_within(within),
        )
        return self._ask(question)

    def active(self, within: Any, *, n: int = 10, at: Any = None, role: str = "source") -> Future[dict[str, Any]]:
        """Return the nodes that are most likely to act within a time."""
        _check_n(n)
        if role not in ROLES:
            raise RequestError(f"role must be {' or '.join(ROLES)}.")
        horizon = _parse_within(within)
        return self._ask(Question("active", "", 0, self._parse_at(at), n=n, within=horizon, role=role))

    def next_event(self, source: Any, *, n: int = 3, at: Any = None) -> Future[dict[str, Any]]:
        """Return when a source acts next, and its most likely partners then."""
        _check_n(n)
        node = self.schema.parse_id(source, "source")
        return self._ask(Question("next", "", 0, self._parse_at(at), source=node, n=n))

    def score(self, pairs: Sequence[Any], *, at: Any = None) -> Future[dict[str, Any]]:
        """Return the scores of pairs: objects with src and dst."""
        if not pairs or len(pairs) > MAX_LIST:
            raise RequestError(f"'pairs' must have 1 to {MAX_LIST:,} entries; it has {len(pairs):,}.")
        parsed = []
        for i, pair in enumerate(pairs):
            if not isinstance(pair, dict) or not {"src", "dst"} <= pair.keys():
                raise RequestError(f"pairs[{i}] must be an object with src and dst.")
            src, dst = (self.schema.parse_id(pair[name], f"pairs[{i}].{name}") for name in ("src", "dst"))
            parsed.append((src, dst))
        return self._ask(Question("score", "", 0, self._parse_at(at), pairs=tuple(parsed)))

    def replay(self, answer_id: str) -> Future[dict[str, Any]]:
        """Return an earlier answer again: the same question, ``cut`` and model."""
        self._check_ready()
        question = decode_answer_id(answer_id)
        if isinstance(question, str):
            packed = self._log.load_question(question)
            if packed is None:
                raise unknown_answer()
            question = unpack_question(packed)
        self._check_question(question)
        self._models.get(question.model)

        def question_at(live: LiveHistory) -> Question:
            if question.mark != live.mark(question.cut):  # another data folder, or events restored from a backup
                raise UnknownAnswerError(
                    f"The first {question.cut:,} events here are not those of this answer. Ask the service, with the "
                    "--data-dir, that gave it."
                )
            return question

        return self._engine.ask(question_at)

    def _ask(self, question: Question) -> Future[dict[str, Any]]:
        self._check_ready()
        model = self._model
        return self._engine.ask(lambda live: _place(question, model.id, live))

    def _answer(self, questions: list[Question]) -> list[dict[str, Any]]:
        """Answer questions in the engine's thread."""
        answers: list[dict[str, Any]] = []
        for model_id, group in groupby(questions, key=lambda question: question.model):
            part = list(group)
            found = self._answer_with(self._models.get(model_id), part)
            for question, answer in zip(part, found, strict=True):
                answer_id, body = encode_answer_id(question)
                if body is not None:
                    self._log.save_question(answer_id[1:], body)
                answers.append({"cut": question.cut, "model": model_id, "answer_id": answer_id} | answer)
        return answers

    def _answer_with(self, model: LoadedModel, questions: list[Question]) -> list[dict[str, Any]]:
        for_model = [question for question in questions if not question.is_forecast]
        answerer = self._answerer(model)
        found = iter(answerer.answer(for_model))
        return [
            self._forecasts.answer(model, answerer, question) if question.is_forecast else next(found)
            for question in questions
        ]

    def _answerer(self, model: LoadedModel) -> Answerer:
        seed = model.run.settings.seed
        return Answerer(self.live, model.network, seed, model.has_training_events, model.make_first_scorer)

    def _parse_ids(self, values: Sequence[Any], name: str) -> list[NodeId]:
        if len(values) > MAX_LIST:
            raise RequestError(f"'{name}' has {len(values):,} ids. At most {MAX_LIST:,} are allowed.")
        return [self.schema.parse_id(value, f"{name}[{i}]") for i, value in enumerate(values)]

    def _parse_at(self, at: Any) -> int | float | None:
        if at is None:
            return None
        time = self.schema.parse_time(at, "at")
        if time <= self.schema.first_time:
            first = self.schema.time.format_one(self.schema.first_time)
            raise RequestError(f"'at' must be after the first event of the history ({first}).")
        return time

    def _check_question(self, question: Question) -> None:
        """Raise UnknownAnswerError if a question from outside cannot have come from this service."""
        if question.cut > self.cut:
            raise unknown_answer()
        try:
            _check_n(question.n)
            if question.kind in ("recommend", "next"):
                self.schema.parse_id(question.source, "source")
            for ids in (question.exclude, question.candidates or (), *question.pairs):
                self._parse_ids(ids, "ids")
            if question.at is not None and (isinstance(question.at, bool | str) or self._parse_at(question.at) is None):
                raise unknown_answer()
            if _parse_within(question.within) != question.within or question.role not in ROLES:
                raise unknown_answer()
        except RequestError:
            raise unknown_answer() from None

    # -------------------- model life

    def swap_model(self, path: str | Path | None = None) -> LoadedModel:
        """Answer with the model of another run from now on; None: of the run that the service was started with."""
        with self._swap_lock:
            path = self._run_path if path is None else path
            loaded = self._models.load(path, lambda run: check_same_history(run, self.call(_stream_of).result()))
            if loaded.id != self._model.id:
                state = self._models.read_state()
                self._set_model(loaded, [*state.get("previous", []), self._model.id])
            return loaded

    def roll_back(self) -> LoadedModel:
        """Answer with the model before the current one."""
        with self._swap_lock:
            previous = list(self._models.read_state().get("previous", []))
            if not previous:
                raise RequestError("There is no earlier model to go back to.")
            loaded = self._models.get(previous.pop())
            self._set_model(loaded, previous)
            return loaded

    def _set_model(self, loaded: LoadedModel, previous: list[str]) -> None:
        started_with = self._models.read_state().get("started_with", loaded.id)
        self._models.write_state(started_with, loaded.id, previous)
        self._model = loaded
        self.quality.reset()
        logger.info("model changed", extra={"fields": {"model": loaded.id, "run": loaded.path}})

    def _choose_model(self, given: LoadedModel) -> LoadedModel:
        """Return the model to start with: the given one, or the one it was replaced by while the service ran."""
        state = self._models.read_state()
        check_same_history(given.run, self.live.stream())
        if state.get("started_with") == given.id:
            return self._models.get(state["current"])
        previous = [*state["previous"], state["current"]] if state else []
        self._models.write_state(given.id, given.id, previous)
        return given

    # -------------------- opening

    def _open_log(self) -> EventLog:
        url, folder = self.options.log_url, self.options.data_dir
        if not url:
            if (folder / BINDING_FILE).exists():
                raise SettingError(f"The event log of {folder} is in PostgreSQL. Use the same --log as before.")
            return SqliteLog(folder)
        if not url.startswith(("postgres://", "postgresql://")):
            raise SettingError(f"--log {url!r} is not known. Use postgresql://USER@HOST/DATABASE, or leave it out.")
        if (folder / LOG_FILE).exists():
            raise SettingError(f"The event log of {folder} is in SQLite. Leave out --log, or use another --data-dir.")
        from cordgt.serving.postgres_log import PostgresLog

        log = PostgresLog(url)
        try:
            log.bind(folder)
        except BaseException:
            log.close()
            raise
        return log

    def _warm_up(self) -> None:
        """Compile the loops before the first question."""
        stream = self.live.stream()
        source = stream.ids.decode([int(stream.src[-1])]).to_pylist()[0]
        question = Question("recommend", self._model.id, stream.n_events, source=source, n=1)
        pairs = ((source, source),)
        self._answerer(self._model).answer([question, Question("score", self._model.id, stream.n_events, pairs=pairs)])

    def _check_ready(self) -> None:
        if self._is_closed or self._failure:
            raise NotReadyError(self._failure or "The service is stopping.")

    def _on_append(self, live: LiveHistory, start: int) -> None:
        self.quality.on_append(live, start)
        self._checkpoints.update(live.n_events, live.stream)

    def _on_failure(self, error: BaseException) -> None:
        self._failure = "The service cannot go on after an internal error. Start it again; no event is lost."
        logger.error("engine failed", exc_info=error)


def _stream_of(live: LiveHistory) -> EventStream:
    return live.stream()


def _place(question: Question, model_id: str, live: LiveHistory) -> Question:
    """Return a question to a model about all events so far."""
    return replace(question, model=model_id, cut=live.n_events, mark=live.mark(live.n_events))


def _check_n(n: int) -> None:
    if not 1 <= n <= MAX_PARTNERS:
        raise RequestError(f"n={n} is not between 1 and {MAX_PARTNERS:,}.")


def _parse_within(within: Any) -> str | None:
    """Return a horizon as text. The run itself parses it."""
    if within is None:
        return None
    if isinstance(within, bool) or not isinstance(within, str | int | float) or len(str(within)) > 50:
        raise RequestError("'within' must be a length of time, such as 7d or 3600.")
    return str(within)


def _load_base(folder: Path, given: LoadedModel) -> EventStream:
    """Return the events before those of the log: at the first start the run's history, which is then saved."""
    base = folder / BASE_FOLDER
    if not base.exists():
        part = folder / f".base.{uuid.uuid4().hex}"
        part.mkdir()
        try:
            given.run.stream.save(part)
            sync_folder(part)
            part.rename(base)
            sync_folder(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return EventStream.load(base)
