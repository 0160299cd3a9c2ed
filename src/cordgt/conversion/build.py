"""Making a store: collect, put in order, number the nodes, index; in a folder that gets its name at the very end.

After a kill, collecting goes on from the last piece, and all that follows from the end of collecting. Memory is bounded
by what is asked for, as long as the distinct ids and a few numbers a node fit; nothing grows with the number of events.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from cordgt.arrays import Ints
from cordgt.conversion.ordering import in_order
from cordgt.conversion.staging import Stage
from cordgt.errors import DataError
from cordgt.events.fingerprints import fingerprint_of, ids_fingerprint_of
from cordgt.events.ids import NodeIds
from cordgt.events.stream import SORTED_NOTE, EventStream, check_span
from cordgt.events.times import TimeAxis
from cordgt.events.vocabulary import SortedNames, text_buffers
from cordgt.reading.chunks import Source
from cordgt.reading.node_features import join_node_features
from cordgt.store.folder import (
    ABOUT,
    Array,
    Store,
    disk_explained,
    is_store,
    locked,
    open_store,
    part_folder,
    was_begun,
)
from cordgt.store.growing import Writer, Written, abandoned_on_error, mapped, pieces
from cordgt.store.index_files import IndexFiles, narrow, write_index

MEMORY = 4 << 30  # bytes, unless told otherwise
# A piece of work may take one part in so many of the memory: the rest is for ids, counters and files in flight.
SHARE = 4


class Watcher(Protocol):
    """Who is told how it goes: a phase ``begins``, of so many units (None: unknown); then ``step`` by some of them."""

    def begins(self, phase: str, total: int | None) -> None: ...
    def step(self, n: int) -> None: ...


class Silent:
    """Tells nobody."""

    def begins(self, phase: str, total: int | None) -> None:
        """Nothing to show."""

    def step(self, n: int) -> None:
        """Nothing to show."""


def make_store(
    source: Source,
    target: Path,
    *,
    node_features: Any = None,
    memory: int = MEMORY,
    replace_old: bool = False,
    held: bool = False,
    earlier: tuple[dict[str, Any], ...] = (),
    watcher: Watcher | None = None,
) -> Store:
    """Writes what a source holds as a store at ``target``, whole or not at all.

    Interrupted, it goes on when it is called again with the same source. ``replace_old``: a store that is there already
    stands until the new one is whole; ``held``: the caller has locked it; ``earlier``: its generations, where the new
    one begins with the same events. DataError where something else is there, another process writes, or the disk is
    full.
    """
    _check_target(target, replace_old)
    part, watcher = part_folder(target), watcher or Silent()
    with disk_explained(
        part, f"What was done so far is kept in {part}: once this is mended, the same command goes on."
    ):
        part.mkdir(parents=True, exist_ok=True)
        with locked(part):
            _check_part(part)
            stage = Stage(part / "stage", source, _identity(node_features))
            finished = is_store(part) and stage.is_same()  # it was cut off between the last file and the name
            if not (finished and _put_in_place(part, target, held)):
                if finished:
                    _clear(part)
                try:
                    _build(stage, part, node_features, memory, earlier, watcher)
                finally:
                    stage.close()
                shutil.rmtree(part / "stage", ignore_errors=True)
                if not _put_in_place(part, target, held):
                    raise DataError(f"Files of {part} were taken away while it was made. Run the same command again.")
    return open_store(target)


def _identity(node_features: Any) -> list[Any]:
    """What tells whether these are the node features of before; a table in memory is never taken for the same."""
    if node_features is None:
        return []
    if not isinstance(node_features, str | os.PathLike):
        return [secrets.token_hex(8)]
    path = Path(node_features)
    told = path.stat() if path.exists() else None  # who reads it will say what is wrong
    return [str(path.resolve()), *([] if told is None else [told.st_size, told.st_mtime_ns])]


def _check_target(target: Path, replace_old: bool) -> None:
    if is_store(target):
        if not replace_old:
            raise DataError(f"{target} is a store already. Add to it with `cordgt data append`, or give --replace.")
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} is there already and is no store. Choose another name.")
    if not target.parent.exists():
        raise DataError(f"There is no folder {target.parent} to write {target.name} into.")


def _check_part(part: Path) -> None:
    """DataError where the folder to work in, which is cleared, is somebody else's."""
    inside = os.listdir(part)
    ours = (f".{ABOUT}.", ".state.json.", "data-")  # what may be left of ours where it was cut off while it was cleared
    if inside and not was_begun(inside) and not any(name.startswith(ours) for name in inside):
        raise DataError(
            f"{part}, where the store would be made, holds something else ({min(inside)}). Move it away, or choose "
            "another name for the store."
        )


def _build(
    stage: Stage,
    part: Path,
    node_features: Any,
    memory: int,
    earlier: tuple[dict[str, Any], ...],
    watcher: Watcher,
) -> None:
    source, again = stage.source, stage.can_go_on()
    _clear(part, but=("stage", "state.json") if again else ())
    (part / "stage").mkdir(exist_ok=True)
    if again:
        stage.restore()
    watcher.begins("reading", source.total())
    watcher.step(stage.rows)
    stage.collect(watcher.step)
    data = part / f"data-{secrets.token_hex(4)}"
    data.mkdir()
    written, numbered = write_events(stage, data, memory // SHARE, watcher)
    arrays = {name: _array(data, name, k) for name, k in written.items()}
    ids = numbered.ids(stage.names(), shared=source.shared)
    notes = source.notes() if stage.sorted else (*source.notes(), SORTED_NOTE)
    stage.close()
    arrays |= write_ids(ids, data)
    watcher.begins("indexing", 2 * written["src"].rows)
    src, dst, tie_start = (_mapped(data, name, written[name]) for name in ("src", "dst", "tie_start"))
    index = write_index(data, src, dst, tie_start, len(ids), memory=memory // SHARE, told=watcher.step)
    arrays |= index_arrays(data, index)
    node_x, more = _node_features(ids, node_features, source)
    if node_x is not None:
        arrays["node_x"] = _array(data, "node_x", write_array(data / "node_x", node_x))
    watcher.begins("fingerprints", None)
    store = Store(part, source.name, (*notes, *more), source.axis.kind, source.shared, arrays, index.longest, ())
    replace(store, generations=(*earlier, generation(store, ids)), columns=source.columns).write()


def _node_features(ids: NodeIds, given: Any, source: Source) -> tuple[Any, tuple[str, ...]]:
    """Node features joined by id, or those of a stream that was read already, and what there is to say of them."""
    none = np.zeros(0, np.int64)
    nodes = EventStream(none, none, none, None, None, None, ids, source.axis)
    if given is not None:
        joined = join_node_features(nodes, given)
        return joined.node_x, joined.notes
    own = getattr(source, "node_features", None)
    return (None, ()) if own is None else (own(ids), ())


def _clear(part: Path, but: tuple[str, ...] = ()) -> None:
    for child in part.iterdir():
        if child.name not in but:
            shutil.rmtree(child) if child.is_dir() else child.unlink()


def _put_in_place(part: Path, target: Path, held: bool) -> bool:
    """The finished store gets its name. Where a store stands already, its ``store.json`` is replaced at one stroke.

    False, and nothing is replaced, where not all of its files are there: cut off here before, they may lie in the old
    store, and whoever wrote that since has swept them away.
    """
    if not is_store(target):
        if not _has_files(part, part):
            return False
        if target.is_dir():
            target.rmdir()  # empty, as was checked
        os.rename(part, target)
        (target / "state.json").unlink(missing_ok=True)
        return True
    with nullcontext() if held else locked(target):
        for data in part.glob("data-*"):
            os.rename(data, target / data.name)
        if not _has_files(part, target):
            return False
        os.replace(part / ABOUT, target / ABOUT)
        open_store(target).sweep()
    shutil.rmtree(part, ignore_errors=True)
    return True


def _has_files(part: Path, home: Path) -> bool:
    """Whether every file that the ``store.json`` of ``part`` tells of lies whole in ``home``."""
    try:
        open_store(part, home)
    except DataError:
        return False
    return True


# -------------------- events in order


@dataclass
class Numbering:
    """Nodes by first appearance: ``rank`` of each code of each id space (-1: not seen), ``codes`` and ``side`` back."""

    rank: list[npt.NDArray[np.int32]]
    codes: npt.NDArray[np.int32]
    side: npt.NDArray[np.uint8]
    n: int = 0

    @classmethod
    def of(cls, sizes: list[int], known: list[Ints] | None = None, n: int = 0) -> Numbering:
        """For id spaces of these sizes; ``known``: the nodes of codes that have one already, of ``n`` in all."""
        rank = [np.full(size, -1, np.int32) for size in sizes] if known is None else [k.astype(np.int32) for k in known]
        return cls(rank, np.empty(sum(sizes), np.int32), np.empty(sum(sizes), np.uint8), n)

    def number(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], base: int = 0) -> tuple[Ints, Ints]:
        """The nodes of events, in stream order; ``base``: how many nodes there were before any of these."""
        out = np.empty((2, len(src)), np.int64)
        self.n = _number(src, dst, self.rank[0], self.rank[-1], self.codes, self.side, self.n, base, out)
        return out[0], out[1]

    def ids(self, names: list[Any], *, shared: bool, base: int = 0) -> NodeIds:
        """The ids of the nodes from ``base`` on."""
        n = self.n - base
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


def write_events(stage: Stage, data: Path, memory: int, watcher: Watcher) -> tuple[dict[str, Written], Numbering]:
    """The staged events in order of time into files of their own, the nodes numbered."""
    columns = stage.arrays()
    n_nodes = sum(len(space) for space in stage.spaces)
    numbering = Numbering.of([len(space) for space in stage.spaces])
    out = writers(data, columns, narrow(n_nodes, stage.rows))
    watcher.begins("sorting", stage.rows * (1 if stage.sorted else 2))
    with abandoned_on_error(out):
        times = Times(stage.source.axis)
        at_once = rows_at_once(columns, memory)
        for rows in in_order(columns, data / "ranges", at_once, already=stage.sorted, told=watcher.step):
            src, dst = numbering.number(rows["src"], rows["dst"])
            append_events(out, rows | {"src": src, "dst": dst} | times.of(rows["t"]))
            watcher.step(len(src))
        check_span(times.first, times.last)
        return {name: writer.close() for name, writer in out.items()}, numbering


def rows_at_once(columns: dict[str, npt.NDArray[Any]], memory: int) -> int:
    """How many rows are put in order together: three copies of them, an order and what is made of them."""
    width = sum(x.dtype.itemsize * (x.shape[1] if x.ndim > 1 else 1) for x in columns.values())
    return max(memory // (3 * width + 64), 1)


def writers(data: Path, columns: dict[str, npt.NDArray[Any]], kind: Any) -> dict[str, Writer]:
    """A writer for each array of events."""
    types = {"src": np.int64, "dst": np.int64, "t": columns["t"].dtype, "elapsed": np.float64, "tie_start": kind}
    out = {name: Writer(data / name, dtype) for name, dtype in types.items()}
    if "label" in columns:
        out["label"] = Writer(data / "label", columns["label"].dtype)
    if "edge_x" in columns:
        out["edge_x"] = Writer(data / "edge_x", np.float32, columns["edge_x"].shape[1])
    return out


def append_events(out: dict[str, Writer], rows: dict[str, npt.NDArray[Any]]) -> None:
    for name, writer in out.items():
        writer.append(rows[name])


class Times:
    """What follows from times that come in order: time since the first, and where each moment begins."""

    def __init__(self, axis: TimeAxis, first: Any = None, last: Any = None, position: int = 0, group: int = 0) -> None:
        self.axis, self.first, self.last, self.position, self.group = axis, first, last, position, group

    def of(self, t: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """``elapsed`` and ``tie_start`` of the next times."""
        if self.first is None:
            self.first, self.last = t[0], t[0]
        since = np.subtract(t, self.first).astype(np.float64)
        begins = np.empty(len(t), np.int64)
        begins[0] = self.group if self.last == t[0] else self.position
        begins[1:] = np.where(t[1:] != t[:-1], np.arange(self.position + 1, self.position + len(t)), 0)
        begins = np.maximum.accumulate(begins)
        self.last, self.group, self.position = t[-1], int(begins[-1]), self.position + len(t)
        return {"elapsed": since / 1e6 if self.axis.kind == "date" else since, "tie_start": begins}


# -------------------- ids, fingerprints


def write_ids(ids: NodeIds, data: Path) -> dict[str, Array]:
    """The ids, and where they are found."""
    found: dict[str, Any] = {}
    if pa.types.is_integer(ids.names.type):
        found["name"] = np.asarray(ids.names)
    else:
        offsets, letters = text_buffers(ids.names)
        found["name_at"] = offsets - offsets[0]
        found["name_bytes"] = letters[offsets[0] : offsets[-1]]
    if ids.side is not None:
        found["side"] = ids.side
    return {name: _array(data, name, write_array(data / name, x)) for name, x in found.items()} | write_lookup(
        ids, data
    )


def write_lookup(ids: NodeIds, data: Path) -> dict[str, Array]:
    """The sorted hashes of all ids."""
    lookup = SortedNames.of(ids.names)
    found = {"name_hash": lookup.hashes, "name_node": lookup.nodes}
    return {name: _array(data, name, write_array(data / name, x)) for name, x in found.items()}


def index_arrays(folder: Path, index: IndexFiles) -> dict[str, Array]:
    """What ``write_index`` wrote into a folder of the store."""
    return {name: _array(folder, name, k) for name, k in index.arrays.items()}


def write_array(path: Path, values: npt.NDArray[Any]) -> Written:
    """An array into a file of its own."""
    writer = Writer(path, values.dtype, values.shape[1] if values.ndim > 1 else 0)
    with abandoned_on_error({path.name: writer}):
        for part in pieces(len(values)):
            writer.append(values[part])
        return writer.close()


def generation(store: Store, ids: NodeIds) -> dict[str, Any]:
    """Events, nodes and fingerprints of a store as it is now."""
    arrays = (store.array(name) for name in ("src", "dst", "t", "edge_x", "node_x"))
    return {
        "events": store.n_events,
        "nodes": len(ids),
        "fingerprint": fingerprint_of(x for x in arrays if x is not None),
        "ids": ids_fingerprint_of(ids.names, store.time),
    }


def _array(folder: Path, name: str, written: Written) -> Array:
    return Array(f"{folder.name}/{name}", written.dtype, written.width, ((written.rows, written.sha256),))


def _mapped(folder: Path, name: str, written: Written) -> npt.NDArray[Any]:
    return mapped(folder / name, written.dtype, written.rows, written.width)
