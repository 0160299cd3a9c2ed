"""Make a store: stage the events, sort them, number the nodes, write the index.

Work happens in ``STORE.part``, which is renamed at the end. An interrupted conversion resumes from the last staged
chunk, or from the end of staging. Memory stays within the limit as long as the distinct ids and a few numbers per node
fit; it does not grow with the number of events.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError
from cordgt.events.arrays import Ints
from cordgt.events.columns import check_time_span
from cordgt.events.id_table import SortedIdLookup, text_buffers
from cordgt.events.ids import NodeIds
from cordgt.events.stream import SORTED_NOTE, EventStream
from cordgt.events.times import TimeAxis, tie_starts
from cordgt.files import is_regular_folder, read_regular_file, remove, sync_folder
from cordgt.history.index_builder import index_dtype
from cordgt.store.arrays import ArrayWriter, WrittenArray, close_on_error, explain_disk_errors, iter_slices, memory_map
from cordgt.store.batches import Batch, make_batch
from cordgt.store.description import MAX_JSON_BYTES, StoredArray
from cordgt.store.external_sort import external_sort
from cordgt.store.index_writer import IndexFiles, write_index
from cordgt.store.source import EventSource, NodeFeatureTable
from cordgt.store.staging import StagedEvents
from cordgt.store.store import (
    STORE_FILE,
    Store,
    has_partial_files,
    is_store,
    open_store,
    partial_path,
    store_lock,
)

MEMORY = 4 << 30  # default limit in bytes
MEMORY_SHARE = 4  # one step may use 1 / MEMORY_SHARE of the limit; ids, counters and file buffers need the rest

Generation = dict[str, Any]  # number of events and nodes, fingerprints


def make_store(
    source: EventSource,
    target: Path,
    *,
    node_features: NodeFeatureTable | None = None,
    memory: int = MEMORY,
    replace_old: bool = False,
    is_locked: bool = False,
    earlier: tuple[Generation, ...] = (),
    batches: tuple[Batch, ...] | None = None,
    callbacks: Callback = NO_CALLBACK,
) -> Store:
    """Write the events of a source as a store at ``target``, completely or not at all.

    A second call with the same source resumes an interrupted one. ``replace_old``: replace an existing store once the
    new one is complete. ``is_locked``: the caller holds that store's lock. ``earlier``: its generations, if the new
    store begins with the same events. ``batches``: those to record; by default, one of all events. DataError if
    ``target`` is something else, another process writes it, or the disk is full.
    """
    _check_target(target, replace_old)
    part = partial_path(target)
    with explain_disk_errors(
        part, f"Finished work is kept in {part}. Fix the cause and run the same command to resume."
    ):
        part.mkdir(parents=True, exist_ok=True)
        with store_lock(part):
            _check_part(part)
            extra_identity = [] if node_features is None else node_features.identity
            stage = StagedEvents(part / "stage", source, extra_identity)
            is_built = False
            is_finished = is_store(part) and stage.is_same_source()  # interrupted just before the rename
            if not (is_finished and _put_in_place(part, target, is_locked)):
                if is_finished:
                    _clear(part)
                try:
                    _build(stage, part, node_features, memory, earlier, batches, callbacks)
                finally:
                    stage.close()
                shutil.rmtree(part / "stage", ignore_errors=True)
                is_built = True
                if not _put_in_place(part, target, is_locked):
                    raise DataError(f"Another program removed files of {part}. Run the same command again.")
    store = open_store(target)
    if is_built:
        store.remember_as_intact()
    return store


def _check_target(target: Path, replace_old: bool) -> None:
    if is_store(target):
        if not replace_old:
            raise DataError(f"{target} is already a store. Add events with `cordgt data append`, or use --replace.")
        if b'"cordgt store"' not in read_regular_file(target / STORE_FILE, max_bytes=MAX_JSON_BYTES):
            raise DataError(f"{target / STORE_FILE} is not that of a store. Choose another name for the store.")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} exists and is not a store. Choose another name.")
    if not target.parent.exists():
        raise DataError(f"The folder {target.parent} does not exist. Create it, or choose another place.")


def _check_part(part: Path) -> None:
    """DataError if the work folder, which will be cleared, holds files that are not ours, or is a link."""
    for folder in (part, part / "stage"):
        if os.path.lexists(folder) and not is_regular_folder(folder):
            raise DataError(f"The store is made in {part}, but {folder} is a link or a file. Remove it.")
    names = os.listdir(part)
    own_prefixes = (f".{STORE_FILE}.", ".state.json.", "data-")  # may remain after an interrupted `_clear`
    if names and not has_partial_files(names) and not any(name.startswith(own_prefixes) for name in names):
        raise DataError(
            f"The store is made in {part}, but that folder holds other files ({min(names)}). Move them, or choose "
            "another name for the store."
        )


def _build(
    stage: StagedEvents,
    part: Path,
    node_features: NodeFeatureTable | None,
    memory: int,
    earlier: tuple[Generation, ...],
    batches: tuple[Batch, ...] | None,
    callbacks: Callback,
) -> None:
    source, can_resume = stage.source, stage.can_resume()
    _clear(part, keep=("stage", "state.json") if can_resume else ())
    (part / "stage").mkdir(exist_ok=True)
    if can_resume:
        stage.restore()
    callbacks.on_stage_start("reading", source.n_events())
    callbacks.on_step(stage.n_rows)
    stage.collect(callbacks)
    if batches is None:
        batches = (make_batch(stage),)
    data = part / f"data-{secrets.token_hex(4)}"
    data.mkdir()
    written, numbering = write_events(stage, data, memory // MEMORY_SHARE, callbacks)
    ids = numbering.ids(stage.names(), shared=source.shared)
    notes = source.notes() if stage.is_sorted else (*source.notes(), SORTED_NOTE)
    stage.close()
    arrays = {name: _array(data, name, k) for name, k in written.items()} | write_ids(ids, data)
    callbacks.on_stage_start("indexing", 2 * stage.n_rows)
    src, dst, tie_start = (
        memory_map(data / name, written[name].dtype, stage.n_rows) for name in ("src", "dst", "tie_start")
    )
    index = write_index(data, src, dst, tie_start, len(ids), memory=memory // MEMORY_SHARE, callbacks=callbacks)
    arrays |= index_arrays(data, index)
    node_x, node_notes = _join_node_features(ids, node_features, source)
    if node_x is not None:
        arrays |= write_arrays(data, {"node_x": node_x})
    callbacks.on_stage_start("fingerprints", None)
    store = Store(part, source.name, (*notes, *node_notes), source.axis.kind, source.shared, arrays, index.longest, ())
    generations = (*earlier, store.make_generation(ids))
    replace(store, generations=generations, columns=source.columns, batches=batches).write()


def _join_node_features(
    ids: NodeIds, table: NodeFeatureTable | None, source: EventSource
) -> tuple[Any, tuple[str, ...]]:
    """(N, D) node features of the table, else of the source, else None; and notes about them."""
    if table is None:
        return source.node_features(ids), ()
    none = np.zeros(0, np.int64)
    joined = table.join(EventStream(none, none, none, None, None, None, ids, source.axis))
    return joined.node_x, joined.notes


def _clear(part: Path, keep: tuple[str, ...] = ()) -> None:
    for child in part.iterdir():
        if child.name not in keep:
            remove(child)


def _put_in_place(part: Path, target: Path, is_locked: bool) -> bool:
    """Rename the finished store; of an existing store, replace ``store.json`` atomically.

    False, and nothing is replaced, if files are missing: after an interruption here they may lie in the old store,
    where a later writer has removed them.
    """
    if not is_store(target):
        if not _has_files(part, part):
            return False
        if target.is_dir():
            target.rmdir()  # empty: see `_check_target`
        os.rename(part, target)
        sync_folder(target.parent)
        (target / "state.json").unlink(missing_ok=True)
        return True
    with nullcontext() if is_locked else store_lock(target):
        for data in part.glob("data-*"):
            os.rename(data, target / data.name)
        sync_folder(target)  # before `store.json` names the new files
        if not _has_files(part, target):
            return False
        os.replace(part / STORE_FILE, target / STORE_FILE)
        sync_folder(target)
        open_store(target).remove_leftovers()
    shutil.rmtree(part, ignore_errors=True)
    return True


def _has_files(part: Path, home: Path) -> bool:
    """Whether ``home`` holds every file that the ``store.json`` of ``part`` lists, in full length."""
    try:
        open_store(part, home)
    except DataError:
        return False
    return True


# -------------------- sorted events


@dataclass
class NodeNumbering:
    """Numbers nodes by first appearance in the stream.

    ``rank``: node of each code, per id space (-1: not seen). ``codes``, ``side``: code and id space of new nodes.
    """

    rank: list[npt.NDArray[np.int32]]
    codes: npt.NDArray[np.int32]
    side: npt.NDArray[np.uint8]
    n_nodes: int = 0

    @classmethod
    def create(cls, sizes: list[int], known: list[Ints] | None = None, n_nodes: int = 0) -> NodeNumbering:
        """For id spaces of these sizes. ``known``: existing node of each code (-1: none), of ``n_nodes`` in all."""
        rank = [np.full(size, -1, np.int32) for size in sizes] if known is None else [k.astype(np.int32) for k in known]
        return cls(rank, np.empty(sum(sizes), np.int32), np.empty(sum(sizes), np.uint8), n_nodes)

    def number(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], base: int = 0) -> tuple[Ints, Ints]:
        """The nodes of the next events, in stream order. ``base``: number of nodes that existed at the start."""
        out = np.empty((2, len(src)), np.int64)
        self.n_nodes = _number(src, dst, self.rank[0], self.rank[-1], self.codes, self.side, self.n_nodes, base, out)
        return out[0], out[1]

    def ids(self, names: list[Any], *, shared: bool, base: int = 0) -> NodeIds:
        """The ids of the nodes from ``base`` on."""
        n = self.n_nodes - base
        codes, side = self.codes[:n], self.side[:n]
        if shared:
            return NodeIds(names[0].take(pa.array(codes)))
        place = codes.astype(np.int64) + np.where(side == 1, len(names[0]), 0)
        return NodeIds(pa.concat_arrays(names).take(pa.array(place)), side.copy())


@njit(cache=True)
def _number(src, dst, rank_src, rank_dst, codes, side, n, base, out):  # type: ignore[no-untyped-def]
    for e in range(len(src)):
        if rank_src[src[e]] < 0:
            rank_src[src[e]], codes[n - base], side[n - base] = n, src[e], 0
            n += 1
        if rank_dst[dst[e]] < 0:
            rank_dst[dst[e]], codes[n - base], side[n - base] = n, dst[e], 1
            n += 1
        out[0, e], out[1, e] = rank_src[src[e]], rank_dst[dst[e]]
    return n


def write_events(
    stage: StagedEvents, data: Path, memory: int, callbacks: Callback
) -> tuple[dict[str, WrittenArray], NodeNumbering]:
    """Write the staged events in time order, with numbered nodes, one file per array."""
    columns, sizes = stage.arrays(), [len(vocabulary) for vocabulary in stage.vocabularies]
    numbering = NodeNumbering.create(sizes)
    types: dict[str, Any] = {"src": np.int64, "dst": np.int64, "t": columns["t"].dtype, "elapsed": np.float64}
    types["tie_start"] = index_dtype(sum(sizes), stage.n_rows)
    types |= {name: columns[name].dtype for name in ("label", "edge_x") if name in columns}
    out = {name: ArrayWriter(data / name, dtype, _width(columns.get(name))) for name, dtype in types.items()}
    times = TimeColumns(stage.source.axis)
    with close_on_error(out):
        for rows in sorted_chunks(stage, data / "ranges", memory, callbacks):
            src, dst = numbering.number(rows["src"], rows["dst"])
            append_rows(out, rows | {"src": src, "dst": dst} | times.derive(rows["t"]))
            callbacks.on_step(len(src))
        check_time_span(times.first, times.last)
        return {name: writer.close() for name, writer in out.items()}, numbering


def sorted_chunks(
    stage: StagedEvents, scratch: Path, memory: int, callbacks: Callback
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The staged events in time order, in chunks that can be sorted within ``memory`` bytes."""
    columns = stage.arrays()
    row_bytes = sum(x.dtype.itemsize * max(_width(x), 1) for x in columns.values())
    chunk_rows = max(memory // (3 * row_bytes + 64), 1)  # three copies, the order and derived columns
    callbacks.on_stage_start("sorting", stage.n_rows * (1 if stage.is_sorted else 2))
    return external_sort(columns, scratch, chunk_rows, is_sorted=stage.is_sorted, callbacks=callbacks)


def append_rows(out: dict[str, ArrayWriter], rows: dict[str, npt.NDArray[Any]]) -> None:
    for name, writer in out.items():
        writer.append(rows[name])


class TimeColumns:
    """Derives columns from sorted times, chunk by chunk: time since the first event, first event of each tie."""

    def __init__(self, axis: TimeAxis, first: Any = None, last: Any = None, position: int = 0, group: int = 0) -> None:
        self.axis, self.first, self.last, self.position, self.group = axis, first, last, position, group

    def derive(self, t: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """``elapsed`` and ``tie_start`` of the next times."""
        if self.first is None:
            self.first, self.last = t[0], t[0]
        begins = tie_starts(t, start=self.position, first=self.group if self.last == t[0] else None)
        self.last, self.group, self.position = t[-1], int(begins[-1]), self.position + len(t)
        return {"elapsed": self.axis.elapsed(t, self.first), "tie_start": begins}


# -------------------- ids, fingerprints


def write_ids(ids: NodeIds, data: Path) -> dict[str, StoredArray]:
    """Write the ids and their lookup table."""
    return write_arrays(data, id_arrays(ids)) | write_lookup(ids, data)


def id_arrays(ids: NodeIds) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that store the ids; the offsets of text start at 0."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    if pa.types.is_integer(ids.names.type):
        arrays["name"] = np.asarray(ids.names)
    else:
        offsets, letters = text_buffers(ids.names)
        arrays["name_at"] = offsets - offsets[0]
        arrays["name_bytes"] = letters[offsets[0] : offsets[-1]]
    if ids.side is not None:
        arrays["side"] = ids.side
    return arrays


def write_lookup(ids: NodeIds, data: Path) -> dict[str, StoredArray]:
    """Write the sorted hashes of all ids, with their nodes."""
    lookup = SortedIdLookup.from_names(ids.names)
    return write_arrays(data, {"name_hash": lookup.hashes, "name_node": lookup.nodes})


def write_arrays(folder: Path, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, StoredArray]:
    """Write each array into a file of a folder of the store."""
    stored = {}
    for name, values in arrays.items():
        writer = ArrayWriter(folder / name, values.dtype, _width(values))
        with close_on_error({name: writer}):
            for part in iter_slices(len(values)):
                writer.append(values[part])
            stored[name] = _array(folder, name, writer.close())
    return stored


def index_arrays(folder: Path, index: IndexFiles) -> dict[str, StoredArray]:
    """The arrays that ``write_index`` wrote into a folder of the store."""
    return {name: _array(folder, name, k) for name, k in index.arrays.items()}


def _array(folder: Path, name: str, written: WrittenArray) -> StoredArray:
    return StoredArray(f"{folder.name}/{name}", written.dtype, written.width, ((written.rows, written.sha256),))


def _width(values: npt.NDArray[Any] | None) -> int:
    """Numbers per row of a two-dimensional array; 0 for one dimension."""
    return values.shape[1] if values is not None and values.ndim > 1 else 0
