"""Notes about appended events."""

from __future__ import annotations

import re
from collections.abc import Iterable

_APPENDED = re.compile(r"(\d+) later events appended, with (\d+) new nodes")


def append_note(n_events: int, n_new_nodes: int) -> str:
    """Return the note that a stream or a store keeps about an append."""
    return f"{n_events} later events appended, with {n_new_nodes} new nodes"


def merge_append_notes(notes: Iterable[str]) -> list[str]:
    """Return the notes for display: one line, in the place of the first, stands for several appends."""
    notes = list(notes)
    appends = {k: match for k, note in enumerate(notes) if (match := _APPENDED.fullmatch(note))}
    if len(appends) < 2:
        return notes
    n_events, n_new_nodes = (sum(int(match[group]) for match in appends.values()) for group in (1, 2))
    first = min(appends)
    merged = f"{n_events:,} later events in {len(appends):,} appends, with {n_new_nodes:,} new nodes"
    return [merged if k == first else note for k, note in enumerate(notes) if k == first or k not in appends]
