"""Read files in chunks: whole lines of text, row groups of Parquet. Find the tables of a folder."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.errors import DataError
from cordgt.events.arrays import as_column
from cordgt.files import PARQUET_ERRORS, checked_table, short
from cordgt.io.column_roles import ColumnOptions, expected_text
from cordgt.io.open_table import open_text
from cordgt.io.tables import Table, TypedTable

ENDINGS = (".parquet", ".pq", ".csv", ".tsv", ".txt", ".edges", ".csv.gz", ".tsv.gz", ".txt.gz", ".edges.gz")
HEAD = 1 << 22  # bytes of text from which the format is detected


def opened(path: Path, options: ColumnOptions) -> Table:
    """The first chunk of a file, which shows header and layout; for Parquet, a table without rows.

    DataError if the file cannot be read or is empty.
    """
    try:
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        if is_parquet:
            return typed_piece(str(path), parquet_file(path).schema_arrow.empty_table(), 0)
        with text_file(path) as file:
            text = next(whole_lines(path, file, HEAD, HEAD), b"")
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is a damaged or incomplete gzip file.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not text.strip():
        raise DataError(f"{path} is empty.")
    return open_text(str(path), text, expected_text(options, need_time=True))


@dataclass(frozen=True, kw_only=True)
class _TypedPiece(TypedTable):
    """Consecutive rows of a typed table; ``first_row``: row number of the first one in the file."""

    first_row: int

    def at(self, row: int) -> str:
        return super().at(self.first_row + row)


def typed_piece(label: str, table: Any, first_row: int) -> _TypedPiece:
    header = tuple(str(k) for k in table.column_names)
    return _TypedPiece(
        label=label,
        header=header,
        width=len(header),
        get=lambda k: as_column(table.column(k)),
        first_row=first_row,
    )


def at_places(batch: Any, header: tuple[str, ...]) -> Any:
    """The batch with all columns of the file in their order; columns that were not read are null."""
    n = len(batch)
    columns = [batch.column(name) if name in batch.schema.names else pa.nulls(n) for name in header]
    return pa.table(columns, names=list(header))


def parquet_file(path: Path) -> Any:
    try:
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except PARQUET_ERRORS as error:
        raise DataError(f"{path} is a damaged Parquet file: {short(error)}") from None


def batches(path: Path, file: Any, groups: list[int], names: list[str], rows: int) -> Iterator[Any]:
    """Yield record batches of the named columns. DataError for damage and for duplicate names."""
    duplicates = [name for name in names if file.schema_arrow.names.count(name) > 1]
    if duplicates:
        raise DataError(f"{path} has several columns named '{duplicates[0]}'. Give each its own name.")
    try:
        for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=names):
            checked_table(batch)
            yield batch
    except PARQUET_ERRORS as error:
        raise DataError(f"{path} is a damaged Parquet file: {short(error)}") from None


def text_file(path: Path) -> BinaryIO:
    """Open a text file, decompressing gzip; offsets refer to the decompressed text."""
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if is_gzip else path.open("rb")  # type: ignore[return-value]


def whole_lines(path: Path, file: BinaryIO, first: int, then: int) -> Iterator[bytes]:
    """Yield chunks that end with a line and split no quoted field: about ``first`` bytes, then about ``then`` each.

    Reads forward only: seeking back in gzip decompresses from the start. DataError for a line that does not end.
    """
    rest, size = b"", first
    while True:
        data, end, read = rest, 0, 0
        while not end and read < 5 * size:
            more = file.read(size)
            data += more
            read += size
            if len(more) < size:
                if data:
                    yield data
                return
            end = _last_line_end(data)
        end = end or data.rfind(b"\n") + 1  # an unclosed quote: ignore quotes
        if not end:
            raise DataError(f"{path}: a line is longer than {len(data):,} bytes; this is not a table of events.")
        yield data[:end]
        rest, size = data[end:], then


def _last_line_end(data: bytes) -> int:
    """Offset after the last line end outside quotes; 0 if none of the last 1000 line ends is."""
    end = len(data)
    odd = data.count(b'"') % 2
    for _ in range(1000):
        start = data.rfind(b"\n", 0, end)
        if start < 0:
            return 0
        odd = (odd + data.count(b'"', start, end)) % 2
        if not odd:
            return start + 1
        end = start
    return 0


def files_in(folder: Path) -> list[Path]:
    """The tables in a folder and its subfolders, sorted by path. DataError if there are none."""
    found = sorted(p for p in folder.rglob("*") if p.name.lower().endswith(ENDINGS) and p.is_file())
    found = [p for p in found if not any(part.startswith((".", "_")) for part in p.relative_to(folder).parts)]
    if not found:
        raise DataError(f"{folder} holds no table: no file ends in {', '.join(ENDINGS[:4])} or their .gz forms.")
    return found
