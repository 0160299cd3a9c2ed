"""Write a stream as a CSV or Parquet file that other programs, and ``read_events``, can read."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from cordgt.errors import DataError
from cordgt.events.arrays import is_text, to_list_column
from cordgt.events.frames import feature_columns, time_column
from cordgt.events.stream import EventStream
from cordgt.files import write_atomically


def export_stream(stream: EventStream, out: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write the stream as CSV or Parquet, by the file's extension; ``read_events`` returns the same stream.

    Ids and times are as the user wrote them (dates as ISO text in UTC). Node features go to a second file in the
    same folder, ``NAME.nodes.csv``, for ``node_features``. Each file is written atomically.

    Returns:
        The files written. DataError for another extension or a folder that cannot be written.
    """
    path = Path(out)
    extension = path.suffix.lower()
    if extension not in (".csv", ".parquet"):
        raise DataError(f"{path} ends in '{path.suffix}'; .csv or .parquet was expected.")
    tables = {path: _event_table(stream, typed=extension == ".parquet")}
    if stream.node_x is not None:
        tables[path.with_name(f"{path.stem}.nodes{path.suffix}")] = stream.node_table()
    for target, table in tables.items():
        write_atomically(target, partial(_write_table, table, extension))
    return tuple(tables)


def _event_table(stream: EventStream, *, typed: bool) -> Any:
    """Return the events as an Arrow table; ``typed``: with date and list types instead of text and columns."""
    src, dst = ("src", "dst") if stream.ids.shared else ("user_id", "item_id")
    columns = {src: stream.ids.decode(stream.src), dst: stream.ids.decode(stream.dst)}
    columns["time"] = stream.time.format(stream.t)
    if typed and stream.time.kind == "date":
        columns["time"] = time_column(stream.time, stream.t)
    if stream.label is not None:
        columns["label"] = pa.array(stream.label, from_pandas=True)
    if stream.edge_x is not None and typed:
        columns["features"] = to_list_column(stream.edge_x)
    elif stream.edge_x is not None:
        columns |= feature_columns(stream.edge_x)
    return pa.table(columns)


def _write_table(table: Any, extension: str, part: Path) -> None:
    """Write a table to the temporary file ``part`` in the format of ``extension``."""
    if extension == ".parquet":
        pq.write_table(table, part)
        return
    table = pa.table([_with_decimal_point(k) for k in table.columns], names=table.column_names)
    # A first field that begins with # or % would be read as a comment, unless it is quoted.
    first = table.column(0)
    needs_quotes = is_text(first.type) and pc.any(pc.match_substring_regex(first, "^[#%]")).as_py()
    style = "all_valid" if needs_quotes else "needed"
    pyarrow.csv.write_csv(table, part, pyarrow.csv.WriteOptions(quoting_style=style, quoting_header="none"))


def _with_decimal_point(column: Any) -> Any:
    """Convert float64 to text that is read as float again: 36.0, not 36."""
    if not pa.types.is_float64(column.type):
        return column
    text = pc.cast(column, pa.string())
    return pc.if_else(pc.match_substring_regex(text, r"^-?\d+$"), pc.binary_join_element_wise(text, ".0", ""), text)
