"""Read the events of a run folder and build their index in a thread, while the main thread imports torch.

Nothing here imports torch. Reading and building take a third of the time of one answer, and mostly release the GIL.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cordgt.events.stream import EventStream

if TYPE_CHECKING:
    from cordgt.history.index_builder import IndexArrays


@dataclass(frozen=True, eq=False)
class PrefetchedHistory:
    """The events of a run folder and the arrays of their index, as soon as a thread has them."""

    folder: Path
    _stream: Future[EventStream] = field(default_factory=Future)
    _index: Future[IndexArrays] = field(default_factory=Future)

    @classmethod
    def start(cls, folder: Path) -> PrefetchedHistory | None:
        """Start to read. None if the folder has no events of its own: it is no run, or its events are in a store."""
        needed = ("config.toml", "metrics.json", "events.parquet")
        if not all(os.path.isfile(folder / name) for name in needed):  # Path.is_file raises without permission
            return None
        history = cls(folder)
        threading.Thread(target=history._read, name="cordgt-events").start()
        return history

    def load(self, folder: Path) -> EventStream:
        """Return `EventStream.load` of a folder, with its errors. Wait for the thread if it is the same folder."""
        return self._stream.result() if folder == self.folder else EventStream.load(folder)

    def index(self, stream: EventStream) -> IndexArrays | None:
        """Wait for the index of a stream; None if it is not the folder's own."""
        is_own = self._stream.exception() is None and stream is self._stream.result()
        return self._index.result() if is_own else None

    def _read(self) -> None:
        try:
            stream = EventStream.load(self.folder)
        except BaseException as error:
            self._stream.set_exception(error)
            return
        self._stream.set_result(stream)
        try:
            from cordgt.history.index_builder import IndexArrays  # imports Numba

            self._index.set_result(IndexArrays.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes))
        except BaseException as error:
            self._index.set_exception(error)
