"""`RunMetrics`: accessors, old files, several runs, and a metric added by a user."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordgt.analysis.remarks import remarks
from cordgt.cli.console import metrics_table, stdout
from cordgt.experiments.cells import read_cell
from cordgt.tasks.metrics import LINK_METRICS, LinkMetric, link_metrics
from cordgt.tasks.run_metrics import Metric, RunMetrics, UndefinedSplit
from cordgt.training.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
OLD_RUN = ROOT / "tests" / "fixtures" / "v0.1" / "run"


def values(ap: float | None, auc: float | None = 0.8, events: int = 100, **more: Any) -> dict[str, Any]:
    return {"ap": ap, "auc": auc, "ap_batch": ap, "auc_batch": auc, "events": events, **more}


def run_metrics(ap: float | None = 0.9, *, seed: int = 0, baseline: float = 0.7, **more: Any) -> RunMetrics:
    def settings(x: float | None) -> dict[str, Any]:
        return {"transductive": values(x, **more), "inductive": values(None, None, 0)}

    return RunMetrics(
        model="cordgt",
        data="toy",
        seed=seed,
        epochs=3,
        best_epoch=2,
        seconds_per_epoch=1.0,
        peak_memory_mb=5.0,
        protocol={"eval_batch_size": 30, "mask_seed": 0},
        validation=settings(ap),
        test=settings(ap),
        baselines={"popularity": {"validation": settings(baseline), "test": settings(baseline)}},
    )


def shown(metrics: RunMetrics) -> str:
    with stdout.capture() as capture:
        stdout.print(metrics_table("title", metrics))
    return capture.get()


def test_run_metrics_are_a_mapping_and_json() -> None:
    metrics = run_metrics()
    assert metrics["test"]["transductive"]["ap"] == 0.9
    assert RunMetrics.from_json(metrics.to_json()) == metrics == json.loads(json.dumps(metrics))
    with pytest.raises(ValueError, match="JSON object"):
        RunMetrics.from_json("[]")


def test_metrics_and_baselines() -> None:
    metrics = run_metrics(0.9)
    assert metrics.metric("ap") == Metric(0.9, None, (0.9,))
    assert metrics.metric("ap", baseline="popularity").mean == 0.7
    assert metrics.metric("mrr") == Metric(None, None, (None,))
    assert metrics.best_baseline("transductive") == ("popularity", 0.7)
    assert metrics.best_baseline("inductive") is None
    assert metrics.columns() == {"ap": "AP", "auc": "AUC", "ap_batch": "AP/30", "auc_batch": "AUC/30"}
    assert [(row.split, row.setting, row.baseline) for row in metrics.rows()] == [
        ("validation", "transductive", None),
        ("validation", "inductive", None),
        ("test", "transductive", None),
        ("test", "transductive", "popularity"),
        ("test", "inductive", None),
        ("test", "inductive", "popularity"),
    ]


def test_below_baselines() -> None:
    assert run_metrics(0.7, baseline=0.7).below_baselines() == []
    metrics = run_metrics(0.6, baseline=0.7)
    assert metrics.below_baselines() == [("transductive", "popularity", ["ap"])]
    assert any("popularity (transductive: AP)" in text for text in remarks(metrics))
    assert "! popularity" in shown(metrics)


def test_undefined_splits() -> None:
    assert run_metrics().undefined_splits() == [
        UndefinedSplit("validation", "inductive", False),
        UndefinedSplit("test", "inductive", False),
    ]
    metrics = run_metrics(None)
    assert UndefinedSplit("test", "transductive", True) in metrics.undefined_splits()
    assert "–" in shown(metrics)


def test_random_negatives() -> None:
    assert run_metrics().random_negative_share("test", "transductive") == 0
    metrics = run_metrics(random_negatives=25)
    assert metrics.random_negative_share("test", "transductive") == 0.25
    assert metrics.random_negative_share("test", "inductive") == 0
    assert sum("25%" in text for text in remarks(metrics)) == 2


def test_constant_scores() -> None:
    assert not run_metrics(0.5).is_constant()
    constant = run_metrics(0.5, auc=0.5)
    assert constant.is_constant()
    several = RunMetrics.from_runs([run_metrics(), constant, run_metrics(0.5, auc=0.6)])
    assert several.constant_runs() == [False, True, False] and not several.is_constant()
    assert any("in 1 of 3 runs" in text for text in remarks(several))
    assert RunMetrics().constant_runs() == [] and not RunMetrics().is_constant()


def test_several_runs() -> None:
    runs = [run_metrics(ap, seed=seed) for seed, ap in enumerate((0.8, 0.9))]
    found = RunMetrics.from_runs(runs)
    metric = found.metric("ap")
    assert metric.values == (0.8, 0.9) and metric.mean == pytest.approx(0.85)
    assert metric.std == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert found["seeds"] == [0, 1] and found.event_counts("test", "transductive") == [100]
    assert RunMetrics.from_runs(runs[:1]).metric("ap").std == 0
    assert "±" in shown(found) and "±" not in shown(runs[0])
    runs[1]["protocol"] = {**runs[1]["protocol"], "mask_seed": 4}
    assert RunMetrics.from_runs(runs)["protocol"]["mask_seed"] == [0, 4]


def test_initial_run_trained_on_test_events() -> None:
    metrics = RunMetrics(run_metrics(), init={"run": "runs/a", "knows": "it knows 3 nodes"})
    assert metrics.initial_run_overlap() == ("runs/a", "it knows 3 nodes")
    assert any("runs/a; it knows 3 nodes" in text for text in remarks(metrics))
    assert RunMetrics(metrics, init={"run": "runs/a", "knows": ""}).initial_run_overlap() is None


def test_a_run_of_version_0_1_is_read() -> None:
    old = json.loads((OLD_RUN / "metrics.json").read_text(encoding="utf-8"))
    metrics = RunFolder(OLD_RUN).read_metrics()
    assert "floors" in old and "floors" not in metrics
    names = {"seen lately": "seen recently"}
    assert metrics.baselines == {names.get(name, name): of for name, of in old["floors"].items()}
    assert metrics["test"] == old["test"]
    assert metrics.below_baselines() and "popularity" in shown(metrics)


def test_cells_with_the_old_key_are_read(tmp_path: Path) -> None:
    path = next((ROOT / "docs" / "results" / "cells" / "hard").rglob("*.json"))
    cell = json.loads(path.read_text(encoding="utf-8"))
    old = copy.deepcopy(cell)
    for metrics in (old["figures"], old["figures"]["historical"]):
        metrics["floors"] = metrics.pop("floors", None) or metrics.pop("baselines")
    (tmp_path / "old.json").write_text(json.dumps(old), encoding="utf-8")
    found = read_cell(tmp_path / "old.json")
    assert found is not None and "floors" not in json.dumps(found)
    baselines = found["figures"]["historical"]["baselines"]
    assert baselines["popularity"] == old["figures"]["historical"]["floors"]["popularity"]
    assert "seen recently" in baselines


def test_a_metric_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy = LinkMetric("win rate", "share above", lambda s: float((s.positive > s.negative).mean()))
    monkeypatch.setitem(LINK_METRICS, "win_rate", accuracy)
    found = link_metrics(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 5.0, 0.0, 0.0]))
    assert found["win_rate"] == 0.75
    assert link_metrics(np.empty(0), np.empty(0))["win_rate"] is None
    metrics = run_metrics(win_rate=0.75)
    assert metrics.columns()["win_rate"] == "win rate" and "75.00" in shown(metrics)
