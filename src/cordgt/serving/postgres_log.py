"""PostgresLog: the event log in a PostgreSQL database. Needs the extra package ``cordgt[postgres]``."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cordgt.errors import SettingError
from cordgt.files import write_text
from cordgt.serving.errors import LogUnavailableError
from cordgt.serving.event_log import BINDING_FILE, LogRecord, check_records

try:
    import psycopg
except ImportError as error:
    raise SettingError("--log postgresql://… needs psycopg. Install it: pip install 'cordgt[postgres]'") from error

SCHEMA = """
CREATE TABLE IF NOT EXISTS cordgt_batches (
    first BIGINT PRIMARY KEY, count BIGINT NOT NULL, key TEXT UNIQUE, digest TEXT NOT NULL,
    received DOUBLE PRECISION NOT NULL, checksum BIGINT NOT NULL, body BYTEA NOT NULL
);
CREATE TABLE IF NOT EXISTS cordgt_questions (digest TEXT PRIMARY KEY, body BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS cordgt_log (id TEXT PRIMARY KEY);
"""
LOCK_ID = 0xC02D67  # of the advisory lock: one service writes a log
Result = TypeVar("Result")


class PostgresLog:
    """The event log of one service in a database of its own. After a lost connection it connects again.

    ``is_reader``: only read it, while a service may write it.
    """

    def __init__(self, url: str, *, is_reader: bool = False) -> None:
        self._url, self._is_reader = url, is_reader
        self._lock = threading.Lock()
        self._database: Any = None
        self._is_uncertain = False  # the connection broke during a commit
        self.count = self._count_events()

    def bind(self, data_dir: Path) -> None:
        """Make this the log of a data folder. SettingError if it is that of another one, or the folder has another."""
        path = data_dir / BINDING_FILE
        own = json.loads(path.read_text()) if path.exists() else {}
        row = self._run(lambda db: db.execute("SELECT id FROM cordgt_log").fetchone())
        if row is not None and row[0] != own.get("id"):
            raise SettingError(
                f"The event log in PostgreSQL belongs to another data folder than {data_dir}. Use that --data-dir, or "
                "another database."
            )
        if row is None and own.get("is_complete"):
            raise SettingError(
                f"The event log of {data_dir} is not in this database. Use the database that it was started with."
            )
        if row is None:
            identity = own.get("id") or uuid.uuid4().hex
            write_text(path, json.dumps({"id": identity, "is_complete": False}))  # a crash from here on is harmless
            self._run(lambda db: db.execute("INSERT INTO cordgt_log VALUES (%s)", (identity,)))
            own = {"id": identity}
        if not own.get("is_complete"):
            write_text(path, json.dumps({"id": own["id"], "is_complete": True}))

    def append(self, records: Sequence[LogRecord]) -> None:
        """Write records in one transaction; on return they are durable."""
        rows = [(r.first, r.count, r.key, r.digest, time.time(), r.checksum, r.body) for r in records]

        def write(database: Any) -> None:
            with database.transaction(), database.cursor() as cursor:
                cursor.executemany("INSERT INTO cordgt_batches VALUES (%s, %s, %s, %s, %s, %s, %s)", rows)

        if self._is_uncertain and self._count_events() != self.count:
            raise LogUnavailableError("The last events are in the log, but were not acknowledged. Restart the service.")
        self._is_uncertain = True
        self._run(write)
        self._is_uncertain = False
        self.count = records[-1].first + records[-1].count

    def find(self, key: str) -> LogRecord | None:
        """Return the record with an idempotency key."""
        query = "SELECT first, count, key, digest, body FROM cordgt_batches WHERE key = %s"
        row = self._run(lambda db: db.execute(query, (key,)).fetchone())
        return None if row is None else _record(row)

    def read(self, start: int = 0) -> Iterator[LogRecord]:
        """Yield the records that begin at position ``start`` or later."""
        query = "SELECT first, count, key, digest, body, checksum FROM cordgt_batches WHERE first >= %s ORDER BY first"
        with psycopg.connect(self._url) as reader, reader.cursor(name="read") as cursor:
            cursor.itersize = 10_000
            cursor.execute(query, (start,))
            rows = ((_record(row), int(row[5])) for row in cursor)
            yield from check_records(rows, start, "The event log in PostgreSQL")

    def save_question(self, digest: str, body: bytes) -> None:
        """Keep a long question, so that its answer can be replayed."""
        statement = "INSERT INTO cordgt_questions VALUES (%s, %s) ON CONFLICT DO NOTHING"
        self._run(lambda db: db.execute(statement, (digest, body)))

    def load_question(self, digest: str) -> bytes | None:
        """Return the output of `save_question`; None if it is unknown."""
        row = self._run(
            lambda db: db.execute("SELECT body FROM cordgt_questions WHERE digest = %s", (digest,)).fetchone()
        )
        return None if row is None else bytes(row[0])

    def close(self) -> None:
        """Release the log."""
        with self._lock:
            if self._database is not None:
                self._database.close()

    def _count_events(self) -> int:
        row = self._run(lambda db: db.execute("SELECT max(first + count) FROM cordgt_batches").fetchone())
        return int(row[0] or 0)

    def _run(self, work: Callable[[Any], Result]) -> Result:
        with self._lock:
            try:
                if self._database is None or self._database.closed:
                    self._database = self._connect()
                return work(self._database)
            except psycopg.Error as error:
                text = " ".join(str(error).split())
                raise LogUnavailableError(f"The event log in PostgreSQL cannot be used: {text}") from None

    def _connect(self) -> Any:
        database = psycopg.connect(self._url, autocommit=True, connect_timeout=10)
        database.execute("SET synchronous_commit = on")
        if self._is_reader:
            return database
        row = database.execute("SELECT pg_try_advisory_lock(%s)", (LOCK_ID,)).fetchone()
        if row is None or not row[0]:
            database.close()
            raise LogUnavailableError("The event log in PostgreSQL is in use by another service.")
        database.execute(SCHEMA)
        return database


def _record(row: Sequence[Any]) -> LogRecord:
    return LogRecord(int(row[0]), int(row[1]), row[2], row[3], bytes(row[4]))
