"""Every command that opens a damaged run folder names the folder and the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from .conftest import Trained
from .helpers import TINY, contents, fails, rewrite_in_old_format, unchanged, works, write_events, write_rows

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
