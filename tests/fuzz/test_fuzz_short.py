"""A few hundred mutated inputs of every target, the same ones each time; ``fuzz.py`` tries as many as one likes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordgt.errors import DataError
from cordgt.io.column_roles import ColumnOptions, choose, open_table
from cordgt.io.readers import read_events
from cordgt.io.tables import TextTable

from .seeds import EVENTS
from .slow_reader import events_differ
from .targets import Fuzzer, Misread, outcome_of


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    made = Fuzzer()
    yield made
    made.close()


@pytest.mark.parametrize(("target", "count"), [("readers", 600), ("runs", 200), ("settings", 200)])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_refused_or_read_rightly(fuzzer: Fuzzer, target: str, count: int) -> None:
    outcomes = [fuzzer.try_one(target, 0, number) for number in range(count)]
    assert [(number, k) for number, k in enumerate(outcomes) if k.is_bug] == []
    kinds = Counter(k.kind.split(":")[0].split(",")[0] for k in outcomes)
    assert kinds["refused"] > 0 and kinds["read"] + kinds["read and compared"] > 0, "neither alone is a test"


def test_an_input_is_the_same_each_time(fuzzer: Fuzzer) -> None:
    first, second = ([fuzzer.try_one("readers", 1, number) for number in range(40)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", [k for k in EVENTS if k != "ml"])
def test_the_slow_reader_agrees_on_every_seed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes(EVENTS[name])
    table = open_table(path, ColumnOptions())
    assert isinstance(table, TextTable)
    assert events_differ(EVENTS[name], table, choose(table, ColumnOptions()), read_events(path)) == ""


def test_the_slow_reader_sees_what_is_wrong(tmp_path: Path) -> None:
    """Compared with a file that differs in one place, the stream is told to be another."""
    path = tmp_path / "events.csv"
    good = b"src,dst,time,label,feature_0\na,b,1,0,5\nb,c,2,1,6\n"
    path.write_bytes(good)
    table, stream = open_table(path, ColumnOptions()), read_events(path)
    assert isinstance(table, TextTable)
    roles = choose(table, ColumnOptions())
    assert events_differ(good, table, roles, stream) == ""
    for old, new in (
        (b"a,b", b"a,B"),
        (b"2,1", b"3,1"),
        (b"1,6", b"0,6"),
        (b",6", b",7"),
        (b"b,c", b"\nb,d,1,1,1\nb,c"),
    ):
        assert events_differ(good.replace(old, new), table, roles, stream) != "", (old, new)


def test_outcomes_are_told_apart() -> None:
    def raising(error: BaseException) -> str:
        raise error

    def endless() -> str:
        while True:
            pass

    assert outcome_of(lambda: "read", 1).kind == "read"
    assert outcome_of(lambda: raising(DataError("no")), 1).kind == "refused: DataError"
    assert outcome_of(lambda: raising(DataError("x" * 10_000)), 1).kind == "BUG: endless message"
    assert outcome_of(lambda: raising(KeyError("x")), 1).kind == "BUG: KeyError"
    assert outcome_of(lambda: raising(MemoryError()), 1).kind == "BUG: memory"
    assert outcome_of(lambda: raising(Misread("x")), 1).kind == "BUG: silent misreading"
    assert outcome_of(endless, 0.1).kind == "BUG: hang"
