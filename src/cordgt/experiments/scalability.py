"""Scalability: one epoch on the largest datasets, or on their twins; inductive AP against seconds."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.link import display_name
from cordgt.experiments.tables import (
    Comparison,
    ExperimentRequest,
    Report,
    ResultSet,
    Section,
    format_or_missing,
    percentages,
    read_finished,
)
from cordgt.io.datasets.twins import is_twin, original_dataset
from cordgt.models import MODELS
from cordgt.tasks.metrics import is_constant

DATASETS = ("food", "outdoors")
SUPPORTED_MODELS = tuple(
    name for name, kind in MODELS.items() if kind.network.is_trainable and not kind.network.is_transductive
)
CONTEXT_SIZES = (10, 20)  # nodes that CorDGT samples at its first hop


class Entry(NamedTuple):
    """A row of the table. CorDGT has one for each context size."""

    name: str
    model: str
    settings: dict[str, Any]

    def make_cell(self, request: ExperimentRequest, data: str, seed: int) -> Cell:
        return request.make_cell(data, self.model, seed, self.settings)


class Point(NamedTuple):
    """A model in the picture; ``seconds`` is None if it is not measured."""

    name: str
    seconds: float | None
    ap: Comparison
    is_constant: bool  # in some run every pair has the same score


def _entries(models: list[str]) -> list[Entry]:
    entries: list[Entry] = []
    for model in models:
        if model == "cordgt":
            entries += [Entry(f"CorDGT-{n}", model, {"epochs": 1, "fanout": (n, 1)}) for n in CONTEXT_SIZES]
        else:
            entries.append(Entry(display_name(model), model, {"epochs": 1}))
    return entries


def scalability_cells(request: ExperimentRequest) -> list[Cell]:
    return [
        entry.make_cell(request, data, seed)
        for seed in request.seeds
        for data in request.datasets
        for entry in _entries(request.models)
    ]


def scalability_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report seconds per epoch and inductive AP, next to the few times in the paper's text."""
    cells = scalability_cells(request)
    results = ResultSet(request, store, cells)
    sections, records = [], []
    points: dict[str, list[Point]] = {}
    for data in request.datasets:
        rows = []
        # a twin has the sizes of its dataset by construction
        show_paper = not request.quick if is_twin(data) else results.is_comparable_to_paper(data)
        for entry in _entries(request.models):
            own = read_finished(store, [entry.make_cell(request, data, seed) for seed in request.seeds])
            ap = Comparison(percentages(own, "test", "inductive", "ap"))
            seconds = Comparison(tuple(float(k["seconds_per_epoch"]) for k in own))
            published = paper.epoch_seconds(entry.name.lower(), original_dataset(data)) if show_paper else None
            peak = max((k["peak_memory_mb"] for k in own if k["device"].startswith("cuda")), default=None)
            texts = [format_or_missing(published, "{:,.0f}"), seconds.format("{:,.1f}"), ap.text]
            timed = ", ".join(sorted({_how_timed(k) for k in own}))
            rows.append([entry.name, *texts, format_or_missing(peak, "{:,.0f}"), timed, str(len(own))])
            timing = seconds.to_record()
            records.append(
                {"data": data, "model": entry.name, "paper_seconds": published, "seconds": timing["ours"]}
                | {"seconds_std": timing["std"], "timed": timed, "peak_memory_mb": peak}
                | ap.to_record(with_paper=False)
            )
            constant = any(is_constant(k["figures"]["test"]["transductive"]) for k in own)
            points.setdefault(data, []).append(Point(entry.name, seconds.mean, ap, constant))
        columns = [
            "",
            "seconds per epoch: the paper",
            "here",
            "inductive AP here",
            "peak GPU memory, MB",
            "timed",
            "seeds",
        ]
        sections.append(Section(results.heading(data), columns, rows))
    notes = [
        f"One epoch. The paper's seconds are from its text, on an {paper.load_paper()['epoch_gpu']}; its figure has no "
        "AP as a number. Our seconds exclude validation and index building. *Timed* `alone`: one training at a "
        "time; `in parallel`: several trainings shared the GPU (`--workers`), which makes an epoch up to 3.6 times "
        "as long. Compare seconds that were timed alone."
    ]
    if not request.quick and any(map(is_twin, request.datasets)):
        notes.append("The seconds of a twin can be compared with the paper's; its AP cannot.")
    notes += results.notes()
    title = "Scalability: one epoch on large streams"
    return Report(title, sections, records, notes, partial(_draw, points=points))


def _how_timed(result: CellResult) -> str:
    """Return whether a cell was alone; cells without the number of workers are from v0.1 and ran in parallel."""
    return "alone" if result.get("workers") == 1 else "in parallel"


def _draw(path: Path, points: dict[str, list[Point]]) -> None:
    """Draw a marker for each model, with its name next to it; ours in color."""
    from matplotlib.ticker import LogLocator

    n_panels = max(1, len(points))
    with plots.figure(path, 1, n_panels, (0.6 + 4.6 * n_panels, 4.4)) as (canvas, axes):
        for axis, (data, panel) in zip(axes[0], points.items(), strict=False):
            shown = [point for point in panel if point.seconds is not None and point.ap.mean is not None]
            for point in shown:
                _draw_point(axis, point)
            missing = [point.name for point in panel if point.seconds is None]
            remark = f"\nnot measured: {', '.join(missing)}" if missing else ""
            axis.set(xscale="log", title=data, xlabel=f"seconds per epoch{remark}", ylabel="inductive AP, %")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter("{x:g}")
            axis.xaxis.set_minor_formatter("")
            axis.margins(x=0.18, y=0.12)
            axis.grid(color=plots.GRID, lw=0.7)
            axis.set_axisbelow(True)
        canvas.suptitle("One epoch: upper left is better", x=0.01, ha="left", fontsize=11)
        for axis, panel in zip(axes[0], points.values(), strict=False):
            plots.label_points(axis, [_label(point) for point in panel if point.seconds and point.ap.mean])


def _color(point: Point) -> str:
    return plots.OURS if point.name.startswith(("CorDGT", "counts")) else plots.MUTED


def _label(point: Point) -> tuple[float, float, str, str]:
    """Return the point with its name, for `plots.label_points`."""
    assert point.seconds is not None and point.ap.mean is not None
    remark = ", constant score" if point.is_constant else ""
    return point.seconds, point.ap.mean, f"{point.name}{remark}", _color(point)


def _draw_point(axis: Any, point: Point) -> None:
    """Draw the marker of a model, with its standard deviation if there are several seeds."""
    color = _color(point)
    marker = "o" if color == plots.OURS else "s"
    if point.ap.std:
        axis.errorbar(point.seconds, point.ap.mean, yerr=point.ap.std, color=color, lw=1.2, capsize=2)
    axis.plot(point.seconds, point.ap.mean, ls="none", marker=marker, color=color, ms=7)
