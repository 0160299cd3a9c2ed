"""A store equals the stream of ``read_events`` bit for bit: ids, order and index."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.events.stream import EventStream
from cordgt.history.index import TemporalIndex
from cordgt.io import event_chunks, file_chunks
from cordgt.io.convert import append_to, convert_to_store
from cordgt.io.event_chunks import FileSource
from cordgt.io.readers import read_events
from cordgt.store.append import append_to_store
from cordgt.store.build import make_store
from cordgt.store.store import Store, open_store
from cordgt.training.run_folder import fingerprint, ids_fingerprint

SMALL_MEMORY = 2_000  # bytes: a few rows per chunk, many ranges


@dataclass(frozen=True)
class Log:
    """A table of events with ties, repeats and self-loops, in any order."""

    table: pa.Table

    @property
    def n(self) -> int:
        return self.table.num_rows

    def write(self, path: Path, start: int = 0, stop: int | None = None) -> Path:
        part = self.table.slice(start, (self.n if stop is None else stop) - start)
        if path.suffix == ".csv":
            pa.csv.write_csv(part, path)
        else:
            pq.write_table(part, path, row_group_size=5)
        return path

    def sorted(self) -> Log:
        times = np.asarray(self.table["time"].cast(pa.float64()))
        return Log(self.table.take(pa.array(np.argsort(times, kind="stable"))))


@st.composite
def logs(draw: st.DrawFn, *, features: bool = True, least: int = 1) -> Log:
    n = draw(st.integers(least, 30))
    ids = st.integers(-3, 6)
    src, dst = (draw(st.lists(ids, min_size=n, max_size=n)) for _ in range(2))
    times = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    text = draw(st.sampled_from(["", "src", "both"]))
    columns: dict[str, Any] = {
        "src": [f"ü{k}" for k in src] if text else src,
        "dst": [f"ü{k}" for k in dst] if text == "both" else dst,
    }
    if draw(st.booleans()):
        columns = {"user_id": columns["src"], "item_id": columns["dst"]}  # two id spaces
    unit = draw(st.sampled_from([1, 0.25]))
    columns["time"] = [k * unit for k in times]
    if draw(st.booleans()):
        columns["label"] = draw(st.lists(st.sampled_from([0, 1, None]), min_size=n, max_size=n))
    if features and draw(st.booleans()):
        columns |= {f"feature_{k}": [float(i * k) for i in range(n)] for k in (1, 2)}
    return Log(pa.table(columns))


@pytest.fixture(scope="module", autouse=True)
def small_and_quick() -> Iterator[None]:
    """Read text in small chunks, and do not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (event_chunks, file_chunks):
            patch.setattr(module, "HEAD_BYTES", 150)
        patch.setattr(os, "fsync", lambda _: None)
        yield


def assert_same(store: Store, expected: EventStream) -> None:
    store.verify()
    found = store.stream()
    for name in ("src", "dst", "t", "elapsed", "tie_start", "label", "edge_x", "node_x"):
        _assert_equal(getattr(found, name), getattr(expected, name), name)
    assert found.ids.names.equals(expected.ids.names)
    _assert_equal(found.ids.side, expected.ids.side, "side")
    assert found.time == expected.time
    index = TemporalIndex.build(expected.src, expected.dst, expected.elapsed, expected.n_nodes)
    backing = found.backing
    assert backing is not None
    for name, array in {**backing.index.arrays, "tie_start": backing.tie_start}.items():
        _assert_equal(array, getattr(index, name).numpy(), name)
    assert backing.index.longest == {name: getattr(index, name) for name in backing.index.longest}
    assert fingerprint(found) == fingerprint(expected)
    assert ids_fingerprint(found) == ids_fingerprint(expected)
    queries = pa.chunked_array([pa.array(["ü1", "3", "007", None, "ü99"]), expected.ids.names.cast(pa.string())])
    for side in ("src", "dst"):
        _assert_equal(found.ids.encode(queries, side), expected.ids.encode(queries, side), "encode")
        _assert_equal(found.ids.encode([1, 3, 2**63], side), expected.ids.encode([1, 3, 2**63], side), "encode")


def _assert_equal(found: Any, expected: Any, name: str) -> None:
    assert (found is None) == (expected is None), name
    if expected is not None:
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(found, expected, err_msg=name)


def source(paths: list[Path], **options: Any) -> FileSource:
    return FileSource(paths, chunk_rows=7, chunk_bytes=40, name="log", **options)


@settings(max_examples=40, deadline=None)
@given(log=logs(), extension=st.sampled_from(["csv", "parquet"]))
def test_store_equals_read_events(log: Log, extension: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = log.write(Path(folder) / f"log.{extension}")
        store = make_store(source([path]), Path(folder) / "log.store", memory=SMALL_MEMORY)
        assert_same(store, read_events(path))


@settings(max_examples=15, deadline=None)
@given(log=logs(least=3), parts=st.integers(2, 3))
def test_a_folder_of_files_is_their_concatenation(log: Log, parts: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = log.write(Path(folder) / "whole.parquet")
        (Path(folder) / "parts").mkdir()
        for k in range(parts):
            log.write(Path(folder) / "parts" / f"{k}.parquet", k * log.n // parts, (k + 1) * log.n // parts)
        store = convert_to_store(Path(folder) / "parts", Path(folder) / "log.store")
        assert_same(store, read_events(whole))


@settings(max_examples=30, deadline=None)
@given(log=logs(least=2), data=st.data())
def test_append_equals_converting_at_once(log: Log, data: st.DataObject) -> None:
    """The new events may begin at the time of the last old event."""
    log = log.sorted()
    if "label" in log.table.column_names:  # typed alike in both files
        at = log.table.column_names.index("label")
        log = Log(log.table.set_column(at, "label", log.table["label"].cast(pa.float64())))
    cut = data.draw(st.integers(1, log.n - 1))
    again = data.draw(st.integers(cut, log.n))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        first = make_store(source([log.write(home / "a.parquet", 0, cut)]), home / "log.store", memory=SMALL_MEMORY)
        before = read_events(home / "a.parquet")
        for start, stop in ((cut, again), (again, log.n)):
            if start < stop:
                more = source([log.write(home / "b.parquet", start, stop)])
                append_to_store(home / "log.store", more, memory=SMALL_MEMORY, allow_duplicates=True)
        store = open_store(home / "log.store")
        assert_same(store, read_events(log.write(home / "whole.parquet")))
        then = store.stream(first.generations[0]["fingerprint"])
        assert (then.n_events, then.n_nodes) == (before.n_events, before.n_nodes)
        assert then.ids.encode(before.ids.names, "dst").tolist() == before.ids.encode(before.ids.names, "dst").tolist()


@settings(max_examples=15, deadline=None)
@given(log=logs(least=2, features=False), data=st.data())
def test_merge_equals_converting_at_once(log: Log, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, log.n - 1))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        columns = [name for name in log.table.column_names if name != "label"]
        log = Log(log.table.select(columns))
        convert_to_store(log.write(home / "a.csv", 0, cut), home / "log.store")
        append_to(home / "log.store", log.write(home / "b.csv", cut), late="merge", allow_duplicates=True)
        # of events at one time the old ones come first, as in one file
        assert_same(open_store(home / "log.store"), read_events(log.write(home / "whole.csv")))
