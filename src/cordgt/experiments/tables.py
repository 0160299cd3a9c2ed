"""Tables of what was found beside what the paper reports: as Markdown for people, as CSV for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cordgt.analysis.remarks import CONSTANT_CAUSES
from cordgt.experiments import paper
from cordgt.experiments.cells import Cell, Store
from cordgt.experiments.paper import Reported
from cordgt.files import write_atomically, write_text
from cordgt.io.datasets.twins import is_twin, twin_of
from cordgt.tasks.metrics import is_constant

NONE = "–"
OF_PAIRS = ("link", "hard", "ranking")  # kinds of cells with the figures of link prediction
Key = TypeVar("Key")


@dataclass(frozen=True)
class Asked:
    """What a call asks for."""

    datasets: list[str]
    models: list[str]
    seeds: list[int]
    changes: Mapping[str, Any] = field(default_factory=dict)  # of --set
    quick: bool = False


@dataclass(frozen=True)
class Compared:
    """One figure: ours over the seeds, in percent, and the paper's where it has one for this dataset."""

    values: tuple[float, ...]
    paper: Reported | None = None
    cells: int = 0  # finished ones, whether this figure is defined for them or not

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.values)) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for fewer than two values."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper.mean

    @property
    def words(self) -> tuple[str, str, str]:
        """The paper's, ours, and the difference, each as a table has it."""
        theirs = NONE if self.paper is None else f"{self.paper.mean:.2f} ± {self.paper.std:.1f}"
        difference = NONE if self.difference is None else f"{self.difference:+.2f}"
        return theirs, self.ours, difference

    @property
    def ours(self) -> str:
        if self.mean is None:
            return NONE
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"

    @property
    def columns(self) -> dict[str, Any]:
        """For CSV."""
        return {
            "paper": None if self.paper is None else self.paper.mean,
            "paper_std": None if self.paper is None else self.paper.std,
            "ours": _rounded(self.mean),
            "std": _rounded(self.std),
            "difference": _rounded(self.difference),
            "seeds": len(self.values),
            "values": " ".join(f"{v:.3f}" for v in self.values),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@dataclass
class Section:
    """A heading and a table below it."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Report:
    """A table of the paper's, as we have it: for people, for programs, and what to draw."""

    title: str
    sections: list[Section]
    records: list[dict[str, Any]]
    notes: list[str]
    draw: Callable[[Path], None] | None = None  # writes a PNG

    def markdown(self, picture: str | None = None) -> str:
        parts = [f"# {self.title}"]
        if picture is not None:
            parts.append(f"![{self.title}]({picture})")
        for section in self.sections:
            parts.append(f"## {section.heading}" if section.heading else "")
            parts.append(_table(section.columns, section.rows))
        parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(part for part in parts if part) + "\n"

    def csv(self) -> str:
        text = io.StringIO()
        names = list(dict.fromkeys(key for record in self.records for key in record))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(word.replace("|", "\\|") for word in line) + " |" for line in lines)


def write(report: Report, folder: Path, name: str) -> list[Path]:
    """``NAME.md``, ``.csv`` and ``.png`` into a folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {ending: folder / f"{name}.{ending}" for ending in ("md", "csv", "png")}
    if report.draw is not None:
        write_atomically(paths["png"], report.draw)
    written = {"md": report.markdown(f"{name}.png" if report.draw else None), "csv": report.csv()}
    for ending, text in written.items():
        write_text(paths[ending], text)
    return [path for ending, path in paths.items() if ending != "png" or report.draw is not None]


# -------------------- from cells


def percent(cells: Iterable[dict[str, Any]], *keys: str) -> tuple[float, ...]:
    """A figure of each cell, in percent, by the seed; those that have none are left out."""
    found = []
    for cell in sorted(cells, key=lambda k: k["seed"]):
        value: Any = cell["figures"]
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found.append(100 * float(value))
    return tuple(found)


def gains(cells: Iterable[dict[str, Any]], others: Iterable[dict[str, Any]], *keys: str) -> list[float]:
    """By how much a figure of some cells is above that of others, seed by seed, of those seeds that both have.

    A seed stands for the same masked nodes and negatives: means over different seeds would differ by the draw alone.
    """

    def by_seed(own: Iterable[dict[str, Any]]) -> dict[int, float]:
        return {cell["seed"]: value for cell in own for value in percent([cell], *keys)}

    ours, theirs = by_seed(cells), by_seed(others)
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def of_the_same_seeds(found: Mapping[Key, list[dict[str, Any]]]) -> dict[Key, list[dict[str, Any]]]:
    """Of each entry the cells of those seeds that all entries with any cell have: means over different seeds would
    differ by the draw of masked nodes alone. Where no seed is shared, all are empty.
    """
    seeds = [{cell["seed"] for cell in cells} for cells in found.values() if cells]
    shared = set.intersection(*seeds) if seeds else set()
    return {key: [cell for cell in cells if cell["seed"] in shared] for key, cells in found.items()}


def gather(store: Store, cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """What the finished ones of some cells say."""
    found = (store.read(cell) for cell in cells)
    return [cell for cell in found if cell is not None]


def comparable(cells: Iterable[dict[str, Any]]) -> bool:
    """Whether the paper's figures may stand beside these: their streams have the size of the dataset it names."""
    return all(paper.is_published(k["data"], k["stream"]["nodes"], k["stream"]["events"]) for k in cells)


def beside_paper(asked: Asked, data: str, cells: Iterable[dict[str, Any]]) -> bool:
    """Whether published figures may stand in the rows of a dataset, in all of them or in none.

    Never with ``--quick``, nor where any of the dataset's cells is of a stream of another size; and not before one of
    them is finished, for until then nobody knows.
    """
    own = [k for k in cells if k["data"] == data]
    return bool(own) and not asked.quick and comparable(own)


def data_name(data: str, cells: Iterable[dict[str, Any]]) -> str:
    """A dataset as a heading has it: with a star where it is not as published, which the foot explains."""
    return f"{data} *" if any(k["data"] == data and k["stream"]["differs"] for k in cells) else data


def data_notes(cells: Sequence[dict[str, Any]]) -> list[str]:
    """What is to be known of the data: where it is not as published, and where cells are of different files."""
    said: dict[str, None] = {}
    for cell in cells:
        stream = cell["stream"]
        size = f"{stream['nodes']:,} nodes, {stream['events']:,} events"
        if stream["differs"]:
            beside = " The paper's figures stand beside it all the same." if comparable([cell]) else ""
            said[f"\\* **{cell['data']}**: {stream['differs']}.{beside}"] = None
        elif is_twin(cell["data"]):
            of = twin_of(cell["data"])
            said[f"**{cell['data']}** ({size}) is generated after the sizes of {of}, and is not {of}."] = None
        elif not comparable([cell]):
            unknown = f"**{cell['data']}** ({size}) is not a dataset of the paper's: no figure of its stands beside it."
            said[unknown] = None
    for data in dict.fromkeys(cell["data"] for cell in cells):
        prints = {cell["stream"]["fingerprint"] for cell in cells if cell["data"] == data}
        if len(prints) > 1:
            said[f"**{data}**: the cells were made of {len(prints)} different files. Their mean means little."] = None
    return list(said)


def rule_notes(cells: Sequence[dict[str, Any]]) -> list[str]:
    """What a query saw, and what it was told apart from, here and in the paper."""
    said = []
    rules = sorted({k["settings"]["visibility"] for k in cells})
    negatives = sorted({k["settings"]["negatives"] for k in cells})
    if rules:
        shown = " and ".join(f"`{rule}`" for rule in rules)
        said.append(
            f"Ours: rule {shown}, {' and '.join(negatives)} negatives, over the whole test split; mean ± sample "
            "standard deviation over the seeds, each with its own draw of masked nodes. The paper's: its own rule, "
            "mean over batches of 30, three runs."
        )
        said.append(
            "`event` shows a query everything strictly earlier, `paper` no pair record of its own batch; the other "
            "differences are listed in docs/differences.md."
        )
    return said


def alike_notes(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Where training came to one score for every pair, which is the figure of guessing."""
    said = []
    for k in cells:
        if k["kind"] in OF_PAIRS and k.get("epochs") and is_constant(k["figures"]["test"]["transductive"]):
            variant = "" if k["variant"] == "default" else f", {k['variant']}"
            said.append(
                f"**{k['data']}, {k['model']}{variant}, seed {k['seed']}** (lr={k['settings']['lr']:g}): every pair of "
                f"the test period has the same score: {CONSTANT_CAUSES}."
            )
    return said


def how_notes(cells: Sequence[dict[str, Any]], wanted: int, stale: int) -> list[str]:
    """Where the figures come from: code and machines; and what is missing."""
    said = []
    if len(cells) < wanted:
        said.append(f"{len(cells)} of {wanted} cells are finished; the same command goes on with the others.")
    if stale:
        said.append(
            f"{stale} cells were made with other settings than today's and are left out until they are made again."
        )
    if any(k["quick"] for k in cells):
        said.append(_quick_note([k for k in cells if k["quick"]]))
    if cells:
        codes = sorted({k["code"]["commit"] or f"{k['code']['version']} ({k['code']['source']})" for k in cells})
        machines = sorted({k["machine"] for k in cells})
        said.append(f"Code: {', '.join(codes)}. Machines: {', '.join(machines)}. Commands stand in the cells.")
    return said


def _quick_note(cells: Sequence[dict[str, Any]]) -> str:
    """What ``--quick`` did: how many events, and how many epochs where there was something to train."""
    events = max(k["stream"]["events"] for k in cells)
    epochs = max((k["epochs"] for k in cells if k.get("epochs")), default=0)
    trained = "" if epochs == 0 else ", one epoch" if epochs == 1 else f", up to {epochs} epochs"
    return f"**Quick**: of the first {events:,} events{trained}. The figures say nothing."


def stale_cells(store: Store, cells: Iterable[Cell]) -> int:
    """How many have a file that cannot be used: damaged, or of other settings."""
    return sum(store.path(cell).exists() and store.read(cell) is None for cell in cells)


def notes(store: Store, wanted: Sequence[Cell], found: Sequence[dict[str, Any]], *, of_pairs: bool = True) -> list[str]:
    """The foot of a table. ``of_pairs``: its figures are those of link prediction, whose rules are told."""
    rules = rule_notes(found) if of_pairs else []
    how = how_notes(found, len(wanted), stale_cells(store, wanted))
    return [*rules, *alike_notes(found), *how, *data_notes(found)]
