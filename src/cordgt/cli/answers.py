"""Answers as tables: asked of a run, then written to a file, printed for a person, or given as JSON."""

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

from cordgt.arrays import is_text
from cordgt.cli import console
from cordgt.errors import DataError
from cordgt.files import write_atomically, write_text

if TYPE_CHECKING:
    from cordgt.api import Run

SHOWN_ROWS = 20  # of a long answer on a terminal
ENDINGS = (".csv", ".tsv", ".parquet", ".json")


# -------------------- asking


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
    """``src, rank, node, score, met, note, src_note``: the best partners of each source, best first."""
    rows: list[tuple[Any, ...]] = []
    unseen = []
    for source in sources:
        found, about = run.oracle.recommend(source, at, top, new_only=new_only)
        if about:
            unseen.append(f"{source}: {about}{_other_side(run, source)}")
        if not found:
            unseen.append(f"{source}: no partner to recommend")
        rows += [(source, i + 1, r.node, r.score, r.met, r.note, about) for i, r in enumerate(found)]
        progress(1)
    _tell(unseen)
    kind = run.stream.ids.names.type
    columns = {
        "src": _kind_of(sources, kind),
        "rank": pa.int64(),
        "node": kind,
        "score": pa.float64(),
        "met": pa.int64(),
        "note": pa.string(),
        "src_note": pa.string(),
    }
    cells = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return pa.table(
        {name: pa.array(_cast(cell, own), own) for (name, own), cell in zip(columns.items(), cells, strict=True)}
    )


def embeddings(run: Run, nodes: Any, sides: Any, at: Any) -> pa.Table:
    """``node, [side,] time, embedding, note``: a row a node. A newcomer has no side unless the question says it."""
    stream = run.stream
    if nodes is None:
        found, names = np.arange(stream.n_nodes), stream.ids.names
    else:
        found, names = run.oracle.nodes_of_either_side(nodes, sides), nodes
    vectors = run.oracle.embed(found, at)
    moment = stream.t[-1] if at is None else at
    cut = stream.n_events if at is None else stream.cut_at(at)
    columns = {"node": names}
    if stream.ids.side is not None:
        columns["side"] = (
            _sides(stream.ids.side, found) if sides is None else pa.array([str(k).strip().lower() for k in sides])
        )
    columns["time"] = stream.time.format(np.full(len(found), moment))
    columns["embedding"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    columns["note"] = pa.array(run.oracle.notes(found, np.full(len(found), cut)).tolist())
    return pa.table(columns)


def _other_side(run: Run, source: Any) -> str:
    """What to say of a source that is none, but the id of a destination."""
    ids = run.stream.ids
    if ids.shared or ids.find([source], "src")[0] >= 0 or ids.find([source], "dst")[0] < 0:
        return ""
    return " as a source; it is a destination, and partners are found for sources"


def _sides(side: np.ndarray, nodes: np.ndarray) -> pa.Array:
    known = nodes < len(side)
    is_dst = side[np.where(known, nodes, 0)] == 1
    return pa.array(np.where(is_dst, "dst", "src").tolist(), mask=~known)


def _tell(texts: list[str]) -> None:
    for text in texts[:SHOWN_ROWS]:
        console.note(text)
    if len(texts) > SHOWN_ROWS:
        console.note(f"… and {len(texts) - SHOWN_ROWS:,} more like these")


def _kind_of(sources: list[Any], kind: Any) -> Any:
    """The type of the column of sources: that of the ids where all of them can be written so, text otherwise."""
    return kind if is_text(kind) or all(_is_int64(source) for source in sources) else pa.string()


def written_ids(run: Run, given: list[str]) -> pa.Array:
    """Ids from the command line, as the run's own are: numbers where they can be."""
    kind = _kind_of(given, run.stream.ids.names.type)
    return pa.array(_cast(given, kind), kind)


def _is_int64(value: Any) -> bool:
    try:
        return str(int(value)) == str(value) and abs(int(value)) < 2**63
    except ValueError:
        return False


def _cast(values: Any, kind: Any) -> list[Any]:
    if is_text(kind):
        return [str(v) for v in values]
    return [int(v) for v in values] if pa.types.is_integer(kind) else list(values)


# -------------------- giving


def write(table: pa.Table, output: Path | None, json_: str | None, shown: list[str] | None = None) -> None:
    """An answer into ``output`` by its ending, as JSON where asked for, else as a table for people (CSV in a pipe)."""
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
    console.out.print(_table(table.select(shown or table.column_names).slice(0, SHOWN_ROWS).to_pylist()))
    if table.num_rows > SHOWN_ROWS:
        console.note(f"… and {table.num_rows - SHOWN_ROWS:,} more rows; --output FILE writes them all")


def show(rows: list[dict[str, Any]], json_: str | None) -> None:
    """A short list, as a table or as JSON."""
    if json_ is not None:
        write_json(rows, json_)
    if json_ != "-":
        console.out.print(_table(rows, _count))


def show_facts(facts: dict[str, Any], json_: str | None) -> None:
    """Names and values, a line each, or JSON."""
    if json_ is not None:
        write_json(facts, json_)
    if json_ != "-":
        table = Table(show_header=False, box=None)
        for name, value in facts.items():
            lines = value if isinstance(value, list | tuple) else [value]
            written = str if name in ("first_time", "last_time") else _count
            table.add_row(name.replace("_", " "), Text("\n".join(written(v) for v in lines)))
        console.out.print(table)


def write_json(value: Any, where: str) -> None:
    """Indented JSON, to standard output for ``-``, otherwise into a file, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        write_text(where, text)


def check_output(output: str | Path | None, endings: tuple[str, ...] = ENDINGS) -> None:
    """DataError before the work is done where its answer could not be written."""
    if output is None:
        return
    path = Path(output)
    if endings and path.suffix.lower() not in endings:
        raise DataError(f"{path} ends in '{path.suffix}'; {', '.join(endings[:-1])} or {endings[-1]} was expected.")
    if path.is_dir():
        raise DataError(f"{path} cannot be written: it is a folder; a file was expected.")
    if not path.parent.is_dir():
        raise DataError(f"{path} cannot be written: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise DataError(f"{path} cannot be written: {path.parent} is not writable.")


def check_json(json_: str | None) -> None:
    """`check_output` for what ``--json`` names."""
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
    """Quotes only where some value needs them: a separator, a quote, a line break, the mark of a comment."""
    special = f'^[#%]|^\\s|\\s$|["\\n\\r{delimiter}]'
    texts = [table[name] for name in table.column_names if is_text(table[name].type)]
    needed = any(pc.any(pc.match_substring_regex(column, special)).as_py() for column in texts)
    style = "needed" if needed else "none"
    pacsv.write_csv(table, where, pacsv.WriteOptions(delimiter=delimiter, quoting_style=style, quoting_header="none"))


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


def _table(rows: list[dict[str, Any]], written: Callable[[Any], str] | None = None) -> Table:
    cell = {"time": str}
    table = Table()
    for name in rows[0] if rows else ["nothing found"]:
        numeric = all(isinstance(r[name], int | float | None) for r in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell.get(name, written or _text)(v)) for name, v in row.items()))
    return table


def _text(value: Any) -> str:
    """A cell; whole numbers may be ids or times, and stay as they are."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.4f}"
    return str(value)


def _count(value: Any) -> str:
    """A cell whose whole numbers are counts: 672,447."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _text(value)
