"""``history.jsonl``: one line per epoch, and a line every few seconds within an epoch."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cordgt.errors import RunError
from cordgt.files import SAFE_OPEN_FLAGS, read_regular_file
from cordgt.training.run_checks import check_history_record, parse_json

MAX_BYTES = 2**30


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append a line. OSError if it cannot be written; RunError if the file is no regular file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | SAFE_OPEN_FLAGS
    with os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8", newline="\n") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RunError(f"{path} is not a regular file. Delete it: --resume writes a new one.")
        file.write(json.dumps(record) + "\n")


def read_records(path: Path, checksum: str | None) -> list[dict[str, Any]]:
    """Return the lines; none if there is no such file.

    A line that is not a JSON object is left out: the process was killed while writing it. ``checksum`` is that in
    ``metrics.json``. RunError if the file was changed, or if a value has the wrong type.
    """
    if not os.path.lexists(path):
        return []
    content = read_regular_file(path, max_bytes=MAX_BYTES, error=RunError)
    advice = "Restore or delete it: only the training curves need it."
    if checksum not in (None, hashlib.sha256(content).hexdigest()):
        raise RunError(f"{path} was changed after the training, or is of another run. {advice}")
    records = []
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            try:
                check_history_record(record)
            except ValueError as error:
                raise RunError(f"{path} is damaged in line {number}: {error}. {advice}") from None
            records.append(record)
    return records
