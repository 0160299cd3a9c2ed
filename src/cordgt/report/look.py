"""The content of a report: a run, and its model's scores of test events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.events.stream import EventStream
from cordgt.models.base import LinkModel
from cordgt.report.asked import AT_MOST, Asked, Group, ask
from cordgt.report.charts import Axis, number, reach
from cordgt.report.page import DASH
from cordgt.run import RunFolder
from cordgt.settings import Settings
from cordgt.tasks.link import LinkTask
from cordgt.tasks.run_metrics import RunMetrics


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
    folder: RunFolder,
    settings: Settings,
    metrics: RunMetrics,
    model: LinkModel,
    task: LinkTask,
    *,
    at_most: int | None = AT_MOST,
    callbacks: Callback = NO_CALLBACK,
) -> ReportData:
    """Score at most ``at_most`` test events (all if None), and collect what a report shows."""
    asked = ask(model, task, at_most=at_most, callbacks=callbacks)
    return ReportData(settings, metrics, folder.read_history(), task, model, asked)


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
