"""The report of several runs: their metrics, their curves and the settings in which they differ, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cordgt.analysis.compare import describe_data, has_same_data, paired_bootstrap, protocol_differences
from cordgt.analysis.remarks import comparison_verdict
from cordgt.analysis.report import html
from cordgt.analysis.report.charts import GRAY, DotRow, dot_plot
from cordgt.analysis.report.data import ReportData
from cordgt.analysis.report.html import DASH, Html, PageSection
from cordgt.analysis.report.plots import (
    ABOVE_MARK,
    format_metric,
    format_win_rate,
    metric_figure,
    percent_axis,
    precision_recall_plot,
    time_plot,
    training_plots,
)
from cordgt.analysis.report.sample import group_by_novelty
from cordgt.tasks.metrics import LINK_METRICS, summary_metrics
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.training.run_folder import settings_by_key
from cordgt.training.settings import Settings, format_value

N_RESAMPLES = 1000
Runs = Mapping[str, ReportData]  # by name; the others are compared with the first


def render_comparison(runs: Runs) -> str:
    """Return the report of several runs as an HTML page. The others are compared with the first."""
    warnings = comparability_warnings(runs)
    sections = [_metrics_section(runs, are_comparable=not warnings), _training_section(runs)]
    if not warnings:
        sections += [_precision_recall_section(runs), _time_section(runs), _novelty_section(runs)]
    datasets = sorted({data.task.stream.name or "events" for data in runs.values()})
    return html.page(
        f"{len(runs)} runs on {', '.join(datasets)}",
        html.paragraph(comparison_verdict({name: data.metrics for name, data in runs.items()}), css="lead"),
        *(html.warning(sentence) for sentence in warnings),
        sections=[*sections, _settings_section(runs)],
    )


def comparability_warnings(runs: Runs) -> list[str]:
    """A sentence for each run whose metrics do not compare with the first run's."""
    (first, reference), *others = runs.items()
    warnings = []
    for name, data in others:
        if not has_same_data(reference.task, data.task):
            both = ", ".join(f"{n} on {describe_data(d.task)}" for n, d in ((first, reference), (name, data)))
            warnings.append(f"These runs use different data: {both}. Their metrics do not compare.")
        elif differing := protocol_differences(reference.settings.protocol, data.settings.protocol):
            warnings.append(
                f"{first} and {name} have protocols that differ in {', '.join(differing)}. They answer other queries, "
                "so their metrics compare only roughly."
            )
    return warnings


# -------------------- metrics


def _columns(runs: Runs) -> list[tuple[str, str]]:
    """Setting and metric of each column: the metrics of pairs that every run has."""
    tables = [data.metrics["test"]["transductive"] for data in runs.values()]
    names = [name for name in summary_metrics(ranks=False) if all(name in table for table in tables)]
    return [(setting, name) for setting in SETTINGS for name in names]


def _metrics_section(runs: Runs, *, are_comparable: bool) -> PageSection:
    first, reference = next(iter(runs.items()))
    columns = _columns(runs)
    rows = [_run_row(name, data, None if name == first else reference, columns) for name, data in runs.items()]
    aps = [(name, data.metrics.metric("ap").mean, i) for i, (name, data) in enumerate(runs.items())]
    caption = f"In percent; in brackets the difference to {first}"
    if are_comparable:
        rows += _mean_and_std_row(runs, columns) + _baseline_rows(runs, columns)
        if any(ABOVE_MARK in str(cell) for row in rows for cell in row):
            caption += f";{ABOVE_MARK}: a trivial baseline is above every run"
        if best := reference.metrics.best_baseline("transductive"):
            aps.append((f"{best[0]} (trivial)", best[1], GRAY))
    titles = [f"{LINK_METRICS[metric].title}, {setting}" for setting, metric in columns]
    return html.section(
        "Metrics of the test period",
        html.table(["run", "model", "seed", *titles, "epochs", "s per epoch"], rows, caption=caption),
        html.side_by_side(metric_figure(aps, "transductive", min_width=0.02)),
        *(_intervals(runs) if are_comparable else []),
        anchor="metrics",
        link="Metrics",
    )


def _run_row(
    name: str, data: ReportData, reference: ReportData | None, columns: Sequence[tuple[str, str]]
) -> list[Any]:
    """A run's metrics, with the differences to the first run."""
    cells = []
    for setting, metric in columns:
        value = data.metrics.metric(metric, "test", setting).mean
        other = None if reference is None else reference.metrics.metric(metric, "test", setting).mean
        difference = ""
        if value is not None and other is not None:
            difference = f" ({LINK_METRICS[metric].format(value - other, '+')})"
        cells.append(f"{format_metric(metric, value)}{difference}")
    seconds = data.metrics.get("seconds_per_epoch", 0.0)
    return [name, data.settings.model, str(data.settings.seed), *cells, str(data.metrics["epochs"]), f"{seconds:.1f}"]


def _mean_and_std_row(runs: Runs, columns: Sequence[tuple[str, str]]) -> list[list[Any]]:
    """Mean and standard deviation if the runs differ only in their seeds; otherwise no row."""
    settings = [data.settings for data in runs.values()]
    if len(runs) < 2 or len({(s.model, s.protocol, s.training, s.model_settings) for s in settings}) > 1:
        return []
    cells = []
    for setting, metric in columns:
        values, kind = _metric_values(runs, setting, metric), LINK_METRICS[metric]
        mean_and_std = DASH
        if len(values) > 1:
            mean_and_std = f"{kind.format(float(np.mean(values)))} ± {kind.format(float(np.std(values, ddof=1)))}"
        cells.append(mean_and_std)
    return [[Html("<strong>mean ± standard deviation</strong>"), "", "", *cells, "", ""]]


def _baseline_rows(runs: Runs, columns: Sequence[tuple[str, str]]) -> list[list[Any]]:
    """A row per baseline, with a mark if it is above every run. Comparable runs have the same baselines."""
    metrics = next(iter(runs.values())).metrics
    best = [_best_value(runs, *column) for column in columns]
    rows = []
    for name in metrics.baselines:
        cells = []
        for (setting, metric), limit in zip(columns, best, strict=True):
            value = metrics.metric(metric, "test", setting, name).mean
            is_above = value is not None and limit is not None and LINK_METRICS[metric].is_better(value, limit)
            cells.append(f"{format_metric(metric, value)}{ABOVE_MARK if is_above else ''}")
        mark = ABOVE_MARK if any(ABOVE_MARK in cell for cell in cells) else ""
        rows.append([Html(f'<span class="baseline">{html.text(name)}{mark}</span>'), "", "", *cells, "", ""])
    return rows


def _metric_values(runs: Runs, setting: str, metric: str) -> list[float]:
    """A test metric of the runs that have it."""
    means = (data.metrics.metric(metric, "test", setting).mean for data in runs.values())
    return [mean for mean in means if mean is not None]


def _best_value(runs: Runs, setting: str, metric: str) -> float | None:
    """The best value of a test metric over the runs; None if no run has it."""
    values = _metric_values(runs, setting, metric)
    return None if not values else max(values) if LINK_METRICS[metric].higher_is_better else min(values)


def _intervals(runs: Runs) -> list[Html]:
    """The differences to the first run, with their confidence intervals."""
    (first, reference), *others = runs.items()
    rows = []
    for name, data in others:
        scores = [(d.sample.positive, d.sample.negative) for d in (reference, data)]
        for metric, row in paired_bootstrap(scores, resamples=N_RESAMPLES).items():
            kind, is_clear = LINK_METRICS[metric], row["low"] > 0 or row["high"] < 0
            is_better = kind.is_better(row["difference"], 0.0)
            result = ("better" if is_better else "worse") if is_clear else "no clear difference"
            difference, low, high = (kind.format(row[key], "+") for key in ("difference", "low", "high"))
            rows.append([name, kind.title, difference, f"{low} to {high}", result])
    about = (
        f"Intervals from a paired bootstrap: {N_RESAMPLES:,} resamples of the {len(reference.sample):,} test events in "
        "this report. They do not cover other seeds. `cordgt compare` uses every test event."
    )
    header = ["run", "metric", "difference", "95 % interval", f"than {first}"]
    return [html.table(header, rows), html.paragraph(about, css="how")]


# -------------------- curves and groups


def _training_section(runs: Runs) -> PageSection:
    plots = training_plots(runs, "ap")
    if plots is None:
        are_trainable = any(data.model.is_trainable for data in runs.values())
        reason = "There are no curves: history.jsonl is missing or holds no complete epoch."
        content = html.paragraph(reason if are_trainable else "There is nothing to train in these models.")
    else:
        content = html.side_by_side(
            html.figure(plots[1], "AP on the validation period after each epoch: higher is better."),
            html.figure(
                plots[0], "Mean training loss of each epoch. Losses of different models may not be comparable."
            ),
        )
    return html.section("Training curves", content, anchor="curves", link="Curves")


def _precision_recall_section(runs: Runs) -> PageSection:
    caption = "Farther up and right is better; guessing gives 50 %."
    plot = html.figure(precision_recall_plot(runs), caption)
    return html.section("Precision and recall", html.side_by_side(plot), anchor="precision")


def _time_section(runs: Runs) -> PageSection:
    caption = "AP in consecutive parts of the test period. A model whose AP falls faster needs training again sooner."
    return html.section("Over time", html.side_by_side(html.figure(time_plot(runs), caption)), anchor="time")


def _novelty_section(runs: Runs) -> PageSection:
    plots = []
    for groups in zip(*(group_by_novelty(data.sample) for data in runs.values()), strict=True):  # one of each run
        name, n_events = groups[0].name, groups[0].n_events
        if n_events:
            dots = [
                DotRow(run, group.win_rate, group.low, group.high, format_win_rate(group), i)
                for i, (run, group) in enumerate(zip(runs, groups, strict=True))
            ]
            axis = percent_axis([v for dot in dots for v in (dot.low, dot.high)], "win rate")
            plot = dot_plot(dots, axis, alt=f"{name}: win rate by run", reference=0.5)
            plots.append(html.figure(plot, f"{name}: {n_events:,} events."))
    about = "Win rate: the share of events that score above their negative, with its 95 % confidence interval."
    return html.section(
        "By novelty", html.side_by_side(*plots), html.paragraph(about, css="how"), anchor="novelty", link="Novelty"
    )


# -------------------- settings


def _settings_section(runs: Runs) -> PageSection:
    """The settings in which the runs differ; a dash where a model lacks the setting."""
    settings = [_format_settings(data.settings) for data in runs.values()]
    rows = []
    for key in dict.fromkeys(key for one in settings for key in one):
        values = [one.get(key, DASH) for one in settings]
        if len(set(values)) > 1:
            rows.append([key, *values])
    content = html.table(["", *runs], rows) if rows else html.paragraph("None: these runs have the same settings.")
    return html.section("Settings that differ", content, anchor="settings")


def _format_settings(settings: Settings) -> dict[str, str]:
    values = {"model": settings.model, "seed": settings.seed, **settings_by_key(settings)}
    return {key: format_value(value) for key, value in values.items()}
