"""Systems that are not Linux: modules and names that only POSIX has are neither imported nor needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cordgt import locks
from cordgt.errors import DataError, SettingError
from cordgt.files import file_lock, is_file_locked
from cordgt.runtime import launch, limits
from cordgt.training.devices import choose_device, peak_memory_mb

# Only the modules of cordgt see a system like Windows. The libraries below them have their own versions for it.
WITHOUT_POSIX = """
import builtins, importlib, os, pkgutil, signal, sys, types

MODULES = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "posix", "syslog", "readline", "curses"}
NAMES = {
    "os": "O_CLOEXEC O_DIRECTORY O_DSYNC O_NOFOLLOW O_NONBLOCK O_SYNC chown chroot fork forkpty getegid geteuid getgid "
    "getgroups getloadavg getpgid getpgrp getpriority getresuid getsid getuid killpg lchown mkfifo mknod nice openpty "
    "posix_fadvise posix_fallocate posix_spawn pread preadv pwrite pwritev readv sched_getaffinity sched_setaffinity "
    "sched_yield sendfile setgid setpgid setsid setuid statvfs fstatvfs sysconf uname wait wait3 wait4 writev",
    "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 alarm pause pthread_kill "
    "pthread_sigmask setitimer sigwait",
}

def without(module, names):
    copy = types.ModuleType(module.__name__)
    copy.__dict__.update({k: v for k, v in vars(module).items() if k not in names.split()})
    return copy

replaced = {"os": without(os, NAMES["os"]), "signal": without(signal, NAMES["signal"])}
replaced["os"].name = "nt"
real_import = builtins.__import__

def import_without_posix(name, globals=None, locals=None, fromlist=(), level=0):
    if str((globals or {}).get("__name__", "")).partition(".")[0] == "cordgt":
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in replaced:
            return replaced[name]
    return real_import(name, globals, locals, fromlist, level)

builtins.__import__ = import_without_posix
import cordgt
for module in pkgutil.walk_packages(cordgt.__path__, "cordgt."):
    if ".kernels" not in module.name and not module.name.endswith("__main__"):  # those are imported only on a GPU
        importlib.import_module(module.name)
"""

TRAIN = """
from pathlib import Path
folder = Path(sys.argv[1])
rows = [(f"u{k % 7}", f"i{k % 5}", k) for k in range(300)]
columns = dict(zip(("user", "item", "time"), map(list, zip(*rows))))
import pyarrow
stream = cordgt.read_events(pyarrow.table(columns), name="small")
run = cordgt.train(stream, "cordgt", epochs=1, hidden=8, heads=2, layers=1, fanout=(2, 1), out=folder / "run",
                   device="cpu", report=False)
again = cordgt.Run.load(folder / "run", "cpu")
assert again.score("u1", "i1").tolist() == run.score("u1", "i1").tolist()
store = cordgt.convert_to_store(stream[:200], folder / "store")
cordgt.append_to(folder / "store", stream[200:])
assert cordgt.read_events(folder / "store").n_events == 300
cordgt.train(cordgt.read_events(folder / "store"), "counts", epochs=1, out=folder / "run2", device="cpu", report=False)
from cordgt.cli import main
sys.argv = ["cordgt", "recommend", str(folder / "run"), "--source", "u1", "--device", "cpu"]
main()
"""


def run_without_posix(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_POSIX + script, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_every_module_imports_and_trains_without_posix(tmp_path: Path) -> None:
    result = run_without_posix(TRAIN, str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "i1" in result.stdout
    assert (tmp_path / "run" / "metrics.json").exists()


def test_the_simulation_blocks_posix(tmp_path: Path) -> None:
    script = "from cordgt import locks; from cordgt.runtime import limits; print(locks.fcntl, limits.resource)"
    result = run_without_posix(script)
    assert result.stdout.split() == ["None", "None"], result.stderr


# -------------------- locks on Windows


class FakeMsvcrt:
    """As ``msvcrt``: locks one byte at the position of the file, for one descriptor at a time."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self) -> None:
        self.owners: dict[int, int] = {}

    def locking(self, handle: int, mode: int, n_bytes: int) -> None:
        assert n_bytes == 1
        assert os.lseek(handle, 0, os.SEEK_CUR) == locks.LOCKED_BYTE
        file = os.fstat(handle).st_ino
        if mode == self.LK_UNLCK:
            if self.owners.pop(file, None) is None:
                raise PermissionError(13, "Permission denied")
        elif self.owners.setdefault(file, handle) != handle:
            raise PermissionError(13, "Permission denied")


@pytest.fixture
def windows_locks(monkeypatch: pytest.MonkeyPatch) -> FakeMsvcrt:
    fake = FakeMsvcrt()
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "msvcrt", fake)
    return fake


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_locks_of_windows(tmp_path: Path, windows_locks: FakeMsvcrt, kind: str) -> None:
    path = tmp_path / "x"
    path.mkdir() if kind == "folder" else path.write_text("text")
    assert not is_file_locked(path)
    with file_lock(path, DataError("busy")):
        assert is_file_locked(path)
        with pytest.raises(DataError, match="busy"), file_lock(path, DataError("busy")):
            pass
    assert windows_locks.owners == {}
    assert not is_file_locked(path)
    with file_lock(path), file_lock(tmp_path):  # waits for nobody
        assert is_file_locked(path)
    if kind == "folder":  # Windows cannot rename a folder with an open file in it
        assert list(path.iterdir()) == []
    else:
        assert path.read_text() == "text"


def test_without_any_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setattr(locks, "msvcrt", None)
    with file_lock(tmp_path, DataError("busy")), file_lock(tmp_path, DataError("busy")):
        assert not is_file_locked(tmp_path)


# -------------------- other limits


def test_without_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_memory_mb(choose_device("cpu")) > 1
    monkeypatch.setattr(limits, "resource", None)
    assert limits.address_space_limit() is None
    assert peak_memory_mb(choose_device("cpu")) == 0


def test_several_processes_are_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "sys", SimpleNamespace(platform="win32"))
    with pytest.raises(SettingError, match="--processes needs Linux or macOS"):
        launch.launch(2, ["train"])


def test_apples_gpu_is_refused_in_words() -> None:
    with pytest.raises(SettingError, match=r"'mps' \(Apple's GPU\) is not supported.* Use --device cpu"):
        choose_device("mps")
