"""Distinct ids and their numbers: a hash table for ids that come in chunks, and a sorted one that lies on disk.

Both are exact: a hash only says where to look, and the id found there is compared. Integers and text hash each in their
own way, so a vocabulary holds one kind; what began with integers and then meets text becomes text, numbers unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit, prange

from cordgt.errors import DataError
from cordgt.events.arrays import Ints, is_text

Hashes = npt.NDArray[np.uint64]
LONGEST_TEXT = 2**31 - 1  # bytes of all ids together: what the offsets of Arrow's text can reach
MOST_IDS = 2**31 - 1


class Vocabulary:
    """Ids in the order in which they were first given; ``code`` gives the numbers of a column and takes in new ids.

    Memory: per id 8 bytes or its text and 8, and 8 to 16 of the table; nothing per event.
    """

    def __init__(self) -> None:
        self.n = 0
        self.text = False
        self._numbers = np.empty(1 << 10, np.int64)
        self._offsets = np.zeros((1 << 10) + 1, np.int64)
        self._bytes = np.empty(1 << 14, np.uint8)
        self._table = np.full(1 << 11, -1, np.int32)

    def __len__(self) -> int:
        return self.n

    def code(self, column: Any) -> npt.NDArray[np.int32]:
        """The numbers of a column of ids (int64 or text, as ``id_column`` gives it), new ones numbered from n on."""
        if is_text(column.type) and not self.text:
            self._become_text()
        column = pc.cast(column, pa.string() if self.text else pa.int64())
        parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        found = [self._code_part(part) for part in parts if len(part)]
        return np.concatenate(found) if found else np.empty(0, np.int32)

    def names(self, start: int = 0, stop: int | None = None) -> Any:
        """The ids numbered ``start`` to ``stop`` as an Arrow array, a copy."""
        stop = self.n if stop is None else stop
        if not self.text:
            return pa.array(self._numbers[start:stop])
        offsets = self._offsets[start : stop + 1]
        return text_array(offsets - offsets[0], self._bytes[offsets[0] : offsets[-1]])

    def _code_part(self, part: Any) -> npt.NDArray[np.int32]:
        out = np.empty(len(part), np.int32)
        self._make_room(len(part))
        if not self.text:
            given = np.asarray(part)
            _find_numbers(given, self._numbers, self._table, out)
            self.n = _insert_numbers(given, self._numbers, self._table, self.n, out)
            return out
        offsets, data = text_buffers(part)
        _find_text(offsets, data, self._offsets, self._bytes, self._table, out)
        needed = int(self._offsets[self.n]) + _missing_bytes(offsets, out)
        if needed > LONGEST_TEXT:
            raise DataError("The distinct ids have more than 2 GB of text together; shorten them, or number them.")
        self._bytes = _at_least(self._bytes, needed)
        self.n = _insert_text(offsets, data, self._offsets, self._bytes, self._table, self.n, out)
        return out

    def _make_room(self, more: int) -> None:
        """Room for so many new ids, with the table at most half full."""
        wanted = self.n + more
        if wanted >= MOST_IDS:
            raise DataError("There are more than 2,147,483,646 distinct ids; so many cannot be numbered.")
        if self.text:
            self._offsets = _at_least(self._offsets, wanted + 1)
        else:
            self._numbers = _at_least(self._numbers, wanted)
        if 2 * wanted > len(self._table):
            self._fill_table(1 << (2 * wanted - 1).bit_length())

    def _fill_table(self, size: int) -> None:
        self._table = np.full(size, -1, np.int32)
        if self.text:
            _place_all(hash_text(self._offsets[: self.n + 1], self._bytes), self._table)
        else:
            _place_all(hash_numbers(self._numbers[: self.n]), self._table)

    def _become_text(self) -> None:
        offsets, data = text_buffers(pc.cast(pa.array(self._numbers[: self.n]), pa.string()))
        self.text = True
        self._offsets = _at_least(offsets.astype(np.int64), len(self._offsets))
        self._bytes = _at_least(data.copy(), len(self._bytes))
        self._numbers = np.empty(0, np.int64)
        self._fill_table(len(self._table))


@dataclass(frozen=True, eq=False)
class SortedNames:
    """Where the ids of a store are found: their hashes, ascending, and the node of each. Both may lie on disk."""

    hashes: Hashes  # (N,)
    nodes: npt.NDArray[Any]  # (N,)

    @classmethod
    def of(cls, names: Any) -> SortedNames:
        """For an Arrow array of ids, int64 or text."""
        hashes = hash_names(names)
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], order.astype(np.int32 if len(order) < MOST_IDS else np.int64))

    def find(self, column: Any, names: Any, side: npt.NDArray[np.uint8] | None, wanted: int) -> Ints:
        """The nodes of ids of the same type as ``names`` (null allowed), -1 where there is none.

        ``side`` and ``wanted``: of several nodes with one id, the one of that side.
        """
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        filled = pc.fill_null(column, "" if is_text(column.type) else 0)
        hashes = hash_names(filled)
        place = np.searchsorted(self.hashes, hashes)
        found = np.full(len(column), -1, np.int64)
        open_ = np.flatnonzero(np.asarray(pc.is_valid(column)))
        while len(open_):  # usually once: again only for ids that share a hash, or have a node on each side
            at = place[open_]
            open_, at = open_[at < len(self.hashes)], at[at < len(self.hashes)]
            alike = self.hashes[at] == hashes[open_]
            open_, at = open_[alike], at[alike]
            node = np.asarray(self.nodes[at], np.int64)
            there = node < len(names)  # the lookup may know later ids
            known = names.take(pa.array(np.where(there, node, 0)))
            same = there & np.asarray(pc.equal(known, filled.take(pa.array(open_))))
            if side is not None:
                same &= side[np.where(there, node, 0)] == wanted
            found[open_[same]] = node[same]
            open_ = open_[~same]
            place[open_] += 1
        return found


def hash_names(names: Any) -> Hashes:
    """(N,) uint64 hashes of an Arrow array of int64 or text without nulls."""
    if is_text(names.type):
        return hash_text(*text_buffers(names))
    return hash_numbers(np.asarray(names))


def text_buffers(column: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Offsets (n+1,) and bytes of an Arrow array of text."""
    _, offsets, data = column.buffers()
    if offsets is None or len(column) == 0:
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    where = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return where, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def text_array(offsets: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> Any:
    """The Arrow array of text with these offsets (n+1,), from 0 on, and bytes."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _at_least(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The array, or a copy that is at least so long and half as long again."""
    if len(array) >= size:
        return array
    longer = np.empty(max(size, len(array) + len(array) // 2), array.dtype)
    longer[: len(array)] = array
    return longer


# -------------------- compiled


@njit(inline="always")
def _mixed(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def _hash_bytes(data, start, stop):  # type: ignore[no-untyped-def]
    """FNV-1a, then mixed: the table uses the lower bits."""
    z = np.uint64(0xCBF29CE484222325)
    for i in range(start, stop):
        z = (z ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return _mixed(z)


@njit(inline="always")
def _same_bytes(a, a_start, b, b_start, length):  # type: ignore[no-untyped-def]
    for i in range(length):  # noqa: SIM110
        if a[a_start + i] != b[b_start + i]:
            return False
    return True


@njit(parallel=True, cache=True)
def hash_numbers(numbers):  # type: ignore[no-untyped-def]
    """(n,) uint64 hashes of int64."""
    out = np.empty(len(numbers), np.uint64)
    for i in prange(len(numbers)):
        out[i] = _mixed(np.uint64(numbers[i]))
    return out


@njit(parallel=True, cache=True)
def hash_text(offsets, data):  # type: ignore[no-untyped-def]
    """(n,) uint64 hashes of the pieces of ``data`` between offsets (n+1,)."""
    out = np.empty(len(offsets) - 1, np.uint64)
    for i in prange(len(offsets) - 1):
        out[i] = _hash_bytes(data, offsets[i], offsets[i + 1])
    return out


@njit(cache=True)
def _place_all(hashes, table):  # type: ignore[no-untyped-def]
    """Enter distinct ids into an empty table whose size is a power of two."""
    last = np.uint64(len(table) - 1)
    for i in range(len(hashes)):
        at = hashes[i] & last
        while table[at] >= 0:
            at = (at + np.uint64(1)) & last
        table[at] = i


@njit(inline="always")
def _slot_of_number(value, numbers, table):  # type: ignore[no-untyped-def]
    last = np.uint64(len(table) - 1)
    at = _mixed(np.uint64(value)) & last
    while table[at] >= 0 and numbers[table[at]] != value:
        at = (at + np.uint64(1)) & last
    return at


@njit(inline="always")
def _slot_of_text(data, start, stop, known_at, known, table):  # type: ignore[no-untyped-def]
    last = np.uint64(len(table) - 1)
    at = _hash_bytes(data, start, stop) & last
    while table[at] >= 0:
        begin, end = known_at[table[at]], known_at[table[at] + 1]
        if end - begin == stop - start and _same_bytes(data, start, known, begin, stop - start):
            break
        at = (at + np.uint64(1)) & last
    return at


@njit(parallel=True, cache=True)
def _find_numbers(given, numbers, table, out):  # type: ignore[no-untyped-def]
    for i in prange(len(given)):
        out[i] = table[_slot_of_number(given[i], numbers, table)]


@njit(cache=True)
def _insert_numbers(given, numbers, table, n, out):  # type: ignore[no-untyped-def]
    for i in range(len(given)):
        if out[i] < 0:
            at = _slot_of_number(given[i], numbers, table)
            if table[at] < 0:
                table[at], numbers[n] = n, given[i]
                n += 1
            out[i] = table[at]
    return n


@njit(parallel=True, cache=True)
def _find_text(offsets, data, known_at, known, table, out):  # type: ignore[no-untyped-def]
    for i in prange(len(offsets) - 1):
        out[i] = table[_slot_of_text(data, offsets[i], offsets[i + 1], known_at, known, table)]


@njit(cache=True)
def _missing_bytes(offsets, out):  # type: ignore[no-untyped-def]
    """How many bytes the ids that were not found have, repeated ones counted as often as they come."""
    total = 0
    for i in range(len(out)):
        if out[i] < 0:
            total += offsets[i + 1] - offsets[i]
    return total


@njit(cache=True)
def _insert_text(offsets, data, known_at, known, table, n, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        if out[i] < 0:
            start, stop = offsets[i], offsets[i + 1]
            at = _slot_of_text(data, start, stop, known_at, known, table)
            if table[at] < 0:
                begin = known_at[n]
                for k in range(stop - start):
                    known[begin + k] = data[start + k]
                known_at[n + 1] = begin + stop - start
                table[at] = n
                n += 1
            out[i] = table[at]
    return n
