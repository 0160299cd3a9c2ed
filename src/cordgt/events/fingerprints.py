"""Hashes that identify the data of a run, computed in chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

CHUNK_ROWS = 1 << 20


def fingerprint_arrays(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Return 16 hexadecimal digits: a hash of the bytes of all arrays in order."""
    digest = hashlib.sha256()
    for array in arrays:
        for start in range(0, len(array), CHUNK_ROWS):
            digest.update(np.ascontiguousarray(array[start : start + CHUNK_ROWS]).data)
    return digest.hexdigest()[:16]


def fingerprint_ids(names: Any, time: str) -> str:
    """Return 16 hexadecimal digits: a hash of the ids (an Arrow array), their type, and the kind of times."""
    digest = hashlib.sha256(f"{names.type} {time}\n".encode())
    for start in range(0, len(names), CHUNK_ROWS):
        text = pc.cast(names.slice(start, CHUNK_ROWS), pa.string())
        joined = pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text)
        digest.update(b"\n" if start else b"")
        digest.update(pc.binary_join(joined, "\n")[0].as_buffer())
    return digest.hexdigest()[:16]
