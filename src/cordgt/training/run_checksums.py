"""The checksums in ``metrics.json``: they bind the configuration, the weights, the history and the metrics of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cordgt.errors import RunError
from cordgt.files import open_regular_file

FIRST_BOUND_FORMAT = 3  # of the run folder; older formats have a checksum in each tensor file and no others
CHUNK = 2**20  # bytes


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a regular file."""
    digest = hashlib.sha256()
    with open_regular_file(path, error=RunError) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def metrics_checksum(content: Mapping[str, Any], checksums: Mapping[str, str]) -> str:
    """Return a hash of ``metrics.json`` without its own checksum."""
    others = {name: value for name, value in checksums.items() if name != "metrics.json"}
    return hashlib.sha256(json.dumps([content, others], sort_keys=True).encode()).hexdigest()


def take_checksums(content: dict[str, Any], run_format: int) -> dict[str, str]:
    """Remove the checksums from the content of ``metrics.json``, verify its own, and return them.

    ``run_format`` is the format of the run folder. Old formats may have none. ValueError if one is missing or wrong.
    """
    if "checksums" not in content and run_format < FIRST_BOUND_FORMAT:
        return {}
    checksums = content.pop("checksums", None)
    expected = {"config.toml", "metrics.json", "model.safetensors"}
    expected |= {"refit.safetensors"} if "refit" in content else set()
    if not isinstance(checksums, dict) or not expected <= checksums.keys():
        raise ValueError("a checksum is missing")
    if not all(isinstance(value, str) for value in checksums.values()):
        raise ValueError("its checksums are not text")
    if checksums["metrics.json"] != metrics_checksum(content, checksums):
        raise ValueError("its checksum is wrong. It was changed after the training")
    return checksums
