"""Replay an event log: the events of the base stream and of the log as one stream, with checkpoints to start fast."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from cordgt.errors import CordgtError
from cordgt.events.stream import EventStream
from cordgt.files import remove, sync_folder
from cordgt.serving.event_batch import EventBatch
from cordgt.serving.event_log import EventLog

logger = logging.getLogger("cordgt.serving")
BASE_FOLDER = "base"  # the events before those of the log
EVENTS_AT_ONCE = 5_000_000  # parsed together
MIN_NEW_EVENTS = 50_000  # since the last checkpoint, and at least an eighth of all events
CHECKPOINTS = "checkpoint"  # folder with one folder per checkpoint, named by its number of events of the log


def replay_log(log: EventLog, base: EventStream, folder: Path) -> tuple[EventStream, int]:
    """Return the base stream with all events of the log, and how many of these a checkpoint held.

    A checkpoint only saves time. One that cannot be read, or that does not belong to the log, is ignored.
    """
    stream, n_saved = _read_checkpoint(folder, base, log.count)
    bodies: list[bytes] = []
    n = 0
    for record in log.read(n_saved):
        bodies.append(record.body)
        n += record.count
        if n >= EVENTS_AT_ONCE:
            stream = _append(stream, bodies)
            bodies, n = [], 0
    return (_append(stream, bodies) if bodies else stream), n_saved


def write_checkpoint(folder: Path, stream: EventStream, n_logged: int) -> None:
    """Save a replayed stream, which holds the first ``n_logged`` events of the log, and remove older checkpoints."""
    target = folder / CHECKPOINTS / str(n_logged)
    part = target.with_name(f".part.{uuid.uuid4().hex}")
    try:
        part.mkdir(parents=True)
        stream.save(part)
        remove(target)  # a damaged one
        part.rename(target)
        sync_folder(target.parent)
        for other in target.parent.iterdir():
            if other != target:
                remove(other)
    except (OSError, CordgtError) as error:  # a full disk must not stop the service
        logger.warning("no checkpoint was written", extra={"fields": {"reason": str(error)}})
        shutil.rmtree(part, ignore_errors=True)


class CheckpointWriter:
    """Writes checkpoints of a history that grows, in another thread, so that the next start is fast."""

    def __init__(self, folder: Path, n_base: int, n_saved: int) -> None:
        """``n_base``: events before those of the log. ``n_saved``: events of the log in the latest checkpoint."""
        self._folder, self._n_base, self._n_saved = folder, n_base, n_saved
        self._thread: threading.Thread | None = None

    def update(self, n_events: int, snapshot: Callable[[], EventStream]) -> None:
        """Start to write a checkpoint if enough events have come. ``snapshot`` returns the ``n_events`` events."""
        n_logged = n_events - self._n_base
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or n_logged - self._n_saved < max(MIN_NEW_EVENTS, n_events // 8):
            return
        self._n_saved = n_logged
        work = (self._folder, snapshot(), n_logged)
        self._thread = threading.Thread(target=write_checkpoint, args=work, name="cordgt-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the thread."""
        if self._thread is not None:
            self._thread.join()


def _read_checkpoint(folder: Path, base: EventStream, n_logged: int) -> tuple[EventStream, int]:
    """Return the latest checkpoint and its number of events of the log; the base stream and 0 if there is none."""
    names = [path.name for path in (folder / CHECKPOINTS).glob("*") if path.name.isdigit()]
    for n in sorted((int(name) for name in names), reverse=True):
        try:
            stream = EventStream.load(folder / CHECKPOINTS / str(n))
        except CordgtError as error:
            logger.warning("a checkpoint was ignored", extra={"fields": {"reason": str(error)}})
            continue
        if n <= n_logged and stream.n_events == base.n_events + n and stream.time == base.time:
            return stream, n
    return base, 0


def _append(stream: EventStream, bodies: list[bytes]) -> EventStream:
    batch = EventBatch.concatenate(json.loads(b"[" + b",".join(bodies) + b"]"))
    return stream.append(batch.src, batch.dst, batch.t, batch.edge_x)
