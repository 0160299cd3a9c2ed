"""Find the time in a table without a header, from the values of its first rows.

Published edge lists put it in different places: ``src dst time``, ``src dst weight time``, ``time src dst``. The value
range decides (dates, seconds since 1970), then the order of the rows. If nothing decides, or if the only column left
looks like weights, the error asks for --time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from cordgt.errors import DataError
from cordgt.events.arrays import looks_like_number
from cordgt.events.times import describe_range, epoch_unit, guess_time_kind, is_calendar_number
from cordgt.io.tables import TextTable

SAMPLE_ROWS = 10_000
MIN_ROWS = 10  # with fewer rows, or fewer different values, their order says nothing
MIN_SHARE = 0.95  # of the values that must agree: published lists have single missing or odd times
MIN_WEIGHT_ROWS, MIN_TIME_VALUES = 20, 10  # in so many rows, fewer values without order are weights, not times
ID_OVERLAP, NO_OVERLAP = 0.5, 0.2  # share of common values of two columns of ids; of an id and a time
_LIKELY_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")


@dataclass(frozen=True)
class TimeColumn:
    """Positions of source, destination and time, and the reason, as the end of a sentence."""

    src: int
    dst: int
    time: int
    reason: str


@dataclass(frozen=True)
class _Facts:
    """What the first rows show about a column."""

    kind: Literal["number", "date", "text"]
    n_rows: int
    n_distinct: int
    is_sorted: bool  # not decreasing, and not constant
    has_order: bool  # not decreasing, or not increasing
    range_text: str  # the range of the values, for messages
    evidence: str  # why the values can hardly be anything but times; empty if they can
    values: frozenset[str] = field(repr=False)

    @property
    def varies(self) -> bool:
        return self.kind == "number" and (self.n_distinct > 1 or self.n_rows == 1)

    @property
    def looks_like_weights(self) -> bool:
        """Whether the values are numbers that repeat without order: weights, ratings or signs rather than times."""
        if self.kind != "number" or self.evidence or self.has_order or self.n_rows < MIN_WEIGHT_ROWS:
            return False
        return self.n_distinct < max(MIN_TIME_VALUES, self.n_rows / 2)

    def describe(self) -> str:
        if self.kind == "text":
            return "text"
        order = "sorted" if self.is_sorted else "not sorted"
        count = f"{self.n_distinct:,} different values" if self.n_distinct > 1 else "one value"
        return f"{count}, {self.range_text}, {order}"


def find_time_column(table: TextTable, src: int | None, dst: int | None, taken: Collection[int]) -> TimeColumn:
    """Return the columns of a table without a header whose time was not named.

    ``src``, ``dst``: given positions. ``taken``: all positions that have a role already. DataError, with what each
    column holds, if several columns could be the time.
    """
    facts = _collect_facts(table)
    free = [k for k in range(table.n_columns) if k not in taken]
    if src is not None and dst is not None:
        time, reason = _choose(table, facts, free)
        return TimeColumn(src, dst, time, reason)
    if _is_time_first(table, facts, free):
        time, reason = 0, facts[0].evidence or _first_column_reason(facts)
    else:
        time, reason = _choose(table, facts, [k for k in free if k >= 2] or free)
    return TimeColumn(*default_ends(src, dst, time), time, reason)


def default_ends(src: int | None, dst: int | None, time: int | None) -> tuple[int, int]:
    """Return source and destination: as given, else 0 and 1, or the first two without the time if none is given."""
    if src is None and dst is None:
        first, second = [k for k in range(3) if k != time][:2]
        return first, second
    return 0 if src is None else src, 1 if dst is None else dst


def _is_time_first(table: TextTable, facts: list[_Facts], free: list[int]) -> bool:
    """Whether the rows are ``time src dst …``, as SocioPatterns publishes them. DataError if that is not clear."""
    first, late = facts[0], [facts[k] for k in free if k >= 2]
    if not {0, 1, 2} <= set(free) or first.kind == "text":
        return False
    if not any(column.kind != "text" for column in late):
        return True  # nothing else can be the time
    if any(column.evidence for column in late):
        if first.evidence and first.is_sorted and not any(k.is_sorted for k in late if k.evidence):
            raise _ambiguous(table, facts, [0, *(k for k in free if k >= 2 and facts[k].evidence)])
        return False
    is_id = bool(facts[1].evidence)  # numbers in that range in both of the first columns are ids
    if first.evidence and not is_id and first.is_sorted and not any(k.is_sorted for k in late):
        return True
    if first.evidence and not is_id and not any(k.is_sorted for k in late):
        raise _ambiguous(table, facts, [0, *(k for k in free if k >= 2 and facts[k].kind != "text")])
    if first.n_rows < MIN_ROWS or any(k.is_sorted for k in late):
        return False
    # Either the first column is the time, or the rows are not in order of time. Columns of ids have common values.
    ends_first, ends_later = _overlap(facts[0], facts[1]), _overlap(facts[1], facts[2])
    is_likely = ends_later >= ID_OVERLAP and ends_first <= NO_OVERLAP
    is_unlikely = ends_first >= ID_OVERLAP and ends_later <= NO_OVERLAP
    if is_likely == first.is_sorted or (is_unlikely and first.is_sorted):
        return is_likely
    raise _ambiguous(table, facts, [0, *(k for k in free if k >= 2 and facts[k].varies)])


def _first_column_reason(facts: list[_Facts]) -> str:
    if facts[0].is_sorted:
        return f"its values are sorted ({facts[0].range_text}), and the next two columns hold ids"
    return "no later column holds numbers or dates"


def _choose(table: TextTable, facts: list[_Facts], columns: list[int]) -> tuple[int, str]:
    """Return the time among ``columns``, and the reason. DataError if that is not clear."""
    strong = [k for k in columns if facts[k].evidence]
    if len(strong) == 1:
        return strong[0], facts[strong[0]].evidence
    if strong:
        raise _ambiguous(table, facts, strong)
    if len(columns) == 1:
        k = columns[0]
        if facts[k].looks_like_weights:
            raise _ambiguous(table, facts, columns)
        return k, f"it is the only column left ({facts[k].describe()})"
    possible = [k for k in columns if facts[k].kind != "text"]
    if len(possible) == 1:
        k = possible[0]
        if facts[k].looks_like_weights:
            raise _ambiguous(table, facts, possible)
        return k, f"no other column after the ids holds numbers or dates ({facts[k].describe()})"
    if not possible:
        return columns[0], "it is the usual place"  # parsing it names the row
    ordered = [k for k in possible if facts[k].is_sorted]
    if len(ordered) == 1 and facts[ordered[0]].n_distinct >= MIN_ROWS:
        return ordered[0], f"it is the only column after the ids that is sorted ({facts[ordered[0]].range_text})"
    raise _ambiguous(table, facts, possible)


def _ambiguous(table: TextTable, facts: list[_Facts], columns: list[int]) -> DataError:
    described = "; ".join(f"column {k}: {facts[k].describe()}" for k in columns[:5])
    more = f"; and {len(columns) - 5} more" if len(columns) > 5 else ""
    doubt = ", which may be weights" if len(columns) == 1 else ""
    return DataError(
        f"{table.name} has {table.n_columns} columns and no header, and it is not clear which column is the time "
        f"({described}{more}{doubt}). Name its position, counted from 0, for example --time {columns[-1]}; also --src "
        "and --dst if they are not the first two other columns."
    )


# -------------------- facts


def _collect_facts(table: TextTable) -> list[_Facts]:
    rows = table.head_rows(SAMPLE_ROWS)
    return [_column_facts([row[k].strip() for row in rows], table.decimal_comma) for k in range(table.n_columns)]


def _column_facts(texts: list[str], decimal_comma: bool) -> _Facts:
    distinct = frozenset(texts)
    numbers = [n for n in (_number(text, decimal_comma) for text in texts) if n is not None]
    if not texts or len(numbers) < MIN_SHARE * len(texts):
        dates = [text for text in texts if _LIKELY_DATE.match(text)]
        if dates and len(dates) >= MIN_SHARE * len(texts) and guess_time_kind(dates[0]) == "date":
            sorted_dates = len(distinct) > 1 and all(a <= b for a, b in pairwise(texts))
            range_text = f"{min(dates)[:40]} to {max(dates)[:40]}"
            return _Facts(
                "date", len(texts), len(distinct), sorted_dates, sorted_dates, range_text, "it holds dates", distinct
            )
        return _Facts("text", len(texts), len(distinct), False, False, "", "", distinct)
    low, high = min(numbers), max(numbers)
    rises = all(a <= b for a, b in pairwise(numbers))
    falls = all(a >= b for a, b in pairwise(numbers))
    return _Facts(
        "number",
        len(texts),
        len(distinct),
        low < high and rises,
        rises or falls,
        f"{_short(low)} to {_short(high)}",
        _number_evidence(numbers),
        distinct,
    )


def _number_evidence(numbers: list[int | float]) -> str:
    """Return why numbers can hardly be anything but times: seconds since 1970 and the like; empty if they can."""
    typical = sorted(numbers)[len(numbers) // 2]
    unit = epoch_unit(typical, typical)
    inside = [n for n in numbers if unit and epoch_unit(n, n) == unit]
    if inside and len(inside) >= MIN_SHARE * len(numbers):
        return f"its values are {describe_range(min(inside), max(inside))}"
    if len(numbers) >= 3 and all(isinstance(n, int) and is_calendar_number(n) for n in numbers):
        return f"its values look like dates, {min(numbers)} to {max(numbers)}"
    return ""


def _number(text: str, decimal_comma: bool) -> int | float | None:
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text) if len(text) < 40 else float(text)
    text = text.replace(",", ".") if decimal_comma else text
    value = float(text) if looks_like_number(text) else math.nan
    return value if math.isfinite(value) else None


def _short(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.10g}"


def _overlap(a: _Facts, b: _Facts) -> float:
    """Return the share of common values in the smaller of two sets of values."""
    return len(a.values & b.values) / min(len(a.values), len(b.values))
