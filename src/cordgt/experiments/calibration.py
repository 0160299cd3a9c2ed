"""How far the probabilities and times of a run can be trusted, next to simple baselines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from cordgt.experiments import plots
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.link import display_name
from cordgt.experiments.tables import MISSING, Comparison, ExperimentRequest, Panels, Report, ResultSet, Section
from cordgt.tasks.forecast_metrics import SHARES

DATASETS = ("uci", "enron", "wikipedia", "mooc", "canparl", "uslegis")
DEFAULT_MODELS = ("counts",)
TRAINING_SETTINGS = {"epochs": 2}  # a few are enough for `counts`; --set epochs=N changes it
QUESTIONS = {"source": "Does a source act within the horizon?", "pair": "Does a pair have an event within the horizon?"}
BASELINES = ("constant rate", "per-source rate", "exponential decay")
TIME_BASELINES = ("last gap", "mean gap", "Poisson")
MAX_ECE = 0.03
BETTER = " ▲"


def calibration_cells(request: ExperimentRequest) -> list[Cell]:
    return request.make_cells("calibration", lambda data, model: TRAINING_SETTINGS)


def calibration_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report calibration error and log loss by horizon, and NLL and MAE of the next event, on the test period."""
    results = ResultSet(request, store, calibration_cells(request))
    sections, records, notes = [], [], []
    panels: Panels = {}
    runs = [(data, model, results.select(data, model)) for data in request.datasets for model in request.models]
    for kind, heading in QUESTIONS.items():
        columns = ["", "horizon", "share that came true", "ECE", "log loss", *BASELINES, "seeds"]
        rows, n_small, n_better = [], 0, 0
        for data, model, own in runs:
            for k, share in enumerate(SHARES):
                row = _horizon_metrics(own, kind, k)
                name = f"{results.heading(data)}, {display_name(model)}"
                rows.append([name, f"1/{round(1 / share)}", *_horizon_texts(row), str(len(own))])
                records += _records(data, model, f"{kind}, 1/{round(1 / share)}", row)
                n_small += _is_at_most(row["ece"], MAX_ECE)
                n_better += all(_is_less(row["log_loss"], row[baseline]) for baseline in BASELINES)
                panels.setdefault((kind, results.heading(data)), {})[f"{display_name(model)}, 1/{round(1 / share)}"] = (
                    Comparison(tuple(100 * x for x in row["ece"]))
                )
        sections.append(Section(heading, columns, rows))
        notes.append(
            f"{heading} The mean ECE is at most {MAX_ECE} in {n_small} of {len(rows)} rows. The mean log loss is below "
            f"every baseline in {n_better}."
        )
    sections.append(_time_section(results, runs, records))
    title = "Probabilities within a horizon, and the next event's time"
    notes += [
        "Horizons are shares of the stream's time span. Mean ± sample standard deviation over the seeds. Each seed "
        "masks other nodes, and trains its own model. The questions and the rates are the same for every seed, so only "
        "the rows about pairs vary.",
        f"ECE: expected calibration error.{BETTER} marks a baseline that is better. Times are in the unit of the data.",
        "A dash: the test period is shorter than the horizon. If none of the questions came true, the smallest "
        "probability has the smallest log loss: such a row says little.",
        *results.notes(show_protocol=False),
    ]
    draw = partial(plots.dot_plot, title=title, panels=panels, unit="ECE, %", published_label=None)
    return Report(title, sections, records, notes, draw if panels else None)


def _time_section(
    results: ResultSet, runs: Sequence[tuple[str, str, list[CellResult]]], records: list[dict[str, Any]]
) -> Section:
    """Build the table of the next event's time; add its lines to ``records``."""
    metrics = {"nll": "NLL", "mae": "MAE"}
    columns = ["", *(f"{label}{suffix}" for label in metrics.values() for suffix in _suffixes()), "seeds"]
    rows = []
    for data, model, own in runs:
        row = [f"{results.heading(data)}, {display_name(model)}"]
        for metric in metrics:
            values = {"ours": _values(own, "next_event", metric)}
            values |= {name: _values(own, "next_event", "baselines", name, metric) for name in TIME_BASELINES}
            row += [_mean_text(values["ours"], "{:.4g}")]
            row += [_baseline_text(values[name], values["ours"], "{:.4g}") for name in TIME_BASELINES]
            records += _records(data, model, f"next event, {metric}", values)
        rows.append([*row, str(len(own))])
    return Section("When is a source's next event?", columns, rows)


def _suffixes() -> Iterator[str]:
    yield ""
    yield from (f", {name}" for name in TIME_BASELINES)


def _horizon_metrics(own: list[CellResult], kind: str, k: int) -> dict[str, tuple[float, ...]]:
    """Return the values over the seeds at the k-th horizon: share that came true, ECE, log loss, and baselines."""
    keys = ("calibration", "horizons", k, kind)
    row = {name: _values(own, *keys, name) for name in ("share", "ece", "log_loss")}
    return row | {name: _values(own, *keys, "baselines", name, "log_loss") for name in BASELINES}


def _horizon_texts(row: dict[str, tuple[float, ...]]) -> list[str]:
    texts = [_mean_text(row["share"], "{:.4f}"), _text(row["ece"], "{:.3f}"), _text(row["log_loss"], "{:.4f}")]
    return texts + [_baseline_text(row[name], row["log_loss"], "{:.4f}") for name in BASELINES]


def _values(own: list[CellResult], *keys: str | int) -> tuple[float, ...]:
    """Return one metric, ordered by seed. Cells without it are left out."""
    values = []
    for result in sorted(own, key=lambda cell: cell["seed"]):
        value: Any = result["figures"]
        for key in keys:
            value = value[key] if isinstance(key, int) else (value or {}).get(key)
        if value is not None:
            values.append(float(value))
    return tuple(values)


def _text(values: tuple[float, ...], template: str) -> str:
    return Comparison(values).format(template)


def _mean_text(values: tuple[float, ...], template: str) -> str:
    return template.format(np.mean(values)) if values else MISSING


def _baseline_text(values: tuple[float, ...], ours: tuple[float, ...], template: str) -> str:
    return _mean_text(values, template) + (BETTER if _is_less(values, ours) else "")


def _is_less(values: tuple[float, ...], others: tuple[float, ...]) -> bool:
    return bool(values) and bool(others) and float(np.mean(values)) < float(np.mean(others))


def _is_at_most(values: tuple[float, ...], limit: float) -> bool:
    return bool(values) and float(np.mean(values)) <= limit


def _records(data: str, model: str, row: str, values: dict[str, tuple[float, ...]]) -> list[dict[str, Any]]:
    return [
        {"data": data, "model": model, "row": row, "metric": name}
        | {"mean": float(f"{np.mean(own):.6g}"), "seeds": len(own), "values": " ".join(f"{x:.6g}" for x in own)}
        for name, own in values.items()
        if own
    ]
