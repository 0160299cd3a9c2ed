"""The table of never-met and all partners: its cells, its measurement, and the choice on validation data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.analysis.audit.checks import has_failures
from cordgt.analysis.audit.model import audit_model
from cordgt.events.stream import EventStream
from cordgt.experiments import partner_ranking
from cordgt.experiments.cells import Cell, CellStore, flatten_settings
from cordgt.experiments.new_partners import SHORT, VARIANTS, new_partner_cells, new_partner_report
from cordgt.experiments.partner_ranking import best_weight, measure_new_partners, sample_events, score_two_stages
from cordgt.experiments.tables import ExperimentRequest
from cordgt.inference.run import Run
from cordgt.models.base import LinkModel
from cordgt.models.item_knn import ItemKnn, ItemKnnSettings
from cordgt.models.popularity import Popularity, PopularitySettings
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import compute_ranks
from cordgt.tasks.protocol import Protocol
from cordgt.training.blend import WEIGHTS
from cordgt.workflows.train import train

CPU = torch.device("cpu")


def test_cells_have_one_seed_for_models_without_training() -> None:
    cells = new_partner_cells(ExperimentRequest(["mooc"], ["item_knn", "counts"], [0, 1]))
    assert [(c.model, c.seed) for c in cells] == [("item_knn", 0)] * len(VARIANTS["item_knn"]) + [
        ("counts", 0),
        ("counts", 1),
    ]
    assert all(c.settings.protocol.mask_nodes == 0 and c.kind == "partners" for c in cells)
    assert cells[-1].settings.training.monitor == SHORT["monitor"]


def shop() -> EventStream:
    """Customers of two groups, each with its own products."""
    rng = np.random.default_rng(2)
    src = rng.integers(0, 20, 400)
    dst = 2 * rng.integers(0, 12, 400) + src % 2
    return EventStream.from_columns(src, dst, np.arange(400), shared_ids=False, name="shop")


@pytest.fixture(scope="module", params=["item_knn", "als"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("run") / "run"
    return train(shop(), request.param, out=out, device="cpu", report=False, activity=False, mask_nodes=0)


def measure(model: str, **changes: Any) -> dict[str, Any]:
    cell = new_partner_cells(ExperimentRequest(["shop"], [model], [0], changes))[0]
    return measure_new_partners(cell, shop(), CPU)


def test_measurement() -> None:
    metrics = measure("item_knn")
    assert list(metrics) == ["new", "all"] and list(metrics["new"]) == ["validation", "test"]
    new, everything = metrics["new"]["test"], metrics["all"]["test"]
    assert 0 < new["events"] < everything["events"] == 60
    assert new["hits@10"] > 0.5 and everything["mrr"] > 0.1  # twelve products of the own group


def test_trained_models() -> None:
    """CorDGT+ ranks the best candidates of its counts network, other slow models those of item-kNN."""
    counts, plus, other = (measure(model, epochs=1)["new"]["test"] for model in ("counts", "cordgt_plus", "graphmixer"))
    assert counts["candidates"] == 0 and plus["candidates"] == other["candidates"] == partner_ranking.N_CANDIDATES
    assert 0 <= plus["counts_weight"] <= 1 and "counts_weight" not in other


def tasks_and_models() -> tuple[LinkTask, LinkModel, LinkModel]:
    task = LinkTask.prepare(shop(), Protocol(mask_nodes=0, ranking="all", filter="known"))
    models = (
        ItemKnn(ItemKnnSettings(), edge_dim=0, node_dim=0),
        Popularity(PopularitySettings(), edge_dim=0, node_dim=0),
    )
    return task, *models


def test_two_stages_with_room_for_all_candidates() -> None:
    """Then the first stage does not matter."""
    task, first, second = tasks_and_models()
    known = compute_ranks(second, task, "test", "transductive")
    assert (score_two_stages(first, second, task, "test").ranks() == known).all()


def test_two_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for five, a destination within the first five is ranked again among them; others keep their rank."""
    monkeypatch.setattr(partner_ranking, "N_CANDIDATES", 5)
    task, first, second = tasks_and_models()
    stages = score_two_stages(first, second, task, "test")
    before, after = compute_ranks(first, task, "test", "transductive"), stages.ranks()
    assert (stages.first_rank == before).all() and stages.second.shape == (60, 5)
    assert (after[before > 5] == before[before > 5]).all() and (after[before <= 5] <= 5).all()
    assert (after != before).any()
    by_weight = [float((1 / stages.ranks(w)).mean()) for w in WEIGHTS]
    assert by_weight[round(10 * best_weight(stages))] == max(by_weight)
    ties_aside = stages.ranks(1.0)
    assert np.mean(np.abs(ties_aside - before) < 1) > 0.9  # the first stage alone, up to ties at the border


def test_fewer_events_are_spread_evenly(run: Run) -> None:
    _, task = run.evaluation_task()
    few = sample_events(task, "test", 6)
    positions = few.evaluation_events("test", "transductive")[0]
    assert len(positions) == 6 and set(positions) <= set(task.split.test)
    assert len(few.evaluation_events("validation", "transductive")[0]) == len(task.split.validation)


def test_events_with_an_unknown_destination_are_left_out() -> None:
    """Nobody could recommend it, and it would be the only unknown candidate."""
    src, dst = [0, 1, 0, 1, 0, 1, 0, 1, 0, 1], [10, 11, 11, 10, 10, 11, 10, 10, 12, 12]
    stream = EventStream.from_columns(src, dst, np.arange(10.0), shared_ids=False)
    task = LinkTask.prepare(stream, Protocol(mask_nodes=0, ranking="all", filter="known"))
    assert sample_events(task, "test").split.test.tolist() == [9]
    assert sample_events(task.with_protocol(filter="none"), "test").split.test.tolist() == [8, 9]


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
    *metrics, settings = report.sections
    assert [section.heading for section in metrics] == ["MRR", "NDCG@10", "hits@10"]
    row = report.sections[0].rows[0]
    assert row == ["lastfm_prefix, never met", "20.00", "**50.00 ± 14.14**", "7"]
    assert settings.columns == ["", "popularity"] and settings.rows[0] == ["lastfm_prefix, never met", "window=1000"]
    record = report.records[0]
    assert (record["settings"], record["ours"], record["partners"]) == ("window=1000", 20.0, "new")
