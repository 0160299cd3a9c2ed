"""Later events into a store: events and ids are added behind the old ones, the index is merged in one pass over it.

Until ``store.json`` is replaced, at the very end, the store is what it was; what was added behind the ends it tells of
is cut off when an append fails, or by whoever writes next. What is read to be written anew, with new checksums, is
compared with the old ones first; what is only added to keeps its own, by which a check finds damage.

Events older than the store's last, and types that the old arrays cannot hold (a first text id, a first fraction), need
a store made anew: the old one then stands until that is whole.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.arrays import is_text
from cordgt.conversion.build import (
    MEMORY,
    SHARE,
    Numbering,
    Silent,
    Times,
    Watcher,
    append_events,
    generation,
    index_arrays,
    make_store,
    rows_at_once,
    write_lookup,
)
from cordgt.conversion.ordering import in_order
from cordgt.conversion.staging import Stage
from cordgt.errors import DataError, check_choice
from cordgt.events.stream import check_exact, check_span
from cordgt.events.times import TimeAxis
from cordgt.events.vocabulary import LONGEST_TEXT, text_buffers
from cordgt.reading.chunks import Both, OneStream, Source
from cordgt.reading.opening import COMMENTS
from cordgt.store.folder import EVENTS, INDEX, LOOKUP, NAMES, Array, Store, disk_explained, locked, open_store
from cordgt.store.growing import Writer, abandoned_on_error, pieces
from cordgt.store.index_files import Earlier, narrow, write_index

Late = Literal["refuse", "merge"]
# What new arrays are made of: the rows that are merged, the ids that are found and sorted. Pairs follow from rows.
REWRITTEN = ("row_start", "nbr", "pos", "nbr_degree", *LOOKUP, *NAMES)


def append_to_store(
    path: Path, source: Source, *, late: Late = "refuse", memory: int = MEMORY, watcher: Watcher | None = None
) -> Store:
    """Adds the events of a source to a store.

    ``late``: what becomes of events older than the store's last: ``refuse`` all, or ``merge`` them, which makes the
    store anew. Nodes of the store keep their numbers, but for a merge; runs on it stay good unless its own events
    become others, by a merge, a first text id or a first fraction. DataError where the events do not fit (another
    axis of time, other features), another process writes the store, an array is damaged that is written anew, or the
    disk is full; it is then what it was.
    """
    check_choice("--late", late, get_args(Late))
    watcher = watcher or Silent()
    open_store(path)  # before anything is locked or read
    with disk_explained(path, "The store is what it was."), locked(path):
        store = open_store(path)
        store.sweep()
        _check_fits(store, source)
        work = path / f"index-{secrets.token_hex(4)}"
        work.mkdir()
        stage = Stage(work / "stage", source)
        try:
            watcher.begins("reading", source.total())
            stage.collect(watcher.step)
            _check_features(store, stage)
            others = _is_late(store, stage, late) or _changes_events(store, stage)
            anew = others or _needs_other_arrays(store, stage)
            _check_sound(store, None if anew else REWRITTEN, watcher)
            if anew:
                grown = None
            else:
                grown = _grown(store, stage, work, memory, watcher)
                grown.write()
        except BaseException:
            stage.close()
            _undo(path)
            raise
        stage.close()
        if grown is None:
            shutil.rmtree(work, ignore_errors=True)  # read again for the new store: no room is taken by two copies
            both = Both(OneStream(store.stream(), columns=store.columns), source)
            earlier = () if others else store.generations
            make_store(both, path, memory=memory, replace_old=True, watcher=watcher, held=True, earlier=earlier)
        grown = open_store(path)
        grown.sweep()
    return grown


def _check_sound(store: Store, names: tuple[str, ...] | None, watcher: Watcher) -> None:
    """DataError where an array, of these or of all, is not what was written: it would get a new checksum."""
    watcher.begins("checking", store.n_bytes(names))
    store.check(watcher.step, names, so_far="Nothing was appended. ")


def _undo(path: Path) -> None:
    """Remove what a failed append wrote; all of it stays that ``store.json`` tells of, if that was replaced already."""
    with suppress(DataError, OSError):
        open_store(path).sweep()


def _check_fits(store: Store, source: Source) -> None:
    if source.axis.kind != store.time:
        there = "dates" if store.time == "date" else "numbers"
        raise DataError(f"The times of {source.name} are no {there}, but those of {store.path} are.")
    if source.shared != store.shared:
        spaces = "one id space" if store.shared else "two id spaces"
        raise DataError(f"{store.path} has {spaces}: read the new events with --ids {_word(store.shared)}.")
    _check_feature_names(store, source)


def _check_feature_names(store: Store, source: Source) -> None:
    """DataError where the features of both are known by name, and other ones or in another order."""
    old, new = store.columns.get("features"), source.columns.get("features")
    if isinstance(old, list) and isinstance(new, list) and [k.lower() for k in old] != [k.lower() for k in new]:
        raise DataError(
            f"The features of the new events are {', '.join(new)}; those of {store.path} are {', '.join(old)}. Name "
            "the columns alike in the new file, in any order, and leave out --features, or make the store anew."
        )


def _word(shared: bool) -> str:
    return "shared" if shared else "separate"


def _check_features(store: Store, stage: Stage) -> None:
    old = store.arrays["edge_x"].width if "edge_x" in store.arrays else 0
    new = stage.columns["edge_x"].width if "edge_x" in stage.columns else 0
    if old != new:
        raise DataError(
            f"The new events have {new} features each; those of {store.path} have {old}."
            " Name the feature columns (--features) so that both agree."
        )


def _is_late(store: Store, stage: Stage, late: str) -> bool:
    """Whether an event is older than the store's last one; DataError where that is refused."""
    t, last = stage.arrays()["t"], store.array("t")[-1]
    first = min(t[part].min() for part in pieces(len(t)))
    check_span(*_of_one_type(min(first, store.array("t")[0]), max(last, max(t[part].max() for part in pieces(len(t))))))
    if first >= last:
        return False
    if late == "refuse":
        axis = TimeAxis("date" if store.time == "date" else "number")
        begin, end = axis.format_one(first), axis.format_one(last)
        raise DataError(
            f"The new events begin at {begin}, before the last event of {store.path} ({end}). "
            "Leave the late ones out, or give --late merge, which makes the store anew with them in their places."
        )
    return True


def _of_one_type(low: Any, high: Any) -> tuple[Any, Any]:
    return (low, high) if low.dtype == high.dtype else (np.float64(low), np.float64(high))


def _changes_events(store: Store, stage: Stage) -> bool:
    """Whether the store's own events become others: by text among integer ids, by fractions among whole times."""
    if "name" in store.arrays and any(space.text for space in stage.spaces):
        return True
    return _needs_fractions(store, stage.arrays()["t"])


def _needs_other_arrays(store: Store, stage: Stage) -> bool:
    """Whether the store's arrays cannot hold the rest: no label among whole ones, more than its positions count."""
    label = store.arrays.get("label")
    if label is not None and np.dtype(label.dtype).kind == "i":
        given = stage.arrays().get("label")
        if given is None or given.dtype.kind == "f":
            return True
    grown = store.n_nodes + sum(len(space) for space in stage.spaces)
    return np.dtype(store.arrays["tie_start"].dtype) != narrow(grown, store.n_events + stage.rows)


def _needs_fractions(store: Store, new: npt.NDArray[Any]) -> bool:
    """Whether whole times must become fractions; DataError where they would no longer be told exactly."""
    old = store.array("t")
    if old.dtype.kind == new.dtype.kind:
        return False
    if old.dtype.kind == "i" and all(_are_whole(new[part]) for part in pieces(len(new))):
        return False
    check_exact(old if old.dtype.kind == "i" else new)
    return bool(old.dtype.kind == "i")


def _are_whole(t: npt.NDArray[Any]) -> bool:
    return bool((t == np.floor(t)).all() and (np.abs(t) < 2.0**63).all())


def _grown(store: Store, stage: Stage, work: Path, memory: int, watcher: Watcher) -> Store:
    """The store with the staged events, none before its last; files are written, but not ``store.json``."""
    ids = store.ids()
    names = [pc.cast(k, ids.names.type) for k in stage.names()]
    sides = ("src",) if store.shared else ("src", "dst")
    known = [ids.find(k, side) for k, side in zip(names, sides, strict=True)]  # type: ignore[arg-type]
    numbering = Numbering.of([len(k) for k in names], known, store.n_nodes)
    arrays = store.arrays | _append_events(store, stage, numbering, memory // SHARE, watcher)
    new = numbering.ids(names, shared=store.shared, base=store.n_nodes)
    arrays |= _append_nodes(store, new.names, new.side)
    grown = replace(store, arrays=arrays, generations=(*store.generations, {"nodes": numbering.n}))
    watcher.begins("indexing", 2 * stage.rows)
    written = write_index(
        work,
        grown.array("src"),
        grown.array("dst"),
        grown.array("tie_start"),
        numbering.n,
        memory=memory // SHARE,
        earlier=Earlier({name: store.array(name) for name in INDEX}, store.n_events),
        told=watcher.step,
    )
    every_id = grown.bare_ids()
    grown.arrays.update(index_arrays(work, written) | write_lookup(every_id, work))
    watcher.begins("fingerprints", None)
    note = f"{stage.rows} later events appended, with {len(new)} new nodes"
    skipped = [said for said in stage.source.notes() if COMMENTS in said]
    told = (*store.generations, generation(grown, every_id))
    return replace(grown, longest=written.longest, generations=told, notes=(*store.notes, *skipped, note))


def _append_events(store: Store, stage: Stage, numbering: Numbering, memory: int, watcher: Watcher) -> dict[str, Array]:
    columns = stage.arrays()
    out = {name: _behind(store, name) for name in EVENTS if name in store.arrays}
    t, ties = store.array("t"), store.array("tie_start")
    times = Times(stage.source.axis, t[0], t[-1], store.n_events, int(ties[-1]))
    watcher.begins("sorting", stage.rows * (1 if stage.sorted else 2))
    with abandoned_on_error(out):
        at_once = rows_at_once(columns, memory)
        for rows in in_order(columns, stage.folder / "ranges", at_once, already=stage.sorted, told=watcher.step):
            src, dst = numbering.number(rows["src"], rows["dst"], store.n_nodes)
            when = rows["t"].astype(t.dtype)
            missing = {} if "label" in rows else {"label": np.full(len(src), np.nan)}
            append_events(out, rows | missing | {"src": src, "dst": dst, "t": when} | times.of(when))
            watcher.step(len(src))
        return {name: store.arrays[name].longer(writer.close()) for name, writer in out.items()}


def _append_nodes(store: Store, names: Any, side: npt.NDArray[np.uint8] | None) -> dict[str, Array]:
    """The ids of new nodes behind the old ones, and zeros as their features."""
    found: dict[str, npt.NDArray[Any]] = {}
    if is_text(store.bare_ids().names.type):
        offsets, letters = text_buffers(pc.cast(names, pa.string()))
        before = store.arrays["name_bytes"].rows
        if before + int(offsets[-1] - offsets[0]) > LONGEST_TEXT:
            raise DataError("The distinct ids have more than 2 GB of text together; shorten them, or number them.")
        found["name_at"] = offsets[1:].astype(np.int64) - offsets[0] + before
        found["name_bytes"] = letters[offsets[0] : offsets[-1]]
    else:
        found["name"] = np.asarray(names)
    if side is not None:
        found["side"] = side
    if "node_x" in store.arrays:
        found["node_x"] = np.zeros((len(names), store.arrays["node_x"].width), np.float32)
    out = {name: _behind(store, name) for name in found}
    with abandoned_on_error(out):
        for name, values in found.items():
            out[name].append(values)
        return {name: store.arrays[name].longer(writer.close()) for name, writer in out.items()}


def _behind(store: Store, name: str) -> Writer:
    array = store.arrays[name]
    return Writer(store.path / array.file, array.dtype, array.width, array.rows)
