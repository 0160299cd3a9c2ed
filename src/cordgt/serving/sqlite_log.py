"""SqliteLog: the event log in one SQLite file, in WAL mode; a commit is on disk before it is acknowledged."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cordgt.serving.errors import LogDamagedError, LogUnavailableError
from cordgt.serving.event_log import LogRecord, check_records

SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    first INTEGER PRIMARY KEY, count INTEGER NOT NULL, key TEXT UNIQUE, digest TEXT NOT NULL,
    received REAL NOT NULL, checksum INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS questions (digest TEXT PRIMARY KEY, body BLOB NOT NULL);
"""
COLUMNS = "first, count, key, digest, CAST(body AS BLOB)"
LOG_FILE = "events.sqlite"
COUNT_FILE = "acknowledged"  # number of events that were acknowledged; the log must have at least as many


class SqliteLog:
    """The event log of a data folder.

    SQLite drops a damaged end of its write-ahead log without a word. So the number of acknowledged events is kept in a
    second file, and opening fails if the log has fewer. That file is written after the commit and not synced: after a
    power failure it may be too small, never too large.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG_FILE
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(SCHEMA)
            self._count_file = os.open(folder / COUNT_FILE, os.O_RDWR | os.O_CREAT, 0o644)
            acknowledged = self._read_acknowledged(folder / COUNT_FILE)  # before the log is read, which may grow
            problem = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
            row = self._database.execute("SELECT first + count FROM batches ORDER BY first DESC LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            raise LogUnavailableError(f"The event log {self.path} cannot be opened: {error}.") from None
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from None
        except OSError as error:
            raise LogUnavailableError(f"The event log in {folder} cannot be opened: {error.strerror}.") from None
        if problem != "ok":
            raise self._damaged(" ".join(problem.split()))
        self.count = int(row[0]) if row else 0
        if self.count < acknowledged:
            raise self._damaged(
                f"{acknowledged:,} events were acknowledged, and it has {self.count:,}",
                f" To go on with the events that are left, delete {folder / COUNT_FILE}.",
            )

    def append(self, records: Sequence[LogRecord]) -> None:
        """Write records in one transaction; on return they are durable."""
        rows = [(r.first, r.count, r.key, r.digest, time.time(), r.checksum, r.body) for r in records]
        with self._lock:
            self._write("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self.count = records[-1].first + records[-1].count
            with suppress(OSError):  # the events are durable; the file may lag behind
                os.pwrite(self._count_file, f"{self.count:020d}\n".encode(), 0)

    def find(self, key: str) -> LogRecord | None:
        """Return the record with an idempotency key."""
        with self._lock:
            query = f"SELECT {COLUMNS} FROM batches WHERE key = ?"
            row = self._database.execute(query, (key,)).fetchone()
        return None if row is None else LogRecord(*row)

    def read(self, start: int = 0) -> Iterator[LogRecord]:
        """Yield the records that begin at position ``start`` or later."""
        query = f"SELECT {COLUMNS}, checksum FROM batches WHERE first >= ? ORDER BY first"
        reader = sqlite3.connect(self.path, check_same_thread=False)
        try:
            rows = ((LogRecord(*row[:5]), int(row[5])) for row in reader.execute(query, (start,)))
            yield from check_records(rows, start, str(self.path))
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from None
        finally:
            reader.close()

    def save_question(self, digest: str, body: bytes) -> None:
        """Keep a long question, so that its answer can be replayed."""
        with self._lock:
            self._write("INSERT OR IGNORE INTO questions VALUES (?, ?)", [(digest, body)])

    def load_question(self, digest: str) -> bytes | None:
        """Return the output of `save_question`; None if it is unknown."""
        with self._lock:
            row = self._database.execute("SELECT body FROM questions WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else bytes(row[0])

    def close(self) -> None:
        """Release the log."""
        with self._lock, suppress(sqlite3.Error):
            self._database.close()
        with suppress(OSError):
            os.close(self._count_file)

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(statement, rows)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise LogUnavailableError(f"The event log cannot be written: {error}. Nothing was accepted.") from None

    def _read_acknowledged(self, path: Path) -> int:
        text = path.read_bytes()
        if not text:
            return 0
        try:
            return int(text)
        except ValueError:
            raise LogDamagedError(f"{path} is damaged: it must hold one number. Delete it, or restore it.") from None

    def _damaged(self, reason: str, hint: str = "") -> LogDamagedError:
        return LogDamagedError(
            f"The event log {self.path} is damaged: {reason}. Restore {self.path.parent} from a backup.{hint}"
        )
