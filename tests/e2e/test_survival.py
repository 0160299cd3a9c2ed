"""Trainings from the command line: signals, kills, a full disk, too little memory, two in one folder."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import cordgt

from .helpers import TINY, events, fails, process, settings, works, write_events

LONG = settings(epochs=40, patience=40, min_delta=0, batch_size=20)
KILLS = Path(__file__).parents[1] / "survival" / "kills.py"


def final_state(run: Path) -> dict[str, Any]:
    found = {k: v for k, v in json.loads((run / "metrics.json").read_text()).items() if k in ("test", "validation")}
    weights = load_file(run / "model.safetensors")
    return found | {name: tensor.numpy().tobytes() for name, tensor in weights.items()}


@pytest.fixture(scope="module")
def whole(data: Path) -> dict[str, Any]:
    """The final state of an undisturbed training, in this process; another one with one thread has the same."""
    works("train", data, *LONG, "--out", data.parent / "run")
    return final_state(data.parent / "run")


def wait_for(condition: Callable[[], bool], training: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not condition() and training.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert training.poll() is None, training.communicate()


def handle_ctrl_c() -> None:
    """Reset the handler, because background processes ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


# -------------------- killed


def test_killed_three_times_in_a_row() -> None:
    """The short form of ``python tests/survival/kills.py --kills 50``."""
    command = [sys.executable, str(KILLS), "--kills", "3", "--in-a-row"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "1 identical results" in completed.stdout


def test_five_nights() -> None:
    """The short form of ``python tests/survival/month.py --nights 30``."""
    command = [sys.executable, str(KILLS.with_name("month.py")), "--nights", "5", "--quick"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "5 nights: nothing lost, every message right" in completed.stdout


# -------------------- signals


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_within_the_epoch(data: Path, whole: dict[str, Any], signum: signal.Signals, code: int) -> None:
    command = ["train", data, *LONG, "--out", "run"]
    training = process(*command, preexec_fn=handle_ctrl_c)
    wait_for(lambda: Path("run/state.safetensors").exists(), training)
    training.send_signal(signum)
    _, err = training.communicate(timeout=120)
    assert training.returncode == code, err
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith("Error: interrupted, and saved after ") and " of epoch " in last
    assert last.endswith("Continue with: cordgt " + " ".join(map(str, command)) + " --resume")
    works(*command, "--resume")
    assert final_state(Path("run")) == whole


SLOW_STEPS = """
import time
from cordgt.cli import console, main
console.ProgressBar.on_step = lambda self, n, loss=None: time.sleep(0.2)
main()
"""


@pytest.mark.parametrize("signums", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_two_signals_in_a_row_save_once(data: Path, whole: dict[str, Any], signums: tuple[signal.Signals, ...]) -> None:
    """As `timeout` sends them: to its child, then to the process group. Both come within one step."""
    command = ["train", data, *LONG, "--out", "run"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(cordgt.__file__).parents[1])}
    training = subprocess.Popen(
        [sys.executable, "-c", SLOW_STEPS, *map(str, command)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=handle_ctrl_c,
    )
    wait_for(lambda: Path("run/state.safetensors").exists(), training)
    time.sleep(0.3)  # into a step of the next epoch
    for signum in signums:
        training.send_signal(signum)
        time.sleep(0.05)
    _, err = training.communicate(timeout=120)
    assert training.returncode == 128 + signums[0], err
    assert err.strip().splitlines()[-1].startswith("Error: interrupted, and saved after ")
    works(*command, "--resume")
    assert final_state(Path("run")) == whole


# -------------------- two in one folder


def test_two_processes_on_one_folder(data: Path, whole: dict[str, Any]) -> None:
    """The second is refused with or without --resume; a killed process does not block the folder."""
    command = ["train", data, *LONG, "--out", "run"]
    training = process(*command)
    wait_for(lambda: Path("run/state.safetensors").exists(), training)
    training.send_signal(signal.SIGSTOP)
    for options in ([], ["--resume"]):
        fails(*command, *options, containing="Another process is training in run")
    training.kill()
    training.communicate()
    works(*command, "--resume")
    assert final_state(Path("run")) == whole


# -------------------- disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, enough for a run and its report; skipped if it cannot be mounted."""
    (tmp_path / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path / "disk")]
    try:
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except OSError:
        is_mounted = False
    if not is_mounted:
        pytest.skip("only root can mount a small file system")
    yield tmp_path / "disk"
    subprocess.run(["umount", "-l", str(tmp_path / "disk")], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk with one file."""
    stats = os.statvfs(disk)
    (disk / "filler").write_bytes(b"x" * stats.f_bavail * stats.f_frsize)
    return disk / "filler"


def stop_halfway(command: list[Any]) -> None:
    training = process(*command, preexec_fn=handle_ctrl_c)
    wait_for(lambda: Path(command[-1], "state.safetensors").exists(), training)
    training.send_signal(signal.SIGINT)
    assert training.wait(timeout=120) == 130


def test_a_full_disk(data: Path, whole: dict[str, Any], small_disk: Path) -> None:
    command = ["train", data, *LONG, "--out", small_disk / "run"]
    filler = fill(small_disk)
    fails(*command, containing=["cannot be written", "No space left on device"])
    filler.unlink()
    stop_halfway([*command[:-2], "--resume", *command[-2:]])
    filler = fill(small_disk)
    fails(*command, "--resume", containing=["No space left on device", "What was saved before is intact", "--resume"])
    filler.unlink()
    works(*command, "--resume")
    assert final_state(small_disk / "run") == whole


def test_a_read_only_folder(data: Path, whole: dict[str, Any], small_disk: Path) -> None:
    command = ["train", data, *LONG, "--out", small_disk / "run"]
    stop_halfway(command)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    messages = ["cannot be written", "Read-only file system"]
    fails(*command, "--resume", containing=[*messages, "What was saved before is intact"])
    fails(*command[:-1], small_disk / "other", containing=messages)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    works(*command, "--resume")
    assert final_state(small_disk / "run") == whole


def test_file_size_limit(data: Path) -> None:
    """As with a quota: the history can be written, the weights cannot."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    training = process("train", data, *TINY, "--out", "run", preexec_fn=limit, cwd=Path.cwd())
    _, err = training.communicate(timeout=120)
    assert training.returncode == 2, err
    assert "Traceback" not in err
    assert "state.safetensors cannot be written: " in err
    assert "File too large" in err
    works("train", data, *TINY, "--out", "run", "--resume")


# -------------------- numbers and memory


def test_diverged_loss(data: Path) -> None:
    fails("train", data, *settings(lr=1e30, epochs=3), "--out", "run", containing=["no longer", "--set lr="])


def test_out_of_memory(tmp_path: Path) -> None:
    data = write_events(tmp_path / "many.csv", events(400))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    huge = settings(fanout="400,100")
    training = process("train", data, *huge, "--out", "run", preexec_fn=limit, cwd=Path.cwd())
    _, err = training.communicate(timeout=120)
    assert training.returncode == 2, err
    assert "Traceback" not in err
    assert "Memory ran out. Use a smaller batch_size (now 100), fanout (now 400,100)" in err
