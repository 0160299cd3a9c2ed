"""`RunMetrics`: accessors, old files, several runs, and a metric added by a user."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordgt.analysis.remarks import comparison_verdict, remarks, verdict
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


RANKS = {"mrr": 0.3, "hits@10": 0.08}


def ranked(objective: str, *, baseline_mrr: float = 0.2, **more: Any) -> RunMetrics:
    """Metrics with ranks among 100 candidates, below a baseline in AP."""
    metrics = RunMetrics(run_metrics(0.82, baseline=0.9, **(RANKS | more)), objective=objective)
    metrics["protocol"]["ranking"] = "100"
    for split in ("validation", "test"):
        metrics["baselines"]["popularity"][split]["transductive"]["mrr"] = baseline_mrr
    return metrics


def test_a_run_trained_for_ranking_is_compared_by_ranks() -> None:
    metrics = ranked("ranking")
    assert metrics.primary_metric == "mrr" and metrics.below_baselines() == []
    assert "! popularity" not in shown(metrics) and not any("baselines" in text for text in remarks(metrics))
    assert verdict(metrics) == (
        "Ranked among at most 100 candidates, the true destination is in the top 10 for 8.00 % of the test events "
        "(hits@10). "
        "The mean reciprocal rank (MRR) is 30.00 %, 10.00 points above the best trivial baseline (“popularity”)."
    )
    below = ranked("ranking", baseline_mrr=0.4)
    assert below.below_baselines() == [("transductive", "popularity", ["mrr"])]
    assert verdict(below).startswith("A trivial baseline does better: “popularity” reaches a test MRR of 40.00 %.")
    unmeasured = RunMetrics(run_metrics(0.82, baseline=0.9), objective="ranking")
    assert unmeasured.below_baselines() == []
    assert "no ranks were measured" in verdict(unmeasured) and "--ranking 100" in verdict(unmeasured)


def test_the_verdict_of_a_pair_model_has_both_questions() -> None:
    text = verdict(ranked("pairs"))
    assert "Compared with a random partner, the true destination is found with 82.00 % average precision (AP)" in text
    assert text.startswith("A trivial baseline does better: “popularity” reaches a test AP of 90.00 %.")
    assert text.endswith("the true destination is in the top 10 for 8.00 % of the test events (hits@10).")
    old = run_metrics(0.9)  # of an earlier version: no objective, no ranks
    assert verdict(old).endswith(
        "(AP) on the test period, 20.00 points above the best trivial baseline (“popularity”)."
    )
    old["protocol"]["negatives"] = "historical"
    assert "Compared with a harder one (historical)" in verdict(old)
    assert verdict(run_metrics(None)) == "There is no test event to evaluate."
    assert verdict(RunMetrics()) == "There is no test event to evaluate."
    several = RunMetrics.from_runs([ranked("ranking"), ranked("ranking", mrr=0.4)])
    assert verdict(several).startswith("On average over 2 runs: Ranked among at most 100 candidates")
    assert "(MRR) is 35.00 %" in verdict(several)


def test_several_runs_that_rank_are_compared_by_ranks() -> None:
    a, b = ranked("ranking"), ranked("ranking", mrr=0.35)
    assert comparison_verdict({"a": a, "b": b}).startswith("b has the highest test MRR: 35.00 %")
    assert comparison_verdict({"a": a, "b": ranked("pairs")}).startswith("A trivial baseline does better")
    # AP says nothing about a run that learned to rank, so it is not compared by AP
    better_ap = RunMetrics(run_metrics(0.95, baseline=0.9), objective="ranking")
    assert comparison_verdict({"a": better_ap, "b": run_metrics(0.8, baseline=0.7)}).startswith("b has the highest")
    assert "learned to rank" in comparison_verdict({"a": better_ap})


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
