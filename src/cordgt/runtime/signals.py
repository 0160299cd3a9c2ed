"""Ctrl-C and SIGTERM: the first one is noted, so that a training can finish what it is at and save; the second ends it.

A limit of time ends a training in the same way.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from cordgt.callbacks import Callback


class Stopped(KeyboardInterrupt):
    """A training ended early because a signal, or a limit of time (SIGALRM), asked for it.

    ``saved`` says where it will go on.
    """

    def __init__(self, asked: signal.Signals, saved: str = "") -> None:
        super().__init__(f"stopped by {asked.name}")
        self.asked, self.saved = asked, saved

    @property
    def exit_code(self) -> int:
        """As shells count: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.asked

    @property
    def by_clock(self) -> bool:
        """True: the time given by `time_limit` was over."""
        return self.asked == signal.SIGALRM


class Interrupted(KeyboardInterrupt):
    """A signal ended what cannot save: nothing of it is kept. Not a `Stopped`, which a training answers by saving."""

    def __init__(self, asked: signal.Signals) -> None:
        super().__init__(f"interrupted by {asked.name}")
        self.asked = asked


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number))


USUAL = (signal.SIG_DFL, signal.default_int_handler, _interrupt)  # what a signal does where nobody chose otherwise


@contextmanager
def interruptible() -> Iterator[None]:
    """While it lasts, Ctrl-C and SIGTERM alike raise `Interrupted` wherever nobody is `listening`.

    Signals that are ignored or answered by the program around us are left alone, as in `listening`.
    """
    taken = _usual_handlers()
    for number in taken:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in taken.items():
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, handler)


def _usual_handlers() -> dict[signal.Signals, Any]:
    """What the signals do that may be answered here; none outside the main thread, where Python cannot hear them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {number: handler for number, handler in found.items() if handler in USUAL}


@dataclass
class Stop:
    """The signal that asked a training to end, if one did."""

    asked: signal.Signals | None = None
    ends: float = math.inf  # when time is over, on the monotonic clock

    def check(self) -> None:
        """Raises `Stopped` where a signal has come or time is over. For moments at which nothing is half done."""
        if self.asked is None and time.monotonic() >= self.ends:
            self.asked = signal.SIGALRM
        if self.asked is not None:
            raise Stopped(self.asked)


class StopCallback(Callback):
    """Ends an evaluation after the current step where a signal or the time limit asks for that."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.stop.check()


_limits = [math.inf]  # of time, the one in force last


@contextmanager
def time_limit(ends: float) -> Iterator[None]:
    """While it lasts, trainings that begin stop at ``ends`` of the monotonic clock, as they would for a signal."""
    _limits.append(ends)
    try:
        yield
    finally:
        _limits.pop()


@contextmanager
def listening() -> Iterator[Stop]:
    """While it lasts, the first Ctrl-C or SIGTERM is only noted; a second one does what it always does.

    A signal that is ignored (`nohup`) or that the program around us answers itself is left alone; so are all of them
    outside the main thread, where Python cannot hear them.
    """
    stop = Stop(ends=_limits[-1])
    taken = _usual_handlers()

    def release() -> None:
        for number, handler in taken.items():
            if signal.getsignal(number) is note:  # nobody has chosen otherwise meanwhile
                signal.signal(number, handler)

    def note(number: int, _: FrameType | None) -> None:
        stop.asked = signal.Signals(number)
        release()

    for number in taken:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        release()
