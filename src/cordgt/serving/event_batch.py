"""EventBatch: the events of one request, checked and sorted by time; as JSON for the event log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import Features, Floats, Ints, as_column, as_feature_matrix
from cordgt.events.columns import are_whole, check_exact_floats, check_time_span
from cordgt.events.ids import as_id_column
from cordgt.events.stream import EventStream
from cordgt.events.times import TimeAxis
from cordgt.serving.errors import RequestError

MAX_ID_LENGTH = 1000  # characters
NodeId = int | str


@dataclass(frozen=True)
class EventSchema:
    """What the events of a stream look like."""

    ids_are_text: bool
    time: TimeAxis
    first_time: int | float
    edge_dim: int
    feature_names: tuple[str, ...] = ()  # names of the event features, if known; then an event may name each

    @classmethod
    def of_stream(cls, stream: EventStream, columns: Mapping[str, str]) -> EventSchema:
        """Return the schema of a stream that was read with these column options."""
        names = tuple(name.strip() for name in columns.get("features", "").split(","))
        if len(names) != stream.edge_dim or any(name.isdigit() for name in names):
            names = ()
        is_text = str(stream.ids.names.type) != "int64"
        return cls(is_text, stream.time, stream.t[0].item(), stream.edge_dim, names)

    def parse_id(self, value: Any, where: str) -> NodeId:
        """Return a node id of the stream's type. RequestError if the value cannot be one."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise RequestError(
                f"{where} is {_shorten(value)}, which is not a node id: an id is text or a whole number."
            )
        if not self.ids_are_text:
            if isinstance(value, str) and _is_canonical_int(value):
                value = int(value)
            if isinstance(value, str) or not -(2**63) <= value < 2**63:
                raise RequestError(f"{where} is {_shorten(value)}, but the ids of this history are whole numbers.")
            return value
        text = str(value)
        if not text or len(text) > MAX_ID_LENGTH:
            raise RequestError(f"{where} must have 1 to {MAX_ID_LENGTH} characters; it has {len(text)}.")
        if not text.isprintable() and not _is_utf8(text):
            raise RequestError(f"{where} is not valid Unicode text.")
        return text

    def parse_time(self, value: Any, where: str) -> int | float:
        """Return a time on the stream's axis. RequestError if the value is none."""
        if not _is_utf8(str(value)):
            raise RequestError(f"{where} is not valid Unicode text.")
        try:
            return self.time.parse(value)
        except DataError as error:
            raise RequestError(f"{where}: {error}") from None

    def parse_events(self, events: Sequence[Any]) -> EventBatch:
        """Check the events of a request and sort them by time. RequestError names the event that is wrong."""
        if not events:
            raise RequestError("'events' is empty. Send at least one event.")
        src, dst = ([self._id_of(event, i, name) for i, event in enumerate(events)] for name in ("src", "dst"))
        times = [self._value_of(event, i, "time") for i, event in enumerate(events)]
        for i, value in enumerate(times):
            if isinstance(value, bool) or not isinstance(value, int | float | str) or not _is_utf8(str(value)):
                raise RequestError(f"events[{i}]: the time {_shorten(value)} is not {self.time.expected_text}.")
        features = [self._features_of(event, i) for i, event in enumerate(events)] if self.edge_dim else None
        allowed = {"src", "dst", "time"} | ({"features", *self.feature_names} if self.edge_dim else set())
        for i, event in enumerate(events):
            unknown = sorted(str(name) for name in event if name not in allowed)
            if unknown:
                hint = "" if self.edge_dim else " This history has no event features."
                raise RequestError(
                    f"events[{i}] has the unknown key {_shorten(unknown[0])}. "
                    f"Known keys: {', '.join(sorted(allowed))}.{hint}"
                )
        try:
            t = self.time.parse_column(as_column(times))
            edge_x = None if features is None else as_feature_matrix(np.array(features, np.float64), len(t), "features")
            check_time_span(np.asarray(min(self.first_time, t.min().item())), t.max())
            if (t.dtype.kind == "f") != isinstance(self.first_time, float) and not (
                t.dtype.kind == "f" and are_whole(t)
            ):
                check_exact_floats(np.append(t, self.first_time))
        except RowError as error:
            raise RequestError(f"events[{error.row}]: {error.reason}.") from None
        except (DataError, OverflowError) as error:
            raise RequestError(f"events: {error}") from None
        return EventBatch(src, dst, t, edge_x).sort()

    def _id_of(self, event: Any, i: int, name: str) -> NodeId:
        return self.parse_id(self._value_of(event, i, name), f"events[{i}].{name}")

    def _value_of(self, event: Any, i: int, name: str) -> Any:
        if not isinstance(event, Mapping):
            raise RequestError(f"events[{i}] is {_shorten(event)}; an object with src, dst and time was expected.")
        if event.get(name) is None:
            raise RequestError(f"events[{i}] has no '{name}'.")
        return event[name]

    def _features_of(self, event: Mapping[str, Any], i: int) -> list[float]:
        if "features" in event:
            values = event["features"]
        elif self.feature_names:
            values = [self._value_of(event, i, name) for name in self.feature_names]
        else:
            raise RequestError(f"events[{i}] has no 'features': a list of {self.edge_dim} numbers was expected.")
        if not isinstance(values, list) or len(values) != self.edge_dim:
            raise RequestError(f"events[{i}].features must be a list of {self.edge_dim} numbers.")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 3e38 or value != value:
                raise RequestError(f"events[{i}].features: {_shorten(value)} is not a finite number.")
        return values


@dataclass(frozen=True, eq=False)
class EventBatch:
    """Checked events in order of time."""

    src: list[NodeId]
    dst: list[NodeId]
    t: Ints | Floats  # (n,)
    edge_x: Features | None  # (n, de)

    def __len__(self) -> int:
        return len(self.src)

    def sort(self) -> EventBatch:
        """Return the events in stable order of time."""
        order = np.argsort(self.t, kind="stable")
        if (order == np.arange(len(order))).all():
            return self
        src, dst = ([ids[i] for i in order] for ids in (self.src, self.dst))
        return EventBatch(src, dst, self.t[order], None if self.edge_x is None else self.edge_x[order])

    def not_before(self, time: int | float) -> tuple[EventBatch, int]:
        """Return the events with earlier times raised to ``time``, and the number of these events."""
        is_late = self.t < time
        t = np.where(is_late, time, self.t)
        return replace(self, t=t), int(is_late.sum())

    def to_json(self) -> bytes:
        """Return the columns as JSON. Numbers keep every digit."""
        columns: dict[str, Any] = {"src": self.src, "dst": self.dst, "time": self.t.tolist()}
        if self.edge_x is not None:
            columns["features"] = self.edge_x.tolist()
        return json.dumps(columns, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, body: bytes) -> EventBatch:
        """Restore the output of `to_json`."""
        return cls.concatenate([json.loads(body)])

    @classmethod
    def concatenate(cls, columns: Sequence[Mapping[str, Any]]) -> EventBatch:
        """Join the parsed columns of several batches."""
        src, dst, times = ([x for one in columns for x in one[name]] for name in ("src", "dst", "time"))
        features = [x for one in columns for x in one.get("features", ())]
        return cls(src, dst, np.array(times), np.array(features, np.float32) if features else None)


def as_ids(values: Sequence[NodeId]) -> Any:
    """Return checked ids as an Arrow column."""
    return as_id_column(list(values))


def _is_canonical_int(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20 and str(int(text)) == text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shorten(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
