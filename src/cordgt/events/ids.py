"""Node ids: the user's own, and our numbers for them by first appearance."""

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


def id_column(values: Any) -> Any:
    """Node ids as an int64 or string Arrow column.

    Integers and whole-valued floats become int64 (integers beyond int64 strings), text stays as it is written.
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
    """Floats and decimals as int64; null where they are not whole or do not fit."""
    if pa.types.is_decimal(column.type):  # which hold whole numbers that no float does
        try:
            return pc.cast(column, pa.int64())
        except pa.ArrowInvalid:
            exact = [int(v) if v is not None and v == int(v) else None for v in column.to_pylist()]
            return pa.array([v if v is not None and -(2**63) <= v < 2**63 else None for v in exact], pa.int64())
    column = pc.cast(column, pa.float64())
    whole = pc.and_(pc.equal(column, pc.floor(column)), pc.less(pc.abs(column), 2.0**63))
    return pc.cast(pc.if_else(whole, column, None), pa.int64())


class IdLookup(Protocol):
    """Finds the nodes of ids, as `cordgt.events.id_table.SortedNames` does. It may know later nodes too."""

    def find(self, column: Any, names: Any, side: npt.NDArray[np.uint8] | None, wanted: int) -> Ints:
        """Internal ids (n,) of an Arrow column of the same type as ``names``; -1 for null and unknown ids.

        ``side``: (N,) id space of each node, None where there is one space; ``wanted``: 0 or 1, the space to search.
        """


@dataclass(frozen=True, eq=False)
class NodeIds:
    """The user's id of every node, in internal order.

    Attributes:
        names: (N,) Arrow array, int64 or string.
        side: (N,) uint8, 0 for the space of the sources and 1 for that of the destinations; None: one shared space.
        lookup: finds ids without a table of all of them; None builds that table for each call of ``find``.
    """

    names: Any
    side: npt.NDArray[np.uint8] | None = None
    lookup: IdLookup | None = None

    @classmethod
    def empty(cls, *, shared: bool) -> NodeIds:
        """No nodes yet; of a shared id space or of two."""
        return cls(pa.array([], pa.int64()), None if shared else np.zeros(0, np.uint8))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def shared(self) -> bool:
        """Whether both columns name nodes of one id space."""
        return self.side is None

    def find(self, values: Any, side: Side = "src") -> Ints:
        """Internal ids of the user's, -1 where unknown. What does not convert to the ids' own type is unknown.

        A number and its text are the same id (7 and "7"), but "007" is not 7. A single id counts as a list of one.
        """
        if isinstance(values, str | int | float):
            values = [values]
        column = as_column(values)
        if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
            column = _whole_or_null(column)
        if not (pa.types.is_integer(column.type) or is_text(column.type)):
            return np.full(len(column), -1, np.int64)
        return self._place(column, side)

    def take(self, internal: npt.ArrayLike) -> Any:
        """The user's ids back, as written: (…,) Arrow array. Internal ids outside 0..N-1 give null."""
        index = np.asarray(internal, np.int64)
        outside = (index < 0) | (index >= len(self))
        return self.names.take(pa.array(index, mask=outside))

    def extend(self, src: Any, dst: Any) -> tuple[NodeIds, Ints, Ints]:
        """Both columns as internal ids, new nodes numbered from N on by first appearance, src before dst in an event.

        Numbers of nodes already known do not change. If only one of the old ids and the new ones is text, all become
        text. Errors as in ``id_column``.
        """
        own, src, dst = self._same_type(id_column(src), id_column(dst))
        src_id, dst_id = own._place(src, "src"), own._place(dst, "dst")
        new_src, new_dst = src_id < 0, dst_id < 0
        fresh_src, fresh_dst = src.filter(pa.array(new_src)), dst.filter(pa.array(new_dst))
        vocabulary, side, src_code, dst_code = _vocabulary(fresh_src, fresh_dst, self.shared)
        rank, order = _appearance(src_code, 2 * np.flatnonzero(new_src), dst_code, 2 * np.flatnonzero(new_dst) + 1)
        src_id[new_src] = len(self) + rank[src_code]
        dst_id[new_dst] = len(self) + rank[dst_code]
        names = pa.concat_arrays([own.names, vocabulary.take(pa.array(order))])
        sides = None if self.side is None else np.concatenate([self.side, side[order]])
        return NodeIds(names, sides), src_id, dst_id

    def _same_type(self, src: Any, dst: Any) -> tuple[NodeIds, Any, Any]:
        """The ids and both columns all int64, or all strings if one of them is (an empty one has no say)."""
        text = [is_text(k.type) for k in (self.names, src, dst) if len(k)]
        kind = pa.string() if any(text) else pa.int64()
        return NodeIds(pc.cast(self.names, kind), self.side), pc.cast(src, kind), pc.cast(dst, kind)

    def _place(self, column: Any, side: Side) -> Ints:
        """Internal ids of an integer or text column, -1 for null and unknown."""
        if self.lookup is not None and len(self):
            column = pc.cast(column, pa.string()) if is_text(self.names.type) else _written_or_null(column)
            placed = self.lookup.find(column, self.names, self.side, int(side == "dst"))
            return np.where(placed < len(self), placed, -1)
        names, here = self._space(side)
        if len(names) == 0:
            return np.full(len(column), -1, np.int64)
        if is_text(column.type) or is_text(names.type):
            column, names = pc.cast(column, pa.string()), pc.cast(names, pa.string())
        else:
            column = _fitting_or_null(column)
        place = pc.fill_null(pc.index_in(column, value_set=names), -1)
        found = np.asarray(place).astype(np.int64)
        return found if here is None else np.where(found < 0, -1, here[found])

    def _space(self, side: Side) -> tuple[Any, Ints | None]:
        """The names of one id space and their internal ids (None: all of them, in order)."""
        if self.side is None:
            return self.names, None
        here = np.flatnonzero(self.side == (side == "dst"))
        return self.names.take(pa.array(here)), here


def _written_or_null(column: Any) -> Any:
    """Integers, or text that is an integer as we would write it, as int64; null for anything else."""
    if not is_text(column.type):
        return _fitting_or_null(column)
    like = pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]{0,18})$")
    wide = [None if v is None else int(v) for v in pc.if_else(like, column, None).to_pylist()]
    return pa.array([v if v is not None and -(2**63) <= v < 2**63 else None for v in wide], pa.int64())


def _fitting_or_null(column: Any) -> Any:
    """Integers as int64; null where they do not fit."""
    try:
        return pc.cast(column, pa.int64())
    except pa.ArrowInvalid:
        fits = pc.less_equal(column, pa.scalar(2**63 - 1, column.type))
        return pc.cast(pc.if_else(fits, column, None), pa.int64())


def _vocabulary(src: Any, dst: Any, shared: bool) -> tuple[Any, npt.NDArray[np.uint8], Ints, Ints]:
    """The distinct ids of both columns (once if shared, else once a side), their sides, and the columns as codes."""
    if shared:
        names, codes = _encode(pa.chunked_array([*_chunks(src), *_chunks(dst)], type=src.type))
        return names, np.zeros(len(names), np.uint8), codes[: len(src)], codes[len(src) :]
    src_names, src_code = _encode(src)
    dst_names, dst_code = _encode(dst)
    side = np.repeat(np.array([0, 1], np.uint8), [len(src_names), len(dst_names)])
    return pa.concat_arrays([src_names, dst_names]), side, src_code, dst_code + len(src_names)


def _encode(column: Any) -> tuple[Any, Ints]:
    """The distinct values of a column without nulls, and the column as places among them."""
    coded = pa.chunked_array(_chunks(column), type=column.type).dictionary_encode().unify_dictionaries()
    if coded.num_chunks == 0:
        return pa.array([], column.type), np.zeros(0, np.int64)
    codes = [np.asarray(chunk.indices, np.int64) for chunk in coded.chunks]
    return coded.chunk(0).dictionary, np.concatenate(codes)


def _chunks(column: Any) -> list[Any]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def _appearance(src_code: Ints, src_when: Ints, dst_code: Ints, dst_when: Ints) -> tuple[Ints, Ints]:
    """Rank of every code by when it first appears, and the codes in that order. Each ``when`` is increasing."""
    n_codes = int(max(src_code.max(initial=-1), dst_code.max(initial=-1))) + 1
    first = np.full((2, n_codes), np.iinfo(np.int64).max)
    # Of repeated places the last written stays; written backwards, that is the earliest.
    first[0, src_code[::-1]] = src_when[::-1]
    first[1, dst_code[::-1]] = dst_when[::-1]
    order = np.argsort(first.min(axis=0), kind="stable")
    rank = np.empty(n_codes, np.int64)
    rank[order] = np.arange(n_codes)
    return rank, order
