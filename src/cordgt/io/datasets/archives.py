"""Extract files from zip and tar archives by name, only to paths that the caller gives.

pooch's own extraction does not refuse links, duplicates, absurd sizes or, before Python 3.12, paths outside the folder.
"""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from cordgt.errors import DataError
from cordgt.files import short_message

# Limit for one unpacked file, far above anything published. A limit on the ratio fails: zeros shrink a thousandfold.
MAX_BYTES = 8 << 30
CHUNK_BYTES = 1 << 20
TAR_END_BYTES = 1024  # a tar ends with two blocks of zeros
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")


def is_archive(path: Path) -> bool:
    """Whether a file has the name of an archive that can be opened."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


class _Member(NamedTuple):
    path: str
    size: int
    is_regular: bool  # False: a link or a device
    open: Callable[[], Any]

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


class Archive:
    """The files of a zip or tar by base name. DataError if it is damaged or not safe to open."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Return the base names of its files, without those that macOS adds."""
        with self._members() as members:
            return [member.name for member in members]

    def extract(self, name: str, target: Path) -> None:
        """Write the file with this base name to ``target``."""
        with self._members() as members:
            found = [m for m in members if m.name == name]
            if not found:
                raise DataError(f"{self.path} has no {name}.")
            if len(found) > 1:
                paths = ", ".join(m.path for m in found)
                raise DataError(f"{self.path} is refused: it has {len(found)} files called {name}: {paths}.")
            member = found[0]
            if member.size > MAX_BYTES:
                raise DataError(
                    f"{self.path}: {name} claims {member.size:,} bytes unpacked; the limit is {MAX_BYTES:,}."
                )
            free = shutil.disk_usage(target.parent).free
            if member.size > free:
                raise DataError(
                    f"{target.parent} has {free:,} bytes free; {name} in {self.path} needs {member.size:,}."
                )
            with member.open() as source, open(target, "wb") as file:
                self._copy(source, file, member)

    def _copy(self, source: IO[bytes], file: IO[bytes], member: _Member) -> None:
        n_written = 0
        while chunk := source.read(CHUNK_BYTES):
            n_written += len(chunk)
            if n_written > member.size:
                break
            file.write(chunk)
        if n_written != member.size:
            raise DataError(f"{self.path} is damaged: {member.path} does not have the size that the archive states.")

    @contextmanager
    def _members(self) -> Iterator[list[_Member]]:
        """Open the archive and yield its files, all checked before the first is used."""
        try:
            if zipfile.is_zipfile(self.path):
                with zipfile.ZipFile(self.path) as archive:
                    infos = [m for m in archive.infolist() if not m.is_dir()]
                    yield self._check_members(
                        _Member(m.filename, m.file_size, _is_regular(m), partial(archive.open, m)) for m in infos
                    )
            else:
                self._check_tar_is_complete()
                with tarfile.open(self.path) as tar:
                    yield self._check_members(
                        _Member(m.name, m.size, m.isfile(), partial(tar.extractfile, m)) for m in tar if not m.isdir()
                    )
        except tarfile.ReadError:  # its message lists every format it tried
            raise DataError(
                f"{self.path} is damaged, incomplete, or not a zip or tar archive. Fetch it again."
            ) from None
        except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            reason = short_message(error).rstrip(".") or "it ends early"
            raise DataError(f"{self.path} is a damaged or incomplete archive: {reason}.") from None
        except gzip.BadGzipFile:
            raise DataError(f"{self.path} is a damaged or incomplete archive: its checksum is wrong.") from None
        except OSError as error:
            raise DataError(f"{self.path} cannot be unpacked: {error.strerror or error}.") from None

    def _check_tar_is_complete(self) -> None:
        """Read a tar to its end, which verifies the checksum of gzip. DataError if its end is missing."""
        with open(self.path, "rb") as file:
            is_gzip = file.read(2) == b"\x1f\x8b"
        tail = b""
        with gzip.open(self.path) if is_gzip else open(self.path, "rb") as source:
            while chunk := source.read(CHUNK_BYTES):
                tail = (tail + chunk)[-TAR_END_BYTES:]
        if tail != bytes(TAR_END_BYTES):
            raise DataError(f"{self.path} is damaged, incomplete, or not a zip or tar archive. Fetch it again.")

    def _check_members(self, members: Iterator[_Member]) -> list[_Member]:
        """Return the members without those of macOS. DataError for links, duplicates and paths outside the folder."""
        found: dict[str, _Member] = {}
        for member in members:
            path = PurePosixPath(member.path.replace("\\", "/"))
            if not member.is_regular:
                raise DataError(f"{self.path} is refused: {member.path} is a link or a device.")
            if member.path in found:
                raise DataError(f"{self.path} is refused: it has two files {member.path}.")
            if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0]:
                raise DataError(f"{self.path} is refused: the path {member.path} leads outside the folder.")
            found[member.path] = member
        return [m for m in found.values() if "__MACOSX" not in m.path and not m.name.startswith("._")]


def _is_regular(member: zipfile.ZipInfo) -> bool:
    """Whether a zip member is a plain file; its type is 0 if the packing system knows no types."""
    return stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
