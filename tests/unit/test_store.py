"""Stores: interrupted writes, concurrent writers, appends, damage, inherited columns."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordgt import files
from cordgt.callbacks import Callback
from cordgt.errors import DataError, RunError
from cordgt.events.backing import INDEX_ARRAYS, IndexData
from cordgt.events.fingerprints import fingerprint_arrays, fingerprint_ids
from cordgt.events.ids import NodeIds
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.files import file_lock, is_file_locked
from cordgt.history import index_builder
from cordgt.history.index import TemporalIndex
from cordgt.history.index_builder import build_index
from cordgt.inference.run import Run
from cordgt.io import event_chunks, file_chunks
from cordgt.io.convert import append_to, convert_to_store, inherited_columns
from cordgt.io.readers import read_events
from cordgt.store import append, arrays, build, check_cache, index_writer, masked_index
from cordgt.store.append import REWRITTEN
from cordgt.store.description import EVENTS, LOOKUP, NAMES
from cordgt.store.source import ConcatSource, ReadPosition, StreamSource
from cordgt.store.store import STORE_FILE, open_store, partial_store_hint, store_lock
from cordgt.workflows.train import train


class StepCounter(Callback):
    total = 0

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.total += n


class Killed(BaseException):
    """Simulates SIGKILL: nothing catches it."""


def kill(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def stream(n: int = 60, *, seed: int = 0, start: int = 0, nodes: int = 9, **columns: Any) -> EventStream:
    """Return a stream with ties, repeated pairs and self-loops."""
    draw = np.random.default_rng(seed)
    src, dst = draw.integers(0, nodes, (2, n))
    t = start + draw.choice([0, 1, 3], n).cumsum()
    return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name="log", **columns)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return convert_to_store(stream(), tmp_path / "log.store").path


@pytest.fixture
def kill_before_replace(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Simulate a kill just before ``store.json`` is replaced."""
    replace = os.replace

    def replace_or_kill(source: Any, target: Any) -> None:
        if Path(source).name == STORE_FILE:
            raise Killed
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(build.os, "replace", replace_or_kill)
        yield patch


# -------------------- interrupted


def test_a_merge_killed_before_replace_starts_again(made: Path, kill_before_replace: pytest.MonkeyPatch) -> None:
    """The second attempt removes what the first had moved, and must not rely on it."""
    late = stream(5, seed=1, start=3)
    with pytest.raises(Killed):
        append_to(made, late, late="merge")
    kill_before_replace.undo()
    open_store(made).verify()
    append_to(made, late, late="merge")
    found = open_store(made)
    found.verify()
    assert found.n_events == 65
    assert sorted(p.name for p in made.parent.iterdir()) == ["log.store"]


@pytest.mark.parametrize("written_since", [False, True])
def test_a_replacement_killed_before_replace_resumes(
    written_since: bool, made: Path, kill_before_replace: pytest.MonkeyPatch
) -> None:
    other = stream(40, seed=2)
    with pytest.raises(Killed):
        convert_to_store(other, made, replace=True)
    kill_before_replace.undo()
    if written_since:
        append_to(made, stream(5, seed=1, start=1000))
    convert_to_store(other, made, replace=True)
    found = open_store(made)
    found.verify()
    assert found.n_events == 40


def test_a_replacement_killed_after_replace_starts_again(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("cordgt.store.store.Store.remove_leftovers", kill)
        convert_to_store(stream(40, seed=2), made, replace=True)
    assert convert_to_store(stream(40, seed=2), made, replace=True).n_events == 40


# -------------------- concurrent


def masks(n: int, n_nodes: int) -> list[npt.NDArray[np.bool_]]:
    return [np.arange(n_nodes) == k for k in range(n)]


def masked_index_of(found: EventStream, mask: npt.NDArray[np.bool_]) -> IndexData:
    assert found.backing is not None
    return found.backing.masked_index(found.src, found.dst, mask)


@pytest.mark.parametrize("n_masks", [1, 4])
def test_masked_indexes_are_built_once_and_one_at_a_time(
    n_masks: int, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four simultaneous callers each gets a complete index, and each distinct index is built once."""
    found, barrier, calls = open_store(made).stream(), threading.Barrier(4), [0]
    write_index = masked_index.write_index

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        time.sleep(0.02)
        return write_index(*arguments, **options)

    def train(mask: npt.NDArray[np.bool_]) -> int:
        barrier.wait()
        return int(masked_index_of(found, mask).arrays["row_start"][-1])

    monkeypatch.setattr(masked_index, "write_index", counted)
    masked = [masks(n_masks, found.n_nodes)[k % n_masks] for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        lengths = list(pool.map(train, masked))
    touched = [mask[found.src] | mask[found.dst] for mask in masked]
    loops = found.src == found.dst
    assert lengths == [int((~events * np.where(loops, 1, 2)).sum()) for events in touched]
    assert calls[0] == n_masks
    assert len(list(made.glob("masked-*"))) == min(n_masks, masked_index.MAX_INDEXES)


def test_append_keeps_an_index_that_is_being_built(made: Path) -> None:
    part = made / "masked-1.part-2"
    part.mkdir()
    (made / masked_index.LOCK).touch()
    with file_lock(made / masked_index.LOCK):
        append_to(made, stream(5, start=1000))
        assert part.exists()
    append_to(made, stream(5, start=2000))
    assert not part.exists(), "left by a killed process"


def test_the_temporary_cache_is_private(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_index.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(masked_index.os, "access", lambda *_: False)
    found = open_store(made).stream()
    masked_index_of(found, masks(1, found.n_nodes)[0])
    own = tmp_path / f"cordgt-{os.getuid()}"
    assert own.stat().st_mode & 0o77 == 0
    assert list(own.glob("masked-*"))
    monkeypatch.setattr(masked_index.os, "getuid", lambda: 12345)
    own.rename(tmp_path / "cordgt-12345")
    with pytest.raises(DataError, match="belongs to another user"):
        masked_index_of(found, masks(1, found.n_nodes)[0])


def test_masked_indexes_are_verified(made: Path) -> None:
    found = open_store(made).stream()
    masked_index_of(found, masks(1, found.n_nodes)[0])
    counter = StepCounter()
    assert masked_index.verify_masked_indexes(made, counter) == 1
    file = next(made.glob("masked-*/nbr"))
    assert counter.total == sum(p.stat().st_size for p in file.parent.iterdir() if p.name != "index.json")
    file.write_bytes(b"?" + file.read_bytes()[1:])
    with pytest.raises(DataError, match=r"masked-\w+ is damaged\. Remove it"):
        masked_index.verify_masked_indexes(made)


def test_the_lock_of_a_removed_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the holder of the lock removed the folder."""
    folder, opened = tmp_path / "x", os.open
    folder.mkdir()

    def open_then_remove(*arguments: Any) -> int:
        handle = opened(*arguments)
        folder.rmdir()
        return handle

    monkeypatch.setattr(files.os, "open", open_then_remove)
    with pytest.raises(DataError, match="busy"), file_lock(folder, DataError("busy")):
        pass


# -------------------- appended

TINY: dict[str, Any] = {"epochs": 1, "batch_size": 20, "heads": 1}
MODELS: dict[str, dict[str, Any]] = {
    "cordgt": {"hidden": 4, "fanout": (2, 1), "td_dim": 4, "sd_dim": 4, "layers": 1},
    "tgn": {"memory_dim": 4, "time_dim": 4},
}


@pytest.mark.parametrize("model", MODELS)
def test_metrics_do_not_change_when_new_nodes_are_appended(model: str, made: Path, tmp_path: Path) -> None:
    train(read_events(made), model, out=tmp_path / "run", device="cpu", report=False, **TINY, **MODELS[model])
    before = Run.load(tmp_path / "run", "cpu").evaluate()
    append_to(made, stream(30, seed=1, start=1000, nodes=20))
    run = Run.load(tmp_path / "run", "cpu")
    assert run.stream.n_events == 90
    assert run.evaluate() == before


def test_the_index_of_an_earlier_version_has_its_own_size(made: Path) -> None:
    before = open_store(made).stream()
    append_to(made, stream(30, seed=1, start=1000, nodes=20))
    then = open_store(made).stream(before.backing.fingerprint)
    assert then.n_nodes == before.n_nodes
    ends = {"nbr": "row_start", "pos": "row_start", "nbr_degree": "row_start", "pair_pos": "pair_pos_start"}
    for rows, starts in (ends | {"pair_nbr": "pair_start"}).items():
        assert then.backing.index.arrays[starts][-1] == len(then.backing.index.arrays[rows]), rows
    assert len(then.backing.index.arrays["pair_pos_start"]) == len(then.backing.index.arrays["pair_nbr"]) + 1


def test_resume_after_an_append_to_the_store(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run trains on its original events, with the same metrics; then it predicts from all events."""
    options = {**TINY, **MODELS["cordgt"], "epochs": 2}
    whole = train(read_events(made), out=tmp_path / "whole", device="cpu", report=False, **options)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("cordgt.training.run_folder.RunFolder.append_history", kill)
        train(read_events(made), out=tmp_path / "run", device="cpu", report=False, **options)
    append_to(made, stream(30, seed=1, start=1000, nodes=20))
    run = train(read_events(made), out=tmp_path / "run", device="cpu", report=False, resume=True, **options)
    assert run.stream.n_events == 90
    assert run.metrics["test"] == whole.metrics["test"]
    with pytest.raises(RunError, match="other data"):
        train(stream(30), out=tmp_path / "run", device="cpu", report=False, resume=True, **options)


def test_runs_stay_valid_after_appending_events_without_labels(tmp_path: Path) -> None:
    """Integers cannot represent a missing label, so the store is rebuilt; its old events stay the same."""
    before = convert_to_store(stream(label=np.arange(60)), tmp_path / "log.store")
    append_to(before.path, stream(5, start=500, label=np.arange(5)))
    grown = append_to(before.path, stream(30, seed=1, start=1000, nodes=20))
    assert [k["events"] for k in grown.generations] == [60, 65, 95]
    for generation in grown.generations:
        then = grown.stream(generation["fingerprint"])
        assert fingerprint_arrays([then.src, then.dst, then.t]) == generation["fingerprint"]
        assert fingerprint_ids(then.ids.names, "number") == generation["ids"]
    assert np.isnan(grown.stream().label[65:]).all()
    late = append_to(before.path, stream(5), late="merge")
    assert len(late.generations) == 1


def test_index_ranges_respect_the_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, largest = stream(900, nodes=400), [0]
    add_rows = index_builder._add_rows

    def recording(entries: Any, *arguments: Any) -> None:
        largest[0] = max(largest[0], len(entries))
        add_rows(entries, *arguments)

    monkeypatch.setattr(index_builder, "_add_rows", recording)
    written = index_writer.write_index(
        tmp_path, found.src, found.dst, found.tie_start, found.n_nodes, memory=16 * index_writer.BYTES_PER_ENTRY
    )
    assert written.longest["max_degree"] <= largest[0] <= 16
    index = TemporalIndex.build(found.src, found.dst, found.elapsed, found.n_nodes)
    assert np.fromfile(tmp_path / "nbr", np.int32).tolist() == index.nbr.tolist()


@pytest.mark.parametrize("entries", [16, 10_000])
def test_write_index_equals_build_index(tmp_path: Path, entries: int) -> None:
    """With masked nodes, in many ranges or one; then extended within a tie, with new nodes."""
    found, masked = stream(900, nodes=400), np.arange(400) % 7 == 0
    masked = masked[: found.n_nodes]
    keep = ~(masked[found.src] | masked[found.dst])
    options: dict[str, Any] = {"memory": entries * index_writer.BYTES_PER_ENTRY}
    check_write_index(tmp_path / "masked", found, options | {"masked": masked}, keep)
    cut = int(np.flatnonzero(found.tie_start < np.arange(900))[100])  # not the first event of its time
    known = int(max(found.src[:cut].max(), found.dst[:cut].max())) + 1
    assert known < found.n_nodes
    prior = build_index(found.src[:cut], found.dst[:cut], found.tie_start[:cut], known)
    check_write_index(tmp_path / "prior", found, options | {"prior": index_writer.PriorIndex(prior.arrays, cut)}, None)


def check_write_index(
    folder: Path, found: EventStream, options: dict[str, Any], keep: npt.NDArray[np.bool_] | None
) -> None:
    """Write an index and compare it with the one in memory."""
    folder.mkdir()
    written = index_writer.write_index(folder, found.src, found.dst, found.tie_start, found.n_nodes, **options)
    expected = build_index(found.src, found.dst, found.tie_start, found.n_nodes, keep)
    assert written.longest == expected.longest
    for name in INDEX_ARRAYS:
        assert written.arrays[name].dtype == expected.arrays[name].dtype.str, name
        np.testing.assert_array_equal(
            np.fromfile(folder / name, written.arrays[name].dtype), expected.arrays[name], name
        )


# -------------------- sources


def test_concat_source() -> None:
    """Labels that only the second source has are dropped; a stream can resume, two cannot."""
    first, second = StreamSource(stream(5), chunk_rows=2), StreamSource(stream(3, start=50, label=np.arange(3)))
    both = ConcatSource(first, second)
    found = list(both.chunks(ReadPosition()))
    assert [len(chunk.t) for _, chunk in found] == [2, 2, 1, 3]
    assert all(after is None and chunk.label is None for after, chunk in found)
    assert both.n_events() == 8
    [_, (after, _), *_] = first.chunks(ReadPosition())
    assert [chunk.t.tolist() for _, chunk in first.chunks(after)] == [stream(5).t[4:].tolist()]


def test_a_different_stream_does_not_resume_the_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = stream()
    for changed in (
        replace(one, src=one.dst, dst=one.src),
        replace(one, label=np.arange(60)),
        replace(one, edge_x=np.ones((60, 2), np.float32)),
        replace(one, node_x=np.ones((one.n_nodes, 2), np.float32)),
        replace(one, ids=NodeIds(pa.array([f"n{k}" for k in range(one.n_nodes)]))),
    ):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(build, "write_events", kill)  # after staging
            convert_to_store(one, tmp_path / "log.store", replace=True)
        found = convert_to_store(changed, tmp_path / "log.store", replace=True)
        expected = convert_to_store(changed, tmp_path / "other.store", replace=True)
        assert (found.generations, found.arrays.keys()) == (expected.generations, expected.arrays.keys())


def test_changed_node_features_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, log, part = tmp_path / "nodes.csv", tmp_path / "log.csv", tmp_path / "log.store.part"
    log.write_text("src,dst,time\n1,2,3\n2,1,4\n")
    nodes.write_text("id,x\n1,5\n2,6\n")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(build, "_put_in_place", kill)
        convert_to_store(log, tmp_path / "log.store", node_features=nodes)
    assert (part / STORE_FILE).exists()
    nodes.write_text("id,x\n1,50\n2,60\n")
    made = convert_to_store(log, tmp_path / "log.store", node_features=nodes)
    assert made.array("node_x").tolist() == [[50.0], [60.0]]


class ForwardOnly(io.BytesIO):
    """A file that fails on seek."""

    def seek(self, place: int, whence: int = 0) -> int:
        raise AssertionError("seeking in gzip decompresses it from the start")


def test_compressed_text_is_read_forward_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f'"a\n{k % 7}",b{k % 5},{k}' for k in range(100)]
    text = ("src,dst,time\n" + "\n".join(rows) + "\n").encode()
    path = tmp_path / "log.csv"
    path.write_bytes(text)
    whole = read_events(path)
    for module in (event_chunks, file_chunks):
        monkeypatch.setattr(module, "HEAD_BYTES", 150)
        monkeypatch.setattr(module, "open_text_file", lambda *_: ForwardOnly(text))
    source = event_chunks.FileSource([path], chunk_bytes=40)
    found = [rows for _, rows in source.chunks(event_chunks.ReadPosition())]
    assert len(found) > 10
    assert np.concatenate([rows.t for rows in found]).tolist() == whole.t.tolist()
    assert [k for rows in found for k in rows.src.to_pylist()] == whole.ids.decode(whole.src).to_pylist()


def test_error_names_the_file_of_a_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_chunks, "HEAD_BYTES", 20)
    (tmp_path / "log.csv").write_text("x" * 1000)
    with pytest.raises(DataError, match=r"log\.csv: a line is longer"):
        event_chunks.FileSource([tmp_path / "log.csv"])


def test_duplicate_column_names_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst,time\n1,2,3\n")
    (tmp_path / "b.csv").write_text("src,dst,time,src\n1,2,3,4\n")
    with pytest.raises(DataError, match=r"b\.csv has 2 columns 'src'"):
        convert_to_store(tmp_path, tmp_path / "x")


def test_merge_drops_all_zero_features(tmp_path: Path) -> None:
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    for name, t in (("a", 10), ("b", 5)):
        (tmp_path / f"{name}.csv").write_text(header + f"1,2,{t},0,0,0\n2,1,{t + 1},0,0,0\n")
    convert_to_store(tmp_path / "a.csv", tmp_path / "log.store")
    grown = append_to(tmp_path / "log.store", tmp_path / "b.csv", late="merge")
    assert (grown.n_events, "edge_x" in grown.arrays) == (4, False)


# -------------------- damaged


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def sizes(store: Path) -> dict[str, int]:
    """Return the size of every file below a folder."""
    return {str(p.relative_to(store)): p.stat().st_size for p in store.rglob("*") if p.is_file()}


def flip(store: Path, name: str) -> None:
    """Flip one bit of the last number of an array."""
    array = open_store(store).arrays[name]
    with (store / array.file).open("r+b") as file:
        file.seek(array.n_bytes - np.dtype(array.dtype).itemsize)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 2]))


def later(n: int, start: int) -> EventStream:
    """Return events with text ids in two spaces, labels and features: a store with every array but ``name``."""
    bare = stream(n, seed=3, start=start)
    users, things = ([f"{kind}{k}" for k in side] for kind, side in (("u", bare.src), ("v", bare.dst)))
    more: dict[str, Any] = {"label": np.arange(n), "edge_x": np.ones((n, 2), np.float32)}
    return EventStream.from_columns(users, things, bare.t, time=bare.time, name="log", shared_ids=False, **more)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store with every array but ``name``, and the same after later events."""
    folder, events = tmp_path_factory.mktemp("intact"), later(60, 0)
    before = replace(events, node_x=np.ones((events.n_nodes, 2), np.float32))
    convert_to_store(before, folder / "before")
    shutil.copytree(folder / "before", folder / "after")
    append_to(folder / "after", later(7, 1000))
    return folder / "before", folder / "after"


@pytest.mark.parametrize("name", [*EVENTS, *LOOKUP, *INDEX_ARRAYS, *NAMES, "node_x"])
def test_damage_is_found_at_first_use(name: str, made: Path, intact: tuple[Path, Path], tmp_path: Path) -> None:
    """Also right after a conversion, which is not checked again, and with the old times of the file."""
    damaged, more = made, stream
    if name != "name":
        damaged, more = tmp_path / "damaged", later
        shutil.copytree(intact[0], damaged)
    open_store(damaged).stream()
    file = damaged / open_store(damaged).arrays[name].file
    status = file.stat()
    flip(damaged, name)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    before, refused = contents(damaged), pytest.raises(DataError, match=rf"'{name}'.*Restore a copy")
    for _ in range(2):
        with refused:
            open_store(damaged).stream()
    with refused:
        append_to(damaged, more(5, start=3), late="merge")
    with refused:
        append_to(damaged, more(7, start=1000))
    with refused:
        convert_to_store(damaged, tmp_path / "copy")
    assert contents(damaged) == before
    flip(damaged, name)
    assert open_store(damaged).stream().n_events == 60


@pytest.mark.parametrize("name", [*EVENTS, *LOOKUP, *INDEX_ARRAYS, *NAMES, "node_x"])
def test_append_does_not_hide_damage(
    name: str, made: Path, intact: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk loses a bit, the file has its old times. A damaged array is refused, or fails a later verification.

    Pairs are computed again, which repairs them.
    """
    monkeypatch.setattr(check_cache.FileStates, "is_remembered", lambda _: True)
    damaged, more = made, stream
    if name != "name":
        damaged, more = tmp_path / "damaged", later
        shutil.copytree(intact[0], damaged)
    flip(damaged, name)
    before, refused = sizes(damaged), pytest.raises(DataError, match=rf"'{name}'.*Nothing was appended.*copy")
    with refused:
        append_to(damaged, more(5, start=3), late="merge")
    with pytest.raises(DataError, match=f"'{name}'"):
        if name in (*LOOKUP, *INDEX_ARRAYS):
            open_store(damaged).verify()
        else:
            convert_to_store(damaged, tmp_path / "copy")
    if name in REWRITTEN:
        with refused:
            append_to(damaged, more(7, start=1000))
    assert sizes(damaged) == before
    if name not in REWRITTEN:
        grown, clean = append_to(damaged, more(7, start=1000)), open_store(intact[1])
        if name in INDEX_ARRAYS:
            grown.verify()
            assert {k: a.parts for k, a in grown.arrays.items()} == {k: a.parts for k, a in clean.arrays.items()}
        else:
            with pytest.raises(DataError, match=f"'{name}'"):
                grown.verify()


# -------------------- failures


def test_a_failed_append_leaves_no_files(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a full disk: appended rows are truncated."""
    before = sizes(made)
    with pytest.raises(DataError, match="before the last event"):
        append_to(made, stream(5, start=0))
    assert sizes(made) == before
    written, room = arrays.ArrayWriter.append, [0]

    def append(self: arrays.ArrayWriter, values: Any) -> None:
        room[0] -= 1
        if room[0] < 0:
            self._file.flush()
            raise OSError(28, "No space left on device")
        written(self, values)

    monkeypatch.setattr(arrays.ArrayWriter, "append", append)
    for failing in (3, 6, 9, 14):
        room[0] = failing
        with pytest.raises(DataError, match="No space left"):
            append_to(made, stream(500, seed=1, start=1000))
        assert sizes(made) == before, failing
    open_store(made).verify()


def test_a_failed_merge_leaves_no_files(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged events are removed before the store is rebuilt."""
    before, during = sizes(made), []

    def write_events(*_: Any) -> None:
        during.append(sizes(made))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(DataError, match=r"No space left.*same command to resume"):
        patch.setattr(build, "write_events", write_events)
        append_to(made, stream(5), late="merge")
    assert during == [before]
    assert (sizes(made), list(made.glob("index-*"))) == (before, [])
    assert append_to(made, stream(5), late="merge").n_events == 65


def test_the_next_append_truncates_what_a_killed_one_left(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sizes(made)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(append, "write_index", kill)
        patch.setattr(append, "_undo", lambda _: None)  # as after a kill
        append_to(made, stream(500, seed=1, start=1000))
    assert sizes(made) != before
    with pytest.raises(DataError, match="before the last event"):
        append_to(made, stream(5, start=0))
    assert sizes(made) == before


def test_an_append_interrupted_after_replace_is_complete(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C just after ``store.json`` was replaced: its new files stay."""
    write = append.Store.write

    def write_then_stop(self: Any, folder: Path | None = None) -> None:
        write(self, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(append.Store, "write", write_then_stop)
    with pytest.raises(KeyboardInterrupt):
        append_to(made, stream(5, start=1000))
    open_store(made).verify()
    assert open_store(made).n_events == 65


def test_unusable_options_are_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'src'"):
        convert_to_store(stream(), tmp_path / "x", src="nonsense")
    with pytest.raises(DataError, match=r"no option 'scr'\. Did you mean 'src'"):
        convert_to_store(made, tmp_path / "x", scr="u")
    with pytest.raises(DataError, match="convert_to_store"):
        append_to(made, stream(start=1000), node_features="nodes.csv")
    for call in (convert_to_store, append_to):
        with pytest.raises(DataError, match="at least 500,000,000"):
            call(made, tmp_path / "x", memory=1000)
    convert_to_store(stream(5, start=1000), tmp_path / "later.store")
    assert append_to(made, tmp_path / "later.store").n_events == 65


# -------------------- work folder and locks


def test_a_foreign_part_folder_is_left_alone(tmp_path: Path) -> None:
    part = tmp_path / "foo.part"
    part.mkdir()
    assert partial_store_hint(tmp_path / "foo") == ""
    (part / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match=r"foo\.part.*\(mine\.txt\)"):
        convert_to_store(stream(), tmp_path / "foo")
    assert (part / "mine.txt").exists()
    (part / STORE_FILE).touch()
    assert "was interrupted" in partial_store_hint(tmp_path / "foo")


def test_hint_for_an_unreadable_part_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foo.part" / "stage").mkdir(parents=True)

    def refuse(_: Any) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    assert "cannot be read: Permission denied" in partial_store_hint(tmp_path / "foo")


def test_is_file_locked_blocks_neither_writers_nor_other_checks(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # as in `is_file_locked`
    assert not is_file_locked(tmp_path)
    over = threading.Timer(0.05, os.close, [handle])
    over.start()
    with store_lock(tmp_path):
        assert is_file_locked(tmp_path)
        with pytest.raises(DataError, match="Another process"), store_lock(tmp_path):
            pass
    assert not is_file_locked(tmp_path)
    over.join()


# -------------------- columns


def write(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([*([header] if header else []), *rows]) + "\n")
    return path


def test_append_reads_the_same_columns_as_the_store(tmp_path: Path) -> None:
    """In any order; other columns, or no labels, only if options say so."""
    first = write(tmp_path / "a.csv", "who,whom,seconds,fraud,amount,tip", "1,2,3,0,9,1", "2,1,4,1,8,2")
    store = tmp_path / "log.store"
    made = convert_to_store(first, store, src="who", dst=1, time="seconds", label="FRAUD", features="4-5")
    columns = {"src": "who", "dst": "whom", "time": "seconds", "label": "fraud", "features": ["amount", "tip"]}
    assert made.columns == open_store(store).columns == columns
    append_to(store, write(tmp_path / "b.csv", "tip,amount,fraud,seconds,note,whom,who", "3,7,0,5,x,1,2"))
    append_to(store, write(tmp_path / "c.csv", "amount,tip,seconds,whom,by", "6,4,6,1,2"), src="by", label="none")
    late = write(tmp_path / "d.csv", "who,whom,seconds,fraud,amount,tip", "9,2,1,0,5,5")
    found = append_to(store, late, late="merge")
    assert found.columns == columns
    assert found.array("edge_x").tolist() == [[5, 5], [9, 1], [8, 2], [7, 3], [6, 4]]
    assert found.array("src").tolist() == [0, 2, 1, 1, 1]
    assert np.isnan(found.array("label")[-1])
    missing = write(tmp_path / "e.csv", "who,seconds,amount,tip,to", "6,4,6,1,2")
    with pytest.raises(DataError, match=r"no column 'whom' for --dst.*log\.store was made with that column"):
        append_to(store, missing)
    assert convert_to_store(store, tmp_path / "copy.store").columns == columns


def test_labels_are_dropped_only_on_request(tmp_path: Path) -> None:
    """Whether their column was named or recognized by its usual name."""
    for k, (column, named) in enumerate((("lab", {"label": "lab"}), ("label", {}))):
        store = tmp_path / f"{k}.store"
        convert_to_store(write(tmp_path / "a.csv", f"src,dst,time,{column}", "1,2,3,0", "2,1,4,1"), store, **named)
        later, before = write(tmp_path / "b.csv", "src,dst,time,label2", "1,2,5,1"), sizes(store)
        with pytest.raises(DataError, match=r"with --label.*--label none"):
            append_to(store, later)
        assert sizes(store) == before
        append_to(store, later, label="label2")
        assert open_store(store).array("label").tolist() == [0, 1, 1]
        assert np.isnan(append_to(store, later, label="none").array("label")[-1])


def test_label_none_reads_no_labels(tmp_path: Path) -> None:
    log = write(tmp_path / "a.csv", "src,dst,time,label", "1,2,3,0")
    made = convert_to_store(log, tmp_path / "x.store", label="none")
    assert (made.columns, made.array("label"), read_events(log, label="none").label) == ({"label": "none"}, None, None)
    assert append_to(made.path, log).array("label") is None
    named = write(tmp_path / "b.csv", "src,dst,time,none", "1,2,3,7")
    assert read_events(named, label="none").label.tolist() == [7]


def test_features_with_other_names_are_refused(tmp_path: Path) -> None:
    store = tmp_path / "log.store"
    convert_to_store(write(tmp_path / "a.csv", "src,dst,time,amount,tip", "1,2,3,9,1"), store, features="amount")
    later = write(tmp_path / "b.csv", "src,dst,time,price,Amount", "1,2,4,8,7")
    with pytest.raises(DataError, match=r"features of the new events are price; those of .*log\.store are amount"):
        append_to(store, later, features="price")
    convert_to_store(later, tmp_path / "other.store", features="price")
    with pytest.raises(DataError, match="are price"):
        append_to(store, tmp_path / "other.store")
    assert append_to(store, later).array("edge_x").tolist() == [[9], [7]]


def test_column_positions_apply_to_files_without_header(tmp_path: Path) -> None:
    store = tmp_path / "log.store"
    made = convert_to_store(write(tmp_path / "a.csv", "", "3,1,2,5"), store, src="1", dst=2, time=0, features=[3])
    assert made.columns == {"src": "1", "dst": "2", "time": "0", "features": "3"}
    append_to(store, write(tmp_path / "b.csv", "", "4,2,1,6"))
    named = write(tmp_path / "c.csv", "src,dst,time,feature_0", "1,2,5,7")
    found = append_to(store, named)
    assert (found.array("t").tolist(), found.array("edge_x").tolist()) == ([3, 4, 5], [[5], [6], [7]])


def test_inherited_positions_do_not_apply_to_files_with_header(tmp_path: Path) -> None:
    """But columns whose names are numbers are found by these names."""
    store = convert_to_store(write(tmp_path / "a.csv", "", "1,2,x,x,x,3"), tmp_path / "a.store", src=0, dst=1, time=5)
    named = write(tmp_path / "b.csv", "src,dst,time", "2,1,4")
    assert (
        inherited_columns(store, named, {})
        == inherited_columns(store, stream(), {})
        == inherited_columns(store, store.path, {})
        == {}
    )
    assert append_to(store.path, named).array("t").tolist() == [3, 4]
    short = write(tmp_path / "c.csv", "", "2,1,4")
    with pytest.raises(DataError, match=r"no column 5 for --time.*a\.store was made with that column"):
        append_to(store.path, short)
    assert append_to(store.path, short, time=2, allow_duplicates=True).n_events == 3
    pq.write_table(pa.table({"7": [3], "8": [1], "9": [2]}), tmp_path / "d.parquet")
    numbers = convert_to_store(tmp_path / "d.parquet", tmp_path / "d.store", src=8, dst=9, time="7")
    assert append_to(numbers.path, tmp_path / "d.parquet", allow_duplicates=True).array("t").tolist() == [3, 3]


def test_append_to_a_store_of_an_older_version(made: Path) -> None:
    """Its ``store.json`` has no column options."""
    found = open_store(made)
    fields = {k: v for k, v in vars(found).items() if k != "columns"}
    object.__setattr__(found, "__dict__", fields)
    found.write()
    assert "columns" not in (made / STORE_FILE).read_text()
    assert append_to(made, stream(5, start=1000)).columns == {}
