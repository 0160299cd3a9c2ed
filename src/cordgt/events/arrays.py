"""Columns and matrices, whatever they came as: to Arrow for ids, text and dates, to numpy for numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, RowError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Features = npt.NDArray[np.float32]


def evenly(n: int, most: int) -> Ints:
    """At most so many of n places, evenly spread, ascending; of two or more, the first and the last are among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)) if n else np.empty(0, np.int64)


# -------------------- columns


def as_column(values: Any) -> Any:
    """A column as an Arrow array, whatever it came as: Arrow, numpy, a tensor, a pandas series, a list.

    A list that mixes numbers and strings becomes strings. DataError where it is not one-dimensional.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if pa.types.is_dictionary(values.type):
            return as_column(values.cast(values.type.value_type))
        return values.cast(pa.string()) if pa.types.is_string_view(values.type) else values
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


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_number(kind: Any) -> bool:
    """Whether an Arrow type is one of numbers; booleans are."""
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is one of lists."""
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def looks_like_number(text: str) -> bool:
    """Whether ``text`` reads as a number (nan and inf too)."""
    try:
        float(text)
        return "_" not in text
    except ValueError:
        return False


def first_true(column: Any) -> int:
    """Position of the first True of a boolean Arrow column without nulls; -1 if there is none."""
    return int(pc.index(column, pa.scalar(True)).as_py())


def first_failure(convert: Callable[[Any], Any], column: Any) -> int:
    """Row of the first value that ``convert`` refuses, where it refuses one: found by halving, so that the work is
    about two conversions of the column."""
    start, stop = 0, len(column)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            convert(column.slice(start, middle - start))
            start = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            stop = middle
    return start


def to_numpy(column: Any) -> npt.NDArray[Any]:
    """An Arrow column as numpy, of the nearest type; integers with nulls become floats."""
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(flat.to_numpy(zero_copy_only=False))


def int64(column: Any) -> Ints:
    """An Arrow column of integers as numpy."""
    return np.ascontiguousarray(to_numpy(column), np.int64)


def float64(column: Any) -> Floats:
    """An Arrow column of numbers as numpy."""
    return np.ascontiguousarray(to_numpy(column), np.float64)


def distinct(numbers: Any, n: int, at_once: int = 1 << 22) -> Ints:
    """The distinct ones of numbers from 0 to n - 1, ascending: marked, not sorted, in one pass of pieces."""
    there = np.zeros(n, np.bool_)
    for start in range(0, len(numbers), at_once):
        there[numbers[start : start + at_once]] = True
    return np.flatnonzero(there)


# -------------------- matrices


def feature_rows(values: Any, n_rows: int, what: str) -> Features | None:
    """Features as float32 (n_rows, width); None for None or zero width.

    DataError where the shape is wrong, RowError where a value is not a finite number.
    """
    if values is None:
        return None
    raw = np.asarray(values)
    if raw.dtype.kind not in "fiub":
        raise DataError(f"The {what} are not numbers (type {raw.dtype}).")
    if raw.ndim != 2 or raw.shape[0] != n_rows:
        raise DataError(f"The {what} have shape {raw.shape}; {n_rows} rows of equal length were expected.")
    if raw.shape[1] == 0:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.ascontiguousarray(raw, dtype=np.float32)
    bad = first_not_finite(rows)
    if bad is not None:
        raise RowError(bad[0], f"column {bad[1]} of the {what} is {raw[bad]}, not a finite number")
    return rows


def first_not_finite(rows: Features) -> tuple[int, int] | None:
    """Row and column of the first value, row by row, that is not a finite number; None where all are."""
    finite = np.isfinite(rows)
    if finite.all():
        return None
    row, column = np.unravel_index(np.argmin(finite), rows.shape)
    return int(row), int(column)


def as_lists(rows: Features) -> Any:
    """A matrix as an Arrow column of lists, one a row."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def from_lists(column: Any) -> Features:
    """The matrix that ``as_lists`` made a column of: a copy, since torch wants to write where Arrow forbids it."""
    flat = np.concatenate([chunk.flatten() for chunk in column.chunks], dtype=np.float32)
    return flat.reshape(len(column), column.type.list_size)
