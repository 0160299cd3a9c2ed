"""Section of the report about probabilities within a time: reliability plots, and metrics next to the baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cordgt.analysis.report import html
from cordgt.analysis.report.charts import Axis, Dot, dot_chart, format_number
from cordgt.analysis.report.data import ReportData
from cordgt.analysis.report.html import DASH, Html, PageSection
from cordgt.analysis.report.plots import ABOVE_MARK, format_percent
from cordgt.analysis.report.sample import wilson_interval
from cordgt.events.durations import format_duration, unit_name
from cordgt.events.stream import EventStream

SMALL_BIN = 30  # bins with fewer questions are hollow dots
FEW_OUTCOMES = 5  # bins with fewer outcomes of either kind, expected and observed, are hollow too
FEW_HORIZONS = 10  # that fit into the test period; with fewer, the questions share most of their outcomes
QUESTIONS = {"source": "Does a source act?", "pair": "Does a pair have an event?"}
PROBABILITY_COLUMNS = {"ece": "ECE", "brier": "Brier", "log_loss": "log loss"}
_TICKS = sorted({1.0, 0.75, *(m * 10.0**k for k in range(-7, 0) for m in (1, 2.5, 5))})

Format = Callable[[float], str]
HorizonMetrics = Mapping[str, Any]  # an entry of ``calibration.horizons`` in metrics.json


def probability_sections(data: ReportData) -> list[PageSection]:
    """Return the section, or nothing if the run has no metrics of probabilities, or there is no question."""
    calibration, next_event = data.metrics.get("calibration", {}), data.metrics.get("next_event", {})
    rows = calibration.get("horizons", [])
    kinds = [kind for kind in QUESTIONS if any(row[kind]["n"] for row in rows)]
    has_times = bool(next_event.get("n"))
    if not kinds and not has_times:
        return []
    parts: list[Html] = []
    if kinds:
        parts.append(html.paragraph(_ABOUT_PLOTS, css="how"))
        parts += [html.paragraph(sentence) for sentence in _remarks(data, rows, calibration.get("longest_horizon"))]
    for kind in kinds:
        parts += _question_parts(data, rows, kind)
    if kinds:
        parts.append(html.paragraph(_ABOUT_METRICS, css="how"))
    if has_times:
        parts += _time_parts(data, next_event)
    title = "How likely: probabilities within a time"
    return [html.section(title, *parts, anchor="probabilities", link="Probabilities")]


_ABOUT_PLOTS = (
    "The questions are about random times of the test period. Each dot stands for questions with similar forecasts. "
    "Of the questions with a forecast of 20 %, 20 % should come true: then the dots lie on the dashed diagonal. "
    "A dot below it means that the forecast is too high, a dot above it that it is too low. "
    "A larger dot has more questions. "
    f"A hollow dot says little: it has fewer than {SMALL_BIN} questions, or too few outcomes (fewer than "
    f"{FEW_OUTCOMES} events, or fewer than {FEW_OUTCOMES} questions without one, in forecast and data). "
    "Whiskers are 95 % confidence intervals of independent questions. Questions about the same source or the same "
    "days are not independent, so the true uncertainty is larger. "
    "The axes have a square-root scale, because most probabilities are small."
)
_ABOUT_METRICS = (
    "ECE (expected calibration error): mean difference between forecast and share that came true, over the dots. "
    "Brier score: mean squared error of the probability. Log loss: mean negative log likelihood. "
    "Lower is better in all three. A forecast that is the same for everyone can have a small ECE, so compare the log "
    "loss too. ▲: the baseline is better than the model."
)


def _remarks(data: ReportData, rows: Sequence[HorizonMetrics], longest: float | None) -> list[str]:
    """Say which horizons are too long for the test period, or longer than those that were calibrated."""
    stream, sentences = data.task.stream, []
    elapsed = stream.elapsed
    period = float(elapsed[-1] - elapsed[data.task.split.test[0] - 1])
    for row in rows:
        horizon = format_duration(row["horizon"], stream)
        if longest is not None and row["horizon"] > longest:
            sentences.append(f"Probabilities within {horizon} are an extrapolation: this horizon was not calibrated.")
        if not any(row[kind]["n"] for kind in QUESTIONS):
            sentences.append(f"The test period is too short for questions about {horizon}.")
        elif 0 < period < FEW_HORIZONS * row["horizon"]:
            sentences.append(
                f"The test period is {period / row['horizon']:.1f} times as long as the horizon of {horizon}. "
                "Its questions share most of their outcomes, so this result is rough."
            )
    return sentences


# -------------------- questions about a horizon


def _question_parts(data: ReportData, rows: Sequence[HorizonMetrics], kind: str) -> list[Html]:
    """Plot and tables of one kind of question."""
    stream = data.task.stream
    names = [format_duration(row["horizon"], stream) for row in rows]
    cells, bins = [], []
    for name, row in zip(names, rows, strict=True):
        own = row[kind]
        label = f"within {name}"
        formats = dict.fromkeys(PROBABILITY_COLUMNS, "{:.4f}".format)
        cells += _rows_with_baselines(label, own, formats, format_percent(own.get("share")))
        bins += [
            [label, format_percent(one["predicted"]), format_percent(one["observed"]), f"{one['n']:,}"]
            for one in own["bins"]
        ]
    header = ["", *PROBABILITY_COLUMNS.values(), "came true, %"]
    unit = _unit_remark(stream)
    return [
        html.heading(QUESTIONS[kind]),
        html.side_by_side(
            html.figure(_reliability_plot(names, rows, kind), f"Forecast and outcome, by horizon{unit}."),
            html.table(header, cells, caption=f"On the test period, next to the baselines{unit}"),
        ),
        html.details("The dots", html.table(["", "forecast, %", "came true, %", "questions"], bins)),
    ]


def _reliability_plot(names: Sequence[str], rows: Sequence[HorizonMetrics], kind: str) -> Html:
    """Share of questions that came true by forecast probability, one line per horizon."""
    all_bins = [one for row in rows for one in row[kind]["bins"] if one["n"]]
    largest = max((one["n"] for one in all_bins), default=1)
    high = max((max(one["predicted"], one["observed"]) for one in all_bins), default=1.0)
    high = min(max(1.1 * high, 1e-6), 1.0)
    series, facts = [], []
    for name, row in zip(names, rows, strict=True):
        bins = [one for one in row[kind]["bins"] if one["n"]]
        if not bins:
            continue
        series.append((f"{name}, {_size_range(bins)} questions per dot", [_dot(one, largest, name) for one in bins]))
        facts.append(f"within {name}: ECE {_format(row[kind]['ece'], '{:.4f}'.format)}")
    alt = f"Reliability plot. {QUESTIONS[kind]} {', '.join(facts)}"
    x, y = (_square_root_axis(label, high) for label in ("forecast probability, %", "came true, %"))
    return dot_chart(series, x, y, alt=alt)


def _dot(one: Mapping[str, Any], largest: int, name: str) -> Dot:
    n, predicted, observed = one["n"], *(min(max(one[key], 0.0), 1.0) for key in ("predicted", "observed"))
    low, high = wilson_interval(observed, n)
    tooltip = (
        f"within {name}: forecast {100 * predicted:.3g} %, came true {100 * observed:.3g} % "
        f"({100 * low:.2g}–{100 * high:.2g} %), {n:,} questions"
    )
    share = min(max(predicted, observed), 1 - min(predicted, observed))  # of the rarer outcome
    is_hollow = n < SMALL_BIN or n * share < FEW_OUTCOMES
    x, y, low, high = (math.sqrt(value) for value in (predicted, observed, low, high))
    return Dot(x, y, low, high, 1.5 + 3 * math.sqrt(n / largest), tooltip, is_hollow)


def _size_range(bins: Sequence[Mapping[str, Any]]) -> str:
    sizes = sorted(one["n"] for one in bins)
    return f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,}–{sizes[-1]:,}"


def _square_root_axis(label: str, high: float) -> Axis:
    """An axis for square roots of shares from 0 to ``high``, with ticks in percent that do not overlap."""
    chosen, least = [0.0], 0.12 * math.sqrt(high)
    for value in [v for v in _TICKS if v <= high][::-1]:
        if all(abs(math.sqrt(value) - math.sqrt(other)) >= least for other in chosen):
            chosen.append(value)
    ticks = [(math.sqrt(value), format_number(100 * value)) for value in sorted(chosen)]
    return Axis(label, 0.0, math.sqrt(high), ticks)


# -------------------- time of the next event


def _time_parts(data: ReportData, next_event: Mapping[str, Any]) -> list[Html]:
    stream, share = data.task.stream, next_event.get("share_without_next")
    formats: dict[str, Format] = {"nll": "{:.3f}".format, "mae": lambda value: format_duration(value, stream)}
    rows = _rows_with_baselines(data.settings.model, next_event, formats, f"{next_event['n']:,}")
    without = "" if share is None else f" {format_percent(share)} % of them had no later event in the test period."
    return [
        html.heading("When does a source act again?"),
        html.table(
            ["", "NLL", "mean absolute error", "cases"], rows, caption="Time from an event of a source to its next one"
        ),
        html.paragraph(
            "NLL: mean negative log likelihood of the time. Mean absolute error: distance of the median forecast from "
            f"the time{_unit_remark(stream)}. Lower is better in both.{without} For these, the time until the end of "
            "the test period counts. ▲: the baseline is better than the model.",
            css="how",
        ),
    ]


# -------------------- rows of tables


def _rows_with_baselines(
    name: str, own: Mapping[str, Any], formats: Mapping[str, Format], remark: str
) -> list[list[Any]]:
    """A row of the run, and one for each baseline. A mark shows where a baseline has the lower value."""
    rows: list[list[Any]] = [[name, *(_format(own[key], form) for key, form in formats.items()), remark]]
    for baseline, metrics in own["baselines"].items():
        cells = []
        for key, form in formats.items():
            is_lower = None not in (own[key], metrics[key]) and metrics[key] < own[key]
            cells.append(f"{_format(metrics[key], form)}{ABOVE_MARK if is_lower else ''}")
        title = Html(f'<span class="baseline">&nbsp; {html.text(baseline, html.MAX_ID_LENGTH)}</span>')
        rows.append([title, *cells, ""])
    return rows


def _format(value: float | None, form: Format) -> str:
    return DASH if value is None else form(value)


def _unit_remark(stream: EventStream) -> str:
    return "" if unit_name(stream) else ", in the unit of the data"
