"""What worker processes share: they send their progress to the main process, and end when it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

from cordgt.callbacks import Callback


class RelayCallback(Callback):
    """Sends runs, epochs and messages of a worker to the main process.

    A message is a list of calls: method name and arguments. The epochs of several workers interleave, so each comes
    with the name of its run.
    """

    def __init__(self, queue: Any) -> None:
        self.queue, self.run = queue, ""

    def on_run_start(self, name: str) -> None:
        self.run = name

    def on_run_end(self, name: str, result: dict[str, Any]) -> None:
        self.queue.put([("on_run_end", name, result)])

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self.queue.put([("on_run_start", self.run), ("on_epoch_end", record)])

    def on_message(self, text: str) -> None:
        self.queue.put([("on_message", text)])


def parent_pid() -> int:
    """Return the process ID of the parent that started this process with `multiprocessing`, even if it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    return parent.pid


def exit_with_parent(parent: int) -> None:
    """Start a thread that sends SIGTERM to this process when its parent is gone, so that it is not orphaned.

    The process must not ignore SIGTERM, which a child inherits from a parent that does.
    """

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
