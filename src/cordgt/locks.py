"""Locks between processes, on every system: ``flock`` on Linux and macOS, ``msvcrt`` on Windows.

Locks are advisory: only processes that ask for them wait. The system releases them if a process ends. A system with
neither module, or a file system without locks, grants every lock.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

fcntl: ModuleType | None
msvcrt: ModuleType | None
try:
    import fcntl
except ImportError:
    fcntl = None
try:
    import msvcrt
except ImportError:
    msvcrt = None

LOCKED_BYTE = 2**30  # on Windows: far behind the content of any file that is locked, because others cannot read it
RETRY_SECONDS = 0.01


def open_lock(path: Path) -> int:
    """Open a file or folder to lock it, and return the descriptor. OSError if it cannot be opened.

    A folder cannot be opened on Windows. A file ``.NAME.lock`` next to it then stands for it.
    """
    if fcntl is None and path.is_dir():
        return os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    return os.open(path, os.O_RDONLY if fcntl is not None else os.O_RDWR)


def is_lock_of(path: Path, handle: int) -> bool:
    """Return whether ``path`` still names what `open_lock` opened: it may have been removed or replaced."""
    if fcntl is None and path.is_dir():
        return True  # the file next to a folder is not removed
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False


def try_lock(handle: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting. False if another process holds it; True also if there are no locks.

    ``shared``: with others that ask for a shared lock. On Windows a shared lock is only a test.
    """
    try:
        if fcntl is not None:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        elif msvcrt is not None:
            return _try_windows_lock(handle, msvcrt, shared)
    except BlockingIOError:
        return False
    except OSError:
        pass  # some network file systems have no locks
    return True


def wait_for_lock(handle: int, timeout: float | None = None) -> bool:
    """Wait for an exclusive lock, at most ``timeout`` seconds. False if another process still holds it."""
    if timeout is None and fcntl is not None:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        return True
    deadline = None if timeout is None else time.monotonic() + timeout
    while not try_lock(handle):
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(RETRY_SECONDS)
    return True


def _try_windows_lock(handle: int, module: ModuleType, shared: bool) -> bool:
    os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
    try:
        module.locking(handle, module.LK_NBLCK, 1)
    except OSError:
        return False
    finally:
        os.lseek(handle, 0, os.SEEK_SET)
    if shared:
        unlock(handle)
    return True


def unlock(handle: int) -> None:
    """Release a lock before its file is closed. Windows releases the locks of a closed file only after a while."""
    if fcntl is None and msvcrt is not None:
        with suppress(OSError):
            os.lseek(handle, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
