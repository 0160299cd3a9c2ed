"""Replay an event log: add its events to a live history."""

from __future__ import annotations

import json

from cordgt.serving.event_batch import EventBatch
from cordgt.serving.event_log import EventLog
from cordgt.serving.live_history import LiveHistory

EVENTS_AT_ONCE = 200_000


def replay_log(log: EventLog, live: LiveHistory) -> None:
    """Add all events of the log. They are parsed many at a time, because a record may have one event."""
    bodies: list[bytes] = []
    n = 0
    for record in log.read():
        bodies.append(record.body)
        n += record.count
        if n >= EVENTS_AT_ONCE:
            live.append(_join(bodies))
            bodies, n = [], 0
    if bodies:
        live.append(_join(bodies))


def _join(bodies: list[bytes]) -> EventBatch:
    return EventBatch.concatenate(json.loads(b"[" + b",".join(bodies) + b"]"))
