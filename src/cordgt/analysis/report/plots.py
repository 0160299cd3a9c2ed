"""Plots that the report of one run and the report of several have in common, and how they format values.

Each plot has one line or row per run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cordgt.analysis.report.charts import Axis, DotRow, Series, dot_plot, format_number, line_chart, padded_range
from cordgt.analysis.report.data import ReportData
from cordgt.analysis.report.html import DASH, Html, figure
from cordgt.analysis.report.sample import GroupMetrics, group_by_time, precision_recall_steps
from cordgt.events.stream import EventStream
from cordgt.events.times import epoch_day
from cordgt.tasks.metrics import LINK_METRICS

ABOVE_MARK = " ▲"  # marks a baseline that is better than the model

# -------------------- formats


def format_percent(value: float | None) -> str:
    """Format a share for a table: ``97.31``, or a dash for None."""
    return DASH if value is None else f"{100 * value:.2f}"


def format_metric(name: str, value: float | None) -> str:
    """Format a metric for a table: a share in percent, another number as it is, or a dash for None."""
    return DASH if value is None else LINK_METRICS[name].format(value)


def format_win_rate(group: GroupMetrics) -> str:
    """Format a group's win rate with its interval: ``93.1 % (90–95)``."""
    if group.win_rate is None or group.low is None or group.high is None:
        return DASH
    return f"{100 * group.win_rate:.1f} % ({100 * group.low:.0f}–{100 * group.high:.0f})"


def format_times(stream: EventStream, positions: Sequence[int] | np.ndarray, *, short: bool = False) -> list[str]:
    """Format the times of events as in the user's data, with the date if they count from 1970.

    ``short``: only the day of a date, and short numbers.
    """
    values = stream.t[np.asarray(positions)]
    if not short:
        return [stream.format_time(t) for t in values]
    times = stream.time.format(values).to_pylist()
    if stream.time.kind == "date":
        return [str(t)[:10] for t in times]
    if stream.epoch_unit:
        return [epoch_day(t, stream.epoch_unit) for t in times]
    return [f"{t:,}" if isinstance(t, int) else format_number(t) for t in times]


def percent_axis(values: Sequence[float | None], label: str, *, min_width: float = 0.1) -> Axis:
    """An axis for shares (0-1) with ticks in percent, as wide as the values need."""
    low, high = padded_range([v for v in values if v is not None], min_width=min_width, bounds=(0.0, 1.0))
    ticks = Axis(label, 100 * low, 100 * high).labeled_ticks
    return Axis(f"{label}, %", low, high, [(v / 100, name) for v, name in ticks])


# -------------------- plots


def metric_figure(
    rows: Sequence[tuple[str, float | None, int]], setting: str, metric: str = "ap", *, min_width: float = 0.1
) -> Html:
    """A test metric of runs and baselines; ``rows`` has the name, the value and the color of each."""
    title = LINK_METRICS[metric].title
    dots = [DotRow(name, value, label=f"{format_percent(value)} %", color=color) for name, value, color in rows]
    alt = f"Test {title}, {setting}: " + ", ".join(f"{dot.name} {dot.label}" for dot in dots)
    axis = percent_axis([dot.value for dot in dots], f"test {title}", min_width=min_width)
    plot = dot_plot(dots, axis, alt=alt, reference=0.5 if metric == "ap" else None)
    return figure(plot, f"Test {title}, {setting}: farther right is better.")


def training_plots(
    runs: Mapping[str, ReportData], metric: str, *, marker: tuple[float, str] | None = None
) -> tuple[Html, Html] | None:
    """Training loss, and a validation metric, by epoch; None if no run has epochs."""
    loss, validation = [], []
    for name, data in runs.items():  # a run without epochs has an empty line, so that the others keep their colors
        epochs = data.epochs()
        x = [float(r["epoch"]) for r in epochs]
        loss.append(Series(name, x, [float(r["loss"]) for r in epochs]))
        measured = [r.get("validation", {}).get(metric) for r in epochs]
        validation.append(Series(name, x, [np.nan if v is None else float(v) for v in measured]))
    last = int(max((x for one in loss for x in one.x), default=-1))
    if last < 0:
        return None
    step = max(1, round(last / 6))
    ticks = [(float(k), str(k)) for k in range(step, last + 1, step)]
    axis = Axis("epoch", min(1, last - 1), max(last, 1), ticks)
    loss_axis = Axis("training loss", *padded_range([v for one in loss for v in one.y]))
    label = f"validation {LINK_METRICS[metric].title}"
    values = [v for one in validation for v in one.y]
    if LINK_METRICS[metric].is_share:
        metric_axis = percent_axis(values, label, min_width=0.01)
    else:
        metric_axis = Axis(label, *padded_range([v for v in values if not np.isnan(v)] or [0.0]))
    return (
        line_chart(loss, axis, loss_axis, marker=marker, alt="Training loss by epoch"),
        line_chart(validation, axis, metric_axis, marker=marker, alt=f"V{label[1:]} by epoch"),
    )


def precision_recall_plot(runs: Mapping[str, ReportData]) -> Html:
    series = [Series(name, *precision_recall_steps(data.sample), has_markers=False) for name, data in runs.items()]
    recall = Axis("recall, %", 0, 1, [(k / 4, str(25 * k)) for k in range(5)])
    precision = percent_axis([v for one in series for v in one.y], "precision")
    return line_chart(series, recall, precision, alt="Precision over recall", reference=0.5)


def time_plot(runs: Mapping[str, ReportData]) -> Html:
    """AP in consecutive parts of the test period."""
    series = []
    for name, data in runs.items():
        elapsed = data.task.stream.elapsed[data.sample.positions]
        groups = group_by_time(data.sample)
        x = [float(elapsed[[first, last]].mean()) for first, last, _ in groups]
        series.append(Series(name, x, [np.nan if g.ap is None else g.ap for _, _, g in groups]))
    first_run = next(iter(runs.values()))
    stream, ends = first_run.task.stream, first_run.sample.positions[[0, -1]]
    low, high = stream.elapsed[ends].tolist()
    ticks = list(zip((low, high), format_times(stream, ends, short=True), strict=True))
    label = "time" if stream.time.kind == "date" else "time, in the unit of the data"
    ap = percent_axis([v for one in series for v in one.y], "AP")
    return line_chart(series, Axis(label, low, high, ticks), ap, alt="AP over the test period")
