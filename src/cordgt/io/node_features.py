"""Node features from a file, a table or an array, joined to the nodes of a stream by id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import Features, Ints, feature_rows, is_text, looks_like_number
from cordgt.events.stream import EventStream
from cordgt.files import is_npy, read_npy
from cordgt.io.column_names import NODE, named_in
from cordgt.io.open_table import Expected, open_source
from cordgt.io.tables import Table

_EXPECTED = Expected(
    what="Node features",
    n_columns=2,
    is_header=lambda first: not all(looks_like_number(k) for k in first[1:]),
)


def join_node_features(stream: EventStream, source: Any) -> EventStream:
    """The stream with node features from a file or table, joined by id.

    A table has an id column (called id or node, else the first), perhaps a column ``side`` (src or dst) where the id
    spaces are separate, and numbers; an ``.npy`` or an array has row k for the integer id k. Nodes without a row get
    zeros and rows without a node are left out, both said. DataError for an id that comes twice or could be two nodes.
    """
    if isinstance(source, np.ndarray):
        return join_by_number(stream, source, None)
    if isinstance(source, str | os.PathLike) and is_npy(Path(source)):
        return join_by_number(stream, read_npy(Path(source)), Path(source))
    return _join_table(stream, open_source(source, _EXPECTED))


def _join_table(stream: EventStream, table: Table) -> EventStream:
    header = table.header or ()
    by_id = next(iter(named_in(header, NODE)), 0)
    by_side = next(iter(named_in(header, {"side"})), None)
    others = [k for k in range(table.width) if k not in (by_id, by_side)]
    if not others:
        raise DataError(f"{table.label} has an id column but no features.")
    columns = table.columns([by_id] if by_side is None else [by_id, by_side])
    ids = table.ids(columns[by_id], by_id)
    side = None if by_side is None else _sides(table, columns[by_side])
    _check_once(table, ids, None if stream.ids.shared else side)
    node = _nodes_of(stream, table, ids, side)
    rows = table.numbers(others)
    known = node >= 0
    if not known.any():
        raise DataError(f"None of the {len(node)} ids in {table.label} occurs in the events.")
    node_x = np.zeros((stream.n_nodes, rows.shape[1]), np.float32)
    node_x[node[known]] = rows[known]
    notes = [f"{rows.shape[1]} features a node from {Path(table.label).name}"]
    n_bare = stream.n_nodes - len(np.unique(node[known]))
    if n_bare:
        notes.append(f"{n_bare} of {stream.n_nodes} nodes have no row of features: zeros")
    if not known.all():
        notes.append(f"{int((~known).sum())} rows of node features belong to no node of the events: left out")
    return stream.with_node_features(node_x, *notes)


def _sides(table: Table, column: Any) -> npt.NDArray[Any]:
    """A column of sides as ``src`` and ``dst``. DataError for what is neither."""
    if not is_text(column.type):
        raise DataError(f"{table.label}: the column 'side' holds {column.type}; src or dst was expected.")
    low = np.array([str(k).strip().lower() for k in column.to_pylist()], dtype=np.str_)
    wrong = np.flatnonzero((low != "src") & (low != "dst"))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(f"{table.at(row)}: side is {column[row].as_py()!r}; src or dst was expected.")
    return low


def _check_once(table: Table, ids: Any, side: npt.NDArray[Any] | None) -> None:
    """DataError where an id (of one side, where sides are told) has two rows."""
    keys = pc.cast(ids, pa.string())
    if side is not None:
        keys = pc.binary_join_element_wise(keys, pa.array(side, pa.string()), "\0")
    counts = pc.value_counts(keys)
    if len(counts) == len(keys):
        return
    repeated = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[0]
    rows = np.flatnonzero(np.asarray(pc.equal(keys, repeated)))
    raise DataError(f"{table.at(int(rows[1]))}: the id {ids[int(rows[1])].as_py()!r} comes a second time.")


def _nodes_of(stream: EventStream, table: Table, ids: Any, side: npt.NDArray[Any] | None) -> Ints:
    """The node every row belongs to, -1 for none."""
    as_src, as_dst = stream.ids.find(ids, "src"), stream.ids.find(ids, "dst")
    if stream.ids.shared:
        return as_src
    if side is not None:
        return np.where(side == "src", as_src, as_dst)
    both = np.flatnonzero((as_src >= 0) & (as_dst >= 0))
    if len(both):
        row = int(both[0])
        raise DataError(
            f"{table.at(row)}: the id {ids[row].as_py()!r} is a source and another node is a destination of that id;"
            " add a column 'side' with src or dst."
        )
    return np.where(as_src >= 0, as_src, as_dst)


def join_by_number(stream: EventStream, rows: npt.NDArray[Any], path: Path | None) -> EventStream:
    """The stream with row k as the features of the node with integer id k; ``path`` is where they are from.

    DataError where ids are text, name two nodes, or go beyond the rows. Row 0 may be there without a node 0.
    """
    label = "the node features" if path is None else str(path)
    if not pa.types.is_integer(stream.ids.names.type):
        raise DataError(f"{label}: an array of node features needs integer ids, but those of the events are text.")
    if rows.ndim != 2:
        raise DataError(f"{label} has shape {rows.shape}; one row a node was expected.")
    number = np.asarray(stream.ids.names)
    if len(np.unique(number)) < len(number):
        raise DataError(f"{label}: some ids name a source and a destination; use a table with a column 'side'.")
    low, high = int(number.min()), int(number.max())
    if low < 0 or high >= len(rows):
        raise DataError(
            f"{label} has {len(rows)} rows, but the node ids run from {low} to {high}; row k belongs to id k,"
            f" so {high + 1} rows were expected."
        )
    notes = [f"{rows.shape[1]} features a node from {'the array' if path is None else path.name}"]
    spare = len(rows) - len(number) - (0 if (number == 0).any() else 1)
    if spare > 0:
        notes.append(f"{spare} rows of node features belong to no node of the events: left out")
    finite = finite_rows(rows, path or Path("node features"))
    return stream.with_node_features(finite[number], *notes)


def finite_rows(rows: npt.NDArray[Any], path: Path) -> Features:
    """The rows as float32, of no width where they have none. DataError, naming the file, for what is not finite."""
    try:
        found = feature_rows(rows, len(rows), "features")
    except RowError as error:
        raise DataError(f"{path}, row {error.row} (counted from 0): {error.what}.") from None
    return np.zeros((len(rows), 0), np.float32) if found is None else found
