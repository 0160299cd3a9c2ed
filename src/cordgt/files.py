"""The one place that opens files: what is written is there whole or not at all; what cannot be read is explained."""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.errors import DataError, RunError, nearest


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Calls ``write`` with a temporary file beside ``path``, then renames it: the file is there whole or not at all.

    DataError where the folder does not exist or cannot be written.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
    part = Path(temporary)
    try:
        write(part)
        part.chmod(0o666 & ~_umask())
        os.replace(part, target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip. DataError where there is none to read, or nothing in it."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; a file was expected.")
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise _no_file(path) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is a damaged or incomplete gzip file.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not data.strip():
        raise DataError(f"{path} is empty.")
    return data


def is_npy(path: Path) -> bool:
    """Whether a file holds a numpy array, by its first bytes; False for a pipe, left unread, and for no file."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(6) == b"\x93NUMPY"
    except OSError:
        return False


def read_npy(path: Path) -> npt.NDArray[Any]:
    """A matrix of numbers from an ``.npy`` file, of the type it has there.

    DataError for objects, another shape, non-numbers or a damaged file.
    """
    try:
        rows = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise _no_file(path) from None
    except (OSError, EOFError, ValueError) as error:
        why = "it holds Python objects, not numbers" if "pickle" in str(error) else f"it is damaged ({error})"
        raise DataError(f"{path} cannot be read: {why}.") from None
    if not isinstance(rows, np.ndarray):
        raise DataError(f"{path} holds an archive; a matrix of numbers was expected.")
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        raise DataError(f"{path} holds {rows.dtype} of shape {rows.shape}; a matrix of numbers was expected.")
    return rows


def read_own_parquet(path: Path) -> Any:
    """The Arrow table in a Parquet file of a run folder. RunError where it is missing or damaged."""
    try:
        return pq.ParquetFile(path).read()
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} is damaged or no Parquet file: {error}") from None


def names_beside(path: Path) -> list[str]:
    """The names in the folder that ``path`` stands in; none where there is no such folder."""
    try:
        return [k.name for k in path.parent.iterdir()]
    except OSError:
        return []


def _no_file(path: Path) -> DataError:
    return DataError(f"There is no file {path}.{nearest(path.name, names_beside(path))}")
