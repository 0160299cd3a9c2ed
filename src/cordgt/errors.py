"""Errors that a person can mend: what was wrong, where, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class CordgtError(Exception):
    """A mistake outside the program. The command line prints the message and exits with 2, without a traceback."""


class DataError(CordgtError):
    """A file or table of events, pairs or features that cannot be used as it is."""


class RowError(DataError):
    """A bad value in a column. ``row`` counts the rows from 0; a table turns it into a line of its file."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(f"row {row} (counted from 0): {what}")
        self.row = row
        self.what = what


class MissingColumn(DataError):
    """A column that was asked for by name or position and is not there. ``role``: the option that asked, ``dst``."""

    def __init__(self, role: str, what: str) -> None:
        super().__init__(what)
        self.role = role


class SettingError(CordgtError):
    """An unknown model, key or value, or settings that contradict each other."""


class RunError(CordgtError):
    """A run folder that is missing, damaged, finished, or made with other settings."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the closest known word, or an empty string when nothing comes close."""
    spelt = {k.lower(): k for k in known}
    found = difflib.get_close_matches(word.lower(), spelt, n=1, cutoff=0.5)
    return f" Did you mean '{spelt[found[0]]}'?" if found else ""


def check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    """SettingError, with the nearest one, where a value is none of those allowed."""
    if value not in allowed:
        raise SettingError(f"{name}={value} is not known: it is one of {', '.join(allowed)}.{nearest(value, allowed)}")
