"""Events in order of time, within bounded memory: rows are dealt into files by ranges of time, each sorted for itself.

Stable: events of equal time keep the order they were given in. Ranges come from a sample of the times; one that turns
out too large is dealt again, and one that holds a single time is in order already.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cordgt.store.growing import Column, pieces

SAMPLE = 1 << 16
MOST_RANGES = 64  # so many files a column are open at once

Arrays = Mapping[str, npt.NDArray[Any]]


def in_order(
    columns: Arrays,
    scratch: Path,
    at_once: int,
    *,
    already: bool = False,
    told: Callable[[int], None] = lambda _: None,
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Pieces of columns (``t`` among them, all of equal length) in stable order of ``t``, about ``at_once`` rows each.

    ``scratch`` is a folder that is made, used where there are more rows than that, and removed. ``told`` is called with
    numbers of rows as they are dealt into it. ``already``: the rows are in order.
    """
    t = columns["t"]
    if already or (t[0] == t[-1] and _all_equal(t)):
        for part in pieces(len(t), at_once):
            yield {name: np.asarray(values[part]) for name, values in columns.items()}
    elif len(t) <= at_once:
        order = np.argsort(t, kind="stable")
        yield {name: values[order] for name, values in columns.items()}
    else:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        ranges: list[dict[str, Column]] = []
        try:
            ranges = _dealt(columns, scratch, at_once, told)
            for number, dealt in enumerate(ranges):
                if dealt["t"].rows:
                    arrays = {name: column.array() for name, column in dealt.items()}
                    yield from in_order(arrays, scratch / f"range-{number}", at_once)
                for column in dealt.values():
                    column.close()
                    column.path.unlink()
        finally:
            for column in (column for dealt in ranges for column in dealt.values()):
                column.close()
            shutil.rmtree(scratch, ignore_errors=True)


def _all_equal(t: npt.NDArray[Any]) -> bool:
    return all(bool((t[part] == t[0]).all()) for part in pieces(len(t)))


def _dealt(columns: Arrays, scratch: Path, at_once: int, told: Callable[[int], None]) -> list[dict[str, Column]]:
    """The rows in files, one set a range of time, ranges ascending; within a range in the order given."""
    t = columns["t"]
    bounds = _bounds(t, min(2 * -(-len(t) // at_once), MOST_RANGES))
    ranges = [
        {
            name: Column(scratch / f"{k}-{name}", values.dtype, values.shape[1] if values.ndim > 1 else 0)
            for name, values in columns.items()
        }
        for k in range(len(bounds) + 1)
    ]
    for part in pieces(len(t), max(min(at_once, 1 << 20), 1)):
        which = np.searchsorted(bounds, t[part], side="right").astype(np.uint16)
        order = np.argsort(which, kind="stable")  # of 16 bits: in linear time
        ends = np.searchsorted(which[order], np.arange(len(ranges) + 1))
        for name, values in columns.items():
            dealt = np.asarray(values[part])[order]
            for k, columns_of in enumerate(ranges):
                if ends[k] < ends[k + 1]:
                    columns_of[name].append(dealt[ends[k] : ends[k + 1]])
        told(len(which))
    return ranges


def _bounds(t: npt.NDArray[Any], n_ranges: int) -> npt.NDArray[Any]:
    """Where ranges of about equally many rows begin: distinct times, all later than the earliest, at least one."""
    step = max(len(t) // SAMPLE, 1)
    sample = np.sort(np.asarray(t[::step]))
    found = np.unique(sample[np.linspace(0, len(sample) - 1, n_ranges + 1).astype(np.int64)[1:-1]])
    low = min(t[part].min() for part in pieces(len(t)))
    found = found[found > low]
    if len(found):
        return found
    later = (t[part][t[part] > low] for part in pieces(len(t)))
    return np.array([min(some.min() for some in later if len(some))])
