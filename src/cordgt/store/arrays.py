"""Append-only arrays in files: written in chunks with a checksum, read by memory mapping.

Files hold little-endian numbers without a header; the caller stores type, shape and checksum elsewhere. Nothing writes
through a mapping: on a full disk a write raises an error, a mapping kills the process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cordgt.errors import DataError
from cordgt.files import open_regular_file

SLICE_ROWS = 1 << 22  # default number of rows per slice


def memory_map(path: Path, dtype: Any, rows: int, width: int = 0) -> npt.NDArray[Any]:
    """Map the first rows of an array file, read-only; shape (rows,), or (rows, width) if ``width`` is not 0."""
    shape = (rows, width) if width else (rows,)
    if rows == 0:
        return np.empty(shape, dtype)
    return np.asarray(np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r", shape=shape))


def iter_slices(rows: int, slice_rows: int = SLICE_ROWS, start: int = 0) -> Iterator[slice]:
    """Yield slices of ``slice_rows`` rows that cover ``start`` to ``rows``."""
    for low in range(start, rows, slice_rows):
        yield slice(low, min(low + slice_rows, rows))


@dataclass(frozen=True)
class WrittenArray:
    """The rows that an `ArrayWriter` wrote: type, number, and SHA-256 of their bytes."""

    dtype: str
    width: int  # numbers per row; 0: one-dimensional
    rows: int
    sha256: str


class ArrayWriter:
    """Appends rows to a file, and computes their checksum in a second thread.

    ``start``: number of existing rows to keep; the file is truncated there.
    """

    def __init__(self, path: Path, dtype: Any, width: int = 0, start: int = 0) -> None:
        self.path, self.dtype, self.width, self.rows = path, np.dtype(dtype).newbyteorder("<"), width, 0
        self._digest = hashlib.sha256()
        self._hashing = ThreadPoolExecutor(1)
        self._file = open(path, "r+b" if start else "wb")  # noqa: SIM115
        self._file.truncate(start * self.dtype.itemsize * max(width, 1))
        self._file.seek(0, os.SEEK_END)

    def append(self, values: npt.ArrayLike) -> None:
        ready = np.ascontiguousarray(values, self.dtype)
        data = memoryview(ready.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        hashing = self._hashing.submit(self._digest.update, data)
        self._file.write(data)
        self.rows += len(ready)
        hashing.result()  # the caller may reuse the array

    def close(self) -> WrittenArray:
        """Flush everything to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close_unsynced()
        return WrittenArray(self.dtype.str, self.width, self.rows, self._digest.hexdigest())

    def close_unsynced(self) -> None:
        """Close the file without flushing it to disk."""
        self._hashing.shutdown(wait=True)
        self._file.close()


@contextmanager
def close_on_error(writers: Mapping[str, ArrayWriter]) -> Iterator[None]:
    """Close the files of all writers if the block raises."""
    try:
        yield
    except BaseException:
        for writer in writers.values():
            writer.close_unsynced()
        raise


class ScratchArray:
    """A scratch array in a file that can be read while it grows; opening it truncates the file to ``rows`` rows."""

    def __init__(self, path: Path, dtype: Any, width: int = 0, rows: int = 0) -> None:
        self.path, self.dtype, self.width, self.rows = path, np.dtype(dtype), width, rows
        self._file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115
        size = rows * self._row_bytes
        if os.fstat(self._file.fileno()).st_size < size:
            raise DataError(
                f"{path} is damaged: it has fewer than {rows:,} rows. Remove {path.parent.parent} and start again."
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
        """Flush all rows to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def array(self) -> npt.NDArray[Any]:
        """All rows, memory-mapped."""
        self._file.flush()
        return memory_map(self.path, self.dtype, self.rows, self.width)

    def close(self) -> None:
        self._file.close()


def checksum(path: Path, start: int, stop: int) -> str:
    """SHA-256 of the bytes ``start`` to ``stop`` of a regular file. DataError if it cannot be read."""
    digest = hashlib.sha256()
    with open_regular_file(path) as file:
        try:
            file.seek(start)
            left = stop - start
            while left > 0:
                data = file.read(min(left, 1 << 24))
                if not data:
                    break
                digest.update(data)
                left -= len(data)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    return digest.hexdigest()


@contextmanager
def explain_disk_errors(path: Path, advice: str) -> Iterator[None]:
    """Raise DataError, with ``advice``, for an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}. {advice}") from None
