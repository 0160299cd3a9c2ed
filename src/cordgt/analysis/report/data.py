"""The content of a report: a run, and its model's scores of test events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cordgt.analysis.report.charts import Axis, number, reach
from cordgt.analysis.report.html import DASH
from cordgt.analysis.report.sample import AT_MOST, Asked, Group, ask
from cordgt.callbacks import Callbacks, as_callback
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.models.base import LinkModel
from cordgt.tasks.link import LinkTask
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.settings import Settings


@dataclass(frozen=True)
class ReportData:
    """The content of a report. ``asked`` has the test events and their scores."""

    settings: Settings
    metrics: RunMetrics
    history: Sequence[Mapping[str, Any]]  # the lines of history.jsonl
    task: LinkTask
    model: LinkModel
    asked: Asked


def collect_report_data(
    run: Run, callbacks: Callbacks = None, *, at_most: int | None = AT_MOST, task: LinkTask | None = None
) -> ReportData:
    """Score at most ``at_most`` test events of a run (all if None), evenly spread, and collect what a report shows.

    ``task`` saves the preparation of the data if the caller has it, as after a training.
    """
    model, prepared = run.evaluation_task() if task is None else (run.evaluation_model(), task)
    n = len(prepared.split.test)
    callback = as_callback(callbacks)
    callback.on_stage_start("evaluating: the report", n if at_most is None else min(n, at_most))
    asked = ask(model, prepared, at_most=at_most, callbacks=callback)
    return ReportData(run.settings, run.metrics, run.folder.read_history(), prepared, model, asked)


# -------------------- in words


def percent(value: float | None) -> str:
    """A share as a table has it: ``97.31``, or a dash where there is none."""
    return DASH if value is None else f"{100 * value:.2f}"


def share_axis(values: Sequence[float | None], label: str, *, least: float = 0.1) -> Axis:
    """An axis for shares, as far as they reach; ticks in percent."""
    low, high = reach([v for v in values if v is not None], least=least, within=(0.0, 1.0))
    from_ticks = Axis(label, 100 * low, 100 * high)
    return Axis(f"{label}, %", low, high, [(v / 100, name) for v, name in from_ticks.marked])


def times_of(stream: EventStream, positions: np.ndarray, *, short: bool = False) -> list[str]:
    """Times of events as the user would write them; ``short``: days where they are dates."""
    written = stream.time.format(stream.t[positions]).to_pylist()
    if stream.time.kind == "date":
        return [str(w)[:10] if short else str(w) for w in written]
    return [f"{w:,}" if short and isinstance(w, int) else number(w) if short else str(w) for w in written]


def wins(g: Group) -> str:
    """How many events of a group score above their negative, with the interval: ``93.1 % (90–95)``."""
    if g.wins is None or g.low is None or g.high is None:
        return DASH
    return f"{100 * g.wins:.1f} % ({100 * g.low:.0f}–{100 * g.high:.0f})"
