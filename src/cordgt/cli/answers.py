"""Read the questions of a command line, and print the remarks on the answers. `inference.answers` has the tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.events.times import epoch_date_text
from cordgt.inference.answers import cast_ids, destination_hint, id_column_type
from cordgt.inference.predictor import NOTE_NO_HISTORY

if TYPE_CHECKING:
    from cordgt.inference.run import Run

MAX_NOTES = 20  # printed with an answer


def print_remarks(remarks: list[str]) -> None:
    """Print the first remarks as notes, and the number of the others."""
    for remark in remarks[:MAX_NOTES]:
        console.print_note(remark)
    if len(remarks) > MAX_NOTES:
        console.print_note(f"… and {len(remarks) - MAX_NOTES:,} more like these")


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
            hint = destination_hint(run.predictor, answer.node) or ": the answer is that of any new source"
            notes.append(f"{answer.node}: {NOTE_NO_HISTORY}{hint}")
        row = {"src": answer.node, "time": answer.time, "median": answer.median, "low": answer.low, "high": answer.high}
        if stream.epoch_unit:
            row |= {f"{name}_date": epoch_date_text(row[name], stream.epoch_unit) for name in ("median", "low", "high")}
        partners = [{k: getattr(r, k) for k in ("node", "score", "met", "note")} for r in answer.partners]
        row |= {"wait": answer.wait if math.isfinite(answer.wait) else None, "partners": partners, "note": answer.note}
        rows.append(row)
    print_remarks(notes)
    types = {"src": id_column_type(sources, stream.ids.names.type), "wait": pa.float64()}
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
            columns[name] = pa.array(cast_ids(values, dtype) if name == "src" else values, dtype)
    return pa.table(columns), rows


def active_table(run: Run, horizon: float, at: Any, top: int, role: Any) -> pa.Table:
    """Return the nodes most likely to act, best first: ``rank, node, probability, events, last, note``."""
    found = run.forecasts.active(horizon, at, top, role=role)
    names = ("node", "probability", "events", "last", "note")
    ranks = {"rank": list(range(1, len(found) + 1))}
    return pa.table(ranks | {name: [getattr(x, name) for x in found] for name in names})


def parse_ids(run: Run, texts: list[str]) -> pa.Array:
    """Return ids from the command line: integers if the run's ids and all of these are, text otherwise."""
    dtype = id_column_type(texts, run.stream.ids.names.type)
    return pa.array(cast_ids(texts, dtype), dtype)
