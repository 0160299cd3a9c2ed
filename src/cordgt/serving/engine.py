"""Engine: the one thread that owns the live history. It adds events, and answers waiting questions together."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cordgt.serving.errors import NotReadyError, TooBusyError
from cordgt.serving.event_batch import EventBatch
from cordgt.serving.live_history import LiveHistory
from cordgt.serving.questions import Question

MAX_WAITING = 2000  # questions
MAX_TOGETHER = 8  # questions answered in one call; the last one waits for all, and more save little
IDLE_SECONDS = 0.05
IDLE_SHARE = 0.25  # of the time, at most, is for idle work, because a question waits until a piece of it is done


@dataclass
class _Work:
    """Something for the engine: events to add, a question, or a function to call."""

    events: EventBatch | None = None
    question: Callable[[LiveHistory], Question] | None = None
    call: Callable[[LiveHistory], Any] | None = None
    result: Future[Any] = field(default_factory=Future)


class Engine:
    """Runs all work on a live history in one thread. So an answer never mixes two states."""

    def __init__(
        self,
        live: LiveHistory,
        answer: Callable[[list[Question]], list[dict[str, Any]]],
        *,
        on_append: Callable[[LiveHistory, int], None] = lambda live, start: None,
        when_idle: Callable[[LiveHistory], bool] = lambda live: False,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._live, self._answer = live, answer
        self._has_failed = False
        self._on_append, self._when_idle, self._on_failure = on_append, when_idle, on_failure
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="cordgt-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Do the work that waits, then end the thread."""
        self._is_stopped = True
        self._work.put(None)
        self._thread.join()

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait."""
        return self._work.qsize()

    def append(self, events: EventBatch) -> None:
        """Add durable events. Questions that are asked later see them."""
        self._work.put(_Work(events=events))

    def ask(self, question: Callable[[LiveHistory], Question]) -> Future[Any]:
        """Ask a question, which is made from the live history when its turn comes."""
        if self._work.qsize() > MAX_WAITING:
            raise TooBusyError(f"More than {MAX_WAITING} requests wait for an answer. Try again later.")
        return self._submit(_Work(question=question))

    def call(self, function: Callable[[LiveHistory], Any]) -> Future[Any]:
        """Call a function with the live history, between two pieces of work."""
        return self._submit(_Work(call=function))

    def _submit(self, work: _Work) -> Future[Any]:
        if self._is_stopped:
            raise NotReadyError("The service is stopping.")
        self._work.put(work)
        return work.result

    def _run(self) -> None:
        idle_from, is_last = 0.0, False
        while not is_last:
            try:
                first = self._work.get(timeout=max(0.0, idle_from - time.monotonic()))
            except queue.Empty:
                start = time.monotonic()
                has_more = self._do_idle_work()
                end = time.monotonic()
                idle_from = end + ((end - start) * (1 / IDLE_SHARE - 1) if has_more else IDLE_SECONDS)
                continue
            waiting = [first, *self._drain()]
            is_last = None in waiting
            self._do([work for work in waiting if work is not None])

    def _drain(self) -> Iterator[_Work | None]:
        for _ in range(self._work.qsize()):
            yield self._work.get()

    def _do(self, waiting: list[_Work]) -> None:
        """Add all waiting events, then answer the questions: a question sees every event that arrived before it."""
        for work in waiting:
            if work.events is not None:
                self._append(work.events)
        for work in waiting:
            if work.call is not None:
                _resolve(work.result, work.call, self._live)
        questions = [work for work in waiting if work.question is not None]
        for start in range(0, len(questions), MAX_TOGETHER):
            self._answer_batch(questions[start : start + MAX_TOGETHER])

    def _do_idle_work(self) -> bool:
        try:
            return self._when_idle(self._live)
        except Exception as error:
            self._on_failure(error)
            return False

    def _append(self, events: EventBatch) -> None:
        if self._has_failed:
            return
        start = self._live.n_events
        try:
            self._live.append(events)
        except Exception as error:  # the events are durable, but this process can no longer answer
            self._has_failed = True
            self._on_failure(error)
            return
        self._on_append(self._live, start)

    def _answer_batch(self, batch: list[_Work]) -> None:
        waiting = [work for work in batch if work.result.set_running_or_notify_cancel()]
        questions: list[Question] = []
        pending: list[_Work] = []
        for work in waiting:
            try:
                assert work.question is not None
                questions.append(work.question(self._live))
                pending.append(work)
            except Exception as error:
                work.result.set_exception(error)
        if not pending:
            return
        try:
            for work, answer in zip(pending, self._answer(questions), strict=True):
                work.result.set_result(answer)
        except Exception as error:
            if len(pending) == 1:
                pending[0].result.set_exception(error)
                return
            for work, question in zip(pending, questions, strict=True):  # one wrong question must not spoil the others
                _resolve(work.result, lambda one: self._answer([one])[0], question, is_running=True)


def _resolve(result: Future[Any], function: Callable[[Any], Any], argument: Any, *, is_running: bool = False) -> None:
    if not is_running and not result.set_running_or_notify_cancel():
        return
    try:
        result.set_result(function(argument))
    except Exception as error:
        result.set_exception(error)
