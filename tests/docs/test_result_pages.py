"""The pages of benchmarks are what the committed cells give; numbers quoted elsewhere are those of the cells."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from cordgt.experiments import catalogue, estimates
from cordgt.experiments.cells import CellStore, choose_datasets, parse_seeds
from cordgt.experiments.tables import ExperimentRequest

from .test_claims import round_half_up
from .workspace import DOCS, ROOT

RESULTS = DOCS / "results"
# The options of docs/reproduce.md, "Finished so far": datasets and seeds that are not the default.
OPTIONS = {
    "link-ap": ("uci,enron,wikipedia", None),
    "link-auc": ("uci,enron,wikipedia", None),
    "paper-protocol": ("uci,enron,wikipedia", None),
    "ablation": ("uci,wikipedia", None),
    "node-classification": ("wikipedia,mooc", "5"),
    "sensitivity": (None, "1"),
    "scalability": ("outdoors-twin,food-twin", "1"),
    "plus-ablation": (None, "2"),
}
WITHOUT_PAGE = {
    "datasets": "counts the events of the datasets, which are not in the repository",
}


@pytest.mark.parametrize("name", [name for name in catalogue.EXPERIMENTS if name not in WITHOUT_PAGE])
def test_page_and_cells_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDGT_DATA", "/nonexistent")
    experiment = catalogue.find_experiment(name)
    data, seeds = OPTIONS.get(name, (None, None))
    request = ExperimentRequest(
        datasets=estimates.default_datasets(experiment, require_data=False)
        if data is None
        else choose_datasets(data, experiment.datasets, require_data=False),
        models=experiment.default_models,
        seeds=experiment.default_seeds(False) if seeds is None else parse_seeds(seeds),
        changes={},
        quick=False,
    )
    report = experiment.report(request, CellStore(RESULTS))
    picture = f"{name}.png" if report.draw else None
    assert report.markdown(picture) == (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert report.csv() == (RESULTS / f"{name}.csv").read_text(encoding="utf-8")
    assert picture is None or (RESULTS / picture).exists()


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "choose.md"], ids=lambda page: page.name)
def test_quoted_numbers_are_those_of_the_cells(page: Path) -> None:
    """Tables of AP per batch by dataset and model, transductive / inductive."""
    with (RESULTS / "beyond.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "model" and row["negatives"] == "random"]
    ours = {(r["data"], r["name"], r["setting"]): float(r["ours"]) for r in rows if r["metric"] == "ap_batch"}
    text = page.read_text(encoding="utf-8").replace("*", "").replace("`", "").lower().replace("cordgt+", "cordgt_plus")
    header = next(line for line in text.splitlines() if line.startswith("| |") and "counts |" in line)
    names = [cell.strip() for cell in header.split("|")]
    for data in ("uci", "enron", "wikipedia", "mooc"):
        cells = next(line for line in text.splitlines() if line.startswith(f"| {data}") and " / " in line).split("|")
        for model in ("counts", "cordgt", "cordgt_plus"):
            expected = [f"{ours[data, model, setting]:.1f}" for setting in ("transductive", "inductive")]
            assert re.findall(r"[\d.]+", cells[names.index(model)]) == expected, (data, model)


def test_quoted_anchors_are_those_of_the_cells() -> None:
    """The tables of CorDGT+ and counts by kind of negatives, and the sentence of README on MOOC."""
    with (RESULTS / "anchors.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["activity"] == "True"]
    cells = {(row["model"], row["data"], row["negatives"], row["setting"]): row for row in rows}
    names = {"CanParl": "canparl", "Enron": "enron", "MOOC": "mooc", "UCI": "uci", "US Legislators": "uslegis"}
    names["Wikipedia without features"] = "wikipedia"
    section = (DOCS / "cordgt-plus.md").read_text(encoding="utf-8").partition("| `historical-pairs` |")[2]
    for model, text in zip(("cordgt_plus", "counts"), section.split("`counts`:\n")[:2], strict=True):
        shown = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()[:9]}
        for name, data in names.items():
            expected = []
            for negatives in ("random", "historical-pairs", "inductive-pairs"):
                pair = [cells[model, data, negatives, setting] for setting in ("transductive", "inductive")]
                expected.append(" / ".join(quote_next_to_published(row) for row in pair))
            assert shown[name] == f"| {name} | {' | '.join(expected)} | {pair[0]['seeds']} |", model
    mooc = [cells["cordgt_plus", "mooc", "random", setting] for setting in ("transductive", "inductive")]
    quoted = " / ".join(f"{float(row['ours']):.1f}" for row in mooc)
    assert f"({quoted}, three seeds)" in (ROOT / "README.md").read_text(encoding="utf-8")


def quote_next_to_published(row: dict[str, str]) -> str:
    """Return our value and the published one; ours is bold if it is higher."""
    bold = "**" if float(row["difference"]) > 0 else ""
    return f"{bold}{float(row['ours']):.1f}{bold} ({round_half_up(row['paper'])})"
