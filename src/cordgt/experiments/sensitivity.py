"""Parameters: inductive AP over alpha and beta, neighbours of the first hop, and batch size.

The paper shows these as pictures without figures, so there is nothing to subtract: its words are quoted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.tables import (
    Asked,
    Compared,
    Key,
    Report,
    Section,
    data_name,
    gather,
    notes,
    of_the_same_seeds,
    percent,
)
from cordgt.models.presets import paper_settings

DATASETS = ("uci", "enron")
WEIGHTS = (0.1, 1.0, 10.0)  # of alpha and of beta
NEIGHBOURS = (8, 16, 20, 32, 64)
BATCHES = (50, 100, 200, 400)
SPAN = 4.0  # points that the colours of a grid span at least: about what seeds differ by
Grid = dict[tuple[float, float], Compared]  # by alpha and beta


def _weights() -> dict[tuple[float, float], dict[str, Any]]:
    return {(a, b): {"alpha": a, "beta": b} for a in WEIGHTS for b in WEIGHTS}


def _neighbours(data: str) -> dict[int, dict[str, Any]]:
    rest = tuple(paper_settings(data).get("fanout", (20, 1)))[1:]
    return {n: {"fanout": (n, *rest)} for n in NEIGHBOURS}


def _batches() -> dict[int, dict[str, Any]]:
    """Under the paper's rule: under ours a score does not depend on the batch, which is what its figure is about."""
    return {n: {"batch_size": n, "visibility": "paper"} for n in BATCHES}


def _own(asked: Asked, data: str, changes: dict[str, Any]) -> list[Cell]:
    return [make_cell(data, "cordgt", seed, {**asked.changes, **changes}, quick=asked.quick) for seed in asked.seeds]


def sensitivity_cells(asked: Asked) -> list[Cell]:
    """Seed by seed."""
    every = [
        cell
        for data in asked.datasets
        for variants in (_weights(), _neighbours(data), _batches())
        for changes in variants.values()
        for cell in _own(asked, data, changes)
    ]
    return sorted(dict.fromkeys(every), key=lambda cell: asked.seeds.index(cell.seed))


def sensitivity_report(asked: Asked, store: Store) -> Report:
    """A grid and two series for each dataset."""
    wanted = sensitivity_cells(asked)
    found = gather(store, wanted)
    sections: list[Section] = []
    records: list[dict[str, Any]] = []
    series: dict[str, dict[str, list[tuple[float, Compared]]]] = {"neighbours": {}, "batch size": {}}
    grids: dict[str, Grid] = {}
    apart: list[str] = []  # what is not shown, and why

    def compared(data: str, variants: dict[Key, dict[str, Any]], what: str) -> dict[Key, Compared]:
        """What each setting has, on the seeds that all of them have; kept for the CSV too."""
        own = {key: gather(store, _own(asked, data, changes)) for key, changes in variants.items()}
        same = of_the_same_seeds(own)
        values = {key: Compared(percent(cells, "test", "inductive", "ap")) for key, cells in same.items()}
        if any(own.values()) and not any(same.values()):
            apart.append(f"{data}, {what}: the finished cells share no seed, so that none is shown.")
        for key, changes in variants.items():
            about = {"data": data, "what": what, "setting": " ".join(f"{k}={v}" for k, v in changes.items())}
            records.append(about | {k: v for k, v in values[key].columns.items() if not k.startswith("paper")})
        return values

    for data in asked.datasets:
        values = compared(data, _weights(), "alpha, beta")
        grids[data] = values
        rows = [[f"alpha {a:g}", *(values[a, b].ours for b in WEIGHTS)] for a in WEIGHTS]
        sections.append(
            Section(f"{data_name(data, found)}: alpha and beta", ["", *(f"beta {b:g}" for b in WEIGHTS)], rows)
        )
    for what, of in (("neighbours", _neighbours), ("batch size", lambda _: _batches())):
        rows = []
        for data in asked.datasets:
            points = [(float(n), value) for n, value in compared(data, of(data), what).items()]
            series[what][data] = points
            rows.append([data_name(data, found), *(c.ours for _, c in points)])
        sizes = NEIGHBOURS if what == "neighbours" else BATCHES
        sections.append(Section(what, ["", *map(str, sizes)], rows))
    said = [
        "Inductive AP of CorDGT, in percent. The paper has these as curves without figures; it says: on UCI alpha and "
        "beta matter little, on Enron alpha ≤ 1 and beta ≥ 1 are better; UCI gains with more neighbours, Enron is best "
        "at 20; UCI does not mind the batch size, Enron loses as it grows.",
        "Batch sizes are those of training, under the rule `paper`, where pair records stop at the start of a batch; "
        "the test period is read in the same batches at every size. Under `event` no score depends on the batch.",
        "Each row of neighbours and of batch sizes, and each grid, is of the seeds that all of its settings have.",
        *apart,
        *notes(store, wanted, found),
    ]

    def draw(path: Path) -> None:
        _draw(path, grids, series)

    return Report("Sensitivity to parameters: inductive AP, in percent", sections, records, said, draw)


def _draw(path: Path, grids: dict[str, Grid], series: dict[str, dict[str, list[tuple[float, Compared]]]]) -> None:
    panels = len(grids) + len(series)
    columns = 2
    rows = -(-panels // columns)
    with plots.figure(path, rows, columns, (8.5, 1 + 3 * rows)) as (made, axes):
        flat = list(axes.flat)
        words = ([f"{a:g}" for a in WEIGHTS], [f"{b:g}" for b in WEIGHTS])
        for place, (data, values) in zip(flat, grids.items(), strict=False):
            means = [[values[a, b].mean for b in WEIGHTS] for a in WEIGHTS]
            shown = np.array(means, dtype=np.float64)  # None becomes NaN, which is blank
            plots.heat(place, shown, words, "{:.2f}", span=SPAN, framed=_published(data))
            place.set(title=f"{data}: alpha and beta{_seeds(values.values())}", xlabel="beta", ylabel="alpha")
        for place, (what, lines) in zip(flat[len(grids) :], series.items(), strict=False):
            plots.curves(place, {f"{data}{_seeds(c for _, c in line)}": line for data, line in lines.items()})
            sizes = NEIGHBOURS if what == "neighbours" else BATCHES
            place.set(title=what, xlabel=what, ylabel="inductive AP, %", xscale="log")
            place.set_xticks(sizes, [str(n) for n in sizes])
            place.minorticks_off()
            if place.get_legend_handles_labels()[0]:
                place.legend(frameon=False)
        for place in flat[panels:]:
            place.set_axis_off()
        made.suptitle(
            "Inductive AP of CorDGT, %: mean over seeds; framed: the paper's alpha and beta",
            x=0.01,
            ha="left",
            fontsize=11,
        )


def _published(data: str) -> tuple[int, int] | None:
    """Where the paper's own alpha and beta stand in the grid."""
    settings = paper_settings(data)
    try:
        return WEIGHTS.index(settings["alpha"]), WEIGHTS.index(settings["beta"])
    except (KeyError, ValueError):
        return None


def _seeds(values: Iterable[Compared]) -> str:
    """How many stand behind figures that share theirs, as words after a name."""
    n = max((len(value.values) for value in values), default=0)
    return f", {n} seed{'s' if n > 1 else ''}" if n else ""
