"""The estimate of a training's time: from its own steps, without a change of any result; and what is printed of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cordgt
from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.cli.training import _describe_estimate
from cordgt.events.stream import EventStream
from cordgt.training import devices, time_estimate
from cordgt.training.settings import make_settings
from cordgt.training.time_estimate import StepTimer, TimeEstimate


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)


# --- measuring ---


def steps_until_estimate(clock: Clock, step_seconds: list[float], device: str = "cpu") -> tuple[int, float]:
    """Return after which step of 10 events the timer answers, and its seconds per event. The last time repeats."""
    timer = StepTimer(torch.device(device))
    for k in range(1000):
        clock.now += step_seconds[min(k, len(step_seconds) - 1)]
        found = timer.add(10)
        if found is not None:
            assert timer.add(10) is None  # only once
            return k + 1, found
    raise AssertionError


@pytest.mark.parametrize(
    ("step_seconds", "n_steps", "per_event"),
    [
        ([9.0, 5.0, 2.0], 5, 0.2),  # the first two steps are not measured
        ([9.0, 0.5], 8, 0.05),  # at least three seconds
        ([0.01], 52, 0.001),  # at most fifty steps
        ([40.0], 3, 4.0),  # one slow step is enough
    ],
)
def test_warm_steps_are_measured(
    monkeypatch: pytest.MonkeyPatch, step_seconds: list[float], n_steps: int, per_event: float
) -> None:
    found = steps_until_estimate(Clock(monkeypatch, time_estimate), step_seconds)
    assert found == (n_steps, pytest.approx(per_event))


def test_a_gpu_is_waited_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a GPU run asynchronously: the timer waits before it reads the clock, and rarely."""
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    n_steps, per_event = steps_until_estimate(Clock(monkeypatch, time_estimate), [1.0], "cuda")
    assert n_steps == 52 and per_event == pytest.approx(0.1) and len(waits) == 2


def test_seconds_left() -> None:
    estimate = TimeEstimate(epochs=5, train_events=100, validation_events=10, final_events=40, train_seconds=2.0)
    scoring = 2.0 / 3
    assert estimate.seconds_left(0, 0) == pytest.approx(5 * (200 + 10 * scoring) + 40 * scoring)
    assert estimate.seconds_left(0, 50) == pytest.approx(estimate.seconds_left(0, 0) - 100)
    estimate.scoring_seconds = 1.0
    assert estimate.seconds_left(4, 0) == 200 + 10 + 40
    assert estimate.seconds_left(2, 0, is_finished=True) == 40  # no improvement any more: only the evaluation is left
    estimate.refit_events = 150
    assert estimate.seconds_left(4, 0) == 250 + 5 * 150 * 2
    assert estimate.seconds_left(2, 0, is_finished=True, best_epoch=1) == 40 + 150 * 2


# --- in a training ---


def few() -> EventStream:
    draw = np.random.default_rng(0)
    return EventStream.from_columns(*draw.integers(0, 9, (2, 200)), np.arange(200), name="few")


class Estimates(Callback):
    """Collects the estimates, and the number of finished epochs at each."""

    def __init__(self) -> None:
        self.found: list[tuple[int, float]] = []
        self.n_epochs = 0

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self.n_epochs += 1

    def on_time_estimate(self, seconds: float) -> None:
        self.found.append((self.n_epochs, seconds))


def test_a_training_estimates_its_time_within_the_first_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the warm steps, and after every epoch; the weights are those of a training without an estimate."""
    options: dict[str, Any] = {"epochs": 3, "patience": 3, "min_delta": 0, "batch_size": 10, "device": "cpu"}
    plain = cordgt.train(few(), "counts", out=tmp_path / "plain", report=False, **options)
    monkeypatch.setattr(time_estimate, "MIN_SECONDS", 0.0)
    seen = Estimates()
    run = cordgt.train(few(), "counts", out=tmp_path / "run", report=False, callbacks=seen, **options)
    assert [n for n, _ in seen.found] == [0, 1, 2, 3]
    assert all(seconds > 0 for _, seconds in seen.found)  # the evaluation is left at the end
    weights = [one.folder.read_tensors("model.safetensors")[0] for one in (plain, run)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert plain.metrics["test"] == run.metrics["test"]


def test_the_estimate_counts_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation, test and refit; and the candidates of a ranking."""
    plans = []
    original = TimeEstimate.from_task.__func__  # type: ignore[attr-defined]

    def record(cls: type[TimeEstimate], *args: Any, **options: Any) -> TimeEstimate:
        plans.append(original(cls, *args, **options))
        return plans[-1]

    monkeypatch.setattr(TimeEstimate, "from_task", classmethod(record))
    options: dict[str, Any] = {"device": "cpu", "report": False, "refit": True, "ranking": 5, "num_negatives": 3}
    run = cordgt.train(few(), "counts", out=tmp_path / "run", epochs=2, mask_nodes=0, **options)
    fit, refit = plans
    test, validation = (run.metrics[split]["transductive"]["events"] for split in ("test", "validation"))
    assert (fit.epochs, fit.validation_events, fit.final_events) == (2, validation, validation + test)
    assert (fit.refit_events, refit.refit_events, refit.final_events, refit.validation_events) == (200, 0, 0, 0)
    assert fit.scoring_ratio == pytest.approx((2 + 5) / (1 + 3) / 3)


# --- what is printed ---


def test_a_line_a_minute_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch, console)
    with console.ProgressBar() as bar:
        bar.on_epoch_start("fit", 1, 50, 5000)
        for _ in range(25):  # ten seconds each
            clock.now += 10
            bar.on_step(20, 0.5)
            if clock.now == 1100:
                bar.on_time_estimate(7200 + 20)
        bar.on_stage_start("validating", 900)
        clock.now += 59
        bar.on_step(30)
        clock.now += 1
        bar.on_step(30)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "epoch 1/50: 120 of 5,000, loss 0.5000, 2.0 per second",
        "epoch 1/50: 240 of 5,000, loss 0.5000, 2.0 per second, at most 2 hours left",
        "epoch 1/50: 360 of 5,000, loss 0.5000, 2.0 per second, at most 2 hours left",
        "epoch 1/50: 480 of 5,000, loss 0.5000, 2.0 per second, at most 2 hours left",
        "validating: 30 of 900, 0.5 per second, at most 2 hours left",
    ]


def test_the_first_estimate_is_described_for_all_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Clock(monkeypatch, console)
    with console.ProgressBar(n_runs=3, describe_estimate=lambda seconds: [f"{seconds:.0f} s"]) as bar:
        bar.on_run_start("seed-0")
        bar.on_time_estimate(100.0)
        bar.on_time_estimate(40.0)
        assert bar.time_left.end_time == 1000 + 40 + 200
        bar.on_run_start("seed-1")
        bar.on_time_estimate(90.0)
        assert bar.time_left.end_time == 1000 + 90 + 100
    assert capsys.readouterr().err.splitlines() == ["300 s"]


def test_the_bar_shows_the_time_left_of_the_whole_training(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, console)
    bar = console.ProgressBar()
    bar.on_epoch_start("fit", 1, 50, 100)
    task = bar.bar.tasks[0]
    assert "left" not in bar.time_left.render(task).plain
    bar.on_time_estimate(3 * 3600.0)
    assert bar.time_left.render(task).plain == "at most 3 hours left"


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_long_training_on_a_cpu_names_bfloat16(is_fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_fast_bf16", lambda: is_fast)

    def names_bf16(model: str, seconds: float, **changes: str) -> bool:
        return "precision=bf16-cpu" in " ".join(_describe_estimate(make_settings(model, changes), seconds, is_cpu=True))

    assert names_bf16("cordgt", 7200) == is_fast
    assert not names_bf16("cordgt", 300) and not names_bf16("tgn", 7200)
    assert not names_bf16("cordgt", 7200, precision="bf16-cpu")


@pytest.mark.parametrize(
    ("model", "changes", "is_named"),
    [
        ("cordgt_plus", {}, True),
        ("cordgt", {}, True),
        ("cordgt_plus", {"fanout": "8,1"}, False),  # not much larger
        ("cordgt_small", {}, False),
        ("tgn", {}, False),
    ],
)
def test_a_long_training_on_a_cpu_names_the_small_model(model: str, changes: dict[str, str], is_named: bool) -> None:
    settings = make_settings(model, changes)

    def names_small(seconds: float, *, is_cpu: bool) -> bool:
        text = " ".join(_describe_estimate(settings, seconds, is_cpu=is_cpu))
        assert ("--model counts" in text) == (seconds > 600)
        assert ("--model counts --set collaborative=true" in text) == ("--model cordgt_small" in text)
        return "--model cordgt_small" in text

    assert names_small(7200, is_cpu=True) == is_named
    assert not names_small(7200, is_cpu=False) and not names_small(300, is_cpu=True)


def test_a_long_training_names_faster_choices() -> None:
    settings = make_settings("cordgt", {})
    assert _describe_estimate(settings, 50) == []
    (short,) = _describe_estimate(settings, 300)
    assert "at most about 5 minutes" in short and "at most 50 epochs" in short and "after 3 without" in short
    text = " ".join(_describe_estimate(settings, 7 * 3600))
    assert "at most about 7 hours" in text and "--model counts" in text and "--set fanout=10,1 (now 20,1)" in text
    assert "fanout" not in " ".join(_describe_estimate(make_settings("tgn", {}), 7 * 3600))
    assert "--model counts" not in " ".join(_describe_estimate(make_settings("counts", {}), 7 * 3600))
