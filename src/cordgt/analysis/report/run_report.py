"""The report of one run: ``report.html`` in its folder.

A section that does not apply to the model is left out, or says so in a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cordgt import models
from cordgt.analysis.recommendation_tables import recommendation_legend, recommendation_tables
from cordgt.analysis.remarks import constant_remarks, initial_run_remarks, metric_legend, verdict
from cordgt.analysis.report import html
from cordgt.analysis.report.charts import GRAY, Axis, DotRow, Series, dot_plot, line_chart, padded_range
from cordgt.analysis.report.data import ReportData, collect_report_data
from cordgt.analysis.report.explanations import distance_section, surprises_section
from cordgt.analysis.report.html import DASH, Html, PageSection
from cordgt.analysis.report.plots import (
    ABOVE_MARK,
    format_metric,
    format_percent,
    format_times,
    format_win_rate,
    metric_figure,
    percent_axis,
    precision_recall_plot,
    time_plot,
    training_plots,
)
from cordgt.analysis.report.probabilities import probability_sections
from cordgt.analysis.report.sample import (
    MAX_EVENTS,
    GroupMetrics,
    ScoredSample,
    group_by_degree,
    group_by_novelty,
    group_by_time,
    group_metrics,
)
from cordgt.callbacks import Callbacks
from cordgt.inference.predictor import sigmoid
from cordgt.inference.run import Run
from cordgt.io.datasets import registry
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.training.settings import Settings, format_value, make_settings

REPORT_FILE = "report.html"
SMALL_GROUP = 30  # groups with fewer events are drawn in grey
ABOUT_WIN_RATE = (
    "Win rate: the share of events that score above their negative, with its 95 % confidence interval. Guessing gives "
    f"50 %. Groups of fewer than {SMALL_GROUP} events say little."
)


def write_report(
    run: Run | str | Path,
    callbacks: Callbacks = None,
    *,
    max_events: int | None = MAX_EVENTS,
    task: LinkTask | None = None,
) -> Path:
    """Write ``report.html`` into the run folder, replacing an old one, and return its path.

    ``run`` is a run or its folder. Other arguments as in `collect_report_data`. RunError if the file cannot be written.

    Examples:
        >>> cordgt.write_report("runs/mine").name
        'report.html'
    """
    run = run if isinstance(run, Run) else Run.load(run)
    data = collect_report_data(run, callbacks, max_events=max_events, task=task)
    run.folder.write_text(REPORT_FILE, render_run_report(data))
    return run.path / REPORT_FILE


def render_run_report(data: ReportData) -> str:
    """Return the report of one run as an HTML page."""
    return html.page(
        f"{data.settings.model} on {data.task.stream.name or 'events'}",
        html.paragraph(verdict(data.metrics), css="lead"),
        html.cards(_main_numbers(data)),
        *(html.warning(sentence) for sentence in _warnings(data)),
        sections=[
            _metrics_section(data),
            *_recommendation_sections(data),
            _training_section(data),
            _precision_recall_section(data),
            _time_section(data),
            _activity_section(data),
            _novelty_section(data),
            *probability_sections(data),
            *([distance_section(data)] if hasattr(data.model, "influences") else []),
            surprises_section(data),
            _setup_section(data),
        ],
    )


# -------------------- the first screen


def _main_numbers(data: ReportData) -> list[tuple[str, str, str]]:
    """Title, value and remark of the numbers to see first: those of what the run was trained for."""
    test, primary = data.metrics["test"], data.metrics.primary_metric
    transductive = test["transductive"]
    has_ranks = transductive.get("mrr") is not None
    name = "mrr" if primary == "mrr" and has_ranks else "ap"
    rows = []
    for setting in SETTINGS:
        value, best = test[setting].get(name), data.metrics.best_baseline(setting, name)
        remark = "not defined" if value is None else ""
        if value is not None and best is not None:
            remark = f"{100 * (value - best[1]):+.2f} points to “{best[0]}”"
        rows.append((f"Test {LINK_METRICS[name].title}, {setting}", format_percent(value), remark))
    if has_ranks:
        remark = f"rank among {data.metrics['protocol']['ranking']} candidates"
        rows.append(("Test hits@10, transductive", format_percent(transductive["hits@10"]), remark))
    else:
        rows.append(("Test AUC, transductive", format_percent(transductive["auc"]), "guessing gives 50"))
    n_inductive = f"{test['inductive']['events']:,} with a new node"
    return [*rows, ("Test events", f"{transductive['events']:,}", n_inductive)]


def _warnings(data: ReportData) -> list[str]:
    """What a reader should know before trusting the numbers."""
    sample = data.sample
    sentences = registry.select_differences(data.task.stream.notes)
    if data.model.learns_ranking:
        hint = "" if "mrr" in data.metrics["test"]["transductive"] else " (`--set ranking=100`)"
        sentences.append(
            "This model learned to rank the destinations of one source. Judge it by its ranks (MRR)"
            f"{hint}, not by AP and AUC over all events: its scores of different sources cannot be "
            "compared. The lists below use the margin between an event and its negative."
        )
    if sample.is_partial:
        sentences.append(
            f"The plots and lists below use {len(sample):,} of the {sample.n_total:,} test events, evenly spread. The "
            "metrics use all of them. `cordgt report RUN --events all` plots every event."
        )
    sentences += constant_remarks(data.metrics) + initial_run_remarks(data.metrics)
    if sample.n_total < 100:
        sentences.append(f"The test period has only {sample.n_total} events, so all numbers here are rough.")
    return sentences


# -------------------- metrics and training


def _metrics_section(data: ReportData) -> PageSection:
    metrics = data.metrics
    rows: list[list[Any]] = []
    for row in metrics.rows():
        cells = [format_metric(name, row.metrics[name].mean) for name in metrics.columns()]
        if row.baseline is None:
            rows.append([f"{row.split}, {row.setting}", *cells, " ".join(f"{n:,}" for n in row.events)])
        else:
            mark = ABOVE_MARK if row.above_run else ""
            rows.append([Html(f'<span class="baseline">&nbsp; {html.text(row.baseline)}{mark}</span>'), *cells, ""])
    is_pair_model = metrics.primary_metric == "ap"
    checked = ", ".join(
        m.title for m in LINK_METRICS.values() if m.checks_baselines and (is_pair_model or m.needs_ranks)
    )
    others = [title for name, title in metrics.columns().items() if not LINK_METRICS[name].is_share]
    except_others = f", except {', '.join(others)}" if others else ""
    caption = f"In percent{except_others}; ▲: a trivial baseline is above the model, in {checked}"
    name = "ap" if metrics.metric(metrics.primary_metric).mean is None else metrics.primary_metric
    plots = [
        _baseline_figure(data, setting, name) for setting in SETTINGS if metrics["test"][setting].get(name) is not None
    ]
    return html.section(
        "Metrics, compared with trivial baselines",
        html.table(["", *metrics.columns().values(), "events"], rows, caption=caption),
        html.side_by_side(*plots),
        html.paragraph(
            f"Each true event is compared with one negative ({metrics['protocol']['negatives']}), so guessing gives "
            f"50. Inductive: only events with a node that training never saw. {metric_legend(metrics)}",
            css="how",
        ),
        anchor="metrics",
        link="Metrics",
    )


def _baseline_figure(data: ReportData, setting: str, name: str) -> Html:
    """A test metric of the run and of each baseline."""
    metrics = data.metrics
    baselines = [(b, metrics.metric(name, "test", setting, b).mean, GRAY) for b in metrics.baselines]
    return metric_figure([(data.settings.model, metrics["test"][setting][name], 0), *baselines], setting, name)


def _recommendation_sections(data: ReportData) -> list[PageSection]:
    """The metrics of recommendation lists; nothing if none were measured."""
    tables = recommendation_tables(data.metrics)
    if not tables:
        return []
    units = f"In percent, except novelty (bits) and lift (a factor). {recommendation_legend()}"
    return [
        html.section(
            "Recommendation lists",
            *(html.table(table.columns, table.rows, caption=table.title) for table in tables),
            html.paragraph(units, css="how"),
            anchor="lists",
            link="Lists",
        )
    ]


def _training_section(data: ReportData) -> PageSection:
    best, monitor = data.metrics["best_epoch"], data.settings.training.monitor
    title = LINK_METRICS[monitor].title
    marker = None if best is None else (float(best), f"best: epoch {best}")
    plots = training_plots({data.settings.model: data}, monitor, marker=marker)
    if plots is None:
        sentence = "There is nothing to train in this model, so there is no curve."
        if data.model.is_trainable:
            sentence = "There is no curve: history.jsonl is missing or holds no complete epoch."
        return html.section("Training curves", html.paragraph(sentence), anchor="curves", link="Curves")
    rows = []
    for r in data.epochs():
        value = format_metric(monitor, r.get("validation", {}).get(monitor))
        rows.append([str(r["epoch"]), f"{r['loss']:.4f}", value, f"{r['train_seconds']:.1f}"])
    return html.section(
        "Training curves",
        html.side_by_side(
            html.figure(plots[0], "Mean training loss of each epoch: it should fall."),
            html.figure(plots[1], f"Validation {title}. The report uses the best epoch, which is marked."),
        ),
        html.details("The numbers", html.table(["epoch", "loss", f"validation {title}", "seconds"], rows)),
        anchor="curves",
        link="Curves",
    )


# -------------------- which events the model predicts well


def _precision_recall_section(data: ReportData) -> PageSection:
    ap = format_percent(group_metrics("all", data.sample, slice(None)).ap)
    caption = (
        "The threshold falls from left to right. Recall is the share of true events above it, precision the share of "
        f"true events among all pairs above it. The area under the curve is the AP, here {ap} %. Guessing gives 50 %."
    )
    distribution = _margin_figure(data.sample) if data.model.learns_ranking else _score_figure(data.sample)
    curve = html.figure(precision_recall_plot({"precision": data}), caption)
    return html.section("Precision and recall", html.side_by_side(curve, distribution), anchor="precision")


def _histogram(name: str, values: np.ndarray, edges: np.ndarray) -> Series:
    shares = np.histogram(values, edges)[0] / max(len(values), 1)
    return Series(name, ((edges[:-1] + edges[1:]) / 2).tolist(), shares.tolist(), has_markers=False)


def _margin_figure(sample: ScoredSample) -> Html:
    low, high = padded_range([0.0, *sample.margin.tolist()])
    series = _histogram("true events", sample.margin, np.linspace(low, high, 21))
    axis, y = Axis("margin, in logits", low, high), percent_axis([0.0, *series.y], "of the events")
    plot = line_chart([series], axis, y, marker=(0.0, "no margin"), alt="Distribution of the margins of true events")
    return html.figure(plot, "Logit of true events minus logit of their negatives: the less left of 0, the better.")


def _score_figure(sample: ScoredSample) -> Html:
    scores = {"true events": sample.positive, "negatives": sample.negative}
    series = [_histogram(name, sigmoid(logits), np.linspace(0, 1, 21)) for name, logits in scores.items()]
    axis = Axis("score", 0, 1, [(k / 4, f"{k / 4:g}") for k in range(5)])
    y = percent_axis([0.0, *series[0].y, *series[1].y], "of the events")
    plot = line_chart(series, axis, y, alt="Distribution of the scores")
    return html.figure(plot, "Scores of true events and of their negatives: the less they overlap, the better.")


def _time_section(data: ReportData) -> PageSection:
    rows = []
    for first, last, group in group_by_time(data.sample):
        times = format_times(data.task.stream, data.sample.positions[[first, last]])
        rows.append([*times, f"{group.n_events:,}", format_percent(group.ap), format_win_rate(group)])
    caption = "AP in consecutive parts of the test period with as many events each. A falling AP: train again sooner."
    return html.section(
        "Over time",
        html.figure(time_plot({data.settings.model: data}), caption),
        html.details("The numbers", html.table(["from", "to", "events", "AP", "win rate"], rows)),
        anchor="time",
    )


def _activity_section(data: ReportData) -> PageSection:
    plots, rows = [], []
    for end, degree in (("source", data.sample.src_degree), ("destination", data.sample.dst_degree)):
        groups = group_by_degree(data.sample, degree)
        plots.append(_group_figure(groups, f"By the number of earlier events of the {end}."))
        rows += _group_rows([group for group in groups if group.n_events], f"{end}: ")
    return html.section(
        "By node activity",
        html.side_by_side(*plots),
        html.paragraph(ABOUT_WIN_RATE, css="how"),
        html.details("The numbers", html.table(["earlier events", "events", "AP", "win rate"], rows)),
        anchor="activity",
        link="Activity",
    )


def _novelty_section(data: ReportData) -> PageSection:
    groups = group_by_novelty(data.sample)
    caption = "Repeated pairs are easy to predict. New pairs show what the model has learned beyond repetition."
    return html.section(
        "By novelty",
        html.side_by_side(_group_figure(groups, caption)),
        html.table(["", "events", "AP", "win rate"], _group_rows(groups)),
        html.paragraph(ABOUT_WIN_RATE, " A new node is in no training event.", css="how"),
        anchor="novelty",
        link="Novelty",
    )


def _group_rows(groups: Sequence[GroupMetrics], prefix: str = "") -> list[list[str]]:
    return [[f"{prefix}{g.name}", f"{g.n_events:,}", format_percent(g.ap), format_win_rate(g)] for g in groups]


def _group_figure(groups: Sequence[GroupMetrics], caption: str) -> Html:
    """Win rates of the groups that have events."""
    groups = [g for g in groups if g.n_events]
    dots = [
        DotRow(g.name, g.win_rate, g.low, g.high, f"{g.n_events:,} events", 0 if g.n_events >= SMALL_GROUP else GRAY)
        for g in groups
    ]
    axis = percent_axis([v for g in groups for v in (g.low, g.high, g.win_rate)], "win rate")
    alt = f"{caption} " + ", ".join(f"{g.name} {format_win_rate(g)}" for g in groups)
    return html.figure(dot_plot(dots, axis, alt=alt, reference=0.5), caption)


# -------------------- model, data and settings


def _setup_section(data: ReportData) -> PageSection:
    stream, split, metrics, settings = data.task.stream, data.task.split, data.metrics, data.settings
    boundaries = [0, stream.n_events - 1, split.validation[0], split.test[0]]
    data_facts = [
        ("events", f"{stream.n_events:,}"),
        ("nodes", f"{stream.n_nodes:,}"),
        *zip(("first", "last", "validation from", "test from"), format_times(stream, boundaries), strict=True),
        *((f"{name} events", f"{len(getattr(split, name)):,}") for name in ("train", "validation", "test")),
        ("masked nodes", f"{int(split.masked.sum()):,}"),
        ("event features", stream.edge_dim),
        ("node features", stream.node_dim),
    ]
    training_facts = [
        ("model", settings.model),
        ("parameters", f"{metrics['parameters']:,}" if "parameters" in metrics else None),
        ("seed", settings.seed),
        ("epochs", metrics["epochs"]),
        ("best epoch", metrics.get("best_epoch") or DASH),
        ("seconds per epoch", f"{metrics.get('seconds_per_epoch', 0):.2f}"),
        ("device", metrics.get("device")),
        ("peak memory", f"{metrics['peak_memory_mb']:,.0f} MB" if "peak_memory_mb" in metrics else None),
        ("refitted on all events", "yes" if "refit" in metrics else "no"),
    ]
    return html.section(
        "Model, data and settings",
        html.paragraph(models.find_model(settings.model).about, "."),
        html.heading("Data"),
        html.definition_list(data_facts),
        *(html.paragraph(note, css="how") for note in stream.notes),
        html.heading("Training"),
        html.definition_list(training_facts),
        html.heading("Settings (bold: not the default)"),
        html.definition_list(_marked_settings(settings)),
        html.details(
            "Protocol: the evaluation settings that metrics depend on",
            html.definition_list(vars(settings.protocol).items()),
        ),
        html.details("metrics.json", Html(f"<pre>{html.text(metrics.to_json())}</pre>")),
        anchor="setup",
        link="Setup",
    )


def _marked_settings(settings: Settings) -> list[tuple[str, Any]]:
    """Settings of the model and of training; values that differ from the defaults are bold."""
    values, defaults = (
        {**vars(s.model_settings), **vars(s.training)} for s in (settings, make_settings(settings.model, {}))
    )
    bold = {
        key: Html(f"<strong>{html.text(format_value(v))}</strong>") for key, v in values.items() if defaults[key] != v
    }
    return [(key, bold.get(key, format_value(value))) for key, value in values.items()]
