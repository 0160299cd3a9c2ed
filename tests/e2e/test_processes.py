"""Distributed training from the command line: the same result as one process, even if a process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from cordgt.cli.node import check_task
from cordgt.errors import SettingError

from .helpers import fails, process, settings, works
from .test_survival import final_state, handle_ctrl_c, wait_for

# Micro-batches make the result independent of the number of processes, dropout included.
LONG = settings(epochs=20, patience=20, min_delta=0, batch_size=20, dropout=0.2, micro_batches=2)


@pytest.fixture(scope="module")
def whole(data: Path) -> dict[str, Any]:
    """The final state of a training in one process."""
    works("train", data, *LONG, "--out", data.parent / "run")
    return final_state(data.parent / "run")


def children(launcher: subprocess.Popen[str]) -> list[int]:
    """Return the ids of the processes it started, in order."""
    found = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    if not found.exists():
        pytest.skip("this system does not list a process's children")
    return [int(pid) for pid in found.read_text().split()]


def start_two(*command: Any) -> subprocess.Popen[str]:
    return process(*command, "--processes", 2, preexec_fn=handle_ctrl_c)


def test_a_killed_process_ends_the_others(data: Path, whole: dict[str, Any]) -> None:
    """The main process saves, and one process resumes to the same result."""
    command = ["train", data, *LONG, "--out", "run"]
    training = start_two(*command)
    wait_for(lambda: Path("run/state.safetensors").exists(), training)
    os.kill(children(training)[1], signal.SIGKILL)
    began = time.monotonic()
    out, err = training.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert training.returncode == 137, err
    assert out == ""
    assert "Traceback" not in err
    assert "Error: Another process of this training ended or does not respond" in err
    assert "Saved after " in err
    assert "--resume" in err and "any number of processes" in err
    fails(*command, containing="already holds a run")
    works(*command, "--resume")
    assert final_state(Path("run")) == whole


def test_a_signal_saves_and_two_processes_resume(data: Path, whole: dict[str, Any]) -> None:
    command = ["train", data, *LONG, "--out", "run"]
    training = start_two(*command)
    wait_for(lambda: Path("run/state.safetensors").exists(), training)
    training.send_signal(signal.SIGTERM)
    _, err = training.communicate(timeout=60)
    assert training.returncode == 143, err
    assert err.strip().splitlines()[-1].startswith("Error: interrupted, and saved after ")
    assert err.strip().endswith(f"cordgt train {data} {' '.join(LONG)} --out run --processes 2 --resume")
    out, err = (training := start_two(*command, "--resume")).communicate(timeout=120)
    assert training.returncode == 0, err
    assert out.count("test, transductive") == 1
    assert final_state(Path("run")) == whole


def test_processes_with_different_settings_are_refused(data: Path) -> None:
    """Started one by one, as on two machines."""
    environment = {"WORLD_SIZE": "2", "CORDGT_RENDEZVOUS": str(Path("rendezvous").absolute())}
    both = [
        process("train", data, *settings(lr=lr), "--out", f"run-{rank}", extra=environment | {"RANK": str(rank)})
        for rank, lr in enumerate((0.001, 0.01))
    ]
    errors = [training.communicate(timeout=60)[1] for training in both]
    assert [training.returncode for training in both] == [2, 2], errors
    assert "The processes have different inputs. In process 1 on " in errors[0]
    assert "lr is 0.01 (process 0: 0.001)" in errors[0]
    assert errors[1] == ""
    assert not Path("run-0").exists() and not Path("run-1").exists()


def test_pipes_and_single_process_commands_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe")
    fails("train", "pipe", "--processes", 2, containing="can be read only once")
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    fails("models", containing="`cordgt models` runs in one process: start it without torchrun")
    with pytest.raises(SettingError, match="--task node runs in one process"):
        check_task("node", Path("encoder"), {})
