"""A job that runs every night: empty and repeated days, `--out` with a date, `--replace`, and a limit for drift."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordgt.store import append, batches
from cordgt.store.store import Store, open_store

from .helpers import fails, unchanged, works, write_events, write_rows

Day = list[tuple[str, str, str]]


def make_day(day: int, n: int = 20) -> Day:
    """Events of one date: all have the same time, so a repeated day is not late."""
    return [(f"a{(k * day) % 7}", f"b{(k + day) % 5}", f"2024-03-{day:02d}") for k in range(n)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    works("data", "convert", write_events(tmp_path / "day1.csv", make_day(1)), tmp_path / "log.store")
    return tmp_path / "log.store"


# -------------------- an empty day


@pytest.mark.parametrize(
    "text", ["src,dst,time\n", "src,dst,time", "", "\n\n", "# no events\n"], ids=["header", "no end", "", "blank", "#"]
)
def test_an_empty_day_is_not_an_error(store: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "day.csv").write_text(text)
    with gzip.open(tmp_path / "day.csv.gz", "wt") as file:
        file.write(text)
    for name in ("day.csv", "day.csv.gz"):
        with unchanged(store):
            result = works("data", "append", store, tmp_path / name)
        assert "Nothing was appended." in result.err and "unchanged, 20 events in all" in result.err


def test_an_empty_day_in_other_forms(store: Path, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({name: pa.array([], pa.string()) for name in ("src", "dst", "time")}), tmp_path / "d.parquet"
    )
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "1.csv").write_text("")
    (tmp_path / "parts" / "2.csv").write_text("src,dst,time\n")
    for day in ("d.parquet", "parts"):
        with unchanged(store):
            assert "Nothing was appended." in works("data", "append", store, tmp_path / day).err
    write_events(tmp_path / "parts" / "3.csv", make_day(2))
    (tmp_path / "parts" / "4.csv").write_text("\n")
    assert "added 20 events" in works("data", "append", store, tmp_path / "parts").err
    fails("data", "append", store, tmp_path / "no.csv", containing="There is no file")


# -------------------- a repeated day


def test_a_repeated_day_is_appended_once(store: Path, tmp_path: Path) -> None:
    """Whatever its name, order and format, and however many days came after it."""
    rows = make_day(2)
    day = write_events(tmp_path / "day2.csv", rows)
    other_order = write_events(tmp_path / "again.csv", rows[::-1])
    columns = {name: [row[k] for row in rows] for k, name in enumerate(("src", "dst", "time"))}
    pq.write_table(pa.table(columns), tmp_path / "day2.parquet")
    works("data", "append", store, day)
    for later in (None, 3):
        if later is not None:
            works("data", "append", store, write_events(tmp_path / "later.csv", make_day(later)))
        for same in (day, other_order, tmp_path / "day2.parquet", tmp_path / "day1.csv"):
            with unchanged(store):
                result = works("data", "append", store, same)
            assert "the same 20 events were added" in result.err and "unchanged" in result.err
            assert "--allow-duplicates" in result.err
    assert open_store(store).n_events == 60
    works("data", "append", store, write_events(tmp_path / "day3.csv", make_day(3)), "--allow-duplicates")
    assert open_store(store).n_events == 80
    works("data", "check", store)


def test_a_day_that_differs_is_appended(store: Path, tmp_path: Path) -> None:
    """Only whole batches are recognized: another event, or an event more often, is another batch."""
    rows = make_day(1)
    for k, changed in enumerate((rows[:-1], [*rows, rows[0]], [*rows[:-1], ("x", "y", rows[0][2])])):
        result = works("data", "append", store, write_events(tmp_path / f"{k}.csv", changed))
        assert f"added {len(changed)} events" in result.err and "repeat an existing one" in result.err


def test_repeats_are_recognized_by_value(tmp_path: Path) -> None:
    """Integer ids and times are the same in any notation; features and labels count."""
    header = ("src", "dst", "time", "label", "feature_0")
    works("data", "convert", write_rows(tmp_path / "a.csv", [(1, 2, 5, 0, 0.5), (7, 2, 5, 1, 0)], header=header), "s")
    same = write_rows(tmp_path / "b.csv", [(7, 2, "5.0", 1, "-0.0"), (1, 2, 5, 0, "5e-1")], header=header)
    assert "unchanged" in works("data", "append", "s", same).err
    for other in ((1, 2, 5, 1, 0.5), (1, 2, 5, 0, 0.25)):
        rows = [other, (7, 2, 5, 1, 0)]
        assert "added 2 events" in works("data", "append", "s", write_rows(tmp_path / "c.csv", rows, header=header)).err


def test_batches_survive_a_rebuild_and_are_limited(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = write_events(tmp_path / "late.csv", [("a1", "b1", "2024-02-01")])
    works("data", "append", store, late, "--late", "merge")
    for day in ("late.csv", "day1.csv"):
        assert "unchanged" in works("data", "append", store, tmp_path / day, "--late", "merge").err
    monkeypatch.setattr(batches, "MAX_BATCHES", 2)
    for day in (2, 3):
        works("data", "append", store, write_events(tmp_path / f"day{day}.csv", make_day(day)))
    assert [k["name"] for k in open_store(store).batches] == ["day2", "day3"]
    assert "added 20 events" in works("data", "append", store, tmp_path / "day1.csv", "--late", "merge").err


class Cut(BaseException):
    """Simulates SIGKILL: nothing catches it."""


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_day_is_there_once_after_a_kill_and_a_retry(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    """Killed just before or just after store.json is replaced. Random moments: tests/survival/month.py."""
    day, write = write_events(tmp_path / "day2.csv", make_day(2)), Store.write

    def cut_off(self: Store, *arguments: Any) -> None:
        if is_after:
            write(self, *arguments)
        raise Cut

    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(Store, "write", cut_off)
        patch.setattr(append, "_undo", lambda path: None)
        works("data", "append", store, day)
    assert ("unchanged" if is_after else "added 20 events") in works("data", "append", store, day).err
    assert open_store(store).n_events == 40
    works("data", "check", store)


def test_a_store_of_an_earlier_version_has_no_batches(store: Path, tmp_path: Path) -> None:
    """It opens; only batches that are appended from now on are recognized."""
    about = json.loads((store / "store.json").read_text())
    del about["batches"]
    from cordgt.store.store import _content_hash

    about["sha256"] = _content_hash({k: v for k, v in about.items() if k not in ("format", "version", "sha256")})
    (store / "store.json").write_text(json.dumps(about))
    result = works("data", "append", store, tmp_path / "day1.csv")
    assert "20 of the new events repeat" in result.err
    assert "unchanged" in works("data", "append", store, tmp_path / "day1.csv").err
