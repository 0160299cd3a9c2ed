"""What stands beside a published file ``ml_NAME.csv``: features of the events and of the nodes, as numpy arrays."""

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
from cordgt.io.node_features import finite_rows, join_by_number
from cordgt.io.tables import Table


def features_beside(table: Table, idx: Any, path: Path) -> tuple[Features | None, list[str]]:
    """Row k of ``ml_NAME.npy`` for the event with ``idx`` k, and what there is to say about it.

    None where the file is not there or all zero. DataError where it does not fit the events.
    """
    beside = _sibling(path, ".npy")
    if beside is None:
        return None, []
    rows = read_npy(beside)
    n_events = len(idx)
    if len(rows) not in (n_events, n_events + 1):
        raise DataError(
            f"{beside} has {len(rows)} rows; {n_events + 1} were expected for the {n_events} events of {path}"
            " (row 0 unused)."
        )
    if not _any(rows):
        return None, [f"{beside.name} is all zero: read as no features"]
    try:
        which = np.asarray(pc.cast(pc.cast(idx, pa.float64()), pa.int64()))
    except pa.ArrowInvalid:
        raise DataError(f"{table.label}: the column 'idx' does not hold whole numbers.") from None
    outside = np.flatnonzero((which < 1) | (which > n_events))
    if len(outside):
        row = int(outside[0])
        raise DataError(f"{table.at(row)}: idx {which[row]} has no row in {beside}; 1 to {n_events} were expected.")
    spare = len(rows) - n_events
    notes = [f"{rows.shape[1]} features an event from {beside.name}"]
    if not spare:
        notes.append(f"{beside.name} has as many rows as there are events: row 0 is taken as the first event's")
    return finite_rows(rows, beside)[which - 1 + spare], notes


def with_node_features_beside(stream: EventStream, path: Path) -> EventStream:
    """The stream with row k of ``ml_NAME_node.npy`` for node id k, where the file is there and not all zero."""
    beside = _sibling(path, "_node.npy")
    if beside is None:
        return stream
    rows = read_npy(beside)
    if not _any(rows):
        return stream.with_notes(f"{beside.name} is all zero: read as no features")
    return join_by_number(stream, rows, beside)


def _any(rows: npt.NDArray[Any]) -> bool:
    """Whether a value is not zero; a NaN is not, and numpy need not warn of it."""
    with np.errstate(invalid="ignore"):
        return bool(rows.any())


def _sibling(path: Path, ending: str) -> Path | None:
    """``ml_NAME.npy`` beside ``ml_NAME.csv[.gz]``, if it is there."""
    base = re.fullmatch(r"(ml_.+?)(\.csv)?(\.gz)?", path.name)
    found = path.with_name(f"{base[1]}{ending}") if base else None
    return found if found is not None and found.is_file() else None
