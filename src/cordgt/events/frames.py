"""Streams and tables as objects of other libraries: Arrow, pandas, polars, PyG.

A library is imported only when its object is asked for. Each object says how `read_events` reads it back: an Arrow
table in the metadata of its schema, a pandas frame in ``attrs``, a ``TemporalData`` in its attribute ``cordgt``. A
polars frame has no such place: pass ``**stream.read_options``.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cordgt.errors import DataError
from cordgt.events.arrays import Features, Floats, Ints
from cordgt.events.ids import NodeIds
from cordgt.events.times import TimeAxis

METADATA_KEY = "cordgt"  # in the schema of an Arrow table, in ``attrs`` of a pandas frame, of a ``TemporalData``
COLUMN_ROLES = ("src", "dst", "time", "label", "features")


def import_library(module: str, package: str) -> Any:
    """Import a library that is not a dependency. DataError, with the command that installs it, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{package} cannot be imported ({error}). Install it: pip install {package}") from None


class FrameExport:
    """Adds ``to_pandas`` and ``to_polars`` to a class with ``to_arrow``."""

    def to_arrow(self) -> Any:
        """Return a ``pyarrow.Table``."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with the columns of `to_arrow`."""
        import_library("pandas", "pandas")
        table = self.to_arrow()
        frame = table.replace_schema_metadata().to_pandas()
        metadata = table_metadata(table)
        if metadata:
            frame.attrs[METADATA_KEY] = metadata
        return frame

    def to_polars(self) -> Any:
        """Return a ``polars.DataFrame`` with the columns of `to_arrow`."""
        return import_library("polars", "polars").from_arrow(self.to_arrow())


@dataclass(frozen=True, eq=False)
class StreamInfo:
    """What a ``TemporalData`` made from a stream cannot hold as tensors of events."""

    ids: NodeIds  # the user's id of node k
    time: TimeAxis
    node_x: Features | None
    name: str
    columns: Mapping[str, Any]
    column_names: Mapping[str, Any]


class StreamExport(FrameExport):
    """The exports of an `EventStream`. The attributes are its own."""

    src: Ints
    dst: Ints
    t: Ints | Floats
    edge_x: Features | None
    node_x: Features | None
    label: Ints | Floats | None
    ids: NodeIds
    time: TimeAxis
    name: str
    columns: Mapping[str, Any]
    column_names: Mapping[str, Any]

    @property
    def read_options(self) -> dict[str, Any]:
        """The options of `read_events` for what `to_arrow`, `to_pandas` and `to_polars` return."""
        names = self._export_names()
        options: dict[str, Any] = {role: names[role] for role in ("src", "dst", "time")}
        options["label"] = "none" if self.label is None else names["label"]
        if self.edge_x is not None:
            options["features"] = names["features"]
        return options | {"ids": "shared" if self.ids.shared else "separate"}

    def to_arrow(self) -> Any:
        """Return the events as a ``pyarrow.Table``: one row per event, in the order of the stream.

        The ids are those of the user, dates are timestamps in UTC, and each event feature has a column. The columns
        have the names of the table that the stream was read from, else ``src dst time label feature_0 …``, with
        ``user_id item_id`` for separate id spaces. Node features are in `node_table`.
        """
        names = self._export_names()
        columns = {names["src"]: self.ids.decode(self.src), names["dst"]: self.ids.decode(self.dst)}
        columns[names["time"]] = time_column(self.time, self.t)
        if self.label is not None:
            columns[names["label"]] = pa.array(self.label, from_pandas=True)
        if self.edge_x is not None:
            columns |= feature_columns(self.edge_x, names["features"])
        metadata = {"name": self.name, "options": self.read_options}
        return pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(metadata)})

    def node_table(self) -> Any:
        """Return the nodes as a ``pyarrow.Table``: ``id``, ``side`` for separate id spaces, ``feature_0 …``.

        `read_events` takes it as ``node_features``. The rows are in the order of first appearance.
        """
        columns = {"id": self.ids.names}
        if self.ids.side is not None:
            columns["side"] = pa.array(np.array(["src", "dst"])[self.ids.side])
        return pa.table(columns if self.node_x is None else columns | feature_columns(self.node_x))

    def to_temporal_data(self) -> Any:
        """Return a PyG ``TemporalData`` with ``src dst t msg``, and ``y`` if there are labels.

        Nodes have the numbers 0 to N - 1. ``t`` has the times of the stream: dates are microseconds since 1970.
        ``msg`` has no columns if there are no event features. `read_events` finds ids, node features and the kind of
        times in the attribute ``cordgt``.
        """
        temporal_data = import_library("torch_geometric.data", "torch-geometric").TemporalData
        edge_x = np.zeros((len(self.src), 0), np.float32) if self.edge_x is None else self.edge_x
        arrays = {"src": self.src, "dst": self.dst, "t": self.t, "msg": edge_x}
        if self.label is not None:
            arrays["y"] = self.label
        torch = importlib.import_module("torch")
        tensors = {
            key: torch.from_numpy(np.array(x)) for key, x in arrays.items()
        }  # a copy: mapped files are read-only
        data = temporal_data(**tensors)
        info = StreamInfo(self.ids, self.time, self.node_x, self.name, self.columns, self.column_names)
        data.__dict__[METADATA_KEY] = info  # not in its store: PyG slices everything there as tensors of events
        return data

    def _export_names(self) -> dict[str, Any]:
        """Return the name of each column by role; ``features`` is a list. The usual names if two would be equal."""
        src, dst = ("src", "dst") if self.ids.shared else ("user_id", "item_id")
        width = 0 if self.edge_x is None else self.edge_x.shape[1]
        usual = {"src": src, "dst": dst, "time": "time", "label": "label", "features": feature_names(width)}
        names = usual | {role: name for role, name in self.column_names.items() if role in usual}
        if len(names["features"]) != width:  # a column of lists
            names["features"] = usual["features"]
        used = [names[role] for role in ("src", "dst", "time")] + list(names["features"])
        used += [] if self.label is None else [names["label"]]
        return usual if len(set(used)) < len(used) else names


def time_column(axis: TimeAxis, t: Ints | Floats) -> Any:
    """Return times as an Arrow array: numbers unchanged, dates as timestamps in UTC."""
    values = pa.array(t)
    return values.cast(pa.timestamp("us", "UTC")) if axis.kind == "date" else values


def feature_names(width: int) -> list[str]:
    return [f"feature_{k}" for k in range(width)]


def feature_columns(rows: Features, names: list[str] | None = None) -> dict[str, Any]:
    """Return one Arrow column per feature, by name."""
    names = feature_names(rows.shape[1]) if names is None else names
    return {name: pa.array(np.ascontiguousarray(rows[:, k])) for k, name in enumerate(names)}


def table_metadata(table: Any) -> dict[str, Any]:
    """Return what `to_arrow` of a stream writes into the schema of its table; empty for any other table."""
    text = (table.schema.metadata or {}).get(METADATA_KEY.encode())
    return {} if text is None else parse_metadata(text)


def parse_metadata(value: Any) -> dict[str, Any]:
    """Return ``{"name": text, "options": options of `read_events`}``; empty if the value is anything else."""
    try:
        content = json.loads(value) if isinstance(value, str | bytes) else value
    except ValueError:
        return {}
    if not isinstance(content, Mapping) or not isinstance(content.get("options"), Mapping):
        return {}
    known = (*COLUMN_ROLES, "ids")
    options = {k: v for k, v in content["options"].items() if k in known and _is_option(k, v)}
    return {"name": str(content.get("name", "")), "options": options}


def parse_column_names(text: str | None) -> dict[str, Any]:
    """Return the names of columns, by role or option, from JSON; empty if it is missing or not such a value."""
    try:
        content = json.loads(text or "{}")
    except ValueError:
        return {}
    return {k: v for k, v in content.items() if _is_option(k, v)} if isinstance(content, dict) else {}


def _is_option(key: str, value: Any) -> bool:
    """Whether a value can be a column option: text, or a list of text for features."""
    is_list = key == "features" and isinstance(value, list) and all(isinstance(k, str) for k in value)
    return is_list or isinstance(value, str)
