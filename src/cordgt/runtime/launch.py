"""Start one command as several processes on this machine, forward signals to them, and wait for them.

``torchrun`` does the same for several machines. This launcher needs no port, no host name and no torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cordgt.errors import SettingError

# Environment variables of the started processes.
RENDEZVOUS = "CORDGT_RENDEZVOUS"  # file through which the processes find each other; torchrun has its own way
PARENT_PIPE = "CORDGT_PARENT_PIPE"  # file descriptor of a pipe that closes when the parent process ends
RESULT_FILE = "CORDGT_RESULT_FILE"  # where a benchmarked process writes its measurements
GRACE_SECONDS = 10.0  # after one process failed: time for the others to notice it, save and report
FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Child = subprocess.Popen[bytes]


def launch(n: int, argv: Sequence[str], extra_env: Mapping[str, str] | None = None) -> int:
    """Run ``cordgt ARGV`` in ``n`` processes that join one process group, and wait for all of them.

    Returns:
        0 if all succeed, otherwise the exit code of the first that fails (128 plus the signal's number if a signal
        ended it). Ctrl-C and SIGTERM are forwarded, so that a training saves first.
    """
    if sys.platform == "win32":
        raise SettingError("--processes needs Linux or macOS. Leave it out: one process uses all cores.")
    with tempfile.TemporaryDirectory(prefix="cordgt-") as folder, _parent_pipe() as pipe:
        children = [_start(rank, n, argv, extra_env or {}, Path(folder) / "rendezvous", pipe) for rank in range(n)]
        with _forward_signals(children):
            return _wait(children)


@contextmanager
def _parent_pipe() -> Iterator[int]:
    """Open a pipe whose read end closes when this process ends, even by SIGKILL."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)


def _start(rank: int, n: int, argv: Sequence[str], extra_env: Mapping[str, str], rendezvous: Path, pipe: int) -> Child:
    defaults = {"OMP_NUM_THREADS": str(max(1, available_cores() // n))}
    if sys.platform in ("linux", "darwin"):  # no traffic leaves the machine
        defaults["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n}
    required = {k: str(v) for k, v in (ranks | {RENDEZVOUS: rendezvous, PARENT_PIPE: pipe}).items()}
    env = defaults | os.environ | dict(extra_env) | required
    command = [sys.executable, "-m", "cordgt", *argv]
    # A session of its own: Ctrl-C in a terminal then reaches the child once, through this process.
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, pass_fds=[pipe], start_new_session=True)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _forward_signals(children: Sequence[Child]) -> Iterator[None]:
    """Send the signals that this process receives to its children instead."""

    def forward(signum: int, _: FrameType | None) -> None:
        _send_signal(children, signal.Signals(signum))

    handlers = {signum: signal.signal(signum, forward) for signum in FORWARDED_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


def _wait(children: Sequence[Child]) -> int:
    """Wait for all children. After a failure the others get SIGTERM, then SIGKILL, with `GRACE_SECONDS` before each."""
    exit_code, failed_at = 0, 0.0
    escalation: list[Callable[[Child], None]] = [lambda child: child.terminate(), lambda child: child.kill()]
    while any(child.poll() is None for child in children):
        failures = [child.returncode for child in children if child.poll() is not None and child.returncode]
        if failures and not exit_code:
            exit_code, failed_at = failures[0], time.monotonic()
        if exit_code and escalation and time.monotonic() - failed_at > GRACE_SECONDS * (3 - len(escalation)):
            end = escalation.pop(0)
            for child in children:
                end(child)
        time.sleep(0.05)
    exit_code = exit_code or next((child.returncode for child in children if child.returncode), 0)
    return exit_code if exit_code >= 0 else 128 - exit_code


def _send_signal(children: Sequence[Child], signum: signal.Signals) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(signum)
