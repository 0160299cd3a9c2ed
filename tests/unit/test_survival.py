"""Trainings that are stopped, killed, damaged or out of memory: clear messages, and resuming gives the same result."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.callbacks import Callback
from cordgt.errors import RunError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.inference.run import Run
from cordgt.models.cordgt import Cordgt
from cordgt.runtime import signals
from cordgt.runtime.signals import SignalInterrupt, StopRequest, TrainingStopped, defer_signals, raise_on_signal
from cordgt.training import oom, trainer
from cordgt.training.run_folder import RunFolder
from cordgt.workflows.train import train

TINY: dict[str, Any] = {
    "hidden": 8, "heads": 2, "fanout": (3,), "td_dim": 8, "sd_dim": 8, "dropout": 0.3,
    "epochs": 2, "batch_size": 20, "lr": 0.01, "min_delta": 0,
}  # fmt: skip


def stream() -> EventStream:
    rng = np.random.default_rng(0)
    src = rng.integers(0, 8, 120)
    dst = 10 + (src + rng.integers(0, 2, 120)) % 8
    return EventStream.from_columns(src, dst, rng.choice([0, 1, 2], 120).cumsum(), time=TimeAxis("number"), name="s")


def fit(out: Path, **options: Any) -> Run:
    return train(stream(), out=out, device="cpu", **(TINY | {"refit": True} | options))


def final_state(run: Path) -> dict[str, Any]:
    """Return weights (bit-exact), metrics, losses and file names, without timings."""
    found: dict[str, Any] = {"files": sorted(p.name for p in run.iterdir() if p.is_file())}
    for name in ("model.safetensors", "refit.safetensors"):
        found |= {f"{name} {k}": v.numpy().tobytes() for k, v in RunFolder(run).read_tensors(name)[0].items()}
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    found |= {k: v for k, v in metrics.items() if k not in ("checksums", "seconds_per_epoch", "peak_memory_mb")}
    return found | {"epochs": [record for record in history(run) if "events" not in record]}


def history(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in record.items() if not k.endswith("seconds")} for record in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return final_state(fit(tmp_path_factory.mktemp("runs") / "whole").path)


class ActAt(Callback):
    """Calls ``action`` at the ``nth`` occurrence of an event."""

    def __init__(self, what: str, nth: int, action: Any) -> None:
        self.what, self.left, self.action, self.stage = what, nth, action, ""

    def _now(self, what: str) -> None:
        self.left -= what == self.what
        if what == self.what and self.left == 0:
            self.action()

    def on_step(self, n: int, loss: float | None = None) -> None:
        self._now("step" if loss is not None else f"{self.stage} step")

    def on_stage_start(self, name: str, total: int | None) -> None:
        self.stage = name.partition(":")[0]
        self._now(self.stage)


def send_signal(signum: signal.Signals) -> Any:
    return lambda: os.kill(os.getpid(), signum)


class Killed(Exception):
    """Simulates a kill of the process."""


def die() -> None:
    raise Killed


# --- signals ---


def test_the_first_signal_is_deferred_and_the_second_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "REPEAT_SECONDS", 0.0)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with defer_signals() as stop:
        stop.raise_if_requested()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
        with pytest.raises(TrainingStopped) as raised:
            stop.raise_if_requested()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert raised.value.exit_code == 143 and TrainingStopped(signal.SIGINT).exit_code == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_within_a_second_is_the_same_request(
    monkeypatch: pytest.MonkeyPatch, second: signal.Signals
) -> None:
    now = 100.0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    with raise_on_signal():
        with defer_signals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            now = 100.9
            os.kill(os.getpid(), second)
            assert stop.signum == signal.SIGINT
        os.kill(os.getpid(), second)  # the training has been saved; the command reports it
        with pytest.raises(SignalInterrupt), defer_signals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.signum == signal.SIGINT
            now = 102.0
            os.kill(os.getpid(), second)


def test_signals_handled_by_the_program_are_left_alone() -> None:
    received: list[int] = []

    def handle(number: int, _: Any) -> None:
        received.append(number)

    before = signal.signal(signal.SIGTERM, handle), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.signum is None and received == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_signals_are_not_deferred_outside_the_main_thread() -> None:
    found: list[StopRequest] = []

    def run() -> None:
        with defer_signals() as stop:
            found.append(stop)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [StopRequest()]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("what", "nth", "resume_point"),
    [
        ("step", 2, "40 of 85 events of epoch 1"),
        ("validating", 2, "85 of 85 events of epoch 2"),
        ("evaluating step", 1, ""),
        ("step", 14, "40 of 120 events of refit, epoch 1"),
    ],
)
def test_a_signal_stops_after_the_current_batch(
    tmp_path: Path, signum: signal.Signals, what: str, nth: int, resume_point: str
) -> None:
    with pytest.raises(TrainingStopped) as raised:
        fit(tmp_path / "run", mask_nodes=0, callbacks=ActAt(what, nth, send_signal(signum)))
    assert raised.value.signum == signum and raised.value.resume_point == resume_point
    assert not list((tmp_path / "run").glob(".*"))


def test_stop_and_resume_after_every_second_batch(tmp_path: Path, whole: dict[str, Any]) -> None:
    """The result is the same as without stops, dropout included."""
    for turn in range(99):
        try:
            fit(tmp_path / "run", resume=turn > 0, callbacks=ActAt("step", 2, send_signal(signal.SIGINT)))
            break
        except TrainingStopped as stopped:
            assert "of epoch" in stopped.resume_point or "refit" in stopped.resume_point
    assert 4 < turn < 20
    assert final_state(tmp_path / "run") == whole


def test_a_signal_stops_between_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch takes minutes on a CPU. The state before it is saved and resumed."""
    monkeypatch.setattr(Cordgt, "chunk_size", 7)  # three micro-batches
    whole = final_state(fit(tmp_path / "whole").path)
    losses, calls = trainer.Step.losses, 0

    def counted(self: trainer.Step, *batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:  # the second micro-batch of the second batch
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, *batch)

    with monkeypatch.context() as patched, pytest.raises(TrainingStopped) as raised:
        patched.setattr(trainer.Step, "losses", counted)
        fit(tmp_path / "run")
    assert calls == 5 and raised.value.resume_point.startswith("20 of ")
    fit(tmp_path / "run", resume=True)
    assert final_state(tmp_path / "run") == whole


# --- threads ---


THREADS = """
import sys
import torch
from cordgt.workflows.train import train
from test_survival import TINY, stream
torch.set_num_threads(int(sys.argv[1]))
train(stream(), out=sys.argv[2], device="cpu", **(TINY | {"epochs": 1}))
print(torch.get_num_threads())
"""


@pytest.mark.parametrize("n", [1, 2])
def test_numba_does_not_change_the_number_of_torch_threads(tmp_path: Path, n: int) -> None:
    """numba's first parallel loop would set the number for both, which changes the last bits."""
    paths = os.pathsep.join([str(Path(trainer.__file__).parents[2]), str(Path(__file__).parent)])
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_NUM_THREADS"} | {"PYTHONPATH": paths}
    command = [sys.executable, "-c", THREADS, str(n), str(tmp_path / "run")]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert completed.stdout == f"{n}\n", completed.stderr


# --- checkpoints within an epoch ---


@pytest.mark.parametrize("nth", range(1, 12))
def test_checkpoints_within_an_epoch(tmp_path: Path, whole: dict[str, Any], nth: int) -> None:
    """Checkpoints after every batch: killed after any of them, the resumed run has the same result."""
    every_batch = {"checkpoint_minutes": 0}
    with pytest.raises(Killed):
        fit(tmp_path / "run", **every_batch, callbacks=ActAt("step", nth, die))
    assert (RunFolder(tmp_path / "run").latest_checkpoint() is None) == (nth == 1)
    fit(tmp_path / "run", resume=True, **every_batch)
    assert final_state(tmp_path / "run") == whole


def test_history_lines_within_an_epoch_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "SECONDS_BETWEEN_LINES", -1.0)
    expected = history(fit(tmp_path / "whole").path)
    with pytest.raises(Killed):
        fit(tmp_path / "run", checkpoint_minutes=0, callbacks=ActAt("step", 3, die))
    fit(tmp_path / "run", resume=True, checkpoint_minutes=0)
    assert history(tmp_path / "run") == expected


def test_partial_files_of_a_killed_process_are_removed(tmp_path: Path, whole: dict[str, Any]) -> None:
    with pytest.raises(Killed):
        fit(tmp_path / "run", callbacks=ActAt("validating", 2, die))
    (tmp_path / "run" / ".state.safetensors.abc.part").write_bytes(b"half")
    fit(tmp_path / "run", resume=True)
    assert final_state(tmp_path / "run") == whole


# --- damage ---


@pytest.fixture
def killed_run(tmp_path: Path) -> RunFolder:
    """A killed run with two checkpoints."""
    with pytest.raises(Killed):
        fit(tmp_path / "run", checkpoint_minutes=0, callbacks=ActAt("step", 4, die))
    return RunFolder(tmp_path / "run")


def test_any_changed_byte_is_detected(killed_run: RunFolder) -> None:
    """Unless it is padding and changes nothing."""
    path = killed_run.path / "state.safetensors"
    whole, good = path.read_bytes(), killed_run.read_tensors("state.safetensors")
    rng, n_detected = random.Random(0), 0
    for at in rng.sample(range(len(whole)), 300):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            tensors, about = killed_run.read_tensors("state.safetensors")
        except RunError as error:
            assert "state.safetensors is damaged" in str(error)
            n_detected += 1
        else:
            assert about == good[1] and all(torch.equal(v, good[0][k]) for k, v in tensors.items())
    assert n_detected > 280


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-3] + b"xyz", lambda b: b"", lambda b: b + b"more"])
def test_resume_falls_back_to_the_previous_checkpoint(
    killed_run: RunFolder, whole: dict[str, Any], damage: Any
) -> None:
    path = killed_run.path / "state.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    message = r"state\.safetensors is damaged.* Delete it: --resume then continues from state\.previous\.safetensors"
    with pytest.raises(RunError, match=message):
        fit(killed_run.path, resume=True, checkpoint_minutes=0)
    path.unlink()
    previous = killed_run.path / "state.previous.safetensors"
    content = previous.read_bytes()
    previous.write_bytes(damage(content))
    with pytest.raises(RunError, match=r"previous\.safetensors is damaged.* Delete it: --resume then trains from the"):
        fit(killed_run.path, resume=True, checkpoint_minutes=0)
    previous.write_bytes(content)
    fit(killed_run.path, resume=True, checkpoint_minutes=0)
    assert final_state(killed_run.path) == whole


def test_changed_weights_are_refused(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", epochs=1, refit=False).path
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged: its checksum is wrong"):
        Run.load(run, "cpu").score(0, 10)


# --- one process at a time ---


def test_two_trainings_in_one_folder_are_refused(tmp_path: Path) -> None:
    message = rf"Another process is training in {tmp_path / 'run'}"
    with RunFolder(tmp_path / "run").lock():
        with pytest.raises(RunError, match=message):
            fit(tmp_path / "run")
        with pytest.raises(RunError, match=message):
            fit(tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()
    fit(tmp_path / "run", epochs=1, refit=False)


# --- numbers and memory ---


def test_diverged_weights_keep_the_last_good_state(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN overwrites neither the checkpoint nor the best weights."""
    original, calls = trainer.Step.__call__, 0

    def diverge(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        loss = original(self, *arguments)
        if calls == 7:
            next(self.model.parameters()).data.fill_(float("nan"))
        return loss

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Step, "__call__", diverge)
        with pytest.raises(RunError, match=r"no longer .*in epoch 2.* The best weights, of epoch 1, are kept in"):
            fit(tmp_path / "run", checkpoint_minutes=0)
    fit(tmp_path / "run", resume=True, checkpoint_minutes=0)
    assert final_state(tmp_path / "run") == whole


CPU = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(CPU), torch.OutOfMemoryError("CUDA out of memory.")])
def test_out_of_memory(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    message = r"Memory ran out.*smaller batch_size \(now 20\), fanout \(now 3\), hidden \(now 8\).*--resume"
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "dropout_generator", fail)
        with pytest.raises(RunError, match=message):
            fit(tmp_path / "run")
    fit(tmp_path / "run", resume=True)
    assert final_state(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("free", "message"), [(2**17, r"batch_size=\d+ fits in the 0\.0 GB"), (1, "no batch size fits")]
)
def test_out_of_memory_suggests_a_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, message: str
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(trainer, "dropout_generator", fail)
    monkeypatch.setattr(oom, "free_memory", lambda _: free)
    with pytest.raises(RunError, match=f"now 20.*Estimate: {message}"):
        fit(tmp_path / "run")


@pytest.mark.parametrize(
    ("free", "message"),
    [
        (
            2**40,
            r"holds 5 events of a batch .* about \d+ MB: only a batch_size below 5 takes less",
        ),
        (2**16, r"holds 5 events of a batch .* batch_size=[1-4] fits"),
    ],
)
def test_out_of_memory_with_micro_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, message: str
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Cordgt, "chunk_size", 5)
    monkeypatch.setattr(trainer, "dropout_generator", fail)
    monkeypatch.setattr(oom, "free_memory", lambda _: free)
    with pytest.raises(RunError, match=f"now 20.*{message}"):
        fit(tmp_path / "run")


def test_other_errors_are_not_reported_as_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(trainer, "dropout_generator", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        fit(tmp_path / "run")
