"""Exporters: write answers and metrics in a format of your own, chosen by the ending of the file.

``--output FILE`` of `cordgt predict`, `recommend`, `embed` and `report`, and `export` in Python, use them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from cordgt.errors import CordgtError, DataError, SettingError
from cordgt.files import write_atomically
from cordgt.plugins import Registry
from cordgt.tasks.run_metrics import RunMetrics

Exporter = Callable[[pa.Table, Path], Any]
F = TypeVar("F", bound=Callable[..., Any])
CORDGT_ENDINGS = ("csv", "tsv", "parquet", "json", "html", "htm")  # written by cordgt itself
EXPORTERS: Registry[Exporter] = Registry("exporter", {}, lambda name, function: register_exporter(name)(function))


def register_exporter(ending: str) -> Callable[[F], F]:
    """Register a function ``(table, path)`` that writes an Arrow table to files with this ending, such as ``"md"``.

    The file is written under a temporary name and renamed at the end, so it is complete or not there.

    Examples:
        >>> @cordgt.register_exporter("lines")
        ... def write_lines(table, path):
        ...     path.write_text(str(table.to_pylist()))
        >>> run = cordgt.Run.load("runs/mine")
        >>> cordgt.export(run.recommend("ada", top=2), "partners.lines").name
        'partners.lines'
    """
    name = ending.removeprefix(".").lower()
    if name in CORDGT_ENDINGS:
        raise SettingError(f"cordgt writes .{name} itself. Choose another ending.")

    def register(function: F) -> F:
        EXPORTERS.add(name, function, function)
        return function

    return register


def exporter_endings() -> tuple[str, ...]:
    """Return the endings of all registered exporters, such as ``.md``."""
    return tuple(f".{name}" for name in EXPORTERS)


def export(data: Any, path: str | os.PathLike[str]) -> Path:
    """Write a table, a run's metrics, or recommendations with the exporter of the path's ending; return the path.

    ``data`` is an Arrow or pandas table, `Run.metrics`, or a list of recommendations or dictionaries.

    Examples:
        >>> @cordgt.register_exporter("txt")
        ... def write_text(table, path):
        ...     path.write_text(str(table.column_names))
        >>> cordgt.export([{"node": "tea", "score": 0.9}], "partners.txt").name
        'partners.txt'
    """
    target = Path(path)
    name = target.suffix.removeprefix(".").lower()
    if name not in EXPORTERS:
        known = ", ".join(exporter_endings()) or "none"
        raise DataError(f"{target}: no exporter for '{target.suffix}' is registered. Registered endings: {known}.")
    table, exporter = as_table(data), EXPORTERS[name]

    def write(part: Path) -> None:
        try:
            exporter(table, part)
        except (CordgtError, OSError):
            raise
        except Exception as error:
            raise SettingError(f"The exporter '{name}' failed: {type(error).__name__}: {error}") from error

    write_atomically(target, write)
    return target


def as_table(data: Any) -> pa.Table:
    """Return an answer as an Arrow table. DataError for another kind of object."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, RunMetrics):
        return pa.Table.from_pylist(metric_rows(data))
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if isinstance(data, list) and all(isinstance(row, Mapping) or is_dataclass(row) for row in data):
        return pa.Table.from_pylist([dict(row if isinstance(row, Mapping) else vars(row)) for row in data])
    raise DataError(f"{type(data).__name__} cannot be exported: give a table, a run's metrics, or a list of rows.")


def metric_rows(metrics: RunMetrics) -> list[dict[str, Any]]:
    """Return a row for the run and for each baseline: split, setting, name, metrics (means over runs) and events."""
    return [
        {
            "split": row.split,
            "setting": row.setting,
            "name": row.baseline or metrics.get("model", ""),
            **{name: metric.mean for name, metric in row.metrics.items()},
            "events": row.events[0] if len(row.events) == 1 else None,
        }
        for row in metrics.rows()
    ]
