"""Arguments of the methods of `Run`: pairs with times, and columns of a source of events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.inference.id_lists import as_list, check_ids
from cordgt.io.column_options import has_columns
from cordgt.store.store import is_store


def check_top(top: Any) -> int:
    """Return the number of answers. SettingError if it is not a whole number of at least 1."""
    if isinstance(top, bool) or not isinstance(top, int | np.integer) or top < 1:
        raise SettingError(f"top={top!r}: give a whole number of at least 1.")
    return int(top)


def make_pairs(src: Any, dst: Any, at: Any, stream: EventStream) -> tuple[list[Any], list[Any], np.ndarray | None]:
    """Return sources, destinations and times of equal length, or no times. SettingError if that is not possible."""
    src, dst = (check_ids(as_list(x)) for x in (src, dst))
    n = max(len(src), len(dst))
    src, dst = (x * n if len(x) == 1 else x for x in (src, dst))
    if len(src) != len(dst):
        raise SettingError(
            f"{len(src)} sources and {len(dst)} destinations: give the same number of each, or one of either."
        )
    if at is None:
        return src, dst, None
    times = [stream.parse_time(x) for x in as_list(at)]
    if len(times) not in (1, n):
        raise SettingError(f"{len(times)} times for {n} pairs: give one, or one per pair.")
    return src, dst, np.array(times * n if len(times) == 1 else times)


def choose_columns(
    source: Any, trained: Mapping[str, str], given: Mapping[str, Any], *, labels_needed: bool
) -> dict[str, Any]:
    """Return the column options to read a source with: those ``given``, and those of the training; see `Run`."""
    merged = {**trained, **given}
    if is_store(source):  # its columns are fixed
        return dict(given)
    if not trained or has_columns(source, merged):
        return merged
    if not has_columns(source, {k: v for k, v in merged.items() if k in ("src", "dst", "time")}):
        return dict(given)
    return {k: v for k, v in merged.items() if k != "label" or labels_needed or k in given}
