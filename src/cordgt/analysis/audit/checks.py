"""What an audit finds: checks, a line of a table each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, FAIL, DESIGN, NOTE, WARNING = "ok", "FAIL", "by design", "note", "warning"


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    check: str
    compared: str
    result: str
    detail: str


def failed(checks: Sequence[Check]) -> bool:
    return any(check.result == FAIL for check in checks)
