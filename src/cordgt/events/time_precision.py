"""Count times that become equal to others because a number or a date keeps fewer digits than the file has."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError
from cordgt.events.arrays import is_text, to_numpy

MAX_EXACT_LENGTH = 15  # characters; shorter decimal numbers that differ also differ as float64
_LONG_FRACTION = r"\.\d{7,}"


def count_lost_times(column: Any, times: npt.NDArray[Any]) -> int:
    """Return how many distinct values of an Arrow column are equal to another one in the parsed ``times``."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _count_lost(column, times) if kind.unit == "ns" else 0
    if times.dtype.kind == "f":
        if is_text(kind):
            return _count_lost_decimals(column)
        return 0 if pa.types.is_floating(kind) else _count_lost(column, times)
    if is_text(kind) and pc.any(pc.match_substring_regex(column, _LONG_FRACTION)).as_py():
        digits = pc.struct_field(pc.extract_regex(column, r"\.\d{6}(?P<more>\d*[1-9])"), 0)
        pairs = set(zip(times.tolist(), to_numpy(digits).tolist(), strict=True))
        return len(pairs) - len(np.unique(times))
    return 0


def note_lost_times(column: Any, times: npt.NDArray[Any]) -> list[str]:
    """Return a note with the number of `count_lost_times`; none if it is 0."""
    return describe_lost_times(count_lost_times(column, times), is_number=times.dtype.kind == "f")


def describe_lost_times(n_lost: int, *, is_number: bool) -> list[str]:
    """Return a note on lost times; none if there are none."""
    if not n_lost:
        return []
    limit = "numbers keep about 16 digits" if is_number else "dates keep microseconds"
    return [
        f"{n_lost:,} different times became equal to another one, because {limit}: subtract a common start to keep them"
    ]


def check_integers_kept(column: Any, times: npt.NDArray[Any]) -> None:
    """Raise DataError if whole numbers beyond int64 became equal as float64."""
    n_lost = _count_lost(column, times) if not is_text(column.type) else _count_lost_decimals(column)
    if n_lost:
        raise DataError(
            f"some times are 2^63 or more, and {n_lost:,} different ones would become equal. Subtract a common start, "
            "or use a coarser unit."
        )


def _count_lost(column: Any, times: npt.NDArray[Any]) -> int:
    return int(pc.count_distinct(column).as_py()) - len(np.unique(times))


def _count_lost_decimals(column: Any) -> int:
    """Count for text: 1.50 and 1.5 are one value."""
    if (pc.max(pc.binary_length(column)).as_py() or 0) <= MAX_EXACT_LENGTH:
        return 0
    texts = pc.unique(pc.utf8_trim_whitespace(column))
    values = to_numpy(pc.cast(texts, pa.float64()))
    order = np.argsort(values, kind="stable")
    is_equal = np.diff(values[order]) == 0
    is_tied = np.append(is_equal, False) | np.insert(is_equal, 0, False)  # few: the rest needs no exact arithmetic
    groups: dict[float, set[Decimal]] = defaultdict(set)
    for k in order[is_tied].tolist():
        groups[values[k]].add(Decimal(texts[k].as_py()))
    return sum(len(group) - 1 for group in groups.values())
