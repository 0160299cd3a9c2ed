"""A store: a folder with a stream, its ids and its index as plain arrays, which are memory-mapped.

STORE/store.json     version, counts, and for every array: file, type, and the SHA-256 of each appended part
STORE/data-*/        the arrays: little-endian numbers, no header

``store.json`` defines the store, has its own checksum, and is always written last and atomically. An append writes
after the ends of the arrays and into new index files; the old store stays valid until ``store.json`` is replaced.

`open_store` checks every value of ``store.json`` and the kind and size of all files. `Store.stream` also checks every
byte when a store is used for the first time after a change (`Store.check_once`); `Store.verify` does so each time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError
from cordgt.events.backing import INDEX_ARRAYS, IndexData
from cordgt.events.fingerprints import fingerprint_arrays, fingerprint_ids
from cordgt.events.ids import NodeIds
from cordgt.events.stream import EventStream
from cordgt.events.times import TimeAxis
from cordgt.files import file_lock, is_file_locked, read_regular_file, remove, short_message, sync_folder, write_text
from cordgt.store.arrays import checksum, memory_map
from cordgt.store.check_cache import FileStates
from cordgt.store.description import ADVICE, ARRAY_FOLDER, MAX_JSON_BYTES, StoredArray, check_file, parse_description

VERSION = 1
STORE_FILE = "store.json"
_VERIFY_THREADS = 4  # that compute checksums


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

    def content(self) -> dict[str, Any]:
        """Return the content of ``store.json`` without its header."""
        content: dict[str, Any] = {k: v for k, v in vars(self).items() if k not in ("path", "arrays")}
        content["arrays"] = {name: vars(array) for name, array in self.arrays.items()}
        return content

    @property
    def n_events(self) -> int:
        return self.arrays["src"].rows

    @property
    def n_nodes(self) -> int:
        return int(self.generations[-1]["nodes"])

    @property
    def axis(self) -> TimeAxis:
        return TimeAxis("date" if self.time == "date" else "number")

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
                raise DataError(f"{self.path} is damaged: its ids have a wrong length. {ADVICE}") from None
        return NodeIds(names, self.array("side"))

    def stream(self, fingerprint: str | None = None) -> EventStream:
        """Return the stream, or an earlier version of it, before events were appended, by its fingerprint.

        DataError if no version has that fingerprint, or if the store is damaged; see `check_once`. If events were
        appended since the store was opened, its former index may be gone: then it is opened again.
        """
        try:
            return self._stream(fingerprint)
        except (DataError, FileNotFoundError):
            latest = open_store(self.path)
            if latest.content() == self.content():
                raise
            return latest.stream(fingerprint)

    def _stream(self, fingerprint: str | None) -> EventStream:
        """`stream`, from the files that were listed when the store was opened."""
        matches = [k for k in self.generations if fingerprint in (None, k["fingerprint"])]
        if not matches:
            raise DataError(f"The store {self.path} has changed: it no longer begins with the same events.")
        generation = matches[-1]
        self.check_once(generation)
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
            time=self.axis,
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
            columns=self.columns,
        )

    def write(self, folder: Path | None = None) -> None:
        """Write ``store.json``, into the store's folder or another: this makes the store valid."""
        content = self.content()
        header = {"format": "cordgt store", "version": VERSION, "sha256": _content_hash(content)}
        text = json.dumps(header | content, indent=1)
        for name in {Path(array.file).parent for array in self.arrays.values()}:
            sync_folder(self.path / name)  # a system crash must not leave a `store.json` without its files
        write_text((folder or self.path) / STORE_FILE, text + "\n")

    def n_bytes(self, names: Collection[str] | None = None) -> int:
        """Return the size of all arrays, or of those in ``names``."""
        return sum(array.n_bytes for name, array in self.arrays.items() if names is None or name in names)

    def make_generation(self, ids: NodeIds, n_events: int | None = None) -> dict[str, Any]:
        """Return size and fingerprints of the stream of these ids and all events, or the first ``n_events``."""
        n_events = self.n_events if n_events is None else n_events
        lengths = dict.fromkeys(("src", "dst", "t", "edge_x"), n_events) | {"node_x": len(ids)}
        arrays = ((self.array(name), rows) for name, rows in lengths.items())
        return {
            "events": n_events,
            "nodes": len(ids),
            "fingerprint": fingerprint_arrays(x[:rows] for x, rows in arrays if x is not None),
            "ids": fingerprint_ids(ids.names, self.time),
        }

    def check_once(
        self, generation: dict[str, Any] | None = None, callbacks: Callback = NO_CALLBACK, consequence: str = ""
    ) -> bool:
        """`verify` the store, and the fingerprints of a generation, unless its files have not changed since.

        Returns whether the store was verified now. DataError if it is damaged.
        """
        is_new = not self._file_states("store").is_remembered()
        if is_new:
            callbacks.on_stage_start("checking", self.n_bytes())
            self.verify(callbacks, consequence=consequence)
        if generation is not None and generation != self.generations[-1]:
            states = self._file_states(f"generation {json.dumps(generation)}")
            if not states.is_remembered():
                self._check_fingerprints(generation, consequence)
                states.remember()
        return is_new

    def remember_as_intact(self) -> None:
        """Skip the check of the first use: the caller has just written all files."""
        self._file_states("store").remember()

    def _file_states(self, checked: str) -> FileStates:
        states = (check_file(self.path / array.file, array.n_bytes) for array in self.arrays.values())
        return FileStates(f"{checked} {_content_hash(self.content())}", states)

    def verify(
        self, callbacks: Callback = NO_CALLBACK, names: Collection[str] | None = None, consequence: str = ""
    ) -> None:
        """Verify the checksums of the arrays in ``names``, or of all arrays, their contents and fingerprints.

        DataError if something does not match. ``callbacks.on_step`` counts bytes. ``consequence``: a sentence for that
        error about the caller's work. `check_once` remembers that all arrays were verified.
        """
        parts, states = [], self._file_states("store")
        for name, array in self.arrays.items():
            if names is None or name in names:
                start = 0
                for rows, expected in array.parts:
                    parts.append((name, start, start + rows * array.row_bytes, expected))
                    start = parts[-1][2]

        def sha256(part: tuple[str, int, int, str]) -> str:
            return checksum(self.path / self.arrays[part[0]].file, part[1], part[2])

        pool = ThreadPoolExecutor(min(_VERIFY_THREADS, os.cpu_count() or 1))
        try:
            for (name, start, stop, expected), found in zip(parts, pool.map(sha256, parts), strict=True):
                if found != expected:
                    path = self.path / self.arrays[name].file
                    raise self._damaged(f"{path} is damaged: the checksum of '{name}' does not match", consequence)
                callbacks.on_step(stop - start)
        except DataError as error:
            if ADVICE in str(error):
                raise
            raise self._damaged(str(error).rstrip("."), consequence) from None
        finally:
            pool.shutdown(cancel_futures=True)
        if names is None:
            self._check_contents(consequence)
            self._check_fingerprints(self.generations[-1], consequence)
            states.remember()

    def _check_contents(self, consequence: str) -> None:
        """Raise DataError if the arrays do not fit each other."""
        from cordgt.store import consistency  # numba compiles: import only if needed

        columns = {name: self.array(name) for name in ("src", "dst", "t", "elapsed", "tie_start", "side")}
        index = IndexData({name: self.array(name) for name in INDEX_ARRAYS}, self.longest)
        try:
            consistency.check_events(columns, self.n_nodes, self.axis)
            consistency.check_ids(self.ids_without_lookup().names, self.array("name_hash"), self.array("name_node"))
            consistency.check_index(index, columns["src"], columns["dst"], columns["tie_start"], self.n_nodes)
        except ValueError as error:
            raise self._damaged(f"{self.path} is damaged: {short_message(error)}", consequence) from None

    def _check_fingerprints(self, generation: dict[str, Any], consequence: str) -> None:
        ids = self.ids_without_lookup().slice(0, generation["nodes"])
        if self.make_generation(ids, generation["events"]) != generation:
            raise self._damaged(f"{self.path} is damaged: its fingerprints do not fit the events", consequence)

    @staticmethod
    def _damaged(problem: str, consequence: str) -> DataError:
        return DataError(f"{problem}. {consequence}{ADVICE}")

    def remove_leftovers(self) -> None:
        """Remove what interrupted, failed and earlier appends left. Only under the lock."""
        for array in self.arrays.values():
            path = self.path / array.file
            if check_file(path, array.n_bytes).st_size > array.n_bytes:
                os.truncate(path, array.n_bytes)
        files = {array.file for array in self.arrays.values()}
        used = {str(Path(file).parent) for file in files}
        for folder in used:
            for child in (self.path / folder).iterdir():
                if f"{folder}/{child.name}" not in files:
                    remove(child)
        for child in self.path.iterdir():
            if ARRAY_FOLDER.fullmatch(child.name) and child.name not in used:
                with suppress(OSError):
                    remove(child)
            elif child.name.startswith(f".{STORE_FILE}.") or child.name == "state.json":
                remove(child)
        from cordgt.store.masked_index import remove_masked_indexes  # numba compiles: import only to write

        remove_masked_indexes(self.path)


def _truncate_index(index: dict[str, Any], n: int) -> dict[str, Any]:
    """Return the index arrays of the first ``n`` nodes; their rows may end with events of later nodes."""
    rows, pairs = int(index["row_start"][n]), int(index["pair_start"][n])
    lengths = {"row_start": n + 1, "pair_start": n + 1, "pair_nbr": pairs, "pair_pos_start": pairs + 1}
    return {name: array[: lengths.get(name, rows)] for name, array in index.items()}


def is_store(path: Any) -> bool:
    """Return whether a path is a folder with a ``store.json``, valid or not; `open_store` checks it."""
    return isinstance(path, str | os.PathLike) and os.path.lexists(os.path.join(path, STORE_FILE))


def open_store(path: str | os.PathLike[str], data_root: Path | None = None) -> Store:
    """Open a store. DataError if it is missing, damaged, or of another version.

    ``data_root``: the folder of its arrays, if it is not that of ``store.json``.
    """
    folder = Path(path)
    while True:
        before = _file_identity(folder / STORE_FILE)
        try:
            return _open_once(folder, data_root)
        except DataError:
            if _file_identity(folder / STORE_FILE) == before:
                raise  # otherwise an append has removed the former index meanwhile


def _file_identity(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced; None if there is no file."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns


def _open_once(folder: Path, data_root: Path | None) -> Store:
    file = folder / STORE_FILE
    if not is_store(folder):
        if os.path.isfile(folder):  # unlike Path.is_file, it accepts a name that is too long
            raise DataError(
                f"{folder} is a file, not a store. Convert it: `cordgt data convert {folder} {folder.stem}.store`."
            )
        problem = f"is not a store: it has no {STORE_FILE}" if os.path.exists(folder) else "does not exist"
        raise DataError(f"{folder} {problem}.{partial_store_hint(folder)}")
    try:
        document = json.loads(read_regular_file(file, max_bytes=MAX_JSON_BYTES).decode())
    except (ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{file} is damaged: {short_message(error)}. {ADVICE}") from None
    if not isinstance(document, dict) or document.get("format") != "cordgt store":
        raise DataError(f"{file} does not describe a store.")
    version = document.get("version")
    if type(version) is int and version != VERSION:
        raise DataError(
            f"{folder} is a store of version {version}; this program reads version {VERSION}. "
            "Convert the data again with this program."
        )
    content = {k: v for k, v in document.items() if k not in ("format", "version", "sha256")}
    try:
        if type(version) is not int or document.get("sha256") != _content_hash(content):
            raise ValueError("its checksum does not match")
        store = Store(path=data_root or folder, **parse_description(content))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is damaged: {short_message(error)}. {ADVICE}") from None
    for array in store.arrays.values():
        check_file(store.path / array.file, array.n_bytes)
    return store


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
    if not os.path.isdir(part):
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
