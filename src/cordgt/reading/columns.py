"""Column options that were given once: does another file have these columns too?"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cordgt.errors import DataError
from cordgt.reading.roles import ColumnOptions, choose, open_table
from cordgt.reading.tables import Table

OPTIONS = tuple(f.name for f in fields(ColumnOptions))
_POSITIONS = re.compile(r"\d+(-\d+)?(,\s*\d+(-\d+)?)*")


def as_text(columns: Mapping[str, Any]) -> dict[str, str]:
    """The column options among ``columns`` as they would be written on a command line; those not given are left out."""
    given = {k: v for k, v in columns.items() if k in OPTIONS and v is not None}
    return {k: ",".join(map(str, v)) if isinstance(v, list | tuple) else str(v) for k, v in given.items()}


def are_positions(option: str) -> bool:
    """Whether an option names columns by their places alone: ``2``, ``4-7`` or ``0,3``."""
    return _POSITIONS.fullmatch(option) is not None


def can_be_read_twice(source: Any) -> bool:
    """False for a pipe, and for a file that is not there."""
    return not isinstance(source, str | os.PathLike) or Path(source).is_file()


def fit(source: Any, columns: Mapping[str, Any], *, need_time: bool = True) -> bool:
    """Whether a file or table has all of these columns: names in its header, or positions where it has none."""
    options = ColumnOptions(**as_text(columns))
    try:
        table = open_table(source, options, need_time=need_time)
        choose(table, options, need_time=need_time)
    except DataError:
        return False
    return table.header is None or not any(are_positions(v) for v in as_text(columns).values())


def those_named_in(source: Any, columns: Mapping[str, Any]) -> dict[str, str]:
    """Those of the columns whose names stand in the header of a file or table."""
    given = as_text(columns)
    try:
        table = open_table(source, ColumnOptions(**given), need_time=False)
    except DataError:
        return {}
    return {k: v for k, v in given.items() if v.lower() in _names(table)}


def _names(table: Table) -> set[str]:
    return {name.lower() for name in table.header or ()}
