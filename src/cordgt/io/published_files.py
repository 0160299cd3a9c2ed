"""Load the numpy files of a published ``ml_NAME.csv``: edge features (``.npy``), node features (``_node.npy``)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError
from cordgt.events.arrays import Features
from cordgt.events.stream import EventStream
from cordgt.files import read_npy
from cordgt.io.node_features import as_finite_rows, join_array
from cordgt.io.tables import Table


def load_edge_features(table: Table, idx: Any, path: Path) -> tuple[Features | None, list[str]]:
    """Return row k of ``ml_NAME.npy`` for the event with ``idx`` k, and notes.

    None if the file does not exist or is all zero. DataError if it does not fit the events.
    """
    file = _find_sibling(path, ".npy")
    if file is None:
        return None, []
    rows, n_events = read_npy(file), len(idx)
    n_unused = len(rows) - n_events
    if n_unused not in (0, 1):
        raise DataError(
            f"{file} has {len(rows)} rows; {n_events + 1} were expected for the {n_events} events of {path}"
            " (row 0 unused)."
        )
    if _is_zero(rows):
        return None, [f"{file.name} is all zero: read as no features"]
    try:
        number = np.asarray(pc.cast(pc.cast(idx, pa.float64()), pa.int64()))
    except pa.ArrowInvalid:
        raise DataError(f"{table.name}: the column 'idx' does not hold whole numbers.") from None
    outside = np.flatnonzero((number < 1) | (number > n_events))
    if len(outside):
        row = int(outside[0])
        raise DataError(
            f"{table.describe_row(row)}: idx {number[row]} has no row in {file}; 1 to {n_events} were expected."
        )
    notes = [f"{rows.shape[1]} features per event from {file.name}"]
    if n_unused == 0:
        notes.append(f"{file.name} has as many rows as there are events: row 0 is taken as the first event's")
    return as_finite_rows(rows, file)[number - 1 + n_unused], notes


def add_node_features(stream: EventStream, path: Path) -> EventStream:
    """Return the stream with row k of ``ml_NAME_node.npy`` for node id k, if the file exists and is not all zero."""
    file = _find_sibling(path, "_node.npy")
    if file is None:
        return stream
    rows = read_npy(file)
    if _is_zero(rows):
        return stream.with_notes(f"{file.name} is all zero: read as no features")
    return join_array(stream, rows, file)


def _is_zero(rows: npt.NDArray[Any]) -> bool:
    with np.errstate(invalid="ignore"):  # a NaN is not zero
        return not rows.any()


def _find_sibling(path: Path, suffix: str) -> Path | None:
    """Return ``ml_NAME.npy`` next to ``ml_NAME.csv[.gz]``, if it exists."""
    match = re.fullmatch(r"(ml_.+?)(\.csv)?(\.gz)?", path.name)
    file = path.with_name(f"{match[1]}{suffix}") if match else None
    return file if file is not None and file.is_file() else None
