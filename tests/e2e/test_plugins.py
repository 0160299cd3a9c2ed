"""Five extensions, each one file outside the package, in the commands, the report and Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cordgt

from .helpers import call, fails, process, works

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins"
METRIC, NEGATIVES, MODEL, DATASET, EXPORTER = (
    ("--plugin", PLUGINS / f"{name}.py") for name in ("win_rate", "popular_negatives", "recency", "club", "markdown")
)
FAST = ("--set", "epochs=1", "--device", "cpu")
OPTIONS = ("--set", "train_negatives=popular", "--set", "num_negatives=2", "--set", "monitor=mean_rank", *FAST)


@pytest.fixture(scope="module", autouse=True)
def clean(restored_registries: Any) -> Iterator[None]:
    with restored_registries():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, clean: None) -> Path:
    """A run with every extension: it saw another model, metric, sampler and dataset."""
    out = tmp_path_factory.mktemp("runs") / "a"
    options = ("--set", "train_negatives=popular", "--set", "num_negatives=2", "--set", "monitor=mean_rank")
    result = works(
        "train", "club", *METRIC, *NEGATIVES, *MODEL, *DATASET, "--model", "recency", *options, *FAST, "--out", out
    )
    assert "monitor=mean_rank needs ranks" in result.err and "win rate 0." in result.err and "mean rank" in result.err
    assert "Metrics of plug-ins" in result.out
    return out


def test_the_run_remembers_names_but_no_paths(run: Path) -> None:
    config = (run / "config.toml").read_text()
    assert 'plugins = ["model=recency: recency.py", "monitor=mean_rank: win_rate.py", ' in config
    assert '"train_negatives=popular: popular_negatives.py"]' in config
    assert str(PLUGINS) not in config


def test_a_metric_in_json_report_and_comparison(run: Path, tmp_path: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text())
    assert 0 <= metrics["test"]["transductive"]["win_rate"] <= 1 < metrics["test"]["transductive"]["mean_rank"]
    assert metrics["baselines"]["popularity"]["test"]["transductive"]["mean_rank"] > 1
    report = (run / "report.html").read_text()
    assert "win rate" in report and "Validation mean rank" in report and "except mean rank" in report
    other = tmp_path / "b"
    works("train", "club", "--model", "recency", *OPTIONS, "--seed", "1", "--no-report", "--out", other)
    found = works("compare", run, other, "--bootstrap", "50", "--max-drop", "mean_rank=100", "--json").json
    row = found["metrics"]["mean_rank"]
    assert row["low"] <= row["difference"] <= row["high"] and "win_rate" in found["metrics"]
    assert row["a"] == metrics["test"]["transductive"]["mean_rank"]
    text = works("compare", run, other, "--bootstrap", "50").out
    assert "mean rank" in text and "win rate" in text
    works("report", run, other, "--events", "50", "--output", tmp_path / "both.html")
    assert "win rate, transductive" in (tmp_path / "both.html").read_text()


def test_limits_of_a_metric_that_should_be_low(run: Path, tmp_path: Path) -> None:
    worse = call("compare", run, run, "--bootstrap", "10", "--fail-below", "mean_rank=1.01")
    assert worse.code == 3 and "mean rank of B is" in worse.err
    assert call("compare", run, run, "--bootstrap", "10", "--fail-below", "mean_rank=1000").code == 0
    fails("compare", run, run, "--fail-below", "rank=3", containing="Did you mean 'mean_rank'")


def test_a_sampler_in_evaluation(run: Path) -> None:
    found = works("evaluate", run, "--negatives", "popular", "--split", "test", "--json").json
    assert found["protocol"]["negatives"] == "popular" and found["test"]["transductive"]["ap"] > 0


def test_a_dataset_and_a_model_are_listed() -> None:
    assert {"club"} <= {row["name"] for row in works("data", "list", "--json").json}
    assert works("data", "describe", "club", "--json").json["events"] == 600
    assert {"recency"} <= {row["model"] for row in works("models", "--json").json}


def test_an_exporter_writes_answers_and_metrics(run: Path, tmp_path: Path) -> None:
    works("recommend", run, "--source", "m1", "--top", "3", *EXPORTER, "--output", tmp_path / "m1.md")
    assert (tmp_path / "m1.md").read_text().startswith("| src | rank | node | score |")
    works("report", run, *EXPORTER, "--output", tmp_path / "metrics.md")
    assert "| test | transductive | recency |" in (tmp_path / "metrics.md").read_text()
    works("report", run, "--output", tmp_path / "metrics.csv")
    assert "test,transductive,recency," in (tmp_path / "metrics.csv").read_text()
    fails("recommend", run, "--source", "m1", "--output", tmp_path / "m1.xyz", containing=".json or .md")


def test_python_uses_the_same_extensions(run: Path, tmp_path: Path) -> None:
    loaded = cordgt.Run.load(run, "cpu")
    assert loaded.evaluate(split="test")["test"] == loaded.metrics["test"]
    assert cordgt.write_report(loaded).read_text().count("win rate") > 3
    assert type(loaded.model).__name__ == "Recency"


def test_a_broken_plugin_is_a_users_mistake(run: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_there\n")
    fails("evaluate", run, "--plugin", tmp_path / "broken.py", containing=["broken.py", "line 1", "nothing_there"])
    fails("models", "--plugin", tmp_path / "none.py", containing="there is no such file")


def test_benchmarks_by_name(run: Path) -> None:
    result = works("evaluate", run, "--protocol", "dyglib", "--split", "test")
    assert "dyglib (DyGLib" in result.err and "AP/200" in result.err
    fails("evaluate", run, "--protocol", "tgb", containing="--set mask_nodes=0.0")


def test_an_installed_package_needs_no_option(tmp_path: Path) -> None:
    """Extensions of entry points, one of them broken, in a process of their own."""
    site, info = tmp_path / "site", tmp_path / "site" / "club_kit-1.0.dist-info"
    info.mkdir(parents=True)
    for name in ("recency", "club"):
        (site / f"club_kit_{name}.py").write_text((PLUGINS / f"{name}.py").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: club-kit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cordgt.models]\nrecency = club_kit_recency:Recency\nbroken = club_kit_none:Broken\n"
        "[cordgt.datasets]\nclub = club_kit_club:club\n"
    )
    path = f"{Path(cordgt.__file__).parents[1]}:{site}"
    started = process(
        "train",
        "club",
        "--model",
        "recency",
        *FAST,
        "--no-report",
        "--out",
        tmp_path / "run",
        extra={"PYTHONPATH": path},
    )
    _, err = started.communicate()
    assert started.returncode == 0, err
    assert 'plugins = ["model=recency: club-kit"]' in (tmp_path / "run" / "config.toml").read_text()
