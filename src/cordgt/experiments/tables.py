"""Reports of experiments: our results next to the paper's, as Markdown for people and CSV for programs.

`ExperimentRequest` says what to run, `ResultSet` holds the finished cells, `Comparison` one metric over the seeds, and
`Report` the tables. Each experiment has its own module (`link`, `ablation`, ...).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cordgt.analysis.remarks import CONSTANT_CAUSES
from cordgt.experiments import paper
from cordgt.experiments.cells import Cell, CellResult, CellStore, make_cell
from cordgt.experiments.paper import Reported
from cordgt.files import write_atomically, write_text
from cordgt.io.datasets.twins import is_twin, original_dataset
from cordgt.tasks.metrics import is_constant

MISSING = "–"
LINK_KINDS = ("link", "hard", "ranking", "anchors")  # kinds of cells that hold link prediction metrics
Key = TypeVar("Key")


@dataclass(frozen=True)
class ExperimentRequest:
    """Datasets, models, seeds and changed settings of one call."""

    datasets: list[str]
    models: list[str]
    seeds: list[int]
    changes: Mapping[str, Any] = field(default_factory=dict)  # from --set
    quick: bool = False

    def make_cell(
        self, data: str, model: str, seed: int, settings: Mapping[str, Any] | None = None, *, kind: str = "link"
    ) -> Cell:
        """Build a cell from ``changes``; ``settings`` win over them."""
        return make_cell(data, model, seed, {**self.changes, **(settings or {})}, kind=kind, quick=self.quick)

    def make_cells(
        self, kind: str = "link", defaults: Callable[[str, str], Mapping[str, Any]] = lambda data, model: {}
    ) -> list[Cell]:
        """Build one cell per seed, dataset and model, in this order: a table has one full seed before the second.

        ``defaults(data, model)`` gives settings that ``changes`` win over.
        """
        return [
            self.make_cell(data, model, seed, {**defaults(data, model), **self.changes}, kind=kind)
            for seed in self.seeds
            for data in self.datasets
            for model in self.models
        ]


@dataclass(frozen=True)
class Comparison:
    """One metric in percent: our values, one per seed, and the published result where there is one."""

    values: tuple[float, ...]
    paper: Reported | None = None
    n_cells: int = 0  # finished cells, also those in which this metric is undefined

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
    def text(self) -> str:
        """Our mean and standard deviation as a table shows them."""
        return self.format("{:.2f}")

    @property
    def texts(self) -> tuple[str, str, str]:
        """The paper's result, ours, and the difference as a table shows them."""
        published = MISSING if self.paper is None else f"{self.paper.mean:.2f} ± {self.paper.std:.1f}"
        return published, self.text, format_or_missing(self.difference, "{:+.2f}")

    def format(self, template: str, scale: float = 1.0) -> str:
        """Return ``mean ± std``, each divided by ``scale`` and formatted by ``template``."""
        if self.mean is None:
            return MISSING
        mean = template.format(self.mean / scale)
        return mean if self.std is None else f"{mean} ± {template.format(self.std / scale)}"

    def to_record(self, *, with_paper: bool = True) -> dict[str, Any]:
        """Return the columns of the CSV file."""
        published = {
            "paper": None if self.paper is None else self.paper.mean,
            "paper_std": None if self.paper is None else self.paper.std,
        }
        return (published if with_paper else {}) | {
            "ours": _rounded(self.mean),
            "std": _rounded(self.std),
            "difference": _rounded(self.difference),
            "seeds": len(self.values),
            "values": " ".join(f"{v:.3f}" for v in self.values),
        }


Panels = dict[tuple[str, str], dict[str, Comparison]]  # of a dot plot: by (row, column), then by name


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def format_or_missing(value: float | None, template: str) -> str:
    """Format a number; a dash for None."""
    return MISSING if value is None else template.format(value)


@dataclass
class Section:
    """A heading and the table below it."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Report:
    """One table or figure of an experiment: Markdown sections, CSV records, notes, and a function that draws it."""

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
            parts.append(_markdown_table(section.columns, section.rows))
        parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(part for part in parts if part) + "\n"

    def csv(self) -> str:
        text = io.StringIO()
        names = list(dict.fromkeys(key for record in self.records for key in record))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()


def _markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines)


def write_report(report: Report, folder: Path, name: str) -> list[Path]:
    """Write ``NAME.md``, ``.csv`` and ``.png`` atomically; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    markdown, table, picture = (folder / f"{name}.{suffix}" for suffix in ("md", "csv", "png"))
    if report.draw is not None:
        write_atomically(picture, report.draw)
    write_text(markdown, report.markdown(picture.name if report.draw else None))
    write_text(table, report.csv())
    return [markdown, table, picture] if report.draw else [markdown, table]


# -------------------- from cells


def read_finished(store: CellStore, cells: Iterable[Cell]) -> list[CellResult]:
    """Return the results of the cells that are finished."""
    results = (store.read(cell) for cell in cells)
    return [result for result in results if result is not None]


def percentages(results: Iterable[CellResult], *keys: str) -> tuple[float, ...]:
    """Return one metric in percent, ordered by seed; ``keys`` lead to it. Cells without it are left out."""
    values = []
    for result in sorted(results, key=lambda k: k["seed"]):
        value: Any = result["figures"]
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            values.append(100 * float(value))
    return tuple(values)


def paired_differences(results: Iterable[CellResult], others: Iterable[CellResult], *keys: str) -> list[float]:
    """Return ``results`` minus ``others`` in one metric, for each seed that both have.

    A seed fixes the masked nodes and the negatives, so means over different seeds would differ by the draw alone.
    """

    def by_seed(own: Iterable[CellResult]) -> dict[int, float]:
        return {result["seed"]: value for result in own for value in percentages([result], *keys)}

    ours, theirs = by_seed(results), by_seed(others)
    return [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]


def with_shared_seeds(results: Mapping[Key, list[CellResult]]) -> dict[Key, list[CellResult]]:
    """Keep, in every entry, the results of the seeds that all non-empty entries share; see `paired_differences`.

    Every entry is empty if no seed is shared.
    """
    seeds = [{result["seed"] for result in own} for own in results.values() if own]
    shared = set.intersection(*seeds) if seeds else set()
    return {key: [result for result in own if result["seed"] in shared] for key, own in results.items()}


def has_published_size(result: CellResult) -> bool:
    """Return whether the cell's stream has as many nodes and events as the paper's dataset of that name."""
    return paper.has_published_size(result["data"], result["stream"]["nodes"], result["stream"]["events"])


# -------------------- notes below the tables


def protocol_notes(results: Sequence[CellResult]) -> list[str]:
    """Say what a query sees and which negatives are used, here and in the paper."""
    if not results:
        return []
    rules = " and ".join(f"`{rule}`" for rule in sorted({k["settings"]["visibility"] for k in results}))
    negatives = " and ".join(sorted({k["settings"]["negatives"] for k in results}))
    return [
        f"Our results: visibility {rules}, {negatives} negatives, over the whole test split; mean ± sample standard "
        "deviation over the seeds. Each seed masks other nodes. The paper's results: its own visibility rule, mean "
        "over batches of 30, three runs.",
        "With `event` a query sees all strictly earlier events. With `paper` it sees no pair record of its own batch. "
        "docs/differences.md lists the other differences.",
    ]


def constant_score_notes(results: Sequence[CellResult]) -> list[str]:
    """Name the trained models that give every pair the same score, which is no better than chance."""
    notes = []
    for k in results:
        if k["kind"] in LINK_KINDS and k.get("epochs") and is_constant(k["figures"]["test"]["transductive"]):
            variant = "" if k["variant"] == "default" else f", {k['variant']}"
            notes.append(
                f"**{k['data']}, {k['model']}{variant}, seed {k['seed']}** (lr={k['settings']['lr']:g}): every pair of "
                f"the test split has the same score: {CONSTANT_CAUSES}."
            )
    return notes


def provenance_notes(results: Sequence[CellResult], n_cells: int, n_stale: int) -> list[str]:
    """Say which cells are missing, and which code and machines gave the others."""
    notes = []
    if len(results) < n_cells:
        notes.append(f"{len(results)} of {n_cells} cells are finished. Run the same command to continue.")
    if n_stale:
        notes.append(
            f"{n_stale} cells were made with other settings than today's. They are left out until they are made again."
        )
    quick = [k for k in results if k["quick"]]
    if quick:
        notes.append(_quick_note(quick))
    if results:
        codes = sorted({k["code"]["commit"] or f"{k['code']['version']} ({k['code']['source']})" for k in results})
        machines = sorted({k["machine"] for k in results})
        notes.append(f"Code: {', '.join(codes)}. Machines: {', '.join(machines)}. Each cell's file has its command.")
    return notes


def _quick_note(results: Sequence[CellResult]) -> str:
    """Say how many events and epochs ``--quick`` used."""
    events = max(k["stream"]["events"] for k in results)
    epochs = max((k["epochs"] for k in results if k.get("epochs")), default=0)
    trained = "" if epochs == 0 else ", one epoch" if epochs == 1 else f", up to {epochs} epochs"
    return f"**Quick**: the first {events:,} events{trained}. These numbers are not results."


def dataset_notes(results: Sequence[CellResult]) -> list[str]:
    """Say where data differ from the published data, and where cells were made from different files."""
    notes = []
    for result in results:
        data, stream = result["data"], result["stream"]
        size = f"{stream['nodes']:,} nodes, {stream['events']:,} events"
        if stream["differs"]:
            shown = " Its size is as published, so the paper's results are shown." if has_published_size(result) else ""
            notes.append(f"\\* **{data}**: {stream['differs']}.{shown}")
        elif is_twin(data):
            original = original_dataset(data)
            notes.append(f"**{data}** ({size}) is generated with the sizes of {original}. It is not {original}.")
        elif not has_published_size(result):
            notes.append(f"**{data}** ({size}) is not in the paper.")
    for data in dict.fromkeys(result["data"] for result in results):
        n_files = len({result["stream"]["fingerprint"] for result in results if result["data"] == data})
        if n_files > 1:
            notes.append(f"**{data}**: the cells were made from {n_files} different files. Do not trust their mean.")
    return list(dict.fromkeys(notes))


# -------------------- all finished cells of a request


class ResultSet:
    """The results of a request's finished cells; iterates over them."""

    def __init__(self, request: ExperimentRequest, store: CellStore, cells: Sequence[Cell]) -> None:
        self.request, self.store, self.cells = request, store, cells
        self.results = read_finished(store, cells)

    def __iter__(self) -> Iterator[CellResult]:
        return iter(self.results)

    def select(self, data: str, model: str | None = None) -> list[CellResult]:
        """Return the results of a dataset, and of one model if it is given."""
        return [k for k in self if k["data"] == data and model in (None, k["model"])]

    def heading(self, data: str) -> str:
        """Return a dataset's name, with a star if it differs from the published data; a note explains the star."""
        return f"{data} *" if any(k["stream"]["differs"] for k in self.select(data)) else data

    def is_comparable_to_paper(self, data: str) -> bool:
        """Return whether published results may be shown for a dataset, in all of its rows or in none.

        False with ``--quick``, if any of its cells has a stream of another size, and while no cell is finished: the
        size of the data is unknown until then.
        """
        own = self.select(data)
        return bool(own) and not self.request.quick and all(map(has_published_size, own))

    def notes(self, *, show_protocol: bool = True) -> list[str]:
        """Return the notes below every report. ``show_protocol``: its metrics follow the link prediction protocol."""
        n_stale = sum(self.store.path(cell).exists() and self.store.read(cell) is None for cell in self.cells)
        return [
            *(protocol_notes(self.results) if show_protocol else []),
            *constant_score_notes(self.results),
            *provenance_notes(self.results, len(self.cells), n_stale),
            *dataset_notes(self.results),
        ]
