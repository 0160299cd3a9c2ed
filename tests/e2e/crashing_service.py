"""Run `cordgt serve` in a process that kills itself with SIGKILL at a chosen point, while clients use it.

    python crashing_service.py POINT MARKER NUMBER serve RUN …

It dies the NUMBER-th time it reaches POINT, and writes POINT into the file MARKER just before.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

MIN_SPARE_EVENTS = 100  # so that few events start a compaction
MIN_CHECKPOINT_EVENTS = 50  # and a checkpoint


class Killer:
    """Kills the process when a function is called for the n-th time."""

    def __init__(self, point: str, marker: str, number: int) -> None:
        self._point, self._marker, self._n_left = point, marker, number

    def reach(self) -> None:
        """Note that the point was reached, and kill the process if it was the n-th time."""
        self._n_left -= 1
        if self._n_left:
            return
        with open(self._marker, "w") as stream:
            stream.write(self._point)
        os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: Any, name: str, condition: Callable[[], bool] = lambda: True) -> None:
        """Kill before a function of a class or module does its work."""
        self._wrap(owner, name, condition, is_before=True)

    def after(self, owner: Any, name: str, condition: Callable[[], bool] = lambda: True) -> None:
        """Kill after a function of a class or module has done its work, before its caller goes on."""
        self._wrap(owner, name, condition, is_before=False)

    def _wrap(self, owner: Any, name: str, condition: Callable[[], bool], *, is_before: bool) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            if is_before and condition():
                self.reach()
            result = original(*args, **options)
            if not is_before and condition():
                self.reach()
            return result

        setattr(owner, name, wrapped)


def is_compacting() -> bool:
    return threading.current_thread().name == "cordgt-compaction"


def is_swapping() -> bool:
    """Return whether a request swaps the model: not the start, which writes the state in the main thread."""
    return threading.current_thread() is not threading.main_thread()


POINTS = (
    "before the commit",
    "between commit and acknowledgement",
    "during compaction",
    "during a hot swap, before its commit",
    "during a hot swap, after its commit",
    "while a checkpoint is written",
)


def prepare_crash(point: str, killer: Killer) -> None:
    """Make the service die at a point."""
    from cordgt.history import growing
    from cordgt.serving import model_store, replay, sqlite_log

    growing.MIN_SPARE_EVENTS = MIN_SPARE_EVENTS
    growing.SpareRoom.__init__.__defaults__ = (8, 1024, MIN_SPARE_EVENTS)  # type: ignore[misc]
    growing.GrowingIndex.__init__.__kwdefaults__["spare"] = growing.SpareRoom()  # type: ignore[index]
    replay.MIN_NEW_EVENTS = MIN_CHECKPOINT_EVENTS
    store = model_store.ModelStore
    prepare: tuple[Callable[[], None], ...] = (
        lambda: killer.before(sqlite_log.SqliteLog, "append"),
        lambda: killer.after(sqlite_log.SqliteLog, "append"),
        lambda: killer.before(growing, "_spread", is_compacting),
        lambda: killer.before(store, "write_state", is_swapping),
        lambda: killer.after(store, "write_state", is_swapping),
        lambda: killer.before(replay, "sync_folder"),
    )
    prepare[POINTS.index(point)]()


if __name__ == "__main__":
    point, marker, number = sys.argv[1:4]
    prepare_crash(point, Killer(point, marker, int(number)))
    sys.argv = ["cordgt", *sys.argv[4:]]
    from cordgt.cli import main

    main()
