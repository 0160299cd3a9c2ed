"""Committer: the one thread that writes the event log. Requests that wait together share one commit."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cordgt.serving.errors import (
    FutureEventError,
    KeyConflictError,
    LateEventError,
    LogUnavailableError,
    NotReadyError,
    TooBusyError,
)
from cordgt.serving.event_batch import EventBatch, EventSchema
from cordgt.serving.event_log import EventLog, LogRecord
from cordgt.serving.time_limit import TimeLimit

MAX_WAITING = 1000  # requests
MAX_TOGETHER = 100  # requests per commit


@dataclass(frozen=True)
class Receipt:
    """What the service says about accepted events."""

    accepted: int
    cut: int  # number of visible events after these
    late: int = 0  # events that got the time of the last accepted event, because they were earlier
    repeated: bool = False  # the key was known: the events were accepted by an earlier request


@dataclass
class _Request:
    events: EventBatch
    digest: str
    key: str | None
    receipt: Future[Receipt] = field(default_factory=Future)


class Committer:
    """Accepts events: checks keys and times, commits, and only then acknowledges."""

    def __init__(
        self,
        log: EventLog,
        schema: EventSchema,
        *,
        n_base: int,
        last_time: int | float,
        accept_late: bool,
        limit: TimeLimit,
        on_commit: Callable[[EventBatch], None],
    ) -> None:
        self._log, self._schema, self._n_base = log, schema, n_base
        self._last_time, self._accept_late, self._limit = last_time, accept_late, limit
        self._on_commit = on_commit
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._is_stopped = False
        self.problem = ""  # why the last commit failed; empty after a commit that did not
        self._thread = threading.Thread(target=self._run, name="cordgt-committer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what waits, then end the thread."""
        self._is_stopped = True
        self._requests.put(None)
        self._thread.join()

    @property
    def cut(self) -> int:
        """Number of durable events, with those of the base stream."""
        return self._n_base + self._log.count

    def submit(self, events: Any, key: str | None = None) -> Future[Receipt]:
        """Check the events of a request and wait for their commit. RequestError if one is wrong."""
        if self._is_stopped:
            raise NotReadyError("The service is stopping.")
        if self._requests.qsize() > MAX_WAITING:
            raise TooBusyError(f"More than {MAX_WAITING} requests wait to be written. Try again later.")
        batch = self._schema.parse_events(events)
        digest = hashlib.sha256(json.dumps(events, sort_keys=True).encode()).hexdigest()
        request = _Request(batch, digest, key)
        self._requests.put(request)
        return request.receipt

    def _run(self) -> None:
        while True:
            request = self._requests.get()
            batch: list[_Request] = []
            while request is not None:
                batch.append(request)
                if len(batch) == MAX_TOGETHER or self._requests.empty():
                    break
                request = self._requests.get()
            self._commit(batch)
            if request is None:
                return

    def _commit(self, requests: list[_Request]) -> None:
        """Write all requests that can be accepted in one transaction, then acknowledge them."""
        count, last_time = self._log.count, self._last_time
        records: list[LogRecord] = []
        accepted: list[tuple[_Request, EventBatch, Receipt]] = []
        repeated: list[tuple[_Request, Receipt]] = []
        for request in requests:
            try:
                known = self._find(request, records)
                if known is not None:
                    repeated.append((request, Receipt(known.count, self._n_base + known.first + known.count, 0, True)))
                    continue
                batch, n_late = self._check_times(request.events, last_time)
            except Exception as error:
                request.receipt.set_exception(error)
                continue
            records.append(LogRecord(count, len(batch), request.key, request.digest, batch.to_json()))
            count, last_time = count + len(batch), batch.t[-1].item()
            accepted.append((request, batch, Receipt(len(batch), self._n_base + count, n_late)))
        try:
            if records:
                self._log.append(records)
                self.problem = ""
        except Exception as error:
            self.problem = str(error)
            failure = error if isinstance(error, LogUnavailableError) else LogUnavailableError(_failure_text(error))
            for request in [request for request, _, _ in accepted] + [request for request, _ in repeated]:
                request.receipt.set_exception(failure)
            return
        self._last_time = last_time
        for _, batch, _ in accepted:
            self._on_commit(batch)
        for request, receipt in [(request, receipt) for request, _, receipt in accepted] + repeated:
            request.receipt.set_result(receipt)

    def _find(self, request: _Request, records: list[LogRecord]) -> LogRecord | None:
        """Return the record of an earlier request with the same key, if any."""
        if request.key is None:
            return None
        known = next((r for r in records if r.key == request.key), None) or self._log.find(request.key)
        if known is not None and known.digest != request.digest:
            raise KeyConflictError(f"The key {request.key!a} was used for other events. Use a new key.")
        return known

    def _check_times(self, batch: EventBatch, last_time: int | float) -> tuple[EventBatch, int]:
        """Return the events to accept, and how many of them are late.

        LateEventError if late events are refused. FutureEventError if an event is too far in the future.
        """
        if batch.t[-1] > self._limit.latest(last_time):
            after = "the last event" if self._limit.per_second is None else "now"
            raise FutureEventError(
                f"An event has the time {self._schema.time.format_one(batch.t[-1])}, more than {self._limit.text} "
                f"after {after}. Nothing of this request was accepted. Correct the time, or start the service with a "
                "larger --max-ahead."
            )
        if batch.t[0] >= last_time:
            return batch, 0
        if self._accept_late:
            return batch.not_before(last_time)
        first, last = (self._schema.time.format_one(t) for t in (batch.t[0], last_time))
        raise LateEventError(
            f"An event has the time {first}, before the last accepted event ({last}). Nothing of this request was "
            "accepted. Send events in order of time, or start the service with --late accept."
        )


def _failure_text(error: Exception) -> str:
    return f"The event log cannot be written ({type(error).__name__}). Nothing was accepted."
