"""The table of `cordgt reproduce time-to-accuracy`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cordgt.experiments.cells import CellStore
from cordgt.experiments.measurements import run_cell
from cordgt.experiments.tables import ExperimentRequest
from cordgt.experiments.time_to_accuracy import first_epoch, time_to_accuracy_cells, time_to_accuracy_report


@pytest.mark.parametrize(("ap", "expected"), [(0.4, 1), (0.5, 1), (0.51, 3), (0.8, 3), (0.81, None)])
def test_the_first_epoch_with_an_ap(ap: float, expected: int | None) -> None:
    curve = [{"seconds": 1.0, "ap": 0.5}, {"seconds": 2.0, "ap": 0.3}, {"seconds": 3.0, "ap": 0.8}]
    assert first_epoch(curve, ap) == expected


def test_the_table_tells_the_time_of_each_model(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    changes = {"epochs": 3, "hidden": 4, "heads": 1, "layers": 1, "fanout": (2, 1), "td_dim": 4, "sd_dim": 4}
    request = ExperimentRequest(["synthetic"], ["counts", "cordgt_plus"], [0], changes, quick=True)
    for cell in time_to_accuracy_cells(request):
        result = run_cell(cell, store, device="cpu")
        curve = result["figures"]["epochs"]
        assert len(curve) == result["epochs"] == 3
        seconds = [point["seconds"] for point in curve]
        assert seconds == sorted(seconds) and seconds[-1] <= result["seconds"]
    report = time_to_accuracy_report(request, store)
    assert [row[0] for row in report.sections[0].rows] == ["counts", "CorDGT+"]
    counts, plus = report.records
    assert counts["seconds_to_target"] <= counts["seconds"] <= counts["job_seconds"]
    best = max(counts["validation_ap"], plus["validation_ap"])
    for record in (counts, plus):
        assert (record["seconds_to_best_target"] is None) == (record["validation_ap"] < 0.99 * best)
