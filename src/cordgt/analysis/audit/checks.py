"""The result of an audit: a list of checks, one per row of the printed table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, FAIL, BY_DESIGN, NOTE, WARNING = "ok", "FAIL", "by design", "note", "warning"


@dataclass(frozen=True)
class Check:
    """One check. The fields are the columns of the table and the keys of ``cordgt audit --json``."""

    check: str  # its name
    compared: str  # what was changed or looked at
    result: str  # one of the constants above
    detail: str


def has_failures(checks: Sequence[Check]) -> bool:
    return any(check.result == FAIL for check in checks)
