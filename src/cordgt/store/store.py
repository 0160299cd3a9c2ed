"""A store on disk: a stream, its ids and its index as plain arrays that are mapped into memory, not read.

STORE/store.json     version, counts, and of every array: file, type, and a SHA-256 of each part written at once
STORE/data-*/        the arrays: little-endian numbers, no header

``store.json`` comes last, whole or not at all, and carries its own checksum: what it does not tell of is not there. An
append writes behind the ends it tells of, and new index files; until it is replaced, the old store stands.

Opening looks at the version, the checksum of ``store.json`` and every file's size; ``check`` at every byte.
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
from cordgt.files import exclusive, is_held, short, write_text
from cordgt.store.arrays import Written, checksum, mapped

VERSION = 1
ABOUT = "store.json"
EVENTS = ("src", "dst", "t", "elapsed", "tie_start", "label", "edge_x")  # a row an event; later ones are added behind
LOOKUP = ("name_hash", "name_node")
NAMES = ("name", "name_at", "name_bytes", "side")  # the ids; those of new nodes are added behind
OPTIONAL = ("label", "edge_x", "name", "name_at", "name_bytes", "side", "node_x")
_AGAIN = "Put back a copy of the store, or convert the data again."


@dataclass(frozen=True, eq=False)
class StoreBacking:
    """A `StreamBacking` whose arrays are mapped from a store's files."""

    path: Path
    fingerprint: str
    ids_fingerprint: str
    elapsed: npt.NDArray[np.float64]  # (E,) or longer, if events were appended later
    tie_start: npt.NDArray[Any]  # as long
    index: IndexData

    def masked_index(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], masked: npt.NDArray[np.bool_]) -> IndexData:
        """The index without the events of masked nodes: built once, then read from the store's folder."""
        from cordgt.store.masked_index import masked_index  # compiles: only for training

        return masked_index(self.path, self.fingerprint, src, dst, self.tie_start, masked)


@dataclass(frozen=True)
class Array:
    """An array of a store: its file below the folder, and (rows, SHA-256) of each part."""

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

    def longer(self, more: Written) -> Array:
        """With another part."""
        return Array(self.file, self.dtype, self.width, (*self.parts, (more.rows, more.sha256)))


@dataclass(frozen=True)
class Store:
    """What ``store.json`` tells."""

    path: Path
    name: str
    notes: tuple[str, ...]
    time: str
    shared: bool
    arrays: dict[str, Array]
    longest: dict[str, int]
    generations: tuple[dict[str, Any], ...]  # events, nodes and fingerprints: as it was made, then after each append
    columns: Mapping[str, Any] = field(default_factory=dict)  # that its events were read from; see `Source`

    @property
    def n_events(self) -> int:
        return self.arrays["src"].rows

    @property
    def n_nodes(self) -> int:
        return int(self.generations[-1]["nodes"])

    def array(self, name: str) -> Any:
        """An array by name, mapped; None where the store has none of that name."""
        told = self.arrays.get(name)
        return None if told is None else mapped(self.path / told.file, told.dtype, told.rows, told.width)

    def ids(self) -> NodeIds:
        """The ids, with where they are found."""
        from cordgt.events.id_table import SortedNames  # compiles: only where ids are asked for

        bare = self.bare_ids()
        return NodeIds(bare.names, bare.side, SortedNames(self.array("name_hash"), self.array("name_node")))

    def bare_ids(self) -> NodeIds:
        """The ids alone."""
        n = self.n_nodes
        if "name" in self.arrays:
            names = pa.Array.from_buffers(pa.int64(), n, [None, pa.py_buffer(self.array("name"))])
        else:
            buffers = [None, pa.py_buffer(self.array("name_at")), pa.py_buffer(self.array("name_bytes"))]
            try:
                names = pa.Array.from_buffers(pa.string(), n, buffers)
            except pa.ArrowInvalid:
                raise DataError(f"{self.path} is damaged: its ids do not end where they should. {_AGAIN}") from None
        return NodeIds(names, self.array("side"))

    def stream(self, fingerprint: str | None = None) -> EventStream:
        """The stream; or as it was when it had another fingerprint, before later events were appended.

        DataError where it never had that fingerprint.
        """
        fitting = [k for k in self.generations if fingerprint in (None, k["fingerprint"])]
        if not fitting:
            raise DataError(f"The store {self.path} has changed: it no longer begins with the events it had then.")
        told = fitting[-1]
        n_events, n_nodes = told["events"], told["nodes"]
        ids = self.ids()
        index = {name: self.array(name) for name in INDEX_ARRAYS}
        if n_nodes < self.n_nodes:
            ids = NodeIds(ids.names.slice(0, n_nodes), None if ids.side is None else ids.side[:n_nodes], ids.lookup)
            index = _of_first_nodes(index, n_nodes)
        of_events: dict[str, Any] = {name: self.array(name) for name in ("src", "dst", "t", "edge_x", "label")}
        node_x = self.array("node_x")
        return EventStream(
            **{name: None if x is None else x[:n_events] for name, x in of_events.items()},  # type: ignore[arg-type]
            node_x=None if node_x is None else node_x[:n_nodes],
            ids=ids,
            time=TimeAxis("date" if self.time == "date" else "number"),
            name=self.name,
            notes=self.notes,
            backing=StoreBacking(
                self.path,
                told["fingerprint"],
                told["ids"],
                self.array("elapsed"),
                self.array("tie_start"),
                IndexData(index, self.longest),
            ),
        )

    def write(self, folder: Path | None = None) -> None:
        """Writes ``store.json``, here or into another folder; from then on it is this store."""
        told: dict[str, Any] = {k: v for k, v in vars(self).items() if k not in ("path", "arrays")}
        told["arrays"] = {name: vars(array) for name, array in self.arrays.items()}
        body = json.dumps(told)  # as it will be read: tuples as lists
        text = json.dumps({"format": "cordgt store", "version": VERSION, "sha256": _sum(body), **told}, indent=1)
        write_text((folder or self.path) / ABOUT, text + "\n")

    def n_bytes(self, names: Collection[str] | None = None) -> int:
        """Of all arrays, or of those of the ``names`` that there are."""
        return sum(array.n_bytes for name, array in self.arrays.items() if names is None or name in names)

    def check(self, callbacks: Callback = NO_CALLBACK, names: Collection[str] | None = None, so_far: str = "") -> None:
        """Reads every byte, or those of the arrays ``names``. DataError where a file is not what its checksum says.

        ``on_step`` counts bytes. ``so_far``: a sentence for that error, on what became of the work that asked
        for the check.
        """
        for name, array in self.arrays.items():
            if names is not None and name not in names:
                continue
            path, start = self.path / array.file, 0
            for rows, expected in array.parts:
                stop = start + rows * array.row_bytes
                try:
                    sound = checksum(path, start, stop) == expected
                except OSError as error:
                    raise DataError(f"{path} cannot be read: {error.strerror or error}. {so_far}{_AGAIN}") from None
                if not sound:
                    raise DataError(f"{path} is damaged: the array '{name}' is not what was written. {so_far}{_AGAIN}")
                callbacks.on_step(stop - start)
                start = stop

    def sweep(self) -> None:
        """Remove what an interrupted, a failed or an earlier append left. Only under the lock."""
        self._cut_back()
        files = {array.file for array in self.arrays.values()}
        used = {str(Path(file).parent) for file in files}
        for folder in used:
            for child in (self.path / folder).iterdir():
                if f"{folder}/{child.name}" not in files:
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
        for child in self.path.iterdir():
            if child.is_dir() and child.name.startswith(("data-", "index-")) and child.name not in used:
                shutil.rmtree(child, ignore_errors=True)
            elif child.name.startswith(f".{ABOUT}.") or child.name == "state.json":
                child.unlink(missing_ok=True)
        from cordgt.store.masked_index import remove_indexes  # compiles: only where a store is written

        remove_indexes(self.path)

    def _cut_back(self) -> None:
        """Cut off what stands behind the ends of arrays: it counts for nothing, and takes room."""
        for array in self.arrays.values():
            path = self.path / array.file
            if path.stat().st_size > array.n_bytes:
                os.truncate(path, array.n_bytes)


def _of_first_nodes(index: dict[str, Any], n: int) -> dict[str, Any]:
    """The arrays of an index for its first ``n`` nodes, whose rows may tell of later ones, in events at the end."""
    rows, pairs = int(index["row_start"][n]), int(index["pair_start"][n])
    lengths = {"row_start": n + 1, "pair_start": n + 1, "pair_nbr": pairs, "pair_pos_start": pairs + 1}
    return {name: array[: lengths.get(name, rows)] for name, array in index.items()}


def is_store(path: Any) -> bool:
    """Whether a path is a folder with a store in it."""
    return isinstance(path, str | os.PathLike) and os.path.isfile(os.path.join(path, ABOUT))


def open_store(path: str | os.PathLike[str], home: Path | None = None) -> Store:
    """A store; DataError where there is none, it is of another version, altered or cut short.

    ``home``: where its arrays lie, if not beside its ``store.json``.
    """
    folder = Path(path)
    try:
        given = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = f"is not a store: it has no {ABOUT}" if folder.exists() else "is not there"
        raise DataError(f"{folder} {what}.{unfinished(folder)}") from None
    except NotADirectoryError:
        raise DataError(
            f"{folder} is a file, not a store. `cordgt data convert {folder} {folder.stem}.store` makes a store of it."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{folder / ABOUT} is damaged: {short(error)}.") from None
    if not isinstance(given, dict) or given.get("format") != "cordgt store":
        raise DataError(f"{folder / ABOUT} does not tell of a store.")
    if given.get("version") != VERSION:
        raise DataError(
            f"{folder} is a store of version {given.get('version')}; this program reads version {VERSION}. "
            "Convert the data again with this one."
        )
    body = {k: v for k, v in given.items() if k not in ("format", "version", "sha256")}
    if given.get("sha256") != _sum(json.dumps(body)):
        raise DataError(f"{folder / ABOUT} is damaged: it was altered after it was written.")
    arrays = {
        name: Array(k["file"], k["dtype"], k["width"], tuple((rows, sha) for rows, sha in k["parts"]))
        for name, k in body["arrays"].items()
    }
    store = Store(
        path=home or folder,
        name=body["name"],
        notes=tuple(body["notes"]),
        time=body["time"],
        shared=body["shared"],
        arrays=arrays,
        longest=body["longest"],
        generations=tuple(body["generations"]),
        columns=body.get("columns", {}),  # none in stores of before
    )
    _check_sizes(store)
    return store


def _check_sizes(store: Store) -> None:
    """DataError where an array is not told of, or its file is missing or too short."""
    missing = [name for name in (*EVENTS, *LOOKUP, *INDEX_ARRAYS) if name not in store.arrays and name not in OPTIONAL]
    if missing:
        raise DataError(f"{store.path / ABOUT} is damaged: it does not tell of '{missing[0]}'.")
    for array in store.arrays.values():
        path = store.path / array.file
        try:
            size = path.stat().st_size
        except OSError:
            raise DataError(f"{store.path} is damaged: {path} is missing. Convert the data again.") from None
        if size < array.n_bytes:
            raise DataError(
                f"{path} is cut short: {size:,} of {array.n_bytes:,} bytes are there. Convert the data again."
            )


def part_folder(path: Path) -> Path:
    """Where a store is made before it gets its name."""
    return path.with_name(f"{path.name}.part")


def is_part(path: Path) -> bool:
    """Whether a folder is one that a store is made in, and not finished."""
    return path.name.endswith(".part") and os.path.isdir(path / "stage") and not is_store(path)


def was_begun(inside: Collection[str]) -> bool:
    """Whether a folder with these names in it is one that a store was begun in."""
    return not {"stage", "state.json", ABOUT}.isdisjoint(inside)


def unfinished(path: Path) -> str:
    """What to say where a store is not there but was begun, or is that beginning itself; else an empty string."""
    if not path.name:
        return ""
    part = path if is_part(path) else part_folder(path)
    if not os.path.isdir(part):  # which, unlike a Path, is not upset by a name too long
        return ""
    try:
        inside = os.listdir(part)
    except OSError as error:
        return f" It may have been begun in {part}, which cannot be read: {error.strerror or error}."
    if not was_begun(inside):
        return ""  # somebody else's folder
    if is_held(part):
        return f" It is being made now, in {part}: it will be there when `cordgt data convert` is done."
    return (
        f" It was begun in {part} and interrupted: run the same `cordgt data convert` again, and it goes on from there."
    )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing in an existing folder; DataError where one does already."""
    busy = DataError(f"Another process is writing {folder}. Let it finish, then try again.")
    with exclusive(folder, busy):
        yield


def _sum(text: str) -> str:
    """The checksum of what ``store.json`` says."""
    return hashlib.sha256(text.encode()).hexdigest()
