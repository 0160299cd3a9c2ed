"""EventLog: the durable list of accepted events. `serving.sqlite_log` and `serving.postgres_log` implement it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from cordgt.serving.errors import LogDamagedError

BINDING_FILE = "log.json"  # in a data folder whose log is in a database: the id of that log


@dataclass(frozen=True)
class LogRecord:
    """The events of one request, as they stand in the log."""

    first: int  # number of events in the log before these
    count: int
    key: str | None  # idempotency key of the request
    digest: str  # hash of the events as the client sent them
    body: bytes  # `EventBatch.to_json`

    @property
    def checksum(self) -> int:
        """CRC-32 of place and content."""
        return zlib.crc32(f"{self.first} {self.count} {self.key} {self.digest} ".encode() + self.body)


class EventLog(Protocol):
    """A durable list of events. One process writes it. Only `append` and `save_question` write."""

    @property
    def count(self) -> int:
        """Number of events in the log."""

    def append(self, records: Sequence[LogRecord]) -> None:
        """Write records in one transaction; on return they are durable. LogUnavailableError: nothing was written."""

    def find(self, key: str) -> LogRecord | None:
        """Return the record with an idempotency key."""

    def read(self, start: int = 0) -> Iterator[LogRecord]:
        """Yield the records from the one that begins at ``start`` on. LogDamagedError if one is missing or changed."""

    def save_question(self, digest: str, body: bytes) -> None:
        """Keep a long question, so that its answer can be replayed."""

    def load_question(self, digest: str) -> bytes | None:
        """Return the output of `save_question`; None if it is unknown."""

    def close(self) -> None:
        """Release the log."""


def check_records(rows: Iterator[tuple[LogRecord, int]], start: int, where: str) -> Iterator[LogRecord]:
    """Yield records with the right checksum and without a gap. LogDamagedError otherwise."""
    expected = start
    for record, checksum in rows:
        if record.first != expected or record.checksum != checksum:
            raise LogDamagedError(
                f"{where} is damaged at event {expected}: its checksum is wrong or events are missing. "
                "Restore it from a backup."
            )
        expected += record.count
        yield record
