"""The index of a store without the events of hidden nodes: written to files once, within bounded memory, and kept.

It lies in the store's folder under the name of what it hides: the next training with the same masked nodes finds
it. Only the latest are kept. Where the store cannot be written, it is made in the folder for temporary files. Of
several processes that need it at once one makes it, and the others wait.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cordgt.errors import DataError
from cordgt.events.stream import EventStream
from cordgt.files import exclusive
from cordgt.store.folder import MASKED_LOCK, disk_explained
from cordgt.store.growing import checksum, mapped
from cordgt.store.index_files import IndexFiles, write_index

ABOUT = "index.json"
KEPT = 2  # indexes of one store
MEMORY = 1 << 30  # bytes that a range of nodes may take while it is put in order

Found = tuple[Mapping[str, npt.NDArray[Any]], Mapping[str, int]]


def hidden_index(
    stream: EventStream, hidden: npt.NDArray[np.bool_], told: Callable[[int], None] = lambda _: None
) -> Found:
    """The arrays of a ``TemporalIndex`` of a store's stream without events that touch a ``hidden`` node, mapped, and
    its longest rows. Where it has to be made, ``told`` is called with numbers of events, each counted twice."""
    identity = f"{stream.kept.fingerprint} {stream.n_events} ".encode() + np.packbits(hidden).tobytes()
    name = f"masked-{hashlib.sha256(identity).hexdigest()[:16]}"
    home = stream.kept.path if os.access(stream.kept.path, os.W_OK) else _own_folder()
    folder, lock = home / name, home / MASKED_LOCK
    found = _read(folder)
    if found is None:
        with disk_explained(folder, "The index for training needs about as much room as the store's own."):
            lock.touch()
            with exclusive(lock):
                found = _read(folder)  # another process may have made it meanwhile
                if found is None:
                    _make(folder, stream, hidden, told)
                    found = _read(folder)
        assert found is not None, "it was written just now"
    return found


def check_indexes(store: Path, told: Callable[[int], None] = lambda _: None) -> int:
    """Reads every byte of the indexes for training that lie in a store's folder, and says how many these are.

    DataError where one is not what was written. ``told`` is called with numbers of bytes as they are read.
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
                told(size)
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


def _read(folder: Path) -> Found | None:
    """What was kept; None where there is nothing, or not all of it."""
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        arrays = {name: mapped(folder / name, k["dtype"], k["rows"], k["width"]) for name, k in about["arrays"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return arrays, about["longest"]


def _make(folder: Path, stream: EventStream, hidden: npt.NDArray[np.bool_], told: Callable[[int], None]) -> None:
    part = folder.with_name(f"{folder.name}.part-{secrets.token_hex(4)}")
    part.mkdir()
    try:
        written = write_index(
            part, stream.src, stream.dst, stream.kept.tie_start, stream.n_nodes, memory=MEMORY, hidden=hidden, told=told
        )
        _describe(part, written)
        _make_room(folder, part)
        with suppress(OSError):  # another process was faster
            os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _describe(part: Path, written: IndexFiles) -> None:
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
    for _, old in sorted(others)[: max(len(others) - KEPT + 1, 0)]:
        shutil.rmtree(old, ignore_errors=True)
