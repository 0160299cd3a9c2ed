"""Recommendations for every source: parts, shards, manifest, resume; answers equal those of one source at a time."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from cordgt import EventStream, Run, train
from cordgt.callbacks import Callback
from cordgt.errors import DataError, SettingError
from cordgt.events.times import TimeAxis
from cordgt.inference.part_files import ABANDONED_SECONDS, PartFiles, parse_pattern
from cordgt.inference.recommend_all import RecommendAllRequest, Shard, recommend_all
from cordgt.inference.recommend_batch import select_best
from cordgt.inference.recommend_workers import recommend_all_in_processes
from cordgt.tasks.ties import merge_near_ties

from ..e2e.helpers import contents

N_SOURCES, PART_SIZE = 23, 4  # six parts, the last of three sources


def stream(n: int = 300) -> EventStream:
    """Users with repeated items, ties in time, and a popular item."""
    rng = np.random.default_rng(5)
    src = np.concatenate([np.arange(N_SOURCES), rng.integers(0, N_SOURCES, n - N_SOURCES)])
    dst = np.minimum(rng.integers(0, 17, n), rng.integers(0, 17, n))
    time = TimeAxis("number")
    return EventStream.from_columns(src, dst, np.arange(n) // 3, time=time, shared_ids=False, name="shop")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(stream(), "counts", out=tmp_path_factory.mktemp("runs") / "run", device="cpu", epochs=1, report=False)


def request_for(run: Run, **changes: object) -> RecommendAllRequest:
    return replace(RecommendAllRequest(str(run.path), part_size=PART_SIZE, top=5, device="cpu"), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of one process without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    result = recommend_all(request_for(run), folder)
    assert (result.n_written, result.n_skipped, result.n_sources) == (6, 0, N_SOURCES)
    return contents(folder)


@pytest.mark.parametrize("options", [{}, {"new_only": True}, {"at": "40"}, {"candidates": ["3", "5", "0", "3"]}])
def test_answers_equal_those_of_one_source_at_a_time(run: Run, tmp_path: Path, options: dict[str, object]) -> None:
    recommend_all(request_for(run, **options), tmp_path)
    rows = pq.read_table(sorted(tmp_path.glob("*.parquet"))).to_pylist()
    for source in dict.fromkeys(row["src"] for row in rows):
        expected = run.recommend(source, top=5, **options)  # type: ignore[arg-type]
        found = [row for row in rows if row["src"] == source]
        assert [(r["rank"], r["node"], r["met"], r["note"]) for r in found] == [
            (i + 1, r.node, r.met, r.note) for i, r in enumerate(expected)
        ]
        np.testing.assert_allclose([r["score"] for r in found], [r.score for r in expected], atol=1e-5)
    assert len({row["src"] for row in rows}) == N_SOURCES


def test_sources_stand_in_order_of_first_appearance(run: Run, whole: dict[str, bytes], tmp_path: Path) -> None:
    recommend_all(request_for(run), tmp_path)
    rows = pq.read_table(sorted(tmp_path.glob("*.parquet")))["src"].to_pylist()
    assert list(dict.fromkeys(rows)) == run.stream.ids.decode(np.unique(run.stream.src)).to_pylist()


def test_shards_and_workers_give_the_bits_of_one_process(run: Run, whole: dict[str, bytes], tmp_path: Path) -> None:
    recommend_all(request_for(run), tmp_path / "shards", shard=Shard(2, 2))
    assert len(list((tmp_path / "shards").glob("*.parquet"))) == 3
    recommend_all_in_processes(request_for(run), tmp_path / "shards", 2, shard=Shard(1, 2))
    assert contents(tmp_path / "shards") == whole


def test_only_missing_and_damaged_parts_are_made(run: Run, whole: dict[str, bytes], tmp_path: Path) -> None:
    recommend_all(request_for(run), tmp_path)
    (tmp_path / "part-00002.parquet").unlink()
    damaged = tmp_path / "part-00004.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-7])
    before = (tmp_path / "part-00001.parquet").stat().st_mtime_ns
    result = recommend_all(request_for(run), tmp_path)
    assert (result.n_written, result.n_skipped, result.n_sources) == (2, 4, 2 * PART_SIZE)
    assert contents(tmp_path) == whole
    assert (tmp_path / "part-00001.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("changes", "key"),
    [({"top": 4}, "top=5"), ({"new_only": True}, "new_only=False"), ({"at": "40"}, "at=None"),
     ({"part_size": 3}, "part_size=4"), ({"candidates": ["1"]}, "candidates_sha256=None")],
)  # fmt: skip
def test_other_options_are_refused(run: Run, tmp_path: Path, changes: dict[str, object], key: str) -> None:
    recommend_all(request_for(run), tmp_path, shard=Shard(1, 6))
    with pytest.raises(DataError, match=key):
        recommend_all(request_for(run, **changes), tmp_path)
    assert len(list(tmp_path.glob("*.parquet"))) == 1


def test_a_changed_run_is_refused(run: Run, tmp_path: Path) -> None:
    recommend_all(request_for(run), tmp_path / "out", shard=Shard(1, 6))
    other = train(stream(), "counts", out=tmp_path / "run", device="cpu", epochs=1, seed=9, report=False)
    with pytest.raises(
        DataError, match=r"another run: .*config_sha256=.*Repeat the original command, or use another --output"
    ):
        recommend_all(request_for(other), tmp_path / "out")


def test_a_longer_history_is_refused(run: Run, tmp_path: Path) -> None:
    recommend_all(request_for(run), tmp_path / "out", shard=Shard(1, 6))
    (tmp_path / "later.csv").write_text("src,dst,time\n1,2,500\n")
    with pytest.raises(DataError, match=r"another history or time: .*cut=300, and now it is 301"):
        recommend_all(request_for(run, events=str(tmp_path / "later.csv")), tmp_path / "out")


def test_parts_of_unknown_origin_are_refused(run: Run, tmp_path: Path) -> None:
    recommend_all(request_for(run), tmp_path, shard=Shard(1, 6))
    (tmp_path / "_part-manifest.json").unlink()
    with pytest.raises(DataError, match=r"_part-manifest\.json is missing"):
        recommend_all(request_for(run), tmp_path)


def test_a_part_under_the_name_of_another_is_refused(run: Run, tmp_path: Path) -> None:
    recommend_all(request_for(run), tmp_path, shard=Shard(1, 6))
    os.replace(tmp_path / "part-00000.parquet", tmp_path / "part-00003.parquet")
    with pytest.raises(DataError, match=r"part-00003\.parquet is not part 3"):
        recommend_all(request_for(run), tmp_path)


def test_an_interruption_keeps_finished_parts(run: Run, whole: dict[str, bytes], tmp_path: Path) -> None:
    class Stop(Callback):
        n = 0

        def on_step(self, n: int, loss: float | None = None) -> None:
            self.n += n
            if self.n > 2 * PART_SIZE:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recommend_all(request_for(run), tmp_path, callbacks=Stop())
    assert contents(tmp_path).keys() == {"_part-manifest.json", "part-00000.parquet", "part-00001.parquet"}
    recommend_all(request_for(run), tmp_path)
    assert contents(tmp_path) == whole


def test_temporary_files_of_killed_processes_are_removed(run: Run, whole: dict[str, bytes], tmp_path: Path) -> None:
    names = [tmp_path / f".part-0000{i}.parquet.abcd.part" for i in range(2)]
    for path, age in zip(names, (2 * ABANDONED_SECONDS, 0), strict=True):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    recommend_all(request_for(run), tmp_path)
    assert [path.exists() for path in names] == [False, True]  # a young one may belong to a process that is writing


def test_progress_counts_sources_and_estimates_the_time(run: Run, tmp_path: Path) -> None:
    class Note(Callback):
        def __init__(self) -> None:
            self.total, self.n, self.left = 0, 0, [1e9]

        def on_stage_start(self, name: str, total: int | None) -> None:
            self.total = total or 0

        def on_step(self, n: int, loss: float | None = None) -> None:
            self.n += n

        def on_time_estimate(self, seconds: float) -> None:
            self.left.append(seconds)

    note = Note()
    recommend_all(request_for(run), tmp_path, shard=Shard(3, 3), callbacks=note)
    assert (note.total, note.n, note.left[-1]) == (7, 7, 0.0)  # parts 2 and 5


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/", "a/b", "-1/2", "1/2/3"])
def test_wrong_shards_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match="give K/N"):
        Shard.parse(text)


def test_shards_share_the_parts() -> None:
    shards = [list(Shard.parse(f"{k}/3").parts(8)) for k in (1, 2, 3)]
    assert shards == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert list(Shard.parse(None).parts(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("output", "pattern"), [("out", "out/part-*.parquet"), ("out/a-*.csv", "out/a-*.csv"), ("*.parquet", "*.parquet")]
)
def test_output_is_a_folder_or_a_pattern(output: str, pattern: str) -> None:
    assert parse_pattern(output) == Path(pattern)


@pytest.mark.parametrize("output", ["out.parquet", "a-*-*.csv", "b*/part-*.csv", "part-*.txt", "part-*"])
def test_wrong_outputs_are_refused(output: str) -> None:
    with pytest.raises(SettingError, match=r"\*|folder"):
        parse_pattern(output)


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    files = PartFiles(tmp_path / "part-*.csv", {"n_parts": 1})
    files.prepare()
    assert json.loads(files.manifest_path.read_text()) == {"n_parts": 1}
    for text in ("{", "[1]", "3"):
        files.manifest_path.write_text(text)
        with pytest.raises(DataError, match="is damaged"):
            files.prepare()


@pytest.mark.parametrize("top", [1, 3, 50])
def test_best_of_rows_equals_sorting_all(top: int) -> None:
    """The slow way: merge near ties of the whole row, then sort by score and column."""
    rng = np.random.default_rng(top)
    tolerance = 1e-2
    logits = np.round(rng.normal(0, 2, (40, 31)), 2) + rng.integers(0, 3, (40, 31)) * 4e-3
    allowed = rng.random((40, 31)) < 0.8
    allowed[3] = False
    row, column, value = select_best(logits, allowed, top, tolerance)
    for i in range(40):
        at = np.flatnonzero(allowed[i])
        merged = merge_near_ties(logits[i, at], tolerance)
        best = np.lexsort((at, -merged))[:top]
        assert column[row == i].tolist() == at[best].tolist()
        assert value[row == i].tolist() == merged[best].tolist()
