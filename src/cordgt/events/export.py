"""Writing a stream as a file that others can read, and ``read_events`` again."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from cordgt.errors import DataError
from cordgt.events.arrays import Features, as_lists, is_text
from cordgt.events.stream import EventStream
from cordgt.files import write_atomically


def convert(stream: EventStream, out: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Writes the stream as CSV or Parquet, by the file's ending, so that ``read_events`` gives it back.

    Ids and times are as the user wrote them (dates as ISO text in UTC). Node features go to a second file beside the
    first, ``NAME.nodes.csv``, for ``node_features``. Each file is written whole or not at all.

    Returns:
        The files written. DataError for another ending or a folder that cannot be written.
    """
    path = Path(out)
    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet"):
        raise DataError(f"{path} ends in '{path.suffix}'; .csv or .parquet was expected.")
    tables = {path: _event_table(stream, typed=ending == ".parquet")}
    if stream.node_x is not None:
        tables[path.with_name(f"{path.stem}.nodes{path.suffix}")] = _node_table(stream, stream.node_x)
    for target, table in tables.items():
        write_atomically(target, partial(_write_table, table, ending))
    return tuple(tables)


def _event_table(stream: EventStream, *, typed: bool) -> Any:
    """The events as an Arrow table; ``typed``: dates and lists as such, not as text and columns."""
    src, dst = ("src", "dst") if stream.ids.shared else ("user_id", "item_id")
    columns = {src: stream.ids.take(stream.src), dst: stream.ids.take(stream.dst)}
    columns["time"] = stream.time.format(stream.t)
    if typed and stream.time.kind == "date":
        columns["time"] = pa.array(stream.t).cast(pa.timestamp("us", "UTC"))
    if stream.label is not None:
        columns["label"] = pa.array(stream.label, from_pandas=True)
    if stream.edge_x is not None and typed:
        columns["features"] = as_lists(stream.edge_x)
    elif stream.edge_x is not None:
        columns |= _feature_columns(stream.edge_x)
    return pa.table(columns)


def _node_table(stream: EventStream, node_x: Features) -> Any:
    columns = {"id": stream.ids.names}
    if stream.ids.side is not None:
        columns["side"] = pa.array(np.array(["src", "dst"])[stream.ids.side])
    return pa.table(columns | _feature_columns(node_x))


def _feature_columns(rows: Features) -> dict[str, Any]:
    return {f"feature_{k}": pa.array(np.ascontiguousarray(rows[:, k])) for k in range(rows.shape[1])}


def _write_table(table: Any, ending: str, part: Path) -> None:
    """Writes a table to ``part``, whose own ending says nothing."""
    if ending == ".parquet":
        pq.write_table(table, part)
        return
    plain = pa.table([_with_point(k) for k in table.columns], names=table.column_names)
    # A first field that begins with # or % would be read as a comment, unless it is quoted.
    first = plain.column(0)
    marked = is_text(first.type) and pc.any(pc.match_substring_regex(first, "^[#%]")).as_py()
    style = "all_valid" if marked else "needed"
    pyarrow.csv.write_csv(plain, part, pyarrow.csv.WriteOptions(quoting_style=style, quoting_header="none"))


def _with_point(column: Any) -> Any:
    """Float64 as text that reads as a float again: 36.0, not 36."""
    if not pa.types.is_float64(column.type):
        return column
    text = pc.cast(column, pa.string())
    return pc.if_else(pc.match_substring_regex(text, r"^-?\d+$"), pc.binary_join_element_wise(text, ".0", ""), text)
