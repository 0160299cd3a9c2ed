"""Grid search: every combination once, compared on validation data only, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cordgt import models
from cordgt.callbacks import Callback
from cordgt.errors import RunError, SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.tasks import link
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import make_settings
from cordgt.workflows import search
from cordgt.workflows.train import train_run

SMALL: dict[str, Any] = {"hidden": 4, "time_dim": 4, "layers": 1, "epochs": 1, "batch_size": 50}
TRIED = search.grid_combinations({"num_neighbors": (1, 2), "lr": (0.01, 0.001)})


def stream(n: int = 120) -> EventStream:
    rng = np.random.default_rng(0)
    src = rng.integers(0, 6, n)
    dst = 10 + (src + rng.integers(0, 2, n)) % 6
    return EventStream.from_columns(src, dst, np.arange(n), None, time=TimeAxis("number"), name="toy")


def test_grid_combinations() -> None:
    assert [tuple(t.values()) for t in TRIED] == [(1, 0.01), (1, 0.001), (2, 0.01), (2, 0.001)]
    whole = search.grid_combinations(models.find_model("cawn").grid)
    some = [search.grid_combinations(models.find_model("cawn").grid, 5, seed) for seed in (0, 0, 1)]
    assert len(whole) == 64 and whole[0] == {"time_scale": 1e-4, "walk_length": 2, "num_walks": 16}
    assert some[0] == some[1] != some[2] and all(t in whole for t in some[0]) and len(some[0]) == 5


def test_search_does_not_evaluate_on_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    original = link.LinkTask.evaluation_events
    monkeypatch.setattr(
        link.LinkTask,
        "evaluation_events",
        lambda self, split, setting: evaluated.append(split) or original(self, split, setting),
    )
    found = search.search(stream(), make_settings("graphmixer", SMALL), TRIED, tmp_path / "all", device="cpu")
    assert set(evaluated) == {"validation"}
    aps = [trial.value for trial in found]
    assert len(found) == 4 and aps == sorted(aps, reverse=True)
    assert not any(RunFolder(Path(trial.folder)).is_finished for trial in found)


def test_search_resumes_and_best_run_is_evaluated_without_training(tmp_path: Path) -> None:
    settings, out = make_settings("graphmixer", SMALL), tmp_path / "all"
    first = search.search(stream(), settings, TRIED[:2], out, device="cpu")
    with pytest.raises(RunError, match="holds a run already"):
        search.search(stream(), settings, TRIED, out, device="cpu")

    class Counts(Callback):
        epochs = 0

        def on_epoch_end(self, record: dict[str, Any]) -> None:
            Counts.epochs += 1

    again = search.search(stream(), settings, TRIED, out, device="cpu", resume=True, callbacks=Counts())
    assert Counts.epochs == 2  # of the two that were new
    assert {t.folder: t.value for t in first}.items() <= {t.folder: t.value for t in again}.items()
    best = again[0]
    run = train_run(
        stream(),
        make_settings("graphmixer", SMALL | best.settings),
        Path(best.folder),
        device="cpu",
        resume=True,
        callbacks=Counts(),
    )
    assert Counts.epochs == 2 and run.metrics["best_epoch"] == best.best_epoch


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({}, "nothing to search"),
        ({"visibility": ["event"]}, "the protocol says how models are measured"),
        ({"num_walks": []}, "no value to try"),
    ],
)
def test_invalid_grids(grid: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        search.check_grid(grid)


def test_values_are_checked_before_anything_is_trained(tmp_path: Path) -> None:
    settings = make_settings("graphmixer", SMALL)
    for changes, says in (
        ({"num_walks": 3}, r"graphmixer does not read num_walks \(read by cawn, ctdne\)"),
        ({"num_neighbors": "few"}, "a whole number"),
    ):
        with pytest.raises(SettingError, match=says):
            search.search(stream(), settings, [TRIED[0], changes], tmp_path / "none", device="cpu")
    assert not (tmp_path / "none").exists()


def test_a_search_of_version_0_1_resumes(tmp_path: Path) -> None:
    """Its folders have the old names of settings."""
    settings, trials = make_settings("graphmixer", SMALL), [{"num_neighbors": 1}]
    (first,) = search.search(stream(), settings, trials, tmp_path, device="cpu")
    (tmp_path / "num_neighbors-1").rename(tmp_path / "neighbours-1")
    (again,) = search.search(stream(), settings, trials, tmp_path, device="cpu", resume=True)
    assert (again.value, again.folder) == (first.value, str(tmp_path / "neighbours-1"))
    assert not (tmp_path / "num_neighbors-1").exists()
