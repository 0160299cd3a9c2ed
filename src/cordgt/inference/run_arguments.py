"""Arguments of the methods of `Run`: pairs with times, and columns of a source of events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from cordgt.errors import SettingError, did_you_mean
from cordgt.events.stream import EventStream
from cordgt.inference.id_lists import as_list, check_ids
from cordgt.io.column_options import has_columns
from cordgt.store.store import is_store


def check_top(top: Any) -> int:
    """Return the number of answers. SettingError if it is not a whole number of at least 1."""
    return _check_count("top", top)


def check_recommend_options(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the options of `Run.recommend`. SettingError if one is unknown or has a wrong value."""
    for name in options:
        if name not in known:
            raise SettingError(f"recommend has no option '{name}'.{did_you_mean(name, known)}")
    checked = dict(options)
    for name in ("candidates", "exclude"):
        if options.get(name) is not None:
            checked[name] = check_ids(as_list(options[name]))
    if options.get("budget") is not None:
        checked["budget"] = _check_count("budget", options["budget"])
    return checked


def _check_count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise SettingError(f"{name}={value!r}: give a whole number of at least 1.")
    return int(value)


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
