"""Progress of worker processes: their callbacks' calls reach the main process through a queue."""

from __future__ import annotations

import os
import signal
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


def exit_with_parent(parent: int) -> None:
    """Send SIGTERM to this process when the main process is gone, so that no training is orphaned."""
    while os.getppid() == parent:
        time.sleep(2)
    os.kill(os.getpid(), signal.SIGTERM)
