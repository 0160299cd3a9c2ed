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
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError
from cordgt.events.backing import IndexData
from cordgt.files import file_lock
from cordgt.store.arrays import checksum, explain_disk_errors, memory_map
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
    folder, lock = cache / name, cache / LOCK
    index = _read(folder)
    if index is None:
        with explain_disk_errors(folder, "The training index needs about as much disk space as the store's own index."):
            lock.touch()
            with file_lock(lock):
                index = _read(folder)  # another process may have built it meanwhile
                if index is None:
                    _build(folder, src, dst, tie_start, masked)
                    index = _read(folder)
        assert index is not None, "it was just written"
    return index


def remove_masked_indexes(store: Path) -> None:
    """Remove the cached indexes of a store, unless one is being built."""
    folders = list(store.glob("masked-*"))
    if folders:
        lock = store / LOCK
        lock.touch()
        with suppress(_LockHeldError), file_lock(lock, _LockHeldError()):
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)


def verify_masked_indexes(store: Path, callbacks: Callback = NO_CALLBACK) -> int:
    """Verify the checksums of the cached indexes of a store. Returns their number.

    DataError if one is damaged. ``callbacks.on_step`` gets the number of bytes of each array read.
    """
    folders = [p for p in sorted(store.glob("masked-*")) if ".part-" not in p.name]
    for folder in folders:
        message = f"{folder} is damaged. Remove it; the next training builds it again."
        try:
            arrays = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["arrays"]
            for name, k in arrays.items():
                size = k["rows"] * max(k["width"], 1) * np.dtype(k["dtype"]).itemsize
                if checksum(folder / name, 0, size) != k["sha256"]:
                    raise DataError(message)
                callbacks.on_step(size)
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(message) from None
    return len(folders)


def _temporary_cache() -> Path:
    """Return a folder for temporary files that only this user can write. DataError if another user owns it."""
    folder = Path(tempfile.gettempdir()) / f"cordgt-{os.getuid()}"
    with explain_disk_errors(folder, "The training index is written there because the store is read-only."):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise DataError(f"{folder} belongs to another user. Set TMPDIR to a folder of your own.")
    return folder


def _read(folder: Path) -> IndexData | None:
    """Return the index in a folder; None if it is missing or incomplete."""
    try:
        description = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))
        arrays = {
            name: memory_map(folder / name, k["dtype"], k["rows"], k["width"])
            for name, k in description["arrays"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return IndexData(arrays, description["longest"])


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
        (part / INDEX_FILE).write_text(json.dumps({"arrays": arrays, "longest": written.longest}), encoding="utf-8")
        _remove_old_indexes(folder, part)
        with suppress(OSError):  # another process was faster
            os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove_old_indexes(folder: Path, part: Path) -> None:
    """Remove a damaged index at ``folder``, unfinished indexes, and all but the latest others.

    Only under the lock. Processes that have mapped a removed index can still read it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    others = []
    for other in folder.parent.glob("masked-*"):
        if ".part-" not in other.name and (other / INDEX_FILE).exists():
            others.append((other.stat().st_mtime, other))
        elif other != part:
            shutil.rmtree(other, ignore_errors=True)
    for _, old in sorted(others)[: max(len(others) - MAX_INDEXES + 1, 0)]:
        shutil.rmtree(old, ignore_errors=True)
