"""Answers of a run as tables: scores, recommendations, embeddings. `cli.writers` prints or writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.events.arrays import is_text

if TYPE_CHECKING:
    from cordgt.inference.run import Run

MAX_NOTES = 20  # printed with an answer


def score_table(run: Run, src: Any, dst: Any, times: np.ndarray | None, callbacks: Callback) -> pa.Table:
    """Return one row per pair, in the order of the pairs: ``src, dst, time, score, note``."""
    score, note = run.predictor.score(src, dst, times, callbacks)
    t = np.full(len(score), run.stream.t[-1]) if times is None else times
    return pa.table(
        {"src": src, "dst": dst, "time": run.stream.time.format(t), "score": score, "note": pa.array(note.tolist())}
    )


def recommendation_table(
    run: Run,
    sources: list[Any],
    at: Any,
    top: int,
    callbacks: Callback,
    *,
    stage_counts: list[dict[str, int]] | None = None,
    budget: int | None = None,
    exhaustive: bool = False,
    **filters: Any,
) -> pa.Table:
    """Return the destinations of each source, best first: ``src, rank, node, score, met, note, src_note``.

    ``filters`` are those of `Predictor.make_filter`. What each stage saw is appended to ``stage_counts``, one item per
    row.
    """
    allowed = run.predictor.make_filter(**filters)
    rows: list[tuple[Any, ...]] = []
    notes = []
    for source in sources:
        result = run.predictor.answer(source, at, top, allowed=allowed, budget=budget, exhaustive=exhaustive)
        best, src_note = result.recommendations, result.note
        if stage_counts is not None:
            stage_counts += [result.candidates.to_dict()] * len(best)
        if src_note:
            notes.append(f"{source}: {src_note}{_destination_hint(run, source)}")
        if not best:
            notes.append(f"{source}: no partner to recommend")
        rows += [(source, i + 1, r.node, r.score, r.met, r.note, src_note) for i, r in enumerate(best)]
        callbacks.on_step(1)
    for note in notes[:MAX_NOTES]:
        console.print_note(note)
    if len(notes) > MAX_NOTES:
        console.print_note(f"… and {len(notes) - MAX_NOTES:,} more like these")
    id_type = run.stream.ids.names.type
    columns = {
        "src": _column_type(sources, id_type),
        "rank": pa.int64(),
        "node": id_type,
        "score": pa.float64(),
        "met": pa.int64(),
        "note": pa.string(),
        "src_note": pa.string(),
    }
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return pa.table(
        {name: pa.array(_cast(x, dtype), dtype) for (name, dtype), x in zip(columns.items(), values, strict=True)}
    )


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
    return " as a source; it is a destination, and only sources get recommendations"


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
