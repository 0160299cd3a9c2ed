"""Files out of archives: those that are asked for by name, and nothing else. No archive decides where a file goes."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from cordgt.errors import DataError
from cordgt.files import short

# Bytes of one file unpacked, which nothing published comes near. No ratio: features of zeros shrink a thousandfold.
LARGEST = 8 << 30
CHUNK = 1 << 20
ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")


def is_archive(path: Path) -> bool:
    """Whether a file is called like an archive that can be opened."""
    return path.is_file() and path.name.lower().endswith(ENDINGS)


class Archive:
    """The files of a zip or tar by their last name. DataError where it is damaged, or would write outside a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """The last names of its files, without what macOS adds."""
        with self._opened() as members:
            return [PurePosixPath(name).name for name, _, _ in members]

    def take(self, name: str, target: Path) -> None:
        """Write the file of that last name to ``target``."""
        with self._opened() as members:
            for path, size, opened in members:
                if PurePosixPath(path).name == name:
                    self._check_size(path, size, target.parent)
                    with opened() as source, open(target, "wb") as file:
                        self._copy(source, file, size, path)
                    return
        raise DataError(f"{self.path} holds no {name}.")

    def _copy(self, source: IO[bytes], file: IO[bytes], size: int, name: str) -> None:
        written = 0
        while chunk := source.read(CHUNK):
            written += len(chunk)
            if written > size:
                raise DataError(f"{self.path}: {name} is larger than the archive says.")
            file.write(chunk)
        if written != size:
            raise DataError(f"{self.path} is damaged or incomplete: {name} ends early.")

    def _check_size(self, name: str, size: int, folder: Path) -> None:
        if size > LARGEST:
            raise DataError(f"{self.path}: {name} claims {size:,} bytes unpacked, which cannot be right.")
        free = shutil.disk_usage(folder).free
        if size > free:
            raise DataError(f"{folder} has room for {free:,} bytes, and {name} of {self.path} takes {size:,}.")

    @contextmanager
    def _opened(self) -> Iterator[list[tuple[str, int, Callable[[], Any]]]]:
        """Path, size and opener of every file, all checked before the first is used."""
        try:
            if zipfile.is_zipfile(self.path):
                with zipfile.ZipFile(self.path) as archive:
                    yield self._sound(
                        (m.filename, m.file_size, partial(archive.open, m)) for m in self._zipped(archive)
                    )
            else:
                with self._tar() as tar:
                    yield self._sound((m.name, m.size, partial(tar.extractfile, m)) for m in self._files(tar))
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, NotImplementedError, RuntimeError) as error:
            told = short(error).rstrip(".")
            raise DataError(f"{self.path} is a damaged or incomplete archive: {told or 'it ends early'}.") from None
        except OSError as error:
            raise DataError(f"{self.path} cannot be unpacked: {error.strerror or error}.") from None
        except zlib.error as error:
            raise DataError(f"{self.path} is a damaged archive: {error}.") from None

    def _tar(self) -> tarfile.TarFile:
        try:
            return tarfile.open(self.path)
        except tarfile.ReadError:  # which recites what it tried
            raise DataError(
                f"{self.path} is no sound archive: it is cut short or damaged, or no zip or tar at all. Fetch it again."
            ) from None

    def _zipped(self, archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where it was packed by what knows no kinds
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise self._not_plain(member.filename)
            if not member.is_dir():
                yield member

    def _files(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        for member in tar:
            if member.issym() or member.islnk() or member.isdev():
                raise self._not_plain(member.name)
            if member.isfile():
                yield member

    def _not_plain(self, name: str) -> DataError:
        return DataError(f"{self.path} holds a link or a device ({name}): it is not opened.")

    def _sound(self, members: Any) -> list[tuple[str, int, Callable[[], Any]]]:
        found = list(members)
        seen = set()
        for name, *_ in found:
            if name in seen:
                raise DataError(
                    f"{self.path} holds {name} twice, and nothing says which one is meant: it is not opened."
                )
            seen.add(name)
            path = PurePosixPath(name.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0]:
                raise DataError(f"{self.path} holds a path that leads outside ({name}): it is not opened.")
        return [m for m in found if "__MACOSX" not in m[0] and not PurePosixPath(m[0]).name.startswith("._")]
