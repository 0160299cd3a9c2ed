"""Append later events to a store: events and ids go after the existing ones; one pass merges the index.

The store is unchanged until ``store.json`` is replaced at the end. A failed append removes what it wrote; after a kill,
the next writer does. The store is checked first, as at every first use (`Store.check_once`). Arrays that are rewritten
get new checksums, so they are verified in any case. Arrays that only grow keep their old checksums.

Events older than the store's last, or types that the arrays cannot hold (a first text id, a first fraction), require a
rebuild. The old store stays until the new one is complete.
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow.compute as pc

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError, check_choice
from cordgt.events.backing import INDEX_ARRAYS
from cordgt.events.columns import are_whole, check_exact_floats, check_time_span
from cordgt.events.id_table import MAX_TEXT_BYTES
from cordgt.events.ids import NodeIds
from cordgt.events.notes import append_note
from cordgt.events.times import TimeAxis
from cordgt.history.index_builder import index_dtype
from cordgt.store.arrays import ArrayWriter, close_on_error, explain_disk_errors, iter_slices
from cordgt.store.batches import Batch, add_batch, find_batch, make_batch
from cordgt.store.build import (
    MEMORY,
    MEMORY_SHARE,
    NodeNumbering,
    TimeColumns,
    append_rows,
    id_arrays,
    index_arrays,
    make_store,
    sorted_chunks,
    write_lookup,
)
from cordgt.store.description import EVENTS, LOOKUP, NAMES, StoredArray
from cordgt.store.index_writer import PriorIndex, write_index
from cordgt.store.source import ConcatSource, EventSource, StreamSource
from cordgt.store.staging import StagedEvents
from cordgt.store.store import Store, open_store, store_lock

LatePolicy = Literal["refuse", "merge"]
# Arrays from which new ones are computed: index rows are merged, ids looked up and sorted. Pairs follow from rows.
_UNCHANGED = "Nothing was appended. "
REWRITTEN = ("row_start", "nbr", "pos", "nbr_degree", *LOOKUP, *NAMES)


def append_to_store(
    path: Path,
    source: EventSource,
    *,
    late: LatePolicy = "refuse",
    allow_duplicates: bool = False,
    memory: int = MEMORY,
    callbacks: Callback = NO_CALLBACK,
) -> Store:
    """Append the events of a source to a store, unless the same events were added before.

    A batch is recognized only as a whole: the same events, in any order. It is then not appended, and
    ``callbacks.on_message`` says so. ``allow_duplicates``: append it again.

    ``late``: ``refuse`` events older than the store's last, or ``merge`` them, which rebuilds the store. Nodes keep
    their numbers except in a merge. Existing runs stay valid unless the store's own events change: by a merge, a first
    text id or a first fraction. DataError, and an unchanged store, if the events do not fit (other time axis or
    features), another process writes the store, an array to be rewritten is damaged, or the disk is full.
    """
    check_choice("--late", late, get_args(LatePolicy))
    open_store(path)  # fail before locking or reading
    with explain_disk_errors(path, "The store is unchanged."), store_lock(path):
        store = open_store(path)
        is_verified = store.check_once(callbacks=callbacks, consequence=_UNCHANGED)
        _check_own_files(store)
        store.remove_leftovers()
        _check_source(store, source)
        work = path / f"index-{secrets.token_hex(4)}"
        work.mkdir()
        stage = StagedEvents(work / "stage", source)
        try:
            callbacks.on_stage_start("reading", source.n_events())
            stage.collect(callbacks)
            batch = make_batch(stage)
            repeated = None if allow_duplicates else find_batch(store.batches, batch)
            if repeated is not None:
                callbacks.on_message(_repeated_message(path, source, repeated))
                stage.close()
                _undo(path)
                return store
            batches = add_batch(store.batches, batch)
            _check_feature_width(store, stage)
            changes_events = _has_late_events(store, stage, late) or _changes_events(store, stage)
            rebuild = changes_events or _needs_wider_types(store, stage)
            names = None if rebuild else REWRITTEN
            if not is_verified:
                callbacks.on_stage_start("checking", store.n_bytes(names))
                store.verify(callbacks, names, consequence=_UNCHANGED)
            if not rebuild:
                replace(_append(store, stage, work, memory, callbacks), batches=batches).write()
        except BaseException:
            stage.close()
            _undo(path)
            raise
        stage.close()
        if rebuild:
            shutil.rmtree(work, ignore_errors=True)  # saves disk space: the source is read again
            both = ConcatSource(StreamSource(store.stream(), columns=store.columns), source)
            earlier = () if changes_events else store.generations
            make_store(
                both,
                path,
                memory=memory,
                replace_old=True,
                is_locked=True,
                earlier=earlier,
                batches=batches,
                callbacks=callbacks,
            )
        store = open_store(path)
        store.remove_leftovers()
        store.remember_as_intact()
    return store


def _repeated_message(path: Path, source: EventSource, batch: Batch) -> str:
    """Return that a batch was added before. "Added", not "appended": the store may have been made from it."""
    earlier_name = "" if batch["name"] == source.name else f" from '{batch['name']}'"
    return (
        f"{source.name}: the same {batch['events']:,} events were added to {path} before{earlier_name}. Nothing was "
        "appended. To append them again, use --allow-duplicates."
    )


def _undo(path: Path) -> None:
    """Remove what a failed append wrote. If ``store.json`` was replaced already, its files stay."""
    with suppress(DataError, OSError):
        open_store(path).remove_leftovers()


def _check_own_files(store: Store) -> None:
    """Raise DataError if a file of the store has a second name, under which an append would change it too."""
    for array in store.arrays.values():
        path = store.path / array.file
        if path.stat().st_nlink > 1:
            raise DataError(
                f"{path} is a hard link: another folder holds the same file, and an append would change it there too. "
                f"{_UNCHANGED}Make a real copy of the store, without hard links."
            )


# -------------------- do the events fit


def _check_source(store: Store, source: EventSource) -> None:
    if source.axis.kind != store.time:
        kind = "dates" if store.time == "date" else "numbers"
        raise DataError(f"The times of {store.path} are {kind}; those of {source.name} are not.")
    if source.shared != store.shared:
        n_spaces, ids = ("one id space", "shared") if store.shared else ("two id spaces", "separate")
        raise DataError(f"{store.path} has {n_spaces}: read the new events with --ids {ids}.")
    old, new = store.columns.get("features"), source.columns.get("features")
    if isinstance(old, list) and isinstance(new, list) and [k.lower() for k in old] != [k.lower() for k in new]:
        raise DataError(
            f"The features of the new events are {', '.join(new)}; those of {store.path} are {', '.join(old)}. Rename "
            "the columns of the new file (any order) and omit --features, or rebuild the store."
        )


def _check_feature_width(store: Store, stage: StagedEvents) -> None:
    old = store.arrays["edge_x"].width if "edge_x" in store.arrays else 0
    new = stage.columns["edge_x"].width if "edge_x" in stage.columns else 0
    if old != new:
        raise DataError(
            f"The new events have {new} features; those of {store.path} have {old}. Name the feature columns with "
            "--features."
        )


def _has_late_events(store: Store, stage: StagedEvents, late: LatePolicy) -> bool:
    """Whether an event is older than the store's last. DataError if the policy refuses it."""
    old, new = store.array("t"), stage.arrays()["t"]
    first, last = (
        min(new[part].min() for part in iter_slices(len(new))),
        max(new[part].max() for part in iter_slices(len(new))),
    )
    low, high = min(first, old[0]), max(old[-1], last)
    check_time_span(*((low, high) if low.dtype == high.dtype else (np.float64(low), np.float64(high))))
    if first >= old[-1]:
        return False
    if late == "refuse":
        axis = TimeAxis("date" if store.time == "date" else "number")
        raise DataError(
            f"The new events begin at {axis.format_one(first)}, before the last event of {store.path} "
            f"({axis.format_one(old[-1])}). Remove the late events, or use --late merge, which rebuilds the store."
        )
    return True


def _changes_events(store: Store, stage: StagedEvents) -> bool:
    """Whether the store's own events change: text among integer ids, or fractions among whole times.

    DataError if whole times cannot be represented exactly as floats.
    """
    if "name" in store.arrays and any(vocabulary.is_text for vocabulary in stage.vocabularies):
        return True
    old, new = store.array("t"), stage.arrays()["t"]
    if old.dtype.kind == new.dtype.kind:
        return False
    is_whole = old.dtype.kind == "i"
    if is_whole and all(are_whole(new[part]) for part in iter_slices(len(new))):
        return False
    check_exact_floats(old if is_whole else new)
    return bool(is_whole)


def _needs_wider_types(store: Store, stage: StagedEvents) -> bool:
    """Whether the arrays cannot hold the rest: a missing label among integers, or positions beyond int32."""
    label = store.arrays.get("label")
    if label is not None and np.dtype(label.dtype).kind == "i":
        new = stage.arrays().get("label")
        if new is None or new.dtype.kind == "f":
            return True
    max_nodes = store.n_nodes + sum(len(vocabulary) for vocabulary in stage.vocabularies)
    return np.dtype(store.arrays["tie_start"].dtype) != index_dtype(max_nodes, store.n_events + stage.n_rows)


# -------------------- write


def _append(store: Store, stage: StagedEvents, work: Path, memory: int, callbacks: Callback) -> Store:
    """Write the staged events, none of them late. Returns the longer store; ``store.json`` is not yet written."""
    ids = store.ids()
    names = [pc.cast(k, ids.names.type) for k in stage.names()]
    sides = ("src",) if store.shared else ("src", "dst")
    known = [ids.encode(k, side) for k, side in zip(names, sides, strict=True)]  # type: ignore[arg-type]
    numbering = NodeNumbering.create([len(k) for k in names], known, store.n_nodes)
    arrays = store.arrays | _append_events(store, stage, numbering, memory // MEMORY_SHARE, callbacks)
    new_ids = numbering.ids(names, shared=store.shared, base=store.n_nodes)
    arrays |= _append_nodes(store, new_ids)
    longer = replace(store, arrays=arrays, generations=(*store.generations, {"nodes": numbering.n_nodes}))
    callbacks.on_stage_start("indexing", 2 * stage.n_rows)
    index = write_index(
        work,
        longer.array("src"),
        longer.array("dst"),
        longer.array("tie_start"),
        numbering.n_nodes,
        memory=memory // MEMORY_SHARE,
        prior=PriorIndex({name: store.array(name) for name in INDEX_ARRAYS}, store.n_events),
        callbacks=callbacks,
    )
    all_ids = longer.ids_without_lookup()
    longer.arrays.update(index_arrays(work, index) | write_lookup(all_ids, work))
    callbacks.on_stage_start("fingerprints", None)
    note = append_note(stage.n_rows, len(new_ids))
    return replace(
        longer,
        longest=index.longest,
        generations=(*store.generations, longer.make_generation(all_ids)),
        notes=(*store.notes, *stage.source.skip_notes, note),
    )


def _append_events(
    store: Store, stage: StagedEvents, numbering: NodeNumbering, memory: int, callbacks: Callback
) -> dict[str, StoredArray]:
    t, ties = store.array("t"), store.array("tie_start")
    times = TimeColumns(stage.source.axis, t[0], t[-1], store.n_events, int(ties[-1]))
    out = {name: _writer_at_end(store, name) for name in EVENTS if name in store.arrays}
    with close_on_error(out):
        for rows in sorted_chunks(stage, stage.folder / "ranges", memory, callbacks):
            src, dst = numbering.number(rows["src"], rows["dst"], store.n_nodes)
            times_of_rows = rows["t"].astype(t.dtype)
            no_label = {} if "label" in rows else {"label": np.full(len(src), np.nan)}
            derived = times.derive(times_of_rows)
            append_rows(out, rows | no_label | {"src": src, "dst": dst, "t": times_of_rows} | derived)
            callbacks.on_step(len(src))
        return {name: store.arrays[name].with_part(writer.close()) for name, writer in out.items()}


def _append_nodes(store: Store, new_ids: NodeIds) -> dict[str, StoredArray]:
    """Append the ids of new nodes, and zeros as their features."""
    arrays = id_arrays(new_ids)
    if "name_at" in arrays:
        n_bytes = store.arrays["name_bytes"].rows
        if n_bytes + len(arrays["name_bytes"]) > MAX_TEXT_BYTES:
            raise DataError("The text of all distinct ids exceeds 2 GB. Shorten the ids, or use integers.")
        arrays["name_at"] = arrays["name_at"][1:] + n_bytes
    if "node_x" in store.arrays:
        arrays["node_x"] = np.zeros((len(new_ids), store.arrays["node_x"].width), np.float32)
    out = {name: _writer_at_end(store, name) for name in arrays}
    with close_on_error(out):
        append_rows(out, arrays)
        return {name: store.arrays[name].with_part(writer.close()) for name, writer in out.items()}


def _writer_at_end(store: Store, name: str) -> ArrayWriter:
    array = store.arrays[name]
    return ArrayWriter(store.path / array.file, array.dtype, array.width, array.rows)
