"""The run folder: files are written atomically, and damage is reported."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cordgt.analysis.report.run_report import write_report
from cordgt.errors import CordgtError, RunError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.inference.run import Run
from cordgt.training.run_folder import RunFolder, fingerprint
from cordgt.training.settings import Settings, make_settings
from cordgt.workflows.train import train

TINY: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (3, 2), "td_dim": 8, "sd_dim": 8, "epochs": 1}


def some_stream(name: str = "some", *, seed: int = 0, n: int = 60, features: bool = False) -> EventStream:
    rng = np.random.default_rng(seed)
    t = rng.integers(0, 40, n)
    edge_x = rng.normal(size=(n, 2)) if features else None
    made = EventStream.from_columns(*rng.integers(0, 9, (2, n)), t, edge_x, time=TimeAxis("number"), name=name)
    return made.with_node_features(rng.normal(size=(made.n_nodes, 3))) if features else made


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of CorDGT, to be copied and damaged."""
    return train(some_stream(), out=tmp_path_factory.mktemp("runs") / "trained", device="cpu", **TINY).path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def files(path: Path) -> set[str]:
    return {p.name for p in path.iterdir()}


# --- configuration ---


def test_config_round_trip(folder: RunFolder) -> None:
    settings = make_settings("cordgt", {**TINY, "visibility": "paper", "lr": 3e-05}, seed=7)
    stream = some_stream(features=True)
    folder.create(settings, stream)
    assert folder.has_run and not folder.is_finished
    config = folder.read_config()
    data = config.data
    assert config.settings == settings
    assert (config.run, config.columns) == ({"init": False, "refit": False}, {})
    assert (data["name"], data["events"], data["nodes"]) == ("some", 60, stream.n_nodes)
    assert data["fingerprint"] == fingerprint(stream) == fingerprint(EventStream.load(folder.path))


def test_config_is_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: Counter[str] = Counter()

    def counted(name: str) -> None:
        method = getattr(RunFolder, name)

        def call(self: RunFolder, *args: Any) -> Any:
            reads[" ".join([name, *map(str, args[:1])])] += 1
            return method(self, *args)

        monkeypatch.setattr(RunFolder, name, call)

    for name in ("_parse_config", "streams", "read_tensors", "read_result"):
        counted(name)
    loaded = Run.load(run, "cpu")
    later = EventStream.from_columns([0], [1], [50], time=TimeAxis("number"))
    for _ in range(2):
        loaded.evaluate()
        loaded.score(0, 1)
        loaded.with_events(later).score(0, 1)
    write_report(loaded)
    once = {"_parse_config", f"streams {fingerprint(loaded.stream)}", "read_result", "read_tensors model.safetensors"}
    assert reads == dict.fromkeys(once, 1)
    reads.clear()
    train(some_stream(), out=run, device="cpu", resume=True, **TINY)
    assert reads["_parse_config"] == 1


@pytest.mark.parametrize("name", ["", "a b", 'quo"te', "back\\slash", "line\nbreak", "\x7f", "naïve", "😀"])
def test_any_data_name_round_trips(folder: RunFolder, name: str) -> None:
    folder.create(Settings(), some_stream(name))
    assert folder.read_config().data["name"] == name
    assert EventStream.load(folder.path).name == name


def test_config_is_written_last(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was cut off while being made holds no run, so another attempt may take it."""
    at_that_time: set[str] = set()
    write_text = RunFolder.write_text

    def recording_write_text(self: RunFolder, name: str, text: str) -> None:
        if name == "config.toml":
            at_that_time.update(files(self.path))
        write_text(self, name, text)

    monkeypatch.setattr(RunFolder, "write_text", recording_write_text)
    folder.create(Settings(), some_stream())
    assert {"events.parquet", "nodes.parquet"} <= at_that_time and "config.toml" not in at_that_time


def test_missing_folder_and_folder_without_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        RunFolder(tmp_path / "none").read_config()
    with pytest.raises(RunError, match="is not a run folder"):
        RunFolder(tmp_path).read_config()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text[:-20] + "= =",
        lambda text: text.replace("hidden = 8", "hidden = 0"),
        lambda text: text.replace("hidden = 8", 'hidden = "wide"'),
        lambda text: text.replace("hidden = 8", "hiden = 8"),
        lambda text: text.replace('model = "cordgt"', 'model = "cordgd"'),
        lambda text: text.replace("seed = 0", 'seed = "0"', 1),
        lambda text: text.replace("[training]", "[trainin]"),
        lambda text: text[: text.index("[data]")],
        lambda text: "data = 3\n" + text[: text.index("[data]")],
        lambda text: 'data = "x"\n' + text[: text.index("[data]")],
        lambda text: text.replace("format = 3", "format = 999"),
        lambda text: text.replace("format = 3\n", ""),
        lambda text: text.encode("utf-16").decode("latin-1"),
        lambda text: f"{text}\n[x]\ny = 0x{'f' * 9000}\n",
        lambda text: text.replace("events = 60", f"events = 0x{'f' * 9000}"),
        lambda text: text.replace("events = 60", f"events = {'[' * 300}{']' * 300}"),
    ],
)
def test_damaged_config(run: Path, damage: Any) -> None:
    path = run / "config.toml"
    before = path.read_text(encoding="utf-8")
    path.write_text(damage(before), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    with pytest.raises(RunError, match=r"config\.toml"):
        Run.load(run, "cpu")


def test_config_with_invalid_bytes(run: Path) -> None:
    (run / "config.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match=r"config\.toml is damaged"):
        Run.load(run, "cpu")


# --- figures ---


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"test"', "{}", '{"test": {}'])
def test_damaged_metrics(run: Path, text: str) -> None:
    (run / "metrics.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"metrics\.json is damaged"):
        Run.load(run, "cpu")


def test_unfinished_run_suggests_resume(run: Path) -> None:
    (run / "metrics.json").unlink()
    with pytest.raises(RunError, match="--resume"):
        Run.load(run, "cpu")


def test_metrics_are_standard_json(run: Path) -> None:
    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    found = json.loads((run / "metrics.json").read_text(encoding="utf-8"), parse_constant=refuse)
    promised = {"model", "data", "seed", "epochs", "seconds_per_epoch", "peak_memory_mb", "test", "validation"}
    assert promised <= found.keys()
    for part in ("test", "validation"):
        for setting in ("transductive", "inductive"):
            assert found[part][setting].keys() == {"ap", "auc", "ap_batch", "auc_batch", "events"}
            assert all(v is None or 0 <= v <= 1 for k, v in found[part][setting].items() if k != "events")


# --- weights ---


def test_tensors_round_trip(folder: RunFolder) -> None:
    tensors = {
        "a": torch.randn(3, 4).T,
        "b": torch.tensor(5),
        "empty": torch.zeros(0, 2),
        "grown": torch.zeros(2, requires_grad=True),
    }
    about = {"phase": "fit", "best_metric": -np.inf, "finished": False, "epoch": 3}
    folder.write_tensors("x.safetensors", tensors, about)
    found, metadata = folder.read_tensors("x.safetensors")
    assert metadata == about
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k], tensors[k]) and found[k].dtype == tensors[k].dtype for k in tensors)
    folder.write_tensors("none.safetensors", {}, {})
    assert folder.read_tensors("none.safetensors") == ({}, {})


@pytest.mark.parametrize("keep", [0, 4, 8, 40, 0.5, 0.9, -1])
def test_damaged_weights(run: Path, keep: float) -> None:
    path = run / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        RunFolder(run).read_tensors("model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        Run.load(run, "cpu").score(0, 1)


def test_random_or_missing_weights(run: Path) -> None:
    path = run / "model.safetensors"
    path.write_bytes(os.urandom(500))
    with pytest.raises(RunError, match="is damaged"):
        Run.load(run, "cpu").score(0, 1)
    path.unlink()
    with pytest.raises(RunError, match="is missing"):
        Run.load(run, "cpu").score(0, 1)


def test_weights_of_another_model(run: Path) -> None:
    save_file({"nothing": torch.zeros(1)}, run / "model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        Run.load(run, "cpu").score(0, 1)
    save_file({"nothing": torch.zeros(1)}, run / "model.safetensors", metadata={"about": "{"})
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        RunFolder(run).read_tensors("model.safetensors")


# --- events ---


@pytest.mark.parametrize("name", ["events.parquet", "nodes.parquet"])
def test_damaged_events(run: Path, name: str) -> None:
    path = run / name
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RunError):
        Run.load(run, "cpu")
    path.unlink()
    with pytest.raises(RunError, match=f"{name} is missing"):
        Run.load(run, "cpu")


def test_events_of_another_run(run: Path) -> None:
    some_stream(seed=1).save(run)
    with pytest.raises(RunError, match=r"events\.parquet is damaged, or of another run"):
        Run.load(run, "cpu")


def test_nodes_of_another_run(run: Path) -> None:
    """The same events among people of other names."""
    stream = EventStream.load(run)
    other = EventStream.from_columns(stream.src + 100, stream.dst + 100, stream.t, time=stream.time, name=stream.name)
    other.save(run)
    with pytest.raises(RunError, match=r"parquet is damaged, or of another run"):
        Run.load(run, "cpu")


def test_fingerprint_differs_between_streams() -> None:
    stream = some_stream(features=True)
    assert stream.edge_x is not None and stream.node_x is not None

    def other(array: np.ndarray) -> np.ndarray:
        changed = array.copy()
        changed.flat[-1] += 1
        return changed

    others = [replace(stream, **{n: other(getattr(stream, n))}) for n in ("src", "dst", "t", "edge_x", "node_x")]
    others += [replace(stream, edge_x=None), replace(stream, node_x=None), replace(stream, src=stream.dst)]
    found = [fingerprint(s) for s in (stream, *others)]
    assert len(set(found)) == len(found)
    assert fingerprint(replace(stream, name="another")) == found[0]


# --- whole or not at all ---


class PulledPlug(BaseException):
    """As good as a process that dies."""


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), PulledPlug()])
@pytest.mark.parametrize("kind", ["text", "tensors"])
def test_failed_write_leaves_the_old_file(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, failure: BaseException, kind: str
) -> None:
    def write(value: int) -> None:
        if kind == "text":
            folder.write_text("file", str(value))
        else:
            folder.write_tensors("file", {"value": torch.tensor(value)}, {})

    def fail(*_: Any, **__: Any) -> None:
        raise failure

    write(1)
    before = (folder.path / "file").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        with pytest.raises((CordgtError, PulledPlug), match=r"No space left|^$"):
            write(2)
    assert (folder.path / "file").read_bytes() == before
    assert files(folder.path) == {"file"}
    write(3)
    assert (folder.path / "file").read_bytes() != before


def test_only_documented_files_remain(run: Path) -> None:
    left = files(run) - {"tensorboard"}
    assert left == {
        "config.toml",
        "events.parquet",
        "nodes.parquet",
        "history.jsonl",
        "model.safetensors",
        "activity.json",
        "metrics.json",
        "report.html",
    }


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = train(some_stream(), "edgebank", out=tmp_path / "run", device="cpu").path
    finally:
        os.umask(before)
    assert {p.name: oct(p.stat().st_mode & 0o777) for p in path.iterdir() if p.is_file()} == dict.fromkeys(
        (p.name for p in path.iterdir() if p.is_file()), "0o644"
    )


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CordgtError, match="cannot be written"):
        RunFolder(tmp_path / "file" / "run").create(Settings(), some_stream())
    with pytest.raises(CordgtError, match="cannot be written"):
        RunFolder(tmp_path / "none").write_text("x", "y")
    with pytest.raises(CordgtError, match="cannot be written"):
        RunFolder(tmp_path / "none").write_tensors("x", {}, {})


# --- the history of a training ---


def test_truncated_history_keeps_earlier_lines(folder: RunFolder) -> None:
    """Lines of epochs that will be trained again go; those of another phase stay; so do lines of no epoch."""
    for phase in ("fit", "refit"):
        for epoch in (1, 2, 3):
            folder.append_history({"phase": phase, "epoch": epoch, "events": 10})
            folder.append_history({"phase": phase, "epoch": epoch, "loss": 0.5, "train_seconds": 1.0})
    folder.truncate_history("fit", 2)
    found = [json.loads(line) for line in (folder.path / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(r["phase"], r["epoch"]) for r in found] == [
        *[("fit", e) for e in (1, 1, 2, 2)],
        *[("refit", e) for e in (1, 1, 2, 2, 3, 3)],
    ]
    folder.truncate_history("refit", 0)
    assert len((folder.path / "history.jsonl").read_text(encoding="utf-8").splitlines()) == 4


@pytest.mark.parametrize("torn", ['{"phase": "fit", "epo', "{", '{"phase": "fit", "epoch": 3}x', "\x00\x00", "3", "[]"])
def test_partial_history_line_is_ignored(folder: RunFolder, torn: str) -> None:
    folder.append_history({"phase": "fit", "epoch": 1})
    with open(folder.path / "history.jsonl", "a", encoding="utf-8") as file:
        file.write(torn)
    folder.truncate_history("fit", 9)
    folder.append_history({"phase": "fit", "epoch": 2})
    lines = (folder.path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_history_of_a_folder_without_history(folder: RunFolder) -> None:
    folder.truncate_history("fit", 0)
    assert (folder.path / "history.jsonl").read_text(encoding="utf-8") == ""


# --- odds and ends ---


def test_config_is_standard_toml(run: Path) -> None:
    found = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    assert found["model"] == "cordgt" and found["settings"]["fanout"] == [3, 2]
    assert found["data"]["events"] == 60


def test_has_and_remove(folder: RunFolder) -> None:
    folder.write_text("x", "y")
    assert folder.has("x")
    folder.remove("x")
    assert not folder.has("x")
    folder.remove("x")


def test_missing_folder_suggests_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "uci-cordgt").mkdir()
    with pytest.raises(RunError, match=r"uci-cordtg does not exist\. Did you mean 'uci-cordgt'\?"):
        RunFolder(tmp_path / "uci-cordtg").read_config()
