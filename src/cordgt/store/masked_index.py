"""The index of a store without the events of masked nodes, written to files once and reused.

It is kept in the store's folder, named after the masked nodes: the next training with the same ones finds it. Only the
latest few are kept. If the store cannot be written, they are kept in a folder for temporary files. If several processes
need the same index at once, one builds it and the others wait. Memory is bounded, as in `write_index`.
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
from cordgt.files import exclusive
from cordgt.store.arrays import checksum, disk_explained, mapped
from cordgt.store.index_writer import WrittenIndex, write_index

ABOUT = "index.json"
LOCK = "masked.lock"  # file in the store that is locked while an index is built or removed
MAX_INDEXES = 2  # of one store
MEMORY = 1 << 30  # bytes that a range of nodes may take while it is put in order


class _InUse(DataError):
    """Another process holds the lock."""


def masked_index(
    store: Path,
    fingerprint: str,
    src: npt.NDArray[Any],
    dst: npt.NDArray[Any],
    tie_start: npt.NDArray[Any],
    masked: npt.NDArray[np.bool_],
) -> IndexData:
    """The index of a store's events (src, dst) that touch no node where ``masked`` (N,) is True, mapped from files.

    ``fingerprint``: of the stream. ``tie_start``: (E,) or longer.
    """
    identity = f"{fingerprint} {len(src)} ".encode() + np.packbits(masked).tobytes()
    name = f"masked-{hashlib.sha256(identity).hexdigest()[:16]}"
    home = store if os.access(store, os.W_OK) else _own_folder()
    folder, lock = home / name, home / LOCK
    index = _read(folder)
    if index is None:
        with disk_explained(folder, "The index for training needs about as much room as the store's own."):
            lock.touch()
            with exclusive(lock):
                index = _read(folder)  # another process may have built it meanwhile
                if index is None:
                    _build(folder, src, dst, tie_start, masked)
                    index = _read(folder)
        assert index is not None, "it was written just now"
    return index


def remove_indexes(store: Path) -> None:
    """Removes the indexes for training from a store; leaves them all if one is being built."""
    folders = list(store.glob("masked-*"))
    if folders:
        lock = store / LOCK
        lock.touch()
        with suppress(_InUse), exclusive(lock, _InUse()):
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)


def check_indexes(store: Path, callbacks: Callback = NO_CALLBACK) -> int:
    """Reads every byte of the indexes for training in a store's folder. Returns how many indexes there are.

    DataError if one is not what was written. ``callbacks.on_step`` gets the number of bytes of each array read.
    """
    folders = [p for p in sorted(store.glob("masked-*")) if ".part-" not in p.name]
    for folder in folders:
        wrong = f"{folder} is damaged. Remove it: the next training makes it anew."
        try:
            arrays = json.loads((folder / ABOUT).read_text(encoding="utf-8"))["arrays"]
            for name, k in arrays.items():
                size = k["rows"] * max(k["width"], 1) * np.dtype(k["dtype"]).itemsize
                if checksum(folder / name, 0, size) != k["sha256"]:
                    raise DataError(wrong)
                callbacks.on_step(size)
        except (OSError, ValueError, KeyError, TypeError):
            raise DataError(wrong) from None
    return len(folders)


def _own_folder() -> Path:
    """A folder for temporary files that nobody else can write; DataError where somebody has taken its name."""
    folder = Path(tempfile.gettempdir()) / f"cordgt-{os.getuid()}"
    with disk_explained(folder, "The index for training goes there where the store cannot be written."):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise DataError(f"{folder} belongs to somebody else. Name a folder of your own with TMPDIR.")
    return folder


def _read(folder: Path) -> IndexData | None:
    """The index in a folder; None if it is missing or incomplete."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        arrays = {name: mapped(folder / name, k["dtype"], k["rows"], k["width"]) for name, k in about["arrays"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return IndexData(arrays, about["longest"])


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
        _describe(part, written)
        _make_room(folder, part)
        with suppress(OSError):  # another process was faster
            os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _describe(part: Path, written: WrittenIndex) -> None:
    arrays = {name: vars(array) for name, array in written.arrays.items()}
    (part / ABOUT).write_text(json.dumps({"arrays": arrays, "longest": written.longest}), encoding="utf-8")


def _make_room(folder: Path, part: Path) -> None:
    """Remove what is damaged under this name, what a kill left, and all but the latest of the others.

    Only under the lock; who reads them keeps them.
    """
    shutil.rmtree(folder, ignore_errors=True)
    others = []
    for other in folder.parent.glob("masked-*"):
        if ".part-" not in other.name and (other / ABOUT).exists():
            others.append((other.stat().st_mtime, other))
        elif other != part:
            shutil.rmtree(other, ignore_errors=True)
    for _, old in sorted(others)[: max(len(others) - MAX_INDEXES + 1, 0)]:
        shutil.rmtree(old, ignore_errors=True)
