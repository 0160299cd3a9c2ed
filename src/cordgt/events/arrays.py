"""Convert columns and matrices of any origin: to Arrow for ids, text and dates, to numpy for numbers."""

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


def evenly_spaced(n: int, most: int) -> Ints:
    """Return at most ``most`` indices below ``n``, ascending and evenly spaced; two or more include both ends."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)) if n else np.empty(0, np.int64)


# -------------------- columns


def as_column(values: Any) -> Any:
    """Convert Arrow, numpy, a tensor, a pandas series or a list to an Arrow array.

    A list that mixes numbers and strings becomes strings. DataError if it is not one-dimensional.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if pa.types.is_dictionary(values.type):
            return _decode_dictionary(values)
        return values.cast(pa.string()) if pa.types.is_string_view(values.type) else values
    of_pandas = type(values).__module__.partition(".")[0] == "pandas"
    if not of_pandas and not isinstance(values, list | tuple):
        values = np.asarray(values)
        if values.ndim != 1:
            raise DataError(f"A column has {values.ndim} dimensions; one dimension was expected.")
        if values.dtype == object:
            values = values.tolist()
    try:
        column = pa.array(values, from_pandas=of_pandas)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return pa.array([None if v is None or v != v else str(v) for v in values], pa.string())
    return as_column(column) if of_pandas else column


def _decode_dictionary(values: Any) -> Any:
    """Return the values of a dictionary-encoded Arrow column, such as a categorical of pandas or polars."""
    if not pa.types.is_string_view(values.type.value_type):  # Arrow cannot cast these
        return as_column(values.cast(values.type.value_type))
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return pa.chunked_array([k.dictionary.cast(pa.string()).take(k.indices) for k in chunks], pa.string())


def is_text(kind: Any) -> bool:
    """Return whether an Arrow type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_number(kind: Any) -> bool:
    """Return whether an Arrow type is numeric; booleans are."""
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(check(kind) for check in checks)


def is_list(kind: Any) -> bool:
    """Return whether an Arrow type is a list."""
    return bool(pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def looks_like_number(text: str) -> bool:
    """Return whether ``text`` is a number (or nan or inf)."""
    try:
        float(text)
        return "_" not in text
    except ValueError:
        return False


def first_true(column: Any) -> int:
    """Return the position of the first True of a boolean Arrow column without nulls; -1 if there is none."""
    return int(pc.index(column, pa.scalar(True)).as_py())


def first_failure(convert: Callable[[Any], Any], column: Any) -> int:
    """Return the row of the first value that ``convert`` refuses; it must refuse one.

    Bisection: the cost is about two conversions of the column.
    """
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
    """Convert an Arrow column to numpy, with the nearest type; integers with nulls become floats.

    Numbers without nulls are shared, not copied. (Arrow shares them too, but imports pandas first.)
    """
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    is_number = pa.types.is_integer(flat.type) or pa.types.is_float32(flat.type) or pa.types.is_float64(flat.type)
    if is_number and len(flat) and not flat.null_count:
        names = {"float": "float32", "double": "float64"}
        dtype = np.dtype(names.get(str(flat.type), str(flat.type)))
        values = np.frombuffer(flat.buffers()[1], dtype, len(flat), flat.offset * dtype.itemsize)
        values.flags.writeable = False  # Arrow arrays do not change
        return values
    return np.asarray(flat.to_numpy(zero_copy_only=False))


def to_int64(column: Any) -> Ints:
    return np.ascontiguousarray(to_numpy(column), np.int64)


def to_float64(column: Any) -> Floats:
    return np.ascontiguousarray(to_numpy(column), np.float64)


def unique_nodes(nodes: Any, n_nodes: int, chunk_rows: int = 1 << 22) -> Ints:
    """Return the distinct internal ids, ascending, in linear time and without reading a mapped array at once."""
    occurs = np.zeros(n_nodes, np.bool_)
    for start in range(0, len(nodes), chunk_rows):
        occurs[nodes[start : start + chunk_rows]] = True
    return np.flatnonzero(occurs)


# -------------------- matrices


def as_feature_matrix(values: Any, n_rows: int, what: str) -> Features | None:
    """Convert features to float32 (n_rows, width); None for None or zero width.

    DataError if the shape is wrong, RowError if a value is not a finite number.
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
    bad = first_non_finite(rows)
    if bad is not None:
        raise RowError(bad[0], f"column {bad[1]} of the {what} is {raw[bad]}, not a finite number")
    return rows


def first_non_finite(rows: Features) -> tuple[int, int] | None:
    """Return row and column of the first value that is not finite, in row order; None if all are."""
    finite = np.isfinite(rows)
    if finite.all():
        return None
    row, column = np.unravel_index(np.argmin(finite), rows.shape)
    return int(row), int(column)


def to_list_column(rows: Features) -> Any:
    """Convert a matrix to an Arrow column with one list per row."""
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def from_list_column(column: Any) -> Features:
    """Convert the result of `to_list_column` back to a matrix: a copy, because torch needs writable memory."""
    flat = np.concatenate([chunk.flatten() for chunk in column.chunks], dtype=np.float32)
    return flat.reshape(len(column), column.type.list_size)
