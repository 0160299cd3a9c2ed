"""One epoch on the largest datasets, or on their twins: inductive AP against seconds, for every model that has both."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cordgt.experiments import paper, plots
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.link import model_name
from cordgt.experiments.tables import (
    NONE,
    Asked,
    Compared,
    Report,
    Section,
    beside_paper,
    data_name,
    gather,
    notes,
    percent,
)
from cordgt.io.datasets.twins import is_twin, twin_of
from cordgt.models import MODELS
from cordgt.tasks.metrics import is_constant

DATASETS = ("food", "outdoors")
TRAINED = tuple(name for name, kind in MODELS.items() if kind.network.is_trainable and not kind.network.is_transductive)
CONTEXTS = (10, 20)  # nodes that CorDGT draws at its first hop


class Point(NamedTuple):
    """A model in the picture; seconds None where it is not measured."""

    name: str
    seconds: float | None
    ap: Compared
    alike: bool  # every pair has the same score, in any run: see `is_constant`


def _entries(models: list[str]) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, model, changes): CorDGT stands there once for each size of its context."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for model in models:
        if model == "cordgt":
            found += [(f"CorDGT-{n}", model, {"epochs": 1, "fanout": (n, 1)}) for n in CONTEXTS]
        else:
            found.append((model_name(model), model, {"epochs": 1}))
    return found


def scalability_cells(asked: Asked) -> list[Cell]:
    return [
        make_cell(data, model, seed, {**asked.changes, **changes}, quick=asked.quick)
        for seed in asked.seeds
        for data in asked.datasets
        for _, model, changes in _entries(asked.models)
    ]


def scalability_report(asked: Asked, store: Store) -> Report:
    """Seconds of the epoch and inductive AP, beside the few times that the paper tells in words."""
    wanted = scalability_cells(asked)
    every = gather(store, wanted)
    sections, records = [], []
    points: dict[str, list[Point]] = {}
    for data in asked.datasets:
        rows = []
        # a twin has the dataset's sizes by construction
        beside = not asked.quick if is_twin(data) else beside_paper(asked, data, every)
        for name, model, changes in _entries(asked.models):
            own = [make_cell(data, model, s, {**asked.changes, **changes}, quick=asked.quick) for s in asked.seeds]
            found = gather(store, own)
            ap = Compared(percent(found, "test", "inductive", "ap"))
            seconds = Compared(tuple(float(k["seconds_per_epoch"]) for k in found))
            theirs = paper.epoch_seconds(name.lower(), twin_of(data)) if beside else None
            peak = max((k["peak_memory_mb"] for k in found if k["device"].startswith("cuda")), default=None)
            words = [NONE if theirs is None else f"{theirs:,.0f}", _seconds(seconds)]
            rows.append([name, *words, ap.ours, NONE if peak is None else f"{peak:,.0f}", str(len(found))])
            about = {"data": data, "model": name, "paper_seconds": theirs, "seconds": seconds.columns["ours"]}
            about |= {"seconds_std": seconds.columns["std"], "peak_memory_mb": peak}
            records.append(about | {k: v for k, v in ap.columns.items() if not k.startswith("paper")})
            alike = any(is_constant(k["figures"]["test"]["transductive"]) for k in found)
            points.setdefault(data, []).append(Point(name, seconds.mean, ap, alike))
        columns = ["", "seconds an epoch: the paper", "here", "inductive AP here", "peak GPU memory, MB", "seeds"]
        sections.append(Section(data_name(data, every), columns, rows))
    twins = any(is_twin(data) for data in asked.datasets)
    said = [
        f"One epoch. The paper's seconds are those its text names, on an {paper.figures()['epoch_gpu']}; its figure "
        "gives no AP as a number. Ours leave out validation and the building of the index; trainings side by side "
        "(`--workers`) take a little longer than alone.",
        *(["A twin's seconds can be compared with the paper's, its AP cannot."] if twins and not asked.quick else []),
        *notes(store, wanted, every),
    ]
    return Report("Scalability: one epoch on large streams", sections, records, said, lambda path: _draw(path, points))


def _seconds(value: Compared) -> str:
    if value.mean is None:
        return NONE
    return f"{value.mean:,.1f}" if value.std is None else f"{value.mean:,.1f} ± {value.std:,.1f}"


def _draw(path: Path, points: dict[str, list[Point]]) -> None:
    """A mark for each model, told by the legend: names beside the marks would cover each other."""
    from matplotlib.ticker import LogLocator

    names = list(dict.fromkeys(point.name for named in points.values() for point in named))
    with plots.figure(path, 1, max(1, len(points)), (2.6 + 4.2 * max(1, len(points)), 4.2)) as (made, axes):
        handles = {}
        for place, (data, named) in zip(axes[0], points.items(), strict=False):
            for point in reversed(named):  # the first on top: CorDGT's marks lie close to each other
                if point.seconds is not None and point.ap.mean is not None:
                    handles[point.name] = _mark(place, point, names.index(point.name))
            missing = [point.name for point in named if point.seconds is None]
            foot = f"\nnot measured: {', '.join(missing)}" if missing else ""
            place.set(xscale="log", title=data, xlabel=f"seconds an epoch{foot}", ylabel="inductive AP, %")
            place.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            place.xaxis.set_major_formatter("{x:g}")
            place.xaxis.set_minor_formatter("")
            place.margins(x=0.12, y=0.12)
            place.grid(color=plots.GRID, lw=0.7, which="both", axis="x")
            place.grid(color=plots.GRID, lw=0.7, axis="y")
            place.set_axisbelow(True)
        shown = [name for name in names if name in handles]
        made.legend([handles[name] for name in shown], shown, loc="outside right center", frameon=False)
        made.suptitle("One epoch: upper left is better", x=0.01, ha="left", fontsize=11)


def _mark(place: Any, point: Point, k: int) -> Any:
    """The k-th model's: a handle for the legend."""
    color = plots.SERIES[k % len(plots.SERIES)]
    hollow = k >= len(plots.SERIES)
    look: Any = {"marker": plots.MARKERS[k % len(plots.MARKERS)], "color": color, "mfc": "white" if hollow else color}
    ours = point.name.startswith("CorDGT")
    look |= {"ms": 9 if ours else 6, "mec": "white" if ours else color}
    if point.ap.std:
        place.errorbar(point.seconds, point.ap.mean, yerr=point.ap.std, color=color, lw=1.2, capsize=2)
    if point.alike:
        where: Any = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}
        place.annotate("all pairs alike", (point.seconds, point.ap.mean), color=plots.SOFT, **where)
    return place.plot(point.seconds, point.ap.mean, ls="none", **look)[0]
