"""The table of never-met and all partners: its cells, its measurement, and the choice on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordgt.analysis.audit.checks import has_failures
from cordgt.analysis.audit.model import audit_model
from cordgt.callbacks import NO_CALLBACK
from cordgt.events.stream import EventStream
from cordgt.experiments.cells import Cell, CellStore, flatten_settings
from cordgt.experiments.new_partners import TRAINING, VARIANTS, new_partner_cells, new_partner_report
from cordgt.experiments.partner_ranking import measure_new_partners, sample_events
from cordgt.experiments.tables import ExperimentRequest
from cordgt.inference.run import Run
from cordgt.workflows.train import train


def test_cells_have_one_seed_for_models_without_training() -> None:
    cells = new_partner_cells(ExperimentRequest(["mooc"], ["item_knn", "counts"], [0, 1]))
    assert [(c.model, c.seed) for c in cells] == [("item_knn", 0)] * len(VARIANTS["item_knn"]) + [
        ("counts", 0),
        ("counts", 1),
    ]
    assert all(c.settings.protocol.mask_nodes == 0 and c.kind == "partners" for c in cells)
    assert cells[-1].settings.training.monitor == TRAINING["monitor"]


@pytest.fixture(scope="module", params=["item_knn", "als"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Customers of two groups, each with its own products."""
    rng = np.random.default_rng(2)
    src = rng.integers(0, 20, 400)
    dst = 2 * rng.integers(0, 12, 400) + src % 2
    stream = EventStream.from_columns(src, dst, np.arange(400), shared_ids=False, name="shop")
    out = tmp_path_factory.mktemp("run") / "run"
    return train(stream, request.param, out=out, device="cpu", report=False, activity=False, mask_nodes=0)


def test_measurement(run: Run) -> None:
    metrics = measure_new_partners(run, NO_CALLBACK)
    assert list(metrics) == ["new", "all"] and list(metrics["new"]) == ["validation", "test"]
    new, everything = metrics["new"]["test"], metrics["all"]["test"]
    assert 0 < new["events"] < everything["events"] == 60
    assert new["hits@10"] > 0.5 and everything["mrr"] > 0.1  # twelve products of the own group


def test_fewer_events_are_spread_evenly(run: Run) -> None:
    _, task = run.evaluation_task()
    few = sample_events(task, "test", 6)
    positions = few.evaluation_events("test", "transductive")[0]
    assert len(positions) == 6 and set(positions) <= set(task.split.test)
    assert len(few.evaluation_events("validation", "transductive")[0]) == len(task.split.validation)


def test_recommenders_recommend_and_pass_the_audit(run: Run) -> None:
    best = run.recommend(3, top=5, new_only=True)
    assert len(best) == 5 and all(int(r.node) % 2 == 1 for r in best[:2])
    model, task = run.evaluation_task()
    assert not has_failures(audit_model(model, task, queries=20))


def write_cell(store: CellStore, cell: Cell, validation: float, test: float) -> None:
    metrics = dict.fromkeys(("mrr", "ndcg@10", "hits@10"), test) | {"events": 7}
    rows = {row: {"validation": {"mrr": validation}, "test": metrics} for row in ("new", "all")}
    about: dict[str, Any] = {"kind": cell.kind, "data": cell.data, "model": cell.model, "seed": cell.seed}
    about |= {"variant": cell.variant, "quick": False, "settings": flatten_settings(cell.settings), "seconds": 1.0}
    stream = {"nodes": 5, "events": 50, "differs": "", "fingerprint": "x"}
    code = {"commit": "abc", "version": "1", "source": "git"}
    about |= {"stream": stream, "device": "cpu", "machine": "m", "code": code, "epochs": 0}
    store.write(cell, about | {"figures": rows})


def test_report_shows_the_settings_that_validation_chose(tmp_path: Path) -> None:
    """The second variant of popularity is best on validation data, though not on test data."""
    store = CellStore(tmp_path)
    request = ExperimentRequest(["lastfm_prefix"], ["popularity", "counts"], [0, 1])
    first, second, third, *counts = new_partner_cells(request)
    for cell, validation, test in ((first, 0.1, 0.9), (second, 0.3, 0.2), (third, 0.2, 0.8)):
        write_cell(store, cell, validation, test)
    for cell, test in zip(counts, (0.4, 0.6), strict=True):
        write_cell(store, cell, 0.1, test)
    report = new_partner_report(request, store)
    assert [section.heading for section in report.sections] == ["MRR", "NDCG@10", "hits@10"]
    row = report.sections[0].rows[0]
    assert row == ["lastfm_prefix, never met", "20.00", "**50.00 ± 14.14**", "7"]
    assert any("lastfm_prefix, never met, popularity: window=1000" in note for note in report.notes)
    record = report.records[0]
    assert (record["settings"], record["ours"], record["partners"]) == ("window=1000", 20.0, "new")
