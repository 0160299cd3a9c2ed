"""Answers of a `Predictor` as Arrow tables, with the notes on their nodes: scores, recommendations, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.events.arrays import as_column, is_text, to_list_column
from cordgt.inference.forecasts import Forecasts
from cordgt.inference.predictor import Predictor, RecommendResult


def score_table(
    predictor: Predictor,
    src: Any,
    dst: Any,
    times: np.ndarray | None,
    callbacks: Callback = NO_CALLBACK,
    *,
    horizon: float | None = None,
    forecasts: Forecasts | None = None,
) -> pa.Table:
    """Return one row per pair, in the order of the pairs: ``src, dst, time, score, [probability,] note``.

    ``horizon``, with ``forecasts``, adds the probability of an event within that time.
    """
    stream, columns = predictor.stream, {}
    if horizon is None or forecasts is None:
        score, note = predictor.score(src, dst, times, callbacks)
    else:
        score, columns["probability"], note = forecasts.score(src, dst, horizon, times, callbacks)
    t = np.full(len(score), stream.t[-1]) if times is None else times
    shown = {"src": as_column(src), "dst": as_column(dst), "time": stream.time.format(t), "score": score}
    return pa.table(shown | columns | {"note": pa.array(note.tolist(), pa.string())})


def recommendation_table(
    predictor: Predictor,
    nodes: Sequence[Any],
    results: Sequence[RecommendResult],
    horizon: float | None = None,
    *,
    is_source: bool = True,
) -> tuple[pa.Table, list[str]]:
    """Return the results of `Run.recommendations` as rows, best first, and remarks on the nodes.

    The columns are ``src, rank, node, score, [probability,] met, note, src_note``. If the nodes are destinations, the
    answers are sources: ``dst, rank, node, score, rate, [probability,] met, note, dst_note``. A node without answers
    has no row.
    """
    side, id_type = "src" if is_source else "dst", predictor.stream.ids.names.type
    columns = {side: id_column_type(nodes, id_type), "rank": pa.int64(), "node": id_type, "score": pa.float64()}
    columns |= {} if is_source else {"rate": pa.float64()}
    columns |= {} if horizon is None else {"probability": pa.float64()}
    columns |= {"met": pa.int64(), "note": pa.string(), f"{side}_note": pa.string()}
    rows: list[dict[str, Any]] = []
    remarks = []
    for node, result in zip(nodes, results, strict=True):
        best, node_note = result.recommendations, result.note
        if node_note:
            hint = destination_hint(predictor, node) if is_source else ""
            remarks.append(f"{node}: {node_note}{hint and f'{hint}, and only sources get recommendations'}")
        if not best:
            remarks.append(f"{node}: no {'partner' if is_source else 'source'} to recommend")
        rows += [{side: node, "rank": i + 1, f"{side}_note": node_note} | vars(r) for i, r in enumerate(best)]
    arrays = {name: pa.array(cast_ids([row[name] for row in rows], dtype), dtype) for name, dtype in columns.items()}
    return pa.table(arrays), remarks


def embedding_table(predictor: Predictor, nodes: Any, sides: Any, at: Any) -> pa.Table:
    """Return one row per node: ``node, [side,] time, embedding, note``. An unknown node has the given side, or none."""
    stream = predictor.stream
    if nodes is None:
        indices, names = np.arange(stream.n_nodes), stream.ids.names
    else:
        indices, names = predictor.node_indices_of_either_side(nodes, sides), as_column(nodes)
    vectors = predictor.embed(indices, at)
    t = stream.t[-1] if at is None else at
    cut = stream.n_events if at is None else stream.cut_at(at)
    columns = {"node": names}
    if stream.ids.side is not None:
        columns["side"] = (
            _sides(stream.ids.side, indices) if sides is None else pa.array([str(k).strip().lower() for k in sides])
        )
    columns["time"] = stream.time.format(np.full(len(indices), t))
    columns["embedding"] = to_list_column(vectors)
    columns["note"] = pa.array(predictor.notes(indices, np.full(len(indices), cut)).tolist(), pa.string())
    return pa.table(columns)


def destination_hint(predictor: Predictor, source: Any) -> str:
    """Return a hint for an unknown source whose id is that of a destination; otherwise empty."""
    ids = predictor.stream.ids
    if ids.shared or ids.encode([source], "src")[0] >= 0 or ids.encode([source], "dst")[0] < 0:
        return ""
    return " as a source; it is a destination"


def _sides(side: np.ndarray, nodes: np.ndarray) -> pa.Array:
    is_known = nodes < len(side)
    is_dst = side[np.where(is_known, nodes, 0)] == 1
    return pa.array(np.where(is_dst, "dst", "src").tolist(), mask=~is_known)


def id_column_type(ids: Sequence[Any], id_type: Any) -> Any:
    """Return ``id_type`` if all of ``ids`` can have it, text otherwise."""
    return id_type if is_text(id_type) or all(_is_int64(i) for i in ids) else pa.string()


def cast_ids(values: Any, dtype: Any) -> list[Any]:
    """Return values as text or as integers if ``dtype`` is such a type; otherwise as they are."""
    if is_text(dtype):
        return [str(v) for v in values]
    return [int(v) for v in values] if pa.types.is_integer(dtype) else list(values)


def _is_int64(value: Any) -> bool:
    try:
        return str(int(value)) == str(value) and abs(int(value)) < 2**63
    except ValueError:
        return False
