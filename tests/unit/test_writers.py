"""Tables that the commands write."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest

from cordgt.cli.writers import write_table


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "\r\n", "\uff1d"])
def test_text_that_starts_like_a_formula_is_escaped(tmp_path: Path, start: str) -> None:
    nodes = [f"{start}1+1", f"a{start}1", "b\n=1"]
    path = tmp_path / "scores.csv"
    write_table(pa.table({"node": nodes}), path, None, escape_formulas=True)
    with path.open(newline="", encoding="utf-8") as file:
        assert [row["node"] for row in csv.DictReader(file)] == [f"'{nodes[0]}", *nodes[1:]]
    write_table(pa.table({"node": nodes}), path, None)
    with path.open(newline="", encoding="utf-8") as file:
        assert [row["node"] for row in csv.DictReader(file)] == nodes
