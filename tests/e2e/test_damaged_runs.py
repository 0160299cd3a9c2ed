"""Every command that opens a damaged run folder names the folder and the file."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import cordgt
from cordgt.callbacks import Callback
from cordgt.cli import console
from cordgt.training.settings import FORMAT, parse_assignments

from .conftest import Trained
from .helpers import (
    TINY,
    CommandResult,
    call,
    contents,
    fails,
    rewrite_in_old_format,
    unchanged,
    works,
    write_events,
    write_rows,
)

FILES = ("config.toml", "metrics.json", "events.parquet", "nodes.parquet", "model.safetensors")


@pytest.fixture
def copy(trained: Trained, tmp_path: Path) -> Path:
    """A copy of a run, to damage."""
    return Path(shutil.copytree(trained.run, tmp_path / "run"))


def every_command_refuses(run: Path, *containing: str) -> None:
    pairs = write_rows(run.parent / "pairs.csv", [(1, 2)], header=("src", "dst"))
    questions = {
        "evaluate": [],
        "predict": ["--pairs", pairs],
        "recommend": ["--source", "3"],
        "embed": ["--output", run.parent / "vectors.parquet"],
    }
    with unchanged(run.parent):
        for command, options in questions.items():
            fails(command, run, *options, containing=containing)


def test_no_run(tmp_path: Path) -> None:
    every_command_refuses(tmp_path / "nowhere", "nowhere does not exist")
    (tmp_path / "folder").mkdir()
    every_command_refuses(tmp_path / "folder", "folder is not a run folder", "no config.toml")
    (tmp_path / "file").write_text("")
    every_command_refuses(tmp_path / "file", "file is not a run folder")


def test_the_folder_of_several_seeds(tmp_path: Path) -> None:
    works("train", write_events(tmp_path / "d.csv"), *TINY, "--seeds", "1", "--out", "runs")
    fails("recommend", "runs", "--source", "3", containing=["runs is not a run folder", "runs/seed-0"])


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(copy: Path, name: str) -> None:
    (copy / name).unlink()
    every_command_refuses(copy, str(copy), name)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("part", [0.0, 0.5, 0.97])
def test_a_truncated_file(copy: Path, name: str, part: float) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: int(len(content) * part)])
    every_command_refuses(copy, str(copy))


@pytest.mark.parametrize("name", FILES)
def test_a_garbage_file(copy: Path, name: str) -> None:
    (copy / name).write_bytes(bytes(range(256)) * 4)
    every_command_refuses(copy, str(copy / name))


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_a_folder(copy: Path, name: str) -> None:
    (copy / name).unlink()
    (copy / name).mkdir()
    every_command_refuses(copy, str(copy / name))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "containing"),
    [
        ("format = 3", "format = 9", ["format 9", "reads formats 1 to 3", "newer version of cordgt"]),
        ("[data]", "[dta]", ["no table [dta]"]),
        ("hidden = 4", "hiden = 4", ["no setting 'hiden'", "Did you mean 'hidden'?"]),
        ("hidden = 4", "hidden = 6", ["config.toml and metrics.json do not belong together"]),
        ('fingerprint = "', 'fingerprint = "0', ["config.toml and metrics.json do not belong together"]),
        ('ids = "', 'ids = "0', ["config.toml and metrics.json do not belong together"]),
        ('model = "cordgt"', 'model = "nope"', ["unknown model 'nope'"]),
        ("seed = 0", 'seed = "x"', ["seed=x"]),
    ],
)
def test_a_config_that_was_edited(copy: Path, old: str, new: str, containing: list[str]) -> None:
    edit(copy / "config.toml", old, new)
    every_command_refuses(copy, *containing)


@pytest.mark.parametrize("text", ["{}", "[]", "3", '{"test": {}}', "null"])
def test_invalid_metrics(copy: Path, text: str) -> None:
    (copy / "metrics.json").write_text(text)
    every_command_refuses(copy, "metrics.json is damaged")


def change(path: Path, edited: Callable[[pa.Table], pa.Table]) -> None:
    table = pq.read_table(path)
    pq.write_table(edited(table).replace_schema_metadata(table.schema.metadata), path)


@pytest.mark.parametrize(
    ("name", "edited"),
    [
        ("events.parquet", lambda table: table.slice(0, 100)),
        ("events.parquet", lambda table: table.slice(0, 0)),
        ("events.parquet", lambda table: table.drop_columns(["dst"])),
        ("events.parquet", lambda table: table.set_column(0, "src", pa.array([7] * table.num_rows))),
        ("events.parquet", lambda table: table.set_column(0, "src", pa.array(["x"] * table.num_rows))),
        ("events.parquet", lambda table: table.set_column(2, "t", pa.array([None] * table.num_rows, pa.int64()))),
        ("events.parquet", lambda table: table.take(list(range(table.num_rows))[::-1])),
        ("nodes.parquet", lambda table: table.slice(1)),
        ("nodes.parquet", lambda table: table.set_column(0, "id", pa.array([f"n{k}" for k in range(table.num_rows)]))),
        ("nodes.parquet", lambda table: table.rename_columns(["name"])),
    ],
)
def test_a_history_that_was_edited(copy: Path, name: str, edited: Callable[[pa.Table], pa.Table]) -> None:
    change(copy / name, edited)
    every_command_refuses(copy, str(copy), "damaged")


def test_weights_of_another_model(copy: Path) -> None:
    path = copy / "model.safetensors"
    weights = load_file(path)
    save_file({name: tensor for name, tensor in weights.items() if "head" not in name}, path)
    every_command_refuses(copy, "model.safetensors is damaged")
    save_file({f"other.{name}": tensor for name, tensor in weights.items()}, path)
    every_command_refuses(copy, "model.safetensors is damaged")


def test_missing_refitted_weights(tmp_path: Path) -> None:
    """The run must not fall back to the other weights silently."""
    works("train", write_events(tmp_path / "d.csv"), *TINY, "--refit", "--out", "run")
    Path("run/refit.safetensors").unlink()
    fails("recommend", "run", "--source", "3", containing="run/refit.safetensors is missing")
    works("evaluate", "run")


def test_files_that_queries_do_not_need(copy: Path) -> None:
    (copy / "history.jsonl").unlink()
    (copy / "notes.txt").write_text("my own")
    works("evaluate", copy)
    works("recommend", copy, "--source", "3")


def test_an_unfinished_run(copy: Path) -> None:
    (copy / "metrics.json").unlink()
    every_command_refuses(copy, "not finished", "--resume")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 100], ids=["empty", "short", "long"])
def test_a_damaged_checkpoint_is_not_resumed(tmp_path: Path, content: bytes) -> None:
    """An error, and no file is overwritten."""
    data = write_events(tmp_path / "d.csv")
    works("train", data, *TINY, "--out", "run")
    Path("run/metrics.json").unlink()
    Path("run/model.safetensors").unlink()
    Path("run/state.safetensors").write_bytes(content)
    before = contents(Path("run"))
    fails("train", data, *TINY, "--out", "run", "--resume", containing="run/state.safetensors is damaged")
    assert contents(Path("run")) == before


def test_a_checkpoint_of_another_model_is_not_resumed(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    works("train", data, *TINY, "--out", "run")
    Path("run/metrics.json").unlink()
    Path("run/model.safetensors").unlink()
    about = {"phase": "fit", "epoch": 1, "best_epoch": 1, "best_metric": 0.5, "train_seconds": 1.0, "finished": False}
    save_file({"model.x": torch.zeros(1)}, "run/state.safetensors", metadata={"about": json.dumps(about)})
    fails("train", data, *TINY, "--out", "run", "--resume", containing="run/state.safetensors is damaged")


def test_garbled_lines_of_the_history_do_not_stop_a_resume(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    works("train", data, *TINY, "--out", "run")
    Path("run/metrics.json").unlink()
    Path("run/model.safetensors").unlink()
    Path("run/history.jsonl").write_bytes(b"\xff\xfe{{\n3\n" + b'{"phase": "fit", "epo')
    works("train", data, *TINY, "--out", "run", "--resume")
    lines = [json.loads(line) for line in Path("run/history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1]


def test_a_protocol_that_was_edited(copy: Path) -> None:
    """With another split, test events could be training events."""
    edit(rewrite_in_old_format(copy) / "config.toml", "train_ratio = 0.7\n", "train_ratio = 0.3\n")
    every_command_refuses(copy, "is damaged", "train_ratio=0.3", "trained with 0.7")


# -------------------- files of one run belong together


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the same events with another seed: its weights have the same shapes."""
    folder = tmp_path_factory.mktemp("other")
    works("train", write_events(folder / "data.csv"), *TINY, "--seed", "1", "--out", folder / "run")
    return folder / "run"


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.json", "config.toml"])
def test_a_file_of_another_run(copy: Path, other: Path, name: str) -> None:
    shutil.copyfile(other / name, copy / name)
    every_command_refuses(copy, str(copy), "another run")


def test_weights_need_their_checksum(copy: Path) -> None:
    path = copy / "model.safetensors"
    with safe_open(path, "pt") as file:
        header = file.metadata()
    for key, new in (("sha256", "sha265"), ("config", "confg")):
        wrong = {new if k == key else k: v for k, v in header.items()}
        save_file(load_file(path), path, metadata=wrong)
        every_command_refuses(copy, "model.safetensors is damaged")


@pytest.mark.parametrize("name", ["config.toml", "metrics.json", "model.safetensors"])
def test_metrics_need_their_checksums(copy: Path, name: str) -> None:
    path = copy / "metrics.json"
    metrics = json.loads(path.read_text())
    metrics["checksums"][f"{name}s"] = metrics["checksums"].pop(name)
    path.write_text(json.dumps(metrics))
    every_command_refuses(copy, "metrics.json is damaged: a checksum is missing")
    del metrics["checksums"]
    path.write_text(json.dumps(metrics))
    every_command_refuses(copy, "metrics.json is damaged: a checksum is missing")


def test_an_edited_number_is_refused(copy: Path) -> None:
    metrics = json.loads((copy / "metrics.json").read_text())
    metrics["test"]["transductive"]["ap"] = 0.999
    (copy / "metrics.json").write_text(json.dumps(metrics))
    every_command_refuses(copy, "metrics.json is damaged: its checksum is wrong")


def test_the_old_format_number_does_not_switch_checks_off(copy: Path) -> None:
    edit(copy / "config.toml", f"format = {FORMAT}\n", "format = 2\n")
    every_command_refuses(copy, "do not belong together")
    metrics = json.loads((copy / "metrics.json").read_text())
    del metrics["checksums"]
    (copy / "metrics.json").write_text(json.dumps(metrics))
    fails("recommend", copy, "--source", "3", containing="model.safetensors is damaged: it does not belong to this run")


def test_a_run_of_an_old_format_opens_with_a_note(copy: Path) -> None:
    before = works("recommend", copy, "--source", "3")
    assert "older version" not in before.err
    after = works("recommend", rewrite_in_old_format(copy), "--source", "3")
    assert after.out == before.out
    assert after.err.count("has format 2 of an older version of cordgt") == 1


def test_upgrade_copies_an_old_run(copy: Path, tmp_path: Path) -> None:
    before = works("recommend", copy, "--source", "3").out
    metrics = works("evaluate", copy, "--json").json
    rewrite_in_old_format(copy)
    with unchanged(copy):
        works("upgrade", copy, "--out", "new")
    assert works("recommend", "new", "--source", "3") == CommandResult(0, before, "")
    assert works("evaluate", "new", "--json").json == metrics
    works("report", "new")
    fails("upgrade", "new", "--out", "newer", containing="already has format")
    fails("upgrade", copy, "--out", "new", containing="is not empty")
    assert not Path("newer").exists()


def interrupted(tmp_path: Path, name: str, seed: int = 0) -> list[Any]:
    """Train two epochs, go back to the checkpoint after the first, and return the command that continues."""

    class Stop(Callback):
        def on_epoch_end(self, record: dict[str, Any]) -> None:
            raise InterruptedError

    data = write_events(tmp_path / "d.csv")
    given = {**parse_assignments([word for word in TINY if word != "--set"]), "epochs": 2}
    with pytest.raises(InterruptedError):
        cordgt.train(cordgt.read_events(data), seed=seed, out=tmp_path / name, device="cpu", callbacks=Stop(), **given)
    return ["train", data, *TINY, "--set", "epochs=2", "--seed", seed, "--out", tmp_path / name, "--resume"]


def test_a_checkpoint_of_another_run_is_not_resumed(tmp_path: Path) -> None:
    resume = interrupted(tmp_path, "run")
    interrupted(tmp_path, "other", seed=1)
    shutil.copyfile(tmp_path / "other" / "state.safetensors", tmp_path / "run" / "state.safetensors")
    with unchanged(tmp_path):
        fails(*resume, containing=["state.safetensors is damaged: it does not belong to this run", "Delete it"])
    (tmp_path / "run" / "state.safetensors").unlink()
    works(*resume)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_history_outside_the_run_is_not_written(tmp_path: Path, kind: str) -> None:
    resume = interrupted(tmp_path, "run")
    history, target = tmp_path / "run" / "history.jsonl", tmp_path / "outside"
    target.write_text("precious")
    history.unlink()
    if kind == "link":
        history.symlink_to(target)
    else:
        os.mkfifo(history)
    fails(*resume, containing=["history.jsonl is a folder, link, pipe"])
    assert target.read_text() == "precious"


# -------------------- wrong types, in runs without checksums

WRONG_METRICS = [
    ("seed", "x"),
    ("epochs", None),
    ("best_epoch", "3"),
    ("best_epoch", 10**30),
    ("seconds_per_epoch", []),
    ("parameters", {}),
    ("protocol", []),
    ("test", []),
    ("test.transductive", 3),
    ("test.transductive.ap", "0.5"),
    ("test.transductive.ap", 7),
    ("test.transductive.events", 1.5),
    ("test.inductive.auc", []),
    ("validation.transductive.mrr", {}),
    ("baselines", []),
    ("baselines.popularity", None),
    ("baselines.popularity.test.transductive.ap", "x"),
    ("peak_memory_mb", "x"),
    ("init", 3),
    ("refit", True),
    ("device", 3),
]


@pytest.mark.parametrize(("key", "value"), WRONG_METRICS)
def test_wrong_types_in_metrics(copy: Path, key: str, value: Any) -> None:
    path = rewrite_in_old_format(copy) / "metrics.json"
    table = metrics = json.loads(path.read_text())
    *parents, last = key.split(".")
    for parent in parents:
        table = table[parent]
    table[last] = value
    path.write_text(json.dumps(metrics))
    fails("report", copy, containing=["metrics.json is damaged", f"'{key}'"])


@pytest.mark.parametrize("text", ['{"seed": NaN}', '{"a":' * 3000 + "1" + "}" * 3000, "[" * 100_000])
def test_metrics_that_are_not_plain_json(copy: Path, text: str) -> None:
    (rewrite_in_old_format(copy) / "metrics.json").write_text(text)
    fails("report", copy, containing="metrics.json is damaged")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("phase", 3),
        ("epoch", "1"),
        ("epoch", 10**12),
        ("loss", "x"),
        ("loss", None),
        ("train_seconds", []),
        ("validation", 0.5),
        ("validation", {"ap": "x"}),
        ("best_epoch", -1),
    ],
)
def test_wrong_types_in_the_history(copy: Path, key: str, value: Any) -> None:
    path = copy / "history.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text().splitlines()[0]) | {key: value}) + "\n")
    fails("report", copy, containing=["history.jsonl was changed after the training", "delete it"])
    rewrite_in_old_format(copy)
    fails("report", copy, containing=["history.jsonl is damaged in line 1", key])
    path.unlink()
    works("report", copy)
    assert "history.jsonl is missing" in (copy / "report.html").read_text()


@pytest.mark.parametrize("line", ["hidden = 100000000000", "hidden = 9000000000000000000", "layers = 1000000000"])
def test_settings_of_an_impossible_model(copy: Path, line: str) -> None:
    key = line.split()[0]
    config = rewrite_in_old_format(copy) / "config.toml"
    config.write_text(re.sub(rf"^{key} = .*$", line, config.read_text(), flags=re.MULTILINE))
    fails("recommend", copy, "--source", "3", containing=["model.safetensors is damaged", "a larger model"])
    train = ["train", write_events(copy.parent / "d.csv"), *TINY, "--out", copy.parent / "huge"]
    if key == "hidden":
        fails(*train, "--set", line.replace(" ", ""), containing="Memory ran out. Use a smaller")


@pytest.mark.parametrize("kind", ["pipe", "zeros"])
@pytest.mark.parametrize("name", [*FILES, "history.jsonl"])
def test_a_file_is_a_pipe_or_a_device(copy: Path, name: str, kind: str) -> None:
    (copy / name).unlink()
    if kind == "pipe":
        os.mkfifo(copy / name)
    else:
        (copy / name).symlink_to("/dev/zero")
    fails("report", copy, containing=[str(copy / name), "is a folder, link, pipe, socket or device"])


# -------------------- the terminal and the memory


def test_a_closed_standard_output(trained: Trained) -> None:
    argv = [sys.executable, "-m", "cordgt", "version"]
    environment = os.environ | {"PYTHONPATH": str(Path(cordgt.__file__).parents[1])}
    script = f"{shlex.join(argv)} >&-"
    left = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert left.returncode == 2
    assert left.stderr == "Error: the answer cannot be written: standard output is closed.\n"


def test_a_low_memory_limit(trained: Trained) -> None:
    argv = [sys.executable, "-m", "cordgt", "recommend", str(trained.run), "--source", "3"]
    environment = os.environ | {"PYTHONPATH": str(Path(cordgt.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    script = f"ulimit -v 1000000; {shlex.join(argv)}"
    left = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (left.returncode, left.stdout) == (2, "")
    assert "Error: the memory limit (ulimit -v) is 1,000,000 kB" in left.stderr


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_runs_out(trained: Trained, monkeypatch: pytest.MonkeyPatch, capfd: Any, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("cordgt.inference.answers.recommendation_table", fail)
    assert call("recommend", trained.run, "--source", "3").code == 2
    assert capfd.readouterr().err.startswith("Error: memory ran out.")


HOSTILE = ["\x1b[31mred", "\u202eevil", "a\nError: b", "\x9b2J", "<script>alert(1)</script>", "=1+1", "@x", "-y", "[b]"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose ids are control characters, HTML, formulas and markup."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = [(f"n{i % 3}", HOSTILE[(i * i + i // 3) % len(HOSTILE)], i) for i in range(120)]
    src, dst, t = zip(*rows, strict=True)
    table = pa.table({"src": src, "dst": dst, "time": t})
    pq.write_table(table, folder / "d.parquet")
    works("train", folder / "d.parquet", *TINY, "--out", folder / "run")
    return folder / "run"


def test_control_characters_are_escaped_on_the_terminal(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_piped", lambda: False)
    shown = works("recommend", hostile, "--source", "n1")
    unknown = works("recommend", hostile, "--source", "\x1b[2Jnobody\r\n\u2066")
    for text in (shown.out, shown.err, unknown.out, unknown.err):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), ascii(text)
    assert r"\x1b[31mred" in shown.out and r"\u202eevil" in shown.out and r"a\nError: b" in shown.out
    assert "[b]" in shown.out
    assert r"\x1b[2Jnobody\r\n\u2066" in unknown.err


def test_control_characters_of_columns_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "is_piped", lambda: False)
    data = write_rows(
        tmp_path / "d.csv", [("a", "b", k, 1) for k in range(9)], header=("\x1b[31ms", "dst", "time", "\x9bw")
    )
    shown = works("data", "describe", data, "--src", "0")
    assert r"\x1b[31ms" in shown.out and r"\x9bw" in shown.out
    failed = fails("data", "describe", data, containing=[r"'\x1b[31ms'", r"'\x9bw'"])
    for text in (shown.out, shown.err, failed.out, failed.err):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text), ascii(text)


def test_files_and_json_keep_ids_exactly(hostile: Path) -> None:
    found = works("recommend", hostile, "--source", "n1", "--json")
    assert {row["node"] for row in found.json} >= {*HOSTILE}
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", found.out)
    assert {row["node"] for row in works("recommend", hostile, "--source", "n1").rows} >= {*HOSTILE}


def test_formulas_are_escaped_on_request(hostile: Path) -> None:
    plain = {row["node"] for row in works("recommend", hostile, "--source", "n1").rows}
    escaped = {row["node"] for row in works("recommend", hostile, "--source", "n1", "--escape-formulas").rows}
    assert {"=1+1", "@x", "-y"} <= plain and {"'=1+1", "'@x", "'-y", "\u202eevil"} <= escaped
    works("embed", hostile, "--output", "v.csv", "--escape-formulas")
    with open("v.csv", newline="") as file:
        nodes = {row["node"] for row in csv.DictReader(file)}
    assert {"'=1+1", "'@x", "'-y", "n1"} <= nodes
    works("embed", hostile, "--output", "v.parquet", "--escape-formulas")
    assert "=1+1" in pq.read_table("v.parquet")["node"].to_pylist()


def test_ids_are_escaped_in_the_report(hostile: Path) -> None:
    works("report", hostile, "--output", "r.html")
    text = Path("r.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in text and "<script>alert(1)" not in text
