"""Read the questions of a command line, and print the remarks on the answers. `inference.answers` has the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from cordgt.cli import console

if TYPE_CHECKING:
    from cordgt.inference.run import Run

MAX_NOTES = 20  # printed with an answer


def print_remarks(remarks: list[str]) -> None:
    """Print the first remarks as notes, and the number of the others."""
    for remark in remarks[:MAX_NOTES]:
        console.print_note(remark)
    if len(remarks) > MAX_NOTES:
        console.print_note(f"… and {len(remarks) - MAX_NOTES:,} more like these")


def parse_ids(run: Run, texts: list[str]) -> pa.Array:
    """Return ids from the command line: integers if the run's ids and all of these are, text otherwise."""
    from cordgt.inference.answers import cast_ids, id_column_type

    dtype = id_column_type(texts, run.stream.ids.names.type)
    return pa.array(cast_ids(texts, dtype), dtype)
