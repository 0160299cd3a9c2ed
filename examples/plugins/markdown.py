"""An exporter: answers and metrics as a Markdown table, for ``--output FILE.md``."""

from pathlib import Path
from typing import Any

import pyarrow as pa

import cordgt


def cell(value: Any) -> str:
    """Return the text of a value; a bar would begin a new cell."""
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value).replace("|", "\\|")


@cordgt.register_exporter("md")
def write_markdown(table: pa.Table, path: Path) -> None:
    """Write a table as Markdown."""
    lines = [table.column_names, ["---"] * table.num_columns]
    lines += [[cell(value) for value in row.values()] for row in table.to_pylist()]
    path.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines), encoding="utf-8")
