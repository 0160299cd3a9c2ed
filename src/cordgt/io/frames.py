"""Tables of other libraries as Arrow tables: polars, DuckDB, anything with ``__arrow_c_stream__``, NetworkX graphs.

Also dictionaries of columns.

Objects are recognized by what they offer, so that no library is imported for them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from cordgt.errors import DataError
from cordgt.events.arrays import as_column
from cordgt.events.frames import METADATA_KEY, parse_metadata, table_metadata
from cordgt.files import short_message
from cordgt.io.column_names import find_column


def is_pandas(source: Any) -> bool:
    """Return whether an object is a pandas frame. Its columns are converted one by one, so it stays as it is."""
    return type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "columns")


def as_arrow_table(source: Any) -> Any:
    """Return an Arrow table for an object that holds one, and anything else unchanged.

    A stream that can be read only once is read here. DataError if the object's own library raises an error.
    """
    if isinstance(source, pa.Table | str | os.PathLike) or is_pandas(source):
        return source
    if is_graph(source):
        return _graph_table(source)
    if isinstance(source, dict):
        return _column_table(source)
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    try:
        if type(source).__module__.partition(".")[0] == "polars" and hasattr(source, "collect"):
            source = source.collect()  # a LazyFrame
        if isinstance(source, pa.RecordBatchReader):
            return source.read_all()
        if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
            return pa.table(source)
    except Exception as error:  # of any library: a failed query, a type that Arrow does not have
        raise DataError(
            f"The {type(source).__name__} cannot be read as an Arrow table: {short_message(error)}"
        ) from None
    return source


def _column_table(columns: dict[Any, Any]) -> Any:
    """Return the table of a dictionary: names, and lists or arrays of the same length."""
    try:
        return pa.table({str(name): as_column(values) for name, values in columns.items()})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"The dictionary cannot be read as a table of columns, such as {{'src': [1], 'dst': [2], 'time': [0]}}: "
            f"{short_message(error)}"
        ) from None


# -------------------- NetworkX


def is_graph(source: Any) -> bool:
    """Return whether an object is a NetworkX graph."""
    return callable(getattr(source, "is_multigraph", None)) and hasattr(source, "edges") and hasattr(source, "nodes")


def _graph_table(graph: Any) -> Any:
    """Return one row per edge: ``src``, ``dst``, and a column per edge attribute, null where an edge has none."""
    edges = list(graph.edges(data=True))
    if not edges:
        raise DataError("The graph has no edges.")
    names: dict[Any, None] = {name: None for _, _, attributes in edges for name in attributes}
    if "src" in names or "dst" in names:
        raise DataError(
            "An edge attribute of the graph is called 'src' or 'dst': these are the ends of an edge. Rename it."
        )
    columns = {"src": _node_column([u for u, _, _ in edges]), "dst": _node_column([v for _, v, _ in edges])}
    columns |= {str(name): as_column([attributes.get(name) for _, _, attributes in edges]) for name in names}
    return pa.table(columns)


def _node_column(nodes: list[Any]) -> Any:
    for node in nodes:
        if isinstance(node, bool) or not (isinstance(node, str | int) or hasattr(node, "__index__")):
            raise DataError(f"The node {node!r} of the graph cannot be a node id: an id is text or a whole number.")
    return as_column(nodes)


# -------------------- frames that a stream was exported to


def exported_metadata(source: Any) -> dict[str, Any]:
    """Return the ``name`` and ``options`` that `EventStream.to_arrow` or ``to_pandas`` left in a table; else empty.

    Empty also if the table no longer has the columns for source, destination and time.
    """
    if isinstance(source, pa.Table):
        metadata, header = table_metadata(source), source.column_names
    elif is_pandas(source) and isinstance(getattr(source, "attrs", None), Mapping):
        metadata, header = parse_metadata(source.attrs.get(METADATA_KEY)), [str(k) for k in source.columns]
    else:
        return {}
    if not metadata:
        return {}
    options = metadata["options"]
    if any(find_column(options.get(role, ""), header) is None for role in ("src", "dst", "time")):
        return {}
    if any(find_column(name, header) is None for name in _feature_names(options)):
        options = {k: v for k, v in options.items() if k != "features"}
    if options.get("label", "none") != "none" and find_column(options["label"], header) is None:
        options = {k: v for k, v in options.items() if k != "label"}
    return metadata | {"options": options}


def _feature_names(options: Mapping[str, Any]) -> list[str]:
    names = options.get("features", [])
    return names if isinstance(names, list) else [names]
