"""Answers as tables: asked of a run, then written to a file, printed for a person, or given as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from rich.table import Table

from cordgt import console
from cordgt.api import Run
from cordgt.errors import DataError

SHOWN_ROWS = 20  # of a long answer on a terminal


def scores(run: Run, src: Any, dst: Any, times: np.ndarray | None, progress: Callable[[int], None]) -> pa.Table:
    """``src, dst, time, score, note``: a row a question, in its order."""
    score, note = run.oracle.score(src, dst, times, progress)
    when = np.full(len(score), run.stream.t[-1]) if times is None else times
    return pa.table(
        {"src": src, "dst": dst, "time": run.stream.time.format(when), "score": score, "note": pa.array(note.tolist())}
    )


def recommendations(
    run: Run, sources: list[Any], at: Any, top: int, new_only: bool, progress: Callable[[int], None]
) -> pa.Table:
    """``src, rank, node, score, met, note``: the best partners of each source, best first."""
    rows: list[dict[str, Any]] = []
    unseen = []
    for source in sources:
        found, about = run.oracle.recommend(source, at, top, new_only=new_only)
        if about:
            unseen.append(f"{source}: {about}")
        rows += [
            {"src": source, "rank": i + 1, "node": r.node, "score": r.score, "met": r.met, "note": r.note}
            for i, r in enumerate(found)
        ]
        progress(1)
    for text in unseen[:SHOWN_ROWS]:
        console.note(text)
    kind = run.stream.ids.names.type
    columns = {
        "src": pa.string(),
        "rank": pa.int64(),
        "node": kind,
        "score": pa.float64(),
        "met": pa.int64(),
        "note": pa.string(),
    }
    return pa.table({name: pa.array([_as(r[name], t) for r in rows], t) for name, t in columns.items()})


def embeddings(run: Run, nodes: Any, at: Any) -> pa.Table:
    """``node, [side,] time, embedding, note``: a row a node."""
    stream = run.stream
    if nodes is None:
        ids, names = np.arange(stream.n_nodes), stream.ids.names
        side = None if stream.ids.side is None else np.where(stream.ids.side == 0, "src", "dst")
    else:
        ids, names = run.oracle.nodes(nodes, "src"), nodes
        side = None if stream.ids.side is None else np.full(len(ids), "src")
    vectors = run.oracle.embed(ids, at)
    moment = stream.t[-1] if at is None else at
    cut = stream.n_events if at is None else stream.cut_at(at)
    columns = {"node": names}
    if side is not None:
        columns["side"] = pa.array(side.tolist())
    columns["time"] = stream.time.format(np.full(len(ids), moment))
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    columns["note"] = pa.array(run.oracle.notes(ids, np.full(len(ids), cut)).tolist())
    return pa.table(columns)


def write(table: pa.Table, output: Path | None, json_: str | None, shown: list[str] | None = None) -> None:
    """An answer into ``output`` by its ending, as JSON where asked for, or else as a table for people (CSV in a pipe)."""
    if output is not None:
        _write_file(table, output)
        console.note(f"{output}: {table.num_rows:,} rows written")
    if json_ is not None:
        write_json(table.to_pylist(), json_)
    if output is None and json_ is None:
        if console.is_piped():
            pacsv.write_csv(table, sys.stdout.buffer, pacsv.WriteOptions(quoting_style="needed"))
        else:
            rows = table.select(shown or table.column_names).slice(0, SHOWN_ROWS).to_pylist()
            console.out.print(_table(rows))
            if table.num_rows > SHOWN_ROWS:
                console.note(f"… and {table.num_rows - SHOWN_ROWS:,} more rows; --output FILE writes them all")


def show(rows: list[dict[str, Any]], json_: str | None) -> None:
    """A short list, as a table or as JSON."""
    if json_ is not None:
        write_json(rows, json_)
    if json_ != "-":
        console.out.print(_table(rows))


def show_facts(facts: dict[str, Any], json_: str | None) -> None:
    """Names and values, a line each, or JSON."""
    if json_ is not None:
        write_json(facts, json_)
    if json_ != "-":
        table = Table(show_header=False, box=None)
        for name, value in facts.items():
            lines = value if isinstance(value, list | tuple) else [value]
            table.add_row(name.replace("_", " "), "\n".join(_text(v) for v in lines))
        console.out.print(table)


def write_json(value: Any, where: str) -> None:
    """Indented JSON, to standard output for ``-``, otherwise into a file, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        _atomically(Path(where), lambda path: path.write_text(text, encoding="utf-8"))


def _write_file(table: pa.Table, output: Path) -> None:
    ending = output.suffix.lower()
    if ending == ".parquet":
        _atomically(output, lambda path: pq.write_table(table, path))
    elif ending == ".json":
        write_json(table.to_pylist(), str(output))
    elif ending in (".csv", ".tsv"):
        options = pacsv.WriteOptions(delimiter="\t" if ending == ".tsv" else ",", quoting_style="needed")
        _atomically(output, lambda path: pacsv.write_csv(_flat(table), path, options))
    else:
        raise DataError(f"{output} ends in '{output.suffix}'; .csv, .tsv, .parquet or .json was expected.")


def check_output(output: Path | None) -> None:
    """DataError before the work is done where its answer could not be written."""
    if output is None:
        return
    if output.suffix.lower() not in (".csv", ".tsv", ".parquet", ".json"):
        raise DataError(f"{output} ends in '{output.suffix}'; .csv, .tsv, .parquet or .json was expected.")
    if not output.parent.is_dir():
        raise DataError(f"{output} cannot be written: there is no folder {output.parent}.")


def _flat(table: pa.Table) -> pa.Table:
    """Lists of a fixed width as columns of their own, for formats that know only flat columns."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            rows = column.flatten().to_numpy().reshape(-1, column.type.list_size)
            columns |= {f"{name}_{i}": rows[:, i] for i in range(rows.shape[1])}
        else:
            columns[name] = column
    return pa.table(columns)


def _atomically(path: Path, write: Callable[[Path], Any]) -> None:
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        try:
            write(Path(temporary))
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from None


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    for name in rows[0] if rows else ["nothing found"]:
        numeric = all(isinstance(r[name], int | float | None) for r in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(v) for v in row.values()))
    return table


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _as(value: Any, kind: Any) -> Any:
    return str(value) if kind == pa.string() else value
