"""Recognize a batch of events that a store holds already, by a digest that depends on neither order nor file format.

A store records the digest of the events it was made from, and of each append. The digest is a sum of row hashes, so
the order of the rows does not matter; ids are hashed as text, and whole numbers as integers.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from cordgt.events.columns import are_whole
from cordgt.events.id_table import hash_names
from cordgt.history.rng import fold_in_u64
from cordgt.store.arrays import iter_slices
from cordgt.store.staging import StagedEvents

MAX_BATCHES = 1000  # of one store; older ones are forgotten
SLICE_ROWS = 1 << 16


Batch = dict[str, Any]  # events that were added together: name of their source, number of events, digest


def make_batch(stage: StagedEvents) -> Batch:
    """Describe staged events. Call it after `StagedEvents.collect`."""
    columns = {name: column for name, column in stage.arrays().items() if name not in ("src", "dst")}
    is_int = {name: _is_whole(column) for name, column in columns.items()}
    hashes = [_hash_as_text(names) for names in stage.names()]
    codes = stage.arrays()
    sums = np.zeros(2, np.uint64)
    for part in iter_slices(stage.n_rows, SLICE_ROWS):
        rows = [hashes[0][codes["src"][part]], hashes[-1][codes["dst"][part]]]
        rows += [_bits(columns[name][part], is_int[name]) for name in sorted(columns)]
        _add_rows(np.column_stack(rows), sums)
    kinds = [(name, "int" if is_int[name] else "float", columns[name].shape[1:]) for name in sorted(columns)]
    text = f"{stage.source.axis.kind} {stage.n_rows} {kinds} {sums[0]} {sums[1]}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return {"name": stage.source.name, "events": stage.n_rows, "digest": digest}


def find_batch(batches: tuple[Batch, ...], batch: Batch) -> Batch | None:
    """Return the recorded batch with the same events, or None."""
    return next((k for k in batches if k["digest"] == batch["digest"]), None)


def add_batch(batches: tuple[Batch, ...], batch: Batch) -> tuple[Batch, ...]:
    """Return the batches with one more; of too many, the oldest are dropped."""
    return (*batches, batch)[-MAX_BATCHES:]


def _is_whole(column: npt.NDArray[Any]) -> bool:
    if column.ndim > 1:
        return False
    return column.dtype.kind == "i" or all(are_whole(column[part]) for part in iter_slices(len(column)))


def _hash_as_text(names: Any) -> npt.NDArray[np.uint64]:
    """Return the hash of each id; 7 and "7" have the same."""
    parts = [hash_names(pc.cast(names[part], pa.string())) for part in iter_slices(len(names))]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _bits(values: npt.NDArray[Any], as_int: bool) -> npt.NDArray[np.uint64]:
    """Return numbers (n,) or (n, width) as 64-bit patterns; 0.0 and -0.0 have the same."""
    if as_int:
        return values.astype(np.int64).view(np.uint64)
    return np.ascontiguousarray(values.astype(np.float64) + 0.0).view(np.uint64)


@njit(cache=True)
def _add_rows(rows, sums):  # type: ignore[no-untyped-def]
    """Add two hashes of each row (n, k) to the sums, modulo 2^64."""
    for i in range(len(rows)):
        a, b = np.uint64(1), np.uint64(2)
        for k in range(rows.shape[1]):
            a, b = fold_in_u64(a, rows[i, k]), fold_in_u64(b, rows[i, k])
        sums[0] += a
        sums[1] += b
