"""The public benchmark tgbl-wiki-v2: every test event ranked among all destinations, next to its leaderboard.

No node is masked. Every model is trained and evaluated under two visibility rules: `event` (a query sees strictly
earlier events) and `batch` (it sees the events before its batch of 200, as the scripts of TGB do). Validation runs
after every epoch, so it ranks among fewer candidates. The test split is ranked among all destinations once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cordgt.experiments import plots, published_results
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.link import display_name
from cordgt.experiments.paper import Reported
from cordgt.experiments.tables import (
    MISSING,
    Comparison,
    ExperimentRequest,
    Report,
    ResultSet,
    Section,
    percentages,
)
from cordgt.models import MODELS

DATASETS = ("wikipedia",)
DEFAULT_MODELS = ("edgebank", "popularity", "counts", "cordgt_plus")
PROTOCOL = {"mask_nodes": 0.0, "eval_batch_size": 200, "ranking": "100"}
RULES = ("event", "batch")  # visibility
TRAINING_SETTINGS: dict[str, dict[str, Any]] = {
    "cordgt_plus": {"loss": "ranking", "num_negatives": 20, "monitor": "mrr", "batch_size": 200, "lr": 0.0002},
    "counts": {"loss": "ranking", "num_negatives": 20, "monitor": "mrr", "batch_size": 200},
}
DEFAULT_TRAINING_SETTINGS: dict[str, Any] = {"monitor": "mrr", "batch_size": 200}  # of all other models
AXIS_START = 40  # percent: the figure shows lower values at its left end
PANEL_TITLES = {
    "event": "rule event: a query sees everything earlier",
    "batch": "rule batch: a query sees what is before its batch",
    "": "published, rule not known",
}
RATIO = 100  # percent of 1: leaderboards show MRR between 0 and 1


class RankingRow(NamedTuple):
    """A model of ours with its seeds, or a published one."""

    name: str
    visibility: str
    test: Comparison  # MRR in percent: ours, or ``paper`` of a published model
    results: Sequence[CellResult] = ()

    @property
    def mrr(self) -> float:
        """MRR to sort by; -1 if unknown."""
        mrr = self.test.mean if self.test.paper is None else self.test.paper.mean
        return -1.0 if mrr is None else mrr


def ranking_cells(request: ExperimentRequest) -> list[Cell]:
    """Build the cells, both rules for each seed; one seed for models without training: nothing in them is random."""
    cells = [
        cell
        for seed in request.seeds
        for rule in RULES
        for cell in replace(request, seeds=[seed]).make_cells("ranking", partial(_settings, rule=rule))
    ]
    return [cell for cell in dict.fromkeys(cells) if _is_trained(cell.model) or cell.seed == request.seeds[0]]


def _is_trained(model: str) -> bool:
    return MODELS[model].network.is_trainable


def _settings(_data: str, model: str, rule: str) -> dict[str, Any]:
    own = TRAINING_SETTINGS.get(model, DEFAULT_TRAINING_SETTINGS) if _is_trained(model) else {}
    return PROTOCOL | own | {"visibility": rule}


def ranking_report(request: ExperimentRequest, store: CellStore) -> Report:
    """Report the MRR of every model among the published ones, best first."""
    cells = ranking_cells(request)
    results = ResultSet(request, store, cells)
    sections, records, leaderboards = [], [], []
    rows_by_data: dict[str, list[RankingRow]] = {}
    columns = ["", "", "visibility", "test MRR", "lowest seed", "test MRR by py-tgb", "hits@10"]
    columns += [f"validation MRR among {PROTOCOL['ranking']}", "seeds"]
    for data in request.datasets:
        heading = results.heading(data)
        leaderboard, rows = _rows(data, results)
        if leaderboard:
            leaderboards.append(f"{leaderboard} ({data})")
        sections.append(Section(heading, columns, [_texts(row) for row in rows]))
        records += [_record(data, row) for row in rows]
        rows_by_data[heading] = rows
    title = "Every event ranked among all destinations: MRR"
    published = f"Published: test MRR from the leaderboard {' and '.join(leaderboards)}. " if leaderboards else ""
    notes = [
        f"{published}Ours: the true destination is ranked among all others, except other true destinations of the same "
        "source and time; ties get their mean rank. Mean ± sample standard deviation over the seeds. Models without "
        "training have one seed.",
        "*By py-tgb*: the evaluator of the package py-tgb, on the same scores of the same candidates; a dash: the cell "
        "was made where it was not installed.",
        *_protocol_notes(results.results),
        *results.notes(show_protocol=False),
    ]
    return Report(title, sections, records, notes, partial(_draw, title=title, rows_by_data=rows_by_data))


def _draw(path: Path, title: str, rows_by_data: dict[str, list[RankingRow]]) -> None:
    """Draw a panel for each visibility rule, on an axis that shows the top; lower values stand at its left end."""
    panels = [
        (f"{heading}, {text}", own)
        for heading, rows in rows_by_data.items()
        for rule, text in PANEL_TITLES.items()
        if (own := [row for row in rows if row.visibility == rule])
    ]
    heights = [len(own) + 1.5 for _, own in panels] or [1.0]
    options: Any = {"sharex": True, "gridspec_kw": {"height_ratios": heights}}
    with plots.figure(path, max(1, len(panels)), 1, (7.0, 1.3 + 0.27 * sum(heights)), **options) as (canvas, axes):
        for axis, (heading, own) in zip(axes[:, 0], panels, strict=False):
            for y, row in enumerate(own):
                here = bool(row.results)
                color = plots.OURS if here else plots.PAPER
                x = max(row.mrr, AXIS_START)
                style: Any = {"color": color, "ms": 6, "mfc": color if here else "white"}
                axis.plot(x, y, "<" if row.mrr < AXIS_START else "o" if here else "D", **style)
                axis.annotate(f"{row.mrr:.1f}", (x, y), (7, -3), textcoords="offset points", color=color, fontsize=8)
            axis.set_title(heading, loc="left")
            axis.set_yticks(range(len(own)), [row.name for row in own])
            axis.set_ylim(len(own) - 0.5, -0.5)
            axis.grid(axis="x", color=plots.GRID, lw=0.7)
            axis.set_axisbelow(True)
            axis.tick_params(axis="y", length=0)
        remark = f"; {plots.NOT_AS_PUBLISHED}" if any(heading.endswith("*") for heading in rows_by_data) else ""
        label = f"MRR, %; filled: here; hollow: published; ◄: below {AXIS_START}{remark}"
        axes[-1][0].set(xlim=(AXIS_START - 1, 90), xlabel=label)
        canvas.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")


def _protocol_notes(results: Sequence[CellResult]) -> list[str]:
    """Say, from the cells' own settings, how models were evaluated and trained."""

    def format_settings(own: Sequence[CellResult], keys: Sequence[str]) -> str:
        values = {key: sorted({str(k["settings"][key]) for k in own if key in k["settings"]}) for key in keys}
        return ", ".join(f"`{key}={' or '.join(v)}`" for key, v in values.items() if v)

    notes = []
    if results:
        notes.append(f"Settings of all: {format_settings(results, [key for key in PROTOCOL if key != 'ranking'])}.")
    notes.append(
        "*Visibility* `event`: a query sees strictly earlier events, also those of its own batch; `batch`: it sees the "
        "events before its batch of 200; `mixed`: neighbors as in `event`, counts of the pair as in `batch`. Compare "
        "rows of the same rule only. The rule of a published row is that of its public evaluation code; empty: not "
        "known."
    )
    for model in dict.fromkeys(k["model"] for k in results if _is_trained(k["model"])):
        own = [k for k in results if k["model"] == model]
        keys = ["ranking", *dict.fromkeys([*DEFAULT_TRAINING_SETTINGS, *TRAINING_SETTINGS.get(model, {})])]
        notes.append(f"{display_name(model)} was trained and its epoch selected with {format_settings(own, keys)}.")
    return notes


def _rows(data: str, results: ResultSet) -> tuple[str, list[RankingRow]]:
    """Return the leaderboard's name and all rows; only our rows if the data differ from the published data."""
    show_published = results.is_comparable_to_paper(data)
    leaderboard, published = published_results.leaderboard(data) if show_published else ("", [])
    rows = [RankingRow(k.name, k.visibility, Comparison((), Reported(RATIO * k.mrr, 0.0))) for k in published]
    for model in results.request.models:
        for rule in RULES:
            own = [k for k in results.select(data, model) if k["settings"]["visibility"] == rule]
            if own:
                rows.append(RankingRow(f"{display_name(model)} here", rule, _metric(own, "test", "mrr"), own))
    return leaderboard, sorted(rows, key=lambda row: -row.mrr)


def _metric(results: Sequence[CellResult], split: str, metric: str) -> Comparison:
    return Comparison(percentages(results, split, "transductive", metric))


def _texts(row: RankingRow) -> list[str]:
    if row.test.paper is not None:
        return [row.name, "published", row.visibility, f"{row.mrr / RATIO:.3f}", "", "", "", "", ""]
    lowest = f"{min(row.test.values) / RATIO:.4f}" if row.test.values else MISSING
    by_tgb, hits = (_metric(row.results, "test", name) for name in ("mrr_py_tgb", "hits@10"))
    shown = (row.test, by_tgb, hits, _metric(row.results, "validation", "mrr"))
    mrr, tgb, hits10, validation = (metric.format("{:.4f}", scale=RATIO) for metric in shown)
    if by_tgb.values and len(by_tgb.values) < len(row.results):
        tgb += f" ({len(by_tgb.values)} of {len(row.results)} seeds)"
    name = f"**{row.name}**"
    return [name, "here", row.visibility, mrr, lowest, tgb, hits10, validation, str(len(row.results))]


def _record(data: str, row: RankingRow) -> dict[str, Any]:
    """Return a CSV line, with metrics between 0 and 1."""
    record: dict[str, Any] = {"data": data, "name": row.name, "source": "published" if row.test.paper else "here"}
    record["visibility"] = row.visibility
    if row.test.paper is not None:
        return record | {"test_mrr": round(row.mrr / RATIO, 6)}
    for split in ("test", "validation"):
        for name in ("mrr", "hits@10", *(["mrr_py_tgb"] if split == "test" else [])):
            metric = _metric(row.results, split, name)
            record[f"{split}_{name}"] = None if metric.mean is None else round(metric.mean / RATIO, 6)
            record[f"{split}_{name}_values"] = " ".join(f"{v / RATIO:.5f}" for v in metric.values)
    return record | {"seeds": len(row.results)}
