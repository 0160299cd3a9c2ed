"""Remember which files passed a check, so that a store is checked in full only when it is first used.

The record of a passed check is an empty file in the user's cache folder, never in the store: a store that someone hands
over cannot bring its own. Its name is a hash of what was checked and of the device, inode, size and times of every
file. Users cannot set the time of the last change of a file (ctime), so any write to a file makes the record void.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cordgt.files import cache_folder, user_id

CHECK_VERSION = 1  # of the checks: older records are void
FOLDER = "checked-stores"
MAX_RECORDS = 1000
TICK = 12_000_000  # ns; file systems count time in steps of up to 10 ms
COARSE_TICK = 3_000_000_000  # ns; if they store whole seconds: up to 2 s


class FileStates:
    """The state of some files, as the key of a record. ``checked``: what was checked."""

    def __init__(self, checked: str, states: Iterable[os.stat_result]) -> None:
        rows = [[s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for s in states]
        self.newest = max((max(row[3:]) for row in rows), default=0)
        self.is_coarse = all(time_ns % 1_000_000_000 == 0 for row in rows for time_ns in row[3:])
        text = json.dumps([CHECK_VERSION, checked, rows])
        self.name = hashlib.sha256(text.encode()).hexdigest()

    def is_remembered(self) -> bool:
        """Whether these files have passed the check in this state."""
        folder = _own_folder()
        return folder is not None and os.path.lexists(folder / self.name)

    def remember(self) -> None:
        """Save the record; not if a later write could leave the times of the files as they are.

        If the cache folder cannot be written, the files are checked again the next time.
        """
        age = time.time_ns() - self.newest
        if 0 <= age < TICK:
            time.sleep((TICK - age) / 1e9)
            age = time.time_ns() - self.newest
        if age < (COARSE_TICK if self.is_coarse else TICK):
            return
        with suppress(OSError, RuntimeError):
            (cache_folder() / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = _own_folder()
            if folder is not None:
                (folder / self.name).touch()
                _remove_oldest(folder)


def _own_folder() -> Path | None:
    """Return the folder of the records; None if it does not exist or another user could write it."""
    try:
        folder = cache_folder() / FOLDER
        status = os.lstat(folder)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == user_id() and not status.st_mode & 0o022
    return folder if is_own else None


def _remove_oldest(folder: Path) -> None:
    """Remove the older half of the records if there are too many."""
    with os.scandir(folder) as entries:
        files = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.path) for entry in entries]
    if len(files) > MAX_RECORDS:
        for _, path in sorted(files)[: MAX_RECORDS // 2]:
            Path(path).unlink(missing_ok=True)
