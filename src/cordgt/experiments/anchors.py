"""The best published AP under three kinds of negatives (the anchors), and ours next to it."""

from __future__ import annotations

from functools import partial
from typing import Any

from cordgt.experiments import plots, published_results
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.hard_negatives import ANCHOR_NEGATIVES, EVAL_BATCH_SIZE, HARD_NEGATIVES
from cordgt.experiments.link import display_name
from cordgt.experiments.paper import Reported
from cordgt.experiments.tables import (
    MISSING,
    Comparison,
    ExperimentRequest,
    Panels,
    Report,
    ResultSet,
    Section,
    percentages,
)
from cordgt.tasks.negatives import NEGATIVES
from cordgt.tasks.run_metrics import SETTINGS

DATASETS = ("uci", "enron", "wikipedia", "mooc", "canparl", "uslegis")
DEFAULT_MODELS = ("cordgt_plus", "counts")
COLLABORATIVE = ("cordgt_plus", "counts")  # models that read collaborative columns here
WITHOUT = "without activity"


def anchor_cells(request: ExperimentRequest) -> list[Cell]:
    return request.make_cells("anchors", lambda data, model: {"collaborative": True} if model in COLLABORATIVE else {})


def anchor_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report AP by batches of 200 with each kind of negatives, next to the best published."""
    results = ResultSet(request, store, anchor_cells(request))
    sections, records = [], []
    panels: Panels = {}
    above = {model: [0, 0] for model in request.models}
    for data in request.datasets:
        rows = [["best published", *(_published_text(data, s, k) for s in SETTINGS for k in ANCHOR_NEGATIVES), ""]]
        for model in request.models:
            own = results.select(data, model)
            for part in ("test", "without_activity"):
                name = display_name(model) + ("" if part == "test" else f", {WITHOUT}")
                row = [name]
                for setting in SETTINGS:
                    for kind in ANCHOR_NEGATIVES:
                        comparison = _compare(own, data, setting, kind, part)
                        row.append(_text(comparison))
                        records.append(
                            {"data": data, "setting": setting, "negatives": kind, "model": model}
                            | {"activity": part == "test"}
                            | comparison.to_record()
                        )
                        if part == "test":
                            panels.setdefault((setting, f"{data}, {kind}"), {})[name] = comparison
                            if comparison.difference is not None:
                                above[model][0] += comparison.difference > 0
                                above[model][1] += 1
                rows.append([*row, str(len(own))])
        columns = [f"{s}, {kind}" for s in SETTINGS for kind in ANCHOR_NEGATIVES]
        sections.append(Section(results.heading(data), ["", *columns, "seeds"], rows))
    if {"cordgt_plus", "counts"} <= set(request.models):
        sections += _counts_sections(request, results)
    title = "AP next to the best published, by kind of negatives, in percent"
    notes = [
        f"AP: mean over batches of {EVAL_BATCH_SIZE} test events, as the published results. Mean ± sample standard "
        "deviation over the seeds, then the difference to the best published. Each seed masks other nodes; the "
        "published results have one draw.",
        "`historical-pairs` and `inductive-pairs`: negatives of DyGLib, whole pairs of the past with another source. "
        "There the score is log rate(u, t) + slope * logit(v | u, t): how often the source acts, and whom it picks. "
        "Validation data choose the slope. A source without events acts at the rate of all newcomers together. With "
        "random negatives the source is given, and the score is that of the partner alone.",
        *(
            f"{display_name(model)} is above the best published in {n} of {total} columns."
            for model, (n, total) in above.items()
            if total
        ),
        "CorDGT+ and counts have `collaborative=true`, on all datasets.",
        "Published: arXiv 2610.04869, which also collects the results of others.",
        *results.notes(show_protocol=False),
    ]
    draw = partial(plots.dot_plot, title=title, panels=panels, unit="AP, %", published_label="the best published")
    return Report(title, sections, records, notes, draw if panels else None)


def _counts_sections(request: ExperimentRequest, results: ResultSet) -> list[Section]:
    """Compare CorDGT+ with `counts`, which it contains: every kind of negatives, no activity, seeds that both have.

    First with the network in the same run. Cells of older versions do not have its metrics. Then with trainings of
    `counts` alone, which are the same network if they ran on the same device.
    """
    kinds = (ANCHOR_NEGATIVES[0], *HARD_NEGATIVES, *ANCHOR_NEGATIVES[1:])
    rows: dict[str, list[list[str]]] = {"same_run": [], "separate_run": []}
    for data in request.datasets:
        plus, counts = (results.select(data, model) for model in ("cordgt_plus", "counts"))
        shared = {cell["seed"] for cell in plus} & {cell["seed"] for cell in counts}
        with_network = [cell for cell in plus if "counts_weight" in cell["figures"]]
        pairs = {
            "same_run": (with_network, with_network),
            "separate_run": tuple([cell for cell in cells if cell["seed"] in shared] for cells in (plus, counts)),
        }
        for name, (own, other) in pairs.items():
            for setting in SETTINGS if own else ():
                texts = [_difference_text(own, other, kind, setting, name) for kind in kinds]
                rows[name].append([f"{data}, {setting}", *texts, str(len(own))])
    headings = {
        "same_run": "CorDGT+ without activity, and its difference to the counts network in it",
        "separate_run": "CorDGT+ without activity, and its difference to counts without activity",
    }
    return [Section(headings[name], ["", *kinds, "seeds"], part) for name, part in rows.items() if part]


def _difference_text(own: list[CellResult], other: list[CellResult], kind: str, setting: str, name: str) -> str:
    """Return the AP of ``own``, and in parentheses its difference to ``other``."""
    part = "without_activity" if NEGATIVES[kind].replaces_source else "test"
    parts = (part, "counts_alone" if name == "same_run" else part)
    ours, theirs = (
        Comparison(percentages(cells, kind, key, setting, "ap_batch"), None, len(cells)).mean
        for cells, key in zip((own, other), parts, strict=True)
    )
    return MISSING if ours is None or theirs is None else f"{ours:.2f} ({ours - theirs:+.2f})"


def _compare(own: list[CellResult], data: str, setting: str, kind: str, part: str) -> Comparison:
    best = published_results.best_ap_by_negatives(setting, kind, data)
    values = percentages(own, kind, part, setting, "ap_batch")
    return Comparison(values, None if best is None else Reported(best.value, 0.0), len(own))


def _text(comparison: Comparison) -> str:
    if comparison.mean is None or comparison.difference is None:
        return comparison.text
    return f"{comparison.text} ({comparison.difference:+.2f})"


def _published_text(data: str, setting: str, kind: str) -> str:
    best: Any = published_results.best_ap_by_negatives(setting, kind, data)
    return MISSING if best is None else f"{best.value:.2f} ({best.source})"
