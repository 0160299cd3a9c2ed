"""Stop a training on Ctrl-C, SIGTERM or a time limit: the first request is noted, so that the training can save.

A second signal ends the process at once, unless it comes within `REPEAT_SECONDS`: then it repeats the first.
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

TIMEOUT_SIGNAL = getattr(signal, "SIGALRM", signal.SIGTERM)  # stands for a time limit; Windows has no SIGALRM
REPEAT_SECONDS = 1.0  # signals this close to the first one repeat it; `timeout` and process groups send two


class TrainingStopped(KeyboardInterrupt):
    """A training ended early because of a signal, or of a time limit (SIGALRM).

    ``resume_point``: how far the saved training is, for messages; empty if nothing was saved.
    """

    def __init__(self, signum: signal.Signals, resume_point: str = "") -> None:
        super().__init__(f"stopped by {signum.name}")
        self.signum, self.resume_point = signum, resume_point

    @property
    def exit_code(self) -> int:
        """The exit code by shell convention: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.signum

    @property
    def is_timeout(self) -> bool:
        """Whether the deadline of `time_limit` has passed."""
        return self.signum == TIMEOUT_SIGNAL


class SignalInterrupt(KeyboardInterrupt):
    """A signal ended work that cannot be saved. Unlike after `TrainingStopped`, nothing is kept."""

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__(f"interrupted by {signum.name}")
        self.signum = signum


_first_signal = -math.inf  # when the request to stop arrived, on the monotonic clock


def _set_first_signal(now: float) -> None:
    global _first_signal
    _first_signal = now


def _is_repeated() -> bool:
    """Return whether a signal that arrives now repeats the first one."""
    return time.monotonic() - _first_signal < REPEAT_SECONDS


def _interrupt(signum: int, _: FrameType | None) -> None:
    if not _is_repeated():
        _set_first_signal(time.monotonic())
        raise SignalInterrupt(signal.Signals(signum))


DEFAULT_HANDLERS = (signal.SIG_DFL, signal.default_int_handler, _interrupt)  # handlers that we may replace


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise `SignalInterrupt` on Ctrl-C and SIGTERM within the block, except inside `defer_signals`.

    A signal within `REPEAT_SECONDS` of the first one, also of one that `defer_signals` noted, has no effect.
    Signals that are ignored, or handled by the calling program, are left alone.
    """
    _set_first_signal(-math.inf)
    handlers = _replaceable_handlers()
    _install(handlers, _interrupt)
    try:
        yield
    finally:
        _restore(handlers, _interrupt)


def _replaceable_handlers() -> dict[signal.Signals, Any]:
    """Return the current handlers of the signals that we may handle; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    current = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    return {signum: handler for signum, handler in current.items() if handler in DEFAULT_HANDLERS}


def _install(handlers: dict[signal.Signals, Any], replacement: Any) -> None:
    for signum in handlers:
        signal.signal(signum, replacement)


def _restore(handlers: dict[signal.Signals, Any], replacement: Any) -> None:
    """Restore the handlers, except where the program has replaced ours meanwhile."""
    for signum, handler in handlers.items():
        if signal.getsignal(signum) is replacement:
            signal.signal(signum, handler)


@dataclass
class StopRequest:
    """The signal that asks a training to stop, if any."""

    signum: signal.Signals | None = None
    deadline: float = math.inf  # on the monotonic clock

    def raise_if_requested(self) -> None:
        """Raise `TrainingStopped` after a signal or the deadline. Call it between steps, when the state is complete."""
        if self.signum is None and time.monotonic() >= self.deadline:
            self.signum = TIMEOUT_SIGNAL
        if self.signum is not None:
            raise TrainingStopped(self.signum)


class StopCallback(Callback):
    """Ends an evaluation after the current step if a stop is requested."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.stop.raise_if_requested()


_deadlines = [math.inf]  # of nested `time_limit` blocks; the last one applies


@contextmanager
def time_limit(deadline: float) -> Iterator[None]:
    """Stop trainings that begin within the block at ``deadline`` (monotonic clock), as a signal would."""
    _deadlines.append(deadline)
    try:
        yield
    finally:
        _deadlines.pop()


@contextmanager
def defer_signals() -> Iterator[StopRequest]:
    """Note the first Ctrl-C or SIGTERM in the yielded `StopRequest`; a second one has its usual effect.

    A second one within `REPEAT_SECONDS` has no effect: it is the same request.
    Signals that are ignored (``nohup``), or handled by the calling program, are left alone, and so are all signals
    outside the main thread.
    """
    stop = StopRequest(deadline=_deadlines[-1])
    handlers = _replaceable_handlers()
    is_noted = False

    def note(signum: int, _: FrameType | None) -> None:
        nonlocal is_noted
        if not is_noted:
            _set_first_signal(time.monotonic())
            stop.signum, is_noted = signal.Signals(signum), True
        elif not _is_repeated():
            _set_first_signal(-math.inf)
            _restore(handlers, note)
            signal.raise_signal(signum)

    _install(handlers, note)
    try:
        yield stop
    finally:
        _restore(handlers, note)
