"""Data of any kind to a store: a dataset by name, a file, a folder of files, a stream, another store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq

from cordgt.conversion.append import Late, append_to_store
from cordgt.conversion.build import MEMORY, Silent, Watcher, make_store
from cordgt.datasets import by_name
from cordgt.errors import DataError, MissingColumn, check_choice, nearest
from cordgt.events.stream import EventStream
from cordgt.files import PARQUET_ERRORS
from cordgt.reading.chunks import EventFiles, OneStream, Source
from cordgt.reading.columns import OPTIONS, are_positions
from cordgt.reading.pieces import files_in, opened
from cordgt.reading.readers import name_of
from cordgt.reading.roles import ColumnOptions
from cordgt.reading.usual_names import find_name
from cordgt.store.folder import EVENTS, NAMES, Store, is_store, open_store

ROWS_AT_ONCE = 1_000_000
LEAST_MEMORY = 500 * 10**6


def convert_to_store(
    data: str | os.PathLike[str] | EventStream,
    target: str | os.PathLike[str],
    *,
    memory: int = MEMORY,
    replace: bool = False,
    watcher: Watcher | None = None,
    **columns: Any,
) -> Store:
    """Writes DATA as a store, in bounded memory where it is a file or a folder; column options as in ``read_events``.

    Interrupted, it goes on when it is called again with the same arguments. ``memory`` is in bytes. See ``make_store``.
    """
    _check_memory(memory)
    node_features = columns.pop("node_features", None)
    check_store(data, watcher)
    source = source_of(data, memory, **columns)
    return make_store(
        source, Path(target), node_features=node_features, memory=memory, replace_old=replace, watcher=watcher
    )


def append_to(
    store: str | os.PathLike[str],
    data: str | os.PathLike[str] | EventStream,
    *,
    late: Late = "refuse",
    memory: int = MEMORY,
    watcher: Watcher | None = None,
    **columns: Any,
) -> Store:
    """Adds the events of DATA to a store; see ``append_to_store``.

    Columns and id spaces are those that the store was made with, unless named; ``label="none"`` reads a file without
    labels, which is refused otherwise where the store has some.
    """
    check_choice("--late", late, get_args(Late))
    _check_memory(memory)
    if columns.pop("node_features", None) is not None:
        raise DataError("Node features are given when a store is made, with `convert_to_store`; new nodes get zeros.")
    found = open_store(store)
    check_store(data, watcher)
    source = _source_like(found, data, memory, columns) if _is_read(data) else source_of(data, memory, **columns)
    return append_to_store(found.path, source, late=late, memory=memory, watcher=watcher)


def kept_columns(
    store: Store, data: str | os.PathLike[str] | EventStream, columns: Mapping[str, Any]
) -> dict[str, Any]:
    """The column options that an append of DATA takes from the store, beside those of ``columns`` that are not None.

    Empty for what is no file. A position counts only where there is no header, unless a column has it for a name.
    """
    kept = {k: v for k, v in store.columns.items() if columns.get(k) is None}
    if not kept or not _is_read(data):
        return {}
    by_place = {k for k, v in kept.items() if isinstance(v, str) and are_positions(v)}
    path = by_name.resolve(data)  # type: ignore[arg-type]  # a stream is not read
    if not by_place or not (path.is_dir() or path.is_file()):  # a pipe is read once, so not looked at before
        return kept
    asked = kept | {k: v for k, v in columns.items() if k in OPTIONS and v is not None}
    header = opened(files_in(path)[0] if path.is_dir() else path, ColumnOptions(**asked)).header
    unknown = by_place if header is not None else set()
    return {k: v for k, v in kept.items() if k not in unknown or find_name(v, header or ()) is not None}


def _source_like(
    store: Store, data: str | os.PathLike[str] | EventStream, memory: int, columns: dict[str, Any]
) -> Source:
    """DATA in pieces, read from the columns that a store was made with, but for those named here.

    DataError where one of them is not there, or no labels where the store has some, unless they are not wanted.
    """
    if (columns.get("ids") or "auto") == "auto":
        columns = columns | {"ids": "shared" if store.shared else "separate"}
    given = {k: v for k, v in columns.items() if v is not None}
    kept = kept_columns(store, data, given)
    unlabelled = "--label none reads these events without labels"
    try:
        source = source_of(data, memory, **kept, **given)
    except MissingColumn as error:
        if error.role not in kept:
            raise
        more = f"; {unlabelled}" if error.role == "label" else ""
        raise DataError(
            f"{error} {store.path} was made with that one; name another with --{error.role}{more}."
        ) from None
    if "label" in store.arrays and "label" not in given and not source.has_labels():
        raise DataError(
            f"{data} has no column that is called as labels usually are, but {store.path} has labels; name the column "
            f"with --label; {unlabelled}."
        )
    return source


def source_of(data: str | os.PathLike[str] | EventStream, memory: int, **columns: Any) -> Source:
    """DATA in pieces. A file or a folder is read piece by piece; anything else as a whole first.

    DataError for an option that there is not, or that a stream, read already, no longer heeds.
    """
    known = (*OPTIONS, "ids", "name")
    given = [k for k, v in columns.items() if v is not None and (k, v) != ("ids", "auto")]
    unknown = [k for k in given if k not in known]
    if unknown:
        raise DataError(f"There is no option '{unknown[0]}'.{nearest(unknown[0], known)}")
    if isinstance(data, EventStream):
        if given:
            raise DataError(f"The stream was read already: leave out {given[0]}, or name it where that is read.")
        return OneStream(data, ROWS_AT_ONCE, {} if data.kept is None else open_store(data.kept.path).columns)
    if os.fspath(data) not in by_name.GENERATED:
        path = by_name.resolve(data)
        if is_store(path):
            return OneStream(by_name.load(data, **columns), ROWS_AT_ONCE, open_store(path).columns)
        if path.is_dir():
            return _files(files_in(path), path, memory, columns)
        if path.is_file():
            source = _files([path], path, memory, columns)
            if source.first.layout != "ml":  # whose features stand in files of their own
                return source
    return OneStream(by_name.load(data, **columns), ROWS_AT_ONCE)


def check_store(data: str | os.PathLike[str] | EventStream, watcher: Watcher | None = None) -> None:
    """Where DATA is a store: DataError if its events or ids are damaged. What is copied from it gets new checksums."""
    if isinstance(data, EventStream):
        path = None if data.kept is None else data.kept.path
    else:
        path = None if os.fspath(data) in by_name.GENERATED else by_name.resolve(data)
    if path is not None and is_store(path):
        store, watcher, names = open_store(path), watcher or Silent(), (*EVENTS, *NAMES, "node_x")
        watcher.begins("checking", store.n_bytes(names))
        store.check(watcher.step, names)


def _is_read(data: str | os.PathLike[str] | EventStream) -> bool:
    """Whether DATA are files, whose columns can be read in one way or another; not a stream, generated or a store."""
    if isinstance(data, EventStream) or os.fspath(data) in by_name.GENERATED:
        return False
    return not is_store(by_name.resolve(data))


def _check_memory(memory: int) -> None:
    if memory < LEAST_MEMORY:
        raise DataError(
            f"{memory:,} bytes of memory are too few: at least {LEAST_MEMORY:,} ({LEAST_MEMORY // 10**6}MB) are needed."
        )


def _files(paths: list[Path], named: Path, memory: int, columns: dict[str, Any]) -> EventFiles:
    options = {k: v for k, v in columns.items() if k not in ("ids", "name")}
    return EventFiles(
        paths,
        ColumnOptions(**options),
        columns.get("ids") or "auto",
        rows_at_once=max(min(memory // 16 // max(map(_row_bytes, paths)), ROWS_AT_ONCE), 1000),
        bytes_at_once=max(min(memory // 128, 1 << 25), 1 << 20),
        name=columns.get("name") or name_of(named),
    )


def _row_bytes(path: Path) -> int:
    """About how many bytes a row of a Parquet file takes in memory; a usual number for anything else."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PAR1":
                return 64
        told = pq.read_metadata(path)
    except PARQUET_ERRORS:
        return 64  # who reads it will say what is wrong
    total = sum(told.row_group(k).total_byte_size for k in range(told.num_row_groups))
    return max(64, 2 * total // max(told.num_rows, 1))


def parse_size(text: str) -> int:
    """``4GB``, ``512MB``, ``4GiB`` (of 1024) or a number of bytes. DataError otherwise, and where it is too little."""
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    units |= {f"{k}IB": 1024**n for n, k in enumerate("KMGT", start=1)}
    number = text.strip().rstrip("KMGTIBkmgtib ")
    unit = text.strip()[len(number) :].strip().upper()
    try:
        size = int(float(number) * units[unit if len(unit) != 1 or unit == "B" else f"{unit}B"])
    except (KeyError, ValueError, OverflowError):
        raise DataError(f"'{text}' is no size of memory; something like 4GB or 512MB was expected.") from None
    _check_memory(size)
    return size
