"""Convert any data to a store: a dataset by name, a file, a folder of files, a stream, another store."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq

from cordgt.callbacks import NO_CALLBACK, Callback, Callbacks, as_callback
from cordgt.errors import DataError, EmptyInputError, MissingColumnError, check_choice, did_you_mean
from cordgt.events.stream import EventStream
from cordgt.files import PARQUET_ERRORS
from cordgt.io.bad_rows import is_skip_note
from cordgt.io.column_names import find_column
from cordgt.io.column_options import COLUMN_OPTIONS, are_positions
from cordgt.io.column_roles import ColumnOptions
from cordgt.io.datasets import registry
from cordgt.io.event_chunks import FileSource
from cordgt.io.file_chunks import find_tables, open_head
from cordgt.io.node_features import join_node_features
from cordgt.io.readers import read_events, stream_name
from cordgt.store.append import LatePolicy, append_to_store
from cordgt.store.build import MEMORY, make_store
from cordgt.store.description import EVENTS, NAMES
from cordgt.store.source import CHUNK_ROWS, EventSource, NodeFeatureTable, StreamSource
from cordgt.store.store import Store, is_store, open_store

FILE_OPTIONS = ("ids", "name", "member", "skip_bad_rows")  # of ``read_events``, besides the columns
MIN_MEMORY = 500 * 10**6

Data = str | os.PathLike[str] | EventStream


def as_stream(data: Any, **columns: Any) -> EventStream:
    """Return the stream of DATA: an EventStream as it is, a path, a dataset's name, or an object `read_events` takes.

    ``columns``: options as in ``read_events``. DataError for another kind of object, and for options of a stream,
    which is read already.
    """
    if isinstance(data, EventStream):
        _refuse_options(columns)
        return data
    return (
        registry.load_dataset(data, **columns) if isinstance(data, str | os.PathLike) else read_events(data, **columns)
    )


def convert_to_store(
    data: Data,
    target: str | os.PathLike[str],
    *,
    memory: int = MEMORY,
    replace: bool = False,
    callbacks: Callbacks = None,
    **columns: Any,
) -> Store:
    """Write DATA as a store; files and folders in bounded memory. Column options as in ``read_events``.

    A second call with the same arguments resumes an interrupted one. ``memory`` is in bytes. See ``make_store``.

    Examples:
        >>> store = cordgt.convert_to_store("purchases.csv", "big.store")
        >>> cordgt.read_events("big.store").n_events
        400
    """
    _check_memory(memory)
    node_features = _node_feature_table(columns.pop("node_features", None))
    check_store(data, as_callback(callbacks))
    source = open_event_source(data, memory, **columns)
    return make_store(
        source,
        Path(target),
        node_features=node_features,
        memory=memory,
        replace_old=replace,
        callbacks=as_callback(callbacks),
    )


def append_to(
    store: str | os.PathLike[str],
    data: Data,
    *,
    late: LatePolicy = "refuse",
    allow_duplicates: bool = False,
    memory: int = MEMORY,
    callbacks: Callbacks = None,
    **columns: Any,
) -> Store:
    """Append the events of DATA to a store; see ``append_to_store``.

    If DATA holds no events, the store stays as it is, and ``callbacks.on_message`` says so.
    Columns and id spaces default to those of the store. If the store has labels, a file without them is refused unless
    ``label="none"``.

    Examples:
        >>> store = cordgt.convert_to_store("purchases.csv", "log.store", replace=True)
        >>> cordgt.append_to("log.store", "later.csv").n_events - store.n_events
        40
    """
    check_choice("--late", late, get_args(LatePolicy))
    _check_memory(memory)
    if columns.pop("node_features", None) is not None:
        raise DataError("Give node features to `convert_to_store`; nodes that are appended later get zeros.")
    found = open_store(store)
    check_store(data, as_callback(callbacks))
    path = _find_path(data)
    is_files = path is not None and not is_store(path)
    callback = as_callback(callbacks)
    try:
        source = _open_like(found, data, memory, columns) if is_files else open_event_source(data, memory, **columns)
        return append_to_store(
            found.path, source, late=late, allow_duplicates=allow_duplicates, memory=memory, callbacks=callback
        )
    except EmptyInputError as error:
        callback.on_message(f"{error} Nothing was appended.")
        return found


def _node_feature_table(given: Any) -> NodeFeatureTable | None:
    if given is None:
        return None
    identity: list[Any] = [secrets.token_hex(8)]  # a table in memory never counts as unchanged
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        stat = path.stat() if path.exists() else None  # the reader reports a missing file
        identity = [str(path.resolve()), *([] if stat is None else [stat.st_size, stat.st_mtime_ns])]
    return NodeFeatureTable(lambda stream: join_node_features(stream, given), identity)


def inherited_columns(store: Store, data: Data, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the column options that an append of DATA takes from the store: those that ``columns`` does not set.

    Empty if DATA is not a file or folder. A position is inherited only if DATA has no header, or a column so named.
    """
    inherited = {k: v for k, v in store.columns.items() if k in COLUMN_OPTIONS and columns.get(k) is None}
    path = _find_path(data) if inherited else None
    if path is None or is_store(path):
        return {}
    positions = {k for k, v in inherited.items() if isinstance(v, str) and are_positions(v)}
    if not positions or not (path.is_dir() or path.is_file()):  # a pipe can be read only once
        return inherited
    options = inherited | {k: v for k, v in columns.items() if k in COLUMN_OPTIONS and v is not None}
    first = find_tables(path)[0] if path.is_dir() else path
    try:
        header = open_head(first, ColumnOptions(**options), columns.get("member")).header
    except EmptyInputError:  # reported where the events are read
        return inherited
    if header is None:
        return inherited
    return {k: v for k, v in inherited.items() if k not in positions or find_column(v, header) is not None}


def _open_like(store: Store, data: Data, memory: int, columns: dict[str, Any]) -> EventSource:
    """Open DATA as a source, with the columns of the store unless ``columns`` names others.

    DataError if a column is missing, or if there are no labels but the store has some, unless ``label="none"``.
    """
    if (columns.get("ids") or "auto") == "auto":
        columns = columns | {"ids": "shared" if store.shared else "separate"}
    given = {k: v for k, v in columns.items() if v is not None}
    inherited = inherited_columns(store, data, given)
    without_labels = "use --label none to read these events without labels"
    try:
        source = open_event_source(data, memory, **inherited, **given)
    except MissingColumnError as error:
        if error.role not in inherited:
            raise
        hint = f", or {without_labels}" if error.role == "label" else ""
        raise DataError(
            f"{error} {store.path} was made with that column; name another with --{error.role}{hint}."
        ) from None
    if "label" in store.arrays and "label" not in given and not source.has_labels():
        raise DataError(
            f"{store.path} has labels, but no column of {data} has a usual name for labels. Name the column with "
            f"--label, or {without_labels}."
        )
    return source


def open_event_source(data: Data, memory: int, **columns: Any) -> EventSource:
    """Open DATA as a source. Files and folders are read in chunks; anything else is loaded first.

    DataError for an unknown option, or for column options of a stream, which is read already.
    """
    known = (*COLUMN_OPTIONS, *FILE_OPTIONS)
    unknown = [k for k in _given_options(columns) if k not in known]
    if unknown:
        raise DataError(f"There is no option '{unknown[0]}'.{did_you_mean(unknown[0], known)}")
    path = _find_path(data)
    if isinstance(data, EventStream):
        _refuse_options(columns)
        return _stream_source(data)
    if path is not None:
        if is_store(path):
            return _stream_source(registry.load_dataset(data, **columns))
        if path.is_dir():
            return _file_source(find_tables(path), path, memory, columns)
        if path.is_file():
            source = _file_source([path], path, memory, columns)
            if source.first.layout != "ml":  # its features are in separate files
                return source
    return _stream_source(registry.load_dataset(data, **columns))


def _given_options(columns: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that are set to something else than their default."""
    return [k for k, v in columns.items() if v is not None and v is not False and (k, v) != ("ids", "auto")]


def _refuse_options(columns: Mapping[str, Any]) -> None:
    """Raise DataError if there are column options: a stream takes none."""
    given = _given_options(columns)
    if given:
        raise DataError(f"A stream takes no option '{given[0]}'; set it where the stream is read.")


def _stream_source(stream: EventStream) -> StreamSource:
    skip_notes = tuple(note for note in stream.notes if is_skip_note(note))
    return StreamSource(stream, CHUNK_ROWS, stream.columns, skip_notes)


def _file_source(paths: list[Path], data: Path, memory: int, columns: dict[str, Any]) -> FileSource:
    return FileSource(
        paths,
        ColumnOptions(**{k: v for k, v in columns.items() if k not in FILE_OPTIONS}),
        columns.get("ids") or "auto",
        chunk_rows=max(min(memory // 16 // max(map(_row_bytes, paths)), CHUNK_ROWS), 1000),
        chunk_bytes=max(min(memory // 128, 1 << 25), 1 << 20),
        name=columns.get("name") or stream_name(data),
        member=columns.get("member"),
        skip_bad_rows=bool(columns.get("skip_bad_rows")),
    )


def _row_bytes(path: Path) -> int:
    """Estimate the bytes in memory per row of a Parquet file; return a typical number for other files."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PAR1":
                return 64
        metadata = pq.read_metadata(path)
    except PARQUET_ERRORS:
        return 64  # the reader reports the error
    n_bytes = sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups))
    return max(64, 2 * n_bytes // max(metadata.num_rows, 1))


def check_store(data: Data, callbacks: Callback = NO_CALLBACK) -> None:
    """Raise DataError if DATA is a damaged store: a copy of it would get valid checksums."""
    path = _find_path(data)
    if path is not None and is_store(path):
        store, names = open_store(path), (*EVENTS, *NAMES, "node_x")
        if not store.check_once(callbacks=callbacks):
            callbacks.on_stage_start("checking", store.n_bytes(names))
            store.verify(callbacks, names)


def _find_path(data: Data) -> Path | None:
    """Return the file, folder or store of DATA; None for a stream in memory and for a generated dataset."""
    if isinstance(data, EventStream):
        return None if data.backing is None else data.backing.path
    return None if os.fspath(data) in registry.GENERATED else registry.resolve_path(data)


def _check_memory(memory: int) -> None:
    if memory < MIN_MEMORY:
        raise DataError(
            f"{memory:,} bytes of memory are too few; at least {MIN_MEMORY:,} ({MIN_MEMORY // 10**6}MB) are needed."
        )


def parse_size(text: str) -> int:
    """Return the bytes of ``4GB``, ``512MB``, ``4GiB`` or a plain number. DataError if it is no size or too small."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    units |= {f"{k}IB": 1024**n for n, k in enumerate("KMGT", start=1)}
    number = text.strip().rstrip("KMGTIBkmgtib ")
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * units[unit if len(unit) != 1 or unit == "B" else f"{unit}B"])
    except (KeyError, ValueError, OverflowError):
        raise DataError(f"'{text}' is not a memory size; write it like 4GB or 512MB.") from None
    _check_memory(size)
    return size
