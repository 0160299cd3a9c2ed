"""Raw columns of events: validate, convert, sort, and unite with later ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError
from cordgt.events.arrays import (
    Features,
    Floats,
    Ints,
    as_column,
    as_feature_matrix,
    is_number,
    to_float64,
    to_int64,
)
from cordgt.events.ids import as_id_column
from cordgt.events.times import TimeAxis, as_number_column


@dataclass(frozen=True, eq=False)
class EventColumns:
    """Validated columns of equal length, with the user's ids."""

    src: Any
    dst: Any
    t: Ints | Floats
    edge_x: Features | None
    label: Ints | Floats | None
    time: TimeAxis

    def sort(self) -> tuple[EventColumns, bool]:
        """Return the columns in stable time order, and whether they already were."""
        if not (self.t[1:] < self.t[:-1]).any():
            return self, True
        order = np.argsort(self.t, kind="stable")
        indices = pa.array(order)
        edge_x = None if self.edge_x is None else self.edge_x[order]
        label = None if self.label is None else self.label[order]
        return EventColumns(
            self.src.take(indices), self.dst.take(indices), self.t[order], edge_x, label, self.time
        ), False


def validate_columns(src: Any, dst: Any, t: Any, edge_x: Any, label: Any, time: TimeAxis | None) -> EventColumns:
    """Convert and check raw columns; errors as in ``EventStream.from_columns``."""
    src, dst = as_id_column(src), as_id_column(dst)
    if time is not None and isinstance(t, np.ndarray) and t.dtype.kind in "iuf":
        t = as_number_column(as_column(t))
    else:
        t = as_column(t)
        time = time or TimeAxis.infer(t)
        t = time.parse_column(t)
    if not len(src) == len(dst) == len(t):
        raise DataError(
            f"The columns have unequal lengths: {len(src)} sources, {len(dst)} destinations, {len(t)} times."
        )
    if len(src) == 0:
        raise DataError("There are no events.")
    check_time_span(t.min(), t.max())
    return EventColumns(
        src, dst, t, as_feature_matrix(edge_x, len(t), "event features"), as_label_column(label, len(t)), time
    )


def check_time_span(first: Any, last: Any) -> None:
    """Raise DataError if the difference of two numpy times overflows their type."""
    if last.item() - first.item() >= (2**63 if first.dtype.kind == "i" else np.inf):
        raise DataError(f"The times span from {first} to {last}, too far to subtract one from the other.")


def check_exact_floats(times: Any) -> None:
    """Raise DataError if float64 cannot represent integer times exactly."""
    if times.max() > 2**53 or times.min() < -(2**53):
        raise DataError(
            "Some times are fractions, and others are integers above 2^53, which cannot be combined exactly. "
            "Write all times as integers, or subtract a common start."
        )


def as_label_column(values: Any, n_rows: int) -> Ints | Floats | None:
    """Return labels as int64 (integers, booleans) or float64 (NaN if missing). DataError if they are not numbers."""
    if values is None:
        return None
    column = as_column(values)
    if len(column) != n_rows:
        raise DataError(f"There are {len(column)} labels for {n_rows} events.")
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(n_rows, np.nan)
    if not is_number(kind):
        raise DataError(f"The labels are not numbers (type {kind}).")
    if (pa.types.is_integer(kind) or pa.types.is_boolean(kind)) and not column.null_count:
        try:
            return to_int64(pc.cast(column, pa.int64()))
        except pa.ArrowInvalid:  # unsigned, above 2^63
            pass
    return to_float64(pc.fill_null(pc.cast(column, pa.float64(), safe=False), float("nan")))


def are_whole(times: Any) -> bool:
    """Return whether all float times are integers that fit into int64."""
    return bool((times == np.floor(times)).all() and (np.abs(times) < 2.0**63).all())


def unify_time_types(old: Any, new: Any) -> tuple[Any, Any]:
    """Return both with one type: int64 if ``old`` is and ``new`` holds whole numbers, otherwise float64."""
    if old.dtype == new.dtype:
        return old, new
    if old.dtype.kind == "i" and are_whole(new):
        return old, new.astype(np.int64)
    check_exact_floats(old if old.dtype.kind == "i" else new)
    return old.astype(np.float64), new.astype(np.float64)


def pad_rows(rows: Features | None, n_rows: int) -> Features | None:
    """Return a copy with rows of zeros added, ``n_rows`` in all."""
    if rows is None:
        return None
    return np.concatenate([rows, np.zeros((n_rows - len(rows), rows.shape[1]), np.float32)])


def append_labels(old: Any, new: Any, n_new: int) -> Any:
    if old is None:
        return None
    return np.concatenate([old, np.full(n_new, np.nan) if new is None else new])
