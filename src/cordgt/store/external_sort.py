"""External sort by time, in bounded memory: distribute rows into files by time range, then sort each file.

The sort is stable: events of equal time keep their input order. A sample of the times sets the ranges. A range that is
still too large is split again; a range with a single time needs no sort.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.store.arrays import ScratchArray, iter_slices

SAMPLE_SIZE = 1 << 16
MAX_RANGES = 64  # bounds the number of open files per column

Arrays = Mapping[str, npt.NDArray[Any]]


def external_sort(
    columns: Arrays,
    scratch: Path,
    chunk_rows: int,
    *,
    is_sorted: bool = False,
    callbacks: Callback = NO_CALLBACK,
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield chunks of about ``chunk_rows`` rows in stable order of the column ``t``; columns have equal length.

    Creates the folder ``scratch`` if there are more rows than that, and removes it at the end. Reports the number of
    rows distributed to ``callbacks.on_step``. ``is_sorted``: the input is sorted already.
    """
    t = columns["t"]
    if is_sorted or (t[0] == t[-1] and _all_equal(t)):
        for part in iter_slices(len(t), chunk_rows):
            yield {name: np.asarray(values[part]) for name, values in columns.items()}
    elif len(t) <= chunk_rows:
        order = np.argsort(t, kind="stable")
        yield {name: values[order] for name, values in columns.items()}
    else:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        ranges: list[dict[str, ScratchArray]] = []
        try:
            ranges = _distribute(columns, scratch, chunk_rows, callbacks)
            for number, files in enumerate(ranges):
                if files["t"].rows:
                    arrays = {name: column.array() for name, column in files.items()}
                    yield from external_sort(arrays, scratch / f"range-{number}", chunk_rows)
                for column in files.values():
                    column.close()
                    column.path.unlink()
        finally:
            for files in ranges:
                for column in files.values():
                    column.close()
            shutil.rmtree(scratch, ignore_errors=True)


def _all_equal(t: npt.NDArray[Any]) -> bool:
    return all(bool((t[part] == t[0]).all()) for part in iter_slices(len(t)))


def _distribute(columns: Arrays, scratch: Path, chunk_rows: int, callbacks: Callback) -> list[dict[str, ScratchArray]]:
    """Write the rows into one set of files per time range, ranges ascending; input order is kept within a range."""
    t = columns["t"]
    bounds = _range_bounds(t, min(2 * -(-len(t) // chunk_rows), MAX_RANGES))
    ranges = [
        {
            name: ScratchArray(scratch / f"{k}-{name}", values.dtype, values.shape[1] if values.ndim > 1 else 0)
            for name, values in columns.items()
        }
        for k in range(len(bounds) + 1)
    ]
    for part in iter_slices(len(t), max(min(chunk_rows, 1 << 20), 1)):
        range_of = np.searchsorted(bounds, t[part], side="right").astype(np.uint16)
        order = np.argsort(range_of, kind="stable")  # radix sort for 16 bits: linear time
        ends = np.searchsorted(range_of[order], np.arange(len(ranges) + 1))
        for name, values in columns.items():
            rows = np.asarray(values[part])[order]
            for k, files in enumerate(ranges):
                if ends[k] < ends[k + 1]:
                    files[name].append(rows[ends[k] : ends[k + 1]])
        callbacks.on_step(len(range_of))
    return ranges


def _range_bounds(t: npt.NDArray[Any], n_ranges: int) -> npt.NDArray[Any]:
    """First time of every range but the first: distinct, above the minimum, at least one; ranges of similar size."""
    sample = np.sort(np.asarray(t[:: max(len(t) // SAMPLE_SIZE, 1)]))
    bounds = np.unique(sample[np.linspace(0, len(sample) - 1, n_ranges + 1).astype(np.int64)[1:-1]])
    low = min(t[part].min() for part in iter_slices(len(t)))
    bounds = bounds[bounds > low]
    if len(bounds):
        return bounds
    later = (t[part][t[part] > low] for part in iter_slices(len(t)))
    return np.array([min(times.min() for times in later if len(times))])
