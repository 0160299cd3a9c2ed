"""The table of `cordgt reproduce retrieval`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordgt.experiments import retrieval
from cordgt.experiments.cells import CellStore
from cordgt.experiments.measurements import run_cell
from cordgt.experiments.retrieval import retrieval_cells, retrieval_report
from cordgt.experiments.tables import ExperimentRequest


def test_a_cell_compares_two_stages_with_exhaustive_ranking(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    request = ExperimentRequest(["synthetic"], ["counts"], [0], {"epochs": 1}, quick=True)
    (cell,) = retrieval_cells(request)
    assert cell.kind == "retrieval"
    result = run_cell(cell, store, device="cpu")
    measured = result["figures"]
    assert measured["recall_at_10"] == 1.0 and measured["two_stage_mrr"] == measured["exhaustive_mrr"]
    report = retrieval_report(request, store)
    (row,) = report.sections[0].rows
    assert row[-1] == "yes" and report.records[0]["budget"] == measured["budget"]
    assert report.records[0]["questions"] == measured["questions"] > 0


@pytest.mark.parametrize(
    ("recall", "mrr", "expected"), [(0.97, 0.502, "yes"), (0.969, 0.5, "no"), (1.0, 0.497, "no"), (0.99, 0.5, "yes")]
)
def test_a_row_says_whether_the_target_is_met(recall: float, mrr: float, expected: str) -> None:
    measured = dict.fromkeys((key for key, _, _ in retrieval.COLUMNS), 100)
    measured |= {"recall_at_10": recall, "two_stage_mrr": mrr, "exhaustive_mrr": 0.5}
    row = retrieval.make_row({"model": "cordgt_plus", "seed": 3, "figures": measured}, "uci")
    assert row[:3] == ["uci", "CorDGT+", "3"] and row[-1] == expected
