"""Files and tables of events, pairs and ids, as users have them; errors name the file, the line and the column.

A source becomes a table (text or typed), its columns get their roles (``Roles``), and only those are read, whole
columns at a time. What was assumed on the way is kept in the stream's notes.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, nearest
from cordgt.events.arrays import Features, first_failure, is_number, is_text
from cordgt.events.export import convert
from cordgt.events.stream import EventStream
from cordgt.events.times import TimeAxis
from cordgt.io.column_names import NODE, SRC, are_people_and_things, named_in
from cordgt.io.column_roles import (
    Column,
    ColumnOptions,
    FeatureColumns,
    Roles,
    as_position,
    choose,
    open_table,
    position_of,
)
from cordgt.io.node_features import join_node_features
from cordgt.io.open_table import Expected, open_source
from cordgt.io.published_files import features_beside, with_node_features_beside
from cordgt.io.tables import Table, TextTable
from cordgt.store.store import is_store, open_store

__all__ = ["convert", "join_node_features", "read_events", "read_ids", "read_pairs"]

Ids = Literal["auto", "shared", "separate"]
NO_NAMES = ["", "na", "n/a", "nan", "none", "null", "nil"]  # what exports write for a missing id, in lower case
NOT_LABELS = "not read as labels"  # what tells notes about labels that were left out from others
DATE_NOTE = "times are dates; those without a zone are taken as UTC"

# -------------------- events


def read_events(
    source: Any,
    *,
    src: Column = None,
    dst: Column = None,
    time: Column = None,
    label: Column = None,
    features: FeatureColumns = None,
    ids: Ids = "auto",
    node_features: Any = None,
    name: str | None = None,
) -> EventStream:
    """The stream of events in a file or table.

    Args:
        source: a path (CSV, TSV, an edge list, gzip of these, Parquet, or a published layout; told apart by content),
            the folder of a store (`cordgt data convert`), which takes no column options, a pandas or Arrow table, or a
            PyG ``TemporalData``.
        src, dst, time, label, features: see ``ColumnOptions``.
        ids: whether both columns name nodes of one id space; ``auto``: separate if the columns are called like users
            and items, else shared.
        node_features: a file or table with an id column, or an ``.npy`` with row k for id k; joined by id.
        name: what the stream is called; without one, the file's name.

    DataError, with the file and the line, for what cannot be read.
    """
    check_ids(ids)
    options = ColumnOptions(src, dst, time, label, features)
    if isinstance(source, EventStream):
        raise DataError("This is a stream of events already: use it as it is.")
    if is_store(source):
        return _from_store(source, {**vars(options), "node_features": node_features}, ids, name)
    if _is_temporal_data(source):
        stream = _from_temporal_data(source, ids, name or "")
    else:
        stream = _from_table(source, options, ids, name, beside=node_features is None)
    if node_features is not None:
        stream = join_node_features(stream, node_features)
    return stream


def _from_store(source: Any, options: dict[str, Any], ids: Ids, name: str | None) -> EventStream:
    """The stream of a store; DataError where options are given that only reading a file can heed."""
    given = [key for key, value in options.items() if value is not None]
    if given:
        option = given[0].replace("_", "-")
        raise DataError(f"{source} is a store: its columns were chosen when it was converted, so leave out --{option}.")
    stream = open_store(source).stream()
    if ids != "auto" and stream.ids.shared != (ids == "shared"):
        raise DataError(
            f"{source} is a store with {'one id space' if stream.ids.shared else 'two id spaces'}; not {ids}."
        )
    return stream if name is None else replace(stream, name=name)


def check_ids(ids: str) -> None:
    """DataError where the word for the id spaces is none of those known."""
    if ids not in ("auto", "shared", "separate"):
        raise DataError(
            f"ids is '{ids}'; auto, shared or separate was expected.{nearest(str(ids), ['auto', 'shared', 'separate'])}"
        )


def _from_table(source: Any, options: ColumnOptions, ids: Ids, name: str | None, *, beside: bool) -> EventStream:
    """The stream in a file or table; ``beside``: with the node features that stand beside a published file."""
    table = open_table(source, options)
    roles = choose(table, options)
    assert roles.time is not None, "choose refuses a table without"
    check_split_date(table, roles.time)
    columns = table.columns([*roles.single(), *([table.width - 1] if table.layout == "ml" else [])])
    if len(columns[roles.src]) == 0:
        raise DataError(f"{table.label} holds no events.")
    axis = TimeAxis.of(columns[roles.time])
    when = table.times(columns[roles.time], roles.time, axis)
    label, label_notes = labels_of(table, columns, roles, asked=options.label is not None)
    if table.layout == "ml" and options.features is None:
        edge_x, feature_notes = features_beside(table, columns[table.width - 1], Path(source))
    else:
        edge_x, feature_notes = _features(table, roles, asked=options.features is not None)
    shared, id_note = id_spaces(table, roles, ids)
    date_notes = [DATE_NOTE] if axis.kind == "date" else written_dates(when)
    stream = EventStream.from_columns(
        table.ids(columns[roles.src], roles.src),
        table.ids(columns[roles.dst], roles.dst),
        when,
        edge_x,
        label,
        shared_ids=shared,
        time=axis,
        name=name_of(source) if name is None else name,
        notes=(*table.notes, *column_notes(table, roles), *label_notes, *feature_notes, *date_notes, id_note),
    )
    stream = replace(stream, notes=(*stream.notes, *missing_names(stream.ids.names)))
    return with_node_features_beside(stream, Path(source)) if beside and table.layout == "ml" else stream


def written_dates(t: np.ndarray) -> list[str]:
    """A remark where numbers look like dates written as 20240531: the time between them is then not what it seems."""
    if t.dtype.kind != "i" or len(t) == 0 or t.min() < 19000101 or t.max() > 21001231:
        return []
    month, day = t // 100 % 100, t % 100
    if not ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all():
        return []
    return ["the times look like dates written as 20240531, and are read as plain numbers: write them as 2024-05-31"]


def missing_names(names: Any) -> list[str]:
    """A remark where ids look like words for a missing one: each is a node of that name."""
    if not is_text(names.type):
        return []
    plain = pc.utf8_lower(pc.utf8_trim_whitespace(names))
    found = names.filter(pc.is_in(plain, pa.array(NO_NAMES, names.type))).unique().to_pylist()
    shown = ", ".join(repr(name) for name in found)
    return [f"taken for ids of nodes: {shown}; leave out their rows where the id is missing"] if found else []


def name_of(source: Any) -> str:
    """A file's name without its endings and the ``ml_`` of published ones; empty for a table in memory."""
    if not isinstance(source, str | os.PathLike):
        return ""
    return re.sub(r"(\.(csv|tsv|txt|edges|parquet|pq))?(\.gz)?$", "", Path(source).name).removeprefix("ml_")


def check_split_date(table: Table, time: int) -> None:
    """An edge list that writes a date and its time of day with a space between would lose the latter."""
    if not isinstance(table, TextTable) or table.delimiter != " ":
        return
    first = table.body[:4096].lstrip(b"\n").split(b"\n")[0].decode("utf-8", errors="ignore").split(" ")
    if time + 1 < len(first) and "-" in first[time] and re.fullmatch(r"\d{1,2}:\d{2}.*", first[time + 1]):
        raise DataError(
            f"{table.label}: date and time of day stand in two columns ({first[time]} {first[time + 1]});"
            " write them as one (2024-03-01T12:30:00), or separate the columns by commas or tabs."
        )


def labels_of(table: Table, columns: dict[int, Any], roles: Roles, *, asked: bool) -> tuple[Any, list[str]]:
    """Labels as numbers, null where missing. Where one is none, an error if they were asked for; else no labels and a
    note that says why."""
    if roles.label is None:
        return None, []
    column = columns[roles.label]
    if is_number(column.type):
        return column, []
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.equal(column, ""), None, column)
        hexadecimal = pc.any(pc.match_substring_regex(column, "[xX]")).as_py()  # Arrow reads 0x1F as 31
        for kind in (pa.float64(),) if hexadecimal else (pa.int64(), pa.float64()):
            try:
                return pc.cast(column, kind), []
            except pa.ArrowInvalid:
                continue
    if not is_text(column.type) and not asked:
        return None, [f"{table.named(roles.label)} does not hold numbers: {NOT_LABELS}"]
    row = first_failure(lambda part: pc.cast(part, pa.float64()), column)
    value = str(column[row].as_py())
    wrong = f"{table.at(row)}: the label {value!r} is not a number ({table.named(roles.label)})"
    if asked:
        raise DataError(f"{wrong}.")
    return None, [f"{wrong}: {NOT_LABELS}, and all of them are left out"]


def _features(table: Table, roles: Roles, *, asked: bool) -> tuple[Features | None, list[str]]:
    """The features of the events from their columns, and what there is to say about them."""
    if not roles.features:
        return None, []
    rows = table.numbers(roles.features)
    if table.layout == "jodie" and not asked and not rows.any():
        return None, ["the features are all zero: read as none"]
    return rows, [f"{rows.shape[1]} features an event"]


def id_spaces(table: Table, roles: Roles, ids: Ids) -> tuple[bool, str]:
    """Whether the id space is shared, and the sentence that says so."""
    shared = "one id space: the same id in both columns is the same node"
    separate = "two id spaces: the same id as source and as destination is two nodes"
    if ids != "auto":
        return ids == "shared", shared if ids == "shared" else separate
    names = table.header or ()
    if table.layout != "ml" and roles.src < len(names) and roles.dst < len(names):
        src, dst = names[roles.src], names[roles.dst]
        if are_people_and_things(src, dst):
            return False, f"{separate} (assumed since the columns are '{src}' and '{dst}'; --ids shared if not)"
    return True, f"{shared} (assumed; --ids separate if not)"


def column_notes(table: Table, roles: Roles) -> list[str]:
    """Which columns were read as what, and which were left."""
    if table.layout == "ml":
        return ["layout ml_NAME.csv: sources 'u', destinations 'i', times 'ts'"]
    if table.layout == "jodie":
        return ["layout of JODIE: user_id, item_id, timestamp, state_label, features"]
    named = (("sources", roles.src), ("destinations", roles.dst), ("times", roles.time), ("labels", roles.label))
    read = [f"{role} from {table.named(k).removesuffix(' (counted from 0)')}" for role, k in named if k is not None]
    notes = [("no header; " if table.header is None else "") + ", ".join(read)]
    used = roles.used()
    left = [k for k in range(table.width) if k not in used]
    if left:
        names = ", ".join(str(k) if table.header is None else f"'{table.header[k]}'" for k in left[:10])
        notes.append(f"columns not read: {names}{', …' if len(left) > 10 else ''} (--features reads them)")
    return notes


# -------------------- PyG


def _is_temporal_data(source: Any) -> bool:
    return not hasattr(source, "columns") and all(hasattr(source, k) for k in ("src", "dst", "t"))


def _from_temporal_data(data: Any, ids: Ids, name: str) -> EventStream:
    """The stream in a ``TemporalData``: ``msg`` as features, ``y`` as labels where there is one an event."""
    label = _array(getattr(data, "y", None))
    message = _array(getattr(data, "msg", None))
    if message is not None and message.ndim == 1:
        message = message[:, None]
    shared = ids != "separate"
    note = "one id space" if shared else "two id spaces"
    try:
        return EventStream.from_columns(
            _array(data.src), _array(data.dst), _array(data.t), message,
            label.reshape(-1) if label is not None and label.size == len(data.src) else None,
            shared_ids=shared, name=name, notes=(f"{note} for sources and destinations (--ids shared|separate)",),
        )  # fmt: skip
    except DataError as error:
        raise DataError(f"In the TemporalData: {error}") from None


def _array(values: Any) -> Any:
    return None if values is None else np.asarray(values.cpu() if hasattr(values, "cpu") else values)


# -------------------- queries


def read_pairs(
    source: Any,
    *,
    src: Column = None,
    dst: Column = None,
    time: Column = None,
    need_time: bool = False,
    axis: TimeAxis | None = None,
) -> tuple[Any, Any, Any]:
    """Read the pairs in a file or table of queries: source ids, destination ids, times or None.

    The ids are Arrow columns of integers or text, for ``NodeIds.find``. The times are as in the file, for
    ``TimeAxis.parse_column``; with ``axis`` they are parsed here, and an error names the line. Columns are recognised
    as in `read_events`; a file without a header has the columns ``src dst [time]``. Only lines before the first pair
    can be comments.
    """
    options = ColumnOptions(src, dst, time)
    table = open_table(source, options, need_time=need_time, comments=False)
    roles = choose(table, options, need_time=need_time)
    columns = table.columns([k for k in (roles.src, roles.dst, roles.time) if k is not None])
    if len(columns[roles.src]) == 0:
        raise DataError(f"{table.label} has no pairs.")
    times = None if roles.time is None else columns[roles.time]
    if axis is not None and roles.time is not None:
        times = table.times(times, roles.time, axis)
    return table.ids(columns[roles.src], roles.src), table.ids(columns[roles.dst], roles.dst), times


def read_ids(source: Any, column: Column = None) -> Any:
    """Read node ids, one per row, as an Arrow column of integers or text. DataError if there are none.

    The default column is the one with a usual name of a node or a source (``id``, ``node``, …), or else the first.
    """

    def is_header(first: list[str]) -> bool:
        by_name = column is not None and as_position(str(column)) is None
        return by_name or bool(named_in(first, NODE | SRC))

    # Names of people have spaces, so white space is no delimiter here.
    table = open_source(
        source, Expected(what="Ids", n_columns=2, is_header=is_header, whitespace=False, comments=False)
    )
    header = table.header or ()
    if column is not None:
        position = position_of(table, str(column), "src")
    else:
        position = next(iter(named_in(header, NODE) or named_in(header, SRC)), 0)
    ids = table.columns([position])[position]
    if len(ids) == 0:
        raise DataError(f"{table.label} has no ids.")
    return table.ids(ids, position)
