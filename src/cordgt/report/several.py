"""The report of several runs: their figures side by side, their curves over each other, and what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cordgt.compare import data_words, on_same_data, paired, protocol_differences
from cordgt.report.asked import by_newness, staircase
from cordgt.report.charts import Axis, Dot, Line, dot_plot, line_chart, reach
from cordgt.report.look import Look, percent, share_axis, wins
from cordgt.report.one import best_floor, epoch_axis, epochs_of, recall_axis, time_line
from cordgt.report.page import (
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
from cordgt.run import every_setting
from cordgt.settings import Settings, written
from cordgt.tasks.link import SETTINGS

RESAMPLES = 1000
MARK = " ▲"  # beside what is above every run
GREY = 7  # the colour of what is no run
COLUMNS = tuple(
    (f"{name}, {setting}", setting, key) for setting in SETTINGS for name, key in (("AP", "ap"), ("AUC", "auc"))
)


def comparison(looks: Mapping[str, Look]) -> str:
    """The report of several runs by their names, the first one being what the others are compared with."""
    from cordgt import __version__

    said = differences(looks)
    links = [("figures", "Figures"), ("curves", "Curves"), ("settings", "Settings that differ")]
    parts = [_figures(looks, bool(said)), _curves(looks)]
    if not said:
        links[2:2] = [("precision", "Precision and recall"), ("time", "Over time"), ("newness", "Newness")]
        parts += [_precision_recall(looks), _time(looks), _newness(looks)]
    data = sorted({look.task.stream.name or "events" for look in looks.values()})
    return page(
        f"{len(looks)} runs on {', '.join(data)}",
        paragraph(_best(looks), kind="lead"),
        *(warning(sentence) for sentence in said),
        contents(links),
        *parts,
        _settings(looks),
        foot=f"Written by cordgt {__version__}. This file needs no network.",
    )


def differences(looks: Mapping[str, Look]) -> list[str]:
    """Why figures of runs cannot be compared, a sentence for each that differs from the first; [] where they can."""
    (first, own), *others = looks.items()
    found = []
    for name, look in others:
        if not on_same_data(own.task, look.task):
            told = [f"{n} on {data_words(k.task)}" for n, k in ((first, own), (name, look))]
            found.append(f"These runs were measured on other data: {told[0]}, {told[1]}. Their figures do not compare.")
            continue
        differing = protocol_differences(own.settings.protocol, look.settings.protocol)
        if differing:
            found.append(
                f"{first} and {name} were measured under protocols that differ in {', '.join(differing)}: they were "
                "asked other questions, and their figures compare only so far."
            )
    return found


def _best(looks: Mapping[str, Look]) -> str:
    """Which run reached most, and whether a trivial predictor reached more on the same test period."""
    found = {name: _ap(look) for name, look in looks.items() if _ap(look) is not None}
    if not found:
        return "None of these runs has a figure of its test period."
    best = max(found, key=lambda name: found[name] or 0.0)
    ap, floor = found[best] or 0.0, best_floor(looks[best].metrics, "transductive")
    highest = f"The highest test AP is that of {best}: {percent(ap)} %, transductive"
    if floor is None:
        return f"{highest}."
    if floor[1] > ap:
        reached = f"“{floor[0]}” reaches {percent(floor[1])} % average precision"
        return f"A trivial predictor does better than all of these: {reached} on the test period. {highest}."
    return f"{highest}, {100 * (ap - floor[1]):.2f} points above the best trivial predictor (“{floor[0]}”)."


def _ap(look: Look) -> float | None:
    value: float | None = look.metrics["test"]["transductive"]["ap"]
    return value


# -------------------- figures


def _figures(looks: Mapping[str, Look], differ: bool) -> Html:
    rows = [
        _row(name, look, None if i == 0 else next(iter(looks.values()))) for i, (name, look) in enumerate(looks.items())
    ]
    if not differ:
        rows += _spread(looks) + _floors(looks)
    dots = [Dot(n, _ap(k), note=f"{percent(_ap(k))} %", series=i) for i, (n, k) in enumerate(looks.items())]
    floor = None if differ else best_floor(next(iter(looks.values())).metrics, "transductive")
    if floor is not None:
        dots.append(Dot(f"{floor[0]} (trivial)", floor[1], note=f"{percent(floor[1])} %", series=GREY))
    said = "Test AP, transductive: " + ", ".join(f"{d.name} {d.note}" for d in dots)
    drawn = dot_plot(dots, share_axis([d.value for d in dots], "test AP", least=0.02), says=said, level=0.5)
    head = ["run", "model", "seed", *(name for name, _, _ in COLUMNS), "epochs", "s an epoch"]
    return section(
        "Figures of the test period",
        table(head, rows, caption=f"In percent; in brackets the difference to {next(iter(looks))}{_marked(rows)}"),
        side_by_side(figure(drawn, "Test AP, transductive: farther right is better.")),
        *([] if differ else [_intervals(looks)]),
        name="figures",
    )


def _row(name: str, look: Look, first: Look | None) -> list[Any]:
    cells = []
    for _, setting, key in COLUMNS:
        value = look.metrics["test"][setting][key]
        other = None if first is None else first.metrics["test"][setting][key]
        change = "" if value is None or other is None else f" ({100 * (value - other):+.2f})"
        cells.append(f"{percent(value)}{change}")
    seconds = look.metrics.get("seconds_per_epoch", 0.0)
    return [name, look.settings.model, str(look.settings.seed), *cells, str(look.metrics["epochs"]), f"{seconds:.1f}"]


def _spread(looks: Mapping[str, Look]) -> list[list[Any]]:
    """Mean and standard deviation where the runs differ in their seeds alone."""
    if len(looks) < 2 or len({_but_seed(look.settings) for look in looks.values()}) > 1:
        return []
    cells = []
    for _, setting, key in COLUMNS:
        values = [look.metrics["test"][setting][key] for look in looks.values()]
        sound = [100 * v for v in values if v is not None]
        cells.append(f"{np.mean(sound):.2f} ± {np.std(sound, ddof=1):.2f}" if len(sound) > 1 else DASH)
    return [[Html("<strong>mean ± standard deviation</strong>"), "", "", *cells, "", ""]]


def _but_seed(settings: Settings) -> tuple[Any, ...]:
    return settings.model, settings.protocol, settings.training, settings.model_settings


def _floors(looks: Mapping[str, Look]) -> list[list[Any]]:
    """Trivial predictors, the same for runs that compare; marked where one is above every run."""
    found = []
    for name, of in next(iter(looks.values())).metrics.get("floors", {}).items():
        above = any(_is_above(of["test"][s][k], s, k, looks) for _, s, k in COLUMNS)
        title = Html(f'<span class="floor">{text(name)}{MARK if above else ""}</span>')
        cells = [
            f"{percent(of['test'][s][k])}{MARK if _is_above(of['test'][s][k], s, k, looks) else ''}"
            for _, s, k in COLUMNS
        ]
        found.append([title, "", "", *cells, "", ""])
    return found


def _is_above(value: float | None, setting: str, key: str, looks: Mapping[str, Look]) -> bool:
    """Whether a figure is higher than those of all runs."""
    theirs = [v for look in looks.values() if (v := look.metrics["test"][setting][key]) is not None]
    return value is not None and bool(theirs) and value > max(theirs)


def _marked(rows: Sequence[Sequence[Any]]) -> str:
    """What the mark means, where there is one."""
    there = any(MARK in str(cell) for row in rows for cell in row)
    return f";{MARK}: a trivial predictor reaches more than every run" if there else ""


def _intervals(looks: Mapping[str, Look]) -> Html:
    """How sure the differences to the first run are."""
    (first, own), *others = looks.items()
    rows = []
    for name, look in others:
        scores = [(k.asked.positive, k.asked.negative) for k in (own, look)]
        for key, row in paired(scores, resamples=RESAMPLES).items():
            low, high = 100 * row["low"], 100 * row["high"]
            sure = "better" if low > 0 else "worse" if high < 0 else "no difference can be told"
            rows.append([name, key.upper(), f"{100 * row['difference']:+.2f}", f"{low:+.2f} to {high:+.2f}", sure])
    return Html(
        table(["run", "figure", "difference", "95 % interval", f"than {first}"], rows)
        + paragraph(
            f"On the {len(own.asked):,} test events that this report looks at, from a paired bootstrap of "
            f"{RESAMPLES:,} resamples of them. It says nothing of other seeds. "
            "`cordgt compare` does the same on every test event.",
            kind="how",
        )
    )


# -------------------- curves over each other


def _curves(looks: Mapping[str, Look]) -> Html:
    trained = {name: epochs_of(look.history) for name, look in looks.items()}
    lines: dict[str, list[Line]] = {"loss": [], "ap": []}
    for name, epochs in trained.items():  # those without a curve keep their colour
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
                "Mean training loss of each epoch; those of different models need not be of one kind.",
            ),
        ),
        name="curves",
    )


def _precision_recall(looks: Mapping[str, Look]) -> Html:
    lines = []
    for name, look in looks.items():
        lines.append(Line(name, *staircase(look.asked), marks=False))
    y = share_axis([v for line in lines for v in line.y], "precision")
    drawn = line_chart(lines, recall_axis(), y, says="Precision over recall of each run", level=0.5)
    said = "Farther up and right is better; guessing stays at 50 %."
    return section("Precision and recall", side_by_side(figure(drawn, said)), name="precision")


def _time(looks: Mapping[str, Look]) -> Html:
    found = [time_line(look.task.stream, look.asked, name) for name, look in looks.items()]
    lines = [line for _, line in found]
    drawn = line_chart(
        lines, found[0][0], share_axis([v for k in lines for v in k.y], "AP"), says="AP over the test period"
    )
    said = "AP in consecutive parts of the test period. A model that falls more than others gets old sooner."
    return section("Over time", side_by_side(figure(drawn, said)), name="time")


def _newness(looks: Mapping[str, Look]) -> Html:
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
        drawn = dot_plot(dots, share_axis(ends, "above its negative"), says=f"{kind.name}: by run", level=0.5)
        plots.append(figure(drawn, f"{kind.name}: {kind.events:,} events."))
    return section(
        "By newness",
        side_by_side(*plots),
        paragraph(
            "The share of events that score above the destination they are told from, with its 95 % interval.",
            kind="how",
        ),
        name="newness",
    )


# -------------------- settings


def _settings(looks: Mapping[str, Look]) -> Html:
    """The settings in which the runs differ; a dash where a model has no such setting."""
    flat = [_flat(look.settings) for look in looks.values()]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [[key, *values] for key in keys if len(set(values := _values(flat, key))) > 1]
    if not rows:
        return section("Settings that differ", paragraph("None: these runs were made alike."), name="settings")
    return section("Settings that differ", table(["", *looks], rows), name="settings")


def _values(flat: Sequence[Mapping[str, str]], key: str) -> list[str]:
    return [one.get(key, DASH) for one in flat]


def _flat(settings: Settings) -> dict[str, str]:
    tables = {"model": settings.model, "seed": settings.seed, **every_setting(settings)}
    return {key: written(value) for key, value in tables.items()}
