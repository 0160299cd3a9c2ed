"""Trainings that several processes share: the same end as of one, whatever happens to one of them."""

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
from .test_survival import ending, hears_ctrl_c, wait_for

# Dropout and all, for a batch in pieces is the same whoever does them.
LONG = settings(epochs=20, patience=20, min_delta=0, batch_size=20, dropout=0.2, micro_batches=2)


@pytest.fixture(scope="module")
def whole(data: Path) -> dict[str, Any]:
    """The ending of a training of one process."""
    works("train", data, *LONG, "--out", data.parent / "run")
    return ending(data.parent / "run")


def children(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes it started, in order."""
    found = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    if not found.exists():
        pytest.skip("this system does not list a process's children")
    return [int(pid) for pid in found.read_text().split()]


def shared(*command: Any) -> subprocess.Popen[str]:
    return process(*command, "--processes", 2, preexec_fn=hears_ctrl_c)


def test_one_is_killed_and_the_others_end(data: Path, whole: dict[str, Any]) -> None:
    """What the first had done is saved, and one process takes it to the end that two, or one, would have come to."""
    command = ["train", data, *LONG, "--out", "run"]
    training = shared(*command)
    wait_for(lambda: Path("run/state.safetensors").exists(), training)
    os.kill(children(training)[1], signal.SIGKILL)
    began = time.monotonic()
    out, err = training.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert training.returncode == 137, err
    assert out == ""
    assert "Traceback" not in err
    assert "Error: Another process of this training is gone or silent" in err
    assert "Saved after " in err
    assert "--resume goes on, with any number of processes" in err
    fails(*command, saying="already holds a run")
    works(*command, "--resume")
    assert ending(Path("run")) == whole


def test_a_signal_saves_and_several_go_on(data: Path, whole: dict[str, Any]) -> None:
    command = ["train", data, *LONG, "--out", "run"]
    training = shared(*command)
    wait_for(lambda: Path("run/state.safetensors").exists(), training)
    training.send_signal(signal.SIGTERM)
    _, err = training.communicate(timeout=60)
    assert training.returncode == 143, err
    assert err.strip().splitlines()[-1].startswith("Error: interrupted, and saved after ")
    assert err.strip().endswith(f"cordgt train {data} {' '.join(LONG)} --out run --processes 2 --resume")
    out, err = (training := shared(*command, "--resume")).communicate(timeout=120)
    assert training.returncode == 0, err
    assert out.count("test, transductive") == 1
    assert ending(Path("run")) == whole


def test_processes_with_other_settings(data: Path) -> None:
    """Started one by one, as by hand on two machines."""
    told = {"WORLD_SIZE": "2", "CORDGT_MEETING": str(Path("meeting").absolute())}
    both = [
        process("train", data, *settings(lr=lr), "--out", f"run-{rank}", extra=told | {"RANK": str(rank)})
        for rank, lr in enumerate((0.001, 0.01))
    ]
    said = [training.communicate(timeout=60)[1] for training in both]
    assert [training.returncode for training in both] == [2, 2], said
    assert "The processes do not agree. In process 1, on " in said[0]
    assert "lr is 0.01 and not 0.001, as in process 0" in said[0]
    assert said[1] == ""
    assert not Path("run-0").exists() and not Path("run-1").exists()


def test_memory_and_pipes_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe")
    fails("train", "pipe", "--processes", 2, saying="can be read only once")
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    fails("models", saying="`cordgt models` runs in one process: start it without torchrun")
    with pytest.raises(SettingError, match="--task node runs in one process"):
        check_task("node", Path("encoder"), {})
