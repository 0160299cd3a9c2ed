"""Write tables and facts to a file, to the terminal, or as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.table import Table
from rich.text import Text

from cordgt.analysis.table_files import TABLE_ENDINGS, write_csv, write_table_file
from cordgt.cli import console
from cordgt.errors import DataError
from cordgt.files import write_text
from cordgt.tasks.run_metrics import RunMetrics

MAX_ROWS_SHOWN = 20  # on a terminal
ENDINGS = TABLE_ENDINGS


def write_table(
    table: pa.Table,
    output: Path | None,
    json_: str | None,
    shown: list[str] | None = None,
    *,
    escape_formulas: bool = False,
    json_rows: list[dict[str, Any]] | None = None,
) -> None:
    """Write an answer to ``output``, in the format of its ending, and as JSON to ``json_``.

    With neither, print it: a table of the columns ``shown`` on a terminal, CSV in a pipe. ``escape_formulas`` changes
    CSV and TSV only. ``json_rows`` replaces the rows in JSON.
    """
    if output is not None:
        write_file(table, output, escape_formulas=escape_formulas)
        console.print_note(f"{output}: {table.num_rows:,} {'row' if table.num_rows == 1 else 'rows'} written")
    write_json(table.to_pylist() if json_rows is None else json_rows, json_)
    if output is not None or json_ is not None:
        return
    if console.is_piped():
        write_csv(table, sys.stdout.buffer, ",", escape_formulas)
        return
    rows = table.select(shown or table.column_names).slice(0, MAX_ROWS_SHOWN).to_pylist()
    console.stdout.print(_table(rows, _text))
    if table.num_rows > MAX_ROWS_SHOWN:
        console.print_note(f"… and {table.num_rows - MAX_ROWS_SHOWN:,} more rows; --output FILE writes them all")


def print_rows(rows: list[dict[str, Any]], json_: str | None) -> None:
    """Print a short list as a table or as JSON."""
    write_json(rows, json_)
    if json_ != "-":
        console.stdout.print(_table(rows, _count))


def print_profile(profile: dict[str, Any]) -> None:
    """Print the result of `PhaseTimes.finish` to standard error. Phases below a thousandth share a row."""
    console.print_note(f"The job took {profile['seconds']:.1f} seconds, from the start of the process:")
    names = {
        "phase": "phase",
        "seconds": "seconds",
        "share": "%",
        "cpu_seconds": "CPU seconds",
        "compiling": "compiling",
    }
    rows = [{title: phase[key] for key, title in names.items()} for phase in profile["phases"]]
    shown = [row | {"%": 100 * row["%"]} for row in rows if row["%"] >= 0.001]
    rest = [row | {"%": 100 * row["%"]} for row in rows if row["%"] < 0.001]
    if rest:
        shown.append({"phase": "other"} | {k: sum(row[k] for row in rest) for k in rest[0] if k != "phase"})
    console.stderr.print(_table(shown, lambda value: value if isinstance(value, str) else f"{value:.2f}"))


def print_facts(facts: dict[str, Any], json_: str | None) -> None:
    """Print names and values, one per line, or as JSON."""
    write_json(facts, json_)
    if json_ != "-":
        table = Table(show_header=False, box=None)
        for name, value in facts.items():
            lines = value if isinstance(value, list | tuple) else [value]
            to_text = str if name in ("first_time", "last_time") else _count
            cell = Text("\n".join(console.escape_control(to_text(v)) for v in lines))
            table.add_row(Text(console.escape_control(name.replace("_", " "))), cell)
        console.stdout.print(table)


def print_metrics(title: str, metrics: RunMetrics, json_: str | None) -> None:
    """Print metrics as a sentence and a table or as JSON, with remarks on them."""
    from cordgt.analysis.recommendation_tables import recommendation_tables
    from cordgt.analysis.remarks import remarks, verdict

    write_json(metrics, json_)
    if json_ != "-":
        console.stdout.print(verdict(metrics), markup=False, soft_wrap=False)
        console.stdout.print(console.metrics_table(title, metrics))
        for table in recommendation_tables(metrics):
            console.stdout.print(table.title, markup=False)
            print_rows([dict(zip(table.columns, row, strict=True)) for row in table.rows], None)
    for text in remarks(metrics):
        console.print_note(text)


def write_json(value: Any, where: str | None) -> None:
    """Write indented JSON to a file, atomically; to standard output for ``-``; not at all for None."""
    if where is None:
        return
    text = console.escape_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        write_text(where, text)


def check_output(output: str | Path | None, endings: tuple[str, ...] = ENDINGS) -> None:
    """Raise DataError if ``output`` cannot be written. Call it before the work."""
    if output is None:
        return
    path = Path(output)
    if endings and path.suffix.lower() not in endings:
        from cordgt.analysis.exporters import exporter_endings

        endings = (*endings, *exporter_endings())
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


def write_file(table: pa.Table, output: Path, *, escape_formulas: bool = False) -> None:
    """Write a table atomically, in the format of the ending."""
    ending = output.suffix.lower()
    if ending not in ENDINGS:
        from cordgt.analysis.exporters import export

        export(table, output)
    elif ending == ".json":
        write_json(table.to_pylist(), str(output))
    else:
        write_table_file(table, output, escape_formulas=escape_formulas)


def _table(rows: list[dict[str, Any]], to_text: Callable[[Any], str]) -> Table:
    table = Table()
    for name in rows[0] if rows else ["nothing found"]:
        is_numeric = all(isinstance(r[name], int | float | None) for r in rows)
        table.add_column(Text(console.escape_control(name)), justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        cells = (str(v) if name == "time" else to_text(v) for name, v in row.items())
        table.add_row(*(Text(console.escape_control(cell)) for cell in cells))
    return table


def _text(value: Any) -> str:
    """Return the text of a cell. Whole numbers may be ids or times, so they get no separators."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.4f}"
    return str(value)


def _count(value: Any) -> str:
    """Return the text of a cell whose whole numbers are counts: 672,447."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _text(value)
