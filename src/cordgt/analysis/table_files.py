"""Arrow tables as files: CSV, TSV, Parquet and JSON, chosen by the ending."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from cordgt.events.arrays import is_text
from cordgt.files import write_atomically, write_text

TABLE_ENDINGS = (".csv", ".tsv", ".parquet", ".json")


def write_table_file(table: pa.Table, path: Path, *, escape_formulas: bool = False) -> None:
    """Write a table atomically, in the format of an ending of `TABLE_ENDINGS`."""
    ending = path.suffix.lower()
    if ending == ".parquet":
        write_atomically(path, lambda part: pq.write_table(table, part))
    elif ending == ".json":
        write_text(path, json.dumps(table.to_pylist(), indent=2, ensure_ascii=False, default=str) + "\n")
    else:
        delimiter = "\t" if ending == ".tsv" else ","
        write_atomically(path, lambda part: write_csv(_flat(table), part, delimiter, escape_formulas))


def write_csv(table: pa.Table, where: Any, delimiter: str, escape_formulas: bool) -> None:
    """Write CSV, quoted only if a value has a separator, quote, line break, outer space or leading comment mark."""
    if escape_formulas:
        table = _escape_formulas(table)
    special = f'^[#%]|^\\s|\\s$|["\\n\\r{delimiter}]'
    texts = [table[name] for name in table.column_names if is_text(table[name].type)]
    needs_quotes = any(pc.any(pc.match_substring_regex(column, special)).as_py() for column in texts)
    style = "needed" if needs_quotes else "none"
    pacsv.write_csv(table, where, pacsv.WriteOptions(delimiter=delimiter, quoting_style=style, quoting_header="none"))


def _escape_formulas(table: pa.Table) -> pa.Table:
    """Put ``'`` before each text that a spreadsheet would take for a formula."""
    columns = {
        name: pc.replace_substring_regex(table[name], r"^([=+\-@\t\r\n＝＋－＠])", r"'\1")
        if is_text(table[name].type)
        else table[name]
        for name in table.column_names
    }
    return pa.table(columns)


def _flat(table: pa.Table) -> pa.Table:
    """Replace each fixed-size list by one column per element, for formats without lists."""
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            rows = column.flatten().to_numpy().reshape(-1, column.type.list_size)
            columns |= {f"{name}_{i}": rows[:, i] for i in range(rows.shape[1])}
        else:
            columns[name] = column
    return pa.table(columns)
