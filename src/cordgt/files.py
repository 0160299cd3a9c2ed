"""The one place that opens files: what is written is there whole or not at all; what cannot be read is explained."""

from __future__ import annotations

import fcntl
import gzip
import os
import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.errors import DataError, RunError, nearest

LOOKS_LAST = 0.2  # seconds after which a look at a lock (`is_held`) is surely over
# What Arrow raises for a damaged file; the last three for names, text and sizes that make no sense.
PARQUET_ERRORS = (OSError, pa.ArrowException, KeyError, ValueError, MemoryError)


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Calls ``write`` with a temporary file beside ``path``, then renames it: the file is there whole or not at all.

    DataError where the folder does not exist or cannot be written.
    """
    target = Path(path)
    try:
        part = _new_file_beside(target)
        permissions = part.stat().st_mode  # what the umask allows: asking for the umask itself would change it
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
    try:
        write(part)
        part.chmod(permissions)  # safetensors puts a file of its own in its place, for the user alone
        _sync(part)  # before the rename: else a machine that goes down could leave a new name on old nothing
        os.replace(part, target)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def exclusive(path: Path, busy: Exception | None = None) -> Iterator[None]:
    """Keeps other processes out that ask for the same file or folder, until it ends or the process does.

    ``busy`` is raised where another process is in, and not just looking (`is_held`); None: wait until it is out. An
    error of its kind, or DataError, where ``path`` cannot be opened.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        kind = DataError if busy is None else type(busy)
        raise kind(f"{path} cannot be written: {error.strerror or error}.") from None
    try:
        if busy is None:
            with suppress(OSError):  # some network file systems have no locks: nobody can be kept out there
                fcntl.flock(handle, fcntl.LOCK_EX)
        elif not _locks(handle, fcntl.LOCK_EX, LOOKS_LAST):
            raise busy
        if busy is not None and not is_still(path, handle):
            raise busy  # it has just been removed by whoever was in
        yield
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    """Whether another process has a file or folder to itself (`exclusive`); False where it cannot be opened.

    Any number may look at once. Whoever wants it `exclusive` at that moment waits until the look is over.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not _locks(handle, fcntl.LOCK_SH, 0)
    finally:
        os.close(handle)


def _locks(handle: int, kind: int, patience: float) -> bool:
    """Whether a lock is to be had within so many seconds; True where the file system has none."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
        except OSError:
            return True
        else:
            return True


def is_still(path: Path, handle: int) -> bool:
    """Whether a path names what was opened under it: it may have been removed, or be another's by now."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """A file of these bytes, whole or not at all. DataError as from `write_atomically`."""

    def write(part: Path) -> None:
        part.write_bytes(content)

    write_atomically(path, write)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """A file of this text in UTF-8, whole or not at all. DataError as from `write_atomically`."""
    write_bytes(path, text.encode())


def _sync(path: Path) -> None:
    """Everything written to a file reaches the disk, or an OSError says that it does not."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _new_file_beside(target: Path) -> Path:
    """An empty file of a name that nobody has, with the permissions that any new file gets."""
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            return part
        except FileExistsError:
            continue


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzip. DataError where there is none to read, or nothing in it."""
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder; a file was expected.")
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise _no_file(path) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is a damaged or incomplete gzip file.") from None
    except MemoryError:
        raise DataError(f"{path} does not fit into memory.") from None
    except ValueError:  # a null character in the name
        raise DataError(f"{str(path)!r} cannot be the name of a file.") from None
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
        with path.open("rb") as file:
            if file.read(4) == b"PK\3\4":
                raise DataError(f"{path} holds an archive; a matrix of numbers was expected.")
            file.seek(0)
            shape, by_column, dtype = _npy_header(path, file)
            rows = np.fromfile(file, dtype, shape[0] * shape[1])
            return rows.reshape(shape, order="F" if by_column else "C")
    except FileNotFoundError:
        raise _no_file(path) from None
    except MemoryError:
        raise DataError(f"{path} does not fit into memory.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def _npy_header(path: Path, file: BinaryIO) -> tuple[tuple[int, int], bool, np.dtype[Any]]:
    """Shape, order and type that the file declares, where it holds as much as it declares: else nothing is read."""
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, by_column, dtype = read[np.lib.format.read_magic(file)](file)
    except OSError:
        raise
    except Exception as error:  # numpy evaluates the header as Python: what comes of a damaged one has no common name
        raise DataError(f"{path} cannot be read: it is damaged ({short(error)}).") from None
    if dtype.hasobject:
        raise DataError(f"{path} cannot be read: it holds Python objects, not numbers.")
    if len(shape) != 2 or dtype.kind not in "fiub":
        raise DataError(f"{path} holds {dtype} of shape {shape}; a matrix of numbers was expected.")
    here = os.fstat(file.fileno()).st_size - file.tell()
    expected = int(shape[0]) * int(shape[1]) * dtype.itemsize
    if min(shape) < 0 or here != expected:
        raise DataError(f"{path} is damaged: it declares {expected} bytes of numbers and holds {here}.")
    return (int(shape[0]), int(shape[1])), by_column, dtype


def read_own_parquet(path: Path) -> Any:
    """The Arrow table in a Parquet file of a run folder. RunError where it is missing or damaged."""
    try:
        return checked_table(pq.ParquetFile(path, page_checksum_verification=True).read())
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except PARQUET_ERRORS as error:
        raise RunError(f"{path} is damaged or no Parquet file: {short(error)}") from None


def checked_table(table: Any) -> Any:
    """An Arrow table from a file, once every value in it is known to be sound: Arrow itself trusts what it reads."""
    table.validate(full=True)
    return table


def names_beside(path: Path) -> list[str]:
    """The names in the folder that ``path`` stands in; none where there is no such folder."""
    try:
        return [k.name for k in path.parent.iterdir()]
    except OSError:
        return []


def short(error: Exception) -> str:
    """What a library said, on one line that is not too long."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}…"


def _no_file(path: Path) -> DataError:
    return DataError(f"There is no file {path}.{nearest(path.name, names_beside(path))}")
