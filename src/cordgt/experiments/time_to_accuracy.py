"""Time to accuracy: seconds of training until the validation AP reaches 99 % of its best value."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.link import display_name
from cordgt.experiments.tables import Comparison, ExperimentRequest, Report, ResultSet, Section, percentages
from cordgt.models import MODELS

DATASETS = ("uci", "wikipedia", "mooc", "retrosheet")
SUPPORTED_MODELS = tuple(name for name, kind in MODELS.items() if kind.network.is_trainable)
TARGET_SHARE = 0.99  # of the best validation AP

Curve = list[dict[str, Any]]  # by epoch: seconds since the training began, and the validation AP


def time_to_accuracy_cells(request: ExperimentRequest) -> list[Cell]:
    """Build one cell per seed, dataset and model, with the published settings."""
    return request.make_cells("convergence")


def best_ap(curve: Curve) -> float:
    return max(point["ap"] for point in curve)


def first_epoch(curve: Curve, ap: float) -> int | None:
    """Return the number of the first epoch with at least this validation AP, counted from 1; None without one."""
    return next((k for k, point in enumerate(curve, start=1) if point["ap"] >= ap), None)


def epoch_at_target(curve: Curve) -> int:
    """Return the number of the first epoch with `TARGET_SHARE` of the curve's own best AP."""
    return first_epoch(curve, TARGET_SHARE * best_ap(curve)) or len(curve)


def time_to_accuracy_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report seconds until the target, of the whole training, and the AP, for each model and dataset."""
    results = ResultSet(request, store, time_to_accuracy_cells(request))
    columns = [
        "",
        "seconds to 99 % of its best AP",
        "epochs to it",
        "seconds to 99 % of the best model's AP",
        "seconds in all",
        "epochs",
        "best validation AP",
        "test AP, transductive",
        "test AP, inductive",
        "whole job, seconds",
        "trainings at once",
        "seeds",
    ]
    sections, records = [], []
    for data in request.datasets:
        rows = []
        best = max((best_ap(result["figures"]["epochs"]) for result in results.select(data)), default=0.0)
        for model in request.models:
            own = results.select(data, model)
            if own:
                values = _values(own, TARGET_SHARE * best)
                counts = "{:.0f}" if len(own) == 1 else "{:.1f}"
                templates = ["{:,.1f}", counts, *2 * ["{:,.1f}"], counts, *3 * ["{:.2f}"], "{:,.0f}"]
                texts = [Comparison(x).format(text) for x, text in zip(values.values(), templates, strict=True)]
                at_once = ", ".join(sorted({str(result["workers"]) for result in own}))
                rows.append([display_name(model), *texts, at_once, str(len(own))])
                records.append(_record(data, model, values))
        if rows:
            sections.append(Section(results.heading(data), columns, rows))
    notes = [
        "*Seconds to 99 % of its best AP*: training and validation until the end of the first epoch whose validation "
        f"AP is at least {TARGET_SHARE:g} of the model's own best. They include what comes before the first epoch: "
        "training `counts` for CorDGT+, and recording the step on a GPU. They do not include imports, reading, the "
        "index and the test.",
        "*Of the best model's AP*: the same for the best AP of any model and seed of the table. A dash: a seed never "
        "reaches it.",
        "*Whole job*: also everything else. Compare seconds of the same machine, one training at once.",
        *results.notes(),
    ]
    curves = {data: _curves(results, data, request.models) for data in request.datasets}
    panels = {data: own for data, own in curves.items() if own}
    title = "Time to accuracy"
    return Report(title, sections, records, notes, partial(_draw, title=title, panels=panels) if panels else None)


def _values(own: Sequence[CellResult], common_target: float) -> dict[str, tuple[float, ...]]:
    """Return the columns of a row, one value per seed; no value for the common target if a seed never reaches it."""
    curves = [result["figures"]["epochs"] for result in sorted(own, key=lambda cell: cell["seed"])]
    own_epochs = [epoch_at_target(curve) for curve in curves]
    common = [k for curve in curves if (k := first_epoch(curve, common_target)) is not None]
    return {
        "seconds_to_target": _seconds_at(curves, own_epochs),
        "epochs_to_target": tuple(map(float, own_epochs)),
        "seconds_to_best_target": _seconds_at(curves, common) if len(common) == len(curves) else (),
        "seconds": tuple(curve[-1]["seconds"] for curve in curves),
        "epochs": tuple(float(len(curve)) for curve in curves),
        "validation_ap": tuple(100 * best_ap(curve) for curve in curves),
        "test_ap_transductive": percentages(own, "test", "transductive", "ap"),
        "test_ap_inductive": percentages(own, "test", "inductive", "ap"),
        "job_seconds": tuple(result["seconds"] for result in own),
    }


def _seconds_at(curves: Sequence[Curve], epochs: Sequence[int]) -> tuple[float, ...]:
    """Return the seconds at the end of an epoch of each curve."""
    return tuple(float(curve[k - 1]["seconds"]) for curve, k in zip(curves, epochs, strict=True))


def _record(data: str, model: str, values: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    """Return a line of the CSV file: the means."""
    means = {name: round(sum(own) / len(own), 3) if own else None for name, own in values.items()}
    return {"data": data, "model": model, **means, "seeds": len(values["seconds"])}


def _curves(results: ResultSet, data: str, models: Sequence[str]) -> dict[str, Curve]:
    """Return the curve of each model's first seed."""
    first = {model: min(results.select(data, model), key=lambda k: k["seed"], default=None) for model in models}
    return {model: result["figures"]["epochs"] for model, result in first.items() if result is not None}


def _draw(path: Path, title: str, panels: dict[str, dict[str, Curve]]) -> None:
    """Draw a line for each model, with a marker where it reaches the target."""
    n_panels = len(panels)
    with plots.figure(path, 1, n_panels, (1 + 4.2 * n_panels, 4.6)) as (canvas, axes):
        for axis, (data, curves) in zip(axes[0], panels.items(), strict=True):
            for k, (model, curve) in enumerate(curves.items()):
                color, marker = plots.SERIES[k % len(plots.SERIES)], plots.MARKERS[k % len(plots.MARKERS)]
                best = accumulate((100 * point["ap"] for point in curve), max)
                seconds = [point["seconds"] for point in curve]
                target = [epoch_at_target(curve) - 1]
                style: Any = {"color": color, "marker": marker, "markevery": target, "ms": 6, "lw": 1.4}
                style["ls"] = "-" if k < len(plots.SERIES) else "--"
                axis.plot(seconds, list(best), label=display_name(model), drawstyle="steps-post", **style)
            axis.set(xscale="log", title=data, xlabel="seconds of training and validation; mark: 99 % of its best")
            axis.grid(color=plots.GRID, lw=0.7)
            axis.set_axisbelow(True)
            axis.legend(frameon=False, fontsize=8)
        axes[0][0].set_ylabel("best validation AP so far, %")
        canvas.suptitle(title, x=0.01, ha="left", fontsize=11)
