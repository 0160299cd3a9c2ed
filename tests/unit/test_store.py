"""Stores when things go wrong: cut off at the worst moment, written by several at once, grown since."""

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
from cordgt.errors import DataError, RunError
from cordgt.events.backing import INDEX_ARRAYS, IndexData
from cordgt.events.fingerprints import fingerprint_of, ids_fingerprint_of
from cordgt.events.ids import NodeIds
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.files import exclusive, is_held
from cordgt.history import index_builder
from cordgt.history.index import TemporalIndex
from cordgt.history.index_builder import build_index
from cordgt.inference.run import Run
from cordgt.io import event_chunks, file_chunks
from cordgt.io.convert import append_to, convert_to_store, inherited_columns
from cordgt.io.readers import read_events
from cordgt.store import append, arrays, build, index_writer, masked_index
from cordgt.store.append import REWRITTEN
from cordgt.store.source import ConcatSource, ReadPosition, StreamSource
from cordgt.store.store import ABOUT, EVENTS, LOOKUP, NAMES, locked, open_store, unfinished
from cordgt.workflows.train import train


class Cut(BaseException):
    """As a kill would: nothing catches it."""


def cut_off(*_: Any, **__: Any) -> None:
    raise Cut


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def stream(n: int = 60, *, seed: int = 0, start: int = 0, nodes: int = 9, **columns: Any) -> EventStream:
    """Ties, repeated pairs and self-loops."""
    draw = np.random.default_rng(seed)
    src, dst = draw.integers(0, nodes, (2, n))
    t = start + draw.choice([0, 1, 3], n).cumsum()
    return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name="log", **columns)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return convert_to_store(stream(), tmp_path / "log.store").path


@pytest.fixture
def cut_before_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Whoever replaces ``store.json`` of an old store by that of a new one is cut off there."""
    replace = os.replace

    def cut(source: Any, target: Any) -> None:
        if Path(source).name == ABOUT:
            raise Cut
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(build.os, "replace", cut)
        yield patch


# -------------------- cut off


def test_a_merge_cut_off_at_the_end_is_made_anew(made: Path, cut_before_the_end: pytest.MonkeyPatch) -> None:
    """What had been moved already is swept away by the second try, which must not count on it."""
    late = stream(5, seed=1, start=3)
    with pytest.raises(Cut):
        append_to(made, late, late="merge")
    cut_before_the_end.undo()
    open_store(made).check()
    append_to(made, late, late="merge")
    found = open_store(made)
    found.check()
    assert found.n_events == 65
    assert sorted(p.name for p in made.parent.iterdir()) == ["log.store"]


@pytest.mark.parametrize("written_since", [False, True])
def test_a_replacement_cut_off_at_the_end_goes_on(
    written_since: bool, made: Path, cut_before_the_end: pytest.MonkeyPatch
) -> None:
    other = stream(40, seed=2)
    with pytest.raises(Cut):
        convert_to_store(other, made, replace=True)
    cut_before_the_end.undo()
    if written_since:
        append_to(made, stream(5, seed=1, start=1000))
    convert_to_store(other, made, replace=True)
    found = open_store(made)
    found.check()
    assert found.n_events == 40


def test_a_replacement_cut_off_after_the_end_begins_anew(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr("cordgt.store.store.Store.sweep", cut_off)
        convert_to_store(stream(40, seed=2), made, replace=True)
    assert convert_to_store(stream(40, seed=2), made, replace=True).n_events == 40


# -------------------- several at once


def masks(n: int, n_nodes: int) -> list[npt.NDArray[np.bool_]]:
    return [np.arange(n_nodes) == k for k in range(n)]


def masked_index_of(found: EventStream, mask: npt.NDArray[np.bool_]) -> IndexData:
    assert found.backing is not None
    return found.backing.masked_index(found.src, found.dst, mask)


@pytest.mark.parametrize("n_masks", [1, 4])
def test_indexes_for_training_are_made_by_one_at_a_time(
    n_masks: int, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four that begin together: each gets a whole index, and the same one is made once."""
    found, together, calls = open_store(made).stream(), threading.Barrier(4), [0]
    write_index = masked_index.write_index

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        time.sleep(0.02)
        return write_index(*arguments, **options)

    def train(mask: npt.NDArray[np.bool_]) -> int:
        together.wait()
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


def test_an_append_leaves_an_index_that_is_being_made(made: Path) -> None:
    part = made / "masked-1.part-2"
    part.mkdir()
    (made / masked_index.LOCK).touch()
    with exclusive(made / masked_index.LOCK):
        append_to(made, stream(5, start=1000))
        assert part.exists()
    append_to(made, stream(5, start=2000))
    assert not part.exists(), "left by one that was killed"


def test_temporary_folders_are_ones_own(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_index.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(masked_index.os, "access", lambda *_: False)
    found = open_store(made).stream()
    masked_index_of(found, masks(1, found.n_nodes)[0])
    own = tmp_path / f"cordgt-{os.getuid()}"
    assert own.stat().st_mode & 0o77 == 0
    assert list(own.glob("masked-*"))
    monkeypatch.setattr(masked_index.os, "getuid", lambda: 12345)
    own.rename(tmp_path / "cordgt-12345")
    with pytest.raises(DataError, match="belongs to somebody else"):
        masked_index_of(found, masks(1, found.n_nodes)[0])


def test_indexes_for_training_are_checked(made: Path) -> None:
    found = open_store(made).stream()
    masked_index_of(found, masks(1, found.n_nodes)[0])
    read: list[int] = []
    assert masked_index.check_indexes(made, read.append) == 1
    file = next(made.glob("masked-*/nbr"))
    assert sum(read) == sum(p.stat().st_size for p in file.parent.iterdir() if p.name != "index.json")
    file.write_bytes(b"?" + file.read_bytes()[1:])
    with pytest.raises(DataError, match=r"masked-\w+ is damaged\. Remove it"):
        masked_index.check_indexes(made)


def test_one_is_kept_out_of_a_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was opened, then the one that was in removed it and let go: its lock keeps nobody out."""
    folder, opened = tmp_path / "x", os.open
    folder.mkdir()

    def open_then_remove(*arguments: Any) -> int:
        handle = opened(*arguments)
        folder.rmdir()
        return handle

    monkeypatch.setattr(files.os, "open", open_then_remove)
    with pytest.raises(DataError, match="busy"), exclusive(folder, DataError("busy")):
        pass


# -------------------- grown since

TINY: dict[str, Any] = {"epochs": 1, "batch_size": 20, "heads": 1}
MODELS: dict[str, dict[str, Any]] = {
    "cordgt": {"hidden": 4, "fanout": (2, 1), "td_dim": 4, "sd_dim": 4, "layers": 1},
    "tgn": {"memory_dim": 4, "time_dim": 4},
}


@pytest.mark.parametrize("model", MODELS)
def test_figures_stay_when_new_nodes_are_appended(model: str, made: Path, tmp_path: Path) -> None:
    train(read_events(made), model, out=tmp_path / "run", device="cpu", report=False, **TINY, **MODELS[model])
    before = Run.load(tmp_path / "run", "cpu").evaluate()
    append_to(made, stream(30, seed=1, start=1000, nodes=20))
    run = Run.load(tmp_path / "run", "cpu")
    assert run.stream.n_events == 90
    assert run.evaluate() == before


def test_an_index_of_before_has_no_more_than_it_had(made: Path) -> None:
    before = open_store(made).stream()
    append_to(made, stream(30, seed=1, start=1000, nodes=20))
    then = open_store(made).stream(before.backing.fingerprint)
    assert then.n_nodes == before.n_nodes
    ends = {"nbr": "row_start", "pos": "row_start", "nbr_degree": "row_start", "pair_pos": "pair_pos_start"}
    for rows, starts in (ends | {"pair_nbr": "pair_start"}).items():
        assert then.backing.index.arrays[starts][-1] == len(then.backing.index.arrays[rows]), rows
    assert len(then.backing.index.arrays["pair_pos_start"]) == len(then.backing.index.arrays["pair_nbr"]) + 1


def test_an_interrupted_run_goes_on_when_its_store_has_grown(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the events that it began with, to the same figures; afterwards it answers from all."""
    options = {**TINY, **MODELS["cordgt"], "epochs": 2}
    whole = train(read_events(made), out=tmp_path / "whole", device="cpu", report=False, **options)
    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr("cordgt.training.run_folder.RunFolder.append_history", cut_off)
        train(read_events(made), out=tmp_path / "run", device="cpu", report=False, **options)
    append_to(made, stream(30, seed=1, start=1000, nodes=20))
    run = train(read_events(made), out=tmp_path / "run", device="cpu", report=False, resume=True, **options)
    assert run.stream.n_events == 90
    assert run.metrics["test"] == whole.metrics["test"]
    with pytest.raises(RunError, match="other data"):
        train(stream(30), out=tmp_path / "run", device="cpu", report=False, resume=True, **options)


def test_events_without_labels_leave_the_runs_of_a_labelled_store(tmp_path: Path) -> None:
    """Whole numbers cannot say that there is none, so that the store is made anew; what was there is the same."""
    before = convert_to_store(stream(label=np.arange(60)), tmp_path / "log.store")
    append_to(before.path, stream(5, start=500, label=np.arange(5)))
    grown = append_to(before.path, stream(30, seed=1, start=1000, nodes=20))
    assert [k["events"] for k in grown.generations] == [60, 65, 95]
    for told in grown.generations:
        then = grown.stream(told["fingerprint"])
        assert fingerprint_of([then.src, then.dst, then.t]) == told["fingerprint"]
        assert ids_fingerprint_of(then.ids.names, "number") == told["ids"]
    assert np.isnan(grown.stream().label[65:]).all()
    late = append_to(before.path, stream(5), late="merge")
    assert len(late.generations) == 1


def test_ranges_of_an_index_keep_to_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are."""
    found, largest = stream(900, nodes=400), [0]
    add_rows = index_builder._add_rows

    def looked_at(entries: Any, *arguments: Any) -> None:
        largest[0] = max(largest[0], len(entries))
        add_rows(entries, *arguments)

    monkeypatch.setattr(index_builder, "_add_rows", looked_at)
    written = index_writer.write_index(
        tmp_path, found.src, found.dst, found.tie_start, found.n_nodes, memory=16 * index_writer.BYTES_PER_ENTRY
    )
    assert written.longest["max_degree"] <= largest[0] <= 16
    index = TemporalIndex.build(found.src, found.dst, found.elapsed, found.n_nodes)
    assert np.fromfile(tmp_path / "nbr", np.int32).tolist() == index.nbr.tolist()


@pytest.mark.parametrize("entries", [16, 10_000])
def test_an_index_in_files_is_the_one_in_memory(tmp_path: Path, entries: int) -> None:
    """Without masked nodes, in many ranges or one; then continued within a tie, with new nodes."""
    found, masked = stream(900, nodes=400), np.arange(400) % 7 == 0
    masked = masked[: found.n_nodes]
    keep = ~(masked[found.src] | masked[found.dst])
    options: dict[str, Any] = {"memory": entries * index_writer.BYTES_PER_ENTRY}
    write_index(tmp_path / "masked", found, options | {"masked": masked}, keep)
    cut = int(np.flatnonzero(found.tie_start < np.arange(900))[100])  # not the first event of its time
    known = int(max(found.src[:cut].max(), found.dst[:cut].max())) + 1
    assert known < found.n_nodes
    prior = build_index(found.src[:cut], found.dst[:cut], found.tie_start[:cut], known)
    write_index(tmp_path / "prior", found, options | {"prior": index_writer.PriorIndex(prior.arrays, cut)}, None)


def write_index(folder: Path, found: EventStream, options: dict[str, Any], keep: npt.NDArray[np.bool_] | None) -> None:
    """Writes an index and compares it with the one in memory."""
    folder.mkdir()
    written = index_writer.write_index(folder, found.src, found.dst, found.tie_start, found.n_nodes, **options)
    expected = build_index(found.src, found.dst, found.tie_start, found.n_nodes, keep)
    assert written.longest == expected.longest
    for name in INDEX_ARRAYS:
        assert written.arrays[name].dtype == expected.arrays[name].dtype.str, name
        np.testing.assert_array_equal(
            np.fromfile(folder / name, written.arrays[name].dtype), expected.arrays[name], name
        )


# -------------------- what is read


def test_sources_one_after_the_other() -> None:
    """Labels that only the second source has are dropped; reading resumes in a stream, but not across two."""
    first, second = StreamSource(stream(5), chunk_rows=2), StreamSource(stream(3, start=50, label=np.arange(3)))
    both = ConcatSource(first, second)
    found = list(both.chunks(ReadPosition()))
    assert [len(chunk.t) for _, chunk in found] == [2, 2, 1, 3]
    assert all(after is None and chunk.label is None for after, chunk in found)
    assert both.n_events() == 8
    [_, (after, _), *_] = first.chunks(ReadPosition())
    assert [chunk.t.tolist() for _, chunk in first.chunks(after)] == [stream(5).t[4:].tolist()]


def test_another_stream_of_the_same_times_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = stream()
    for changed in (
        replace(one, src=one.dst, dst=one.src),
        replace(one, label=np.arange(60)),
        replace(one, edge_x=np.ones((60, 2), np.float32)),
        replace(one, node_x=np.ones((one.n_nodes, 2), np.float32)),
        replace(one, ids=NodeIds(pa.array([f"n{k}" for k in range(one.n_nodes)]))),
    ):
        with monkeypatch.context() as patch, pytest.raises(Cut):
            patch.setattr(build, "write_events", cut_off)  # all is read
            convert_to_store(one, tmp_path / "log.store", replace=True)
        found = convert_to_store(changed, tmp_path / "log.store", replace=True)
        expected = convert_to_store(changed, tmp_path / "other.store", replace=True)
        assert (found.generations, found.arrays.keys()) == (expected.generations, expected.arrays.keys())


def test_node_features_that_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, log, part = tmp_path / "nodes.csv", tmp_path / "log.csv", tmp_path / "log.store.part"
    log.write_text("src,dst,time\n1,2,3\n2,1,4\n")
    nodes.write_text("id,x\n1,5\n2,6\n")
    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(build, "_put_in_place", cut_off)
        convert_to_store(log, tmp_path / "log.store", node_features=nodes)
    assert (part / ABOUT).exists()
    nodes.write_text("id,x\n1,50\n2,60\n")
    made = convert_to_store(log, tmp_path / "log.store", node_features=nodes)
    assert made.array("node_x").tolist() == [[50.0], [60.0]]


class Forwards(io.BytesIO):
    """A file that is read once: going back is a mistake."""

    def seek(self, place: int, whence: int = 0) -> int:
        raise AssertionError("to go back in gzip is to unpack it from its start")


def test_packed_text_is_never_read_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f'"a\n{k % 7}",b{k % 5},{k}' for k in range(100)]
    text = ("src,dst,time\n" + "\n".join(rows) + "\n").encode()
    path = tmp_path / "log.csv"
    path.write_bytes(text)
    whole = read_events(path)
    for module in (event_chunks, file_chunks):
        monkeypatch.setattr(module, "HEAD", 150)
        monkeypatch.setattr(module, "text_file", lambda _: Forwards(text))
    source = event_chunks.EventFiles([path], chunk_bytes=40)
    found = [rows for _, rows in source.chunks(event_chunks.ReadPosition())]
    assert len(found) > 10
    assert np.concatenate([rows.t for rows in found]).tolist() == whole.t.tolist()
    assert [k for rows in found for k in rows.src.to_pylist()] == whole.ids.take(whole.src).to_pylist()


def test_an_endless_line_is_told_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_chunks, "HEAD", 20)
    (tmp_path / "log.csv").write_text("x" * 1000)
    with pytest.raises(DataError, match=r"log\.csv: a line is longer"):
        event_chunks.EventFiles([tmp_path / "log.csv"])


def test_columns_of_one_name_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("src,dst,time\n1,2,3\n")
    (tmp_path / "b.csv").write_text("src,dst,time,src\n1,2,3,4\n")
    with pytest.raises(DataError, match=r"b\.csv has 2 columns 'src'"):
        convert_to_store(tmp_path, tmp_path / "x")


def test_features_that_are_all_zero_are_merged_as_none(tmp_path: Path) -> None:
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    for name, t in (("a", 10), ("b", 5)):
        (tmp_path / f"{name}.csv").write_text(header + f"1,2,{t},0,0,0\n2,1,{t + 1},0,0,0\n")
    convert_to_store(tmp_path / "a.csv", tmp_path / "log.store")
    grown = append_to(tmp_path / "log.store", tmp_path / "b.csv", late="merge")
    assert (grown.n_events, "edge_x" in grown.arrays) == (4, False)


# -------------------- damaged


def sizes(store: Path) -> dict[str, int]:
    """Every file below a folder."""
    return {str(p.relative_to(store)): p.stat().st_size for p in store.rglob("*") if p.is_file()}


def flip(store: Path, name: str) -> None:
    """One bit of the last number of an array becomes another."""
    told = open_store(store).arrays[name]
    with (store / told.file).open("r+b") as file:
        file.seek(told.n_bytes - np.dtype(told.dtype).itemsize)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 2]))


def later(n: int, start: int) -> EventStream:
    """Text ids in two spaces, labels and features: with them a store has every array there is but ``name``."""
    bare = stream(n, seed=3, start=start)
    users, things = ([f"{kind}{k}" for k in side] for kind, side in (("u", bare.src), ("v", bare.dst)))
    more: dict[str, Any] = {"label": np.arange(n), "edge_x": np.ones((n, 2), np.float32)}
    return EventStream.from_columns(users, things, bare.t, time=bare.time, name="log", shared_ids=False, **more)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store with every array but ``name``, and the same after later events."""
    folder, events = tmp_path_factory.mktemp("sound"), later(60, 0)
    before = replace(events, node_x=np.ones((events.n_nodes, 2), np.float32))
    convert_to_store(before, folder / "before")
    shutil.copytree(folder / "before", folder / "after")
    append_to(folder / "after", later(7, 1000))
    return folder / "before", folder / "after"


@pytest.mark.parametrize("name", [*EVENTS, *LOOKUP, *INDEX_ARRAYS, *NAMES, "node_x"])
def test_damage_gets_no_new_checksum(name: str, made: Path, sound: tuple[Path, Path], tmp_path: Path) -> None:
    """Refused, or still found by a check, or, of pairs, which are not read but made again, mended."""
    damaged, more = made, stream
    if name != "name":
        damaged, more = tmp_path / "damaged", later
        shutil.copytree(sound[0], damaged)
    flip(damaged, name)
    before, refused = sizes(damaged), pytest.raises(DataError, match=rf"'{name}'.*Nothing was appended.*copy")
    with refused:
        append_to(damaged, more(5, start=3), late="merge")
    with pytest.raises(DataError, match=f"'{name}'"):
        if name in (*LOOKUP, *INDEX_ARRAYS):
            open_store(damaged).check()
        else:
            convert_to_store(damaged, tmp_path / "copy")
    if name in REWRITTEN:
        with refused:
            append_to(damaged, more(7, start=1000))
    assert sizes(damaged) == before
    if name not in REWRITTEN:
        grown, clean = append_to(damaged, more(7, start=1000)), open_store(sound[1])
        if name in INDEX_ARRAYS:
            grown.check()
            assert {k: a.parts for k, a in grown.arrays.items()} == {k: a.parts for k, a in clean.arrays.items()}
        else:
            with pytest.raises(DataError, match=f"'{name}'"):
                grown.check()


# -------------------- failed


def test_a_failed_append_leaves_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one on a full disk keep it full: what was added behind the ends is cut off."""
    before = sizes(made)
    with pytest.raises(DataError, match="before the last event"):
        append_to(made, stream(5, start=0))
    assert sizes(made) == before
    written, room = arrays.Writer.append, [0]

    def append(self: arrays.Writer, values: Any) -> None:
        room[0] -= 1
        if room[0] < 0:
            self._file.flush()
            raise OSError(28, "No space left on device")
        written(self, values)

    monkeypatch.setattr(arrays.Writer, "append", append)
    for failing in (3, 6, 9, 14):
        room[0] = failing
        with pytest.raises(DataError, match="No space left"):
            append_to(made, stream(500, seed=1, start=1000))
        assert sizes(made) == before, failing
    open_store(made).check()


def test_a_failed_merge_leaves_nothing(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do staged events stay while the new store is made of both."""
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


def test_what_a_killed_append_left_is_cut_off(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sizes(made)
    with monkeypatch.context() as patch, pytest.raises(Cut):
        patch.setattr(append, "write_index", cut_off)
        patch.setattr(append, "_undo", lambda _: None)  # as after a kill
        append_to(made, stream(500, seed=1, start=1000))
    assert sizes(made) != before
    with pytest.raises(DataError, match="before the last event"):
        append_to(made, stream(5, start=0))
    assert sizes(made) == before


def test_an_append_stopped_after_its_end_is_whole(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C just after ``store.json`` was replaced: its new files stay."""
    write = append.Store.write

    def write_then_stop(self: Any, folder: Path | None = None) -> None:
        write(self, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(append.Store, "write", write_then_stop)
    with pytest.raises(KeyboardInterrupt):
        append_to(made, stream(5, start=1000))
    open_store(made).check()
    assert open_store(made).n_events == 65


def test_options_that_would_not_be_heeded(made: Path, tmp_path: Path) -> None:
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


# -------------------- begun


def test_a_folder_that_only_ends_like_one_is_left_alone(tmp_path: Path) -> None:
    part = tmp_path / "foo.part"
    part.mkdir()
    assert unfinished(tmp_path / "foo") == ""
    (part / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match=r"foo\.part.*\(mine\.txt\)"):
        convert_to_store(stream(), tmp_path / "foo")
    assert (part / "mine.txt").exists()
    (part / ABOUT).touch()
    assert "was begun" in unfinished(tmp_path / "foo")


def test_one_that_cannot_be_read_is_said_to_be_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foo.part" / "stage").mkdir(parents=True)

    def refuse(_: Any) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    assert "cannot be read: Permission denied" in unfinished(tmp_path / "foo")


def test_a_look_neither_stops_a_writer_nor_another_look(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # as a look has it, for a moment
    assert not is_held(tmp_path)
    over = threading.Timer(0.05, os.close, [handle])
    over.start()
    with locked(tmp_path):
        assert is_held(tmp_path)
        with pytest.raises(DataError, match="Another process"), locked(tmp_path):
            pass
    assert not is_held(tmp_path)
    over.join()


# -------------------- columns


def write(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([*([header] if header else []), *rows]) + "\n")
    return path


def test_an_append_reads_the_columns_that_the_store_was_made_with(tmp_path: Path) -> None:
    """Wherever they stand; others are read where they are named, and events without labels where that is said."""
    first = write(tmp_path / "a.csv", "who,whom,seconds,fraud,amount,tip", "1,2,3,0,9,1", "2,1,4,1,8,2")
    store = tmp_path / "log.store"
    made = convert_to_store(first, store, src="who", dst=1, time="seconds", label="FRAUD", features="4-5")
    kept = {"src": "who", "dst": "whom", "time": "seconds", "label": "fraud", "features": ["amount", "tip"]}
    assert made.columns == open_store(store).columns == kept
    append_to(store, write(tmp_path / "b.csv", "tip,amount,fraud,seconds,note,whom,who", "3,7,0,5,x,1,2"))
    append_to(store, write(tmp_path / "c.csv", "amount,tip,seconds,whom,by", "6,4,6,1,2"), src="by", label="none")
    late = write(tmp_path / "d.csv", "who,whom,seconds,fraud,amount,tip", "9,2,1,0,5,5")
    found = append_to(store, late, late="merge")
    assert found.columns == kept
    assert found.array("edge_x").tolist() == [[5, 5], [9, 1], [8, 2], [7, 3], [6, 4]]
    assert found.array("src").tolist() == [0, 2, 1, 1, 1]
    assert np.isnan(found.array("label")[-1])
    missing = write(tmp_path / "e.csv", "who,seconds,amount,tip,to", "6,4,6,1,2")
    with pytest.raises(DataError, match=r"no column 'whom' for --dst.*log\.store was made with that column"):
        append_to(store, missing)
    assert convert_to_store(store, tmp_path / "copy.store").columns == kept


def test_labels_are_not_dropped_unasked(tmp_path: Path) -> None:
    """Whether their column was named or found by its usual name; under another name they are read once it is told."""
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


def test_no_labels_are_read_where_none_are_asked_for(tmp_path: Path) -> None:
    log = write(tmp_path / "a.csv", "src,dst,time,label", "1,2,3,0")
    made = convert_to_store(log, tmp_path / "x.store", label="none")
    assert (made.columns, made.array("label"), read_events(log, label="none").label) == ({"label": "none"}, None, None)
    assert append_to(made.path, log).array("label") is None
    named = write(tmp_path / "b.csv", "src,dst,time,none", "1,2,3,7")
    assert read_events(named, label="none").label.tolist() == [7]


def test_features_of_other_names_are_refused(tmp_path: Path) -> None:
    store = tmp_path / "log.store"
    convert_to_store(write(tmp_path / "a.csv", "src,dst,time,amount,tip", "1,2,3,9,1"), store, features="amount")
    later = write(tmp_path / "b.csv", "src,dst,time,price,Amount", "1,2,4,8,7")
    with pytest.raises(DataError, match=r"features of the new events are price; those of .*log\.store are amount"):
        append_to(store, later, features="price")
    convert_to_store(later, tmp_path / "other.store", features="price")
    with pytest.raises(DataError, match="are price"):
        append_to(store, tmp_path / "other.store")
    assert append_to(store, later).array("edge_x").tolist() == [[9], [7]]


def test_columns_by_place_are_those_of_a_file_without_header(tmp_path: Path) -> None:
    store = tmp_path / "log.store"
    made = convert_to_store(write(tmp_path / "a.csv", "", "3,1,2,5"), store, src="1", dst=2, time=0, features=[3])
    assert made.columns == {"src": "1", "dst": "2", "time": "0", "features": "3"}
    append_to(store, write(tmp_path / "b.csv", "", "4,2,1,6"))
    named = write(tmp_path / "c.csv", "src,dst,time,feature_0", "1,2,5,7")
    found = append_to(store, named)
    assert (found.array("t").tolist(), found.array("edge_x").tolist()) == ([3, 4, 5], [[5], [6], [7]])


def test_positions_of_before_leave_a_file_with_names_alone(tmp_path: Path) -> None:
    """Even where it has no column there; but columns that are called by numbers are found by these names."""
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
    assert append_to(store.path, short, time=2).n_events == 3
    pq.write_table(pa.table({"7": [3], "8": [1], "9": [2]}), tmp_path / "d.parquet")
    numbers = convert_to_store(tmp_path / "d.parquet", tmp_path / "d.store", src=8, dst=9, time="7")
    assert append_to(numbers.path, tmp_path / "d.parquet").array("t").tolist() == [3, 3]


def test_a_store_of_before_is_appended_to(made: Path) -> None:
    """One whose ``store.json`` does not tell of columns."""
    found = open_store(made)
    told = {k: v for k, v in vars(found).items() if k != "columns"}
    object.__setattr__(found, "__dict__", told)
    found.write()
    assert "columns" not in (made / ABOUT).read_text()
    assert append_to(made, stream(5, start=1000)).columns == {}
