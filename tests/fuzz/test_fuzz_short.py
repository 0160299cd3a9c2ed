"""A few hundred mutated inputs of every target, the same ones each time; ``fuzz.py`` tries as many as one likes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cordgt.errors import DataError
from cordgt.io.column_roles import ColumnOptions, assign_roles, open_event_table
from cordgt.io.readers import read_events
from cordgt.io.tables import TextTable

from .seeds import EVENTS
from .slow_reader import compare_events
from .targets import Fuzzer, Misread, run_attempt


@pytest.fixture(scope="module")
def fuzzer() -> Iterator[Fuzzer]:
    made = Fuzzer()
    yield made
    made.close()


@pytest.mark.parametrize(("target", "count"), [("readers", 600), ("runs", 200), ("settings", 200), ("stores", 60)])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_every_input_raises_or_is_read_correctly(fuzzer: Fuzzer, target: str, count: int) -> None:
    outcomes = [fuzzer.try_one(target, 0, number) for number in range(count)]
    assert [(number, k) for number, k in enumerate(outcomes) if k.is_bug] == []
    kinds = Counter(k.kind.split(":")[0].split(",")[0] for k in outcomes)
    assert kinds["refused"] > 0 and kinds["read"] + kinds["read and compared"] > 0, "neither alone is a test"


def test_inputs_are_reproducible(fuzzer: Fuzzer) -> None:
    first, second = ([fuzzer.try_one("readers", 1, number) for number in range(40)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", [k for k in EVENTS if k != "ml"])
def test_slow_reader_agrees_on_every_seed(tmp_path: Path, name: str) -> None:
    path = tmp_path / "events.csv"
    path.write_bytes(EVENTS[name])
    table = open_event_table(path, ColumnOptions())
    assert isinstance(table, TextTable)
    assert compare_events(EVENTS[name], table, assign_roles(table, ColumnOptions()), read_events(path)) == ""


def test_slow_reader_detects_differences(tmp_path: Path) -> None:
    """A file that differs in one place does not match the stream."""
    path = tmp_path / "events.csv"
    good = b"src,dst,time,label,feature_0\na,b,1,0,5\nb,c,2,1,6\n"
    path.write_bytes(good)
    table, stream = open_event_table(path, ColumnOptions()), read_events(path)
    assert isinstance(table, TextTable)
    roles = assign_roles(table, ColumnOptions())
    assert compare_events(good, table, roles, stream) == ""
    for old, new in (
        (b"a,b", b"a,B"),
        (b"2,1", b"3,1"),
        (b"1,6", b"0,6"),
        (b",6", b",7"),
        (b"b,c", b"\nb,d,1,1,1\nb,c"),
    ):
        assert compare_events(good.replace(old, new), table, roles, stream) != "", (old, new)


def test_outcomes_are_classified() -> None:
    def raising(error: BaseException) -> str:
        raise error

    def endless() -> str:
        while True:
            pass

    assert run_attempt(lambda: "read", 1).kind == "read"
    assert run_attempt(lambda: raising(DataError("no")), 1).kind == "refused: DataError"
    assert run_attempt(lambda: raising(DataError("x" * 10_000)), 1).kind == "BUG: endless message"
    assert run_attempt(lambda: raising(KeyError("x")), 1).kind == "BUG: KeyError"
    assert run_attempt(lambda: raising(MemoryError()), 1).kind == "BUG: memory"
    assert run_attempt(lambda: raising(Misread("x")), 1).kind == "BUG: silent misreading"
    assert run_attempt(endless, 0.1).kind == "BUG: hang"
