"""``store.json``: its content as types, and the checks that it must pass before a file that it names is touched.

A store may come from someone else. So only known arrays, with fixed types and with sizes that fit each other, are
accepted, and only in files ``data-XXXXXXXX/NAME`` and ``index-XXXXXXXX/NAME`` of the store's folder.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.errors import DataError
from cordgt.store.arrays import WrittenArray

EVENTS = ("src", "dst", "t", "elapsed", "tie_start", "label", "edge_x")  # one row per event; an append extends them
LOOKUP = ("name_hash", "name_node")
NAMES = ("name", "name_at", "name_bytes", "side")  # the ids; an append extends them
ADVICE = "Restore a copy of the store, or convert the data again."
LONGEST = ("max_degree", "max_pairs", "max_meetings")
MAX_JSON_BYTES = 1 << 28  # of store.json: each append adds about 2 kB

_INT64, _POSITION = ("<i8",), ("<i4", "<i8")
_NUMBER = ("<i8", "<f8")
_INDEX_TYPES = {
    "row_start": _INT64, "nbr": _POSITION, "pos": _POSITION, "nbr_degree": _POSITION,
    "pair_start": _INT64, "pair_nbr": _POSITION, "pair_pos_start": _INT64, "pair_pos": _POSITION,
}  # fmt: skip
_TYPES = _INDEX_TYPES | {
    "src": _INT64, "dst": _INT64, "t": _NUMBER, "elapsed": ("<f8",), "tie_start": _POSITION, "label": _NUMBER,
    "edge_x": ("<f4",), "node_x": ("<f4",), "name": _INT64, "name_at": ("<i4",), "name_bytes": ("|u1",),
    "side": ("|u1",), "name_hash": ("<u8",), "name_node": _POSITION,
}  # fmt: skip
_MATRICES = ("edge_x", "node_x")
_OPTIONAL = ("label", "edge_x", "node_x", *NAMES)
ARRAY_FOLDER = re.compile(r"(data|index)-[0-9a-f]{8}")
_SHA256, _FINGERPRINT, _DIGEST = (re.compile(f"[0-9a-f]{{{n}}}") for n in (64, 16, 32))
_MAX_ROWS = 2**62


@dataclass(frozen=True)
class StoredArray:
    """An array of a store: its file relative to the store's folder, and (rows, SHA-256) of each part."""

    file: str
    dtype: str
    width: int
    parts: tuple[tuple[int, str], ...]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.parts)

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize) * max(self.width, 1)

    @property
    def n_bytes(self) -> int:
        return self.rows * self.row_bytes

    def with_part(self, part: WrittenArray) -> StoredArray:
        """Return the array with another part."""
        return StoredArray(self.file, self.dtype, self.width, (*self.parts, (part.rows, part.sha256)))


def parse_description(content: Any) -> dict[str, Any]:
    """Return the fields of a `Store`, but its path, from the content of ``store.json``. ValueError says what is wrong.

    Every value is checked: types, names, and sizes that must agree.
    """
    arrays = _arrays(_get(content, "arrays", dict))
    generations = _generations(_get(content, "generations", list))
    shared, time = _get(content, "shared", bool), _get(content, "time", str)
    if time not in ("date", "number"):
        raise ValueError("'time' is neither 'date' nor 'number'")
    notes = _get(content, "notes", list)
    if not all(isinstance(note, str) for note in notes):
        raise ValueError("'notes' is not a list of texts")
    _check_rows(arrays, generations[-1]["events"], generations[-1]["nodes"], shared)
    return {
        "name": _get(content, "name", str),
        "notes": tuple(notes),
        "time": time,
        "shared": shared,
        "arrays": arrays,
        "longest": parse_longest(_get(content, "longest", dict)),
        "generations": generations,
        "columns": _columns(content.get("columns", {})),  # missing in older stores
        "batches": tuple(map(_batch, _get({"batches": []} | content, "batches", list))),  # missing in older stores
    }


def _get(values: Any, key: str, kind: type) -> Any:
    value = values.get(key) if isinstance(values, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number"}
        raise ValueError(f"'{key}' is missing, or not {words[kind]}")
    return value


def _count(values: Any, key: str, low: int = 0) -> int:
    value: int = _get(values, key, int)
    if not low <= value <= _MAX_ROWS:
        raise ValueError(f"'{key}' is out of range")
    return value


def _arrays(described: dict[str, Any]) -> dict[str, StoredArray]:
    missing = [name for name in _TYPES if name not in described and name not in _OPTIONAL]
    if missing:
        raise ValueError(f"the array '{missing[0]}' is not listed")
    arrays = {}
    for name, values in described.items():
        if name not in _TYPES:
            raise ValueError("it lists an array with an unknown name")
        file = _get(values, "file", str)
        folder, _, own_name = file.partition("/")
        if own_name != name or not ARRAY_FOLDER.fullmatch(folder):
            raise ValueError(f"the file of '{name}' is not in the store")
        parts = tuple(_part(name, part) for part in _get(values, "parts", list))
        dtype, width = _check_type(name, values)
        arrays[name] = StoredArray(file, dtype, width, parts)
    return arrays


def parse_written(name: str, values: Any) -> StoredArray:
    """Return an array of an index from its description as a ``WrittenArray``. ValueError says what is wrong."""
    dtype, width = _check_type(name, values)
    return StoredArray(name, dtype, width, (_part(name, [_count(values, "rows"), _get(values, "sha256", str)]),))


def _part(name: str, values: Any) -> tuple[int, str]:
    """Return the rows and the checksum of a part."""
    if not isinstance(values, list) or len(values) != 2:
        raise ValueError(f"the parts of '{name}' are not pairs")
    rows, sha256 = values
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"a checksum of '{name}' is missing")
    return _count({"rows": rows}, "rows"), sha256


def _check_type(name: str, values: Any) -> tuple[str, int]:
    """Return the type and width of an array's description. ValueError if an array of this name has others."""
    dtype, width = _get(values, "dtype", str), _count(values, "width")
    if dtype not in _TYPES[name]:
        raise ValueError(f"'{name}' has a wrong type")
    if (width > 0) != (name in _MATRICES):
        raise ValueError(f"'{name}' has a wrong width")
    return dtype, width


def _generations(described: list[Any]) -> tuple[dict[str, Any], ...]:
    """Return events, nodes and fingerprints of each generation; none is smaller than the one before."""
    if not described:
        raise ValueError("'generations' is empty")
    n_events = n_nodes = 1
    generations = []
    for values in described:
        n_events, n_nodes = _count(values, "events", n_events), _count(values, "nodes", n_nodes)
        fingerprints = {key: _get(values, key, str) for key in ("fingerprint", "ids")}
        if not all(_FINGERPRINT.fullmatch(text) for text in fingerprints.values()):
            raise ValueError("a fingerprint is not 16 hexadecimal digits")
        generations.append({"events": n_events, "nodes": n_nodes, **fingerprints})
    return tuple(generations)


def _batch(described: Any) -> dict[str, Any]:
    """Return the name, the number of events and the digest of a batch; see `store.batches`."""
    digest = _get(described, "digest", str)
    if not _DIGEST.fullmatch(digest):
        raise ValueError("the digest of a batch is not 32 hexadecimal digits")
    return {"name": _get(described, "name", str), "events": _count(described, "events", 1), "digest": digest}


def parse_longest(described: Any) -> dict[str, int]:
    """Return the sizes of the longest row, neighborhood and pair of an index. ValueError if one is not a number."""
    return {name: _count(described, name) for name in LONGEST}


def _columns(described: Any) -> dict[str, Any]:
    """Return the column options of the source: texts, or lists of texts."""
    if not isinstance(described, dict):
        raise ValueError("'columns' is not an object")
    for value in described.values():
        if not all(isinstance(text, str) for text in (value if isinstance(value, list) else [value])):
            raise ValueError("'columns' has a value that is neither a text nor a list of texts")
    return described


def _check_rows(arrays: Mapping[str, StoredArray], n_events: int, n_nodes: int, shared: bool) -> None:
    """Raise ValueError if the numbers of rows do not fit each other, or the arrays of the ids are incomplete."""
    names = {name for name in NAMES if name in arrays}
    if names - {"side"} not in ({"name"}, {"name_at", "name_bytes"}) or ("side" in names) == shared:
        raise ValueError("the arrays of the ids are incomplete")
    rows = {name: array.rows for name, array in arrays.items()}
    expected = dict.fromkeys(EVENTS, n_events) | dict.fromkeys(("name", "side", "node_x", *LOOKUP), n_nodes)
    expected |= {"name_at": n_nodes + 1} | index_rows(rows, n_events, n_nodes)
    for name, n_rows in expected.items():
        if rows.get(name, n_rows) != n_rows:
            raise ValueError(f"'{name}' has {rows[name]:,} rows; {n_rows:,} were expected")


def index_rows(rows: Mapping[str, int], n_events: int, n_nodes: int) -> dict[str, int]:
    """Return the numbers of rows that the arrays of an index must have. ValueError if it has too many entries.

    ``rows``: those that they have; the numbers of entries and pairs, ``nbr`` and ``pair_nbr``, are free.
    """
    n_entries, n_pairs = rows["nbr"], rows["pair_nbr"]
    if n_entries > 2 * n_events or n_pairs > n_entries:
        raise ValueError("the index has more entries than the events")
    entries = dict.fromkeys(("nbr", "pos", "nbr_degree", "pair_pos"), n_entries)
    nodes = dict.fromkeys(("row_start", "pair_start"), n_nodes + 1)
    return entries | nodes | {"pair_nbr": n_pairs, "pair_pos_start": n_pairs + 1}


def check_file(path: Path, n_bytes: int) -> os.stat_result:
    """Return the status of an array's file. DataError unless it is a regular file, in a real folder, of this size.

    It may be longer: an interrupted append leaves more rows.
    """
    try:
        folder, status = os.lstat(path.parent), os.lstat(path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        reason = "is missing" if missing else f"cannot be read: {error.strerror or error}"
        raise DataError(f"The store is damaged: {path} {reason}. {ADVICE}") from None
    if not stat.S_ISDIR(folder.st_mode):
        raise DataError(f"The store is damaged: {path.parent} is not a folder, or a link to one. {ADVICE}")
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"The store is damaged: {path} is a folder, link, pipe, socket or device. {ADVICE}")
    if status.st_size < n_bytes:
        raise DataError(f"{path} is truncated: it has {status.st_size:,} of {n_bytes:,} bytes. {ADVICE}")
    return status
