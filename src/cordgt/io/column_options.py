"""Column options given for one file: does another file have these columns too?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from cordgt.errors import DataError
from cordgt.io.column_roles import ColumnOptions, choose, open_table
from cordgt.io.open_table import LoadedFile
from cordgt.io.tables import Table

OPTIONS = tuple(f.name for f in fields(ColumnOptions))
_POSITIONS = re.compile(r"\d+(-\d+)?(,\s*\d+(-\d+)?)*")


def as_text(columns: Mapping[str, Any]) -> dict[str, str]:
    """The column options in ``columns`` as a command line has them. Options that are None are dropped."""
    given = {k: v for k, v in columns.items() if k in OPTIONS and v is not None}
    return {k: ",".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for k, v in given.items()}


def are_positions(option: str) -> bool:
    """Whether an option names columns by position only: ``2``, ``4-7`` or ``0,3``."""
    return _POSITIONS.fullmatch(option) is not None


def has_columns(source: Any, columns: Mapping[str, Any], *, need_time: bool = True) -> bool:
    """Whether a file or table has all of these columns: names in its header, or positions if it has no header.

    A path is read, so pass a pipe as a `LoadedFile`. False if the source cannot be read.
    """
    given = as_text(columns)
    options = ColumnOptions(**given)
    try:
        table = _open_head(source, options, need_time=need_time)
        choose(table, options, need_time=need_time)
    except DataError:
        return False
    return table.header is None or not any(are_positions(v) for v in given.values())


def columns_in_header(source: Any, columns: Mapping[str, Any]) -> dict[str, str]:
    """The options in ``columns`` whose names are in the header of a file or table. Reads as `has_columns` does."""
    given = as_text(columns)
    try:
        table = _open_head(source, ColumnOptions(**given), need_time=False)
    except DataError:
        return {}
    names = {name.lower() for name in table.header or ()}
    return {k: v for k, v in given.items() if v.lower() in names}


def _open_head(source: Any, options: ColumnOptions, *, need_time: bool) -> Table:
    """The table at the start of a source: its header and its first rows."""
    return open_table(source.head() if isinstance(source, LoadedFile) else source, options, need_time=need_time)
