"""Fit the part of a forecaster that needs no link model in a process of its own, while a GPU trains the model."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numba
import torch

from cordgt.runtime.relay import exit_with_parent
from cordgt.runtime.threads import pin_num_threads
from cordgt.tasks.forecast import Forecaster
from cordgt.tasks.link import LinkTask

MIN_CORES = 4  # with fewer, the process would slow the training down


class ForecastProcess:
    """Runs `Forecaster.fit_nodes` in another process, with the same number of threads, so that no bit changes."""

    def __init__(self, task: LinkTask) -> None:
        package = str(Path(__file__).parents[2])
        paths = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        self.output = b""
        threads = torch.get_num_threads(), numba.get_num_threads()
        self.thread = threading.Thread(target=self._communicate, args=(task, threads), daemon=True)
        self.thread.start()

    @classmethod
    def start(cls, task: LinkTask) -> ForecastProcess | None:
        """Return a process that fits now; None where that would not be faster, or is not possible."""
        is_cuda = task.network_device.type == "cuda" and task.group.world_size == 1
        if not task.protocol.activity or not is_cuda or task.stream.backing is not None:
            return None
        return cls(task) if (os.cpu_count() or 1) >= MIN_CORES else None

    def result(self) -> Forecaster | None:
        """Wait for the process and return what it fitted; None if it failed: then the caller has to fit."""
        self.thread.join()
        if self.process.wait() or not self.output:
            return None
        found: Forecaster = pickle.loads(self.output)
        return found

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

    def _communicate(self, task: LinkTask, threads: tuple[int, int]) -> None:
        with suppress(OSError, ValueError):
            self.output, _ = self.process.communicate(pickle.dumps((os.getpid(), threads, task.stream, task.protocol)))


def main() -> None:
    """Read what to fit from the standard input, and write the result to the standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    parent, (torch_threads, numba_threads), stream, protocol = pickle.load(sys.stdin.buffer)
    threading.Thread(target=exit_with_parent, args=(parent,), daemon=True).start()
    torch.set_num_threads(torch_threads)
    numba.set_num_threads(min(numba_threads, numba.config.NUMBA_NUM_THREADS))
    pin_num_threads()
    task = LinkTask.prepare(stream, protocol)
    sys.stdout.buffer.write(pickle.dumps(Forecaster.fit_nodes(task).without_cache()))


if __name__ == "__main__":
    main()
