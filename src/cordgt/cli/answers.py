"""Answers of a run as tables: scores, recommendations, embeddings. `cli.writers` prints or writes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.events.arrays import is_text
from cordgt.events.times import epoch_date_text
from cordgt.inference.predictor import NOTE_NO_HISTORY

if TYPE_CHECKING:
    from cordgt.inference.run import Run

MAX_NOTES = 20  # printed with an answer


def score_table(
    run: Run, src: Any, dst: Any, times: np.ndarray | None, callbacks: Callback, horizon: float | None = None
) -> pa.Table:
    """Return one row per pair, in the order of the pairs: ``src, dst, time, score, [probability,] note``."""
    columns = {}
    if horizon is None:
        score, note = run.predictor.score(src, dst, times, callbacks)
    else:
        score, columns["probability"], note = run.forecasts.score(src, dst, horizon, times, callbacks)
    t = np.full(len(score), run.stream.t[-1]) if times is None else times
    shown = {"src": src, "dst": dst, "time": run.stream.time.format(t), "score": score}
    return pa.table(shown | columns | {"note": pa.array(note.tolist())})


def recommendation_table(
    run: Run,
    nodes: list[Any],
    at: Any,
    top: int,
    callbacks: Callback,
    *,
    new_only: bool = False,
    candidates: list[Any] | None = None,
    horizon: float | None = None,
    to_destinations: bool = False,
) -> pa.Table:
    """Return the destinations of each source, best first.

    The columns are ``src, rank, node, score, [probability,] met, note, src_note``. With ``to_destinations`` the nodes
    are destinations, and the answers are sources: ``dst, rank, node, score, rate, [probability,] met, note, dst_note``.
    """
    side = "dst" if to_destinations else "src"
    id_type = run.stream.ids.names.type
    columns = {
        side: _column_type(nodes, id_type),
        "rank": pa.int64(),
        "node": id_type,
        "score": pa.float64(),
        "rate": pa.float64(),
        "probability": pa.float64(),
        "met": pa.int64(),
        "note": pa.string(),
        f"{side}_note": pa.string(),
    }
    unused = {"rate"} if not to_destinations else set()
    unused |= {"probability"} if horizon is None else set()
    rows: list[dict[str, Any]] = []
    notes = []
    answers = run.recommendations(
        nodes,
        at,
        top,
        horizon,
        is_source=not to_destinations,
        callbacks=callbacks,
        new_only=new_only,
        candidates=candidates,
    )
    for node, (best, node_note) in zip(nodes, answers, strict=True):
        if node_note:
            hint = "" if to_destinations else _destination_hint(run, node)
            notes.append(f"{node}: {node_note}{hint and f'{hint}, and only sources get recommendations'}")
        if not best:
            notes.append(f"{node}: no {'source' if to_destinations else 'partner'} to recommend")
        rows += [{side: node, "rank": i + 1, f"{side}_note": node_note} | vars(r) for i, r in enumerate(best)]
    print_notes(notes)
    kept = {name: dtype for name, dtype in columns.items() if name not in unused}
    return pa.table({name: pa.array(_cast([row[name] for row in rows], t), t) for name, t in kept.items()})


def next_event_table(
    run: Run, sources: list[Any], at: Any, top: int, callbacks: Callback
) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Return one row per source: ``src, time, median, low, high, wait, partner_1, …, note``; and the same for JSON.

    Numbers that count from 1970 have dates too: ``median_date, low_date, high_date``. In JSON, ``partners`` is a list.
    """
    stream = run.stream
    time_type = pa.string() if stream.time.kind == "date" else pa.from_numpy_dtype(stream.t.dtype)
    rows = []
    notes = []
    for answer in run.forecasts.next_events(sources, at, top, callbacks):
        if NOTE_NO_HISTORY in answer.note:
            hint = _destination_hint(run, answer.node) or ": the answer is that of any new source"
            notes.append(f"{answer.node}: {NOTE_NO_HISTORY}{hint}")
        row = {"src": answer.node, "time": answer.time, "median": answer.median, "low": answer.low, "high": answer.high}
        if stream.epoch_unit:
            row |= {f"{name}_date": epoch_date_text(row[name], stream.epoch_unit) for name in ("median", "low", "high")}
        partners = [{k: getattr(r, k) for k in ("node", "score", "met", "note")} for r in answer.partners]
        row |= {"wait": answer.wait if math.isfinite(answer.wait) else None, "partners": partners, "note": answer.note}
        rows.append(row)
    print_notes(notes)
    types = {"src": _column_type(sources, stream.ids.names.type), "wait": pa.float64()}
    types |= dict.fromkeys(("time", "median", "low", "high"), time_type)
    columns: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name == "partners":
            for k in range(max(map(len, values))):
                ids = [x[k]["node"] if len(x) > k else None for x in values]
                columns[f"partner_{k + 1}"] = pa.array(ids, stream.ids.names.type)
        else:
            dtype = types.get(name, pa.string())
            columns[name] = pa.array(_cast(values, dtype) if name == "src" else values, dtype)
    return pa.table(columns), rows


def active_table(run: Run, horizon: float, at: Any, top: int, role: Any) -> pa.Table:
    """Return the nodes most likely to act, best first: ``rank, node, probability, events, last, note``."""
    found = run.forecasts.active(horizon, at, top, role=role)
    names = ("node", "probability", "events", "last", "note")
    ranks = {"rank": list(range(1, len(found) + 1))}
    return pa.table(ranks | {name: [getattr(x, name) for x in found] for name in names})


def print_notes(notes: list[str]) -> None:
    """Print notes on single nodes, or the first of them."""
    for note in notes[:MAX_NOTES]:
        console.print_note(note)
    if len(notes) > MAX_NOTES:
        console.print_note(f"… and {len(notes) - MAX_NOTES:,} more like these")


def embedding_table(run: Run, nodes: Any, sides: Any, at: Any) -> pa.Table:
    """Return one row per node: ``node, [side,] time, embedding, note``. An unknown node has the given side, or none."""
    stream = run.stream
    if nodes is None:
        indices, names = np.arange(stream.n_nodes), stream.ids.names
    else:
        indices, names = run.predictor.node_indices_of_either_side(nodes, sides), nodes
    vectors = run.predictor.embed(indices, at)
    t = stream.t[-1] if at is None else at
    cut = stream.n_events if at is None else stream.cut_at(at)
    columns = {"node": names}
    if stream.ids.side is not None:
        columns["side"] = (
            _sides(stream.ids.side, indices) if sides is None else pa.array([str(k).strip().lower() for k in sides])
        )
    columns["time"] = stream.time.format(np.full(len(indices), t))
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    columns["note"] = pa.array(run.predictor.notes(indices, np.full(len(indices), cut)).tolist())
    return pa.table(columns)


def _destination_hint(run: Run, source: Any) -> str:
    """Return a hint for an unknown source whose id is that of a destination; otherwise empty."""
    ids = run.stream.ids
    if ids.shared or ids.encode([source], "src")[0] >= 0 or ids.encode([source], "dst")[0] < 0:
        return ""
    return " as a source; it is a destination"


def _sides(side: np.ndarray, nodes: np.ndarray) -> pa.Array:
    is_known = nodes < len(side)
    is_dst = side[np.where(is_known, nodes, 0)] == 1
    return pa.array(np.where(is_dst, "dst", "src").tolist(), mask=~is_known)


def _column_type(ids: list[Any], id_type: Any) -> Any:
    """Return ``id_type`` if all of ``ids`` can have it, text otherwise."""
    return id_type if is_text(id_type) or all(_is_int64(i) for i in ids) else pa.string()


def parse_ids(run: Run, texts: list[str]) -> pa.Array:
    """Return ids from the command line: integers if the run's ids and all of these are, text otherwise."""
    dtype = _column_type(texts, run.stream.ids.names.type)
    return pa.array(_cast(texts, dtype), dtype)


def _is_int64(value: Any) -> bool:
    try:
        return str(int(value)) == str(value) and abs(int(value)) < 2**63
    except ValueError:
        return False


def _cast(values: Any, dtype: Any) -> list[Any]:
    if is_text(dtype):
        return [str(v) for v in values]
    return [int(v) for v in values] if pa.types.is_integer(dtype) else list(values)
