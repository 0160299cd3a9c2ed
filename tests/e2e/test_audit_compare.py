"""`cordgt audit`, `cordgt compare` and `cordgt train --mask-draws` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cordgt.analysis.audit import model as audit

from .conftest import Trained
from .helpers import TINY, call, events, fails, settings, unchanged, works, write_events, write_rows

# -------------------- audit


@pytest.mark.parametrize("rule", ["event", "paper", "batch"])
def test_audit_of_a_run_passes(trained: Trained, rule: str) -> None:
    with unchanged(trained.run):
        found = works("audit", trained.run, "--queries", 20, "--set", f"visibility={rule}", "--json").json
    assert found["passed"] and found["model"] == "cordgt" and found["protocol"]["visibility"] == rule
    results = {row["check"]: row["result"] for row in found["checks"]}
    assert results.pop("batch size") == ("ok" if rule == "event" else "by design")
    assert set(results.values()) == {"ok"} and len(results) == 10 and "forecasts" in results


def test_dates_features_and_separate_ids_pass(shop: Trained) -> None:
    result = works("audit", shop.run, "--queries", 20)
    for words in ("future", "same moment", "time shift", "other names", "same seed", "new like known", "ok"):
        assert words in result.out
    assert "FAIL" not in result.out


@pytest.mark.parametrize("model", ["edgebank", "popularity"])
def test_models_without_parameters_pass(tmp_path: Path, model: str) -> None:
    data = write_events(tmp_path / "d.csv")
    works("train", data, "--model", model, "--out", "run")
    works("audit", "run", "--queries", 20)


def test_run_without_activity_says_that_forecasts_are_not_audited(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    works("train", data, "--model", "counts", "--set", "epochs=1", "--set", "activity=false", "--out", "run")
    last = works("audit", "run", "--queries", 20, "--json").json["checks"][-1]
    assert (last["check"], last["result"]) == ("forecasts", "note") and "not audited" in last["detail"]


@pytest.mark.parametrize("unit", [1e-15, 1e290], ids=str)
def test_times_of_any_size_pass(tmp_path: Path, unit: float) -> None:
    data = write_rows(tmp_path / "d.csv", [(u, v, t * unit) for u, v, t in events()], header=("src", "dst", "time"))
    works("train", data, "--model", "counts", "--set", "epochs=1", "--out", "run")
    rows = works("audit", "run", "--queries", 20, "--json").json["checks"]
    assert {row["check"]: row["result"] for row in rows}["time shift"] == "ok"


def test_failed_check_gives_exit_code_1(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaks(*_: object) -> audit.Check:
        return audit.Check("future", "later events", audit.FAIL, "3 of 40 scores change")

    monkeypatch.setattr(audit, "check_future", leaks)
    result = call("audit", trained.run, "--queries", 5)
    assert result.code == 1
    assert "FAIL" in result.out and "does not pass: future" in result.err
    result = call("audit", trained.run, "--queries", 5, "--json")
    assert result.code == 1 and result.json["passed"] is False


def test_audit_of_data(trained: Trained, tmp_path: Path) -> None:
    result = works("audit", trained.data)
    for words in ("ties", "duplicates", "gaps", "repetition", "new nodes", "destinations"):
        assert words in result.out
    odd = write_rows(tmp_path / "odd.csv", [(i % 7, 8, i) for i in range(60)], header=("who", "whom", "day"))
    lone = call("audit", odd, "--src", "who", "--dst", "whom", "--time", "day", "--json")
    assert lone.code == 1
    assert lone.json["events"] == 60 and not lone.json["passed"]


def test_audit_rejects_bad_arguments(trained: Trained, tmp_path: Path) -> None:
    fails("audit", tmp_path / "nothing", containing="nothing")
    fails("audit", trained.run, "--set", "mask_nodes=0.3", containing="fixed by the training")
    fails("audit", trained.run, "--queries", "0", containing="--queries")


# -------------------- compare


def test_two_runs_are_compared(trained: Trained) -> None:
    works("train", trained.data, "--model", "edgebank", "--out", "edgebank")
    with unchanged(trained.run):
        result = works("compare", trained.run, "edgebank", "--bootstrap", 200)
    for words in ("(cordgt)", "(edgebank)", "AP", "AUC", "95 % interval", "to", "points"):
        assert words in result.out
    found = works("compare", trained.run, "edgebank", "--bootstrap", 200, "--json").json
    for side, run in (("a", trained.run), ("b", Path("edgebank"))):
        test = json.loads((run / "metrics.json").read_text())["test"]["transductive"]
        assert found["metrics"]["ap"][side] == pytest.approx(test["ap"])
        assert found["metrics"]["auc"][side] == pytest.approx(test["auc"])
    assert set(found["metrics"]) == {"ap", "auc"}
    turned = works("compare", "edgebank", trained.run, "--bootstrap", 200, "--json").json
    assert turned["metrics"]["ap"]["difference"] == pytest.approx(-found["metrics"]["ap"]["difference"])
    assert turned["metrics"]["ap"]["high"] == pytest.approx(-found["metrics"]["ap"]["low"])


def test_other_splits_and_rankings(trained: Trained) -> None:
    same = ["compare", trained.run, trained.run, "--bootstrap", 20, "--json"]
    found = works(*same, "--split", "validation", "--setting", "inductive", "--set", "ranking=5").json
    assert found["metrics"]["mrr"]["difference"] == 0
    assert all("No clear difference" in text for text in found["remarks"])
    expected = works("evaluate", trained.run, "--ranking", 5, "--json").json["validation"]["inductive"]
    assert found["metrics"]["mrr"]["a"] == pytest.approx(expected["mrr"])
    assert found["events"] == expected["events"]


def test_runs_that_are_not_comparable_are_refused(trained: Trained, shop: Trained) -> None:
    fails("compare", trained.run, shop.run, containing=["different data", str(trained.run), str(shop.run)])
    works("train", trained.data, *settings(visibility="paper", mask_seed=3), "--out", "paper")
    both = ["protocols differ", "visibility (event and paper)", "mask_seed (0 and 3)"]
    fails("compare", trained.run, "paper", containing=both)
    one = fails("compare", trained.run, "paper", "--set", "visibility=event", containing="mask_seed (0 and 3)")
    assert "visibility (" not in one.err
    fails("compare", trained.run, trained.run, "--split", "training", containing="--split=training is not known")
    for command in (["compare", trained.run, trained.run], ["evaluate", trained.run]):
        fails(*command, "--part", "test", containing="--split")
    fails("compare", trained.run, "nowhere", containing="nowhere does not exist")


# -------------------- mask draws


def test_mask_draws_train_one_run_each(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    result = works("train", data, *TINY, "--mask-draws", 3, "--out", "draws")
    assert "±" in result.out and "mask 2, epoch" in result.err
    found = json.loads(Path("draws/metrics.json").read_text())
    each = [json.loads(Path(f"draws/mask-{k}/metrics.json").read_text()) for k in range(3)]
    assert [m["protocol"]["mask_seed"] for m in each] == found["mask_seeds"] == [0, 1, 2]
    assert found["seeds"] == [0, 0, 0]
    assert found["protocol"]["mask_seed"] == [0, 1, 2]
    values = [m["test"]["inductive"]["ap"] for m in each]
    assert found["test"]["inductive"]["ap"]["values"] == values and len(set(values)) > 1
    fails("train", data, *TINY, "--mask-draws", 3, "--out", "draws", containing="already holds a run")
    again = works("train", data, *TINY, "--mask-draws", 3, "--out", "draws", "--resume")
    assert "nothing was trained" in again.err


def test_mask_draws_and_seeds_together(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    result = works("train", data, *TINY, "--mask-draws", 2, "--seeds", 2, "--seed", 5, "--out", "both")
    assert "mask 1, seed 6, epoch" in result.err
    assert "recommend both/mask-0-seed-5 --source" in result.err
    names = {path.name for path in Path("both").iterdir() if path.is_dir()}
    assert names == {"mask-0-seed-5", "mask-0-seed-6", "mask-1-seed-5", "mask-1-seed-6"}
    found = json.loads(Path("both/metrics.json").read_text())
    assert list(zip(found["mask_seeds"], found["seeds"], strict=True)) == [(0, 5), (0, 6), (1, 5), (1, 6)]
    assert len(found["test"]["transductive"]["ap"]["values"]) == 4
