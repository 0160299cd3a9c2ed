"""A store: a folder with a stream, its ids and its index as plain arrays, which are memory-mapped.

STORE/store.json     version, counts, and for every array: file, type, and the SHA-256 of each appended part
STORE/data-*/        the arrays: little-endian numbers, no header

``store.json`` defines the store, has its own checksum, and is always written last and atomically. An append writes
after the ends of the arrays and into new index files; the old store stays valid until ``store.json`` is replaced.

`open_store` checks the version, the checksum of ``store.json`` and all file sizes; `Store.verify` checks every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError
from cordgt.events.backing import INDEX_ARRAYS, IndexData
from cordgt.events.ids import NodeIds
from cordgt.events.stream import EventStream
from cordgt.events.times import TimeAxis
from cordgt.files import file_lock, is_file_locked, short_message, write_text
from cordgt.store.arrays import WrittenArray, checksum, memory_map

VERSION = 1
STORE_FILE = "store.json"
EVENTS = ("src", "dst", "t", "elapsed", "tie_start", "label", "edge_x")  # one row per event; an append extends them
LOOKUP = ("name_hash", "name_node")
NAMES = ("name", "name_at", "name_bytes", "side")  # the ids; an append extends them
OPTIONAL = ("label", "edge_x", "name", "name_at", "name_bytes", "side", "node_x")
_ADVICE = "Restore a copy of the store, or convert the data again."


@dataclass(frozen=True, eq=False)
class StoreBacking:
    """A `StreamBacking` with arrays memory-mapped from a store."""

    path: Path
    fingerprint: str
    ids_fingerprint: str
    elapsed: npt.NDArray[np.float64]  # (E,) or longer, if events were appended later
    tie_start: npt.NDArray[Any]  # as long
    index: IndexData

    def masked_index(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], masked: npt.NDArray[np.bool_]) -> IndexData:
        """Return the index without the events of masked nodes, built once and cached in the store's folder."""
        from cordgt.store.masked_index import masked_index  # numba compiles: import only for training

        return masked_index(self.path, self.fingerprint, src, dst, self.tie_start, masked)


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


@dataclass(frozen=True)
class Store:
    """The content of ``store.json``."""

    path: Path
    name: str
    notes: tuple[str, ...]
    time: str
    shared: bool
    arrays: dict[str, StoredArray]
    longest: dict[str, int]
    generations: tuple[dict[str, Any], ...]  # events, nodes and fingerprints, initially and after each append
    columns: Mapping[str, Any] = field(default_factory=dict)  # column options of the source; see `EventSource`
    batches: tuple[dict[str, Any], ...] = ()  # the latest batches of events that were added; see `store.batches`

    @property
    def n_events(self) -> int:
        return self.arrays["src"].rows

    @property
    def n_nodes(self) -> int:
        return int(self.generations[-1]["nodes"])

    def array(self, name: str) -> Any:
        """Return an array by name, memory-mapped; None if the store does not have it."""
        array = self.arrays.get(name)
        return None if array is None else memory_map(self.path / array.file, array.dtype, array.rows, array.width)

    def ids(self) -> NodeIds:
        """Return the ids with their lookup table."""
        from cordgt.events.id_table import SortedIdLookup  # numba compiles: import only if needed

        ids = self.ids_without_lookup()
        return NodeIds(ids.names, ids.side, SortedIdLookup(self.array("name_hash"), self.array("name_node")))

    def ids_without_lookup(self) -> NodeIds:
        n = self.n_nodes
        if "name" in self.arrays:
            names = pa.Array.from_buffers(pa.int64(), n, [None, pa.py_buffer(self.array("name"))])
        else:
            buffers = [None, pa.py_buffer(self.array("name_at")), pa.py_buffer(self.array("name_bytes"))]
            try:
                names = pa.Array.from_buffers(pa.string(), n, buffers)
            except pa.ArrowInvalid:
                raise DataError(f"{self.path} is damaged: its ids have a wrong length. {_ADVICE}") from None
        return NodeIds(names, self.array("side"))

    def stream(self, fingerprint: str | None = None) -> EventStream:
        """Return the stream, or an earlier version of it, before events were appended, by its fingerprint.

        DataError if no version has that fingerprint.
        """
        matches = [k for k in self.generations if fingerprint in (None, k["fingerprint"])]
        if not matches:
            raise DataError(f"The store {self.path} has changed: it no longer begins with the same events.")
        generation = matches[-1]
        n_events, n_nodes = generation["events"], generation["nodes"]
        ids = self.ids()
        index = {name: self.array(name) for name in INDEX_ARRAYS}
        if n_nodes < self.n_nodes:
            ids = ids.slice(0, n_nodes)
            index = _truncate_index(index, n_nodes)
        columns: dict[str, Any] = {name: self.array(name) for name in ("src", "dst", "t", "edge_x", "label")}
        node_x = self.array("node_x")
        return EventStream(
            **{name: None if x is None else x[:n_events] for name, x in columns.items()},  # type: ignore[arg-type]
            node_x=None if node_x is None else node_x[:n_nodes],
            ids=ids,
            time=TimeAxis("date" if self.time == "date" else "number"),
            name=self.name,
            notes=self.notes,
            backing=StoreBacking(
                self.path,
                generation["fingerprint"],
                generation["ids"],
                self.array("elapsed"),
                self.array("tie_start"),
                IndexData(index, self.longest),
            ),
        )

    def write(self, folder: Path | None = None) -> None:
        """Write ``store.json``, into the store's folder or another: this makes the store valid."""
        content: dict[str, Any] = {k: v for k, v in vars(self).items() if k not in ("path", "arrays")}
        content["arrays"] = {name: vars(array) for name, array in self.arrays.items()}
        header = {"format": "cordgt store", "version": VERSION, "sha256": _content_hash(content)}
        text = json.dumps(header | content, indent=1)
        write_text((folder or self.path) / STORE_FILE, text + "\n")

    def n_bytes(self, names: Collection[str] | None = None) -> int:
        """Return the size of all arrays, or of those in ``names``."""
        return sum(array.n_bytes for name, array in self.arrays.items() if names is None or name in names)

    def verify(
        self, callbacks: Callback = NO_CALLBACK, names: Collection[str] | None = None, consequence: str = ""
    ) -> None:
        """Verify the checksums of all arrays, or of those in ``names``. DataError if one does not match.

        ``callbacks.on_step`` counts bytes. ``consequence``: a sentence for that error about the caller's work.
        """
        for name, array in self.arrays.items():
            if names is not None and name not in names:
                continue
            path, start = self.path / array.file, 0
            for rows, expected in array.parts:
                stop = start + rows * array.row_bytes
                try:
                    is_intact = checksum(path, start, stop) == expected
                except OSError as error:
                    raise DataError(
                        f"{path} cannot be read: {error.strerror or error}. {consequence}{_ADVICE}"
                    ) from None
                if not is_intact:
                    raise DataError(
                        f"{path} is damaged: the checksum of '{name}' does not match. {consequence}{_ADVICE}"
                    )
                callbacks.on_step(stop - start)
                start = stop

    def remove_leftovers(self) -> None:
        """Remove what interrupted, failed and earlier appends left. Only under the lock."""
        for array in self.arrays.values():
            path = self.path / array.file
            if path.stat().st_size > array.n_bytes:
                os.truncate(path, array.n_bytes)
        files = {array.file for array in self.arrays.values()}
        used = {str(Path(file).parent) for file in files}
        for folder in used:
            for child in (self.path / folder).iterdir():
                if f"{folder}/{child.name}" not in files:
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
        for child in self.path.iterdir():
            if child.is_dir() and child.name.startswith(("data-", "index-")) and child.name not in used:
                shutil.rmtree(child, ignore_errors=True)
            elif child.name.startswith(f".{STORE_FILE}.") or child.name == "state.json":
                child.unlink(missing_ok=True)
        from cordgt.store.masked_index import remove_masked_indexes  # numba compiles: import only to write

        remove_masked_indexes(self.path)


def _truncate_index(index: dict[str, Any], n: int) -> dict[str, Any]:
    """Return the index arrays of the first ``n`` nodes; their rows may end with events of later nodes."""
    rows, pairs = int(index["row_start"][n]), int(index["pair_start"][n])
    lengths = {"row_start": n + 1, "pair_start": n + 1, "pair_nbr": pairs, "pair_pos_start": pairs + 1}
    return {name: array[: lengths.get(name, rows)] for name, array in index.items()}


def is_store(path: Any) -> bool:
    """Return whether a path is a folder that holds a store."""
    return isinstance(path, str | os.PathLike) and os.path.isfile(os.path.join(path, STORE_FILE))


def open_store(path: str | os.PathLike[str], data_root: Path | None = None) -> Store:
    """Open a store. DataError if it is missing, damaged, or of another version.

    ``data_root``: the folder of its arrays, if it is not that of ``store.json``.
    """
    folder = Path(path)
    try:
        document = json.loads((folder / STORE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = f"is not a store: it has no {STORE_FILE}" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {problem}.{partial_store_hint(folder)}") from None
    except NotADirectoryError:
        raise DataError(
            f"{folder} is a file, not a store. Convert it: `cordgt data convert {folder} {folder.stem}.store`."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder / STORE_FILE} is damaged: {short_message(error)}.") from None
    if not isinstance(document, dict) or document.get("format") != "cordgt store":
        raise DataError(f"{folder / STORE_FILE} does not describe a store.")
    if document.get("version") != VERSION:
        raise DataError(
            f"{folder} is a store of version {document.get('version')}; this program reads version {VERSION}. "
            "Convert the data again with this program."
        )
    content = {k: v for k, v in document.items() if k not in ("format", "version", "sha256")}
    if document.get("sha256") != _content_hash(content):
        raise DataError(f"{folder / STORE_FILE} is damaged: its checksum does not match.")
    arrays = {
        name: StoredArray(k["file"], k["dtype"], k["width"], tuple((rows, sha) for rows, sha in k["parts"]))
        for name, k in content["arrays"].items()
    }
    store = Store(
        path=data_root or folder,
        name=content["name"],
        notes=tuple(content["notes"]),
        time=content["time"],
        shared=content["shared"],
        arrays=arrays,
        longest=content["longest"],
        generations=tuple(content["generations"]),
        columns=content.get("columns", {}),  # missing in older stores
        batches=tuple(content.get("batches", ())),  # missing in older stores
    )
    _check_sizes(store)
    return store


def _check_sizes(store: Store) -> None:
    """Raise DataError if an array is not listed, or its file is missing or too short."""
    missing = [name for name in (*EVENTS, *LOOKUP, *INDEX_ARRAYS) if name not in store.arrays and name not in OPTIONAL]
    if missing:
        raise DataError(f"{store.path / STORE_FILE} is damaged: the array '{missing[0]}' is not listed.")
    for array in store.arrays.values():
        path = store.path / array.file
        try:
            size = path.stat().st_size
        except OSError:
            raise DataError(f"{store.path} is damaged: {path} is missing. Convert the data again.") from None
        if size < array.n_bytes:
            raise DataError(f"{path} is truncated: it has {size:,} of {array.n_bytes:,} bytes. Convert the data again.")


def partial_path(path: Path) -> Path:
    """Return the folder in which the store at ``path`` is built before it is renamed."""
    return path.with_name(f"{path.name}.part")


def is_partial(path: Path) -> bool:
    """Return whether a folder holds an unfinished store."""
    return path.name.endswith(".part") and os.path.isdir(path / "stage") and not is_store(path)


def has_partial_files(names: Collection[str]) -> bool:
    """Return whether a folder with these file names is the work folder of a store."""
    return not {"stage", "state.json", STORE_FILE}.isdisjoint(names)


def partial_store_hint(path: Path) -> str:
    """Return a hint for messages if the store at ``path`` is unfinished; otherwise an empty string."""
    if not path.name:
        return ""
    part = path if is_partial(path) else partial_path(path)
    if not os.path.isdir(part):  # unlike Path.is_dir, it accepts a name that is too long
        return ""
    try:
        names = os.listdir(part)
    except OSError as error:
        return f" It may be unfinished in {part}, which cannot be read: {error.strerror or error}."
    if not has_partial_files(names):
        return ""  # not a work folder
    if is_file_locked(part):
        return f" It is being made now, in {part}. Wait until `cordgt data convert` has finished."
    return f" Its conversion, in {part}, was interrupted. Run the same `cordgt data convert` again to resume it."


@contextmanager
def store_lock(folder: Path) -> Iterator[None]:
    """Lock an existing folder for writing. DataError if another process writes it."""
    busy = DataError(f"Another process is writing {folder}. Wait until it has finished.")
    with file_lock(folder, busy):
        yield


def _content_hash(content: dict[str, Any]) -> str:
    """Return the SHA-256 of the content of ``store.json`` as JSON, without its header."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
