"""The stream of events: sorted by time, immutable, nodes numbered by first appearance.

Three things live here: ``NodeIds`` (the user's ids and our numbers for them), ``TimeAxis`` (numbers or dates) and
``EventStream``. Reading files is in ``readers``; nothing here knows what a CSV file is.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cordgt.errors import DataError, RunError

Side = Literal["src", "dst"]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Features = npt.NDArray[np.float32]

SORTED_NOTE = "the events were not sorted by time: sorted, events of equal time kept in the given order"
EVENTS_FILE = "events.parquet"
NODES_FILE = "nodes.parquet"
_FORMAT = "1"


class RowError(DataError):
    """A bad value in a column. ``row`` counts the rows from 0; readers turn it into a line of the file."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(f"row {row} (counted from 0): {what}")
        self.row = row
        self.what = what


# -------------------- columns


def as_column(values: Any) -> Any:
    """A column as an Arrow array, whatever it came as: Arrow, numpy, a tensor, a pandas series, a list.

    A list that mixes numbers and strings becomes strings. DataError where it is not one-dimensional.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    of_pandas = type(values).__module__.partition(".")[0] == "pandas"
    if not of_pandas and not isinstance(values, list | tuple):
        values = np.asarray(values)
        if values.ndim != 1:
            raise DataError(f"A column of {values.ndim} axes was given where a one-dimensional one was expected.")
        if values.dtype == object:
            values = values.tolist()
    try:
        column = pa.array(values, from_pandas=of_pandas)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([None if v is None or v != v else str(v) for v in values], pa.string())
    return as_column(column) if of_pandas else column


def _first(mask: Any) -> int:
    """Position of the first True of a boolean Arrow column (null counts as True); -1 if there is none."""
    return int(pc.index(pc.fill_null(mask, True), pa.scalar(True)).as_py())


def _first_failure(convert: Callable[[Any], Any], column: Any) -> int:
    """Row of the first value that ``convert`` refuses, by halving: about two conversions of the column in all."""
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            convert(column.slice(start, middle - start))
            start = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            stop = middle
    return start


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _int64_or_null(column: Any) -> Any:
    """Floats as int64; null where they are not whole or do not fit."""
    column = pc.cast(column, pa.float64())
    whole = pc.and_(pc.equal(column, pc.floor(column)), pc.less(pc.abs(column), 2.0**63))
    return pc.cast(pc.if_else(whole, column, None), pa.int64())


def id_column(values: Any) -> Any:
    """Node ids as an int64 or string Arrow column.

    Integers and whole-valued floats become int64 (integers beyond int64 strings), text stays as it is written.
    RowError at the first missing id or fractional number; DataError for a column of another type.
    """
    column = as_column(values)
    kind = column.type
    if column.null_count:
        raise RowError(_first(pc.is_null(column)), "the id is missing")
    if is_text(kind):
        empty = _first(pc.equal(column, ""))
        if empty >= 0:
            raise RowError(empty, "the id is missing")
        return pc.cast(column, pa.string())
    if pa.types.is_integer(kind):
        try:
            return pc.cast(column, pa.int64())
        except pa.ArrowInvalid:
            return pc.cast(column, pa.string())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        whole = _int64_or_null(column)
        if whole.null_count:
            row = _first(pc.is_null(whole))
            raise RowError(row, f"the id {column[row].as_py()} is not a whole number; ids are integers or strings")
        return whole
    if len(column) == 0:
        return pa.array([], pa.int64())
    raise DataError(f"A column of type {kind} cannot hold node ids; integers or strings can.")


def feature_rows(values: Any, n_rows: int, what: str) -> Features | None:
    """Features as float32 (n_rows, width); None for None or zero width.

    DataError where the shape is wrong, RowError where a value is not a finite number.
    """
    if values is None:
        return None
    raw = np.asarray(values)
    if raw.dtype == object or raw.dtype.kind not in "fiub":
        raise DataError(f"The {what} are not numbers (type {raw.dtype}).")
    if raw.ndim != 2 or raw.shape[0] != n_rows:
        raise DataError(f"The {what} have shape {raw.shape}; {n_rows} rows of equal length were expected.")
    if raw.shape[1] == 0:
        return None
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(raw, dtype=np.float32)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = (int(k[0]) for k in np.nonzero(~finite))
        raise RowError(row, f"column {column} of the {what} is {raw[row, column]}, not a finite number")
    return rows


# -------------------- ids


@dataclass(frozen=True, eq=False)
class NodeIds:
    """The user's id of every node, in internal order.

    Attributes:
        names: (N,) Arrow array, int64 or string.
        side: (N,) uint8, 0 for the space of the sources and 1 for that of the destinations; None: one shared space.
    """

    names: Any
    side: npt.NDArray[np.uint8] | None = None

    @classmethod
    def empty(cls, *, shared: bool) -> NodeIds:
        """No nodes yet; of a shared id space or of two."""
        return cls(pa.array([], pa.int64()), None if shared else np.zeros(0, np.uint8))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shared(self) -> bool:
        """Whether both columns name nodes of one id space."""
        return self.side is None

    def find(self, values: Any, side: Side = "src") -> Ints:
        """Internal ids of the user's, -1 where unknown. What does not convert to the ids' own type is unknown.

        A number and its text are the same id (7 and "7"), but "007" is not 7. A single id counts as a list of one.
        """
        if isinstance(values, str | int | float):
            values = [values]
        column = as_column(values)
        if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
            column = _int64_or_null(column)
        if not (pa.types.is_integer(column.type) or is_text(column.type)):
            return np.full(len(column), -1, np.int64)
        return self._place(column, side)

    def take(self, internal: npt.ArrayLike) -> Any:
        """The user's ids back, as written: (…,) Arrow array. Internal ids outside 0..N-1 give null."""
        index = np.asarray(internal, np.int64)
        outside = (index < 0) | (index >= len(self))
        return self.names.take(pa.array(index, mask=outside))

    def extend(self, src: Any, dst: Any) -> tuple[NodeIds, Ints, Ints]:
        """Both columns as internal ids, new nodes numbered from N on by first appearance, src before dst in an event.

        Numbers of nodes already known do not change. If only one of the old ids and the new ones is text, all become
        text. Errors as in ``id_column``.
        """
        src, dst = id_column(src), id_column(dst)
        own, src, dst = self._same_type(src, dst)
        src_id, dst_id = own._place(src, "src"), own._place(dst, "dst")
        new_src, new_dst = src_id < 0, dst_id < 0
        fresh_src, fresh_dst = _filter(src, new_src), _filter(dst, new_dst)
        vocabulary, side, src_code, dst_code = _vocabulary(fresh_src, fresh_dst, self.shared)
        rank, order = _appearance(src_code, 2 * np.flatnonzero(new_src), dst_code, 2 * np.flatnonzero(new_dst) + 1)
        src_id[new_src] = len(self) + rank[src_code]
        dst_id[new_dst] = len(self) + rank[dst_code]
        names = pa.concat_arrays([own.names, vocabulary.take(pa.array(order))])
        sides = None if self.side is None else np.concatenate([self.side, side[order]])
        return NodeIds(names, sides), src_id, dst_id

    def _place(self, column: Any, side: Side) -> Ints:
        """Internal ids of an integer or text column, -1 for null and unknown."""
        names, here = self._space(side)
        if len(names) == 0:
            return np.full(len(column), -1, np.int64)
        if is_text(column.type) != is_text(names.type):
            column, names = pc.cast(column, pa.string()), pc.cast(names, pa.string())
        elif column.type != names.type:
            column = _to_type(column, names.type)
        place = pc.fill_null(pc.index_in(column, value_set=names), -1)
        found = np.asarray(place).astype(np.int64)
        return found if here is None else np.where(found < 0, -1, here[found])

    def _space(self, side: Side) -> tuple[Any, Ints | None]:
        """The names of one id space and their internal ids (None: all of them, in order)."""
        if self.side is None:
            return self.names, None
        here = np.flatnonzero(self.side == (side == "dst"))
        return self.names.take(pa.array(here)), here

    def _same_type(self, src: Any, dst: Any) -> tuple[NodeIds, Any, Any]:
        """The ids and both columns all int64, or all strings if one of them is (an empty one has no say)."""
        text = [is_text(k.type) for k in (self.names, src, dst) if len(k)]
        kind = pa.string() if any(text) else pa.int64()
        return NodeIds(pc.cast(self.names, kind), self.side), pc.cast(src, kind), pc.cast(dst, kind)


def _to_type(column: Any, kind: Any) -> Any:
    """The column as ``kind``; integers that do not fit are null."""
    try:
        return pc.cast(column, kind)
    except pa.ArrowInvalid:
        fits = pc.less_equal(column, pa.scalar(2**63 - 1, column.type))
        return pc.cast(pc.if_else(fits, column, None), kind)


def _filter(column: Any, keep: npt.NDArray[np.bool_]) -> Any:
    return column.filter(pa.array(keep))


def _vocabulary(src: Any, dst: Any, shared: bool) -> tuple[Any, npt.NDArray[np.uint8], Ints, Ints]:
    """The distinct ids of both columns (once if shared, else once a side), their sides, and the columns as codes."""
    if shared:
        names, codes = _encode(pa.chunked_array([*_chunks(src), *_chunks(dst)], type=src.type))
        return names, np.zeros(len(names), np.uint8), codes[: len(src)], codes[len(src) :]
    src_names, src_code = _encode(src)
    dst_names, dst_code = _encode(dst)
    side = np.repeat(np.array([0, 1], np.uint8), [len(src_names), len(dst_names)])
    return pa.concat_arrays([src_names, dst_names]), side, src_code, dst_code + len(src_names)


def _encode(column: Any) -> tuple[Any, Ints]:
    """The distinct values of a column without nulls, and the column as places among them."""
    coded = pa.chunked_array(_chunks(column), type=column.type).dictionary_encode().unify_dictionaries()
    if coded.num_chunks == 0:
        return pa.array([], column.type), np.zeros(0, np.int64)
    codes = [np.asarray(chunk.indices, np.int64) for chunk in coded.chunks]
    return coded.chunk(0).dictionary, np.concatenate(codes)


def _chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def _appearance(src_code: Ints, src_when: Ints, dst_code: Ints, dst_when: Ints) -> tuple[Ints, Ints]:
    """Rank of every code by when it first appears, and the codes in that order. Each ``when`` is increasing."""
    n_codes = int(max(src_code.max(initial=-1), dst_code.max(initial=-1))) + 1
    first = np.full((2, n_codes), np.iinfo(np.int64).max)
    # Of repeated places the last written stays; written backwards, that is the earliest.
    first[0, src_code[::-1]] = src_when[::-1]
    first[1, dst_code[::-1]] = dst_when[::-1]
    order = np.argsort(first.min(axis=0), kind="stable")
    rank = np.empty(n_codes, np.int64)
    rank[order] = np.arange(n_codes)
    return rank, order


# -------------------- time

_ZONED = r"[T ]\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)$"
_ISO = "an ISO date such as 2024-03-01 or 2024-03-01T12:30:00Z"


@dataclass(frozen=True)
class TimeAxis:
    """What the times are: ``number`` (int64 or float64, in the user's unit) or ``date`` (int64 microseconds since
    1970, UTC; a date without a zone is UTC)."""

    kind: Literal["number", "date"] = "number"

    @classmethod
    def of(cls, column: Any) -> TimeAxis:
        """The axis a column stands on; for text the first value decides (a later one that does not fit is an error)."""
        column = as_column(column)
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return cls("date")
        if not is_text(column.type) or len(column) == 0 or column[0].as_py() is None:
            return cls("number")
        first = column[0].as_py().strip()
        return cls("date") if looks_like_time(first) == "date" else cls("number")

    @property
    def expected(self) -> str:
        """What a value on this axis looks like, for messages."""
        return "a number" if self.kind == "number" else _ISO

    def parse(self, value: Any) -> int | float:
        """One time (text, number, date or datetime) on this axis. DataError where it does not stand on it."""
        if value is None or isinstance(value, bool):
            raise DataError(f"{value!r} is not a time; {self.expected} was expected.")
        if not isinstance(value, str | int | float | datetime | date | np.generic):
            raise DataError(f"{value!r} is not a time; {self.expected} was expected.")
        try:
            found: int | float = self.parse_column(pa.array([value]))[0].item()
        except RowError as error:
            raise DataError(f"{error.what[0].upper()}{error.what[1:]}.") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            raise DataError(f"{value!r} is not a time; {self.expected} was expected.") from None
        return found

    def parse_column(self, column: Any) -> Ints | Floats:
        """A whole column of times on this axis.

        Returns:
            (E,) int64 for dates and where every number is an integer, float64 otherwise. RowError at the first value
            that is missing, not finite, or not on this axis (a date where numbers are expected, or the reverse).
        """
        column = as_column(column)
        if column.null_count:
            raise RowError(_first(pc.is_null(column)), f"the time is missing; {self.expected} was expected")
        if len(column) == 0:
            return np.zeros(0, np.int64)
        if is_text(column.type):
            column = pc.utf8_trim_whitespace(column)
            return _text_numbers(column) if self.kind == "number" else _text_dates(column)
        temporal = pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)
        if temporal != (self.kind == "date"):
            raise RowError(0, _mismatch(self.kind, column[0].as_py()))
        return _typed_dates(column) if temporal else _typed_numbers(column)

    def format(self, values: npt.ArrayLike) -> Any:
        """Times for people, as an Arrow array: numbers as they are, dates as ISO text in UTC (2024-03-01T12:30:00Z)."""
        if self.kind == "number":
            return pa.array(np.asarray(values))
        stamps = pa.array(np.asarray(values, np.int64)).cast(pa.timestamp("us", "UTC"))
        text = pc.replace_substring(pc.cast(stamps, pa.string()), " ", "T")
        return pc.replace_substring(text, ".000000Z", "Z")

    def format_one(self, value: float) -> str:
        """One time as text."""
        return str(self.format([value])[0].as_py())


def looks_like_time(text: str) -> Literal["number", "date", ""]:
    """Which axis a piece of text would stand on; nan and inf look like numbers. Empty: neither."""
    try:
        float(text)
        return "" if "_" in text else "number"
    except ValueError:
        pass
    try:
        _text_dates(pa.array([text.strip()]))
        return "date"
    except DataError:
        return ""


def _mismatch(kind: str, value: object) -> str:
    shown = repr(value) if isinstance(value, str) else str(value)
    if kind == "number":
        return f"the time {shown} is a date, but numbers are expected here: the times of this stream are numbers"
    return f"the time {shown} is a number, but {_ISO} is expected here: the times of this stream are dates"


def _text_numbers(column: Any) -> Ints | Floats:
    try:
        whole = pc.cast(column, pa.int64())
        if not pc.any(pc.match_substring_regex(column, "[xX]")).as_py():  # Arrow reads 0x1F as 31
            return _int64(whole)
    except pa.ArrowInvalid:
        pass
    try:
        return _finite(pc.cast(column, pa.float64()), column)
    except pa.ArrowInvalid:
        row = _first_failure(lambda part: pc.cast(part, pa.float64()), column)
    value = column[row].as_py()
    if value == "":
        raise RowError(row, "the time is missing; a number was expected")
    if looks_like_time(value) == "date":
        raise RowError(row, _mismatch("number", value))
    raise RowError(row, f"the time {value!r} is not a number")


def _text_dates(column: Any) -> Ints:
    try:
        return _dates(column)
    except pa.ArrowInvalid:
        row = _first_failure(_dates, column)
    value = column[row].as_py()
    if value == "":
        raise RowError(row, f"the time is missing; {_ISO} was expected")
    if looks_like_number(value):
        raise RowError(row, _mismatch("date", value))
    raise RowError(row, f"the time {value!r} is not {_ISO}")


def looks_like_number(text: str) -> bool:
    """Whether ``text`` reads as a number (nan and inf too)."""
    try:
        float(text)
        return "_" not in text
    except ValueError:
        return False


def _dates(column: Any) -> Ints:
    """ISO text as microseconds. ArrowInvalid where a value is not a date."""
    try:
        return _int64(pc.cast(pc.cast(column, pa.timestamp("us")), pa.int64()))
    except pa.ArrowInvalid:
        pass
    column = pc.replace_substring_regex(column, r"(\.\d{6})\d+", r"\1")
    column = pc.replace_substring_regex(column, r"\s*(z|UTC|GMT)$", "Z")
    column = pc.replace_substring_regex(column, r"(:\d{2}|\.\d+) +([+-]\d{2})", r"\1\2")
    zoned = pc.match_substring_regex(column, _ZONED)
    plain = pc.cast(pc.if_else(zoned, None, column), pa.timestamp("us"))
    shifted = pc.cast(pc.if_else(zoned, column, None), pa.timestamp("us", "UTC"))
    both = pc.coalesce(pc.cast(plain, pa.int64()), pc.cast(shifted, pa.int64()))
    return _int64(both)


def _typed_dates(column: Any) -> Ints:
    if pa.types.is_date(column.type):
        column = pc.cast(column, pa.timestamp("s"))
    zone = column.type.tz
    try:
        # Finer than a microsecond is cut off; the order of events is kept.
        stamps = pc.cast(column, pa.timestamp("us", zone), safe=column.type.unit != "ns")
    except pa.ArrowInvalid:
        row = _first_failure(lambda part: pc.cast(part, pa.timestamp("us", zone)), column)
        raise RowError(row, "the date is out of range") from None
    return _int64(pc.cast(stamps, pa.int64()))


def _typed_numbers(column: Any) -> Ints | Floats:
    kind = column.type
    if pa.types.is_integer(kind):
        try:
            return _int64(pc.cast(column, pa.int64()))
        except pa.ArrowInvalid:
            return _float64(pc.cast(column, pa.float64(), safe=False))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _finite(pc.cast(column, pa.float64()), column)
    raise DataError(f"A column of type {kind} cannot hold times; numbers, dates or ISO text can.")


def _finite(numbers: Any, column: Any) -> Floats:
    values = _float64(numbers)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        row = int(bad[0])
        value = column[row].as_py()
        raise RowError(row, f"the time {value!r} is not a finite number" if value != "" else "the time is missing")
    return values


def _int64(column: Any) -> Ints:
    return np.ascontiguousarray(_numpy(column), np.int64)


def _float64(column: Any) -> Floats:
    return np.ascontiguousarray(_numpy(column), np.float64)


def _numpy(column: Any) -> npt.NDArray[Any]:
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(flat.to_numpy(zero_copy_only=False))


# -------------------- stream


@dataclass(frozen=True, eq=False)
class EventStream:
    """Events sorted by time. A query sees the first ``cut`` of them.

    Attributes:
        src, dst: (E,) int64 internal ids, numbered by first appearance in the sorted stream, src before dst.
        t: (E,) int64 or float64, non-decreasing, finite.
        edge_x: (E, de) float32 or None. node_x: (N, dn) float32 or None.
        label: (E,) int64 or float64 or None; NaN where an event has none.
        notes: what was assumed or done on reading, in sentences for people.
    """

    src: Ints
    dst: Ints
    t: Ints | Floats
    edge_x: Features | None
    node_x: Features | None
    label: Ints | Floats | None
    ids: NodeIds
    time: TimeAxis
    name: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def from_columns(
        cls,
        src: Any,
        dst: Any,
        t: Any,
        edge_x: Any = None,
        label: Any = None,
        *,
        shared_ids: bool = True,
        time: TimeAxis | None = None,
        name: str = "",
        notes: Sequence[str] = (),
    ) -> EventStream:
        """A stream from raw columns: checked, sorted stably by time (said in the notes when needed), ids numbered.

        ``t`` as numpy numbers is taken to stand on ``time`` already; anything else is parsed. Without ``time`` the
        axis is found from the column. Node features are joined later (``with_node_features``).
        DataError for no events, unequal lengths or bad values (RowError with the row as given, before sorting).
        """
        given = _checked(src, dst, t, edge_x, label, time)
        given, was_sorted = given.by_time()
        ids, src_id, dst_id = NodeIds.empty(shared=shared_ids).extend(given.src, given.dst)
        said = tuple(notes) if was_sorted else (*notes, SORTED_NOTE)
        return cls(src_id, dst_id, given.t, given.edge_x, None, given.label, ids, given.time, name, said)

    @property
    def n_events(self) -> int:
        return len(self.src)

    @property
    def n_nodes(self) -> int:
        return len(self.ids)

    @property
    def edge_dim(self) -> int:
        """Width of the event features; 0 without."""
        return 0 if self.edge_x is None else self.edge_x.shape[1]

    @property
    def node_dim(self) -> int:
        """Width of the node features; 0 without."""
        return 0 if self.node_x is None else self.node_x.shape[1]

    @cached_property
    def elapsed(self) -> Floats:
        """(E,) float64 time since the first event; exact for integer times up to 2^53 of span."""
        since: Floats = (self.t - self.t[0]).astype(np.float64)
        return since

    @cached_property
    def tie_start(self) -> Ints:
        """(E,) int64 position of the first event with the same time."""
        later = np.zeros(self.n_events, np.int64)
        later[1:] = np.where(self.t[1:] != self.t[:-1], np.arange(1, self.n_events), 0)
        return np.maximum.accumulate(later)

    def elapsed_at(self, t: npt.ArrayLike) -> Any:
        """Float64 time since the first event of any times on the stream's axis (subtracted before the conversion)."""
        when = np.asarray(t)
        return np.subtract(when, self.t[0]).astype(np.float64)

    def cut_at(self, t: npt.ArrayLike) -> Any:
        """How many events are strictly earlier than ``t``: an int for one time, an int64 array for several."""
        when = np.asarray(t)
        if self.t.dtype.kind == "i" and when.dtype.kind == "f":
            # Earlier than 2.5 is earlier than 3; compared as integers, since float64 cannot hold every int64.
            low, high = -(2.0**63), 2.0**63
            whole = np.clip(np.ceil(when), low, np.nextafter(high, 0)).astype(np.int64)
            found = np.where(when >= high, self.n_events, np.searchsorted(self.t, whole, side="left"))
        else:
            found = np.searchsorted(self.t, when, side="left")
        return int(found) if when.ndim == 0 else found.astype(np.int64)

    def with_node_features(self, node_x: Any, *notes: str) -> EventStream:
        """The same stream with (N, dn) node features in internal order, and what there is to say about them."""
        return replace(self, node_x=feature_rows(node_x, self.n_nodes, "node features"), notes=(*self.notes, *notes))

    def with_notes(self, *notes: str) -> EventStream:
        """The same stream with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def append(self, src: Any, dst: Any, t: Any, edge_x: Any = None, label: Any = None) -> EventStream:
        """The stream with later events added; new ids are numbered on, known ones keep their numbers.

        The new events are sorted among themselves. New nodes get node features of zero where the stream has some;
        missing labels are NaN, and labels the stream does not know are dropped.
        DataError when one is earlier than the stream's last event, or its features are not as wide.
        """
        given, _ = _checked(src, dst, t, edge_x, label, self.time).by_time()
        old_t, new_t = _same_number_type(self.t, given.t)
        if new_t[0] < old_t[-1]:
            first, last = self.time.format_one(new_t[0]), self.time.format_one(old_t[-1])
            raise DataError(f"The new events begin at {first}, before the last event of the history ({last}).")
        edge_x = self._more_features(given.edge_x)
        ids, src_id, dst_id = self.ids.extend(given.src, given.dst)
        return replace(
            self,
            src=np.concatenate([self.src, src_id]),
            dst=np.concatenate([self.dst, dst_id]),
            t=np.concatenate([old_t, new_t]),
            edge_x=edge_x,
            node_x=_more_rows(self.node_x, len(ids)),
            label=_more_labels(self.label, given.label, len(src_id)),
            ids=ids,
            notes=(*self.notes, f"{len(src_id)} later events appended, with {len(ids) - self.n_nodes} new nodes"),
        )

    def append_stream(self, later: EventStream) -> EventStream:
        """``append`` for events that were read as a stream of their own (same axis of time; ids by name).

        Where both streams have node features of one width, new nodes bring theirs.
        """
        if later.time != self.time:
            raise DataError(f"In the new events {_mismatch(self.time.kind, later.time.format_one(later.t[0]))}.")
        src, dst = later.ids.take(later.src), later.ids.take(later.dst)
        grown = self.append(src, dst, later.t, later.edge_x, later.label)
        if grown.node_x is None or later.node_x is None:
            return grown
        if later.node_dim != self.node_dim:
            raise DataError(f"The new nodes have {later.node_dim} features; the history's have {self.node_dim}.")
        grown.node_x[self.n_nodes :] = later.node_x[_counterparts(grown.ids, self.n_nodes, later.ids)]
        return grown

    def _more_features(self, more: Features | None) -> Features | None:
        width = 0 if more is None else more.shape[1]
        if width != self.edge_dim:
            raise DataError(
                f"The new events have {width} features each; those of the history have {self.edge_dim}."
                " Name the feature columns (--features) so that both agree."
            )
        return None if self.edge_x is None or more is None else np.concatenate([self.edge_x, more])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes ``events.parquet`` and ``nodes.parquet`` into an existing folder, each whole or not at all."""
        target = Path(folder)
        about = {"cordgt_stream": _FORMAT, "name": self.name, "time": self.time.kind, "notes": json.dumps(self.notes)}
        counts = {"n_events": str(self.n_events), "n_nodes": str(self.n_nodes)}
        events = {"src": pa.array(self.src), "dst": pa.array(self.dst), "t": pa.array(self.t)}
        if self.label is not None:
            events["label"] = pa.array(self.label)
        if self.edge_x is not None:
            events["features"] = _as_lists(self.edge_x)
        nodes = {"id": self.ids.names}
        if self.ids.side is not None:
            nodes["side"] = pa.array(self.ids.side)
        if self.node_x is not None:
            nodes["features"] = _as_lists(self.node_x)
        _write_parquet(pa.table(nodes).replace_schema_metadata(counts), target / NODES_FILE)
        _write_parquet(pa.table(events).replace_schema_metadata(about | counts), target / EVENTS_FILE)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> EventStream:
        """The stream ``save`` wrote. RunError where a file is missing or damaged, or the two do not fit together."""
        source = Path(folder)
        events, nodes = _read_parquet(source / EVENTS_FILE), _read_parquet(source / NODES_FILE)
        about = {k.decode(): v.decode() for k, v in (events.schema.metadata or {}).items()}
        if about.get("cordgt_stream") != _FORMAT:
            raise RunError(f"{source / EVENTS_FILE} was not written by this version of cordgt.")
        if any(column.null_count for table in (events, nodes) for column in table.columns):
            raise RunError(f"The history in {source} is damaged: values are missing.")
        try:
            stream = cls(
                src=_int64(events["src"]),
                dst=_int64(events["dst"]),
                t=_numpy(events["t"]),
                edge_x=_from_lists(events, "features"),
                node_x=_from_lists(nodes, "features"),
                label=_numpy(events["label"]) if "label" in events.column_names else None,
                ids=NodeIds(
                    _one_chunk(nodes["id"]),
                    _numpy(nodes["side"]).astype(np.uint8) if "side" in nodes.column_names else None,
                ),
                time=TimeAxis("date" if about["time"] == "date" else "number"),
                name=about["name"],
                notes=tuple(json.loads(about["notes"])),
            )
        except (KeyError, ValueError, TypeError, pa.ArrowException) as error:
            raise RunError(f"The history in {source} is damaged: {error}.") from None
        wrong = _damage(stream)
        if wrong:
            raise RunError(f"The history in {source} is damaged: {wrong}.")
        return stream


# -------------------- checking and sorting


@dataclass(frozen=True, eq=False)
class _Columns:
    """Raw columns of equal length, values checked; ids still the user's."""

    src: Any
    dst: Any
    t: Ints | Floats
    edge_x: Features | None
    label: Ints | Floats | None
    time: TimeAxis

    def by_time(self) -> tuple[_Columns, bool]:
        """The columns in stable order of time, and whether they were so already."""
        if not (self.t[1:] < self.t[:-1]).any():
            return self, True
        order = np.argsort(self.t, kind="stable")
        take = pa.array(order)
        edge_x = None if self.edge_x is None else self.edge_x[order]
        label = None if self.label is None else self.label[order]
        return _Columns(self.src.take(take), self.dst.take(take), self.t[order], edge_x, label, self.time), False


def _checked(src: Any, dst: Any, t: Any, edge_x: Any, label: Any, time: TimeAxis | None) -> _Columns:
    src, dst = id_column(src), id_column(dst)
    if not (isinstance(t, np.ndarray) and t.dtype.kind in "iuf" and time is not None):
        t = as_column(t)
        time = TimeAxis.of(t) if time is None else time
        t = time.parse_column(t)
    else:
        t = _typed_numbers(as_column(t))
    if not len(src) == len(dst) == len(t):
        raise DataError(f"Columns of unequal length: {len(src)} sources, {len(dst)} destinations, {len(t)} times.")
    if len(src) == 0:
        raise DataError("There are no events.")
    if (t.max().item() - t.min().item()) >= (2**63 if t.dtype.kind == "i" else np.inf):
        raise DataError(f"The times span from {t.min()} to {t.max()}, too far to subtract one from the other.")
    return _Columns(src, dst, t, feature_rows(edge_x, len(t), "event features"), label_column(label, len(t)), time)


def label_column(values: Any, n_rows: int) -> Ints | Floats | None:
    """Labels as int64 (integers, booleans) or float64 (NaN where missing). DataError if they are not numbers."""
    if values is None:
        return None
    column = as_column(values)
    if len(column) != n_rows:
        raise DataError(f"There are {len(column)} labels for {n_rows} events.")
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(n_rows, np.nan)
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if whole and not column.null_count:
        return _int64(pc.cast(column, pa.int64()))
    if whole or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _float64(pc.fill_null(pc.cast(column, pa.float64()), float("nan")))
    raise DataError(f"The labels are not numbers (type {kind}).")


def _same_number_type(old: Any, new: Any) -> tuple[Any, Any]:
    """Both int64 where nothing is lost by it, else both float64."""
    if old.dtype == new.dtype:
        return old, new
    whole = [k if k.dtype.kind == "i" else _exact_ints(k) for k in (old, new)]
    if whole[0] is not None and whole[1] is not None and old.dtype.kind == "i":
        return whole[0], whole[1]
    return old.astype(np.float64), new.astype(np.float64)


def _exact_ints(values: Floats) -> Ints | None:
    if (values == np.floor(values)).all() and (np.abs(values) < 2.0**63).all():
        return values.astype(np.int64)
    return None


def _more_rows(rows: Features | None, n_rows: int) -> Features | None:
    if rows is None:
        return None
    return np.concatenate([rows, np.zeros((n_rows - len(rows), rows.shape[1]), np.float32)])


def _more_labels(old: Any, new: Any, n_new: int) -> Any:
    if old is None:
        return None
    return np.concatenate([old, np.full(n_new, np.nan) if new is None else new])


def _counterparts(ids: NodeIds, start: int, other: NodeIds) -> Ints:
    """For the nodes of ``ids`` from ``start`` on: their internal ids in ``other``, which has them all by name."""
    names = ids.names.slice(start)
    if ids.side is None:
        as_src = other.find(names, "src")
        return np.where(as_src < 0, other.find(names, "dst"), as_src)
    return np.where(ids.side[start:] == 0, other.find(names, "src"), other.find(names, "dst"))


# -------------------- on disk


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Calls ``write`` with a temporary file beside ``path``, then renames it: the file is there whole or not at all.

    DataError where the folder does not exist or cannot be written.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
    part = Path(temporary)
    try:
        write(part)
        part.chmod(0o666 & ~_umask())
        os.replace(part, target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_parquet(table: Any, path: Path) -> None:
    write_atomically(path, lambda part: pq.write_table(table, part))


def _read_parquet(path: Path) -> Any:
    try:
        return pq.ParquetFile(path).read()
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} is damaged or no Parquet file: {error}") from None


def _as_lists(rows: Features) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _one_chunk(column: Any) -> Any:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _from_lists(table: Any, name: str) -> Features | None:
    if name not in table.column_names:
        return None
    column = table[name]
    width = column.type.list_size
    parts = [np.asarray(chunk.flatten(), np.float32) for chunk in column.chunks]
    flat = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    return flat.reshape(len(column), width)


def _damage(stream: EventStream) -> str:
    """What is wrong with a stream read back, in words; empty when it is sound."""
    n_events, n_nodes = stream.n_events, stream.n_nodes
    if n_events == 0:
        return "it holds no events"
    if stream.t.dtype not in (np.dtype(np.int64), np.dtype(np.float64)) or stream.ids.names.null_count:
        return "times or ids are of the wrong type"
    if len(stream.dst) != n_events or len(stream.t) != n_events:
        return "its columns are of unequal length"
    both = np.concatenate([stream.src, stream.dst])
    if both.min() < 0 or both.max() >= n_nodes or len(np.unique(both)) != n_nodes:
        return "its events and its nodes do not fit together"
    if not np.isfinite(stream.t).all() or (stream.t[1:] < stream.t[:-1]).any():
        return "its times are not sorted"
    if stream.edge_x is not None and stream.edge_x.shape[0] != n_events:
        return "its event features do not fit its events"
    if stream.node_x is not None and stream.node_x.shape[0] != n_nodes:
        return "its node features do not fit its nodes"
    if stream.ids.side is not None and (len(stream.ids.side) != n_nodes or stream.ids.side.max() > 1):
        return "its ids and their sides do not fit together"
    return ""
