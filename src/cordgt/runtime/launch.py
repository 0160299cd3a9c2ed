"""Several processes of one machine from one command: started together, signalled together, ended together.

``torchrun`` does as much and more, over several machines. This asks for nothing: no port, no name of a host, no torch
in the process that waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

MEETING = "CORDGT_MEETING"  # as in `processes`, which would load torch
LIFELINE = "CORDGT_LIFELINE"
FIGURES = "CORDGT_FIGURES"  # of a process that is measured: the file for its figures
GRACE = 10.0  # seconds that the others have once one has failed: to notice it, to save, to say so
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Child = subprocess.Popen[bytes]


def launch(n: int, argv: Sequence[str], extra: Mapping[str, str] | None = None) -> int:
    """Run ``cordgt ARGV`` in ``n`` processes that find each other, and wait for all of them.

    0 comes back where all end well, else the exit code of the first that does not (128 and the signal's number where a
    signal ended it). Ctrl-C and SIGTERM are passed on, so that a training saves first. ``extra``: for the environment.
    """
    with tempfile.TemporaryDirectory(prefix="cordgt-") as folder, _lifeline() as pipe:
        children = [_start(rank, n, argv, extra or {}, Path(folder) / "meeting", pipe) for rank in range(n)]
        with _passing_on(children):
            return _wait(children)


@contextmanager
def _lifeline() -> Iterator[int]:
    """A pipe whose reading end says when this process is gone, be it killed."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def _start(rank: int, n: int, argv: Sequence[str], extra: Mapping[str, str], meeting: Path, pipe: int) -> Child:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "LOCAL_WORLD_SIZE": n, MEETING: meeting, LIFELINE: pipe}
    usual: dict[str, object] = {"OMP_NUM_THREADS": max(1, cores() // n)}
    if sys.platform in ("linux", "darwin"):  # nothing of it leaves the machine
        usual["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    environment = {k: str(v) for k, v in usual.items()} | os.environ | dict(extra) | {k: str(v) for k, v in own.items()}
    # A session of its own: Ctrl-C in a terminal reaches it once, through this process, and not twice.
    command = [sys.executable, "-m", "cordgt", *argv]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[pipe], start_new_session=True)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _passing_on(children: Sequence[Child]) -> Iterator[None]:
    """Signals that come to this process go to its children instead."""

    def pass_on(number: int, _: FrameType | None) -> None:
        _signal(children, signal.Signals(number))

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(children: Sequence[Child]) -> int:
    failed, moment = 0, 0.0
    asked: list[signal.Signals] = []
    while any(child.poll() is None for child in children):
        ended = [child.returncode for child in children if child.poll() is not None and child.returncode]
        if ended and not failed:
            failed, moment = ended[0], time.monotonic()
        late = time.monotonic() - moment if failed else 0.0
        if late > GRACE * (1 + len(asked)) and len(asked) < 2:
            asked.append(signal.SIGTERM if not asked else signal.SIGKILL)
            _signal(children, asked[-1])
        time.sleep(0.05)
    failed = failed or next((child.returncode for child in children if child.returncode), 0)
    return failed if failed >= 0 else 128 - failed


def _signal(children: Sequence[Child], number: signal.Signals) -> None:
    for child in children:
        if child.poll() is None:
            child.send_signal(number)
