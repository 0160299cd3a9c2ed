"""Join node features from a file, a table or an array to the nodes of a stream, by id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import Features, Ints, as_feature_matrix, is_text, looks_like_number
from cordgt.events.stream import EventStream
from cordgt.files import is_npy, read_npy
from cordgt.io.column_names import NODE_NAMES, match_columns
from cordgt.io.open_table import TextReadOptions, open_table
from cordgt.io.tables import Table

_READ_OPTIONS = TextReadOptions(
    content="Node features",
    min_columns=2,
    is_header=lambda first: not all(looks_like_number(field) for field in first[1:]),
)


def join_node_features(stream: EventStream, source: Any) -> EventStream:
    """Return the stream with node features from a file, a table or an array, joined by id.

    A table has an id column (named id or node, else the first), columns of numbers, and a column ``side`` (src or dst)
    if an id may be two nodes. An array or ``.npy`` file has row k for the integer id k. Nodes without a row get zeros,
    rows without a node are left out; notes say so. DataError if an id occurs twice or could be two nodes.
    """
    if isinstance(source, np.ndarray):
        return join_array(stream, source)
    if isinstance(source, str | os.PathLike) and is_npy(Path(source)):
        return join_array(stream, read_npy(Path(source)), Path(source))
    return _join_table(stream, open_table(source, _READ_OPTIONS))


def _join_table(stream: EventStream, table: Table) -> EventStream:
    header = table.header or ()
    id_column = next(iter(match_columns(header, NODE_NAMES)), 0)
    side_column = next(iter(match_columns(header, {"side"})), None)
    feature_columns = [k for k in range(table.n_columns) if k not in (id_column, side_column)]
    if not feature_columns:
        raise DataError(f"{table.name} has an id column but no features.")
    columns = table.read_columns([id_column] if side_column is None else [id_column, side_column])
    ids = table.parse_ids(columns[id_column], id_column)
    side = None if side_column is None else _parse_sides(table, columns[side_column])
    _check_unique(table, ids, None if stream.ids.shared else side)
    node = _find_nodes(stream, table, ids, side)
    rows = table.read_features(feature_columns)
    known = node >= 0
    if not known.any():
        raise DataError(f"None of the {len(node)} ids in {table.name} occurs in the events.")
    node_x = np.zeros((stream.n_nodes, rows.shape[1]), np.float32)
    node_x[node[known]] = rows[known]
    notes = [f"{rows.shape[1]} features per node from {Path(table.name).name}"]
    n_without = stream.n_nodes - len(np.unique(node[known]))
    if n_without:
        notes.append(f"{n_without} of {stream.n_nodes} nodes have no row of features: zeros")
    if not known.all():
        notes.append(_note_unused_rows(int((~known).sum())))
    return stream.with_node_features(node_x, *notes)


def _note_unused_rows(n: int) -> str:
    return f"{n} rows of node features belong to no node of the events: left out"


def _parse_sides(table: Table, column: Any) -> npt.NDArray[Any]:
    """Return a column of ``src`` and ``dst`` in lower case. DataError for other values."""
    if not is_text(column.type):
        raise DataError(f"{table.name}: the column 'side' holds {column.type}; src or dst was expected.")
    side = np.array([str(value).strip().lower() for value in column.to_pylist()], dtype=np.str_)
    wrong = np.flatnonzero((side != "src") & (side != "dst"))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"{table.describe_row(row)}: side is {column[row].as_py()!r}; src or dst was expected.")
    return side


def _check_unique(table: Table, ids: Any, side: npt.NDArray[Any] | None) -> None:
    """Raise DataError if an id, or an id and its side, has two rows."""
    keys = pc.cast(ids, pa.string())
    if side is not None:
        keys = pc.binary_join_element_wise(keys, pa.array(side, pa.string()), "\0")
    counts = pc.value_counts(keys)
    if len(counts) == len(keys):
        return
    repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[0]
    row = int(np.flatnonzero(np.asarray(pc.equal(keys, repeated)))[1])
    raise DataError(f"{table.describe_row(row)}: the id {ids[row].as_py()!r} comes a second time.")


def _find_nodes(stream: EventStream, table: Table, ids: Any, side: npt.NDArray[Any] | None) -> Ints:
    """Return the node of each row, -1 for an unknown id."""
    as_src, as_dst = stream.ids.encode(ids, "src"), stream.ids.encode(ids, "dst")
    if stream.ids.shared:
        return as_src
    if side is not None:
        return np.where(side == "src", as_src, as_dst)
    both = np.flatnonzero((as_src >= 0) & (as_dst >= 0))
    if len(both):
        row = int(both[0])
        raise DataError(
            f"{table.describe_row(row)}: the id {ids[row].as_py()!r} is both a source and a destination, which are two"
            " nodes; add a column 'side' with src or dst."
        )
    return np.where(as_src >= 0, as_src, as_dst)


def join_array(stream: EventStream, rows: npt.NDArray[Any], path: Path | None = None) -> EventStream:
    """Return the stream with row k as the features of the node with integer id k; ``path`` is the file of the rows.

    DataError if ids are text, name two nodes, or have no row. Row 0 may be there without a node 0.
    """
    label = "the node features" if path is None else str(path)
    if not pa.types.is_integer(stream.ids.names.type):
        raise DataError(f"{label}: an array of node features needs integer ids, but those of the events are text.")
    if rows.ndim != 2:
        raise DataError(f"{label} has shape {rows.shape}; one row per node was expected.")
    ids = np.asarray(stream.ids.names)
    if len(np.unique(ids)) < len(ids):
        raise DataError(f"{label}: some ids name a source and a destination; use a table with a column 'side'.")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= len(rows):
        raise DataError(
            f"{label} has {len(rows)} rows, but the node ids run from {low} to {high}; row k belongs to id k,"
            f" so {high + 1} rows were expected."
        )
    notes = [f"{rows.shape[1]} features per node from {'the array' if path is None else path.name}"]
    n_unused = len(rows) - len(ids) - (0 if (ids == 0).any() else 1)
    if n_unused > 0:
        notes.append(_note_unused_rows(n_unused))
    return stream.with_node_features(as_finite_rows(rows, path or Path("node features"))[ids], *notes)


def as_finite_rows(rows: npt.NDArray[Any], path: Path) -> Features:
    """Return the rows as float32. DataError, with file and row, if a value is not finite."""
    try:
        features = as_feature_matrix(rows, len(rows), "features")
    except RowError as error:
        raise DataError(f"{path}, row {error.row} (counted from 0): {error.reason}.") from None
    return np.zeros((len(rows), 0), np.float32) if features is None else features
