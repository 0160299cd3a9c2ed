"""Work of a job that needs no link model, in a process of its own while a GPU trains the model."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import torch

from cordgt.runtime.threads import pin_num_threads
from cordgt.runtime.worker_processes import exit_with_parent
from cordgt.tasks.link import LinkTask

MIN_CORES = 6  # with fewer, the process would slow the training down
MAX_EVENTS = 20_000_000  # with more, the process would need too much memory for another index


class SideProcess:
    """Calls a function of the task in another process, on the CPU with as many threads, so that no bit changes.

    ``function`` must be importable: it is sent by its name.
    """

    def __init__(self, function: Callable[[LinkTask], Any], task: LinkTask) -> None:
        self.function, self.task = function, task
        package = str(Path(__file__).parents[2])
        paths = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__],  # -P: nothing is imported from the working folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": ""},
        )
        threads = torch.get_num_threads(), numba.get_num_threads()  # each thread has its own number
        stream = replace(task.stream, edge_x=None, node_x=None)  # only link models read features
        request = os.getpid(), threads, function, stream, task.protocol
        self.output = b""
        self.thread = threading.Thread(target=self._communicate, args=(request,), daemon=True)
        self.thread.start()

    def result(self) -> Any:
        """Return what the function returns. If the process fails, call the function here."""
        self.thread.join()
        if not self.process.wait():
            with suppress(Exception):  # the output is not whole
                return pickle.loads(self.output)
        return self.function(self.task)

    def close(self) -> None:
        """End the process, and the thread that talks to it."""
        self.process.kill()
        self.process.wait()
        self.thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _communicate(self, request: tuple[Any, ...]) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            with self.process.stdin as pipe:
                pickle.dump(request, pipe)
            self.output = self.process.stdout.read()
        except Exception:  # it cannot be sent, or the process has ended: `result` calls the function
            self.process.kill()


def can_use_side_process(task: LinkTask) -> bool:
    """Return whether a side process makes the job shorter: one GPU trains, and cores and memory are free."""
    is_single_gpu = task.network_device.type == "cuda" and task.group.world_size == 1
    is_small = task.stream.backing is None and task.stream.n_events <= MAX_EVENTS
    return is_single_gpu and is_small and (os.cpu_count() or 1) >= MIN_CORES


def main() -> None:
    """Read a request from the standard input, and write its result to the standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a parent that ignores it passes that on
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what other code prints is not part of the result
    parent, (torch_threads, numba_threads), function, stream, protocol = pickle.load(sys.stdin.buffer)
    exit_with_parent(parent)
    torch.set_num_threads(torch_threads)
    numba.set_num_threads(min(numba_threads, numba.get_num_threads()))
    pin_num_threads()
    with output:
        pickle.dump(function(LinkTask.prepare(stream, protocol)), output)


if __name__ == "__main__":
    main()
