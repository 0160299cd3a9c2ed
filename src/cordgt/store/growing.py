"""Arrays in files that grow at their end: written piece by piece with a checksum, mapped into memory to be read.

Plain little-endian numbers without a header; who writes them keeps type, shape and checksum elsewhere. Nothing is ever
written through a mapping: on a full disk a write fails with words, a mapping ends the process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cordgt.errors import DataError

PIECE = 1 << 22  # rows that are looked at together where an array is gone through


def mapped(path: Path, dtype: Any, rows: int, width: int = 0) -> npt.NDArray[Any]:
    """The first rows of an array in a file, read only, paged in when they are looked at; (rows,) or (rows, width)."""
    shape = (rows, width) if width else (rows,)
    if rows == 0:
        return np.empty(shape, dtype)
    return np.asarray(np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r", shape=shape))


def pieces(rows: int, at_once: int = PIECE, start: int = 0) -> Iterator[slice]:
    """Slices that cover ``start`` to ``rows``."""
    for low in range(start, rows, at_once):
        yield slice(low, min(low + at_once, rows))


@dataclass(frozen=True)
class Written:
    """What became of an array: its rows here, and the SHA-256 of their bytes."""

    dtype: str
    width: int  # 0: one number a row
    rows: int
    sha256: str


class Writer:
    """Appends rows to a file. The checksum is taken beside the writing, by a thread of its own.

    ``start``: where the rows begin that this writer adds; what stands behind that in the file is cut off.
    """

    def __init__(self, path: Path, dtype: Any, width: int = 0, start: int = 0) -> None:
        self.path, self.dtype, self.width, self.rows = path, np.dtype(dtype).newbyteorder("<"), width, 0
        self._digest = hashlib.sha256()
        self._hashing = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self._file = open(path, "r+b" if start else "wb")  # noqa: SIM115
        self._file.truncate(start * self.dtype.itemsize * max(width, 1))
        self._file.seek(0, os.SEEK_END)

    def append(self, values: npt.ArrayLike) -> None:
        ready = np.ascontiguousarray(values, self.dtype)
        data = memoryview(ready.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        self._pending = self._hashing.submit(self._digest.update, data)
        self._file.write(data)
        self.rows += len(ready)
        self._wait()  # the caller may reuse its array

    def close(self) -> Written:
        """Everything reaches the disk."""
        self._wait()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.abandon()
        return Written(self.dtype.str, self.width, self.rows, self._digest.hexdigest())

    def abandon(self) -> None:
        """Let go of the file as it is."""
        self._hashing.shutdown(wait=True)
        self._file.close()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None


@contextmanager
def abandoned_on_error(writers: Mapping[str, Writer]) -> Iterator[None]:
    """Let go of the files where something goes wrong."""
    try:
        yield
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise


class Column:
    """Rows that are collected in a file; they can be cut back to an earlier length, and looked at meanwhile."""

    def __init__(self, path: Path, dtype: Any, width: int = 0, rows: int = 0) -> None:
        self.path, self.dtype, self.width, self.rows = path, np.dtype(dtype), width, rows
        self._file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
        size = rows * self._row_bytes
        if os.fstat(self._file.fileno()).st_size < size:
            raise DataError(
                f"{path} is damaged: it is shorter than it was. Remove {path.parent.parent} and start again."
            )
        self._file.truncate(size)
        self._file.seek(size)

    @property
    def _row_bytes(self) -> int:
        return self.dtype.itemsize * max(self.width, 1)

    def append(self, values: npt.ArrayLike) -> None:
        ready = np.ascontiguousarray(values, self.dtype)
        self._file.write(memoryview(ready.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
        self.rows += len(ready)

    def sync(self) -> None:
        """What was appended reaches the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def array(self) -> npt.NDArray[Any]:
        """All rows, mapped."""
        self._file.flush()
        return mapped(self.path, self.dtype, self.rows, self.width)

    def close(self) -> None:
        self._file.close()


def checksum(path: Path, start: int, stop: int) -> str:
    """SHA-256 of the bytes from ``start`` to ``stop`` of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        left = stop - start
        while left > 0:
            data = file.read(min(left, 1 << 24))
            if not data:
                break
            digest.update(data)
            left -= len(data)
    return digest.hexdigest()
