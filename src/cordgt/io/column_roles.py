"""Decide which column is the source, the destination, the time, the label or a feature.

Options come first, then the usual names. Without a header the values of the columns show which one is the time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from cordgt.errors import DataError, MissingColumnError, did_you_mean
from cordgt.events.date_formats import check_date_format, parse_dates
from cordgt.events.times import epoch_unit, guess_time_kind
from cordgt.io.column_names import (
    LABEL_NAMES,
    detect_layout,
    find_column,
    match_columns,
    match_endpoints,
    match_other_endpoint,
    match_time_columns,
)
from cordgt.io.open_table import TextReadOptions, open_table
from cordgt.io.tables import Table, TextTable
from cordgt.io.time_column import default_ends, find_time_column

Column = str | int | None
FeatureColumns = str | Sequence[str | int] | None
_ROLE_NOUNS = {"src": "source", "dst": "destination", "time": "time", "label": "label"}
_MAX_QUOTED = 100  # characters of an option that a message quotes
_MAX_LISTED = 20  # columns that a message lists


@dataclass(frozen=True)
class ColumnOptions:
    """Which columns to read: a name, or a position from 0 if no column has that name. None: by the usual names.

    ``features`` is a list, or text separated by commas: names, positions, ranges of positions (``4-7``), ``rest`` for
    every column without another role, or ``none`` for no features even if a published layout has some.
    ``label`` may be ``none`` for no labels even if a column has a usual name for them. A column of that name wins.
    ``time_format`` is the format of the dates, as for Python's ``strptime`` (``%d/%m/%Y %H:%M``); None for numbers, ISO
    dates and dates whose values show the format.
    """

    src: Column = None
    dst: Column = None
    time: Column = None
    label: Column = None
    features: FeatureColumns = None
    time_format: str | None = None

    def __post_init__(self) -> None:
        if self.time_format is not None:
            check_date_format(self.time_format)


@dataclass(frozen=True)
class ColumnRoles:
    """Positions of the columns to read; None for a role without a column."""

    src: int
    dst: int
    time: int | None = None
    label: int | None = None
    features: tuple[int, ...] = ()
    time_reason: str = ""  # why this column is the time, if there is no header and the user did not name it

    def scalar_columns(self) -> list[int]:
        """Return the positions of all columns but the features."""
        return [k for k in (self.src, self.dst, self.time, self.label) if k is not None]

    def all_columns(self) -> set[int]:
        return {*self.scalar_columns(), *self.features}


def open_event_table(
    source: Any, options: ColumnOptions, *, need_time: bool = True, allow_comments: bool = True
) -> Table:
    """Open a table of events or pairs from a path, a pandas or an Arrow table. DataError as for `open_table`."""
    return open_table(source, event_read_options(options, need_time=need_time, allow_comments=allow_comments))


def event_read_options(options: ColumnOptions, *, need_time: bool, allow_comments: bool = True) -> TextReadOptions:
    """Return how to read text with events, or with pairs if ``need_time`` is False."""
    return TextReadOptions(
        content="Events",
        min_columns=3 if need_time else 2,
        is_header=partial(_is_header, options=options, need_time=need_time),
        allow_comments=allow_comments,
    )


def _is_header(first: list[str], options: ColumnOptions, need_time: bool) -> bool:
    """Whether the first row names the columns: it has the given or the usual names, or no time where one must be."""
    given = [str(k) for k in (options.src, options.dst, options.time, options.label) if k is not None]
    if any(find_column(k, first) is not None and parse_position(k) is None for k in given):
        return True
    if detect_layout(first):
        return True
    src, dst = match_endpoints(first)
    has_usual_pair = len(src) == 1 and len(dst) == 1
    if has_usual_pair and (match_time_columns(first) or not need_time):
        return True
    time = None if options.time is None else parse_position(str(options.time))
    if time is None and need_time and (guess_time_kind(first[0]) or any(map(_can_only_be_time, first))):
        return False
    time = 2 if time is None else time
    if time >= len(first):
        return has_usual_pair
    if options.time_format is not None and _has_format(first[time], options.time_format):
        return False
    return first[time] != "" and not guess_time_kind(first[time])


def _has_format(text: str, time_format: str) -> bool:
    try:
        parse_dates(pa.array([text]), time_format)
        return True
    except DataError:
        return False


def _can_only_be_time(text: str) -> bool:
    """Whether a field is a date or seconds since 1970, and so not the name of a column."""
    kind = guess_time_kind(text)
    return kind == "date" or (kind == "number" and epoch_unit(float(text), float(text)) != "")


def assign_roles(table: Table, options: ColumnOptions, *, need_time: bool = True) -> ColumnRoles:
    """Return the columns to read: by option, by the usual names, or by position and values if there is no header.

    DataError if an option names no column (with the nearest name), if a role matches no column or several, or if a
    column has two roles.
    """
    skip_labels = options.label == "none" and find_column("none", table.header or ()) is None
    given: dict[str, int | None] = {}
    for role in _ROLE_NOUNS:
        value = None if role == "label" and skip_labels else getattr(options, role)
        given[role] = None if value is None else resolve_column(table, str(value), role)
    reason = ""
    if table.header is not None:
        found = _assign_by_name(table, given, need_time)
    else:
        found, reason = _assign_by_position(table, given, need_time)
    if skip_labels:
        found["label"] = None
    _check_distinct(table, found)
    src, dst = found["src"], found["dst"]
    assert src is not None and dst is not None, "both functions require them"
    roles = ColumnRoles(src, dst, found["time"], found["label"], time_reason=reason)
    return replace(roles, features=_feature_columns(table, roles, options.features))


def parse_position(text: str) -> int | None:
    """Return the position that an option gives; None if it is a name, as are digits of other scripts."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def resolve_column(table: Table, column: str, role: str) -> int:
    """Return the position of a column given by name or position; MissingColumnError if there is none."""
    by_name = find_column(column, table.header or ())
    if by_name is not None:
        return by_name
    position, option = parse_position(column), table.describe_option(role)
    if position is not None and position < table.n_columns:
        return position
    if position is not None:
        reason = (
            f"has no column {column} for {option}: it has {table.n_columns}, counted from 0. {_list_columns(table)}"
        )
    else:
        name = column if len(column) <= _MAX_QUOTED else f"{column[:_MAX_QUOTED]}…"
        if table.header is None:
            reason = (
                f"has no header, so no column '{name}' for {option}; give its position, 0 to {table.n_columns - 1}."
            )
        else:
            reason = f"has no column '{name}' for {option}.{did_you_mean(name, table.header)} {_list_columns(table)}"
    raise MissingColumnError(role, f"{table.name} {reason}")


def _list_columns(table: Table) -> str:
    if table.header is None:
        return f"There are {table.n_columns} columns and no header."
    names = ", ".join(f"'{name}'" for name in table.header[:_MAX_LISTED])
    return f"The columns are {names}{', …' if len(table.header) > _MAX_LISTED else ''}."


def _assign_by_position(
    table: Table, given: dict[str, int | None], need_time: bool
) -> tuple[dict[str, int | None], str]:
    """Return the given positions, else the first free ones for src and dst, and the reason for the time.

    The time of events is found by its values. The time of pairs is the next free column, and may be missing.
    """
    if table.n_columns < (3 if need_time else 2):
        raise DataError(
            f"{table.name} has {table.n_columns} {'column' if table.n_columns == 1 else 'columns'};"
            f" at least {'src, dst and time' if need_time else 'src and dst'} were expected."
        )
    src, dst, time = given["src"], given["dst"], given["time"]
    if need_time and time is None and isinstance(table, TextTable):
        found = find_time_column(table, src, dst, {k for k in given.values() if k is not None})
        return given | {"src": found.src, "dst": found.dst, "time": found.time}, found.reason
    src, dst = default_ends(src, dst, time)
    if time is None:
        time = next((k for k in range(table.n_columns) if k not in (src, dst)), None)
    return given | {"src": src, "dst": dst, "time": time}, ""


def _assign_by_name(table: Table, given: dict[str, int | None], need_time: bool) -> dict[str, int | None]:
    """Return the given positions, else those of the usual names. Labels may be missing, and times if not needed."""
    header = table.header or ()
    taken = {k for k in given.values() if k is not None}
    if given["src"] is given["dst"] is None:
        src, dst = match_endpoints(header, taken)
    else:
        src, dst = match_other_endpoint(header, given["src"], given["dst"], taken)
    time, label = match_time_columns(header, taken), match_columns(header, LABEL_NAMES, taken)
    found = dict(given)
    for role, candidates in (("src", src), ("dst", dst), ("time", time), ("label", label)):
        option = table.describe_option(role)
        if given[role] is not None:
            continue
        if len(candidates) == 1:
            found[role] = candidates[0]
        elif role == "label" or (role == "time" and not candidates and not need_time):
            continue
        elif not candidates:
            raise DataError(
                f"{table.name}: no column has a usual name for the {_ROLE_NOUNS[role]}; name it with {option}."
                f" {_list_columns(table)}{table.header_hint}"
            )
        else:
            names = " and ".join(f"'{header[k]}'" for k in candidates)
            raise DataError(f"{table.name}: {names} could each be the {_ROLE_NOUNS[role]}; name one with {option}.")
    return found


def _check_distinct(table: Table, positions: dict[str, int | None]) -> None:
    """Raise DataError if one column has two roles."""
    roles: dict[int, str] = {}
    others = ", ".join(map(table.describe_option, ("src", "dst", "time")))
    for role, position in positions.items():
        if position is not None and roles.setdefault(position, role) != role:
            raise DataError(
                f"{table.name}: {table.describe_column(position)} would be both the {_ROLE_NOUNS[roles[position]]} and"
                f" the {_ROLE_NOUNS[role]}; name the others too ({others})."
            )


def _feature_columns(table: Table, roles: ColumnRoles, option: FeatureColumns) -> tuple[int, ...]:
    """Return the positions of the features: by option, else by layout or by name."""
    used = roles.all_columns()
    free = [k for k in range(table.n_columns) if k not in used]
    if option is None:
        if table.layout == "jodie":
            return tuple(free)
        return tuple(k for k in free if table.layout == "" and table.is_feature_column(k))
    parts = [part.strip() for part in option.split(",")] if isinstance(option, str) else [str(k) for k in option]
    columns = [k for part in parts for k in _parse_feature_part(table, part, free)]
    repeated = [k for k, count in Counter(columns).items() if count > 1 or k in used]
    if repeated:
        raise DataError(
            f"{table.name}: {table.describe_column(repeated[0])} is given as a feature, but is already in use."
        )
    return tuple(columns)


def _parse_feature_part(table: Table, part: str, free: list[int]) -> list[int]:
    """Return the positions for one part of the option. A column of that name wins over every other meaning."""
    if find_column(part, table.header or ()) is None:
        if part in ("rest", "none"):
            return free if part == "rest" else []
        bounds = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", part)
        if bounds:
            start, stop = int(bounds[1]), int(bounds[2])
            if start > stop or stop >= table.n_columns:
                raise MissingColumnError(
                    "features",
                    f"{table.name}: the range {part} for {table.describe_option('features')} is not within columns 0 to"
                    f" {table.n_columns - 1}.",
                )
            return list(range(start, stop + 1))
    return [resolve_column(table, part, "features")]
