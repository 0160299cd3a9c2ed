"""The report of one run: ``report.html`` in its folder.

Sections that do not apply to a model say so in a sentence, or are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cordgt import models
from cordgt.analysis.remarks import constant_remarks, initial_run_remarks, metric_legend, verdict
from cordgt.analysis.report.charts import Axis, Dot, Line, dot_plot, line_chart, reach
from cordgt.analysis.report.data import ReportData, collect_report_data, percent, share_axis, times_of, wins
from cordgt.analysis.report.explanations import by_distance, most_surprising
from cordgt.analysis.report.html import (
    DASH,
    Html,
    cards,
    contents,
    details,
    facts,
    figure,
    page,
    paragraph,
    section,
    side_by_side,
    table,
    text,
    warning,
)
from cordgt.analysis.report.sample import (
    AT_MOST,
    Asked,
    Group,
    by_activity,
    by_newness,
    group,
    over_time,
    staircase,
)
from cordgt.callbacks import Callbacks
from cordgt.events.stream import EventStream
from cordgt.inference.predictor import sigmoid
from cordgt.inference.run import Run
from cordgt.io.datasets import registry
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import LINK_METRICS
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.training.settings import Settings, make, written

FILE = "report.html"
MARK = " ▲"  # a baseline above the model
CAPTION = "In percent; ▲: a trivial baseline is above the model, in "
FEW = 30  # events below which a group's figure says little


def write_report(
    run: Run, callbacks: Callbacks = None, *, at_most: int | None = AT_MOST, task: LinkTask | None = None
) -> Path:
    """Write ``report.html`` into the run folder, replacing an old one, and return its path.

    Arguments as in `collect_report_data`. RunError if the file cannot be written.
    """
    run.folder.write_text(FILE, report(collect_report_data(run, callbacks, at_most=at_most, task=task)))
    return run.path / FILE


def report(look: ReportData) -> str:
    """The report of one run as a page."""
    from cordgt import __version__

    name = f"{look.settings.model} on {look.task.stream.name or 'events'}"
    sections = [
        _figures(look),
        _curves(look),
        _precision_recall(look),
        _time(look),
        _activity(look),
        _newness(look),
        by_distance(look),
        most_surprising(look),
        _what(look),
    ]
    return page(name, *_head(look), *sections, foot=f"Written by cordgt {__version__}. This file needs no network.")


# -------------------- the first screen


def _head(look: ReportData) -> list[Html]:
    metrics = look.metrics
    test = metrics["test"]
    best = {setting: metrics.best_baseline(setting) for setting in SETTINGS}
    rows = [
        (f"Test AP, {setting}", percent(test[setting]["ap"]), _against(test[setting]["ap"], best[setting]))
        for setting in SETTINGS
    ]
    if look.model.learns_ranking and "mrr" in test["transductive"]:
        against = f"rank among {metrics['protocol']['ranking']} candidates"
        rows.append(("Test MRR, transductive", percent(test["transductive"]["mrr"]), against))
    else:
        rows.append(("Test AUC, transductive", percent(test["transductive"]["auc"]), "50 is guessing"))
    rows.append(
        ("Test events", f"{test['transductive']['events']:,}", f"{test['inductive']['events']:,} with a new node")
    )
    parts = [paragraph(verdict(metrics), kind="lead"), cards(rows)]
    parts += [warning(sentence) for sentence in _cautions(look)]
    links = (
        ("figures", "Figures"),
        ("curves", "Curves"),
        ("precision", "Precision and recall"),
        ("time", "Over time"),
        ("activity", "Activity"),
        ("newness", "Newness"),
        *([("distances", "Distances")] if hasattr(look.model, "influences") else []),
        ("surprises", "Surprises"),
        ("what", "What was trained"),
    )
    return [*parts, contents(links)]


def _against(ap: float | None, best: tuple[str, float] | None) -> str:
    """The lead over the best baseline, (name, AP)."""
    if ap is None:
        return "not defined"
    return "" if best is None else f"{100 * (ap - best[1]):+.2f} to “{best[0]}”"


def _cautions(look: ReportData) -> list[str]:
    """What a reader should know before trusting the numbers."""
    said = registry.select_differences(look.task.stream.notes)
    asked = look.asked
    if look.model.learns_ranking:
        ranked = "" if "mrr" in look.metrics["test"]["transductive"] else " (`--set ranking=100`)"
        said.append(
            "This model learnt to rank the partners of one source. How scores of different sources compare it leaves "
            "open: they are no probabilities, AP and AUC over all events say less of it than its ranks do"
            f"{ranked}, and events are listed below by their lead over the destination they are told from."
        )
    if asked.is_sample:
        said.append(
            f"The plots and lists below look at {len(asked):,} of the {asked.total:,} test events, evenly spread; "
            f"the figures are those of all. `cordgt report RUN --events all` looks at every one."
        )
    said += constant_remarks(look.metrics) + initial_run_remarks(look.metrics)
    if asked.total < 100:
        said.append(f"The test period has {asked.total} events: every figure here is rough.")
    return said


# -------------------- figures


def _figures(look: ReportData) -> Html:
    metrics = look.metrics
    rows: list[list[Any]] = []
    for row in metrics.rows():
        cells = [percent(row.metrics[name].mean) for name in metrics.columns()]
        if row.baseline is None:
            rows.append([f"{row.split}, {row.setting}", *cells, " ".join(f"{n:,}" for n in row.events)])
        else:
            mark = MARK if row.above_run else ""
            title = Html(f'<span class="baseline">&nbsp; {text(row.baseline)}{mark}</span>')
            rows.append([title, *cells, ""])
    plots = [_baseline_plot(look, setting) for setting in SETTINGS if metrics["test"][setting]["ap"] is not None]
    return section(
        "Figures, beside trivial predictors",
        table(
            ["", *metrics.columns().values(), "events"],
            rows,
            caption=CAPTION + ", ".join(m.title for m in LINK_METRICS.values() if m.checks_baselines),
        ),
        side_by_side(*plots),
        paragraph(
            f"Each true event is told from one other destination ({metrics['protocol']['negatives']} negatives), so "
            f"50 is guessing. “Inductive” are the events with a node that training never saw. {metric_legend(metrics)}",
            kind="how",
        ),
        name="figures",
    )


def _baseline_plot(look: ReportData, setting: str) -> Html:
    metrics = look.metrics
    own = metrics["test"][setting]["ap"]
    dots = [Dot(look.settings.model, own, note=f"{percent(own)} %")]
    for name in metrics.baselines:
        value = metrics.metric("ap", "test", setting, name).mean
        dots.append(Dot(name, value, note=f"{percent(value)} %", series=7))
    axis = share_axis([d.value for d in dots], "test AP")
    said = f"Test AP, {setting}: " + ", ".join(f"{d.name} {d.note}" for d in dots)
    return figure(dot_plot(dots, axis, says=said, level=0.5), f"Test AP, {setting}: farther right is better.")


# -------------------- curves


def epochs_of(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records of whole epochs of the first phase, by epoch."""
    found = {r["epoch"]: r for r in history if r.get("phase") == "fit" and "events" not in r and "loss" in r}
    return [found[k] for k in sorted(found)]


def _curves(look: ReportData) -> Html:
    epochs = epochs_of(look.history)
    if not epochs:
        return section(
            "Curves", paragraph("There is nothing to train in this model, so there is no curve."), name="curves"
        )
    at = [float(r["epoch"]) for r in epochs]
    loss = [float(r["loss"]) for r in epochs]
    monitor = look.settings.training.monitor
    name = f"validation {monitor.upper()}"
    monitored = [float(r["validation"][monitor]) if monitor in r.get("validation", {}) else np.nan for r in epochs]
    best = look.metrics["best_epoch"]
    x = epoch_axis(at)
    mark = (float(best), f"kept: epoch {best}")
    plots = [
        figure(
            line_chart(
                [Line("loss", at, loss)],
                x,
                Axis("training loss", *reach(loss)),
                mark=mark,
                says=f"Training loss over {len(at)} epochs",
            ),
            "Mean training loss of each epoch: lower is better, and it should fall.",
        ),
        figure(
            line_chart(
                [Line(name, at, monitored)],
                x,
                share_axis(monitored, name, least=0.01),
                mark=mark,
                says=f"V{name[1:]} over {len(at)} epochs; epoch {best} was kept",
            ),
            f"{monitor.upper()} on the validation period. The marked epoch was kept: it was the best one there.",
        ),
    ]
    rows = [
        [str(r["epoch"]), f"{r['loss']:.4f}", percent(a), f"{r['train_seconds']:.1f}"]
        for r, a in zip(epochs, monitored, strict=True)
    ]
    numbers = details("The numbers", table(["epoch", "loss", name, "seconds"], rows))
    return section("Curves", side_by_side(*plots), numbers, name="curves")


def epoch_axis(at: Sequence[float]) -> Axis:
    """Whole epochs, about six of them named."""
    last = int(max(at))
    step = max(1, round(last / 6))
    return Axis(
        "epoch",
        min(1, last - 1),
        max(last, 1),
        [(float(k), str(k)) for k in range(step if step > 1 else 1, last + 1, step)],
    )


# -------------------- where it is right


def _precision_recall(look: ReportData) -> Html:
    recall, precision = staircase(look.asked)
    ap = _of_all(look.asked).ap
    drawn = line_chart(
        [Line("precision", recall, precision, marks=False)],
        recall_axis(),
        share_axis(precision, "precision"),
        says=f"Precision over recall; AP {percent(ap)} %",
        level=0.5,
    )
    said = (
        "Lower the threshold from left to right: recall is the share of true events let through, precision the "
        f"share of what is let through that is true. The area is the AP, here {percent(ap)} %; guessing stays at 50 %."
    )
    return section("Precision and recall", side_by_side(figure(drawn, said), _spread(look)), name="precision")


def recall_axis() -> Axis:
    return Axis("recall, %", 0, 1, [(k / 4, str(25 * k)) for k in range(5)])


def _spread(look: ReportData) -> Html:
    """How the scores of true events and of the others spread; of a model that ranks, the leads of the true ones."""
    return _lead_plot(look.asked) if look.model.learns_ranking else _score_plot(look)


def _lead_plot(asked: Asked) -> Html:
    low, high = reach([0.0, *asked.lead.tolist()])
    share, edges = np.histogram(asked.lead, np.linspace(low, high, 21))
    shares = (share / max(len(asked), 1)).tolist()
    drawn = line_chart(
        [Line("true events", ((edges[:-1] + edges[1:]) / 2).tolist(), shares, marks=False)],
        Axis("lead, in logits", low, high),
        share_axis([0.0, *shares], "of the events"),
        mark=(0.0, "no lead"),
        says="How the leads of true events spread",
    )
    return figure(
        drawn,
        "Lead of true events over the destination they are told from: the less left of 0, the better.",
    )


def _score_plot(look: ReportData) -> Html:
    """How the scores of true events and of the others spread."""
    edges = np.linspace(0, 1, 21)
    middle = ((edges[:-1] + edges[1:]) / 2).tolist()
    shares = [
        (np.histogram(sigmoid(x), edges)[0] / max(len(x), 1)).tolist()
        for x in (look.asked.positive, look.asked.negative)
    ]
    lines = [
        Line("true events", middle, shares[0], marks=False),
        Line("other destinations", middle, shares[1], marks=False),
    ]
    x = Axis("score", 0, 1, [(k / 4, f"{k / 4:g}") for k in range(5)])
    drawn = line_chart(
        lines, x, share_axis([0.0, *shares[0], *shares[1]], "of the events"), says="How the scores spread"
    )
    return figure(
        drawn, "Scores of true events and of the destinations they are told from: the less they overlap, the better."
    )


def _of_all(asked: Asked) -> Group:
    return group("all", asked, np.ones(len(asked), dtype=bool))


def _time(look: ReportData) -> Html:
    parts = over_time(look.asked)
    x, line = time_line(look.task.stream, look.asked, look.settings.model)
    drawn = line_chart([line], x, share_axis(line.y, "AP"), says="AP over the test period")
    rows = [
        [times[0], times[1], f"{g.events:,}", percent(g.ap), wins(g)]
        for first, last, g in parts
        for times in [times_of(look.task.stream, look.asked.position[[first, last]])]
    ]
    return section(
        "Over time",
        figure(
            drawn,
            "AP in consecutive parts of the test period, with as many events each. A fall: what was learnt gets old.",
        ),
        details("The numbers", table(["from", "to", "events", "AP", "above its negative"], rows)),
        name="time",
    )


def time_line(stream: EventStream, asked: Asked, name: str) -> tuple[Axis, Line]:
    """AP over the test period, at the middle of each part, and its axis."""
    at, ap = [], []
    for first, last, g in over_time(asked):
        ends = stream.elapsed[asked.position[[first, last]]]
        at.append(float(ends.mean()))
        ap.append(np.nan if g.ap is None else g.ap)
    low, high = (float(stream.elapsed[asked.position[k]]) for k in (0, -1))
    named = times_of(stream, asked.position[[0, -1]], short=True)
    label = "time" if stream.time.kind == "date" else "time, in the unit of the data"
    return Axis(label, low, high, [(low, named[0]), (high, named[1])]), Line(name, at, ap)


def _activity(look: ReportData) -> Html:
    plots, rows = [], []
    for end, who in (("src", "source"), ("dst", "destination")):
        groups = by_activity(look.asked, end)
        plots.append(
            _groups_plot(groups, f"By the {who}'s earlier events", f"By how many events the {who} had before.")
        )
        rows += [[f"{who}: {g.name}", f"{g.events:,}", percent(g.ap), wins(g)] for g in groups if g.events]
    return section(
        "By node activity",
        side_by_side(*plots),
        paragraph(_groups_say(), kind="how"),
        details("The numbers", table(["earlier events", "events", "AP", "above its negative"], rows)),
        name="activity",
    )


def _newness(look: ReportData) -> Html:
    groups = by_newness(look.asked)
    rows = [[g.name, f"{g.events:,}", percent(g.ap), wins(g)] for g in groups]
    return section(
        "By newness",
        side_by_side(
            _groups_plot(
                groups, "By newness", "Pairs that had met are easy to foresee; first meetings show what was understood."
            )
        ),
        table(["", "events", "AP", "above its negative"], rows),
        paragraph(_groups_say(), " “New to the model”: a node in no training event.", kind="how"),
        name="newness",
    )


def _groups_say() -> str:
    return (
        "The dot is the share of events that score above the destination they are told from, with its 95 % interval; "
        f"50 % is guessing. Groups of fewer than {FEW} events say little."
    )


def _groups_plot(groups: Sequence[Group], title: str, caption: str) -> Html:
    there = [g for g in groups if g.events]
    dots = [
        Dot(g.name, g.wins, g.low, g.high, note=f"{g.events:,} events", series=0 if g.events >= FEW else 7)
        for g in there
    ]
    ends = [v for g in there for v in (g.low, g.high, g.wins)]
    said = f"{title}: " + ", ".join(f"{g.name} {wins(g)}" for g in there)
    return figure(dot_plot(dots, share_axis(ends, "above its negative"), says=said, level=0.5), caption)


# -------------------- what was trained on what


def _what(look: ReportData) -> Html:
    stream, split, metrics, settings = look.task.stream, look.task.split, look.metrics, look.settings
    ends = times_of(stream, np.array([0, stream.n_events - 1]))
    parts = [(f"{name} events", f"{len(getattr(split, name)):,}") for name in ("train", "validation", "test")]
    began = times_of(stream, np.array([split.validation[0], split.test[0]]))
    data = [
        ("events", f"{stream.n_events:,}"),
        ("nodes", f"{stream.n_nodes:,}"),
        ("first", ends[0]),
        ("last", ends[1]),
        ("validation from", began[0]),
        ("test from", began[1]),
        *parts,
        ("masked nodes", f"{int(split.masked.sum()):,}"),
        ("event features", stream.edge_dim),
        ("node features", stream.node_dim),
    ]
    training = [
        ("model", settings.model),
        ("parameters", f"{metrics['parameters']:,}" if "parameters" in metrics else None),
        ("seed", settings.seed),
        ("epochs", metrics["epochs"]),
        ("kept epoch", metrics.get("best_epoch") or DASH),
        ("seconds an epoch", f"{metrics.get('seconds_per_epoch', 0):.2f}"),
        ("device", metrics.get("device")),
        ("peak memory", f"{metrics['peak_memory_mb']:,.0f} MB" if "peak_memory_mb" in metrics else None),
        ("refitted on all events", "yes" if "refit" in metrics else "no"),
    ]
    return section(
        "What was trained on what",
        paragraph(models.find(settings.model).about, "."),
        Html("<h3>Data</h3>"),
        facts(data),
        *(paragraph(note, kind="how") for note in stream.notes),
        Html("<h3>Training</h3>"),
        facts(training),
        Html("<h3>Settings</h3>"),
        facts(_settings(settings)),
        details("The protocol: what the figures depend on besides the model", facts(vars(settings.protocol).items())),
        details("metrics.json", Html(f"<pre>{text(metrics.to_json())}</pre>")),
        name="what",
    )


def _settings(settings: Settings) -> list[tuple[Any, Any]]:
    """The model's and the training's settings; those that are not as by default are marked."""
    usual = _of_model(make(settings.model, {}))
    found = []
    for key, value in _of_model(settings).items():
        told = written(value)
        found.append((key, Html(f"<strong>{text(told)}</strong>") if usual[key] != value else told))
    return found


def _of_model(settings: Settings) -> dict[str, Any]:
    return {**vars(settings.model_settings), **vars(settings.training)}
