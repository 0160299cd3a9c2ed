"""Tables: columns of a file or of memory by position, and messages that name the file, the line and the column."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from cordgt.errors import DataError, RowError
from cordgt.events.arrays import (
    Features,
    Floats,
    Ints,
    feature_rows,
    first_not_finite,
    first_true,
    is_list,
    is_number,
    looks_like_number,
)
from cordgt.events.ids import id_column
from cordgt.events.times import TimeAxis
from cordgt.io.column_names import FEATURE, FEATURE_LIST, Layout

MARK = b"\xef\xbb\xbf"  # the byte order mark of UTF-8


@dataclass(frozen=True, kw_only=True)
class Table:
    """A source of columns. ``header`` is None where the file names none; ``label`` is what messages call it."""

    label: str
    header: tuple[str, ...] | None
    width: int
    layout: Layout = ""
    notes: tuple[str, ...] = ()

    # What to try where what was taken for a header may be none.
    doubt: ClassVar[str] = ""

    def columns(self, which: Iterable[int]) -> dict[int, Any]:
        """The columns at these positions, as Arrow arrays (text as written)."""
        raise NotImplementedError

    def numbers(self, which: Sequence[int]) -> Features:
        """The columns at these positions, one or more, side by side as finite float32; a column of lists is as many
        as they are long. DataError where a value is no finite number."""
        raise NotImplementedError

    def ids(self, values: Any, column: int) -> Any:
        """The values of a column as ``id_column`` gives them; DataError with the line where it refuses one."""
        with self._located(column):
            return id_column(values)

    def times(self, values: Any, column: int, axis: TimeAxis) -> Ints | Floats:
        """The values of a column on an axis of time; DataError with the line where one does not stand on it."""
        with self._located(column):
            return axis.parse_column(values)

    def declares_features(self, column: int) -> bool:
        """Whether a column that nobody asked for is called as features are."""
        return self.header is not None and FEATURE.fullmatch(self.header[column]) is not None

    def named(self, column: int) -> str:
        """A column as messages call it."""
        if self.header is not None and column < len(self.header) and self.layout != "jodie":
            return f"column '{self.header[column]}'"
        return f"column {column} (counted from 0)"

    def at(self, row: int) -> str:
        """Where a row of data stands, for messages."""
        return f"{self.label}, row {row} (counted from 0)"

    @contextmanager
    def _located(self, column: int) -> Iterator[None]:
        """Errors about a column, with the file and, where they have a row, the line."""
        try:
            yield
        except RowError as error:
            raise DataError(f"{self.at(error.row)}: {error.what} ({self.named(column)}).") from None
        except DataError as error:
            raise DataError(f"{self.label}, {self.named(column)}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class TypedTable(Table):
    """Parquet, Arrow, pandas: the columns have types. ``get`` gives the one at a position."""

    get: Callable[[int], Any] = field(repr=False)

    def columns(self, which: Iterable[int]) -> dict[int, Any]:
        return {k: self.get(k) for k in which}

    def numbers(self, which: Sequence[int]) -> Features:
        return np.concatenate([self._matrix(k) for k in which], axis=1)

    def declares_features(self, column: int) -> bool:
        if self.header is not None and self.header[column].lower() in FEATURE_LIST:
            return is_list(self.get(column).type)
        return super().declares_features(column)

    def _matrix(self, column: int) -> Features:
        """(n_rows, 1) for numbers, (n_rows, length) for lists of them."""
        values = self.get(column)
        kind, n_rows = values.type, len(values)
        if values.null_count:
            row = first_true(pc.is_null(values))
            raise DataError(f"{self.at(row)}: the feature in {self.named(column)} is missing.")
        if is_list(kind):
            values = self._flat(values, column)
        if not is_number(values.type):
            raise DataError(f"{self.label}: {self.named(column)} does not hold numbers but {kind}, so no features.")
        flat = np.asarray(pc.cast(values, pa.float32(), safe=False))
        rows = flat.reshape(n_rows, len(flat) // n_rows if n_rows else 1)
        with self._located(column):
            feature_rows(rows, n_rows, "features")
        return rows

    def _flat(self, values: Any, column: int) -> Any:
        """A column of lists end to end. DataError where their lengths differ."""
        lengths = np.asarray(pc.list_value_length(values))
        uneven = np.flatnonzero(lengths != lengths[:1])
        if len(uneven):
            row = int(uneven[0])
            raise DataError(
                f"{self.at(row)}: {lengths[row]} features in {self.named(column)}, but {lengths[0]} in the first row."
            )
        return pc.list_flatten(values)


@dataclass(frozen=True, kw_only=True)
class TextTable(Table):
    """Delimited text. ``body`` holds the rows after the header, comment lines blanked so that lines still count;
    its first line is ``first_line`` of the file. ``trim``: every comma is followed by a space, which is no part of
    the value."""

    body: bytes = field(repr=False)
    first_line: int
    delimiter: str
    trim: bool

    doubt: ClassVar[str] = " If the first line is data, give the position of the time, counted from 0, with --time."

    def columns(self, which: Iterable[int]) -> dict[int, Any]:
        wanted = sorted(set(which))
        table = self._read({k: pa.string() for k in wanted})
        columns = {k: table[f"c{k}"] for k in wanted}
        if self.width == 1 and wanted:  # elsewhere a line of white space has too few fields to be a row
            only = columns[0]
            columns = {0: only.filter(pc.or_(pc.equal(only, ""), pc.not_equal(pc.utf8_trim_whitespace(only), "")))}
        return {k: pc.utf8_ltrim_whitespace(v) if self.trim and k > 0 else v for k, v in columns.items()}

    def numbers(self, which: Sequence[int]) -> Features:
        table = self._read({k: pa.float32() for k in which})
        rows = np.empty((table.num_rows, len(which)), np.float32)
        for place, k in enumerate(which):
            rows[:, place] = table[f"c{k}"].to_numpy()
        bad = first_not_finite(rows)
        if bad is not None:
            row, place = bad
            raise DataError(f"{self.at(row)}: the feature in {self.named(which[place])} is not a finite number.")
        return rows

    def ids(self, values: Any, column: int) -> Any:
        """As int64 if every one is an integer as we would write it (so not 007), else as text."""
        text = super().ids(values, column)
        try:
            whole = pc.cast(text, pa.int64())
        except pa.ArrowInvalid:
            return text
        return whole if pc.all(pc.equal(pc.cast(whole, pa.string()), text)).as_py() else text

    def at(self, row: int) -> str:
        with suppress(csv.Error):  # a field too long for it
            for k, (line, _) in enumerate(self._rows()):
                if k == row:
                    return f"{self.label}, line {line}"
        return super().at(row)

    def _read(self, kinds: dict[int, Any]) -> Any:
        """The columns with the given types, called c0, c1, … by position, in one pass over the text."""
        try:
            return pyarrow.csv.read_csv(
                # Arrow would take a mark at the start of the first row for that of the file.
                pa.BufferReader(b"\n" + self.body if self.body.startswith(MARK) else self.body),
                pyarrow.csv.ReadOptions(column_names=[f"c{k}" for k in range(self.width)], block_size=1 << 23),
                pyarrow.csv.ParseOptions(
                    delimiter=self.delimiter,
                    newlines_in_values=b'"' in self.body,
                    invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
                ),
                pyarrow.csv.ConvertOptions(
                    column_types={f"c{k}": kind for k, kind in kinds.items()},
                    include_columns=[f"c{k}" for k in kinds],
                    null_values=[],
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._explained([k for k, kind in kinds.items() if kind == pa.float32()], error) from None

    def _explained(self, numeric: list[int], error: Exception) -> DataError:
        """What is wrong with the text, found by going through it row by row: too late for speed."""
        try:
            for line, row in self._rows():
                if len(row) != self.width:
                    like = "header" if self.header and self.layout != "jodie" else "first row"
                    return DataError(
                        f"{self.label}, line {line}: found {len(row)} fields, expected {self.width} as in the {like}."
                    )
                for k in numeric:
                    if not looks_like_number(row[k]):
                        return DataError(
                            f"{self.label}, line {line}: the feature {row[k]!r} in {self.named(k)} is not a number."
                        )
        except csv.Error as reason:
            return DataError(f"{self.label} cannot be read as delimited text: {reason}.")
        return DataError(f"{self.label} cannot be read as delimited text: {error}")

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """(line, fields) of every row of data, one by one; for messages only."""
        reader = csv.reader(io.StringIO(self.body.decode("utf-8"), newline=None), delimiter=self.delimiter)
        line = self.first_line
        for row in reader:
            start, line = line, self.first_line + reader.line_num
            blank = self.width == 1 and row != [""] and not any(k.strip() for k in row)
            if row and not blank and (len(row) == self.width or any(k.strip() for k in row)):
                yield start, row
