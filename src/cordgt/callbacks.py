"""Callbacks: progress and logging hooks of trainings, evaluations, conversions and downloads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cordgt.errors import SettingError


class Callback:
    """Base class: every method does nothing. Override what you need.

    An exception raised in a method ends the work and reaches the caller.

    Examples:
        >>> class Epochs(cordgt.Callback):
        ...     def on_epoch_end(self, record):
        ...         print("epoch", record["epoch"])
        >>> run = cordgt.train("purchases.csv", "counts", epochs=1, callbacks=[Epochs()])
        epoch 1
    """

    def on_run_start(self, name: str) -> None:
        """The calls that follow belong to the run ``name``, one of several: a seed, a combination, a table cell.

        Runs in worker processes take turns, so it may be called several times for one run.
        """

    def on_run_end(self, name: str, result: dict[str, Any]) -> None:
        """The run ``name``, one of several, is finished. ``result``: its metrics or measurements."""

    def on_epoch_start(self, phase: str, epoch: int, n_epochs: int, n_events: int) -> None:
        """Epoch ``epoch`` (from 1) of at most ``n_epochs`` trains on ``n_events`` events. ``phase``: fit or refit."""

    def on_phase_start(self, name: str) -> None:
        """A part of the job without stages or steps starts: "read", "index", "write", "capture", "activity" and so on.

        It lasts until the next phase, stage or epoch.
        """

    def on_stage_start(self, name: str, total: int | None) -> None:
        """A stage other than an epoch starts, such as "validating", "evaluating: test, inductive" or "indexing".

        ``total`` is in the unit of `on_step`: events, rows or bytes. None: unknown.
        """

    def on_step(self, n: int, loss: float | None = None) -> None:
        """``n`` more items of the current epoch or stage are done. ``loss``: the epoch's mean so far, in training."""

    def on_time_estimate(self, seconds: float) -> None:
        """The run takes at most about ``seconds`` more, with its evaluation and its refit.

        Called after the first steps of a training and after every epoch.
        """

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """An epoch is trained, validated and saved. ``record``: its line in ``history.jsonl``."""

    def on_message(self, text: str) -> None:
        """A message for the user."""


class StepCallback(Callback):
    """Passes on only the steps of a training inside another one, whose progress it is."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.callback.on_step(n, loss)


class CallbackList(Callback):
    """Forwards every call to several callbacks, in their order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = list(callbacks)

    def on_run_start(self, name: str) -> None:
        for callback in self.callbacks:
            callback.on_run_start(name)

    def on_run_end(self, name: str, result: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_run_end(name, result)

    def on_epoch_start(self, phase: str, epoch: int, n_epochs: int, n_events: int) -> None:
        for callback in self.callbacks:
            callback.on_epoch_start(phase, epoch, n_epochs, n_events)

    def on_phase_start(self, name: str) -> None:
        for callback in self.callbacks:
            callback.on_phase_start(name)

    def on_stage_start(self, name: str, total: int | None) -> None:
        for callback in self.callbacks:
            callback.on_stage_start(name, total)

    def on_step(self, n: int, loss: float | None = None) -> None:
        for callback in self.callbacks:
            callback.on_step(n, loss)

    def on_time_estimate(self, seconds: float) -> None:
        for callback in self.callbacks:
            callback.on_time_estimate(seconds)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_epoch_end(record)

    def on_message(self, text: str) -> None:
        for callback in self.callbacks:
            callback.on_message(text)


NO_CALLBACK = Callback()
Callbacks = Callback | Iterable[Callback] | None  # the argument of public functions


def as_callback(callbacks: Callbacks) -> Callback:
    """Combine a user's argument (None, one callback or several) into one callback. SettingError for anything else."""
    if callbacks is None:
        return NO_CALLBACK
    if isinstance(callbacks, Callback):
        return callbacks
    given: Any = callbacks
    several: list[Any] = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    for callback in several:
        if not isinstance(callback, Callback):
            raise SettingError(
                f"callbacks: {callback!r} is not a callback. Pass an instance of a subclass of cordgt.Callback."
            )
    return CallbackList(several)
