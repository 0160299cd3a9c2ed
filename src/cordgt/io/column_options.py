"""Check whether the column options of one file fit another file too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cordgt.errors import DataError
from cordgt.events.stream import EventStream
from cordgt.io.column_names import FEATURE_LIST_NAMES, FEATURE_PATTERN
from cordgt.io.column_roles import ColumnOptions, assign_roles, open_event_table
from cordgt.io.open_table import LoadedFile
from cordgt.io.tables import Table

COLUMN_OPTIONS = tuple(f.name for f in fields(ColumnOptions))
_POSITIONS = re.compile(r"\d+(-\d+)?(,\s*\d+(-\d+)?)*")


def options_to_text(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the column options in ``columns`` as on a command line, without those that are None."""
    given = {k: v for k, v in columns.items() if k in COLUMN_OPTIONS and v is not None}
    return {k: ",".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for k, v in given.items()}


def remembered_options(stream: EventStream) -> dict[str, Any]:
    """Return the column options that a stream was read with, for later files.

    Features that are found by their names are left out, and so are names with a comma, which text cannot list.
    """
    options = {k: v for k, v in stream.columns.items() if k in COLUMN_OPTIONS}
    names = options.get("features")
    if isinstance(names, list):
        is_usual = all(FEATURE_PATTERN.fullmatch(k) or k.lower() in FEATURE_LIST_NAMES for k in names)
        if is_usual or any("," in k for k in names):
            del options["features"]
    return options


def are_positions(option: str) -> bool:
    """Whether an option names columns by position only: ``2``, ``4-7`` or ``0,3``."""
    return _POSITIONS.fullmatch(option) is not None


def has_columns(source: Any, columns: Mapping[str, Any], *, need_time: bool = True) -> bool:
    """Whether a file or table has all of these columns: names in its header, or positions if it has no header.

    A path is read, so pass a pipe as a `LoadedFile`. False if the source cannot be read.
    """
    given = options_to_text(columns)
    options = ColumnOptions(**given)
    try:
        table = _open_head(source, options, need_time=need_time)
        assign_roles(table, options, need_time=need_time)
    except DataError:
        return False
    return table.header is None or not any(are_positions(v) for v in given.values())


def columns_in_header(source: Any, columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the options in ``columns`` whose names are in the header of a file or table, read as by `has_columns`."""
    given = options_to_text(columns)
    names = {name.lower() for name in read_header(source, given)}
    return {k: v for k, v in given.items() if v.lower() in names}


def read_header(source: Any, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in the header of a file or table; empty without one that has a column of ``columns``."""
    try:
        return tuple(_open_head(source, ColumnOptions(**columns), need_time=False).header or ())
    except DataError:
        return ()


def _open_head(source: Any, options: ColumnOptions, *, need_time: bool) -> Table:
    """Open a source; of a `LoadedFile` only the header and the first rows."""
    return open_event_table(source.head() if isinstance(source, LoadedFile) else source, options, need_time=need_time)
