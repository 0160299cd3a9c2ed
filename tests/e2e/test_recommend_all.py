"""`cordgt recommend --all` and `cordgt similar` as a user runs them: shards, kills, a full disk, wrong options."""

from __future__ import annotations

import csv
import resource
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import cordgt

from .conftest import Trained
from .helpers import call, contents, events, fails, process, settings, works, write_events, write_rows

ROOT = Path(__file__).parents[2]
ALL = ["--all", "--part-size", "5", "--workers", "1", "--top", "3", "--device", "cpu"]


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 400 sources and CorDGT: one part of five sources takes a noticeable time. Read only."""
    folder = tmp_path_factory.mktemp("busy")
    data = write_events(folder / "data.csv", events(900, nodes=400))
    works("train", data, *settings(), "--out", folder / "run", "--no-report")
    return folder / "run"


@pytest.fixture(scope="session")
def whole(busy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    works("recommend", busy, *ALL, "--output", folder)
    return contents(folder)


def wait_for_parts(working: subprocess.Popen[str], n: int) -> None:
    end = time.monotonic() + 120
    while len(list(Path("out").glob("*.parquet"))) < n:
        assert time.monotonic() < end and working.poll() is None, working.communicate()
        time.sleep(0.002)


def test_killed_and_resumed_without_loss(busy: Path, whole: dict[str, bytes]) -> None:
    """SIGKILL, then a second call: the same files, to the bit, and finished parts stay as they are."""
    command = ["recommend", busy, *ALL, "--output", "out"]
    working = process(*command)
    wait_for_parts(working, 20)
    working.kill()
    working.communicate()
    assert working.returncode == -signal.SIGKILL
    kept = {path: path.stat().st_mtime_ns for path in Path("out").glob("*.parquet")}
    assert 20 <= len(kept) < len(whole) - 1
    result = works(*command, "--json")
    assert result.json["parts_skipped"] == len(kept)
    assert {k: v for k, v in contents(Path("out")).items() if not k.startswith(".")} == whole
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_sigterm_ends_workers_and_keeps_parts(busy: Path, whole: dict[str, bytes]) -> None:
    command = ["recommend", busy, *ALL, "--output", "out"]
    working = process(*command, "--workers", 2)
    wait_for_parts(working, 1)
    working.terminate()
    _, messages = working.communicate(timeout=60)
    assert working.returncode == 143
    assert "the same command continues" in messages
    assert "Traceback" not in messages
    works(*command)
    assert {k: v for k, v in contents(Path("out")).items() if not k.startswith(".")} == whole


def test_a_full_disk_is_reported_and_the_command_continues(busy: Path, whole: dict[str, bytes]) -> None:
    """Files may not grow beyond 2 kB, so no part can be written."""
    command = ["recommend", busy, *ALL, "--output", "out"]
    working = process(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)))
    _, messages = working.communicate(timeout=120)
    assert working.returncode == 2, messages
    assert "part-00000.parquet cannot be written" in messages
    assert "File too large" in messages
    assert "the same command continues" in messages
    assert "Traceback" not in messages
    assert contents(Path("out")).keys() == {"_part-manifest.json"}
    works(*command)
    assert contents(Path("out")) == whole


def test_csv_parts_and_one_command_equal_all(trained: Trained) -> None:
    works("recommend", trained.run, *ALL, "--output", "csv/p-*.csv")
    works("recommend", trained.run, *ALL, "--output", "csv/p-*.csv")  # nothing to do
    works("recommend", trained.run, *ALL, "--output", "parquet")
    rows = [row for path in sorted(Path("csv").glob("p-*.csv")) for row in csv.DictReader(path.open())]
    table = pq.read_table(sorted(Path("parquet").glob("*.parquet")))
    assert [{k: str(v) for k, v in row.items()} for row in table.to_pylist()] == rows
    sources = list(dict.fromkeys(row["src"] for row in rows))
    single = works("recommend", trained.run, "--top", 3, *(w for s in sources for w in ("--source", s))).rows
    assert [(r["src"], r["rank"], r["node"], r["met"]) for r in rows] == [
        (r["src"], r["rank"], r["node"], r["met"]) for r in single
    ]


def test_a_retrained_run_is_refused(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    train = ["train", data, *settings(), "--no-report", "--out", "run"]
    works(*train)
    works("recommend", "run", *ALL, "--shard", "1/2", "--output", "out")
    works(*train, "--replace", "--seed", 5)
    before = contents(Path("out"))
    fails("recommend", "run", *ALL, "--shard", "2/2", "--output", "out", containing=["another run", "another --output"])
    assert contents(Path("out")) == before


def test_mistakes(trained: Trained, tmp_path: Path) -> None:
    run = trained.run
    fails("recommend", run, "--all", containing="--all needs --output")
    fails("recommend", run, "--all", "--source", 1, "--output", "out", containing="--source cannot be used with --all")
    fails("recommend", run, "--all", "--within", 5, "--output", "out", containing="--sources FILE --within")
    fails("recommend", run, "--all", "--destination", 1, "--output", "out", containing="leave out --all")
    fails("recommend", run, "--source", 1, "--shard", "1/2", containing="--shard needs --all")
    fails("recommend", run, "--all", "--shard", "3/2", "--output", "out", containing="give K/N")
    fails("recommend", run, "--all", "--output", "out.csv", containing="out-*.csv")
    fails("recommend", run, *ALL, "--candidate", "nobody", "--output", "out", containing="nobody")
    fails("recommend", run, containing="--all")
    (tmp_path / "file").write_text("")
    fails("recommend", run, "--all", "--output", "file/part-*.csv", containing="is a file")
    assert not Path("out").exists()


def test_documented_shards_of_slurm_and_kubernetes(trained: Trained) -> None:
    """The command lines of the page, in a shell, with the variables that Slurm and Kubernetes set."""
    page = (ROOT / "docs" / "recommend-all.md").read_text()
    lines = [line.strip() for line in page.splitlines() if "--shard $((" in line]
    assert len(lines) == 2
    variables = {"SLURM_ARRAY_TASK_COUNT": "3", "SHARDS": "3", "SLURM_ARRAY_TASK_ID": "2", "JOB_COMPLETION_INDEX": "2"}
    for line in lines:
        echo = subprocess.run(["sh", "-c", f"echo {line}"], env=variables, capture_output=True, text=True, check=True)
        words = shlex.split(echo.stdout)
        assert words[:3] == ["cordgt", "recommend", "runs/shop"]
        assert works("recommend", trained.run, *words[3:], *ALL[1:], "--json").json["shard"] == "3/3"


# -------------------- similar


def test_similar(trained: Trained) -> None:
    rows = works("similar", trained.run, "--node", 3, "--node", 4, "--top", 2).rows
    assert [(row["node"], row["rank"]) for row in rows] == [("3", "1"), ("3", "2"), ("4", "1"), ("4", "2")]
    run = cordgt.Run.load(trained.run, "cpu")
    assert [float(row["score"]) for row in rows[:2]] == [k.score for k in run.similar(3, top=2)]
    found = works("similar", trained.run, "--node", 3, "--by", "embedding", "--json").json
    assert {"node", "rank", "similar", "score", "shared"} == found[0].keys()
    fails("similar", trained.run, "--node", 3, "--half-life", "-1", containing="--half-life -1")
    fails("similar", trained.run, "--node", "nobody", containing="nobody")
    fails("similar", trained.run, "--node", 3, "--by", "cosin", containing="Did you mean 'cosine'?")
    assert works("similar", trained.run, "--node", 3, "--half-life", "none").rows


def test_similar_of_one_side(shop: Trained) -> None:
    fails("similar", shop.run, "--node", "001", containing="side")
    rows = works("similar", shop.run, "--node", "001", "--side", "dst", "--top", 20).rows
    assert {row["similar"] for row in rows} == {f"{k:03d}" for k in range(2, 8)}
    assert call("similar", shop.run, "--node", "009", "--at", "2024-03-01 00:00:01").code == 0


def test_candidates_file(trained: Trained, tmp_path: Path) -> None:
    write_rows(tmp_path / "stock.csv", [[1], [2]], header=["dst"])
    works("recommend", trained.run, *ALL, "--candidates", tmp_path / "stock.csv", "--output", "out")
    assert set(pq.read_table(sorted(Path("out").glob("*.parquet")))["node"].to_pylist()) == {1, 2}


def test_filters_of_recommend_work_with_all(trained: Trained, tmp_path: Path) -> None:
    write_rows(tmp_path / "groups.csv", [[k, k % 2] for k in range(12)], header=["id", "group"])
    filters = ["--exclude-id", 5, "--per-group", 1, "--groups", tmp_path / "groups.csv"]
    works("recommend", trained.run, *ALL, *filters, "--output", "out")
    table = pq.read_table(sorted(Path("out").glob("*.parquet")))
    sources = list(dict.fromkeys(table["src"].to_pylist()))
    words = [word for source in sources for word in ("--source", source)]
    single = works("recommend", trained.run, "--top", 3, *filters, *words).rows
    assert list(zip(*(map(str, table[k].to_pylist()) for k in ("src", "rank", "node")), strict=True)) == [
        (row["src"], row["rank"], row["node"]) for row in single
    ]
    assert 5 not in table["node"].to_pylist()
    assert max(table["rank"].to_pylist()) == 2
