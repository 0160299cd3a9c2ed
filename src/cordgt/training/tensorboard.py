"""Curves for TensorBoard beside whatever else watches a training; nothing at all where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cordgt.training.watching import Watcher

FOLDER = "tensorboard"  # within the run folder


class Curves:
    """Passes on what it is told, and writes loss and validation figures as scalars, a point an epoch."""

    def __init__(self, inner: Watcher, writer: Any) -> None:
        self.inner, self.writer = inner, writer

    def epoch_begins(self, phase: str, epoch: int, epochs: int, events: int) -> None:
        self.inner.epoch_begins(phase, epoch, epochs, events)

    def step(self, events: int, loss: float | None) -> None:
        self.inner.step(events, loss)

    def validating(self, events: int) -> None:
        self.inner.validating(events)

    def evaluating(self, what: str, events: int) -> None:
        self.inner.evaluating(what, events)

    def epoch_ends(self, record: dict[str, Any]) -> None:
        self.inner.epoch_ends(record)
        epoch = record["epoch"]
        self.writer.add_scalar(f"{record['phase']}/loss", record["loss"], epoch)
        for name, value in record.get("validation", {}).items():
            self.writer.add_scalar(f"validation/{name}", value, epoch)
        self.writer.flush()


@contextmanager
def curves(inner: Watcher, run: Path) -> Iterator[Watcher]:
    """A watcher that also writes curves under ``run``; ``inner`` itself where TensorBoard is not installed."""
    writer = _writer(run / FOLDER)
    if writer is None:
        yield inner
        return
    try:
        yield Curves(inner, writer)
    finally:
        writer.close()


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
