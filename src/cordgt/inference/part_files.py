"""Numbered part files of one large answer, with a manifest that says what the answer is.

A part is complete or absent, because it is renamed into its place. The manifest is written before the first part, and
is the same for every shard. A part that exists is not made again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.errors import DataError, SettingError
from cordgt.files import PARQUET_ERRORS, read_regular_file, write_atomically, write_text

FORMAT = 1
DEFAULT_NAME = "part-*.parquet"
ENDINGS = (".parquet", ".csv", ".tsv")
MANIFEST_KEY, PART_KEY = b"cordgt_manifest", b"cordgt_part"  # in the metadata of a Parquet file
MAX_MANIFEST_BYTES = 1 << 20
ABANDONED_SECONDS = 600.0  # age of a temporary file whose process is gone: writing a part takes seconds

WritePart = Callable[[pa.Table, Path], None]


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a Parquet file atomically."""
    write_atomically(path, partial(pq.write_table, table))


@dataclass(frozen=True)
class PartFiles:
    """Where the parts of an answer are, and what they hold."""

    pattern: Path  # with one ``*`` in the name, which stands for the number of the part
    manifest: Mapping[str, Any]  # what the parts depend on, and their number ``n_parts``
    subjects: Mapping[str, str] = field(default_factory=dict)  # what a key of the manifest describes, for messages

    @property
    def manifest_path(self) -> Path:
        """The file of the manifest: ``_part-manifest.json`` for ``part-*.parquet``. Readers of folders skip ``_``."""
        return self.pattern.with_name(f"_{self.pattern.stem.replace('*', 'manifest')}.json")

    @property
    def n_parts(self) -> int:
        return int(self.manifest["n_parts"])

    @property
    def digest(self) -> str:
        """Hash of the manifest."""
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()

    def path(self, number: int) -> Path:
        """Return the file of a part, counted from 0."""
        return self.pattern.with_name(self.pattern.name.replace("*", f"{number:05d}"))

    def prepare(self) -> None:
        """Make the folder and the manifest, or check the existing one. DataError if it describes another answer."""
        folder = self.pattern.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{folder} cannot be made: {error.strerror or error}.") from None
        if self.manifest_path.exists():
            return self.check()
        if self.path(0).exists() or any(map(_is_part_number, self._names())):
            raise DataError(
                f"{self.pattern} has parts, but {self.manifest_path.name} is missing, so their origin is unknown. "
                "Delete them, or use another --output."
            )
        write_text(self.manifest_path, json.dumps(self.manifest, indent=2) + "\n")

    def _names(self) -> list[str]:
        """Return what stands for ``*`` in the names of the existing files."""
        before, after = self.pattern.name.split("*")
        names = [path.name for path in self.pattern.parent.glob(self.pattern.name)]
        return [name[len(before) : len(name) - len(after)] for name in names]

    def check(self) -> None:
        """Raise DataError if the manifest on disk describes another answer."""
        try:
            found = json.loads(read_regular_file(self.manifest_path, max_bytes=MAX_MANIFEST_BYTES))
            changed = [k for k in {**self.manifest, **found} if found.get(k) != self.manifest.get(k)]
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise DataError(f"{self.manifest_path} is damaged. Delete it and the parts next to it.") from None
        if changed:
            key = changed[0]
            was, now = found.get(key), self.manifest.get(key)
            raise DataError(
                f"The parts in {self.pattern.parent} belong to another {self.subjects.get(key, 'command')}: they were "
                f"made with {key}={was}, and now it is {now}. Repeat the original command, or use another --output."
            )

    def is_finished(self, number: int) -> bool:
        """Return whether a part exists and is complete. DataError if it belongs to another answer."""
        path = self.path(number)
        if not path.exists():
            return False
        if path.suffix.lower() != ".parquet":
            return _ends_with_line_break(path)
        try:
            metadata = pq.read_schema(path).metadata or {}
        except PARQUET_ERRORS:
            return False  # it is damaged, for example by an incomplete copy
        if metadata.get(MANIFEST_KEY) != self.digest.encode() or metadata.get(PART_KEY) != str(number).encode():
            raise DataError(
                f"{path} is not part {number} of the answer that {self.manifest_path.name} describes. Delete it, or "
                "use another --output."
            )
        return True

    def write(self, number: int, table: pa.Table, write: WritePart) -> None:
        """Write a part atomically, and remove what a killed process has left of it. DataError if the disk is full."""
        path = self.path(number)
        for leftover in path.parent.glob(f".{path.name}.*.part"):
            try:
                if time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                    leftover.unlink(missing_ok=True)
            except OSError:
                continue
        metadata = {MANIFEST_KEY: self.digest.encode(), PART_KEY: str(number).encode()}
        try:
            write(table.replace_schema_metadata(metadata), path)
        except DataError as error:
            raise DataError(f"{error} Finished parts are kept; the same command continues.") from None


def parse_pattern(output: str | Path) -> Path:
    """Return the pattern of an output: a path with ``*`` in its name, or a folder, which gets ``part-*.parquet``."""
    path = Path(output)
    if "*" not in path.name:
        if path.suffix.lower() in (*ENDINGS, ".json"):
            raise SettingError(
                f"--output {path}: --all writes several files. Give a folder, or a name with *, such as "
                f"{path.with_name(f'{path.stem}-*{path.suffix}')}."
            )
        path = path / DEFAULT_NAME
    if path.name.count("*") != 1 or "*" in str(path.parent):
        raise SettingError(f"--output {path}: write one *, in the name of the file. It stands for the part's number.")
    if path.suffix.lower() not in ENDINGS:
        raise SettingError(f"--output {path}: the name must end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}.")
    if path.parent.exists() and not path.parent.is_dir():
        raise SettingError(f"--output {path}: {path.parent} is a file, not a folder.")
    return path


def _is_part_number(text: str) -> bool:
    return text.isdecimal() and len(text) >= 5


def _ends_with_line_break(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
    except OSError:  # empty
        return False
