"""Node ids: `NodeIds` maps the user's node ids to node indices (0, 1, … by first appearance) and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import Ints, as_column, first_true, is_text

Side = Literal["src", "dst"]


def as_id_column(values: Any) -> Any:
    """Return node ids as an int64 or string Arrow column.

    Integers and whole-valued floats become int64 (integers beyond int64 strings), text is kept as written.
    RowError at the first missing id or fractional number; DataError for a column of another type.
    """
    column = as_column(values)
    kind = column.type
    if column.null_count:
        raise RowError(first_true(pc.is_null(column)), "the id is missing")
    if is_text(kind):
        empty = first_true(pc.equal(column, ""))
        if empty >= 0:
            raise RowError(empty, "the id is missing")
        return pc.cast(column, pa.string())
    if pa.types.is_integer(kind):
        try:
            return pc.cast(column, pa.int64())
        except pa.ArrowInvalid:
            return pc.cast(column, pa.string())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        whole = _whole_or_null(column)
        if whole.null_count:
            row = first_true(pc.is_null(whole))
            raise RowError(row, f"the id {column[row].as_py()} is not a whole number; ids are integers or strings")
        return whole
    if len(column) == 0:
        return pa.array([], pa.int64())
    raise DataError(f"A column of type {kind} cannot hold node ids; integers or strings can.")


def _whole_or_null(column: Any) -> Any:
    """Convert floats and decimals to int64; null if they are not whole or do not fit."""
    if pa.types.is_decimal(column.type):  # exact where a float would round
        try:
            return pc.cast(column, pa.int64())
        except pa.ArrowInvalid:
            exact = [int(v) if v is not None and v == int(v) else None for v in column.to_pylist()]
            return pa.array([v if v is not None and -(2**63) <= v < 2**63 else None for v in exact], pa.int64())
    column = pc.cast(column, pa.float64())
    whole = pc.and_(pc.equal(column, pc.floor(column)), pc.less(pc.abs(column), 2.0**63))
    return pc.cast(pc.if_else(whole, column, None), pa.int64())


class IdLookup(Protocol):
    """Finds the nodes of ids, as `cordgt.events.id_table.SortedIdLookup` does. It may also know later nodes."""

    def find(self, column: Any, names: Any, side: npt.NDArray[np.uint8] | None, wanted: int) -> Ints:
        """Return the internal ids (n,) of an Arrow column of the same type as ``names``; -1 for null and unknown ids.

        ``side``: (N,) id space of each node, None if there is one space. ``wanted``: 0 or 1, the space to search.
        """


@dataclass(frozen=True, eq=False)
class NodeIds:
    """The user's id of every node, in internal order.

    Attributes:
        names: (N,) Arrow array, int64 or string.
        side: (N,) uint8 id space of each node, 0 for sources and 1 for destinations; None: one shared space.
        lookup: precomputed lookup table; None builds a table in each call of ``encode``.
    """

    names: Any
    side: npt.NDArray[np.uint8] | None = None
    lookup: IdLookup | None = None

    @classmethod
    def empty(cls, *, shared: bool) -> NodeIds:
        """Return ids without nodes, with one shared id space or two."""
        return cls(pa.array([], pa.int64()), None if shared else np.zeros(0, np.uint8))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shared(self) -> bool:
        """Whether sources and destinations share one id space."""
        return self.side is None

    def encode(self, values: Any, side: Side = "src") -> Ints:
        """Return the internal ids of the user's ids; -1 for unknown ids and for values of another type.

        A number and its text are the same id (7 and "7"), but "007" is not 7. A single id is a list of one.
        """
        if isinstance(values, str | int | float):
            values = [values]
        column = as_column(values)
        if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
            column = _whole_or_null(column)
        if not (pa.types.is_integer(column.type) or is_text(column.type)):
            return np.full(len(column), -1, np.int64)
        return self._encode_column(column, side)

    def decode(self, internal: npt.ArrayLike) -> Any:
        """Return the user's ids, as written: (…,) Arrow array; null for internal ids outside 0..N-1."""
        index = np.asarray(internal, np.int64)
        is_outside = (index < 0) | (index >= len(self))
        return self.names.take(pa.array(index, mask=is_outside))

    def slice(self, start: int, stop: int | None = None) -> NodeIds:
        """Return the ids of the nodes from ``start`` to ``stop``."""
        nodes = slice(start, len(self) if stop is None else stop)
        lookup = self.lookup if start == 0 else None  # it returns internal ids from 0 on
        return NodeIds(self.names[nodes], None if self.side is None else self.side[nodes], lookup)

    def match(self, other: NodeIds) -> Ints:
        """Return the internal ids here of another's nodes, by the user's ids; -1 for unknown nodes."""
        as_src, as_dst = self.encode(other.names, "src"), self.encode(other.names, "dst")
        return np.where(as_src < 0 if other.side is None else other.side == 1, as_dst, as_src)

    def extend(self, src: Any, dst: Any) -> tuple[NodeIds, Ints, Ints]:
        """Add the nodes of new events. Returns the extended ids and both columns as internal ids.

        New nodes are numbered from N on by first appearance, src before dst within an event; known nodes keep their
        numbers. If any ids are text, all become text. Errors as in `as_id_column`.
        """
        known, src, dst = self._unify_types(as_id_column(src), as_id_column(dst))
        src_id, dst_id = known._encode_column(src, "src"), known._encode_column(dst, "dst")
        is_new_src, is_new_dst = src_id < 0, dst_id < 0
        new_src, new_dst = src.filter(pa.array(is_new_src)), dst.filter(pa.array(is_new_dst))
        vocabulary, side, src_code, dst_code = _build_vocabulary(new_src, new_dst, self.shared)
        src_position, dst_position = 2 * np.flatnonzero(is_new_src), 2 * np.flatnonzero(is_new_dst) + 1
        rank, order = _rank_by_appearance(src_code, src_position, dst_code, dst_position)
        src_id[is_new_src] = len(self) + rank[src_code]
        dst_id[is_new_dst] = len(self) + rank[dst_code]
        names = pa.concat_arrays([known.names, vocabulary.take(pa.array(order))])
        sides = None if self.side is None else np.concatenate([self.side, side[order]])
        return NodeIds(names, sides), src_id, dst_id

    def _unify_types(self, src: Any, dst: Any) -> tuple[NodeIds, Any, Any]:
        """Return the ids and both columns as int64, or all as strings if one of them, not empty, is text."""
        text = [is_text(k.type) for k in (self.names, src, dst) if len(k)]
        kind = pa.string() if any(text) else pa.int64()
        return NodeIds(pc.cast(self.names, kind), self.side), pc.cast(src, kind), pc.cast(dst, kind)

    def _encode_column(self, column: Any, side: Side) -> Ints:
        """Return the internal ids of an integer or text column; -1 for null and unknown ids."""
        if self.lookup is not None and len(self):
            column = pc.cast(column, pa.string()) if is_text(self.names.type) else _canonical_int_or_null(column)
            node = self.lookup.find(column, self.names, self.side, int(side == "dst"))
            return np.where(node < len(self), node, -1)
        names, nodes = self._id_space(side)
        if len(names) == 0:
            return np.full(len(column), -1, np.int64)
        if is_text(column.type) or is_text(names.type):
            column, names = pc.cast(column, pa.string()), pc.cast(names, pa.string())
        else:
            column = _int64_or_null(column)
        index = pc.fill_null(pc.index_in(column, value_set=names), -1)
        found = np.asarray(index).astype(np.int64)
        return found if nodes is None else np.where(found < 0, -1, nodes[found])

    def _id_space(self, side: Side) -> tuple[Any, Ints | None]:
        """Return the names of one id space and their internal ids (None: all nodes, in order)."""
        if self.side is None:
            return self.names, None
        nodes = np.flatnonzero(self.side == (side == "dst"))
        return self.names.take(pa.array(nodes)), nodes


def _canonical_int_or_null(column: Any) -> Any:
    """Convert integers, and text that is an integer in canonical form ("7", not "007"), to int64; null otherwise."""
    if not is_text(column.type):
        return _int64_or_null(column)
    is_canonical = pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]{0,18})$")
    values = [None if v is None else int(v) for v in pc.if_else(is_canonical, column, None).to_pylist()]
    return pa.array([v if v is not None and -(2**63) <= v < 2**63 else None for v in values], pa.int64())


def _int64_or_null(column: Any) -> Any:
    """Convert integers to int64; null if they do not fit."""
    try:
        return pc.cast(column, pa.int64())
    except pa.ArrowInvalid:
        fits = pc.less_equal(column, pa.scalar(2**63 - 1, column.type))
        return pc.cast(pc.if_else(fits, column, None), pa.int64())


def _build_vocabulary(src: Any, dst: Any, shared: bool) -> tuple[Any, npt.NDArray[np.uint8], Ints, Ints]:
    """Return the distinct ids (per side unless ``shared``), their sides, and both columns as codes."""
    if shared:
        names, codes = _dictionary_encode(pa.chunked_array([*_chunks(src), *_chunks(dst)], type=src.type))
        return names, np.zeros(len(names), np.uint8), codes[: len(src)], codes[len(src) :]
    src_names, src_code = _dictionary_encode(src)
    dst_names, dst_code = _dictionary_encode(dst)
    side = np.repeat(np.array([0, 1], np.uint8), [len(src_names), len(dst_names)])
    return pa.concat_arrays([src_names, dst_names]), side, src_code, dst_code + len(src_names)


def _dictionary_encode(column: Any) -> tuple[Any, Ints]:
    """Return the distinct values of a column without nulls, and the column as indices into them."""
    encoded = pa.chunked_array(_chunks(column), type=column.type).dictionary_encode().unify_dictionaries()
    if encoded.num_chunks == 0:
        return pa.array([], column.type), np.zeros(0, np.int64)
    codes = [np.asarray(chunk.indices, np.int64) for chunk in encoded.chunks]
    return encoded.chunk(0).dictionary, np.concatenate(codes)


def _chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def _rank_by_appearance(src_code: Ints, src_position: Ints, dst_code: Ints, dst_position: Ints) -> tuple[Ints, Ints]:
    """Return the rank of each code by first appearance, and the codes in that order. Positions increase."""
    n_codes = int(max(src_code.max(initial=-1), dst_code.max(initial=-1))) + 1
    first = np.full((2, n_codes), np.iinfo(np.int64).max)
    # An assignment to repeated indices keeps the last value: in reverse order, the earliest position.
    first[0, src_code[::-1]] = src_position[::-1]
    first[1, dst_code[::-1]] = dst_position[::-1]
    order = np.argsort(first.min(axis=0), kind="stable")
    rank = np.empty(n_codes, np.int64)
    rank[order] = np.arange(n_codes)
    return rank, order
