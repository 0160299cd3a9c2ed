"""Training curves for TensorBoard, if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import RunError

FOLDER = "tensorboard"  # within the run folder


class TensorBoardCallback(Callback):
    """Writes loss and validation metrics as scalars, one point per epoch."""

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
    """Yield a callback that writes curves under ``run``, or does nothing if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield NO_CALLBACK
        return
    if (run / FOLDER).is_symlink():  # the curves would be written outside the run folder
        raise RunError(f"{run / FOLDER} is a link. Delete it: the training writes a new folder.")
    writer = SummaryWriter(str(run / FOLDER))
    try:
        yield TensorBoardCallback(writer)
    finally:
        writer.close()
