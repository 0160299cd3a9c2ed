"""Stores from the command line: convert, train, append, damage, interruptions."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordgt.io.convert import convert_to_store, parse_size
from cordgt.store import arrays, build
from cordgt.store.store import VERSION, open_store, store_lock

from .helpers import TINY, events, fails, process, settings, works, write_events, write_rows

HEADER = ("src", "dst", "time")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, the same events as a store, and a run of each."""
    folder = tmp_path_factory.mktemp("store")
    write_rows(folder / "log.csv", events(), header=HEADER)
    works("data", "convert", folder / "log.csv", folder / "log.store")
    for data in ("log.csv", "log.store"):
        works("train", folder / data, *TINY, "--device", "cpu", "--out", folder / f"run-{data}")
    return folder


@pytest.fixture
def store(home: Path, tmp_path: Path) -> Iterator[Path]:
    yield convert_to_store(home / "log.csv", tmp_path / "log.store").path


def metrics(run: Path) -> dict[str, Any]:
    found = json.loads((run / "metrics.json").read_text())
    return {k: v for k, v in found.items() if k not in ("checksums", "seconds_per_epoch", "peak_memory_mb")}


def test_a_store_gives_the_same_results_as_its_file(home: Path) -> None:
    runs = [home / f"run-{data}" for data in ("log.csv", "log.store")]
    assert metrics(runs[0]) == metrics(runs[1])
    assert (runs[0] / "model.safetensors").read_bytes()[-400:] == (runs[1] / "model.safetensors").read_bytes()[-400:]
    pairs = write_rows(home / "pairs.csv", [(1, 2, 1300), (3, 99, 1400)], header=HEADER)
    answers = [works("predict", run, "--pairs", pairs).out for run in runs]
    assert answers[0] == answers[1]
    again = [works("evaluate", run, "--ranking", "5", "--json").json for run in runs]
    assert again[0] == again[1]
    assert not (runs[1] / "events.parquet").exists()
    works("compare", *runs)
    assert list((home / "log.store").glob("masked-*")), "the index for training is kept"


def test_describe_and_convert_back(home: Path) -> None:
    descriptions = [works("data", "describe", home / data, "--json").json for data in ("log.csv", "log.store")]
    assert descriptions[0] == descriptions[1]
    works("data", "convert", home / "log.store", home / "back.csv")
    works("data", "convert", home / "log.csv", home / "there.csv")
    assert (home / "back.csv").read_text() == (home / "there.csv").read_text()


def test_a_run_uses_events_appended_to_its_store(home: Path, tmp_path: Path) -> None:
    """As with --events: predictions use new events, metrics do not change."""
    own = tmp_path / "own.store"
    convert_to_store(home / "log.csv", own)
    run, last = tmp_path / "run", events()[-1][2]
    works("train", own, *TINY, "--device", "cpu", "--out", run)
    later = write_rows(tmp_path / "later.csv", [(1, 5, last), (77, 1, last + 2), (1, 77, last + 3)], header=HEADER)
    pairs = write_rows(tmp_path / "pairs.csv", [(1, 5, last + 9), (77, 1, last + 9)], header=HEADER)
    expected = works("predict", home / "run-log.csv", "--pairs", pairs, "--events", later).out
    evaluated = works("evaluate", run, "--json").json
    works("data", "append", own, later)
    works("data", "check", own)
    assert works("predict", run, "--pairs", pairs).out == expected
    assert works("evaluate", run, "--json").json == evaluated
    stderr = works("train", own, *TINY, "--device", "cpu", "--out", run, "--resume").err
    assert f"this run continues with the {len(events())} events that it started with" in stderr


def test_late_events_are_refused_or_merged(store: Path, home: Path, tmp_path: Path) -> None:
    late = write_rows(tmp_path / "late.csv", [(4, 9, 1001)], header=HEADER)
    fails("data", "append", store, late, containing=("before the last event", "--late merge"))
    fails("data", "append", store, late, "--late", "perhaps", containing="refuse, merge")
    works("data", "check", store)
    works("data", "append", store, late, "--late", "merge")
    works("data", "check", store)
    assert open_store(store).n_events == len(events()) + 1


# -------------------- bad input


def test_a_damaged_store_is_refused(store: Path) -> None:
    about = store / "store.json"
    original = about.read_text()
    name = next(store.glob("data-*/nbr"))
    whole = name.read_bytes()
    about.write_text(original.replace(f'"version": {VERSION}', '"version": 99'))
    fails("data", "describe", store, containing=("version 99", "Convert the data again"))
    about.write_text(original.replace('"time": "number"', '"time": "date"'))
    fails("train", store, containing="checksum")
    about.write_text(original[: len(original) // 2])
    fails("data", "describe", store, containing="damaged")
    about.write_text(original)
    name.write_bytes(whole[:-4])
    fails("data", "describe", store, containing="truncated")
    name.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    for command in ("describe", "check"):  # of the right size: the checksum finds it
        fails("data", command, store, containing=("is damaged", "checksum of 'nbr'", "Restore a copy"))
    name.unlink()
    fails("data", "describe", store, containing="is missing")


def test_bad_targets_are_refused(store: Path, home: Path, tmp_path: Path) -> None:
    fails("data", "convert", home / "log.csv", store, containing=("already a store", "--replace"))
    works("data", "convert", home / "log.csv", store, "--replace")
    works("data", "check", store)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    fails("data", "convert", home / "log.csv", tmp_path / "full", containing="is not a store")
    fails("data", "convert", home / "log.csv", tmp_path / "no" / "where", containing="does not exist")
    fails("data", "convert", home / "log.csv", tmp_path / "x.txt", containing=".store")
    fails("data", "convert", home / "log.csv", tmp_path / "y", "--memory", "much", containing="'much'")
    fails("data", "append", tmp_path / "full", home / "log.csv", containing="is not a store")
    fails("data", "describe", store, "--src", "u", containing="leave out --src")
    assert (parse_size("4GB"), parse_size("2 GiB")) == (4 * 10**9, 2**31)


def test_files_of_a_folder_must_have_the_same_columns(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    fails("data", "convert", folder, tmp_path / "s", containing="holds no table")
    pq.write_table(pa.table({"src": [1], "dst": [2], "time": [3]}), folder / "a.parquet")
    pq.write_table(pa.table({"source": [1], "dst": [2], "time": [3]}), folder / "b.parquet")
    fails("data", "convert", folder, tmp_path / "s", containing=("b.parquet", "'src'", "same columns"))
    pq.write_table(pa.table({"src": [1], "dst": [2], "time": ["2024-01-01"]}), folder / "b.parquet")
    fails("data", "convert", folder, tmp_path / "s", containing=("b.parquet", "is a date"))
    assert not (tmp_path / "s").exists()


def test_a_locked_store_is_refused(store: Path, home: Path, tmp_path: Path) -> None:
    with store_lock(store):
        fails("data", "append", store, home / "log.csv", containing="Another process is writing")
        works("data", "describe", store)
    (tmp_path / "new.part").mkdir()
    with store_lock(tmp_path / "new.part"):
        fails("data", "convert", home / "log.csv", tmp_path / "new", containing="Another process is writing")


def test_a_full_disk(store: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old store stays, and the conversion resumes when there is space."""
    last = events()[-1][2]
    later = write_rows(tmp_path / "later.csv", [(1, 5, last + 1)], header=HEADER)
    written, room = arrays.ArrayWriter.append, [10]

    def append(self: arrays.ArrayWriter, values: Any) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(28, "No space left on device")
        written(self, values)

    with monkeypatch.context() as patch:
        patch.setattr(arrays.ArrayWriter, "append", append)
        fails("data", "append", store, later, containing=("No space left on device", "unchanged"))
        room[0] = 10
        fails("data", "convert", home / "log.csv", tmp_path / "new", containing=("No space left", "to resume"))
        fails("data", "describe", tmp_path / "new", containing="There is no")
    works("data", "check", store)
    assert open_store(store).n_events == len(events())
    works("data", "append", store, later)
    works("data", "convert", home / "log.csv", tmp_path / "new")
    works("data", "check", tmp_path / "new")
    assert not (tmp_path / "new.part").exists()


# -------------------- cut off


class Cut(BaseException):
    """Simulates SIGKILL: nothing catches it."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files left open, as a kill leaves them
def test_killed_at_any_file_operation_the_conversion_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is never a partial store at the target, and the resumed conversion gives the same store."""
    log = tmp_path / "log.parquet"
    table = pa.table({k: [row[i] for row in reversed(events(60))] for i, k in enumerate(HEADER)})
    pq.write_table(table, log, row_group_size=9)
    whole = convert_to_store(log, tmp_path / "whole")
    monkeypatch.setattr(os, "fsync", lambda _: None)
    left = [0]

    def counted(operation: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Cut
            return operation(*arguments, **options)

        return call

    for owner, name in (
        (arrays.ScratchArray, "append"), (arrays.ArrayWriter, "append"), (arrays.ArrayWriter, "close"), (os, "replace"),
        (os, "rename"), (build.shutil, "rmtree"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    monkeypatch.setattr("cordgt.io.convert.CHUNK_ROWS", 1)
    monkeypatch.setattr("cordgt.io.convert.MIN_MEMORY", 0)
    rng, cuts = random.Random(0), 0
    for k in range(8):
        target, done, reach = tmp_path / f"try-{k}", False, 60
        while not done:
            reach += 30  # a phase that is cut off begins again: some day it must get through
            left[0] = rng.randrange(1, reach)
            try:
                convert_to_store(log, target, memory=3_000)
                done = True
            except Cut:
                cuts += 1
                if target.exists():
                    open_store(target).verify()
        left[0] = -1
        found = open_store(target)
        found.verify()
        assert {n: (a.dtype, a.parts) for n, a in found.arrays.items()} == {
            n: (a.dtype, a.parts) for n, a in whole.arrays.items()
        }
    assert cuts > 16


def test_a_killed_process_resumes(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    rows = events(20_000, nodes=500)
    table = pa.table({k: [row[i] for row in rows] for i, k in enumerate(HEADER)})
    pq.write_table(table, log, row_group_size=100)
    part, target = tmp_path / "log.store.part", tmp_path / "log.store"
    running = process("data", "convert", log, target)
    while not (part / "state.json").exists() and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert not target.exists() or open_store(target)
    works("data", "convert", log, target)
    works("data", "check", target)
    assert open_store(target).generations[0] == convert_to_store(log, tmp_path / "whole").generations[0]


def test_features_stay_on_disk(tmp_path: Path) -> None:
    rows = [(*row, 0.5 * k, -k) for k, row in enumerate(events(120))]
    log = write_rows(tmp_path / "log.csv", rows, header=(*HEADER, "feature_0", "feature_1"))
    nodes = write_rows(tmp_path / "nodes.csv", [(k, k / 2) for k in range(12)], header=("id", "x"))
    target = tmp_path / "log.store"
    works("data", "convert", log, target, "--node-features", nodes)
    small = settings(batch_size=30)
    works("train", target, *small, "--device", "cpu", "--out", tmp_path / "a")
    works("train", log, *small, "--node-features", nodes, "--device", "cpu", "--out", tmp_path / "b")
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b") | {"data": "log"}


def test_messages_about_an_unfinished_store(tmp_path: Path, home: Path) -> None:
    part = tmp_path / "x.store.part"
    (part / "stage").mkdir(parents=True)
    write_rows(tmp_path / "v.store", events(), header=HEADER)
    for path in (tmp_path / "x.store", part):
        fails("data", "describe", path, containing=(str(part), "interrupted", "again"))
        fails("data", "append", path, home / "log.csv", containing="interrupted")
        with store_lock(part):
            fails("data", "describe", path, containing=("being made now", str(part)))
    fails("data", "convert", home / "log.csv", tmp_path / "y.part", containing=".part")


def test_messages_about_what_is_not_a_store(store: Path, home: Path, tmp_path: Path) -> None:
    fails("data", "append", home / "log.csv", store, containing=("is a file, not a store", "data convert"))
    fails("data", "append", tmp_path / "no.store", home / "log.csv", containing="does not exist")
    fails("data", "append", store, tmp_path / "no.csv", "--late", "perhaps", containing="refuse, merge")
    fails("data", "append", store, home / "log.csv", "--memory", "10MB", containing="(500MB)")
    assert " kB." in works("data", "check", store).out
    assert "500MB" in works("data", "convert", "--help").out


def test_append_uses_the_columns_of_the_store(tmp_path: Path) -> None:
    rows = [(1, 2, 3, 9), (2, 1, 4, 8)]
    log = write_rows(tmp_path / "log.csv", rows, header=("who", "whom", "day", "amount"))
    named = ("--src", "who", "--dst", "whom", "--time", "day", "--features", "amount")
    works("data", "convert", log, tmp_path / "x.store", *named)
    later = write_rows(tmp_path / "later.csv", [(7, 5, 2, 1), (8, 6, 1, 2)], header=("amount", "day", "whom", "who"))
    result = works("data", "append", tmp_path / "x.store", later)
    assert "--src who --dst whom --time day --features amount" in " ".join(result.err.split())
    assert open_store(tmp_path / "x.store").array("edge_x").tolist() == [[9], [8], [7], [8]]
    works("data", "convert", later, tmp_path / "y.store", *named)
    for data, options in ((tmp_path / "y.store", ()), (later, named)):  # a store has its columns; these are all told
        stderr = works("data", "append", tmp_path / "x.store", data, "--late", "merge", *options).err
        assert "with the columns of" not in " ".join(stderr.split())
    other = write_rows(tmp_path / "other.csv", [(7, 5, 2, 1)], header=("amount", "day", "whom", "by"))
    fails("data", "append", tmp_path / "x.store", other, containing=("no column 'who' for --src", "another with --src"))


def test_duplicate_events_are_reported(tmp_path: Path) -> None:
    """Two equal purchases are possible, so events that repeat others are counted, not refused."""
    days = [[(f"a{k}", f"b{k % 3}", f"2024-03-0{day}") for k in range(20)] for day in (1, 2)]
    first, second = (write_events(tmp_path / f"{k}.csv", rows) for k, rows in enumerate(days))
    part = write_events(tmp_path / "part.csv", days[1][:7])
    works("data", "convert", first, "it.store")
    assert "repeat" not in works("data", "append", "it.store", second).err
    assert "7 of the new events repeat" in works("data", "append", "it.store", part).err
    anyway = works("data", "append", "it.store", second, "--allow-duplicates").err
    assert "20 of the new events repeat" in anyway and "67 events in all" in anyway
    merged = works("data", "append", "it.store", first, "--late", "merge", "--allow-duplicates").err
    assert "20 of the new events repeat" in merged and "87 events in all" in merged


def test_skipped_comment_lines_are_reported(tmp_path: Path) -> None:
    works("data", "convert", write_events(tmp_path / "a.csv", [("a", "b", 1), ("c", "d", 2)] * 5), "it.store")
    stderr = works("data", "append", "it.store", write_events(tmp_path / "b.csv", [("a", "b", 3), ("#c", "d", 4)])).err
    assert "lines starting with # or % skipped (ids that begin so belong in quotes)" in stderr
    late = write_events(tmp_path / "c.csv", [("a", "b", 1), ("%c", "d", 1)])
    assert "lines starting with # or % skipped" in works("data", "append", "it.store", late, "--late", "merge").err
