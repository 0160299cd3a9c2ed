"""Read one file of a zip archive as a stream, without unpacking it to the disk."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from cordgt.errors import DataError, did_you_mean
from cordgt.files import short_message

MAX_BYTES = 8 << 30  # of the unpacked file; far above anything published
MAX_LISTED = 10
_ZIP_MAGIC, _EMPTY_ZIP_MAGIC = b"PK\x03\x04", b"PK\x05\x06"


def is_zip(path: Path) -> bool:
    """Whether a regular file starts as a zip archive does. Pipes are not read: False."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) in (_ZIP_MAGIC, _EMPTY_ZIP_MAGIC)
    except (OSError, ValueError):
        return False


def check_member(path: Path, member: str | None) -> None:
    """Raise DataError if ``member`` names a file of something that is not a zip archive."""
    if member is not None and not is_zip(path):
        raise DataError(f"--member names a file in a zip archive, but {path} is not one. Leave it out.")


@contextmanager
def open_zip_member(path: Path, member: str | None) -> Iterator[BinaryIO]:
    """Open the only file of an archive, or the one called ``member`` (its path, or its name if that is unique).

    Reading to the end verifies the checksum. DataError if the archive is damaged, encrypted or too large, if it is
    not clear which file to read, or if that file is an archive too.
    """
    with explain_zip_errors(path), zipfile.ZipFile(path) as archive:
        info = _choose_member(path, archive.infolist(), member)
        if info.flag_bits & 1:
            raise DataError(f"{path}: {info.filename} is encrypted. Unpack it first.")
        if info.file_size > MAX_BYTES:
            raise DataError(
                f"{path}: {info.filename} claims {info.file_size:,} bytes unpacked; the limit is {MAX_BYTES:,}. "
                "Unpack it first."
            )
        with archive.open(info) as file:
            if file.peek(4)[:4] in (_ZIP_MAGIC, _EMPTY_ZIP_MAGIC):  # type: ignore[attr-defined]
                raise DataError(f"{path} contains a zip archive, {info.filename}. Unpack it first.")
            yield file  # type: ignore[misc]


def read_zip_member(path: Path, member: str | None) -> bytes:
    """Return the content of a file in an archive. DataError as for `open_zip_member`, and if the file is empty."""
    with open_zip_member(path, member) as file:
        data = file.read()
    if not data.strip():
        raise DataError(f"{path} is empty.")
    return data


@contextmanager
def explain_zip_errors(path: Path) -> Iterator[None]:
    """Re-raise errors of a damaged zip archive as DataError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        reason = short_message(error).rstrip(".") or "it ends early"
        raise DataError(f"{path} is a damaged or incomplete zip archive: {reason}.") from None
    except MemoryError:
        raise DataError(f"{path} does not fit into memory.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


def _choose_member(path: Path, infos: list[zipfile.ZipInfo], member: str | None) -> zipfile.ZipInfo:
    files = [info for info in infos if not info.is_dir() and not _is_hidden(info.filename)]
    if any(info.filename == "[Content_Types].xml" for info in files):
        raise DataError(f"{path} is an Office document, not a table. Save the sheet as CSV.")
    twice = [name for name, n in Counter(info.filename for info in files).items() if n > 1]
    if twice:
        raise DataError(f"{path} is refused: it has two files {twice[0]}. Unpack it, and give the file that you mean.")
    if not files:
        raise DataError(f"{path} is a zip archive without a file to read.")
    names = ", ".join(info.filename[:100] for info in files[:MAX_LISTED]) + (", …" if len(files) > MAX_LISTED else "")
    if member is None:
        if len(files) > 1:
            raise DataError(
                f"{path} has {len(files)} files: {names}. Name one with --member, for example --member "
                f"{max(files, key=lambda info: info.file_size).filename}."
            )
        return files[0]
    found = [info for info in files if info.filename == member] or [
        info for info in files if PurePosixPath(info.filename).name == member
    ]
    if len(found) > 1:
        raise DataError(
            f"{path} has {len(found)} files called {member}. Name one with its path in the archive: {names}."
        )
    if not found:
        hint = did_you_mean(member, [info.filename for info in files])
        raise DataError(f"{path} has no file {member} for --member.{hint} Its files are {names}.")
    return found[0]


def _is_hidden(name: str) -> bool:
    """Whether a file is one of those that macOS adds to an archive."""
    return name.startswith("__MACOSX/") or PurePosixPath(name).name.startswith((".", "._"))
