"""The report of several runs: their metrics, their curves and the settings in which they differ, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cordgt.analysis.compare import data_words, on_same_data, paired_bootstrap, protocol_differences
from cordgt.analysis.remarks import verdict_of_several
from cordgt.analysis.report.charts import Axis, Dot, Line, dot_plot, line_chart, reach
from cordgt.analysis.report.data import ReportData, percent, share_axis, wins
from cordgt.analysis.report.html import (
    DASH,
    Html,
    contents,
    figure,
    page,
    paragraph,
    section,
    side_by_side,
    table,
    text,
    warning,
)
from cordgt.analysis.report.run_report import MARK, epoch_axis, epochs_of, recall_axis, time_line
from cordgt.analysis.report.sample import by_newness, staircase
from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.training.run_folder import every_setting
from cordgt.training.settings import Settings, written

RESAMPLES = 1000
GREY = 7  # colour of baselines
# (title, setting, metric) of each column of metrics
COLUMNS = tuple((f"{LINK_METRICS[m].title}, {setting}", setting, m) for setting in SETTINGS for m in ("ap", "auc"))


def comparison(looks: Mapping[str, ReportData]) -> str:
    """The report of several runs, by name. The others are compared with the first."""
    from cordgt import __version__

    warnings = differences(looks)
    links = [("figures", "Metrics"), ("curves", "Curves"), ("settings", "Settings that differ")]
    sections = [_metrics(looks, bool(warnings)), _curves(looks)]
    if not warnings:
        links[2:2] = [("precision", "Precision and recall"), ("time", "Over time"), ("newness", "Newness")]
        sections += [_precision_recall(looks), _time(looks), _newness(looks)]
    data = sorted({look.task.stream.name or "events" for look in looks.values()})
    return page(
        f"{len(looks)} runs on {', '.join(data)}",
        paragraph(verdict_of_several({name: look.metrics for name, look in looks.items()}), kind="lead"),
        *(warning(sentence) for sentence in warnings),
        contents(links),
        *sections,
        _settings(looks),
        foot=f"Written by cordgt {__version__}. This file needs no network.",
    )


def differences(looks: Mapping[str, ReportData]) -> list[str]:
    """Why metrics of runs do not compare: a sentence for each run that differs from the first; [] where all compare."""
    (first, own), *others = looks.items()
    found = []
    for name, look in others:
        if not on_same_data(own.task, look.task):
            data = [f"{n} on {data_words(k.task)}" for n, k in ((first, own), (name, look))]
            found.append(f"These runs use other data: {data[0]}, {data[1]}. Their metrics do not compare.")
            continue
        differing = protocol_differences(own.settings.protocol, look.settings.protocol)
        if differing:
            found.append(
                f"{first} and {name} have protocols that differ in {', '.join(differing)}. They answer other queries, "
                "so their metrics compare only roughly."
            )
    return found


# -------------------- metrics


def _metrics(looks: Mapping[str, ReportData], differ: bool) -> Html:
    rows = [
        _row(name, look, None if i == 0 else next(iter(looks.values()))) for i, (name, look) in enumerate(looks.items())
    ]
    if not differ:
        rows += _mean_and_std(looks) + _baselines(looks)
    aps = {name: look.metrics.metric("ap").mean for name, look in looks.items()}
    dots = [Dot(name, ap, note=f"{percent(ap)} %", series=i) for i, (name, ap) in enumerate(aps.items())]
    best = None if differ else next(iter(looks.values())).metrics.best_baseline("transductive")
    if best is not None:
        dots.append(Dot(f"{best[0]} (trivial)", best[1], note=f"{percent(best[1])} %", series=GREY))
    summary = "Test AP, transductive: " + ", ".join(f"{d.name} {d.note}" for d in dots)
    plot = dot_plot(dots, share_axis([d.value for d in dots], "test AP", least=0.02), says=summary, level=0.5)
    head = ["run", "model", "seed", *(name for name, _, _ in COLUMNS), "epochs", "s an epoch"]
    return section(
        "Metrics of the test period",
        table(head, rows, caption=f"In percent; in brackets the difference to {next(iter(looks))}{_marked(rows)}"),
        side_by_side(figure(plot, "Test AP, transductive: farther right is better.")),
        *([] if differ else [_intervals(looks)]),
        name="figures",
    )


def _row(name: str, look: ReportData, first: ReportData | None) -> list[Any]:
    """A run's metrics, with the differences to the first run."""
    cells = []
    for _, setting, key in COLUMNS:
        value = look.metrics.metric(key, "test", setting).mean
        other = None if first is None else first.metrics.metric(key, "test", setting).mean
        change = "" if value is None or other is None else f" ({100 * (value - other):+.2f})"
        cells.append(f"{percent(value)}{change}")
    seconds = look.metrics.get("seconds_per_epoch", 0.0)
    return [name, look.settings.model, str(look.settings.seed), *cells, str(look.metrics["epochs"]), f"{seconds:.1f}"]


def _mean_and_std(looks: Mapping[str, ReportData]) -> list[list[Any]]:
    """Mean and standard deviation where the runs differ only in their seeds."""
    if len(looks) < 2 or len({_but_seed(look.settings) for look in looks.values()}) > 1:
        return []
    cells = []
    for _, setting, key in COLUMNS:
        values = [100 * v for v in _values_of(looks, setting, key)]
        cells.append(f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else DASH)
    return [[Html("<strong>mean ± standard deviation</strong>"), "", "", *cells, "", ""]]


def _but_seed(settings: Settings) -> tuple[Any, ...]:
    return settings.model, settings.protocol, settings.training, settings.model_settings


def _baselines(looks: Mapping[str, ReportData]) -> list[list[Any]]:
    """A row per baseline, with a mark where it is above every run. Baselines are the same for runs that compare."""
    found = []
    metrics = next(iter(looks.values())).metrics
    for name in metrics.baselines:
        values = {(s, k): metrics.metric(k, "test", s, name).mean for _, s, k in COLUMNS}
        marks = {key: MARK if _is_above(value, *key, looks) else "" for key, value in values.items()}
        title = Html(f'<span class="baseline">{text(name)}{MARK if any(marks.values()) else ""}</span>')
        cells = [f"{percent(value)}{marks[key]}" for key, value in values.items()]
        found.append([title, "", "", *cells, "", ""])
    return found


def _is_above(value: float | None, setting: str, key: str, looks: Mapping[str, ReportData]) -> bool:
    """True where a value is higher than that of every run."""
    values = _values_of(looks, setting, key)
    return value is not None and bool(values) and value > max(values)


def _values_of(looks: Mapping[str, ReportData], setting: str, key: str) -> list[float]:
    """A metric of the runs' test periods, of the runs that have it."""
    means = (look.metrics.metric(key, "test", setting).mean for look in looks.values())
    return [mean for mean in means if mean is not None]


def _marked(rows: Sequence[Sequence[Any]]) -> str:
    """The meaning of the mark, where a row has it."""
    has_mark = any(MARK in str(cell) for row in rows for cell in row)
    return f";{MARK}: a trivial baseline is above every run" if has_mark else ""


def _intervals(looks: Mapping[str, ReportData]) -> Html:
    """The differences to the first run, with their confidence intervals."""
    (first, own), *others = looks.items()
    rows = []
    for name, look in others:
        scores = [(k.asked.positive, k.asked.negative) for k in (own, look)]
        for key, row in paired_bootstrap(scores, resamples=RESAMPLES).items():
            low, high = 100 * row["low"], 100 * row["high"]
            verdict = "better" if low > 0 else "worse" if high < 0 else "no clear difference"
            difference = f"{100 * row['difference']:+.2f}"
            rows.append([name, LINK_METRICS[key].title, difference, f"{low:+.2f} to {high:+.2f}", verdict])
    return Html(
        table(["run", "metric", "difference", "95 % interval", f"than {first}"], rows)
        + paragraph(
            f"A paired bootstrap with {RESAMPLES:,} resamples of the {len(own.asked):,} test events in this report. It "
            "does not cover other seeds. `cordgt compare` uses every test event.",
            kind="how",
        )
    )


# -------------------- curves over each other


def _curves(looks: Mapping[str, ReportData]) -> Html:
    trained = {name: epochs_of(look.history) for name, look in looks.items()}
    lines: dict[str, list[Line]] = {"loss": [], "ap": []}
    for name, epochs in trained.items():  # an untrained run has an empty line, so that the others keep their colours
        at = [float(r["epoch"]) for r in epochs]
        lines["loss"].append(Line(name, at, [float(r["loss"]) for r in epochs]))
        found = [float(r["validation"]["ap"]) if "validation" in r else np.nan for r in epochs]
        lines["ap"].append(Line(name, at, found))
    if not any(trained.values()):
        return section("Curves", paragraph("There is nothing to train in these models."), name="curves")
    x = epoch_axis([v for line in lines["loss"] for v in line.x])
    loss, ap = ([v for line in lines[k] for v in line.y] for k in ("loss", "ap"))
    return section(
        "Curves",
        side_by_side(
            figure(
                line_chart(lines["ap"], x, share_axis(ap, "validation AP", least=0.01), says="Validation AP by epoch"),
                "AP on the validation period after each epoch: higher is better.",
            ),
            figure(
                line_chart(lines["loss"], x, Axis("training loss", *reach(loss)), says="Training loss by epoch"),
                "Mean training loss of each epoch. Losses of different models may not be comparable.",
            ),
        ),
        name="curves",
    )


def _precision_recall(looks: Mapping[str, ReportData]) -> Html:
    lines = []
    for name, look in looks.items():
        lines.append(Line(name, *staircase(look.asked), marks=False))
    y = share_axis([v for line in lines for v in line.y], "precision")
    chart = line_chart(lines, recall_axis(), y, says="Precision over recall of each run", level=0.5)
    caption = "Farther up and right is better; guessing stays at 50 %."
    return section("Precision and recall", side_by_side(figure(chart, caption)), name="precision")


def _time(looks: Mapping[str, ReportData]) -> Html:
    found = [time_line(look.task.stream, look.asked, name) for name, look in looks.items()]
    lines = [line for _, line in found]
    chart = line_chart(
        lines, found[0][0], share_axis([v for k in lines for v in k.y], "AP"), says="AP over the test period"
    )
    caption = "AP in consecutive parts of the test period. A model whose AP falls faster needs training again sooner."
    return section("Over time", side_by_side(figure(chart, caption)), name="time")


def _newness(looks: Mapping[str, ReportData]) -> Html:
    groups = {name: by_newness(look.asked) for name, look in looks.items()}
    plots = []
    for k, kind in enumerate(next(iter(groups.values()))):
        if kind.events == 0:
            continue
        dots = [
            Dot(name, of[k].wins, of[k].low, of[k].high, note=wins(of[k]), series=i)
            for i, (name, of) in enumerate(groups.items())
        ]
        ends = [v for d in dots for v in (d.low, d.high)]
        plot = dot_plot(dots, share_axis(ends, "above its negative"), says=f"{kind.name}: by run", level=0.5)
        plots.append(figure(plot, f"{kind.name}: {kind.events:,} events."))
    return section(
        "By newness",
        side_by_side(*plots),
        paragraph(
            "Share of events that score above their negative, with its 95 % interval.",
            kind="how",
        ),
        name="newness",
    )


# -------------------- settings


def _settings(looks: Mapping[str, ReportData]) -> Html:
    """The settings in which the runs differ; a dash where a model lacks the setting."""
    flat = [_flat(look.settings) for look in looks.values()]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [[key, *values] for key in keys if len(set(values := _values(flat, key))) > 1]
    if not rows:
        return section("Settings that differ", paragraph("None: these runs have the same settings."), name="settings")
    return section("Settings that differ", table(["", *looks], rows), name="settings")


def _values(flat: Sequence[Mapping[str, str]], key: str) -> list[str]:
    return [one.get(key, DASH) for one in flat]


def _flat(settings: Settings) -> dict[str, str]:
    tables = {"model": settings.model, "seed": settings.seed, **every_setting(settings)}
    return {key: written(value) for key, value in tables.items()}
