"""Tables with columns by position. Their errors name the file, the line and the column.

`open_table` makes a table from a path or an object in memory.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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
    as_feature_matrix,
    first_non_finite,
    first_true,
    is_list,
    is_number,
    is_text,
    looks_like_number,
)
from cordgt.events.date_formats import AmbiguousDateError
from cordgt.events.ids import as_id_column
from cordgt.events.time_precision import count_lost_times
from cordgt.events.times import TimeAxis
from cordgt.io.column_names import FEATURE_LIST_NAMES, FEATURE_PATTERN, Layout
from cordgt.io.time_parser import TimeParser

IN_MEMORY = "the table"  # name of a table that is not a file
UTF8_BOM = b"\xef\xbb\xbf"
DECIMAL_COMMA = r"^(\s*[+-]?\d+),(\d+\s*)$"
SAMPLE_BYTES = 1 << 20  # of the text that is looked at to recognize its columns; less than the first chunk of a file


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of columns. ``name`` stands for it in messages; ``header`` is None if the columns have no names.

    ``bipartite_reason``: what in the file says that sources and destinations are different things; empty if nothing.
    """

    name: str
    header: tuple[str, ...] | None
    n_columns: int
    layout: Layout = ""
    notes: tuple[str, ...] = ()
    bipartite_reason: str = ""

    header_hint: ClassVar[str] = ""  # what to do if the header is in fact a row of data

    def read_columns(self, positions: Iterable[int]) -> dict[int, Any]:
        """Return columns as Arrow arrays by position. Text is as written."""
        raise NotImplementedError

    def read_features(self, positions: Sequence[int]) -> Features:
        """Return columns side by side as (n_rows, D) float32. A column of lists is as wide as its lists are long.

        DataError if a value is not a finite number.
        """
        raise NotImplementedError

    def parse_ids(self, values: Any, column: int) -> Any:
        """Return a column's values as ids. DataError, with the line, if one is not valid."""
        with self._locate_errors(column):
            return as_id_column(values)

    def infer_times(self, parts: Iterable[Any], column: int, time_format: str | None) -> TimeParser | None:
        """Return the parser for a column's values, which come in parts; see `TimeParser.infer`."""
        try:
            return TimeParser.infer(map(self.normalize_numbers, parts), time_format)
        except AmbiguousDateError as error:
            raise DataError(f"{self.name}, {self.describe_column(column)}: {error}") from None

    def parse_times(self, values: Any, column: int, parser: TimeParser | TimeAxis) -> Ints | Floats:
        """Return a column's values as times. DataError, with the line, if one is not valid."""
        with self._locate_errors(column):
            return parser.parse_column(self.normalize_numbers(values))

    def count_lost_times(self, values: Any, times: Ints | Floats) -> int:
        """Return how many distinct times of a column became equal to another one when they were parsed."""
        return count_lost_times(self.normalize_numbers(values), times)

    def normalize_numbers(self, values: Any) -> Any:
        """Return a column with numbers as 1.5, whatever the table's decimal mark."""
        return values

    def is_feature_column(self, column: int) -> bool:
        """Whether the name of a column says that it holds features."""
        return self.header is not None and FEATURE_PATTERN.fullmatch(self.header[column]) is not None

    def describe_option(self, option: str) -> str:
        """Return what messages call a column option: a table in memory comes from Python, not from a command line."""
        return f"{option}=" if self.name == IN_MEMORY else f"--{option}"

    def describe_column(self, column: int) -> str:
        """Return what messages call a column."""
        if self.header is not None and column < len(self.header) and self.layout != "jodie":
            return f"column '{self.header[column]}'"
        return f"column {column} (counted from 0)"

    def describe_row(self, row: int) -> str:
        """Return what messages call a row of data: the file and the row or line."""
        return f"{self.name}, row {row} (counted from 0)"

    @contextmanager
    def _locate_errors(self, column: int) -> Iterator[None]:
        """Add the file, the row if known, and the column to a DataError."""
        try:
            yield
        except RowError as error:
            raise DataError(
                f"{self.describe_row(error.row)}: {error.reason} ({self.describe_column(column)})."
            ) from None
        except DataError as error:
            raise DataError(f"{self.name}, {self.describe_column(column)}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class ArrowTable(Table):
    """A table with typed columns, from Parquet, Arrow or pandas.

    ``get_column`` returns the column at a position; ``first_row`` is the number of the first row in the file. ``rows``:
    the row of each value, relative to ``first_row``, if some rows were left out.
    """

    get_column: Callable[[int], Any] = field(repr=False)
    first_row: int = 0
    rows: Ints | None = field(default=None, repr=False)

    @classmethod
    def from_names(
        cls, name: str, columns: Iterable[object], get_column: Callable[[int], Any], first_row: int = 0
    ) -> ArrowTable:
        header = tuple(map(str, columns))
        return cls(name=name, header=header, n_columns=len(header), get_column=get_column, first_row=first_row)

    def read_columns(self, positions: Iterable[int]) -> dict[int, Any]:
        return {k: self.get_column(k) for k in positions}

    def read_features(self, positions: Sequence[int]) -> Features:
        return np.concatenate([self._read_matrix(k) for k in positions], axis=1)

    def is_feature_column(self, column: int) -> bool:
        if self.header is not None and self.header[column].lower() in FEATURE_LIST_NAMES:
            return is_list(self.get_column(column).type)
        return super().is_feature_column(column)

    def describe_row(self, row: int) -> str:
        return super().describe_row(self.row_number(row))

    def row_number(self, row: int) -> int:
        """Return the number in the file of a row."""
        return self.first_row + (row if self.rows is None else int(self.rows[row]))

    def _read_matrix(self, column: int) -> Features:
        """Return a column of numbers as (n_rows, 1), or of lists of numbers as (n_rows, length)."""
        values = self.get_column(column)
        dtype, n_rows = values.type, len(values)
        if values.null_count:
            row = first_true(pc.is_null(values))
            raise DataError(f"{self.describe_row(row)}: the feature in {self.describe_column(column)} is missing.")
        if is_list(dtype):
            values = self._flatten_lists(values, column)
        if not is_number(values.type):
            raise DataError(
                f"{self.name}: {self.describe_column(column)} cannot be read as features: it does not hold numbers but"
                f" {dtype}."
            )
        flat = np.asarray(pc.cast(values, pa.float32(), safe=False))
        rows = flat.reshape(n_rows, len(flat) // n_rows if n_rows else 1)
        with self._locate_errors(column):
            as_feature_matrix(rows, n_rows, "features")
        return rows

    def _flatten_lists(self, values: Any, column: int) -> Any:
        """Concatenate the lists of a column. DataError if their lengths differ."""
        lengths = np.asarray(pc.list_value_length(values))
        uneven = np.flatnonzero(lengths != lengths[:1])
        if len(uneven):
            row = int(uneven[0])
            raise DataError(
                f"{self.describe_row(row)}: {lengths[row]} features in {self.describe_column(column)},"
                f" but {lengths[0]} in the first row."
            )
        return pc.list_flatten(values)


@dataclass(frozen=True, kw_only=True)
class TextTable(Table):
    """Delimited text.

    Attributes:
        body: the rows after the header. Comment lines are blank, so that line numbers stay right.
        first_line: line number in the file of the first line of ``body``.
        strip_leading_space: every delimiter is followed by a space that does not belong to the value.
        decimal_comma: numbers are written as 1,5.
        double_colon: the text has ``::`` between fields; ``body`` has tabs.
    """

    body: bytes = field(repr=False)
    first_line: int
    delimiter: str
    strip_leading_space: bool
    decimal_comma: bool = False
    double_colon: bool = False

    header_hint: ClassVar[str] = (
        " If the first line is data, give the position of the time, counted from 0, with --time."
    )

    def read_columns(self, positions: Iterable[int]) -> dict[int, Any]:
        positions = sorted(set(positions))
        table = self._read_csv(dict.fromkeys(positions, pa.string()))
        columns = {k: table[f"c{k}"] for k in positions}
        if self.n_columns == 1 and columns:  # in wider tables a blank line has too few fields to be a row
            only = columns[0]
            columns = {0: only.filter(pc.or_(pc.equal(only, ""), pc.not_equal(pc.utf8_trim_whitespace(only), "")))}
        return {k: self.strip_column(v, k) for k, v in columns.items()}

    def strip_column(self, values: Any, column: int) -> Any:
        """Return a column without the spaces that do not belong to its values."""
        return pc.utf8_ltrim_whitespace(values) if self.strip_leading_space and column > 0 else values

    def read_features(self, positions: Sequence[int]) -> Features:
        table = self._read_csv(dict.fromkeys(positions, pa.float32()))
        rows = np.empty((table.num_rows, len(positions)), np.float32)
        for index, k in enumerate(positions):
            rows[:, index] = table[f"c{k}"].to_numpy()
        bad = first_non_finite(rows)
        if bad is not None:
            row, column = bad[0], positions[bad[1]]
            raise DataError(
                f"{self.describe_row(row)}: the feature in {self.describe_column(column)} is not a finite number."
            )
        return rows

    def parse_ids(self, values: Any, column: int) -> Any:
        """Return int64 if every id is an integer in canonical form (``7``, not ``007``), else text."""
        text = super().parse_ids(values, column)
        try:
            integers = pc.cast(text, pa.int64())
        except pa.ArrowInvalid:
            return text
        return integers if pc.all(pc.equal(pc.cast(integers, pa.string()), text)).as_py() else text

    def normalize_numbers(self, values: Any) -> Any:
        if not self.decimal_comma or not is_text(values.type):
            return values
        return pc.replace_substring_regex(values, DECIMAL_COMMA, r"\1.\2")

    def describe_row(self, row: int) -> str:
        with suppress(csv.Error):  # a field that is too long for the csv module
            for k, (line, _) in enumerate(self._iter_rows()):
                if k == row:
                    return f"{self.name}, line {line}"
        return super().describe_row(row)

    def head_rows(self, n_rows: int) -> list[list[str]]:
        """Return the first rows of the right width, at most ``n_rows`` and those of the first `SAMPLE_BYTES`."""
        body = self.body
        if len(body) > SAMPLE_BYTES:
            body = body[: body.rfind(b"\n", 0, SAMPLE_BYTES) + 1] or body
        rows: list[list[str]] = []
        with suppress(csv.Error):  # reading the table reports it
            for _, row in replace(self, body=body)._iter_rows():
                if len(row) == self.n_columns:
                    rows.append(row)
                if len(rows) == n_rows:
                    break
        return rows

    def _read_csv(self, types: dict[int, Any]) -> Any:
        """Read the columns with the given types, named c0, c1, … by position, in one pass over the text."""
        try:
            return pyarrow.csv.read_csv(
                # Arrow would drop a byte order mark at the start of the first row.
                pa.BufferReader(b"\n" + self.body if self.body.startswith(UTF8_BOM) else self.body),
                pyarrow.csv.ReadOptions(column_names=[f"c{k}" for k in range(self.n_columns)], block_size=1 << 23),
                pyarrow.csv.ParseOptions(
                    delimiter=self.delimiter,
                    newlines_in_values=b'"' in self.body,
                    invalid_row_handler=lambda row: "error" if row.text.strip() else "skip",
                ),
                pyarrow.csv.ConvertOptions(
                    column_types={f"c{k}": dtype for k, dtype in types.items()},
                    include_columns=[f"c{k}" for k in types],
                    null_values=[],
                    strings_can_be_null=False,
                    decimal_point="," if self.decimal_comma else ".",
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._explain([k for k, dtype in types.items() if dtype == pa.float32()], error) from None

    def _explain(self, numeric: list[int], error: Exception) -> DataError:
        """Return an error with the first line that Arrow could not read, found by a slow pass over the rows."""
        try:
            for line, row in self._iter_rows():
                where = f"{self.name}, line {line}"
                if len(row) != self.n_columns:
                    model = "header" if self.header and self.layout != "jodie" else "first row"
                    return DataError(f"{where}: found {len(row)} fields, expected {self.n_columns} as in the {model}.")
                for k in numeric:
                    if not looks_like_number(row[k].replace(",", ".") if self.decimal_comma else row[k]):
                        return DataError(
                            f"{where}: the feature {row[k]!r} in {self.describe_column(k)} is not a number."
                        )
        except csv.Error as csv_error:
            return DataError(f"{self.name} cannot be read as delimited text: {csv_error}.")
        return DataError(f"{self.name} cannot be read as delimited text: {error}")

    def _iter_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, fields) for each row of data."""
        for start, _, row in self.iter_row_spans():
            yield start, row

    def iter_row_spans(self) -> Iterator[tuple[int, int, list[str]]]:
        """Yield (first line, line after the last, fields) for each row of data. Slow."""
        reader = csv.reader(io.StringIO(self.body.decode("utf-8"), newline="\n"), delimiter=self.delimiter)
        line = self.first_line
        for row in reader:
            start, line = line, self.first_line + reader.line_num
            is_blank = self.n_columns == 1 and row != [""] and not any(field.strip() for field in row)
            if row and not is_blank and (len(row) == self.n_columns or any(field.strip() for field in row)):
                yield start, line, row
