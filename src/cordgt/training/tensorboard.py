"""Curves for TensorBoard; nothing at all where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cordgt.callbacks import NO_CALLBACK, Callback

FOLDER = "tensorboard"  # within the run folder


class TensorBoardCallback(Callback):
    """Writes loss and validation figures as scalars, a point an epoch."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        epoch = record["epoch"]
        self.writer.add_scalar(f"{record['phase']}/loss", record["loss"], epoch)
        for name, value in record.get("validation", {}).items():
            self.writer.add_scalar(f"validation/{name}", value, epoch)
        self.writer.flush()


@contextmanager
def tensorboard_callback(run: Path) -> Iterator[Callback]:
    """A callback that writes curves under ``run``; one that does nothing where TensorBoard is not installed."""
    writer = _writer(run / FOLDER)
    if writer is None:
        yield NO_CALLBACK
        return
    try:
        yield TensorBoardCallback(writer)
    finally:
        writer.close()


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
