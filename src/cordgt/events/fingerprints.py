"""Hashes that tell whether a run meets the same data again, taken piece by piece."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

AT_ONCE = 1 << 20  # rows


def fingerprint_of(arrays: Iterable[npt.NDArray[Any]]) -> str:
    """16 hexadecimal digits of the bytes of arrays, one after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        for start in range(0, len(array), AT_ONCE):
            digest.update(np.ascontiguousarray(array[start : start + AT_ONCE]).data)
    return digest.hexdigest()[:16]


def ids_fingerprint_of(names: Any, time: str) -> str:
    """16 hexadecimal digits of ids (an Arrow array), their type, and what the times are."""
    digest = hashlib.sha256(f"{names.type} {time}\n".encode())
    for start in range(0, len(names), AT_ONCE):
        text = pc.cast(names.slice(start, AT_ONCE), pa.string())
        together = pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text)
        digest.update(b"\n" if start else b"")
        digest.update(pc.binary_join(together, "\n")[0].as_buffer())
    return digest.hexdigest()[:16]
