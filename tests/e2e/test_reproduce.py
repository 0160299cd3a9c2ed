"""`cordgt reproduce` on small stand-ins for the paper's datasets: skip, interrupt, resume, run in parallel."""

from __future__ import annotations

import json
import os
import shlex
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cordgt.experiments import measurements

from .helpers import CommandResult, call, contents, events, fails, settings, unchanged, works, write_rows

SMALL = settings(epochs=2)


@pytest.fixture(autouse=True)
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write streams of 160 events under the names of two datasets."""
    data = tmp_path / "data"
    for name, seed in (("uci", 0), ("enron", 1)):
        (data / name).mkdir(parents=True)
        rows = [(k, u + 1, v + 1, t, int(k % 7 == 0), k + 1) for k, (u, v, t) in enumerate(events(seed=seed))]
        write_rows(data / name / f"ml_{name}.csv", rows, header=("", "u", "i", "ts", "label", "idx"))
    monkeypatch.setenv("CORDGT_DATA", str(data))
    return data


def cells(folder: Path = Path("results")) -> dict[str, bytes]:
    return {k: v for k, v in contents(folder).items() if k.startswith("cells")}


def test_finished_cells_are_not_trained_again(tmp_path: Path) -> None:
    options = ("--datasets", "uci,enron", "--models", "cordgt,edgebank", "--seeds", "2", *SMALL)
    result = works("reproduce", "link-ap", *options)
    assert "not uci as published" in result.out
    assert {p.name for p in Path("results").iterdir()} == {"cells", "link-ap.md", "link-ap.csv", "link-ap.png"}
    done = cells()
    assert len(done) == 8
    assert all(len(content) < 8192 for content in done.values())
    again = works("reproduce", "link-auc", *options)  # of the same cells
    assert "8 of 8 cells are finished" in again.err
    assert cells() == done
    assert Path("results/link-auc.md").exists()
    record = json.loads(next(iter(done.values())))
    assert {"validation", "test", "baselines"} <= set(record["figures"])
    output = works(*shlex.split(record["command"])[1:], "--out", "again", "--json").json
    assert output["test"] == record["figures"]["test"]  # the command gives the cell again


def test_folders_are_merged_by_copying(tmp_path: Path) -> None:
    common = ("reproduce", "link-ap", "--datasets", "uci", "--models", "edgebank", "--seeds", "2")
    works(*common, "--shard", "1/2", "--out", "a")
    works(*common, "--shard", "2/2", "--out", "b")
    for name, content in cells(Path("b")).items():
        path = Path("a") / name
        assert not path.exists()
        path.write_bytes(content)
    result = works(*common, "--report", "--out", "a")
    assert "| EdgeBank |" in result.out
    assert "cells are finished" not in result.out  # all of them are
    rows = works(*common, "--report", "--out", "a", "--json").json
    assert {row["seeds"] for row in rows} == {2}


def test_a_time_limit_stops_and_the_next_call_resumes(tmp_path: Path) -> None:
    common = (
        "reproduce",
        "link-ap",
        "--datasets",
        "uci",
        "--models",
        "cordgt",
        "--seeds",
        "1",
        *settings(epochs=20_000),
    )
    patient = ("--set", "patience=20000", "--keep")

    def trained() -> int:
        lines = [line for path in Path("results/runs").rglob("history.jsonl") for line in path.read_text().splitlines()]
        return max((json.loads(line)["epoch"] for line in lines), default=0)

    def limited(beyond: int) -> CommandResult:
        """Repeat the call until more epochs are trained: 1.8 s may be too short on a slow machine."""
        for _ in range(20):
            result = works(*common, *patient, "--minutes", "0.03")
            if trained() > beyond:
                break
        return result

    result = limited(0)
    assert "stopped, saved after" in result.err
    assert "no cell is finished yet" in result.err
    assert not Path("results/cells").exists()
    assert not Path("results/link-ap.md").exists()
    begun = trained()
    more = limited(begun)
    assert "saved after" in more.err and "seed 0: resumes" in more.err
    assert trained() > begun  # it went on, and did not start anew


def test_a_signal_stops_parallel_processes(tmp_path: Path) -> None:
    """Two endless trainings; once both have trained an epoch, the main process gets SIGTERM."""
    common = ("reproduce", "link-ap", "--datasets", "uci,enron", "--models", "cordgt", "--workers", "2", "--seeds", "1")
    folder, signals = tmp_path / "results" / "runs", []

    def stop_when_both_train() -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            if len([p for p in folder.rglob("history.jsonl") if "validation" in p.read_text()]) == 2:
                signals.append("stop")
                break
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_when_both_train)
    thread.start()
    result = call(*common, *settings(epochs=100_000, patience=100_000))
    thread.join()
    assert signals, result.err
    assert result.code == 143, result.err
    assert result.err.count("stopped, saved after") == 2
    assert "2 cells are left" in result.err
    assert not (tmp_path / "results" / "cells").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_measurement_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """A measurement has nothing to save, so it stops at once."""
    measured = []

    def grow(cell: Any, *_: Any) -> dict[str, Any]:
        measured.append(cell.model)
        if len(measured) == 2:
            os.kill(os.getpid(), number)
            time.sleep(30)
        points = [{"size": n, "ms": 1.0} for n in (1, 2)]
        sizes = ("batch", "context", "events")
        return dict.fromkeys(sizes, points) | dict.fromkeys((f"{k}_order" for k in sizes), 1.0)

    monkeypatch.setitem(measurements.STREAM_MEASUREMENTS, "growth", grow)
    common = ("reproduce", "complexity", "--datasets", "uci")
    result = call(*common)
    assert result.code == 128 + number
    assert "growth, uci, tgat, seed 0: stopped" in result.err
    assert "2 cells are left, 1 finished" in result.err
    assert "| CorDGT | 1: 1, 2: 1 |" in result.out
    assert not Path("results/runs").exists()
    assert "1 of 3 cells are finished" in works(*common).err
    assert measured == ["cordgt", "tgat", "tgat", "tgn"]


def test_missing_data_and_wrong_names_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDGT_DATA", str(tmp_path / "nothing"))
    with unchanged(tmp_path):
        fails("reproduce", "link-ap", containing=["None of this experiment's datasets", "ml_NAME.csv"])
        fails("reproduce", "ablation", "--datasets", "uci", containing="The dataset uci was not found")
        fails("reproduce", "datasets", containing=["None of this experiment's datasets", "cordgt data fetch"])
        fails("reproduce", "link-pa", containing="Did you mean 'link-ap'?")
        fails("reproduce", containing="Name what to reproduce")
        fails(
            "reproduce",
            "link-ap",
            "--models",
            "cordgtt",
            "--datasets",
            "synthetic",
            containing="Did you mean 'cordgt'?",
        )
    assert not Path("results").exists()


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path, stand_ins: Path) -> None:
    write_rows(stand_ins / "uci" / "ml_uci.csv", [(0, 1, 2, 0, 0, 1)], header=("", "u", "i", "ts", "label", "idx"))
    result = call("reproduce", "link-ap", "--datasets", "uci,enron", "--models", "edgebank", "--seeds", "1")
    assert result.code == 1
    assert "Too few events to split" in result.err
    assert [name for name in cells() if "uci" in name] == []
    assert len(cells()) == 1


def test_labels_are_checked_before_training(stand_ins: Path) -> None:
    rows = [(k, u + 1, v + 1, t, 0, k + 1) for k, (u, v, t) in enumerate(events())]
    write_rows(stand_ins / "uci" / "ml_uci.csv", rows, header=("", "u", "i", "ts", "label", "idx"))
    result = call("reproduce", "node-classification", "--datasets", "uci", "--models", "cordgt,tgn", "--seeds", "2")
    assert result.code == 1
    assert result.err.count("The labels of uci must have two different values") == 1  # not once per model and seed
    assert "Nothing is trained on uci: leave it out of --datasets." in result.err
    assert "epoch" not in result.err and "starts" not in result.err
    assert not Path("results").exists()
    both = ("--datasets", "uci,enron", "--models", "jodie", "--seeds", "1")
    result = call("reproduce", "node-classification", *both, *settings(memory_dim=4, time_dim=4))
    assert result.code == 1 and "labels of uci must have two different values" in result.err
    assert {name.split("/")[2] for name in cells()} == {"enron"}  # which is classified all the same


def test_quick_writes_to_its_own_folder(tmp_path: Path) -> None:
    options = ("reproduce", "link-ap", "--quick", "--datasets", "uci", "--models", "edgebank,cordgt")
    works(*options, *settings(epochs=3))
    written = Path("results/quick/link-ap.md").read_text()
    assert written.count("**Quick**: the first 160 events, up to 3 epochs.") == 1
    assert not Path("results/cells").exists()


def test_a_classifier_on_a_frozen_encoder(stand_ins: Path) -> None:
    works("train", "uci", *settings(), "--out", "encoder")
    options = ("train", "uci", "--task", "node", "--set", "epochs=2")
    result = works(*options, "--encoder", "encoder", "--out", "node", "--json")
    assert result.json["test"]["events"] > 0
    assert "weigh the same in the loss" in result.err
    fails(*options, containing="--task node needs --encoder RUN")
    fails("train", "uci", "--encoder", "encoder", containing="--encoder is for --task node")
    fails(*options, "--encoder", "encoder", "--refit", containing="--refit is not for --task node")
    fails(*options, "--encoder", "encoder", "--processes", 2, containing="--processes is not for --task node")
    fails(*options, "--encoder", "encoder", "--no-report", containing="--no-report is not for --task node")
    fails(*options, "--encoder", "nowhere", containing="nowhere does not exist")
    fails("train", "enron", "--task", "node", "--encoder", "encoder", containing="other events")
    rows = [(u + 1, v + 1, t, 1) for u, v, t in events()]
    write_rows(Path("one.csv"), rows, header=("u", "i", "ts", "label"))
    alike = ("train", "one.csv", "--task", "node", "--encoder", "encoder")
    fails(*alike, containing="one.csv must have two different values, such as 0 and 1, but have 1 (1)")
    fails("recommend", "node", "--source", "1", containing="is a node classifier")
    works(*options, "--encoder", "encoder", "--seed", 4)
    assert Path("runs/uci-cordgt-node-seed4/metrics.json").exists()


def test_labels_are_required_only_for_classification() -> None:
    rows = [(u, v, t, k % 2) for k, (u, v, t) in enumerate(events())]
    write_rows(Path("log.csv"), rows, header=("buyer", "thing", "day", "left"))
    columns = ("--src", "buyer", "--dst", "thing", "--time", "day")
    works("train", "log.csv", *columns, "--label", "left", *settings(), "--out", "encoder", "--no-report")
    node = ("--task", "node", "--encoder", "encoder", "--set", "epochs=1", "--out", "node")
    write_rows(Path("bare.csv"), [row[:3] for row in rows], header=("buyer", "thing", "day"))
    output = fails("train", "bare.csv", *node, containing="bare.csv has no column 'left' for --label").err
    assert "encoder was trained with that column" in output
    write_rows(Path("called.csv"), rows, header=("buyer", "thing", "day", "gone"))
    assert (
        "trained with" not in fails("train", "called.csv", *node, "--label", "lost", containing="no column 'lost'").err
    )
    works("train", "called.csv", *node, "--label", "gone")
    later = [(u, v, t + 10**6) for u, v, t, _ in rows[:5]]  # to answer, no labels are needed
    write_rows(Path("later.csv"), later, header=("buyer", "thing", "day"))
    result = works("recommend", "encoder", "--source", str(rows[0][0]), "--events", "later.csv")
    assert "5 events appended" in result.err


NAMES = "ablation node-classification datasets complexity scalability heatmap sensitivity".split()
NAMES += ["beyond", "plus-ablation", "ranking", "paper-protocol", "anchors", "new-partners", "calibration", "retrieval"]
NAMES += ["time-to-accuracy"]
WITHOUT_FIGURE = ("retrieval",)


@pytest.mark.parametrize("name", NAMES)
def test_every_table_and_figure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cordgt.experiments import sensitivity

    monkeypatch.setattr(sensitivity, "WEIGHTS", (0.1, 1.0))
    monkeypatch.setattr(sensitivity, "NEIGHBORS", (2, 3))
    monkeypatch.setattr(sensitivity, "BATCH_SIZES", (50, 100))
    models = {
        "scalability": "cordgt,jodie",
        "time-to-accuracy": "counts,cordgt_plus,jodie",
        "beyond": "cordgt_plus,edgebank",
        "ranking": "cordgt_plus,edgebank",
        "anchors": "cordgt_plus,counts",
        "new-partners": "counts,item_knn",
        "node-classification": "cordgt,jodie",
        "complexity": "cordgt,tgn",
    }
    some = ("--models", models[name]) if name in models else ()
    result = works("reproduce", name, "--datasets", "uci", "--quick", *some, *settings(memory_dim=4, time_dim=4))
    folder = Path("results/quick")
    if name not in WITHOUT_FIGURE:
        assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / f"{name}.csv").read_text().count("\n") >= 2
    assert (folder / f"{name}.md").read_text().startswith("# ")
    assert result.out.startswith("# ")
    assert not (folder / "runs").exists()
    again = works(
        "reproduce", name, "--report", "--datasets", "uci", "--quick", *some, *settings(memory_dim=4, time_dim=4)
    )
    assert again.out == result.out


def test_list_of_experiments(stand_ins: Path) -> None:
    rows = {row["name"]: row for row in works("reproduce", "--list", "--json").json}
    assert set(rows) == {"link-ap", "link-auc", *NAMES}
    assert rows["link-ap"]["data"] == "uci, enron"
    assert "reddit" in rows["link-ap"]["missing"]
    assert rows["scalability"]["data"] == "food-twin, outdoors-twin"
    assert rows["heatmap"]["cells"] == "0/6"
    output = works("reproduce", "--list").out
    assert "not here: reddit" in output
    options = ("--datasets", "enron,reddit", "--models", "tgn,cordgt", "--seeds", "2")
    rows = {row["name"]: row for row in works("reproduce", "--list", *options, "--json").json}
    assert (rows["link-ap"]["data"], rows["link-ap"]["missing"]) == ("enron", "reddit")
    assert rows["link-ap"]["cells"] == "0/4"
    assert rows["heatmap"]["cells"] == "0/2"  # which is CorDGT's alone
    assert rows["plus-ablation"]["cells"] == "0/0"  # in which neither has a place
    fails("reproduce", "--list", "--models", "tgm", containing="Did you mean 'tgn'?")
    assert not Path("results").exists()
