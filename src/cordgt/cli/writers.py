"""Answers of a run as tables, and writing them: to a file, to the terminal, or as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from rich.table import Table
from rich.text import Text

from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.errors import DataError
from cordgt.events.arrays import is_text
from cordgt.files import write_atomically, write_text

if TYPE_CHECKING:
    from cordgt.inference.run import Run

MAX_ROWS_SHOWN = 20  # on a terminal
ENDINGS = (".csv", ".tsv", ".parquet", ".json")


# -------------------- query a run


def scores(run: Run, src: Any, dst: Any, times: np.ndarray | None, callbacks: Callback) -> pa.Table:
    """``src, dst, time, score, note``: one row per pair, in the order of the pairs."""
    score, note = run.predictor.score(src, dst, times, callbacks)
    t = np.full(len(score), run.stream.t[-1]) if times is None else times
    return pa.table(
        {"src": src, "dst": dst, "time": run.stream.time.format(t), "score": score, "note": pa.array(note.tolist())}
    )


def recommendations(run: Run, sources: list[Any], at: Any, top: int, new_only: bool, callbacks: Callback) -> pa.Table:
    """``src, rank, node, score, met, note, src_note``: the destinations of each source, best first."""
    rows: list[tuple[Any, ...]] = []
    messages = []
    for source in sources:
        found, src_note = run.predictor.recommend(source, at, top, new_only=new_only)
        if src_note:
            messages.append(f"{source}: {src_note}{_destination_hint(run, source)}")
        if not found:
            messages.append(f"{source}: no partner to recommend")
        rows += [(source, i + 1, r.node, r.score, r.met, r.note, src_note) for i, r in enumerate(found)]
        callbacks.on_step(1)
    _print_notes(messages)
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
    cells = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return pa.table(
        {name: pa.array(_cast(cell, kind), kind) for (name, kind), cell in zip(columns.items(), cells, strict=True)}
    )


def embeddings(run: Run, nodes: Any, sides: Any, at: Any) -> pa.Table:
    """``node, [side,] time, embedding, note``: one row per node. An unknown node has the given side, or none."""
    stream = run.stream
    if nodes is None:
        found, names = np.arange(stream.n_nodes), stream.ids.names
    else:
        found, names = run.predictor.nodes_of_either_side(nodes, sides), nodes
    vectors = run.predictor.embed(found, at)
    t = stream.t[-1] if at is None else at
    cut = stream.n_events if at is None else stream.cut_at(at)
    columns = {"node": names}
    if stream.ids.side is not None:
        columns["side"] = (
            _sides(stream.ids.side, found) if sides is None else pa.array([str(k).strip().lower() for k in sides])
        )
    columns["time"] = stream.time.format(np.full(len(found), t))
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    columns["note"] = pa.array(run.predictor.notes(found, np.full(len(found), cut)).tolist())
    return pa.table(columns)


def _destination_hint(run: Run, source: Any) -> str:
    """A hint for an unknown source whose id is that of a destination; otherwise empty."""
    ids = run.stream.ids
    if ids.shared or ids.find([source], "src")[0] >= 0 or ids.find([source], "dst")[0] < 0:
        return ""
    return " as a source; it is a destination, and only sources get recommendations"


def _sides(side: np.ndarray, nodes: np.ndarray) -> pa.Array:
    known = nodes < len(side)
    is_dst = side[np.where(known, nodes, 0)] == 1
    return pa.array(np.where(is_dst, "dst", "src").tolist(), mask=~known)


def _print_notes(texts: list[str]) -> None:
    for text in texts[:MAX_ROWS_SHOWN]:
        console.note(text)
    if len(texts) > MAX_ROWS_SHOWN:
        console.note(f"… and {len(texts) - MAX_ROWS_SHOWN:,} more like these")


def _column_type(ids: list[Any], id_type: Any) -> Any:
    """``id_type`` if all of ``ids`` can have it, text otherwise."""
    return id_type if is_text(id_type) or all(_is_int64(one) for one in ids) else pa.string()


def parse_ids(run: Run, texts: list[str]) -> pa.Array:
    """Ids from the command line: integers if the run's ids and all of these are, text otherwise."""
    kind = _column_type(texts, run.stream.ids.names.type)
    return pa.array(_cast(texts, kind), kind)


def _is_int64(value: Any) -> bool:
    try:
        return str(int(value)) == str(value) and abs(int(value)) < 2**63
    except ValueError:
        return False


def _cast(values: Any, kind: Any) -> list[Any]:
    if is_text(kind):
        return [str(v) for v in values]
    return [int(v) for v in values] if pa.types.is_integer(kind) else list(values)


# -------------------- write an answer


def write(table: pa.Table, output: Path | None, json_: str | None, shown: list[str] | None = None) -> None:
    """Write an answer to ``output``, in the format of its ending, and as JSON to ``json_``.

    With neither, print it: a table of the columns ``shown`` on a terminal, CSV in a pipe.
    """
    if output is not None:
        _write_file(table, output)
        rows = "row" if table.num_rows == 1 else "rows"
        console.note(f"{output}: {table.num_rows:,} {rows} written")
    if json_ is not None:
        write_json(table.to_pylist(), json_)
    if output is not None or json_ is not None:
        return
    if console.is_piped():
        _write_csv(table, sys.stdout.buffer, ",")
        return
    console.out.print(_table(table.select(shown or table.column_names).slice(0, MAX_ROWS_SHOWN).to_pylist()))
    if table.num_rows > MAX_ROWS_SHOWN:
        console.note(f"… and {table.num_rows - MAX_ROWS_SHOWN:,} more rows; --output FILE writes them all")


def show(rows: list[dict[str, Any]], json_: str | None) -> None:
    """Print a short list as a table or as JSON."""
    if json_ is not None:
        write_json(rows, json_)
    if json_ != "-":
        console.out.print(_table(rows, _count))


def show_facts(facts: dict[str, Any], json_: str | None) -> None:
    """Print names and values, one per line, or as JSON."""
    if json_ is not None:
        write_json(facts, json_)
    if json_ != "-":
        table = Table(show_header=False, box=None)
        for name, value in facts.items():
            lines = value if isinstance(value, list | tuple) else [value]
            to_text = str if name in ("first_time", "last_time") else _count
            table.add_row(name.replace("_", " "), Text("\n".join(to_text(v) for v in lines)))
        console.out.print(table)


def write_json(value: Any, where: str) -> None:
    """Write indented JSON to a file, atomically, or to standard output for ``-``."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        write_text(where, text)


def check_output(output: str | Path | None, endings: tuple[str, ...] = ENDINGS) -> None:
    """DataError if ``output`` cannot be written. Call it before the work."""
    if output is None:
        return
    path = Path(output)
    if endings and path.suffix.lower() not in endings:
        raise DataError(f"{path} ends in '{path.suffix}'; it must end in {', '.join(endings[:-1])} or {endings[-1]}.")
    if path.is_dir():
        raise DataError(f"{path} cannot be written: it is a folder, not a file.")
    if not path.parent.is_dir():
        raise DataError(f"{path} cannot be written: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise DataError(f"{path} cannot be written: {path.parent} is not writable.")


def check_json(json_: str | None) -> None:
    """`check_output` for the file of ``--json``."""
    check_output(None if json_ == "-" else json_, endings=())


def _write_file(table: pa.Table, output: Path) -> None:
    ending = output.suffix.lower()
    if ending == ".parquet":
        write_atomically(output, lambda part: pq.write_table(table, part))
    elif ending == ".json":
        write_json(table.to_pylist(), str(output))
    else:
        write_atomically(output, lambda part: _write_csv(_flat(table), part, "\t" if ending == ".tsv" else ","))


def _write_csv(table: pa.Table, where: Any, delimiter: str) -> None:
    """Write CSV, quoted only if a value has a separator, quote, line break, outer space or leading comment mark."""
    special = f'^[#%]|^\\s|\\s$|["\\n\\r{delimiter}]'
    texts = [table[name] for name in table.column_names if is_text(table[name].type)]
    needed = any(pc.any(pc.match_substring_regex(column, special)).as_py() for column in texts)
    style = "needed" if needed else "none"
    pacsv.write_csv(table, where, pacsv.WriteOptions(delimiter=delimiter, quoting_style=style, quoting_header="none"))


def _flat(table: pa.Table) -> pa.Table:
    """Fixed-size lists as one column per element, for formats without lists."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            rows = column.flatten().to_numpy().reshape(-1, column.type.list_size)
            columns |= {f"{name}_{i}": rows[:, i] for i in range(rows.shape[1])}
        else:
            columns[name] = column
    return pa.table(columns)


def _table(rows: list[dict[str, Any]], to_text: Callable[[Any], str] | None = None) -> Table:
    by_column = {"time": str}
    table = Table()
    for name in rows[0] if rows else ["nothing found"]:
        numeric = all(isinstance(r[name], int | float | None) for r in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(by_column.get(name, to_text or _text)(v)) for name, v in row.items()))
    return table


def _text(value: Any) -> str:
    """A cell. Whole numbers may be ids or times, so they get no separators."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.4f}"
    return str(value)


def _count(value: Any) -> str:
    """A cell whose whole numbers are counts: 672,447."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _text(value)
