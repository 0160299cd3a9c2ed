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

from cordgt.analysis.table_files import TABLE_ENDINGS, write_table_file
from cordgt.errors import CordgtError, DataError, SettingError
from cordgt.files import write_atomically
from cordgt.plugins import Registry
from cordgt.tasks.run_metrics import RunMetrics

Exporter = Callable[[pa.Table, Path], Any]
F = TypeVar("F", bound=Callable[..., Any])
EXPORTERS: Registry[Exporter] = Registry(
    "exporter",
    {},
    lambda name, function: register_exporter(name)(function),
    (*(ending.removeprefix(".") for ending in TABLE_ENDINGS), "html", "htm"),  # written by cordgt itself
)


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
    name = ending.removeprefix(".").lower() if isinstance(ending, str) else ending
    EXPORTERS.check_name(name)

    def register(function: F) -> F:
        EXPORTERS.add(name, function, function)
        return function

    return register


def exporter_endings() -> tuple[str, ...]:
    """Return the endings of all registered exporters, such as ``.md``."""
    return tuple(f".{name}" for name in EXPORTERS)


def export(data: Any, path: str | os.PathLike[str]) -> Path:
    """Write a table, a run's metrics, or recommendations in the format of the path's ending; return the path.

    The endings are .csv, .tsv, .parquet, .json, and those of registered exporters. ``data`` is an Arrow or pandas
    table, `Run.metrics`, or a list of recommendations or dictionaries.

    Examples:
        >>> cordgt.export([{"node": "tea", "score": 0.9}], "partners.csv").name
        'partners.csv'
    """
    target = Path(path)
    if target.suffix.lower() in TABLE_ENDINGS:
        write_table_file(as_table(data), target)
        return target
    name = target.suffix.removeprefix(".").lower()
    if name not in EXPORTERS:
        known = ", ".join((*TABLE_ENDINGS, *exporter_endings()))
        raise DataError(
            f"{target}: no exporter for '{target.suffix}' is registered. Use one of {known}, or load the plug-in that "
            "has it: --plugin FILE.py, or cordgt.load_plugin(FILE) in Python."
        )
    table, exporter = as_table(data), EXPORTERS[name]

    def write(part: Path) -> None:
        try:
            exporter(table, part)
        except (CordgtError, OSError):
            raise
        except Exception as error:
            raise SettingError(f"The exporter '{name}' failed: {type(error).__name__}: {error}") from error
        if not part.is_file() or part.stat().st_size == 0:
            raise SettingError(f"The exporter '{name}' wrote nothing into the file that is its second argument.")

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
