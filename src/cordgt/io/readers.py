"""Read events, pairs and ids from files and tables. Errors name the file, the line and the column.

A source becomes a `Table`, its columns get `ColumnRoles`, and only the columns with a role are read. The stream's notes
list the assumptions.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, EmptyInputError, did_you_mean
from cordgt.events.arrays import Features, first_failure, is_number, is_text
from cordgt.events.ids import Side
from cordgt.events.stream import EventStream
from cordgt.events.time_precision import describe_lost_times
from cordgt.events.times import TimeAxis
from cordgt.io.bad_rows import read_without_bad_rows
from cordgt.io.column_names import DST_NAMES, NODE_NAMES, SRC_NAMES, are_users_and_items, match_columns
from cordgt.io.column_roles import (
    Column,
    ColumnOptions,
    ColumnRoles,
    FeatureColumns,
    assign_roles,
    open_event_table,
    parse_position,
    resolve_column,
)
from cordgt.io.frames import as_arrow_table, exported_metadata
from cordgt.io.node_features import join_node_features
from cordgt.io.objects import is_dataset_object, read_dataset_object
from cordgt.io.open_table import TextReadOptions, load_file, open_table
from cordgt.io.published_files import add_node_features, load_edge_features
from cordgt.io.tables import Table, TextTable
from cordgt.io.time_parser import query_parser
from cordgt.store.store import is_store, open_store

IdSpace = Literal["auto", "shared", "separate"]
MISSING_ID_WORDS = ["", "na", "n/a", "nan", "none", "null", "nil"]  # what exports write for a missing id, in lower case
LABELS_NOT_READ = "not read as labels"  # marks the notes of `parse_labels`
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
    ids: IdSpace = "auto",
    node_features: Any = None,
    name: str | None = None,
    time_format: str | None = None,
    member: str | None = None,
    skip_bad_rows: bool = False,
) -> EventStream:
    """Read the events of a file or table.

    Args:
        source: a path (CSV, TSV, edge list, gzip or zip of these, Parquet, or a published layout; detected from the
            content), the folder of a store (`cordgt data convert`), a pandas or polars frame, a DuckDB relation, an
            Arrow table or anything with ``__arrow_c_stream__``, a dictionary of columns, a NetworkX graph whose edges
            have times, a PyG ``TemporalData``, or a dataset of ``py-tgb``. A store, a ``TemporalData`` and a dataset
            of ``py-tgb`` take no column options. A frame that was exported from a stream is read with the options of
            that stream.
        src: column of the source node, by name or position; found from the names if it is not given.
        dst: column of the destination node.
        time: column of the time.
        label: column of the label, if there is one.
        features: columns of the features of an event.
        time_format: how a date is written, for example ``%d.%m.%Y``.
        ids: ``shared`` if the same id in both columns is the same node, else ``separate``. ``auto``: separate if the
            columns are named like users and items, if the first line is ``% bip``, or if ``::`` separates the fields
            of a list without a header; else shared.
        node_features: a file or table with an id column, or an ``.npy`` file with row k for id k; joined by id.
        name: name of the stream; by default the file's name.
        member: which file of a zip archive to read; needed only if it has several.
        skip_bad_rows: leave out rows that cannot be read; a note has their number and the first reasons. DataError if
            they are more than half.

    DataError, with the file and the line, if the source cannot be read.

    Examples:
        >>> cordgt.read_events("purchases.csv", src="customer", dst="product", time="when")
        <EventStream purchases: 400 events of 32 nodes>
    """
    check_id_space(ids)
    options = ColumnOptions(src, dst, time, label, features, time_format)
    if isinstance(source, EventStream):
        raise DataError("This is already an EventStream: use it as it is.")
    if is_store(source):
        others = {"node_features": node_features, "member": member, "skip_bad_rows": skip_bad_rows or None}
        return _from_store(source, vars(options) | others, ids, name)
    if isinstance(source, str) and not set("./\\") & set(source) and not os.path.exists(source):
        raise DataError(f"There is no file {source}. For a dataset by name, use cordgt.load_dataset({source!r}).")
    if member is not None:
        if not isinstance(source, str | os.PathLike):
            raise DataError(f"--member names a file in a zip archive, not in {type(source).__name__}. Leave it out.")
        source = load_file(source, member)
    source = as_arrow_table(source)  # once: some objects can be read only once
    if is_dataset_object(source):
        _refuse_column_options(source, vars(options) | {"skip_bad_rows": skip_bad_rows or None})
        stream = read_dataset_object(source, separate=None if ids == "auto" else ids == "separate", name=name)
    else:
        exported = exported_metadata(source)
        if exported:
            options, ids, name = _merge_exported(options, ids, name, exported)
        stream = _from_table(
            source, options, ids, name, with_node_file=node_features is None, skip_bad_rows=skip_bad_rows
        )
    if node_features is not None:
        stream = join_node_features(stream, node_features)
    return stream


def _refuse_column_options(source: Any, options: dict[str, Any]) -> None:
    """Raise DataError if an option for columns of a table is given for an object that has none."""
    given = [key for key, value in options.items() if value is not None]
    if given:
        raise DataError(f"A {type(source).__name__} has no columns to choose from, so leave out '{given[0]}'.")


def _merge_exported(
    options: ColumnOptions, ids: IdSpace, name: str | None, exported: dict[str, Any]
) -> tuple[ColumnOptions, IdSpace, str]:
    """Return options, id space and name with those of the stream that a table was exported from, where none are given.

    If a column of a source, destination or time is given, the table is not read as that stream: the columns stay.
    """
    found = dict(exported["options"])
    ids_found = found.pop("ids", "auto")
    if options.src is options.dst is options.time is options.time_format is None:
        options = replace(options, **{k: v for k, v in found.items() if getattr(options, k) is None})
        ids = ids_found if ids == "auto" and ids_found in get_args(IdSpace) else ids
    return options, ids, exported["name"] if name is None else name


def _from_store(source: Any, options: dict[str, Any], ids: IdSpace, name: str | None) -> EventStream:
    """Open the stream of a store. DataError for options that apply only to files."""
    given = [key for key, value in options.items() if value is not None]
    if given:
        option = given[0].replace("_", "-")
        raise DataError(f"{source} is a store: its columns were chosen when it was converted, so leave out --{option}.")
    stream = open_store(source).stream()
    if ids != "auto" and stream.ids.shared != (ids == "shared"):
        found = "one id space" if stream.ids.shared else "two id spaces"
        raise DataError(f"{source} is a store with {found}; leave out --ids {ids}.")
    return stream if name is None else replace(stream, name=name)


def check_id_space(ids: str) -> None:
    """Raise DataError, with the nearest choice, if ``ids`` is not an `IdSpace`."""
    if ids not in get_args(IdSpace):
        hint = did_you_mean(str(ids), get_args(IdSpace))
        raise DataError(f"ids is '{ids}'; auto, shared or separate was expected.{hint}")


def _from_table(
    source: Any, options: ColumnOptions, ids: IdSpace, name: str | None, *, with_node_file: bool, skip_bad_rows: bool
) -> EventStream:
    """Read the stream of a file or table; ``with_node_file``: with the node features published with it, if any."""
    table = open_event_table(source, options)
    roles = assign_roles(table, options)
    assert roles.time is not None, "`assign_roles` requires a time column"
    check_split_date(table, roles.time)
    name = stream_name(source) if name is None else name

    def read(table: Table) -> EventStream:
        return _read_stream(table, roles, options, ids, name, source)

    if skip_bad_rows:
        stream, skipped = read_without_bad_rows(read, table, roles, None, options.time_format)
        skipped.check(table.name)
        assert stream is not None, "less than half of the rows are bad"
        stream = stream.with_notes(*skipped.notes())
    else:
        stream = read(table)
    stream = stream.with_notes(*note_missing_ids(stream.ids.names))
    return add_node_features(stream, Path(source)) if with_node_file and table.layout == "ml" else stream


def _read_stream(
    table: Table, roles: ColumnRoles, options: ColumnOptions, ids: IdSpace, name: str, source: Any
) -> EventStream:
    """Read and parse the columns with a role."""
    assert roles.time is not None, "`assign_roles` requires a time column"
    columns = table.read_columns([*roles.scalar_columns(), *([table.n_columns - 1] if table.layout == "ml" else [])])
    if len(columns[roles.src]) == 0:
        raise EmptyInputError(f"{table.name} has no events.")
    parser = table.infer_times([columns[roles.time]], roles.time, options.time_format)
    assert parser is not None, "there are events"
    t = table.parse_times(columns[roles.time], roles.time, parser)
    n_lost = table.count_lost_times(columns[roles.time], t)
    label, label_notes = parse_labels(table, columns, roles, is_required=options.label is not None)
    if table.layout == "ml" and options.features is None:
        edge_x, feature_notes = load_edge_features(table, columns[table.n_columns - 1], Path(source))
    else:
        edge_x, feature_notes = _read_features(table, roles, is_required=options.features is not None)
    shared, id_note = choose_id_space(table, roles, ids)
    date_notes = [
        *parser.notes(),
        *describe_lost_times(n_lost, is_number=t.dtype.kind == "f"),
        *([DATE_NOTE] if parser.axis.kind == "date" else note_numeric_dates(t)),
    ]
    stream = EventStream.from_columns(
        table.parse_ids(columns[roles.src], roles.src),
        table.parse_ids(columns[roles.dst], roles.dst),
        t,
        edge_x,
        label,
        shared_ids=shared,
        time=parser.axis,
        name=name,
        notes=(*table.notes, *describe_roles(table, roles), *label_notes, *feature_notes, *date_notes, id_note),
    )
    remembered = column_options(table, roles, options, parser.format)
    return replace(stream, columns=remembered, column_names=_column_names(table, roles))


def _column_names(table: Table, roles: ColumnRoles) -> dict[str, Any]:
    """Return the names of the columns that are read, by role; empty if the table has no header."""
    if table.header is None:
        return {}
    positions = {role: getattr(roles, role) for role in ("src", "dst", "time", "label")}
    names: dict[str, Any] = {role: table.header[k] for role, k in positions.items() if k is not None}
    if roles.features and table.layout != "jodie":  # its features share one name
        names["features"] = [table.header[k] for k in roles.features]
    return names


def column_options(table: Table, roles: ColumnRoles, options: ColumnOptions, time_format: str | None) -> dict[str, Any]:
    """Return the options that read later files in the same way, with names instead of positions if there is a header.

    These are the given ones, what the values of the first file showed, and the names of all features.
    """
    header = table.header
    named = [role for role in ("src", "dst", "time", "label") if getattr(options, role) is not None]
    found: dict[str, Any] = {role: str(getattr(options, role)) for role in named}
    if header is not None:
        positions = {role: getattr(roles, role) for role in named}  # None: --label none
        found = {role: v if positions[role] is None else header[positions[role]] for role, v in found.items()}
    elif roles.time_reason:
        found |= {role: str(getattr(roles, role)) for role in ("src", "dst", "time")}
    if time_format is not None:
        found["time_format"] = time_format
    if roles.features and header is not None and table.layout != "jodie":  # its features share one name
        found["features"] = [header[k] for k in roles.features]
    elif options.features is not None:
        given = options.features
        found["features"] = given if isinstance(given, str) else ",".join(map(str, given))
    return found


def note_numeric_dates(t: np.ndarray) -> list[str]:
    """Return a note if integer times look like 20240531: their differences are then not durations."""
    if t.dtype.kind != "i" or len(t) == 0 or t.min() < 19000101 or t.max() > 21001231:
        return []
    month, day = t // 100 % 100, t % 100
    if not ((month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all():
        return []
    return ["the times look like dates written as 20240531, and are read as plain numbers: write them as 2024-05-31"]


def note_missing_ids(names: Any) -> list[str]:
    """Return a note if ids look like words for a missing value: each is read as a node of that name."""
    if not is_text(names.type):
        return []
    lower = pc.utf8_lower(pc.utf8_trim_whitespace(names))
    found = names.filter(pc.is_in(lower, pa.array(MISSING_ID_WORDS, names.type))).unique().to_pylist()
    return [f"read as node ids: {', '.join(map(repr, found))}; remove these rows if the id is missing"] if found else []


def stream_name(source: Any) -> str:
    """Return a file's name without suffixes and without the ``ml_`` of published files; empty for a table in memory."""
    if not isinstance(source, str | os.PathLike):
        return ""
    return re.sub(r"(\.(csv|tsv|txt|edges|parquet|pq))?(\.gz|\.zip)?$", "", Path(source).name).removeprefix("ml_")


def check_split_date(table: Table, time: int) -> None:
    """Raise DataError if an edge list separates date and time of day by a space, so that the latter would be lost."""
    if not isinstance(table, TextTable) or table.delimiter != " ":
        return
    first = table.body[:4096].lstrip(b"\n").split(b"\n")[0].decode("utf-8", errors="ignore").split(" ")
    if (
        time + 1 < len(first)
        and re.search(r"\d[-/.]\d+[-/.]\d", first[time])
        and re.fullmatch(r"\d{1,2}:\d{2}.*", first[time + 1])
    ):
        raise DataError(
            f"{table.name}: date and time of day are in two columns ({first[time]} {first[time + 1]});"
            " write them as one (2024-03-01T12:30:00), or separate the columns by commas or tabs."
        )


def parse_labels(
    table: Table, columns: dict[int, Any], roles: ColumnRoles, *, is_required: bool
) -> tuple[Any, list[str]]:
    """Return the labels as numbers, null if missing, and notes.

    If a label is not a number: DataError if labels are required, else no labels and a note with the reason.
    """
    if roles.label is None:
        return None, []
    column = columns[roles.label]
    if is_number(column.type):
        return column, []
    if is_text(column.type):
        column = pc.utf8_trim_whitespace(table.normalize_numbers(column))
        column = pc.if_else(pc.equal(column, ""), None, column)
        is_hexadecimal = pc.any(pc.match_substring_regex(column, "[xX]")).as_py()  # Arrow reads 0x1F as 31
        for dtype in (pa.float64(),) if is_hexadecimal else (pa.int64(), pa.float64()):
            try:
                return pc.cast(column, dtype), []
            except pa.ArrowInvalid:
                continue
    elif not is_required:
        return None, [f"{table.describe_column(roles.label)} does not hold numbers: {LABELS_NOT_READ}"]
    row = first_failure(lambda part: pc.cast(part, pa.float64()), column)
    value = str(column[row].as_py())
    problem = f"{table.describe_row(row)}: the label {value!r} is not a number ({table.describe_column(roles.label)})"
    if is_required:
        raise DataError(f"{problem}.")
    return None, [f"{problem}: {LABELS_NOT_READ}, and all of them are left out"]


def _read_features(table: Table, roles: ColumnRoles, *, is_required: bool) -> tuple[Features | None, list[str]]:
    """Return the features of the events, and notes. Features of JODIE's layout that are all zero count as none."""
    if not roles.features:
        return None, []
    rows = table.read_features(roles.features)
    if table.layout == "jodie" and not is_required and not rows.any():
        return None, ["the features are all zero: read as none"]
    return rows, [f"{rows.shape[1]} features per event"]


def choose_id_space(table: Table, roles: ColumnRoles, ids: IdSpace) -> tuple[bool, str]:
    """Return whether both columns share one id space, and a note about it."""
    shared = "one id space: the same id in both columns is the same node"
    separate = "two id spaces: the same id as source and as destination is two nodes"
    if ids != "auto":
        return ids == "shared", shared if ids == "shared" else separate
    header = table.header or ()
    if table.layout != "ml" and roles.src < len(header) and roles.dst < len(header):
        src, dst = header[roles.src], header[roles.dst]
        if are_users_and_items(src, dst):
            return False, f"{separate} (assumed because the columns are '{src}' and '{dst}'; --ids shared if not)"
    if table.bipartite_reason:
        return False, f"{separate} (assumed because {table.bipartite_reason}; --ids shared if not)"
    return True, f"{shared} (assumed; --ids separate if not)"


def describe_roles(table: Table, roles: ColumnRoles) -> list[str]:
    """Return notes on which columns are read as what, and which are not read."""
    if table.layout == "ml":
        return ["layout ml_NAME.csv: sources 'u', destinations 'i', times 'ts'"]
    if table.layout == "jodie":
        return ["layout of JODIE: user_id, item_id, timestamp, state_label, features"]
    nouns = (("sources", roles.src), ("destinations", roles.dst), ("times", roles.time), ("labels", roles.label))
    read = [
        f"{noun} from {table.describe_column(k).removesuffix(' (counted from 0)')}"
        for noun, k in nouns
        if k is not None
    ]
    notes = [("no header; " if table.header is None else "") + ", ".join(read)]
    if roles.time_reason:
        notes.append(f"{table.describe_column(roles.time or 0)} is the time because {roles.time_reason}; --time if not")
    used = roles.all_columns()
    unread = [k for k in range(table.n_columns) if k not in used]
    if unread:
        names = ", ".join(str(k) if table.header is None else f"'{table.header[k]}'" for k in unread[:10])
        notes.append(f"columns not read: {names}{', …' if len(unread) > 10 else ''} (--features reads them)")
    return notes


# -------------------- queries


def read_pairs(
    source: Any,
    *,
    src: Column = None,
    dst: Column = None,
    time: Column = None,
    time_format: str | None = None,
    need_time: bool = False,
    axis: TimeAxis | None = None,
) -> tuple[Any, Any, Any]:
    """Read the pairs of a file or table of queries: source ids, destination ids, times or None.

    The ids are Arrow columns of integers or text, for ``NodeIds.encode``. The times are as in the file, for
    ``TimeAxis.parse_column``; with ``axis`` they are parsed here, and an error names the line. Columns are recognized
    as in `read_events`; a file without a header has the columns ``src dst [time]``. ``time_format`` applies only to
    times that are not ISO dates. Only lines before the first pair can be comments.
    """
    options = ColumnOptions(src, dst, time, time_format=time_format)
    table = open_event_table(source, options, need_time=need_time, allow_comments=False)
    roles = assign_roles(table, options, need_time=need_time)
    columns = table.read_columns([k for k in (roles.src, roles.dst, roles.time) if k is not None])
    if len(columns[roles.src]) == 0:
        raise DataError(f"{table.name} has no pairs.")
    times = None if roles.time is None else columns[roles.time]
    if axis is not None and roles.time is not None:
        times = table.parse_times(times, roles.time, query_parser(axis, times, time_format))
    return table.parse_ids(columns[roles.src], roles.src), table.parse_ids(columns[roles.dst], roles.dst), times


def read_ids(source: Any, column: Column = None, side: Side = "src") -> Any:
    """Read node ids, one per row, as an Arrow column of integers or text. DataError if there are none.

    The default column is the one with a usual name of a node (``id``, ``node``, …) or of the side (``user``, ``item``,
    …), or else the first.
    """
    side_names = SRC_NAMES if side == "src" else DST_NAMES

    def is_header(first: list[str]) -> bool:
        is_name = column is not None and parse_position(str(column)) is None
        return is_name or bool(match_columns(first, NODE_NAMES | side_names))

    # Names of people contain spaces, so white space does not separate columns here.
    options = TextReadOptions(
        content="Ids", min_columns=2, is_header=is_header, allow_whitespace=False, allow_comments=False
    )
    table = open_table(source, options)
    header = table.header or ()
    if column is not None:
        position = resolve_column(table, str(column), "src")
    else:
        position = next(iter(match_columns(header, NODE_NAMES) or match_columns(header, side_names)), 0)
    ids = table.read_columns([position])[position]
    if len(ids) == 0:
        raise DataError(f"{table.name} has no ids.")
    return table.parse_ids(ids, position)
