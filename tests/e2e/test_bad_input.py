"""A user's mistake gives one clear message and exit code 2, and leaves no partial files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from cordgt.cli import console
from cordgt.training.run_folder import RunFolder

from .conftest import Trained
from .helpers import TINY, contents, events, fails, process, settings, unchanged, works, write_events, write_rows

HEADER = "src,dst,time\n"
GOOD = "".join(f"{u},{v},{t}\n" for u, v, t in events(60))
LAST = events()[-1][2]


def refused(tmp_path: Path, data: Any, *options: Any, containing: Any) -> None:
    """Training fails, and makes no folder."""
    with unchanged(tmp_path):
        fails("train", data, *TINY, "--out", tmp_path / "run", *options, containing=containing)
    assert not (tmp_path / "run").exists()


# -------------------- files of events


@pytest.mark.parametrize(
    ("text", "containing"),
    [
        ("", "bad.csv is empty"),
        ("\n \n", "bad.csv is empty"),
        (HEADER, "header but no rows"),
        ("# only\n% comments\n", "comments"),
        (HEADER + "1,2,3\n", "Too few events to split"),
        (HEADER + "1,2,3\n2,1,4\n1,2,5\n", "Too few events to split"),
        (HEADER + GOOD + "1,2,soon\n", ["line 62", "'soon' is not a number", "'time'"]),
        (HEADER + GOOD + "1,2,nan\n", ["line 62", "'nan' is not a finite number"]),
        (HEADER + "1,2,inf\n" + GOOD, ["line 2", "'inf' is not a finite number"]),
        (HEADER + GOOD + "1,2,\n", ["line 62", "the time is missing"]),
        (HEADER + GOOD + "1,2,2024-01-01\n", ["line 62", "is a date, but"]),
        (HEADER + GOOD + "1,2\n", ["line 62", "found 2 fields, expected 3"]),
        (HEADER + "1,2,3,4\n" + GOOD, ["line 2", "found 4 fields, expected 3"]),
        (HEADER + GOOD + ",2,3\n", ["line 62", "the id is missing"]),
        ("1 2 3\n" * 30 + "1 2\n", ["line 31", "found 2 fields, expected 3"]),
        ("one line of prose without any structure\n", "bad.csv"),
        ("who,whom,when\n" + GOOD, ["--src", "'who', 'whom', 'when'"]),
    ],
)
def test_a_bad_file(tmp_path: Path, text: str, containing: Any) -> None:
    data = tmp_path / "bad.csv"
    data.write_text(text)
    refused(tmp_path, data, containing=containing)
    with unchanged(tmp_path):
        if "Too few" not in containing:
            fails("data", "describe", data, containing=containing)
            fails("data", "convert", data, tmp_path / "out.csv", containing=containing)


@pytest.mark.parametrize(
    ("content", "containing"),
    [
        (b"\x00\x01\x02binary\x00", "neither text (CSV, TSV, edge list), nor gzip of it, nor Parquet"),
        (b"PAR1 and then nothing of the kind", "damaged Parquet file"),
        (gzip.compress((HEADER + GOOD).encode())[:40], "damaged or incomplete gzip"),
        ((HEADER + "é,2,3\n").encode("latin-1"), "save the file in UTF-8"),
        ((HEADER + GOOD).encode("utf-16"), "save it as UTF-8"),
    ],
    ids=["binary", "parquet", "gzip", "latin", "utf-16"],
)
def test_a_file_of_another_kind(tmp_path: Path, content: bytes, containing: str) -> None:
    data = tmp_path / "bad.csv"
    data.write_bytes(content)
    refused(tmp_path, data, containing=["bad.csv", containing])


def test_a_missing_file(tmp_path: Path) -> None:
    write_events(tmp_path / "events.csv")
    refused(tmp_path, tmp_path / "event.csv", containing=["There is no file", "Did you mean 'events.csv'?"])
    refused(tmp_path, tmp_path, containing="is a folder")


@pytest.mark.parametrize(
    ("name", "near"), [("wikipedai", "wikipedia"), ("redit", "reddit"), ("social-evolution", "social_evolution")]
)
def test_an_unknown_dataset(tmp_path: Path, name: str, near: str) -> None:
    refused(tmp_path, name, containing=[f"'{name}' is neither a known dataset nor a file", f"Did you mean '{near}'?"])
    fails("data", "describe", name, containing=f"Did you mean '{near}'?")


def test_a_known_dataset_that_is_not_here(tmp_path: Path) -> None:
    refused(tmp_path, "wikipedia", containing=["The dataset wikipedia was not found", str(tmp_path / "no-data")])


@pytest.mark.parametrize(
    ("options", "containing"),
    [
        (["--time", "tme"], ["no column 'tme' for --time", "Did you mean 'time'?"]),
        (["--src", "sorce"], ["no column 'sorce' for --src", "The columns are 'source', 'target'"]),
        (["--dst", "9"], ["no column 9 for --dst", "it has 5"]),
        (["--features", "word"], ["line 2", "the feature 'w0' in column 'word' is not a number"]),
        (["--features", "amuont"], ["no column 'amuont' for --features", "Did you mean 'amount'?"]),
        (["--features", "target"], ["'target'", "already in use"]),
        (["--src", "target", "--dst", "target"], ["would be both the source and the destination"]),
        (["--label", "word"], ["the label 'w0' is not a number"]),
        (["--ids", "separated"], ["shared or separate", "Did you mean 'separate'?"]),
        (["--node-features", "nowhere.csv"], ["There is no file nowhere.csv"]),
    ],
)
def test_a_bad_choice_of_columns(tmp_path: Path, options: list[str], containing: list[str]) -> None:
    rows = [(*event, k % 3, f"w{k}") for k, event in enumerate(events())]
    data = write_rows(tmp_path / "d.csv", rows, header=("source", "target", "time", "amount", "word"))
    refused(tmp_path, data, *options, containing=containing)
    with unchanged(tmp_path):
        fails("data", "describe", data, *options, containing=containing)


@pytest.mark.parametrize("value", ["nan", "inf", "", "1e99", "x"])
def test_a_feature_that_is_not_a_finite_number(tmp_path: Path, value: str) -> None:
    rows = [(*event, 1.5) for event in events(60)]
    rows[40] = (*rows[40][:3], value)  # type: ignore[assignment]
    data = write_rows(tmp_path / "d.csv", rows, header=("src", "dst", "time", "x"))
    refused(tmp_path, data, "--features", "x", containing=["d.csv, line 42", "column 'x'"])


def test_features_of_unequal_length(tmp_path: Path) -> None:
    rows = events(60)
    lists = [[1.0, 2.0]] * 50 + [[1.0]] * 10
    u, v, t = zip(*rows, strict=True)
    pq.write_table(pa.table({"src": u, "dst": v, "time": t, "features": lists}), tmp_path / "d.parquet")
    refused(tmp_path, tmp_path / "d.parquet", containing=["row 50", "1 features", "2 in the first row"])


@pytest.mark.parametrize(
    ("array", "containing"),
    [
        (np.zeros((50, 2)) + 1, ["has 50 rows", "61 were expected"]),
        (np.array([{"a": 1}] * 61, dtype=object).reshape(61, 1), ["ml_d.npy", "Python objects"]),
        (np.array([["a", "b"]] * 61), ["ml_d.npy", "a matrix of numbers was expected"]),
        (np.full((61, 2), np.nan), ["ml_d.npy", "row 0"]),
        (np.ones(61), ["ml_d.npy", "a matrix of numbers was expected"]),
        (b"\x93NUMPY cut off", ["ml_d.npy", "damaged"]),
    ],
)
def test_a_bad_array_beside_a_published_file(tmp_path: Path, array: Any, containing: list[str]) -> None:
    rows = [(k, u + 1, v + 1, t, 0, k + 1) for k, (u, v, t) in enumerate(events(60))]
    data = write_rows(tmp_path / "ml_d.csv", rows, header=("", "u", "i", "ts", "label", "idx"))
    if isinstance(array, bytes):
        (tmp_path / "ml_d.npy").write_bytes(array)
    else:
        np.save(tmp_path / "ml_d.npy", array, allow_pickle=True)
    refused(tmp_path, data, containing=containing)


@pytest.mark.parametrize(
    ("text", "containing"),
    [
        ("id,x\n0,1\n0,2\n", ["line 3", "a second time"]),
        ("id,x\nzed,1\n", ["None of the 1 ids"]),
        ("id,x\n0,big\n", ["line 2", "'big'"]),
        ("id\n0\n", ["no features"]),
    ],
)
def test_bad_features_of_nodes(tmp_path: Path, text: str, containing: list[str]) -> None:
    data = write_events(tmp_path / "d.csv")
    (tmp_path / "n.csv").write_text(text)
    refused(tmp_path, data, "--node-features", tmp_path / "n.csv", containing=["n.csv", *containing])


# -------------------- settings


@pytest.mark.parametrize(
    ("options", "containing"),
    [
        (["--model", "cordtg"], ["no model 'cordtg'", "Did you mean 'cordgt'?"]),
        (["--set", "epoch=3"], ["no setting 'epoch'", "Did you mean 'epochs'?"]),
        (["--set", "epochs"], ["--set epochs", "KEY=VALUE"]),
        (["--set", "seed=3"], ["'seed'", "--seed"]),
        (["--set", "model=edgebank"], ["'model'", "--model"]),
        (["--set", "epochs=many"], ["epochs=many", "a whole number"]),
        (["--set", "epochs=0"], ["epochs=0", "at least 1"]),
        (["--set", "lr=0"], ["lr=0", "above 0"]),
        (["--set", "lr=nan"], ["lr=nan"]),
        (["--set", "fanout=0"], ["fanout=0"]),
        (["--set", "fanout=a,b"], ["fanout=a,b", "32,1"]),
        (["--set", "visibility=evnt"], ["visibility=evnt", "event"]),
        (["--set", "sampling=recnt"], ["sampling=recnt", "recent"]),
        (["--set", "mask=perhaps"], ["mask=perhaps", "true or false"]),
        (["--set", "dropout=1.5"], ["dropout=1.5"]),
        (["--set", "mask_nodes=1"], ["mask_nodes=1"]),
        (["--seeds", "0"], ["--seeds"]),
        (["--seed", "x"], ["--seed"]),
        (["--seed", str(2**70)], [f"seed={2**70}"]),
        (["--device", "gpu"], ["'gpu'", "auto, cpu or cuda"]),
        (["--config", "nowhere.toml"], ["nowhere.toml", "cannot be read"]),
        (["--init", "nowhere"], ["nowhere does not exist"]),
        (["--json", "nowhere/figures.json"], ["nowhere/figures.json cannot be written", "no folder nowhere"]),
        (["--frobnicate"], ["--frobnicate"]),
    ],
)
def test_a_bad_option_of_train(tmp_path: Path, options: list[str], containing: list[str]) -> None:
    refused(tmp_path, write_events(tmp_path / "d.csv"), *options, containing=containing)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_where_there_is_none(tmp_path: Path, trained: Trained) -> None:
    containing = ["CUDA was requested, but this machine has no usable CUDA device", "--device cpu"]
    refused(tmp_path, write_events(tmp_path / "d.csv"), "--device", "cuda", containing=containing)
    for command in (["evaluate"], ["recommend", "--source", "3"], ["embed", "--output", "v.csv"]):
        fails(command[0], trained.run, *command[1:], "--device", "cuda", containing=containing)


@pytest.mark.parametrize(
    ("text", "containing"),
    [
        ("epochs = \n", ["not valid TOML"]),
        ("[trainig]\nepochs = 1\n", ["no table [trainig]", "Did you mean 'training'?"]),
        ("[training]\nepoch = 1\n", ["no setting 'epoch'", "Did you mean 'epochs'?"]),
        ("epochs = 1.5\n", ["epochs=1.5", "a whole number"]),
        ('seed = "one"\n', ["seed=one"]),
        ('model = "nope"\n', ["no model 'nope'"]),
        ("fanout = [1.5]\n", ["fanout"]),
    ],
)
def test_a_bad_config_file(tmp_path: Path, text: str, containing: list[str]) -> None:
    (tmp_path / "my.toml").write_text(text)
    data = write_events(tmp_path / "d.csv")
    with unchanged(tmp_path):
        fails("train", data, "--config", "my.toml", containing=containing)


def test_a_training_that_diverges(tmp_path: Path) -> None:
    """The message says what may help; the checkpoint stays, and no metrics are written."""
    data = write_events(tmp_path / "d.csv")
    options = settings(lr=1e30, batch_size=10, epochs=3)
    fails("train", data, *options, "--out", "run", containing=["no longer a number", "lr="])
    assert not Path("run/metrics.json").exists()


def test_all_scores_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For example after a training that collapsed. Its metrics are those of guessing, and a note says so."""
    data = write_events(tmp_path / "d.csv")
    command = ("train", data, *TINY, "--out", "run")
    assert "same score" not in works(*command).err
    folder = RunFolder(Path("run"))
    metrics = folder.read_metrics()
    metrics["test"]["transductive"] |= {"ap": 0.5, "auc": 0.5}
    folder.write_metrics(metrics)
    assert "Every pair of the test period has the same score: training collapsed" in works(*command, "--resume").err
    works("report", "run")
    assert "Every pair of the test period has the same score" in Path("run/report.html").read_text(encoding="utf-8")

    epoch: dict[str, Any] = {"phase": "fit", "epoch": 1, "loss": 0.69, "train_seconds": 1.0, "best_epoch": 1}
    for validation, warned in ({"ap": 0.5, "auc": 0.5}, True), ({"ap": 0.5, "auc": 0.6}, False):
        console.ProgressBar().on_epoch_end(epoch | {"validation": validation})
        assert ("all scores are equal" in capsys.readouterr().err) is warned
    console.ProgressBar().on_epoch_end(epoch | {"phase": "refit"})  # a refit has no validation


def test_event_lines_taken_for_comments_get_a_note(tmp_path: Path, trained: Trained) -> None:
    later = write_events(tmp_path / "later.csv", [(3, 5, LAST + 1), ("#4", 5, LAST + 2)])
    stderr = works("recommend", trained.run, "--source", "3", "--events", later).err
    assert "1 line starting with # or % skipped (ids that begin so belong in quotes)" in stderr


def test_a_full_disk(trained: Trained) -> None:
    """One message and exit code 2, for a long and for a short answer."""
    for words in (["recommend", str(trained.run), "--source", "3"], ["version"], ["models"]):
        with open("/dev/full", "w") as full:
            child = process(*words, stdout=full)
            _, stderr = child.communicate(timeout=120)
        assert child.returncode == 2, stderr
        assert "cannot be written" in stderr and "Traceback" not in stderr and "ignored" not in stderr


def test_a_run_too_small_for_its_settings(tmp_path: Path) -> None:
    """With one destination there are no negatives."""
    data = write_events(tmp_path / "d.csv", [(u, 99, t) for u, _, t in events()])
    refused(tmp_path, data, containing=["destination"])
    data = write_events(tmp_path / "e.csv", [(u, v, 5) for u, v, _ in events()])
    refused(tmp_path, data, containing=["Too few different times to split", "160 events at 1 time "])


def test_a_folder_that_holds_a_run(tmp_path: Path, trained: Trained) -> None:
    data = write_events(tmp_path / "d.csv")
    with unchanged(trained.run):
        fails("train", data, *TINY, "--out", trained.run, containing=["already holds a run", "--out", "--resume"])
        fails("train", data, *TINY, "--out", trained.run, "--seeds", "2", containing=["holds a run", "--out"])


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    with unchanged(tmp_path):
        fails("train", data, *TINY, "--out", tmp_path, containing=["is not empty", "d.csv", "--out"])
        fails("train", data, *TINY, "--out", data, containing=["is a file", "--out"])
        fails("train", data, *TINY, "--out", data / "run", containing=["cannot be written"])


def test_one_of_several_seeds_is_there_already(tmp_path: Path) -> None:
    """The error comes before the first run is trained."""
    data = write_events(tmp_path / "d.csv")
    works("train", data, *TINY, "--seed", "1", "--out", "runs/seed-1")
    before = contents(tmp_path)
    fails("train", data, *TINY, "--seeds", "2", "--out", "runs", containing=["runs/seed-1 already holds a run"])
    assert contents(tmp_path) == before


def test_weights_that_do_not_fit(tmp_path: Path, trained: Trained) -> None:
    data = write_events(tmp_path / "d.csv")
    refused(tmp_path, data, "--init", trained.run, *settings(hidden=6), containing=["do not fit", "--init"])
    other = ["--init", trained.run, "--model", "edgebank", "--out", tmp_path / "run"]
    with unchanged(tmp_path):
        fails("train", data, *other, containing=["is a cordgt", "is a edgebank"])


# -------------------- queries


@pytest.mark.parametrize(
    ("options", "containing"),
    [
        (["predict"], ["--pairs"]),
        (["predict", "--pairs", "nowhere.csv"], ["There is no file nowhere.csv"]),
        (["predict", "--pairs", "pairs.csv", "--src", "sender"], ["no column 'sender' for --src", "'src', 'dst'"]),
        (["predict", "--pairs", "early.csv"], ["999", "row 2", "before the history, which begins at 10"]),
        (["predict", "--pairs", "odd.csv"], ["odd.csv, line 3", "'soon'"]),
        (["predict", "--pairs", "empty.csv"], ["empty.csv is empty"]),
        (["predict", "--pairs", "header.csv"], ["header.csv", "no rows"]),
        (["predict", "--pairs", "pairs.csv", "--node-features", "pairs.csv"], ["--node-features", "--events"]),
        (["recommend"], ["--source ID, --sources FILE"]),
        (["recommend", "--source", "3", "--sources", "ids.csv"], ["--source ID, --sources FILE"]),
        (["recommend", "--source", "3", "--top", "0"], ["--top"]),
        (["recommend", "--source", "3", "--top", "many"], ["--top"]),
        (["recommend", "--source", "3", "--at", "5"], ["The time 5 is before the history, which begins at 10"]),
        (["recommend", "--source", "3", "--at", "soon"], ["'soon' is not a number"]),
        (["recommend", "--source", "3", "--at", "2024-01-01"], ["is a date, but"]),
        (["recommend", "--source", "3", "--at", "nan"], ["not a finite number"]),
        (["recommend", "--sources", "empty.csv"], ["empty.csv is empty"]),
        (["embed", "--output", "v.parquet", "--at", "5"], ["The time 5 is before the history"]),
        (["embed", "--output", "v.parquet", "--nodes", "nowhere.csv"], ["There is no file nowhere.csv"]),
        (["embed"], ["--output"]),
        (["evaluate", "--visibility", "pape"], ["visibility=pape", "paper"]),
        (["evaluate", "--set", "hidden=3"], ["'hidden' is fixed by the training", "batch_size"]),
        (["evaluate", "--set", "batch_size=0"], ["batch"]),
        (["evaluate", "--device", "gpu"], ["'gpu'"]),
    ],
)
def test_a_bad_query(tmp_path: Path, trained: Trained, options: list[str], containing: list[str]) -> None:
    write_rows(tmp_path / "pairs.csv", [(1, 2)], header=("src", "dst"))
    write_rows(tmp_path / "early.csv", [(1, 2, LAST), (1, 2, 999)], header=("src", "dst", "time"))
    write_rows(tmp_path / "odd.csv", [(1, 2, LAST), (1, 2, "soon")], header=("src", "dst", "time"))
    write_rows(tmp_path / "ids.csv", [(1,)], header=("id",))
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "header.csv").write_text("src,dst\n")
    with unchanged(tmp_path), unchanged(trained.run):
        fails(options[0], trained.run, *options[1:], containing=containing)


@pytest.mark.parametrize(
    ("rows", "header", "containing"),
    [
        ([(1, 2, LAST - 1)], "src,dst,time", [f"begin at {LAST - 1}, before the last event of the history ({LAST})"]),
        ([(1, 2, "2030-01-01")], "src,dst,time", ["is a date, but"]),
        ([(1, 2, LAST + 1, 0.5)], "src,dst,time,feature_0", ["1 features", "have 0", "--features"]),
        ([(1, 2, LAST + 1)], "who,whom,time", ["--src"]),
        ([], "src,dst,time", ["no rows"]),
    ],
)
def test_new_events_that_cannot_be_appended(
    tmp_path: Path, trained: Trained, rows: list[Any], header: str, containing: list[str]
) -> None:
    new = write_rows(tmp_path / "new.csv", rows, header=header.split(","))
    pairs = write_rows(tmp_path / "pairs.csv", [(1, 2)], header=("src", "dst"))
    with unchanged(tmp_path), unchanged(trained.run):
        fails("predict", trained.run, "--pairs", pairs, "--events", new, containing=containing)
        fails("recommend", trained.run, "--source", "3", "--events", new, containing=containing)
        fails("embed", trained.run, "--output", "v.parquet", "--events", new, containing=containing)
    fails(
        "recommend", trained.run, "--source", "3", "--events", "nowhere.csv", containing="There is no file nowhere.csv"
    )


def test_new_events_of_another_width(tmp_path: Path, shop: Trained) -> None:
    new = write_rows(tmp_path / "new.csv", [("2024-04-01", "001", "002")], header=("time", "user", "item"))
    fails("recommend", shop.run, "--source", "001", "--events", new, containing=["0 features", "have 1", "--features"])


def test_an_id_that_could_be_two_nodes(tmp_path: Path, shop: Trained) -> None:
    nodes = write_rows(tmp_path / "n.csv", [("009",), ("003",)], header=("id",))
    with unchanged(tmp_path):
        fails("embed", shop.run, "--output", "v.csv", "--nodes", nodes, containing=["'003'", "source", "side"])
    nodes = write_rows(tmp_path / "m.csv", [("003", "left")], header=("id", "side"))
    fails("embed", shop.run, "--output", "v.csv", "--nodes", nodes, containing=["'003'", "'left'", "src or dst"])


def test_a_model_without_embeddings(tmp_path: Path) -> None:
    works("train", write_events(tmp_path / "d.csv"), "--model", "edgebank", "--out", "run")
    with unchanged(tmp_path):
        fails("embed", "run", "--output", "v.csv", containing=["edgebank", "no node embeddings"])


@pytest.mark.parametrize(
    ("output", "containing"),
    [
        ("answers.xlsx", ["'.xlsx'", "must end in .csv, .tsv, .parquet or .json"]),
        ("answers", ["''", "must end in .csv, .tsv, .parquet or .json"]),
        ("nowhere/answers.csv", ["nowhere/answers.csv cannot be written", "no folder nowhere"]),
        ("folder.csv", ["folder.csv cannot be written", "is a folder"]),
    ],
)
def test_an_unwritable_output_fails_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Trained, output: str, containing: list[str]
) -> None:
    from cordgt.inference.run import Run

    monkeypatch.setattr(Run, "load", lambda *_: pytest.fail("the work was begun"))
    (tmp_path / "folder.csv").mkdir()
    pairs = write_rows(tmp_path / "pairs.csv", [(1, 2)], header=("src", "dst"))
    with unchanged(tmp_path):
        fails("predict", trained.run, "--pairs", pairs, "--output", output, containing=containing)
        fails("recommend", trained.run, "--source", "3", "--output", output, containing=containing)
        fails("embed", trained.run, "--output", output, containing=containing)
    fails("evaluate", trained.run, "--json", "nowhere/a.json", containing="nowhere/a.json cannot be written")
    fails(
        "recommend",
        trained.run,
        "--source",
        "3",
        "--json",
        "nowhere/a.json",
        containing="nowhere/a.json cannot be written",
    )


def test_convert_to_an_unwritable_output(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    with unchanged(tmp_path):
        fails("data", "convert", data, "out.xlsx", containing=["'.xlsx'", ".csv, .parquet, .store"])
        fails("data", "convert", data, "nowhere/out.csv", containing=["no folder nowhere"])
