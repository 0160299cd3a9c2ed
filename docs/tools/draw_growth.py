"""Draw ``docs/growth.png`` from the H200 table of ``docs/performance.md``, section "How cost grows"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cordgt.experiments.bench.scaling import plot_growth

DOCS = Path(__file__).parents[1]
UNITS = {"ms": 1e-3, "s": 1.0, "G": 1e9, "MB": 1.0}
CONTEXT_GFLOP = (16.0, 35.0, 80.0)  # in the text below the table


def number(cell: str) -> float:
    """Return the value of a cell such as ``12 ms``, in seconds, MB or roots per second."""
    value, unit = re.match(r"([\d.,]+) (\w+)", cell).groups()  # type: ignore[union-attr]
    return float(value.replace(",", "")) * UNITS[unit]


def read_table() -> dict[str, Any]:
    """Return the first table of the section as a result of ``cordgt bench growth``."""
    section = (DOCS / "performance.md").read_text(encoding="utf-8").split("## How cost grows")[1]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:6]
    lines = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    events = [
        {
            "events": int(cells[0].removesuffix(" events").replace(",", "")),
            "index_seconds": number(cells[1]),
            "sample_roots_per_second": number(cells[2]),
            "step_ms": 1e3 * number(cells[3]),
            "epoch_seconds": number(cells[4]),
            "index_mb": number(cells[6]),
            "step_peak_mb": number(cells[7]),
        }
        for cells in lines[:3]
    ]
    wide = [{"step_ms": 1e3 * number(cells[3]), "step_peak_mb": number(cells[-1])} for cells in lines[3:]]
    context = [row | {"times": 2**k, "step_gflop": CONTEXT_GFLOP[k]} for k, row in enumerate([events[-1], *wide])]
    setup = {"model": "cordgt", "data": {"name": "food-twin"}, "batch_size": 100, "device": "H200"}
    return setup | {"events": events, "context": context}


if __name__ == "__main__":
    plot_growth(read_table(), DOCS / "growth.png")
