"""The index of a store without the events of masked nodes, for training: written once and reused.

It is cached in the store's folder under a hash of the masked nodes; only the latest few are kept. If the store is
read-only, the cache is in the folder for temporary files. If several processes need the same index at once, one builds
it and the others wait. Memory is bounded, as in `write_index`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError
from cordgt.events.backing import INDEX_ARRAYS, IndexData
from cordgt.files import (
    file_lock,
    is_regular_folder,
    open_regular_file,
    read_regular_file,
    remove,
    sync_folder,
    user_id,
    write_text,
)
from cordgt.store.arrays import checksum, explain_disk_errors, memory_map
from cordgt.store.check_cache import FileStates
from cordgt.store.consistency import check_index
from cordgt.store.description import (
    MAX_JSON_BYTES,
    StoredArray,
    check_file,
    index_rows,
    parse_longest,
    parse_written,
)
from cordgt.store.index_writer import write_index

INDEX_FILE = "index.json"
LOCK = "masked.lock"  # file in the store that is locked while an index is built or removed
MAX_INDEXES = 2  # of one store
MEMORY = 1 << 30  # limit of a node range in bytes, see `write_index`


class _LockHeldError(DataError):
    """Another process holds the lock."""


def masked_index(
    store: Path,
    fingerprint: str,
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    tie_start: npt.NDArray[Any],
    masked: npt.NDArray[np.bool_],
) -> IndexData:
    """Return the index of the events (src, dst) that touch no node where ``masked`` (N,) is True, memory-mapped.

    ``fingerprint``: of the stream. ``tie_start``: (E,) or longer.
    """
    identity = f"{fingerprint} {len(src)} ".encode() + np.packbits(masked).tobytes()
    name = f"masked-{hashlib.sha256(identity).hexdigest()[:16]}"
    cache = store if os.access(store, os.W_OK) else _temporary_cache()
    folder = cache / name

    def read() -> IndexData | None:
        return _read(folder, src, dst, tie_start, masked)

    index = read()
    if index is None:
        advice = "The training index needs about as much disk space as the store's own index."
        with explain_disk_errors(folder, advice), file_lock(_lock_file(cache)):
            index = read()  # another process may have built it meanwhile
            if index is None:
                _build(folder, src, dst, tie_start, masked)
                index = read()
        if index is None:
            raise DataError(f"The training index {folder} cannot be read back. Check the disk and try again.")
    return index


def _lock_file(cache: Path) -> Path:
    """Return the file that is locked while an index is built or removed. DataError if it is a link or a pipe."""
    path = cache / LOCK
    if not os.path.lexists(path):
        path.touch()
    open_regular_file(path).close()
    return path


def remove_masked_indexes(store: Path) -> None:
    """Remove the cached indexes of a store, unless one is being built."""
    folders = list(store.glob("masked-*"))
    if folders:
        with suppress(_LockHeldError), file_lock(_lock_file(store), _LockHeldError()):
            for folder in folders:
                _remove(folder)


def verify_masked_indexes(store: Path, callbacks: Callback = NO_CALLBACK) -> int:
    """Verify the checksums of the cached indexes of a store. Returns their number.

    DataError if one is damaged. ``callbacks.on_step`` gets the number of bytes of each array read.
    """
    folders = [p for p in sorted(store.glob("masked-*")) if ".part-" not in p.name]
    for folder in folders:
        try:
            description = _Description.read(folder)
            for name, array in description.arrays.items():
                if checksum(folder / name, 0, array.n_bytes) != array.parts[0][1]:
                    raise ValueError("a checksum does not match")
                callbacks.on_step(array.n_bytes)
        except (DataError, ValueError):
            raise DataError(f"{folder} is damaged. Remove it; the next training builds it again.") from None
    return len(folders)


def _temporary_cache() -> Path:
    """Return a folder for temporary files that only this user can write. DataError if another user owns it."""
    folder = Path(tempfile.gettempdir()) / f"cordgt-{user_id()}"
    with explain_disk_errors(folder, "The training index is written there because the store is read-only."):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != user_id():
            raise DataError(f"{folder} belongs to another user. Set TMPDIR to a folder of your own.")
    return folder


@dataclass(frozen=True)
class _Description:
    """The content of ``index.json``."""

    arrays: dict[str, StoredArray]  # files relative to the folder of the index
    longest: dict[str, int]
    sha256: str  # of the text

    @classmethod
    def read(cls, folder: Path) -> _Description:
        """Read and check ``index.json``. DataError or ValueError if it cannot be used."""
        text = read_regular_file(folder / INDEX_FILE, max_bytes=MAX_JSON_BYTES)
        try:
            content = json.loads(text.decode())
        except RecursionError as error:
            raise ValueError(str(error)) from None
        described = content.get("arrays") if isinstance(content, dict) else None
        if not isinstance(described, dict) or described.keys() != set(INDEX_ARRAYS):
            raise ValueError("other arrays are listed than those of an index")
        arrays = {name: parse_written(name, values) for name, values in described.items()}
        return cls(arrays, parse_longest(content.get("longest")), hashlib.sha256(text).hexdigest())

    def file_states(self, folder: Path) -> FileStates:
        """Return the key of a passed check of the index. DataError if a file is missing, too short, or a link."""
        states = [check_file(folder / name, array.n_bytes) for name, array in self.arrays.items()]
        return FileStates(f"masked index {folder.name} {self.sha256}", states)


def _read(
    folder: Path,
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    tie_start: npt.NDArray[Any],
    masked: npt.NDArray[np.bool_],
) -> IndexData | None:
    """Return the index in a folder; None if it is missing, incomplete or damaged.

    It is checked in full at its first use after a change, as the arrays of a store are.
    """
    try:
        found = _Description.read(folder)
        rows = {name: array.rows for name, array in found.arrays.items()}
        if rows != index_rows(rows, len(src), len(masked)):
            raise ValueError("the arrays have wrong lengths")
        states = found.file_states(folder)
        arrays = {name: memory_map(folder / name, k.dtype, k.rows) for name, k in found.arrays.items()}
        index = IndexData(arrays, found.longest)
        if not states.is_remembered():
            for name, array in found.arrays.items():
                if checksum(folder / name, 0, array.n_bytes) != array.parts[0][1]:
                    raise ValueError("a checksum does not match")
            check_index(index, src, dst, tie_start, len(masked), masked)
            states.remember()
    except (DataError, ValueError, OSError):
        return None
    return index


def _build(
    folder: Path,
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    tie_start: npt.NDArray[Any],
    masked: npt.NDArray[np.bool_],
) -> None:
    part = folder.with_name(f"{folder.name}.part-{secrets.token_hex(4)}")
    part.mkdir()
    try:
        written = write_index(part, src, dst, tie_start, len(masked), memory=MEMORY, masked=masked)
        arrays = {name: vars(array) for name, array in written.arrays.items()}
        write_text(part / INDEX_FILE, json.dumps({"arrays": arrays, "longest": written.longest}))
        _remove_old_indexes(folder, part)
        with suppress(OSError):  # another process was faster
            os.rename(part, folder)
            sync_folder(folder.parent)
            _Description.read(folder).file_states(folder).remember()  # just written: no need to check it
    finally:
        _remove(part)


def _remove(folder: Path) -> None:
    """Remove what is there, as far as possible; a link, not its target."""
    with suppress(OSError):
        remove(folder)


def _remove_old_indexes(folder: Path, part: Path) -> None:
    """Remove a damaged index at ``folder``, unfinished indexes, and all but the latest others.

    Only under the lock. Processes that have mapped a removed index can still read it.
    """
    _remove(folder)
    others = []
    for other in folder.parent.glob("masked-*"):
        if ".part-" not in other.name and is_regular_folder(other) and (other / INDEX_FILE).is_file():
            others.append((other.stat().st_mtime, other))
        elif other != part:
            _remove(other)
    for _, old in sorted(others)[: max(len(others) - MAX_INDEXES + 1, 0)]:
        _remove(old)
