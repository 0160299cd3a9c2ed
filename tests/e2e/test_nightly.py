"""A job that runs every night: empty and repeated days, `--out` with a date, `--replace`, and a limit for drift."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cordgt.errors import DataError, RunError
from cordgt.events.notes import append_note, merge_append_notes
from cordgt.files import file_lock
from cordgt.inference.run import Run
from cordgt.io.convert import convert_to_store
from cordgt.store import append, batches
from cordgt.store import store as store_module
from cordgt.store.store import Store, open_store
from cordgt.training import versions as version_module
from cordgt.training.output_folder import fill_placeholders
from cordgt.workflows import train as train_module

from .helpers import CommandResult, call, contents, events, fails, unchanged, works, write_events, write_rows

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


def test_a_store_is_opened_while_a_day_is_appended(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append removes the former index. Who has just opened the store, or is opening it, gets the new one."""
    before = open_store(store)
    first = before.stream().backing
    works("data", "append", store, write_events(tmp_path / "day2.csv", make_day(2)))
    assert before.stream().n_events == 40
    assert first is not None and before.stream(first.fingerprint).n_events == 20
    days, check = [write_events(tmp_path / "day3.csv", make_day(3))], store_module.check_file

    def append_first(path: Path, n_bytes: int) -> Any:
        if days:
            works("data", "append", store, days.pop())
        return check(path, n_bytes)

    monkeypatch.setattr(store_module, "check_file", append_first)
    assert open_store(store).stream().n_events == 60
    next(store.glob("index-*/nbr")).unlink()
    with pytest.raises(DataError, match="nbr is missing"):
        open_store(store)


def test_one_line_tells_of_all_earlier_appends(log: Path, tmp_path: Path) -> None:
    rows = events(220)
    for k in range(3):
        day = write_events(
            tmp_path / f"{k}.csv", [*rows[160 + 20 * k : 179 + 20 * k], (f"9{k}", 1, rows[179 + 20 * k][2])]
        )
        works("data", "append", log, day)
        result = works("train", log, *COUNTS, "--out", f"run{k}")
        expected = "20 later events appended" if k == 0 else f"{20 * (k + 1)} later events in {k + 1} appends"
        assert f"{expected}, with {k + 1} new nodes" in result.err and result.err.count("later events") == 1
    assert works("data", "describe", log, "--json").json["notes"][-1].startswith("60 later events in 3 appends")
    assert works("data", "convert", log, "copy.store").err.count("later events") == 1
    assert merge_append_notes(["a", *[append_note(1000, 2)] * 2, "b"]) == [
        "a",
        "2,000 later events in 2 appends, with 4 new nodes",
        "b",
    ]


# -------------------- one name for the latest run


COUNTS = ["--model", "counts", "--set", "epochs=1", "--device", "cpu", "--no-report"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A store with enough events to train on."""
    return convert_to_store(write_events(tmp_path / "log.csv", events(160)), tmp_path / "log.store").path


def test_out_with_date_and_time(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In local time; the hint to resume names the folder, not the placeholder."""
    now = datetime.now()
    works("train", log, *COUNTS, "--out", "runs/{date}")
    assert Path("runs", f"{now:%Y-%m-%d}", "metrics.json").exists()
    works("train", log, *COUNTS, "--out=runs/{date}-{time}")
    assert len(list(Path("runs").iterdir())) == 2
    fails("train", log, *COUNTS, "--out", "runs/{day}", containing=["{day} is not known", "{date} or {time}"])
    assert fill_placeholders("{date}/{time}", datetime(2026, 1, 2, 3, 4, 5)) == "2026-01-02/030405"

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "fit_and_evaluate", interrupt)
    stopped = call("train", log, *COUNTS, "--out", "other/{date}")
    assert stopped.code == 130 and f"--out other/{now:%Y-%m-%d} --resume" in stopped.err


def versions() -> list[str]:
    return sorted(path.name for path in Path("runs").iterdir())


def test_replace_keeps_former_runs(log: Path) -> None:
    night = ["train", log, *COUNTS, "--out", "runs/now", "--replace", "--keep", 2]
    for number in range(1, 5):
        init = ["--init", "runs/now"] if number > 1 else []
        result = works(*night, *init, "--seed", number)
        assert f"runs/now is now a link to now.{number}" in result.err
        assert "recommend runs/now --source" in result.err
        assert Run.load("runs/now").path == Path(f"runs/now.{number}")
        assert os.readlink("runs/now") == f"now.{number}"
    assert versions() == ["now", "now.2", "now.3", "now.4"]
    assert Run.load("runs/now").settings.seed == 4 and Run.load("runs/now.2").settings.seed == 2
    assert works("recommend", "runs/now", "--source", 1, "--json").json
    works("report", "runs/now")
    assert Path("runs/now.4/report.html").exists()
    works("report", "runs", "--output", "all.html")  # a run and the link to it are one run
    fails("train", log, *COUNTS, "--out", "runs/now", containing=["already holds a run", "--replace"])
    fails("train", log, *COUNTS, "--keep", 2, containing="--keep works only with --replace")


def test_replace_never_deletes_the_former_run(log: Path) -> None:
    """The link is set back to now.1 after each night, as docs/nightly.md does with runs that are worse."""
    night = ["train", log, *COUNTS, "--out", "runs/now", "--replace", "--keep"]
    works(*night, 1)
    for number, keep in ((2, 1), (3, 1), (4, 2), (5, 2), (6, 2)):
        works(*night, keep, "--init", "runs/now")
        others = [f"now.{number - 1}"] if keep == 2 else []
        assert versions() == ["now", "now.1", *others, f"now.{number}"]
        assert os.readlink("runs/now") == f"now.{number}"
        if number < 6:
            Path("runs/now").unlink()
            Path("runs/now").symlink_to("now.1")
    works(*night, 1)  # now.6 was accepted: now.1 is an old run like others
    assert versions() == ["now", "now.6", "now.7"]


def test_replace_keeps_a_run_that_the_link_was_set_to_during_the_training(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = ["train", log, *COUNTS, "--out", "runs/now", "--replace", "--keep"]
    for _ in range(3):
        works(*night, 2)
    fit = train_module.fit_and_evaluate

    def set_back_first(*arguments: Any, **options: Any) -> Any:
        Path("runs/now").unlink()
        Path("runs/now").symlink_to("now.1")
        return fit(*arguments, **options)

    monkeypatch.setattr(train_module, "fit_and_evaluate", set_back_first)
    works(*night, 1)
    assert versions() == ["now", "now.1", "now.3", "now.4"]


def test_a_reader_keeps_the_run_that_it_opened(log: Path) -> None:
    night = ["train", log, *COUNTS, "--out", "runs/now", "--replace"]
    works(*night)
    opened = Run.load("runs/now")
    works(*night, "--seed", 1)
    assert opened.read_weights("model.safetensors").keys()  # read now, from the former run
    assert opened.settings.seed == 0 and opened.folder.path.name == "now.1"


def test_a_failed_night_leaves_the_former_run(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night = ["train", log, *COUNTS, "--out", "runs/now", "--replace"]
    works(*night)
    before = contents(Path("runs"))
    fit = train_module.fit_and_evaluate

    def fail(folder: Any, *arguments: Any, **options: Any) -> None:
        raise RunError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "fit_and_evaluate", fail)
        fails(*night, "--seed", 1, containing="No space left on device")
    assert Run.load("runs/now").path.name == "now.1"
    assert before.items() <= contents(Path("runs")).items()
    assert works(*night, "--seed", 1, "--resume").err.count("now.2")
    assert Run.load("runs/now").settings.seed == 1 and fit is train_module.fit_and_evaluate
    with monkeypatch.context() as patch:
        patch.setattr(train_module, "fit_and_evaluate", fail)
        fails(*night, "--seed", 2)
    result = works(*night, "--seed", 3)  # without --resume: the unfinished run is deleted
    assert "runs/now.3 was unfinished: deleted" in result.err
    assert versions() == ["now", "now.1", "now.2", "now.3"] and Run.load("runs/now").settings.seed == 3


def test_replace_recovers_from_a_kill_at_any_step(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every step the name opens a complete run, or none if there was none; no finished run is lost."""
    night = ["train", log, *COUNTS, "--out", "runs/now", "--replace", "--keep", 1]
    works("train", log, *COUNTS, "--out", "runs/now")  # a plain folder at first
    left = [0]

    def counted(operation: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise Cut
            return operation(*arguments, **options)

        return run

    fake_os, fake_shutil = ModuleType("os"), ModuleType("shutil")
    for fake, real in ((fake_os, os), (fake_shutil, shutil)):
        vars(fake).update(vars(real))
    for name in ("rename", "symlink", "replace"):
        setattr(fake_os, name, counted(getattr(os, name)))
    fake_shutil.rmtree = counted(shutil.rmtree)  # type: ignore[attr-defined]
    monkeypatch.setattr(version_module, "os", fake_os)
    monkeypatch.setattr(version_module, "shutil", fake_shutil)
    cuts = 0
    for seed in range(1, 9):
        for options in ([], ["--resume"]):
            left[0] = seed % 6 + 1
            try:
                works(*night, "--seed", seed, *options)
            except Cut:
                cuts += 1
            left[0] = -1
            if Path("runs/now").exists():
                assert Run.load("runs/now").settings.seed <= seed
    assert cuts > 4
    works(*night, "--seed", 99)
    assert Run.load("runs/now").settings.seed == 99
    assert len(versions()) == 3 and versions()[0] == "now"


def test_replace_refuses_what_it_did_not_make(log: Path) -> None:
    night = ["train", log, *COUNTS, "--out", "runs/now", "--replace"]
    Path("runs/now").mkdir(parents=True)
    Path("runs/now/notes.txt").write_text("mine")
    with unchanged(Path("runs")):
        fails(*night, containing="runs/now is not a finished run")
    Path("runs/now").rename("runs/now.7")
    with unchanged(Path("runs")):
        fails(*night, containing=["runs/now.7 is not a run", "Move it"])
    Path("runs/now.7").rename("runs/other")
    Path("runs/now").symlink_to("other")
    with unchanged(Path("runs")):
        fails(*night, containing="runs/now is a link to other")
    Path("runs/now").unlink()
    Path("runs/now.1").mkdir()
    with file_lock(Path("runs/now.1")):
        fails(*night, containing="Another process is training in runs/now.1")
    works(*night)


def test_replace_with_several_seeds(log: Path) -> None:
    night = ["train", log, *COUNTS, "--out", "runs/now", "--replace", "--seeds", 2]
    works(*night)
    assert "recommend runs/now/seed-0" in works(*night).err
    assert versions() == ["now", "now.1", "now.2"]
    works("recommend", "runs/now/seed-1", "--source", 1)


# -------------------- drift


def test_drift_has_an_exit_code(log: Path, tmp_path: Path) -> None:
    works("train", log, *COUNTS, "--out", "old")
    works("train", log, "--model", "popularity", "--out", "new")
    same = ["compare", "old", "new", "--bootstrap", 20]
    found = works(*same, "--json").json
    drop = -found["metrics"]["ap"]["difference"]
    assert drop > 0.02 and found["exceeded"] == []
    result = call(*same, "--max-drop", "ap=0.01")
    assert result.code == 3 and "AP dropped by" in result.err and "the limit is 1." in result.err and "AP" in result.out
    works(*same, "--max-drop", f"ap={drop + 0.001}", "--max-drop", "auc=1", "--fail-below", "ap=0.01")
    assert call(*same, "--fail-below", "ap=0.99").code == 3
    assert len(json.loads(call(*same, "--fail-below", "ap=0.99", "--json").out)["exceeded"]) == 1
    works("compare", "new", "old", "--bootstrap", 20, "--max-drop", "ap=0")
    fails(*same, "--max-drop", "mrr=0.1", containing="--set ranking=100")
    fails(*same, "--max-drop", "loss=0.1", containing=["loss", "ap, auc, mrr"])
    fails(*same, "--max-drop", "ap=2", containing="from 0 to 1")
    fails(*same, "--max-drop", "ap", containing="from 0 to 1")


def test_runs_before_and_after_an_append_are_compared(log: Path, tmp_path: Path) -> None:
    """Both on the longer data; the metrics of the newer run are those of its training."""
    works("train", log, *COUNTS, "--out", "old")
    last = events(160)[-1][2]
    works("data", "append", log, write_events(tmp_path / "day.csv", events(60, seed=3, start=last, nodes=15)))
    works("train", log, *COUNTS, "--init", "old", "--out", "new")
    for pair, side in ((("old", "new"), "b"), (("new", "old"), "a")):
        found = works("compare", *pair, "--bootstrap", 20, "--json").json
        expected = json.loads(Path("new/metrics.json").read_text())["test"]["transductive"]
        assert found["metrics"]["ap"][side] == pytest.approx(expected["ap"])
        assert found["events"] == expected["events"]
        assert "old was trained on the first 160 of the 220 events of new" in found["remarks"][0]
    works("train", write_events(tmp_path / "x.csv", events(220, seed=9)), *COUNTS, "--out", "other")
    fails("compare", "old", "other", containing="different data")
    works("train", log, *COUNTS, "--set", "train_ratio=0.2", "--set", "val_ratio=0.2", "--out", "early")
    fails("compare", "old", "early", containing="protocols differ in train_ratio")


# -------------------- the page


PAGE = Path(__file__).parents[2] / "docs" / "nightly.md"
SHIM = """#!{python}
import json, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendall(json.dumps(sys.argv[1:]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.makefile().read()))
"""


def run_in_bash(command: list[str], home: Path) -> tuple[int, list[CommandResult]]:
    """Run bash, with `cordgt` in this process instead of one of its own. Returns bash's exit code and the results."""
    address, results = str(home / "socket"), []
    shim = home / "bin" / "cordgt"
    shim.parent.mkdir(exist_ok=True)
    shim.write_text(SHIM.format(python=sys.executable, address=address))
    shim.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        server.settimeout(0.1)
        bash = subprocess.Popen(["bash", *command], env=os.environ | {"PATH": f"{shim.parent}:{os.environ['PATH']}"})
        while bash.poll() is None:
            with contextlib.suppress(TimeoutError):
                connection = server.accept()[0]
                connection.settimeout(None)
                with connection, connection.makefile() as request:
                    results.append(call(*json.loads(request.read())))
                    connection.sendall(str(results[-1].code).encode())
    os.unlink(address)
    return bash.returncode, results


def test_the_page_can_be_followed_line_by_line(tmp_path: Path) -> None:
    """The commands of docs/nightly.md (not of its live service), then an empty, a repeated, a wrong and a bad day."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    once, script, night, *_ = (text for language, text in blocks if language in ("", "bash"))
    rows = events(220)
    write_events(Path("history.csv"), rows[:160])
    write_rows(Path("sources.csv"), [(k,) for k in range(5)], header=("src",))
    write_events(Path("day.csv"), rows[160:200])
    Path("nightly.sh").write_text(script)
    assert run_in_bash(["-euc", once], tmp_path)[0] == 0
    first = Path("recommendations.csv").read_text()
    code, results = run_in_bash(["-euc", night], tmp_path)
    assert (code, len(results)) == (0, 4), results
    assert "added 40 events" in results[0].err and os.readlink("runs/now") == "now.2"
    assert "was trained on the first 160 of the 200 events" in results[2].out
    assert Path("recommendations.csv").read_text() != first
    for name, text in (("again.csv", Path("day.csv").read_text()), ("empty.csv", "src,dst,time\n")):
        Path(name).write_text(text)
        code, results = run_in_bash(["nightly.sh", name], tmp_path)
        assert (code, len(results)) == (0, 4) and "Nothing was appended" in results[0].err
    code, results = run_in_bash(["nightly.sh", "missing.csv"], tmp_path)
    assert (code, len(results)) == (2, 1)
    assert open_store("log.store").n_events == 200 and os.readlink("runs/now") == "now.4"
    Path("nightly.sh").write_text(script.replace("--max-drop ap=0.05", "--fail-below ap=1"))  # too high for any run
    code, results = run_in_bash(["nightly.sh", str(write_events(Path("last.csv"), rows[200:]))], tmp_path)
    assert (code, [result.code for result in results]) == (3, [0, 0, 3, 0])
    assert os.readlink("runs/now") == "now.4" and Path("runs/now.5").is_dir()
    for number in (6, 7):  # the script goes back each time, so its former run must not be deleted
        Path("nightly.sh").write_text(Path("nightly.sh").read_text().replace("--keep 7", "--keep 1"))
        assert run_in_bash(["nightly.sh", "last.csv"], tmp_path)[0] == 3
        assert os.readlink("runs/now") == "now.4" and versions() == ["now", "now.4", f"now.{number}"]
    Path("nightly.sh").write_text(script.replace("--max-drop ap=0.05", "--max-drop loss=0.05"))  # compare fails
    code, results = run_in_bash(["nightly.sh", "last.csv"], tmp_path)
    assert (code, [result.code for result in results]) == (2, [0, 0, 2, 0])
    assert os.readlink("runs/now") == "now.4" and Path("runs/now.8").is_dir()
