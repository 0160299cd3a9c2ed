"""Which columns to read as what: by option, by the usual names, or by place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cordgt.errors import DataError, MissingColumn, nearest
from cordgt.events.times import looks_like_time
from cordgt.io.column_names import LABEL, find_name, layout_of, named_in, usual_ends, usual_partners, usual_times
from cordgt.io.open_table import Expected, open_source
from cordgt.io.tables import Table

Column = str | int | None
FeatureColumns = str | Sequence[str | int] | None
_ROLE = {"src": "source", "dst": "destination", "time": "time", "label": "label"}


@dataclass(frozen=True)
class ColumnOptions:
    """Which columns to read: a name, or a position from 0 (where no column has that name). None: by the usual names.

    ``features``: names and positions, separated by commas, or a list of them; ``4-7`` for a range of positions,
    ``rest`` for every column without another role, ``none`` for none even where a published layout brings some.
    ``label``: ``none``, where no column has that name, for none even where one is called as labels usually are.
    """

    src: Column = None
    dst: Column = None
    time: Column = None
    label: Column = None
    features: FeatureColumns = None


@dataclass(frozen=True)
class Roles:
    """The positions of the columns to read; None for a role that no column has."""

    src: int
    dst: int
    time: int | None = None
    label: int | None = None
    features: tuple[int, ...] = ()

    def single(self) -> list[int]:
        """The columns read one by one: all but the features."""
        return [k for k in (self.src, self.dst, self.time, self.label) if k is not None]

    def used(self) -> set[int]:
        return {*self.single(), *self.features}


def open_table(source: Any, options: ColumnOptions, *, need_time: bool = True, comments: bool = True) -> Table:
    """A table of events or pairs from a path, a pandas or Arrow table. Errors as in ``open_source``."""
    return open_source(source, replace(expected_text(options, need_time=need_time), comments=comments))


def expected_text(options: ColumnOptions, *, need_time: bool) -> Expected:
    """What a text of events or pairs looks like."""

    def is_header(first: list[str]) -> bool:
        return _is_header(first, options, need_time)

    return Expected(what="Events", n_columns=3 if need_time else 2, is_header=is_header)


def _is_header(first: list[str], options: ColumnOptions, need_time: bool) -> bool:
    """Whether the first row names the columns: it does if the names asked for or the usual ones stand in it, or if its
    field for the time is not a time."""
    asked = [str(k) for k in (options.src, options.dst, options.time, options.label) if k is not None]
    if any(find_name(k, first) is not None and as_position(k) is None for k in asked):
        return True
    if layout_of(first):
        return True
    src, dst = usual_ends(first)
    usual_pair = len(src) == 1 and len(dst) == 1
    if usual_pair and (usual_times(first) or not need_time):
        return True
    by_place = None if options.time is None else as_position(str(options.time))
    position = 2 if by_place is None else by_place
    if position >= len(first):
        return usual_pair
    return first[position] != "" and not looks_like_time(first[position])


def choose(table: Table, options: ColumnOptions, *, need_time: bool = True) -> Roles:
    """The columns to read, by option, by the usual names, or 0, 1, 2 where there is no header.

    DataError where an option names no column (with the nearest name), a role finds none or several, or one column
    is asked for twice.
    """
    asked: dict[str, int | None] = {}
    unlabelled = _is_none(table, options.label)
    for role in _ROLE:
        value = None if role == "label" and unlabelled else getattr(options, role)
        asked[role] = None if value is None else position_of(table, str(value), role)
    found = _by_place(table, asked, need_time) if table.header is None else _by_name(table, asked, need_time)
    if unlabelled:
        found["label"] = None
    _check_distinct(table, found)
    src, dst = found["src"], found["dst"]
    assert src is not None and dst is not None, "both functions refuse a table without"
    roles = Roles(src, dst, found["time"], found["label"])
    return replace(roles, features=_feature_columns(table, roles, options.features))


def _is_none(table: Table, asked: Column) -> bool:
    """Whether an option asks for no column at all; a column's own name goes before that."""
    return asked == "none" and find_name("none", table.header or ()) is None


def as_position(asked: str) -> int | None:
    """The position that an option names; None for a name. Digits of other scripts, and too many, are a name."""
    return int(asked) if re.fullmatch(r"[0-9]{1,9}", asked) else None


def position_of(table: Table, asked: str, role: str) -> int:
    """The position of a column given by name or by position. MissingColumn, for ``--role``, if there is none."""
    by_name = find_name(asked, table.header or ())
    if by_name is not None:
        return by_name
    place = as_position(asked)
    if place is not None:
        if place < table.width:
            return place
        raise MissingColumn(
            role,
            f"{table.label} has no column {asked} for --{role}: it has {table.width}, counted from 0."
            f" {_listing(table)}",
        )
    asked = asked if len(asked) <= 100 else f"{asked[:100]}…"
    if table.header is None:
        raise MissingColumn(
            role,
            f"{table.label} has no header, so no column '{asked}' for --{role};"
            f" give its position, 0 to {table.width - 1}.",
        )
    raise MissingColumn(
        role, f"{table.label} has no column '{asked}' for --{role}.{nearest(asked, table.header)} {_listing(table)}"
    )


def _listing(table: Table) -> str:
    if table.header is None:
        return f"There are {table.width} columns and no header."
    names = ", ".join(f"'{k}'" for k in table.header[:20])
    return f"The columns are {names}{', …' if len(table.header) > 20 else ''}."


def _by_place(table: Table, asked: dict[str, int | None], need_time: bool) -> dict[str, int | None]:
    """The roles by option, else 0, 1, 2 for src, dst and the time if the table is that wide."""
    if table.width < (3 if need_time else 2):
        raise DataError(
            f"{table.label} has {table.width} {'column' if table.width == 1 else 'columns'};"
            f" at least {'src, dst and time' if need_time else 'src and dst'} were expected."
        )
    usual = {role: place for place, role in enumerate(("src", "dst", "time")) if place < table.width}
    return {role: usual.get(role) if position is None else position for role, position in asked.items()}


def _by_name(table: Table, asked: dict[str, int | None], need_time: bool) -> dict[str, int | None]:
    """The roles by option, else by the usual names; labels, and times that are not needed, may be missing."""
    header = table.header or ()
    taken = {k for k in asked.values() if k is not None}
    if asked["src"] is asked["dst"] is None:
        src, dst = usual_ends(header, taken)
    else:
        src, dst = usual_partners(header, asked["src"], asked["dst"], taken)
    time, label = usual_times(header, taken), named_in(header, LABEL, taken)
    found = dict(asked)
    for role, candidates in (("src", src), ("dst", dst), ("time", time), ("label", label)):
        if asked[role] is not None:
            continue
        if len(candidates) == 1:
            found[role] = candidates[0]
        elif role == "label" or (role == "time" and not candidates and not need_time):
            continue
        elif not candidates:
            raise DataError(
                f"{table.label}: no column is called as a {_ROLE[role]} usually is; name it with --{role}."
                f" {_listing(table)}{table.doubt}"
            )
        else:
            several = " and ".join(f"'{header[k]}'" for k in candidates)
            raise DataError(f"{table.label}: {several} could each be the {_ROLE[role]}; name one with --{role}.")
    return found


def _check_distinct(table: Table, found: dict[str, int | None]) -> None:
    """DataError where one column would have two roles."""
    seen: dict[int, str] = {}
    for role, position in found.items():
        if position is None:
            continue
        if position in seen:
            raise DataError(
                f"{table.label}: {table.named(position)} would be both the {_ROLE[seen[position]]} and the"
                f" {_ROLE[role]}; name the others too (--src, --dst, --time)."
            )
        seen[position] = role


def _feature_columns(table: Table, roles: Roles, asked: FeatureColumns) -> tuple[int, ...]:
    """The positions of the features: those asked for, or those a layout or their names declare."""
    used = roles.used()
    free = [k for k in range(table.width) if k not in used]
    if asked is None:
        if table.layout == "jodie":
            return tuple(free)
        return tuple(k for k in free if table.layout == "" and table.declares_features(k))
    parts = [k.strip() for k in asked.split(",")] if isinstance(asked, str) else [str(k) for k in asked]
    chosen = [k for part in parts for k in _feature_part(table, part, free)]
    twice = [k for k, count in Counter(chosen).items() if count > 1 or k in used]
    if twice:
        raise DataError(f"{table.label}: {table.named(twice[0])} is asked for as a feature, but is already in use.")
    return tuple(chosen)


def _feature_part(table: Table, part: str, free: list[int]) -> list[int]:
    """The positions that one part of the option stands for; a column's own name goes before any other meaning."""
    if find_name(part, table.header or ()) is None:
        if part in ("rest", "none"):
            return free if part == "rest" else []
        bounds = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", part)
        if bounds:
            start, stop = int(bounds[1]), int(bounds[2])
            if start > stop or stop >= table.width:
                raise MissingColumn(
                    "features", f"{table.label}: the range {part} for --features leaves columns 0 to {table.width - 1}."
                )
            return list(range(start, stop + 1))
    return [position_of(table, part, "features")]
