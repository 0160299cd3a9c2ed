"""The public ranking tgbl-wiki-v2: every test event ranked among all destinations, beside its leaderboard.

No node is masked. A model sees what is strictly earlier, as the published ones do that search a node's past (DyGFormer,
CAWN); rules that only count see what came before their batch of 200, as the published EdgeBank does. A training is
judged by ranks among fewer candidates, since validation comes with every epoch; all of them are ranked once, at the
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cordgt.experiments import plots, published_results
from cordgt.experiments.cells import Cell, Store, make_cell
from cordgt.experiments.link import model_name
from cordgt.experiments.paper import Reported
from cordgt.experiments.tables import (
    NONE,
    Asked,
    Compared,
    Report,
    Section,
    beside_paper,
    data_name,
    gather,
    notes,
    percent,
)
from cordgt.models import MODELS

DATASETS = ("wikipedia",)
USUAL = ("edgebank", "popularity", "counts", "cordgt_plus")
RULES = {"mask_nodes": 0.0, "eval_batch_size": 200, "ranking": "100"}
COUNTING = {"visibility": "batch"}  # of rules that learn nothing
# How models are trained for it: those that are named, and the others.
TRAINED: dict[str, dict[str, Any]] = {
    "cordgt_plus": {"loss": "ranking", "num_negatives": 20, "monitor": "mrr", "batch_size": 200, "lr": 0.0002},
    "counts": {"loss": "ranking", "num_negatives": 20, "monitor": "mrr", "batch_size": 200},
}
OTHERS: dict[str, Any] = {"monitor": "mrr", "batch_size": 200}


class Line(NamedTuple):
    """A line of the table: a model of ours by its seeds, or a published one."""

    name: str
    test: Compared  # ours, or ``paper`` the published one; percent
    cells: Sequence[dict[str, Any]] = ()

    @property
    def mrr(self) -> float:
        """What it is sorted by; below everything where nothing is known."""
        found = self.test.mean if self.test.paper is None else self.test.paper.mean
        return -1.0 if found is None else found


def ranking_cells(asked: Asked) -> list[Cell]:
    """Seed by seed; of rules that learn nothing one alone, for nothing in it is drawn."""
    return [
        make_cell(data, model, seed, _settings(model) | dict(asked.changes), kind="ranking", quick=asked.quick)
        for seed in asked.seeds
        for data in asked.datasets
        for model in asked.models
        if MODELS[model].network.is_trainable or seed == asked.seeds[0]
    ]


def _settings(model: str) -> dict[str, Any]:
    return RULES | (TRAINED.get(model, OTHERS) if MODELS[model].network.is_trainable else COUNTING)


def ranking_report(asked: Asked, store: Store) -> Report:
    """MRR of every model among the published ones, the best first."""
    wanted = ranking_cells(asked)
    every = gather(store, wanted)
    sections, records = [], []
    panels: dict[tuple[str, str], dict[str, Compared]] = {}
    boards = []
    for data in asked.datasets:
        here = [cell for cell in every if cell["data"] == data]
        board, lines = _lines(asked, data, here)
        if board:
            boards.append(f"{board} ({data})")
        columns = [
            "",
            "",
            "sees",
            "test MRR",
            "lowest seed",
            "hits@10",
            f"validation MRR among {RULES['ranking']}",
            "seeds",
        ]
        sections.append(Section(data_name(data, every), columns, [_words(line) for line in lines]))
        records += [_record(data, line) for line in lines]
        panels["", data_name(data, every)] = {line.name: line.test for line in lines}
    title = "Every event ranked among all destinations: MRR"
    published = f"Published: test MRR as the leaderboard has it, {' and '.join(boards)}. " if boards else ""
    said = [
        f"{published}Ours: every true destination ranked among all others, other true destinations of the same source "
        "and time left out, ties at their mean rank. Mean ± sample standard deviation over the seeds. Rules that learn "
        "nothing have one.",
        *_how(every),
        *notes(store, wanted, every, of_pairs=False),
    ]
    return Report(title, sections, records, said, partial(_draw, title, panels))


def _how(every: Sequence[dict[str, Any]]) -> list[str]:
    """By which rules, and how models were trained, as the cells have it."""

    def told(cells: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
        values = {key: sorted({str(k["settings"][key]) for k in cells if key in k["settings"]}) for key in keys}
        return ", ".join(f"`{key}={' or '.join(found)}`" for key, found in values.items() if found)

    said = [f"Rules: {told(every, [key for key in RULES if key != 'ranking'])}."] if every else []
    said.append(
        "*Sees*: `event`, what is strictly earlier than the event, as the published DyGFormer and CAWN see it; "
        "`batch`, what came before its batch, as the published EdgeBank does."
    )
    for model in dict.fromkeys(k["model"] for k in every if MODELS[k["model"]].network.is_trainable):
        own = [k for k in every if k["model"] == model]
        keys = ["ranking", *dict.fromkeys([*OTHERS, *TRAINED.get(model, {})])]
        said.append(f"{model_name(model)} was trained and its epoch chosen with {told(own, keys)}.")
    return said


def _lines(asked: Asked, data: str, here: Sequence[dict[str, Any]]) -> tuple[str, list[Line]]:
    """The leaderboard's name, and its lines with ours among them; ours alone where the data are not as published."""
    board, published = published_results.leaderboard(data) if beside_paper(asked, data, here) else ("", [])
    lines = [Line(k.by, Compared((), Reported(100 * k.value, 0.0))) for k in published]
    for model in asked.models:
        own = [cell for cell in here if cell["model"] == model]
        lines.append(Line(f"{model_name(model)} here", _figure(own, "test", "mrr"), own))
    return board, sorted(lines, key=lambda line: -line.mrr)


def _figure(cells: Sequence[dict[str, Any]], part: str, metric: str) -> Compared:
    return Compared(percent(cells, part, "transductive", metric))


def _words(line: Line) -> list[str]:
    if line.test.paper is not None:
        return [line.name, "published", "", f"{line.mrr / 100:.3f}", *[""] * 4]
    lowest = f"{min(line.test.values) / 100:.4f}" if line.test.values else NONE
    rest = [_share(_figure(line.cells, part, metric)) for part, metric in (("test", "hits@10"), ("validation", "mrr"))]
    sees = ", ".join(sorted({cell["settings"]["visibility"] for cell in line.cells})) or NONE
    return [f"**{line.name}**", "here", sees, _share(line.test), lowest, *rest, str(len(line.cells))]


def _share(ours: Compared) -> str:
    """Between 0 and 1, as leaderboards have it."""
    if ours.mean is None:
        return NONE
    spread = "" if ours.std is None else f" ± {ours.std / 100:.4f}"
    return f"{ours.mean / 100:.4f}{spread}"


def _record(data: str, line: Line) -> dict[str, Any]:
    """For programs, between 0 and 1."""
    found: dict[str, Any] = {"data": data, "name": line.name, "source": "published" if line.test.paper else "here"}
    if line.test.paper is not None:
        return found | {"test_mrr": round(line.mrr / 100, 6)}
    for part, metric in (("test", "mrr"), ("test", "hits@10"), ("validation", "mrr"), ("validation", "hits@10")):
        own = _figure(line.cells, part, metric)
        found |= {f"{part}_{metric}": None if own.mean is None else round(own.mean / 100, 6)}
        found |= {f"{part}_{metric}_values": " ".join(f"{v / 100:.5f}" for v in own.values)}
    return found | {"seeds": len(line.cells)}


def _draw(title: str, panels: dict[tuple[str, str], dict[str, Compared]], path: Path) -> None:
    plots.dots(path, title, panels, "MRR, %", theirs="published")
