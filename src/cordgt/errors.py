"""Errors that a user can fix. A message says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class CordgtError(Exception):
    """A user error. The command line prints the message without a traceback and exits with code 2.

    Examples:
        >>> try:
        ...     cordgt.read_events("no-such-file.csv")
        ... except cordgt.CordgtError as error:
        ...     print("no-such-file.csv" in str(error))
        True
    """


class DataError(CordgtError):
    """A file or table of events, pairs or features cannot be used.

    Examples:
        >>> try:
        ...     cordgt.read_events("purchases.csv", src="buyer")
        ... except cordgt.DataError as error:
        ...     print("buyer" in str(error))
        True
    """


class EmptyInputError(DataError):
    """A file or table holds no events."""


class RowError(DataError):
    """A bad value in a column. ``row`` counts from 0; readers translate it into a line of the file."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row} (counted from 0): {reason}")
        self.row = row
        self.reason = reason


class MissingColumnError(DataError):
    """A column given by name or position does not exist. ``role``: the option that named it, such as ``dst``."""

    def __init__(self, role: str, message: str) -> None:
        super().__init__(message)
        self.role = role


class SettingError(CordgtError):
    """An unknown model, key or value, or settings that contradict each other.

    Examples:
        >>> try:
        ...     cordgt.train("purchases.csv", "count")
        ... except cordgt.SettingError as error:
        ...     print("Did you mean 'counts'?" in str(error))
        True
    """


class RunError(CordgtError):
    """A run folder is missing, damaged, finished, or was made with other settings.

    Examples:
        >>> try:
        ...     cordgt.Run.load("runs/missing")
        ... except cordgt.RunError as error:
        ...     print("runs/missing" in str(error))
        True
    """


class RunWarning(UserWarning):
    """A run or its answer can be used, but with a limit. The command line prints it as a note."""


class PluginWarning(RunWarning):
    """An installed plug-in cannot be loaded and is left out. The command line prints it as a note."""


OUT_OF_MEMORY_TEXTS = (
    "can't allocate memory",
    "not enough memory",
    "Cannot allocate memory",
    "CUDA out of memory",
    "Storage size calculation overflowed",  # torch: more bytes than fit into 64 bits
    "failed to map segment from shared object",  # a library that is loaded
    "can't start new thread",
    "bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy, Arrow or PyTorch says that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(text in str(error) for text in OUT_OF_MEMORY_TEXTS)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the closest known word, or an empty string if none is close."""
    originals = {k.lower(): k for k in known}
    matches = difflib.get_close_matches(word.lower(), originals, n=1, cutoff=0.5)
    return f" Did you mean '{originals[matches[0]]}'?" if matches else ""


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise SettingError, with the closest allowed value, if ``value`` is not allowed."""
    if value not in allowed:
        raise SettingError(
            f"{name}={value} is not known. Choose one of {', '.join(allowed)}.{did_you_mean(value, allowed)}"
        )
