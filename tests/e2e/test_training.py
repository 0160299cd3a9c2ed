"""Training: the run folder, resume, several seeds, --init and --refit, config files."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cordgt.cli import console

from .conftest import Trained
from .helpers import TINY, call, contents, events, fails, process, settings, unchanged, works, write_events, write_rows

METRICS = ("ap", "auc", "ap_batch", "auc_batch")


def read_metrics(run: str | Path) -> dict[str, Any]:
    return json.loads(Path(run, "metrics.json").read_text())


def same_metrics(a: str | Path, b: str | Path) -> bool:
    return all(read_metrics(a)[part] == read_metrics(b)[part] for part in ("test", "validation"))


# -------------------- the run folder


def test_profile_of_the_whole_job(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    result = works("train", data, "--model", "counts", "--set", "epochs=1", "--out", tmp_path / "run", "--profile")
    profile = json.loads((tmp_path / "run/profile.json").read_text())
    phases = {row["phase"]: row for row in profile["phases"]}
    expected = "import read index write epochs validation test baselines activity report".split()
    assert [name for name in phases if name in expected] == expected
    assert sum(row["share"] for row in phases.values()) == pytest.approx(1)
    assert sum(row["seconds"] for row in phases.values()) == pytest.approx(profile["seconds"])
    assert "compiling" in result.err and "│ import" in result.err
    works("report", tmp_path / "run")  # the file is no part of the run


def test_contents_of_a_run_folder(tmp_path: Path) -> None:
    """A run of its own: questions of other tests can write a first scorer."""
    run = tmp_path / "run"
    works("train", write_events(tmp_path / "data.csv"), *TINY, "--out", run)
    names = {path.name for path in run.iterdir()} - {"tensorboard"}
    assert names == {
        "config.toml", "metrics.json", "history.jsonl", "model.safetensors", "events.parquet", "nodes.parquet",
        "activity.json", "report.html",
    }  # fmt: skip
    found = read_metrics(run)
    assert {"model": "cordgt", "data": "data", "seed": 0, "epochs": 1}.items() <= found.items()
    assert found["seconds_per_epoch"] > 0
    assert found["peak_memory_mb"] > 0
    for part in ("validation", "test"):
        assert set(found[part]) == {"transductive", "inductive"}
        for row in found[part].values():
            assert set(row) >= {*METRICS, "events"}
            assert all(0 <= row[name] <= 1 for name in METRICS)
            assert row["events"] > 0
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1]
    assert 0 <= lines[0]["validation"]["ap"] <= 1


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    before = os.umask(0o027)
    try:
        works("train", data, *TINY, "--out", "run", "--json", "figures.json")
        works("recommend", "run", "--source", "3", "--output", "answers.csv")
    finally:
        os.umask(before)
    files = [*(p for p in Path("run").iterdir() if p.is_file()), Path("figures.json"), Path("answers.csv")]
    assert {p.stat().st_mode & 0o777 for p in files} == {0o640}


def test_a_run_does_not_need_its_data_file(tmp_path: Path) -> None:
    data = write_events(tmp_path / "d.csv")
    works("train", data, *TINY, "--out", "run")
    data.unlink()
    shutil.move("run", "elsewhere")
    works("recommend", "elsewhere", "--source", "3")
    works("evaluate", "elsewhere")


def test_without_out_the_folder_is_named_after_data_model_and_seed(tmp_path: Path) -> None:
    data = write_events(tmp_path / "my-log.csv")
    result = works("train", data, *TINY, "--seed", "3")
    assert read_metrics("runs/my-log-cordgt-seed3")["seed"] == 3
    assert "runs/my-log-cordgt-seed3" in result.err
    works("train", data, "--model", "edgebank")
    assert read_metrics("runs/my-log-edgebank-seed0")["model"] == "edgebank"
    fails("train", data, "--model", "edgebank", containing="runs/my-log-edgebank-seed0 already holds a run")


def test_a_name_that_toml_must_quote(tmp_path: Path) -> None:
    data = write_events(tmp_path / 'my "log" \U0001f642 [x].csv')
    result = works("train", data, *TINY, "--out", "run")
    assert read_metrics("run")["data"] == 'my "log" \U0001f642 [x]'
    assert "[x]" in result.out  # not taken for markup
    works("evaluate", "run")


# -------------------- printed notes


def test_output_of_a_training(tmp_path: Path) -> None:
    rows = events()
    data = write_events(tmp_path / "d.csv", [rows[1], rows[0], *rows[2:]])
    result = works("train", data, *TINY, "--out", "run")
    for words in (
        "160 events of 12 nodes",
        "go to run",
        "sorted",
        "epoch   1",
        "validation AP",
        "recommend run --source",
    ):
        assert words in result.err
    assert len(result.err.splitlines()) <= 8
    assert "test, transductive" in result.out
    first_lines = " ".join(result.out.split())
    assert first_lines.startswith(("Compared with a random partner, the true", "A trivial baseline does better"))
    assert "average precision (AP) on the test period" in first_lines
    assert max(map(len, result.out.splitlines())) <= 80


def test_the_papers_settings_for_a_known_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are used and printed, unless others are given."""
    (tmp_path / "data/uci").mkdir(parents=True)
    rows = [(k, u + 1, v + 1, t, 0, k + 1) for k, (u, v, t) in enumerate(events())]
    write_rows(tmp_path / "data/uci/ml_uci.csv", rows, header=("", "u", "i", "ts", "label", "idx"))
    monkeypatch.setenv("CORDGT_DATA", str(tmp_path / "data"))
    result = works("train", "uci", *TINY)
    assert "the paper's settings for uci: alpha=0.1 beta=1.0\n" in result.err
    assert "not uci as published" in result.err
    config = tomllib.loads(Path("runs/uci-cordgt-seed0/config.toml").read_text())
    assert (config["settings"]["alpha"], config["settings"]["beta"]) == (0.1, 1.0)
    assert config["settings"]["fanout"] == [2, 1]
    assert "paper" not in works("train", "uci", "--model", "edgebank").err


def test_settings_that_the_model_does_not_read_are_refused(tmp_path: Path) -> None:
    """Those of --set, of a search and of a user's file; the config.toml of another run is used as far as it goes."""
    data = write_events(tmp_path / "d.csv")
    containing = ["tgn does not read fanout (read by cordgt, cordgt_plus, cordgt_small)", "Settings of tgn: memory_dim"]
    with unchanged(tmp_path):
        fails("train", data, "--model", "tgn", "--set", "fanout=32,1", "--out", "run", containing=containing)
        fails("search", data, "--model", "tgn", "--set", "fanout=32,1", "--grid", "heads=1,2", containing=containing)
    config = tmp_path / "my.toml"
    config.write_text("fanout = [32, 1]\n", encoding="utf-8")
    containing[0] = f"{config}: {containing[0]}"
    fails("train", data, "--model", "tgn", "--config", config, "--out", "run", containing=containing)
    fails("train", data, "--model", "edgebank", *TINY, "--out", "run", containing="edgebank does not read fanout")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "there is no setting 'epoch'. Did you mean 'epochs'?"),
        ("epochs = 'many'", "epochs=many: expected a whole number."),
        ("epochs = 0", "epochs="),
        ("seed = 'x'", "seed=x: use a 64-bit integer"),
        ("model = 'cordtg'", "There is no model 'cordtg'. Did you mean 'cordgt'?"),
    ],
)
def test_errors_in_a_config_file_name_the_file(tmp_path: Path, text: str, message: str) -> None:
    config = tmp_path / "my.toml"
    config.write_text(text, encoding="utf-8")
    data = write_events(tmp_path / "d.csv")
    fails("train", data, "--config", config, "--out", "run", containing=f"Error: {config}: {message}")
    if text == "epochs = 0":
        result = fails("train", data, "--config", config, "--set", "epochs=-1", "--out", "run", containing="epochs=-1")
        assert "my.toml" not in result.err


def test_a_config_file_of_another_format_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "my.toml"
    config.write_text("format = 99\nepochs = 1\n", encoding="utf-8")
    data = write_events(tmp_path / "d.csv")
    fails("train", data, "--config", config, "--out", "run", containing=[f"{config} has format 99", "formats 1 to"])


def test_a_rule_is_evaluated_and_answers(tmp_path: Path) -> None:
    works("train", write_events(tmp_path / "d.csv"), "--model", "edgebank", "--out", "run")
    assert set(read_metrics("run")["test"]["transductive"]) >= set(METRICS)
    assert Path("run/history.jsonl").exists()
    works("recommend", "run", "--source", "3")
    works("evaluate", "run")


def test_undefined_metrics(tmp_path: Path) -> None:
    """Without new nodes: null in JSON, a dash in the table, and a note."""
    data = write_events(tmp_path / "d.csv")
    result = works("train", data, *settings(mask_nodes=0), "--out", "run")
    row = read_metrics("run")["test"]["inductive"]
    assert row["events"] == 0
    assert [row[name] for name in METRICS] == [None] * 4
    assert "test, inductive: not defined" in result.err
    assert "–" in result.out
    result = works("evaluate", "run", "--json")
    assert result.json["test"]["inductive"] == row
    assert "test, inductive: not defined" in result.err
    result = works("train", data, *settings(mask_nodes=0), "--seeds", "2", "--out", "seeds")
    assert read_metrics("seeds")["test"]["inductive"]["ap"] == {"mean": None, "std": None, "values": [None, None]}
    assert "test, inductive: not defined" in result.err


# -------------------- resuming


def test_resume_without_a_run_starts_one(tmp_path: Path) -> None:
    works("train", write_events(tmp_path / "d.csv"), *TINY, "--out", "run", "--resume")
    assert read_metrics("run")["epochs"] == 1


def test_resume_of_a_finished_run_says_so(trained: Trained) -> None:
    with unchanged(trained.run):
        result = works("train", trained.data, *TINY, "--out", trained.run, "--resume", "--json")
    assert "finished already" in result.err
    assert result.json["test"] == read_metrics(trained.run)["test"]


@pytest.mark.parametrize(
    ("options", "containing"),
    [
        (settings(hidden=6), "hidden=4, now 6"),
        (settings(lr=0.1), "lr=0.001, now 0.1"),
        ([*TINY, "--seed", "1"], "seed=0, now 1"),
        (["--model", "edgebank"], "model cordgt, now edgebank"),
    ],
)
def test_resume_with_other_settings(trained: Trained, options: list[str], containing: str) -> None:
    with unchanged(trained.run):
        fails(
            "train",
            trained.data,
            *options,
            "--out",
            trained.run,
            "--resume",
            containing=["other settings", containing],
        )


def test_resume_on_other_data(tmp_path: Path, trained: Trained) -> None:
    """Other events, or the same events with other node names."""
    other = write_events(tmp_path / "data.csv", events(170))
    renamed = write_events(tmp_path / "renamed.csv", [(u + 1, v + 1, t) for u, v, t in events()])
    for data in (other, renamed):
        with unchanged(trained.run):
            fails("train", data, *TINY, "--out", trained.run, "--resume", containing="other data")


def test_resume_before_the_first_checkpoint_starts_over(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_events(tmp_path / "data.csv")

    def stop(_: Any, name: str, total: int | None) -> None:
        if name == "validating":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(console.ProgressBar, "on_stage_start", stop)
        result = call("train", data, *TINY, "--out", "run")
    assert result.code == 130
    assert "--resume" in result.err
    assert "state.safetensors" not in contents(Path("run"))
    fails("train", data, *TINY, "--out", "run", containing=["already holds a run", "--resume"])
    works("train", data, *TINY, "--out", "run", "--resume")
    assert same_metrics("run", trained.run)


def test_interrupted_while_the_folder_is_created(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a config.toml there is no run: it can start again, with or without --resume."""
    from cordgt.training.run_folder import RunFolder

    data = write_events(tmp_path / "data.csv")
    write_text = RunFolder.write_text

    def stop(self: RunFolder, name: str, text: str) -> None:
        if name == "config.toml":
            raise KeyboardInterrupt
        write_text(self, name, text)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_text", stop)
        assert call("train", data, *TINY, "--out", "run").code == 130
    Path("run/.config.toml.xyz.part").write_text("cut off")
    works("train", data, *TINY, "--out", "run")
    assert same_metrics("run", trained.run)


def test_interrupted_before_the_training_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example while the data is read."""
    data = write_events(tmp_path / "data.csv")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cordgt.io.datasets.registry.load_dataset", stop)
        for command in ("train", "search"):
            result = call(command, data, *TINY, "--out", "run", *(["--grid", "seed=1"] if command == "search" else []))
            message = "Error: interrupted before the training began: nothing was written. Start it again.\n"
            assert (result.code, result.err) == (130, message)
    assert not Path("run").exists()


def test_a_search_prints_the_command_that_evaluates_its_best(tmp_path: Path) -> None:
    """The command repeats the seed, the config file and the columns of the search."""
    data = write_events(tmp_path / "data.csv")
    Path("mine.toml").write_text("hidden = 6\n")
    given = ["--config", "mine.toml", "--set", "fanout=2,1", "--set", "epochs=1", "--set", "heads=1", "--seed", 3]
    result = works("search", data, *given, "--grid", "layers=1,2", "--src", "src", "--ids", "separate")
    assert "[2/2] layers-2, epoch   1" in result.err and "1 of 2 tried; the others take about a minute" in result.err
    command = shlex.split(result.err.rstrip().splitlines()[-1].partition(": cordgt ")[2])
    stderr = works(*command).err
    assert "epoch " not in stderr and "finished already" not in stderr  # evaluated, not trained again
    folder = Path(command[command.index("--out") + 1])
    assert folder.parent.name == "data-cordgt-search" and (folder / "metrics.json").exists()


LONG = settings(epochs=30, patience=30)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("long")
    data = write_events(folder / "data.csv")
    works("train", data, *LONG, "--refit", "--out", folder / "run")
    return Trained(folder / "run", data)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_training_resumes_to_the_same_result(uninterrupted: Trained, how: signal.Signals) -> None:
    """After Ctrl-C or SIGTERM: the same metrics and weights as without an interruption."""
    command = ["train", uninterrupted.data, *LONG, "--refit", "--out", "run"]
    training = process(*command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    history = Path("run/history.jsonl")
    began = time.monotonic()
    while not (history.exists() and history.stat().st_size) and training.poll() is None:
        assert time.monotonic() - began < 300
        time.sleep(0.01)
    training.send_signal(how)
    _, err = training.communicate(timeout=300)
    assert not Path("run/metrics.json").exists()
    if how == signal.SIGINT:
        assert training.returncode == 130
        assert "Traceback" not in err
        assert f"cordgt train {uninterrupted.data}" in err
        assert err.rstrip().endswith("--out run --resume")
        assert not list(Path("run").glob(".*"))
    fails("recommend", "run", "--source", "3", containing=["run is not finished", "--resume"])
    works("train", uninterrupted.data, *LONG, "--out", "run", "--resume")  # the run folder stores --refit
    assert same_metrics("run", uninterrupted.run)
    for name in ("model.safetensors", "refit.safetensors"):
        first, second = (load_file(folder / name) for folder in (Path("run"), uninterrupted.run))
        assert all(torch.equal(first[key], second[key]) for key in first)
    lines = [json.loads(line) for line in Path("run/history.jsonl").read_text().splitlines()]
    fit = [line["epoch"] for line in lines if line["phase"] == "fit"]
    assert fit == list(range(1, 31))


def test_interrupted_query(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cordgt.inference.answers.recommendation_table", stop)
    result = call("recommend", trained.run, "--source", "3")
    assert (result.code, result.out, result.err) == (130, "", "Error: interrupted.\n")


def test_a_stream_too_short_for_a_memory_gets_a_note(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    tiny = ["--model", "jodie", "--set", "memory_dim=4", "--set", "time_dim=4", "--set", "epochs=1", "--no-report"]
    result = works("train", data, *tiny, "--set", "block=1000", "--out", "run")
    assert "jodie updates its memory in blocks of 1000" in result.err and "--set block=" in result.err
    assert works("recommend", "run", "--source", "3", "--json").json[0]["src_note"] == "not yet in memory"


# -------------------- seeds


def test_several_seeds(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    result = works("train", data, *TINY, "--seed", "4", "--seeds", "2", "--out", "runs", "--json")
    summary = read_metrics("runs")
    assert result.json == summary
    assert summary["seeds"] == [4, 5]
    values = [read_metrics(f"runs/seed-{k}")["test"]["transductive"]["ap"] for k in (4, 5)]
    ap = summary["test"]["transductive"]["ap"]
    assert ap["values"] == values
    assert ap["mean"] == pytest.approx(sum(values) / 2)
    assert ap["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert summary["validation"]["inductive"]["events"]["values"][0] > 0
    assert "seed 4, epoch   1" in result.err
    assert "seed 5, epoch   1" in result.err
    assert "runs/seed-4 --source" in result.err
    fails(
        "train",
        data,
        *TINY,
        "--seed",
        "4",
        "--seeds",
        "2",
        "--out",
        "runs",
        containing="runs/seed-4 already holds a run",
    )
    alone = works("train", data, *TINY, "--seed", "5", "--out", "alone", "--json").json
    assert alone["test"] == read_metrics("runs/seed-5")["test"]


def test_several_seeds_resume(tmp_path: Path) -> None:
    """Finished runs are kept, interrupted ones continue, and seeds can be added."""
    data = write_events(tmp_path / "data.csv")
    result = works("train", data, *TINY, "--seeds", "2", "--out", "runs")
    assert "±" in result.out
    before = contents(Path("runs/seed-0"))
    first = read_metrics("runs/seed-1")
    shutil.rmtree("runs/seed-1")
    Path("runs/metrics.json").unlink()
    works("train", data, *TINY, "--seeds", "3", "--out", "runs", "--resume")
    assert contents(Path("runs/seed-0")) == before
    assert read_metrics("runs/seed-1")["test"] == first["test"]
    assert read_metrics("runs")["seeds"] == [0, 1, 2]
    assert "finished already" in works("train", data, *TINY, "--seeds", "3", "--out", "runs", "--resume").err


# -------------------- --init and --refit


def test_init_starts_from_the_weights_and_settings_of_a_run(tmp_path: Path, trained: Trained) -> None:
    newer = write_events(tmp_path / "newer.csv", events(80, seed=1, start=5000))
    result = works("train", newer, "--init", trained.run, "--set", "epochs=1", "--set", "lr=1e-12", "--out", "run")
    assert f"settings of {trained.run}" in result.err
    assert "hidden=4" in result.err
    start, end = (load_file(run / "model.safetensors") for run in (trained.run, Path("run")))
    assert all(torch.allclose(start[key], end[key], atol=1e-6) for key in start)
    with unchanged(Path("run")):
        again = ["--set", "epochs=1", "--set", "lr=1e-12", "--out", "run", "--resume"]
        works("train", newer, "--init", trained.run, *again)
        works("train", newer, *TINY, "--set", "lr=1e-12", "--out", "run", "--resume")
    works("train", newer, *TINY, "--set", "lr=1e-12", "--out", "plain")
    fails("train", newer, "--init", trained.run, *again[:-2], "plain", "--resume", containing=["without --init"])


def test_refit_trains_on_all_events_and_keeps_the_metrics(tmp_path: Path, trained: Trained) -> None:
    data = write_events(tmp_path / "data.csv")
    works("train", data, *TINY, "--refit", "--out", "run")
    assert same_metrics("run", trained.run)
    assert read_metrics("run")["refit"] == {"epochs": 1, "events": 160}
    lines = [json.loads(line) for line in Path("run/history.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["fit", "refit"]
    answers = [works("recommend", run, "--source", "3", "--top", "20", "--json").json for run in (trained.run, "run")]
    assert "not in training" in {row["note"] for row in answers[0]}
    assert {row["note"] for row in answers[1]} == {""}
    assert answers[0] != answers[1]


def test_refit_of_a_run_that_is_finished(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    works("train", data, *TINY, "--out", "run")
    before = read_metrics("run")
    works("train", data, *TINY, "--out", "run", "--resume", "--refit")
    works("train", data, *TINY, "--out", "whole", "--refit")
    assert read_metrics("run")["refit"] == {"epochs": 1, "events": 160}
    assert read_metrics("run")["test"] == before["test"]
    first, second = (load_file(Path(run, "refit.safetensors")) for run in ("run", "whole"))
    assert all(torch.equal(first[key], second[key]) for key in first)


# -------------------- config files


def test_config_files(tmp_path: Path) -> None:
    data = write_events(tmp_path / "data.csv")
    model = "fanout = [2, 1]\nhidden = 6\nheads = 1\nlayers = 1\n"
    Path("my.toml").write_text(f'seed = 7\nepochs = 2\n[settings]\n{model}[protocol]\nsplit = "time"\n')
    works("train", data, "--config", "my.toml", "--set", "hidden=4", "--set", "epochs=1", "--out", "run")
    config = tomllib.loads(Path("run/config.toml").read_text())
    assert config["seed"] == 7
    assert config["training"]["epochs"] == 1
    assert config["settings"]["hidden"] == 4
    assert config["settings"]["fanout"] == [2, 1]
    assert config["protocol"]["split"] == "time"


def test_a_runs_own_config_gives_the_same_run(tmp_path: Path, trained: Trained) -> None:
    works("train", trained.data, "--config", trained.run / "config.toml", "--out", "again")
    assert same_metrics("again", trained.run)
    works("train", trained.data, "--config", trained.run / "config.toml", "--seed", "1", "--out", "other")
    assert read_metrics("other")["seed"] == 1
    assert not same_metrics("other", trained.run)
    config = trained.run / "config.toml"
    result = works("train", trained.data, "--config", config, "--model", "edgebank", "--out", "bank")
    assert "not used by edgebank: " in result.err and "fanout" in result.err


# -------------------- TensorBoard


class Recorder:
    """Replaces TensorBoard's writer."""

    made: list[Recorder] = []  # noqa: RUF012

    def __init__(self, folder: str) -> None:
        self.folder, self.scalars, self.closed = folder, [], False
        Recorder.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, step))
        assert isinstance(value, float)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        self.closed = True


def test_tensorboard_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Recorder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Recorder, "made", [])
    result = works("train", write_events(tmp_path / "d.csv"), *settings(epochs=2), "--refit", "--out", "run")
    assert "epoch   2" in result.err  # the progress bar still gets its calls
    (writer,) = Recorder.made
    assert writer.folder == "run/tensorboard"
    assert writer.closed
    assert set(writer.scalars) >= {("fit/loss", 1), ("fit/loss", 2), ("validation/ap", 2), ("refit/loss", 1)}


def test_without_tensorboard_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    works("train", write_events(tmp_path / "d.csv"), *TINY, "--out", "run")
    assert not Path("run/tensorboard").exists()


def test_real_tensorboard_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    works("train", write_events(tmp_path / "d.csv"), *TINY, "--out", "run")
    assert list(Path("run/tensorboard").glob("events.out.tfevents*"))


def test_features_that_a_model_does_not_use(tmp_path: Path) -> None:
    rows = [(*row, k / 7) for k, row in enumerate(events())]
    data = write_rows(tmp_path / "d.csv", rows, header=("src", "dst", "time", "price"))
    small = {
        "counts": ["epochs=1"],
        "tgsrec": ["epochs=1", "hidden=8", "heads=2", "time_dim=4", "num_neighbors=2"],
        "popularity": [],
        "jodie": ["epochs=1", "time_dim=4", "memory_dim=4"],
    }
    for model, silent in (("counts", False), ("tgsrec", False), ("popularity", False), ("jodie", True)):
        options = [word for assignment in small[model] for word in ("--set", assignment)]
        result = works("train", data, "--features", "price", "--model", model, *options, "--out", model)
        assert ("uses no features" in result.err) is not silent
