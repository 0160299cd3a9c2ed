"""Read and write files: atomic writes, locks between processes, and errors that say what is wrong with a file."""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.errors import CordgtError, DataError, EmptyInputError, RunError, did_you_mean
from cordgt.locks import is_lock_of, open_lock, try_lock, unlock, wait_for_lock

LOCK_TIMEOUT = 0.2  # seconds; `is_file_locked` in another process holds a lock for less
# Windows lacks the first three. Without the last one it would read bytes as text.
SAFE_OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
# Raised by Arrow for a damaged file; the last three for impossible names, text and sizes.
PARQUET_ERRORS = (OSError, pa.ArrowException, KeyError, ValueError, MemoryError)


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Call ``write`` with a temporary file in the same folder, then rename it to ``path``: complete or not at all.

    DataError if the folder does not exist or cannot be written.
    """
    target = Path(path)
    part: Path | None = None
    try:
        part = _new_temporary_file(target)
        permissions = part.stat().st_mode  # as the umask allows; reading the umask itself would change it
        write(part)
        part.chmod(permissions)  # safetensors replaces the file by one that only the user may read
        sync_file(part)  # before the rename, so that a crash cannot leave an empty file under the new name
        os.replace(part, target)
        sync_folder(target.parent)
    except OSError as error:
        raise DataError(f"{target} cannot be written: {error.strerror or error}.") from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


@contextmanager
def file_lock(path: Path, busy: Exception | None = None) -> Iterator[None]:
    """Hold an exclusive lock on a file or folder within the block. The system releases it if the process ends.

    ``busy``: the error to raise if another process holds the lock; None waits for it. If ``path`` cannot be opened, an
    error of the same type, or DataError.
    """
    try:
        handle = open_lock(path)
    except OSError as error:
        kind = DataError if busy is None else type(busy)
        raise kind(f"{path} cannot be written: {error.strerror or error}.") from None
    try:
        if busy is None:
            wait_for_lock(handle)
        elif not wait_for_lock(handle, LOCK_TIMEOUT) or not is_lock_of(path, handle):
            raise busy  # also if the other process has just removed the file
        yield
    finally:
        unlock(handle)
        os.close(handle)


def is_file_locked(path: Path) -> bool:
    """Return whether another process holds the `file_lock` of a file or folder; False if it cannot be opened.

    The check itself holds a shared lock for a moment, for which `file_lock` waits.
    """
    try:
        handle = open_lock(path)
    except OSError:
        return False
    try:
        return not try_lock(handle, shared=True)
    finally:
        os.close(handle)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically. DataError as in `write_atomically`."""

    def write(part: Path) -> None:
        part.write_bytes(content)

    write_atomically(path, write)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 file atomically. DataError as in `write_atomically`."""
    write_bytes(path, text.encode())


def sync_file(path: Path) -> None:
    """Flush a file to disk. OSError if that fails."""
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows flushes only what it may write
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, so that a rename in it survives a crash of the system.

    Some file systems cannot do this; the rename is valid without it.
    """
    with suppress(OSError):
        sync_file(folder)


def is_regular_folder(path: Path) -> bool:
    """Return whether a path is a folder, and not a link to one."""
    return path.is_dir() and not path.is_symlink()


def remove(path: Path) -> None:
    """Remove a file, a folder with its content, or a link but not its target."""
    if is_regular_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/cordgt or ~/.cache/cordgt, which need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cordgt"


def _new_temporary_file(target: Path) -> Path:
    """Create an empty file with a new name in the folder of ``target``, with default permissions."""
    while True:
        part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        try:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            return part
        except FileExistsError:
            continue


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if it is gzip. DataError if it cannot be read or is empty."""
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
    except ValueError:  # a null character in the path
        raise DataError(f"{str(path)!r} is not a valid file name.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not data.strip():
        raise EmptyInputError(f"{path} is empty.")
    return data


def open_regular_file(path: Path, *, error: type[CordgtError] = DataError) -> BinaryIO:
    """Open a regular file to read bytes, without following a link in its place.

    ``error`` is raised if the file is missing, cannot be read, or is a folder, link, pipe, socket or device.
    """
    try:
        is_regular = stat.S_ISREG(os.lstat(path).st_mode)  # before opening: opening a device may change it
        if is_regular:
            # O_NONBLOCK: if another process replaces the file by a pipe now, opening it does not wait
            handle = os.open(path, os.O_RDONLY | SAFE_OPEN_FLAGS)
            file = os.fdopen(handle, "rb")
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return file
            file.close()
    except FileNotFoundError:
        raise error(f"{path} is missing.") from None
    except ValueError:  # a null character in the path
        raise error(f"{str(path)!r} is not a valid file name.") from None
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}.") from None
    raise error(f"{path} is a folder, link, pipe, socket or device. Replace it with a copy of the original file.")


def read_regular_file(path: Path, *, max_bytes: int, error: type[CordgtError] = DataError) -> bytes:
    """Return the content of a regular file of at most ``max_bytes`` bytes, without following a link in its place.

    ``error`` is raised if the file is larger or cannot be read, and as in `open_regular_file`.
    """
    with open_regular_file(path, error=error) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            content = b"" if size > max_bytes else file.read(size + 1)
        except MemoryError:
            raise error(f"{path} does not fit into memory.") from None
        except OSError as problem:
            raise error(f"{path} cannot be read: {problem.strerror or problem}.") from None
    if max(size, len(content)) > max_bytes:
        raise error(f"{path} is damaged: it has more than {max_bytes:,} bytes.")
    return content


def user_id() -> int:
    """Return the number of the user, as in ``st_uid``; 0 on Windows, for every user and file."""
    return os.getuid() if hasattr(os, "getuid") else 0


def is_npy(path: Path) -> bool:
    """Return whether the first bytes of a file are those of a numpy array. Pipes are not read: False."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(6) == b"\x93NUMPY"
    except OSError:
        return False


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Read a matrix of numbers from an ``.npy`` file, with the file's data type.

    DataError for objects, another shape, other values than numbers, or a damaged file.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PK\3\4":
                raise DataError(f"{path} holds an archive; a matrix of numbers was expected.")
            file.seek(0)
            shape, is_fortran, dtype = _read_npy_header(path, file)
            rows = np.fromfile(file, dtype, shape[0] * shape[1])
            return rows.reshape(shape, order="F" if is_fortran else "C")
    except FileNotFoundError:
        raise _no_file(path) from None
    except MemoryError:
        raise DataError(f"{path} does not fit into memory.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def _read_npy_header(path: Path, file: BinaryIO) -> tuple[tuple[int, int], bool, np.dtype[Any]]:
    """Return shape, Fortran order and data type. DataError if the size of the file does not match them."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, is_fortran, dtype = readers[np.lib.format.read_magic(file)](file)
    except OSError:
        raise
    except Exception as error:  # numpy evaluates the header as Python, so a damaged one may raise anything
        raise DataError(f"{path} cannot be read: it is damaged ({short_message(error)}).") from None
    if dtype.hasobject:
        raise DataError(f"{path} cannot be read: it holds Python objects, not numbers.")
    if len(shape) != 2 or dtype.kind not in "fiub":
        raise DataError(f"{path} holds {dtype} of shape {shape}; a matrix of numbers was expected.")
    available = os.fstat(file.fileno()).st_size - file.tell()
    expected = int(shape[0]) * int(shape[1]) * dtype.itemsize
    if min(shape) < 0 or available != expected:
        raise DataError(f"{path} is damaged: it declares {expected} bytes of numbers and holds {available}.")
    return (int(shape[0]), int(shape[1])), is_fortran, dtype


def follow_link(path: Path) -> Path:
    """Return the run folder that a link of `--replace` names now; any other path unchanged."""
    try:
        return path.parent / os.readlink(path)
    except OSError:
        return path


def read_run_parquet(path: Path) -> Any:
    """Read a Parquet file of a run folder as an Arrow table. RunError if it is missing or damaged."""
    open_regular_file(path, error=RunError).close()
    try:
        return validate_table(pq.ParquetFile(path, page_checksum_verification=True).read())
    except FileNotFoundError:
        raise RunError(f"{path} is missing.") from None
    except PARQUET_ERRORS as error:
        raise RunError(f"{path} is damaged or not a Parquet file: {short_message(error)}") from None


def validate_table(table: Any) -> Any:
    """Check every value of an Arrow table read from a file, because Arrow does not, and return the table."""
    table.validate(full=True)
    return table


def sibling_names(path: Path) -> list[str]:
    """Return the names in the folder of ``path``; none if the folder does not exist."""
    try:
        return [k.name for k in path.parent.iterdir()]
    except OSError:
        return []


def short_message(error: Exception) -> str:
    """Return a library's error message on one line of at most 300 characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}…"


def _no_file(path: Path) -> DataError:
    return DataError(f"There is no file {path}.{did_you_mean(path.name, sibling_names(path))}")
