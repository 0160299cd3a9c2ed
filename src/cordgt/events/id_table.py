"""Map distinct ids to numbers: `Vocabulary`, a hash table that grows, and `SortedIdLookup`, sorted hashes on disk.

Both are exact: ids with equal hashes are compared. Integers and text have different hashes, so a vocabulary holds one
kind. A vocabulary of integers that receives text converts its ids to text; their numbers do not change.
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
MAX_TEXT_BYTES = 2**31 - 1  # of all ids together: the limit of Arrow's text offsets
MAX_IDS = 2**31 - 1


class Vocabulary:
    """Distinct ids, numbered in order of first appearance. ``encode`` adds new ids.

    Memory per id: 8 bytes (or its text and 8 bytes), and 8 to 16 bytes in the hash table.
    """

    def __init__(self) -> None:
        self.n = 0
        self.is_text = False
        self._numbers = np.empty(1 << 10, np.int64)
        self._offsets = np.zeros((1 << 10) + 1, np.int64)
        self._bytes = np.empty(1 << 14, np.uint8)
        self._table = np.full(1 << 11, -1, np.int32)

    def __len__(self) -> int:
        return self.n

    def encode(self, column: Any) -> npt.NDArray[np.int32]:
        """Return the numbers of a column of ids (int64 or text, as `as_id_column` returns it), adding new ids."""
        if is_text(column.type) and not self.is_text:
            self._convert_to_text()
        column = pc.cast(column, pa.string() if self.is_text else pa.int64())
        parts = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        codes = [self._encode_chunk(part) for part in parts if len(part)]
        return np.concatenate(codes) if codes else np.empty(0, np.int32)

    def names(self, start: int = 0, stop: int | None = None) -> Any:
        """Return a copy of the ids numbered ``start`` to ``stop`` as an Arrow array."""
        stop = self.n if stop is None else stop
        if not self.is_text:
            return pa.array(self._numbers[start:stop])
        offsets = self._offsets[start : stop + 1]
        return text_array(offsets - offsets[0], self._bytes[offsets[0] : offsets[-1]])

    def _encode_chunk(self, part: Any) -> npt.NDArray[np.int32]:
        out = np.empty(len(part), np.int32)
        self._reserve(len(part))
        if not self.is_text:
            values = np.asarray(part)
            _find_numbers(values, self._numbers, self._table, out)
            self.n = _insert_numbers(values, self._numbers, self._table, self.n, out)
            return out
        offsets, data = text_buffers(part)
        _find_text(offsets, data, self._offsets, self._bytes, self._table, out)
        needed = int(self._offsets[self.n]) + _missing_bytes(offsets, out)
        if needed > MAX_TEXT_BYTES:
            raise DataError("The text of all distinct ids exceeds 2 GB. Shorten the ids, or use integers.")
        self._bytes = _grow(self._bytes, needed)
        self.n = _insert_text(offsets, data, self._offsets, self._bytes, self._table, self.n, out)
        return out

    def _reserve(self, n_new: int) -> None:
        """Allocate space for ``n_new`` more ids; the table stays at most half full."""
        capacity = self.n + n_new
        if capacity >= MAX_IDS:
            raise DataError("There are more than 2,147,483,646 distinct ids, the largest number supported.")
        if self.is_text:
            self._offsets = _grow(self._offsets, capacity + 1)
        else:
            self._numbers = _grow(self._numbers, capacity)
        if 2 * capacity > len(self._table):
            self._rehash(1 << (2 * capacity - 1).bit_length())

    def _rehash(self, size: int) -> None:
        self._table = np.full(size, -1, np.int32)
        if self.is_text:
            _insert_all(hash_text(self._offsets[: self.n + 1], self._bytes), self._table)
        else:
            _insert_all(hash_numbers(self._numbers[: self.n]), self._table)

    def _convert_to_text(self) -> None:
        offsets, data = text_buffers(pc.cast(pa.array(self._numbers[: self.n]), pa.string()))
        self.is_text = True
        self._offsets = _grow(offsets.astype(np.int64), len(self._offsets))
        self._bytes = _grow(data.copy(), len(self._bytes))
        self._numbers = np.empty(0, np.int64)
        self._rehash(len(self._table))


@dataclass(frozen=True, eq=False)
class SortedIdLookup:
    """Finds nodes by id: hashes of all ids, ascending, and the node of each. Both arrays may be memory-mapped."""

    hashes: Hashes  # (N,)
    nodes: npt.NDArray[Any]  # (N,)

    @classmethod
    def from_names(cls, names: Any) -> SortedIdLookup:
        """Build the lookup of an Arrow array of ids, int64 or text."""
        hashes = hash_names(names)
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], order.astype(np.int32 if len(order) < MAX_IDS else np.int64))

    def find(self, column: Any, names: Any, side: npt.NDArray[np.uint8] | None, wanted: int) -> Ints:
        """Return the nodes of ids of the same type as ``names``; -1 for null and unknown ids.

        If ``side`` is given, only nodes where it equals ``wanted`` count.
        """
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        filled = pc.fill_null(column, "" if is_text(column.type) else 0)
        hashes = hash_names(filled)
        slot = np.searchsorted(self.hashes, hashes)
        found = np.full(len(column), -1, np.int64)
        rows = np.flatnonzero(np.asarray(pc.is_valid(column)))  # not found yet
        while len(rows):  # more than once only for ids that share a hash, or have a node on each side
            rows = rows[slot[rows] < len(self.hashes)]
            rows = rows[self.hashes[slot[rows]] == hashes[rows]]
            node = np.asarray(self.nodes[slot[rows]], np.int64)
            exists = node < len(names)  # the lookup may know later ids
            candidates = names.take(pa.array(np.where(exists, node, 0)))
            is_match = exists & np.asarray(pc.equal(candidates, filled.take(pa.array(rows))))
            if side is not None:
                is_match &= side[np.where(exists, node, 0)] == wanted
            found[rows[is_match]] = node[is_match]
            rows = rows[~is_match]
            slot[rows] += 1
        return found


def hash_names(names: Any) -> Hashes:
    """Return (N,) uint64 hashes of an Arrow array of int64 or text without nulls."""
    if is_text(names.type):
        return hash_text(*text_buffers(names))
    return hash_numbers(np.asarray(names))


def text_buffers(column: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Return offsets (n+1,) and bytes of an Arrow array of text."""
    _, offsets, data = column.buffers()
    if offsets is None or len(column) == 0:
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    own_offsets = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return own_offsets, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def text_array(offsets: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> Any:
    """Build an Arrow array of text from offsets (n+1,), starting at 0, and bytes."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _grow(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Return the array, or if it is shorter than ``size`` a longer copy, by at least half."""
    if len(array) >= size:
        return array
    longer = np.empty(max(size, len(array) + len(array) // 2), array.dtype)
    longer[: len(array)] = array
    return longer


# -------------------- compiled


@njit(inline="always")
def _mix(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def _hash_bytes(data, start, stop):  # type: ignore[no-untyped-def]
    """FNV-1a, then mixed, because the table uses the lower bits."""
    z = np.uint64(0xCBF29CE484222325)
    for i in range(start, stop):
        z = (z ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return _mix(z)


@njit(inline="always")
def _same_bytes(a, a_start, b, b_start, length):  # type: ignore[no-untyped-def]
    for i in range(length):  # noqa: SIM110
        if a[a_start + i] != b[b_start + i]:
            return False
    return True


@njit(parallel=True, cache=True)
def hash_numbers(numbers):  # type: ignore[no-untyped-def]
    """Return (n,) uint64 hashes of int64."""
    out = np.empty(len(numbers), np.uint64)
    for i in prange(len(numbers)):
        out[i] = _mix(np.uint64(numbers[i]))
    return out


@njit(parallel=True, cache=True)
def hash_text(offsets, data):  # type: ignore[no-untyped-def]
    """Return (n,) uint64 hashes of the texts in ``data`` between offsets (n+1,)."""
    out = np.empty(len(offsets) - 1, np.uint64)
    for i in prange(len(offsets) - 1):
        out[i] = _hash_bytes(data, offsets[i], offsets[i + 1])
    return out


@njit(cache=True)
def _insert_all(hashes, table):  # type: ignore[no-untyped-def]
    """Insert distinct ids into an empty table whose size is a power of two."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(hashes)):
        slot = hashes[i] & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = i


@njit(inline="always")
def _slot_of_number(value, numbers, table):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    slot = _mix(np.uint64(value)) & mask
    while table[slot] >= 0 and numbers[table[slot]] != value:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(inline="always")
def _slot_of_text(data, start, stop, known_offsets, known, table):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) - 1)
    slot = _hash_bytes(data, start, stop) & mask
    while table[slot] >= 0:
        begin, end = known_offsets[table[slot]], known_offsets[table[slot] + 1]
        if end - begin == stop - start and _same_bytes(data, start, known, begin, stop - start):
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(parallel=True, cache=True)
def _find_numbers(values, numbers, table, out):  # type: ignore[no-untyped-def]
    for i in prange(len(values)):
        out[i] = table[_slot_of_number(values[i], numbers, table)]


@njit(cache=True)
def _insert_numbers(values, numbers, table, n, out):  # type: ignore[no-untyped-def]
    for i in range(len(values)):
        if out[i] < 0:
            slot = _slot_of_number(values[i], numbers, table)
            if table[slot] < 0:
                table[slot], numbers[n] = n, values[i]
                n += 1
            out[i] = table[slot]
    return n


@njit(parallel=True, cache=True)
def _find_text(offsets, data, known_offsets, known, table, out):  # type: ignore[no-untyped-def]
    for i in prange(len(offsets) - 1):
        out[i] = table[_slot_of_text(data, offsets[i], offsets[i + 1], known_offsets, known, table)]


@njit(cache=True)
def _missing_bytes(offsets, out):  # type: ignore[no-untyped-def]
    """Return the number of bytes of the ids not found; repeated ids count each time."""
    total = 0
    for i in range(len(out)):
        if out[i] < 0:
            total += offsets[i + 1] - offsets[i]
    return total


@njit(cache=True)
def _insert_text(offsets, data, known_offsets, known, table, n, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        if out[i] < 0:
            start, stop = offsets[i], offsets[i + 1]
            slot = _slot_of_text(data, start, stop, known_offsets, known, table)
            if table[slot] < 0:
                begin = known_offsets[n]
                for k in range(stop - start):
                    known[begin + k] = data[start + k]
                known_offsets[n + 1] = begin + stop - start
                table[slot] = n
                n += 1
            out[i] = table[slot]
    return n
