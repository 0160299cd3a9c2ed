"""Who is told how a training or an evaluation goes: a progress bar, a log, nobody."""

from __future__ import annotations

from typing import Any, Protocol

from cordgt.machine.stopping import Stop


class Watcher(Protocol):
    """What whoever watches must answer. ``events`` are those that are about to be worked off, but in `step`."""

    def epoch_begins(self, phase: str, epoch: int, epochs: int, events: int) -> None:
        """Of ``epochs`` at most; ``phase`` is fit or refit."""

    def step(self, events: int, loss: float | None) -> None:
        """So many more events are done. ``loss``: the mean over the epoch so far; None outside training."""

    def validating(self, events: int) -> None:
        """An epoch's training is over, and its figures are taken."""

    def epoch_ends(self, record: dict[str, Any]) -> None:
        """A line of ``history.jsonl``: loss, figures, seconds."""

    def evaluating(self, what: str, events: int) -> None:
        """Something is measured of a trained model: a part of the split, a report."""


class Silent:
    """Tells nobody."""

    def epoch_begins(self, phase: str, epoch: int, epochs: int, events: int) -> None:
        """Nothing to show."""

    def step(self, events: int, loss: float | None) -> None:
        """Nothing to show."""

    def validating(self, events: int) -> None:
        """Nothing to show."""

    def epoch_ends(self, record: dict[str, Any]) -> None:
        """Nothing to show."""

    def evaluating(self, what: str, events: int) -> None:
        """Nothing to show."""


class Heeding(Silent):
    """Passes on what it is told of an evaluation, and ends it where a signal asks for that."""

    def __init__(self, inner: Watcher, stop: Stop) -> None:
        self.inner, self.stop = inner, stop

    def step(self, events: int, loss: float | None) -> None:
        self.inner.step(events, loss)
        self.stop.check()

    def evaluating(self, what: str, events: int) -> None:
        self.inner.evaluating(what, events)
