"""Stopped, killed, damaged, out of memory: each is said clearly, and what was saved last goes on to the same end."""

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
from cordgt.runtime.signals import Stop, Stopped, listening
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


def ending(run: Path) -> dict[str, Any]:
    """Weights to the bit, figures and losses, and which files there are; timings left out."""
    found: dict[str, Any] = {"files": sorted(p.name for p in run.iterdir() if p.is_file())}
    for name in ("model.safetensors", "refit.safetensors"):
        found |= {f"{name} {k}": v.numpy().tobytes() for k, v in RunFolder(run).read_tensors(name)[0].items()}
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    found |= {k: v for k, v in metrics.items() if k not in ("seconds_per_epoch", "peak_memory_mb")}
    return found | {"epochs": [record for record in history(run) if "events" not in record]}


def history(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in record.items() if not k.endswith("seconds")} for record in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ending(fit(tmp_path_factory.mktemp("runs") / "whole").path)


class Does(Callback):
    """Does something the ``nth`` time that something happens."""

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


def sends(number: signal.Signals) -> Any:
    return lambda: os.kill(os.getpid(), number)


class PulledPlug(Exception):
    """The process would be gone here."""


def dies() -> None:
    raise PulledPlug


# --- signals ---


def test_the_first_signal_is_noted_and_the_second_acts() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with listening() as stop:
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked == signal.SIGTERM
        with pytest.raises(Stopped) as raised:
            stop.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert raised.value.exit_code == 143 and Stopped(signal.SIGINT).exit_code == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_signals_that_others_answer_are_left_alone() -> None:
    heard: list[int] = []

    def answer(number: int, _: Any) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGTERM, answer), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.asked is None and heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_a_thread_listens_to_nothing() -> None:
    found: list[Stop] = []

    def listen() -> None:
        with listening() as stop:
            found.append(stop)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [Stop()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("what", "nth", "saved"),
    [
        ("step", 2, "40 of 85 events of epoch 1"),
        ("validating", 2, "85 of 85 events of epoch 2"),
        ("evaluating step", 1, ""),
        ("step", 14, "40 of 120 events of refit, epoch 1"),
    ],
)
def test_a_signal_ends_it_after_the_batch(
    tmp_path: Path, number: signal.Signals, what: str, nth: int, saved: str
) -> None:
    with pytest.raises(Stopped) as raised:
        fit(tmp_path / "run", mask_nodes=0, callbacks=Does(what, nth, sends(number)))
    assert raised.value.asked == number and raised.value.saved == saved
    assert not list((tmp_path / "run").glob(".*"))


def test_stopped_after_every_batch(tmp_path: Path, whole: dict[str, Any]) -> None:
    """A batch or two at a time, each in its turn resumed, is the same as all in one go: dropout draws the same too."""
    for turn in range(99):
        try:
            fit(tmp_path / "run", resume=turn > 0, callbacks=Does("step", 2, sends(signal.SIGINT)))
            break
        except Stopped as stopped:
            assert "of epoch" in stopped.saved or "refit" in stopped.saved
    assert 4 < turn < 20
    assert ending(tmp_path / "run") == whole


def test_a_signal_is_heeded_between_the_parts_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch takes minutes on a CPU. What is saved is the state before it, and goes on to the same end."""
    monkeypatch.setattr(Cordgt, "micro_batch_size", 7)  # three parts
    whole = ending(fit(tmp_path / "whole").path)
    losses, calls = trainer.Step.losses, 0

    def counted(self: trainer.Step, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:  # the second part of the second batch
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, batch)

    with monkeypatch.context() as patched, pytest.raises(Stopped) as raised:
        patched.setattr(trainer.Step, "losses", counted)
        fit(tmp_path / "run")
    assert calls == 5 and raised.value.saved.startswith("20 of ")
    fit(tmp_path / "run", resume=True)
    assert ending(tmp_path / "run") == whole


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
def test_compiled_loops_leave_torch_its_threads(tmp_path: Path, n: int) -> None:
    """numba sets the number for both, the first time it runs in a process; the last bits depend on it."""
    paths = os.pathsep.join([str(Path(trainer.__file__).parents[2]), str(Path(__file__).parent)])
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_NUM_THREADS"} | {"PYTHONPATH": paths}
    command = [sys.executable, "-c", THREADS, str(n), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"{n}\n", done.stderr


# --- checkpoints within an epoch ---


@pytest.mark.parametrize("nth", range(1, 12))
def test_checkpoints_within_an_epoch(tmp_path: Path, whole: dict[str, Any], nth: int) -> None:
    """With checkpoint_minutes=0 after every batch; killed after any of them the end is the same."""
    now = {"checkpoint_minutes": 0}
    with pytest.raises(PulledPlug):
        fit(tmp_path / "run", **now, callbacks=Does("step", nth, dies))
    assert (RunFolder(tmp_path / "run").latest_state() is None) == (nth == 1)
    fit(tmp_path / "run", resume=True, **now)
    assert ending(tmp_path / "run") == whole


def test_lines_within_an_epoch_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "SECONDS_BETWEEN_LINES", -1.0)
    expected = history(fit(tmp_path / "whole").path)
    with pytest.raises(PulledPlug):
        fit(tmp_path / "run", checkpoint_minutes=0, callbacks=Does("step", 3, dies))
    fit(tmp_path / "run", resume=True, checkpoint_minutes=0)
    assert history(tmp_path / "run") == expected


def test_what_a_killed_process_left_half_written_is_swept(tmp_path: Path, whole: dict[str, Any]) -> None:
    with pytest.raises(PulledPlug):
        fit(tmp_path / "run", callbacks=Does("validating", 2, dies))
    (tmp_path / "run" / ".state.safetensors.abc.part").write_bytes(b"half")
    fit(tmp_path / "run", resume=True)
    assert ending(tmp_path / "run") == whole


# --- damage ---


@pytest.fixture
def halted(tmp_path: Path) -> RunFolder:
    """A run that was cut off with two checkpoints."""
    with pytest.raises(PulledPlug):
        fit(tmp_path / "run", checkpoint_minutes=0, callbacks=Does("step", 4, dies))
    return RunFolder(tmp_path / "run")


def test_any_altered_byte_is_noticed(halted: RunFolder) -> None:
    """Or changes nothing: a few bytes of the file only fill it up."""
    path = halted.path / "state.safetensors"
    whole, good = path.read_bytes(), halted.read_tensors("state.safetensors")
    draw, noticed = random.Random(0), 0
    for at in draw.sample(range(len(whole)), 300):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            tensors, about = halted.read_tensors("state.safetensors")
        except RunError as error:
            assert "state.safetensors is damaged" in str(error)
            noticed += 1
        else:
            assert about == good[1] and all(torch.equal(v, good[0][k]) for k, v in tensors.items())
    assert noticed > 280


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-3] + b"xyz", lambda b: b"", lambda b: b + b"more"])
def test_a_damaged_checkpoint_and_the_one_before_it(halted: RunFolder, whole: dict[str, Any], damage: Any) -> None:
    path = halted.path / "state.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    said = r"state\.safetensors is damaged.* Delete it: --resume then continues from state\.previous\.safetensors"
    with pytest.raises(RunError, match=said):
        fit(halted.path, resume=True, checkpoint_minutes=0)
    path.unlink()
    previous = halted.path / "state.previous.safetensors"
    kept = previous.read_bytes()
    previous.write_bytes(damage(kept))
    with pytest.raises(RunError, match=r"previous\.safetensors is damaged.* Delete it: --resume then trains from the"):
        fit(halted.path, resume=True, checkpoint_minutes=0)
    previous.write_bytes(kept)
    fit(halted.path, resume=True, checkpoint_minutes=0)
    assert ending(halted.path) == whole


def test_altered_weights_do_not_answer(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", epochs=1, refit=False).path
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged: its checksum is wrong"):
        Run.load(run, "cpu").score(0, 10)


# --- one process at a time ---


def test_two_in_one_folder(tmp_path: Path) -> None:
    said = rf"Another process is training in {tmp_path / 'run'}"
    with RunFolder(tmp_path / "run").locked():
        with pytest.raises(RunError, match=said):
            fit(tmp_path / "run")
        with pytest.raises(RunError, match=said):
            fit(tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()
    fit(tmp_path / "run", epochs=1, refit=False)


# --- numbers and memory ---


def test_weights_that_blow_up_leave_the_last_good_state(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the checkpoint nor the best weights are overwritten by what is no number."""
    check, calls = trainer.Step.__call__, 0

    def breaks(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        loss = check(self, *arguments)
        if calls == 7:
            next(self.model.parameters()).data.fill_(float("nan"))
        return loss

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Step, "__call__", breaks)
        with pytest.raises(RunError, match=r"no longer .*in epoch 2.* The best weights, of epoch 1, are kept in"):
            fit(tmp_path / "run", checkpoint_minutes=0)
    fit(tmp_path / "run", resume=True, checkpoint_minutes=0)
    assert ending(tmp_path / "run") == whole


CPU = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError(CPU), torch.OutOfMemoryError("CUDA out of memory.")])
def test_memory_that_runs_out(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: Any) -> None:
        raise error

    said = r"Memory ran out.*smaller batch_size \(now 20\), fanout \(now 3\), hidden \(now 8\).*--resume"
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "dropout_generator", fails)
        with pytest.raises(RunError, match=said):
            fit(tmp_path / "run")
    fit(tmp_path / "run", resume=True)
    assert ending(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("free", "said"), [(2**17, r"batch_size=\d+ would fit the 0\.0 GB"), (1, "no batch would fit")]
)
def test_memory_that_runs_out_says_which_batch_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(trainer, "dropout_generator", fails)
    monkeypatch.setattr(oom, "free_memory", lambda _: free)
    with pytest.raises(RunError, match=f"now 20.*By a step of 8 events, {said}"):
        fit(tmp_path / "run")


@pytest.mark.parametrize(
    ("free", "said"),
    [
        (
            2**40,
            r"A batch is worked off 5 events at a time, which takes about \d+ MB: only below 5 does a smaller",
        ),
        (2**16, r"A batch is worked off 5 events at a time; by a step of 8 events, batch_size=[1-4] would fit"),
    ],
)
def test_where_a_batch_is_worked_off_in_parts_a_part_has_to_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Cordgt, "micro_batch_size", 5)
    monkeypatch.setattr(trainer, "dropout_generator", fails)
    monkeypatch.setattr(oom, "free_memory", lambda _: free)
    with pytest.raises(RunError, match=f"now 20.*{said}"):
        fit(tmp_path / "run")


def test_other_errors_are_not_taken_for_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(trainer, "dropout_generator", fails)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        fit(tmp_path / "run")
