"""Callbacks: what a user's own sees, in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cordgt
from cordgt.callbacks import NO_CALLBACK, Callback, CallbackList, as_callback
from cordgt.cli import console
from cordgt.events.stream import EventStream
from cordgt.runtime.signals import StopCallback, StopRequest, TrainingStopped
from cordgt.training.settings import make_settings
from cordgt.workflows.seeds import train_seeds


class Recorder(cordgt.Callback):
    """Writes down every call but steps, and the steps of each epoch or stage as one sum."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.done: list[int] = []
        self.losses: list[bool] = []

    def on_run_start(self, name: str) -> None:
        self.calls.append(("run", name))

    def on_run_end(self, name: str, result: dict[str, Any]) -> None:
        self.calls.append(("run end", name, result["seed"]))

    def on_epoch_start(self, phase: str, epoch: int, n_epochs: int, n_events: int) -> None:
        self.calls.append((phase, epoch, n_epochs))
        self._start(n_events)

    def on_stage_start(self, name: str, total: int | None) -> None:
        self.calls.append(("stage", name))
        self._start(total)

    def _start(self, total: int | None) -> None:
        assert total is not None
        self.done.append(-total)

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.done[-1] += n
        self.losses.append(loss is not None)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self.calls.append(("end", record["phase"], record["epoch"]))


def few() -> EventStream:
    draw = np.random.default_rng(0)
    return EventStream.from_columns(*draw.integers(0, 9, (2, 100)), np.arange(100), name="few")


EVALUATED = [  # the last epoch's metrics on all validation events are used again
    ("stage", f"evaluating: {what}")
    for what in (
        "validation, inductive",
        "test, transductive",
        "test, inductive",
        "calibration",
        *["probabilities"] * 3,
        "the report",
    )
]


def test_a_callback_sees_the_epochs_in_order(tmp_path: Path) -> None:
    seen, also = Recorder(), Recorder()
    cordgt.train(few(), "counts", out=tmp_path / "run", device="cpu", epochs=2, callbacks=[seen, also])
    epochs = [[("fit", k, 2), ("stage", "validating"), ("end", "fit", k)] for k in (1, 2)]
    assert seen.calls == [*epochs[0], *epochs[1], *EVALUATED]
    assert set(seen.done) == {0}  # every epoch and stage was stepped to its total
    assert seen.losses[0] and not seen.losses[-1]  # training has a loss, an evaluation none
    assert also.calls == seen.calls


def test_runs_of_several_seeds_are_named(tmp_path: Path) -> None:
    seen = Recorder()
    settings = make_settings("edgebank", {}, seed=3)
    train_seeds(few(), settings, tmp_path / "runs", 2, device="cpu", report=False, callbacks=seen)
    runs = [call for call in seen.calls if call[0].startswith("run")]
    assert runs == [("run", "seed-3"), ("run end", "seed-3", 3), ("run", "seed-4"), ("run end", "seed-4", 4)]


def test_what_may_be_passed() -> None:
    one = Callback()
    assert as_callback(None) is NO_CALLBACK
    assert as_callback(one) is one
    several = as_callback(k for k in (one, one))
    assert isinstance(several, CallbackList) and several.callbacks == [one, one]
    for wrong in (print, [print], "bar"):
        with pytest.raises(cordgt.SettingError, match="is not a callback"):
            as_callback(wrong)  # type: ignore[arg-type]
    with pytest.raises(cordgt.SettingError, match="'bar' is not a callback"):
        as_callback("bar")  # type: ignore[arg-type]


def test_lists_forward_every_method() -> None:
    """One that is forgotten would be lost without a word."""
    hooks = {name for name in vars(Callback) if name.startswith("on_")}
    assert hooks <= set(vars(CallbackList))


def test_an_evaluation_stops_after_the_step_was_seen() -> None:
    seen, stop = Recorder(), StopRequest(deadline=0.0)
    both = CallbackList([seen, StopCallback(stop)])
    both.on_stage_start("evaluating: test, transductive", 10)
    with pytest.raises(TrainingStopped):
        both.on_step(4)
    assert seen.done == [-6]


def test_downloads_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a file, with what an earlier call left; none where a connection is made again."""
    with console.DownloadBar() as bar:
        bar.on_stage_start("a.csv", 1000)
        bar.on_step(0)
        bar.on_step(600)
        bar.on_stage_start("a.csv", 1000)
        bar.on_step(600)
        bar.on_step(400)
        bar.on_stage_start("b.csv", 2000)
        bar.on_step(500)
        bar.on_stage_start("converting", None)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["a.csv: 1,000 bytes", "b.csv: 2,000 bytes, 500 already downloaded", "converting"]
