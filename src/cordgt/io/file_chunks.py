"""Read files in chunks: whole lines of text, row groups of Parquet. Find the tables of a folder."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cordgt.errors import DataError, EmptyInputError
from cordgt.events.arrays import as_column
from cordgt.files import validate_table
from cordgt.io.column_roles import ColumnOptions, event_read_options
from cordgt.io.open_table import HEAD_BYTES, check_unique_names, explain_parquet_errors, open_text
from cordgt.io.tables import ArrowTable, Table
from cordgt.io.zip_files import check_member, is_zip, open_zip_member

TABLE_SUFFIXES = (".parquet", ".pq", ".csv", ".tsv", ".txt", ".edges", ".csv.gz", ".tsv.gz", ".txt.gz", ".edges.gz")


def open_head(path: Path, options: ColumnOptions, member: str | None = None) -> Table:
    """Open the first chunk of a file, which shows header and layout; for Parquet, a table without rows.

    ``member``: which file of a zip archive.
    DataError if the file cannot be read, EmptyInputError if it is empty.
    """
    with explain_read_errors(path):
        check_member(path, member)
        with path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
        if is_parquet:
            return make_arrow_chunk(path, open_parquet(path).schema_arrow.empty_table(), 0)
        with open_text_file(path, member) as file:
            text = next(iter_line_chunks(path, file, HEAD_BYTES, HEAD_BYTES), b"")
    if not text.strip():
        raise EmptyInputError(f"{path} is empty.")
    if text.startswith(b"PAR1"):
        raise DataError(f"{path} is a compressed Parquet file. Unpack it first.")
    return open_text(str(path), text, event_read_options(options, need_time=True))


@contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Re-raise errors of the file system and of gzip as DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DataError(f"{path} is a damaged or incomplete gzip file.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None


# -------------------- Parquet


def open_parquet(path: Path) -> Any:
    with explain_parquet_errors(path):
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


def read_row_groups(path: Path, file: Any, groups: list[int], names: list[str], chunk_rows: int) -> Iterator[Any]:
    """Yield record batches of the named columns. DataError if the file is damaged or a name is not unique."""
    check_unique_names(path, file.schema_arrow.names, names)
    with explain_parquet_errors(path):
        for batch in file.iter_batches(batch_size=chunk_rows, row_groups=groups, columns=names):
            validate_table(batch)
            yield batch


def make_arrow_chunk(path: Path, table: Any, first_row: int) -> ArrowTable:
    """Return consecutive rows of a file as a table; ``first_row`` is the number of the first one."""
    return ArrowTable.from_names(str(path), table.column_names, lambda k: as_column(table.column(k)), first_row)


def pad_columns(batch: Any, header: tuple[str, ...]) -> Any:
    """Return the batch with all columns of the file in order; columns that were not read are null."""
    n = len(batch)
    columns = [batch.column(name) if name in batch.schema.names else pa.nulls(n) for name in header]
    return pa.table(columns, names=list(header))


# -------------------- text


def open_text_file(path: Path, member: str | None = None) -> AbstractContextManager[BinaryIO]:
    """Open a text file, decompressing gzip and zip; offsets refer to the decompressed text."""
    if is_zip(path):
        return open_zip_member(path, member)
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if is_gzip else path.open("rb")  # type: ignore[return-value]


def iter_line_chunks(path: Path, file: BinaryIO, first_size: int, chunk_size: int) -> Iterator[bytes]:
    """Yield chunks that end with a line and split no quoted field: about ``first_size`` bytes, then ``chunk_size``.

    Reads forward only: seeking back in gzip decompresses from the start. DataError for a line that does not end.
    """
    rest, size = b"", first_size
    while True:
        data, end, n_read = rest, 0, 0
        while not end and n_read < 5 * size:
            more = file.read(size)
            data += more
            n_read += size
            if len(more) < size:
                if data:
                    yield data
                return
            end = _last_line_end(data)
        end = end or data.rfind(b"\n") + 1  # an unclosed quote: ignore quotes
        if not end:
            raise DataError(f"{path}: a line is longer than {len(data):,} bytes; this is not a table of events.")
        yield data[:end]
        rest, size = data[end:], chunk_size


def _last_line_end(data: bytes) -> int:
    """Return the offset after the last line end outside quotes; 0 if none of the last 1000 line ends is."""
    end = len(data)
    n_quotes = data.count(b'"')
    for _ in range(1000):
        start = data.rfind(b"\n", 0, end)
        if start < 0:
            return 0
        n_quotes -= data.count(b'"', start, end)
        if n_quotes % 2 == 0:
            return start + 1
        end = start
    return 0


# -------------------- folders


def find_tables(folder: Path) -> list[Path]:
    """Return the tables in a folder and its subfolders, sorted by path. DataError if there are none."""
    found = sorted(p for p in folder.rglob("*") if p.name.lower().endswith(TABLE_SUFFIXES) and p.is_file())
    found = [p for p in found if not any(part.startswith((".", "_")) for part in p.relative_to(folder).parts)]
    if not found:
        suffixes = ", ".join(TABLE_SUFFIXES[:4])
        raise DataError(f"{folder} holds no table: no file ends in {suffixes} or their .gz forms.")
    return found
