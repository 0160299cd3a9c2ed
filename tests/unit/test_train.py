"""The training loop: it learns, resumes to the same bits after any interrupt, and refuses invalid requests."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cordgt import plugins
from cordgt.callbacks import Callback
from cordgt.errors import DataError, RunError, SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.inference.run import Run
from cordgt.io.readers import read_events
from cordgt.models import cordgt as models_cordgt
from cordgt.tasks import link as tasks_link
from cordgt.tasks.link import LinkTask
from cordgt.tasks.protocol import Protocol
from cordgt.training.devices import choose_device
from cordgt.training.model_factory import build_model
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import make_settings
from cordgt.training.step import Ema
from cordgt.workflows import seed_processes
from cordgt.workflows.seed_processes import train_in_processes
from cordgt.workflows.seeds import settings_by_folder, train_seeds
from cordgt.workflows.train import train, train_run

TINY: dict[str, Any] = {
    "hidden": 8,
    "heads": 2,
    "fanout": (3, 2),
    "td_dim": 8,
    "sd_dim": 8,
    "epochs": 3,
    "batch_size": 40,
    "lr": 0.01,
}


def habits(n: int = 160, *, seed: int = 0, features: bool = False) -> EventStream:
    """Eight nodes with two frequent neighbors each, some new nodes, and tied times."""
    rng = np.random.default_rng(seed)
    src = rng.integers(0, 8, n)
    dst = 10 + (src + rng.integers(0, 2, n)) % 8
    late = rng.random(n) < 0.1
    src[late] = 30 + np.arange(n)[late] // 40
    t = rng.choice([0, 1, 1, 2], n).cumsum()
    edge_x = rng.normal(size=(n, 2)) if features else None
    return EventStream.from_columns(src, dst, t, edge_x, time=TimeAxis("number"), name="habits")


def fit(out: Path, stream: EventStream | None = None, **options: Any) -> Run:
    return train(stream or habits(), out=out, device="cpu", **(TINY | options))


def history(path: Path) -> list[dict[str, Any]]:
    """Return one record per epoch, without timings and without lines within an epoch."""
    records = [json.loads(line) for line in (path / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in r.items() if not k.endswith("seconds")} for r in records if "events" not in r]


def weights(path: Path, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return RunFolder(path).read_tensors(name)[0]


def without_timings(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return what two equal runs have in common: everything but timings."""
    return {k: v for k, v in metrics.items() if k not in ("checksums", "seconds_per_epoch", "peak_memory_mb")}


def assert_same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


def assert_same_run(a: Path, b: Path) -> None:
    """Return weights, metrics and history."""
    names = [sorted(p.name for p in path.glob("*.safetensors")) for path in (a, b)]
    assert names[0] == names[1]
    for name in names[0]:
        assert_same_weights(weights(a, name), weights(b, name))
    read = [json.loads((path / "metrics.json").read_text(encoding="utf-8")) for path in (a, b)]
    assert without_timings(read[0]) == without_timings(read[1])
    assert history(a) == history(b)


class Interrupted(Exception):
    """Stands for Ctrl-C."""


class Interrupts(Callback):
    """Raises at the ``nth`` occurrence of (hook, phase, epoch)."""

    def __init__(self, what: str, phase: str = "fit", epoch: int = 0, nth: int = 1) -> None:
        self.at, self.left = (what, phase, epoch), nth
        self.phase, self.epoch = "", 0

    def _now(self, what: str) -> None:
        if (what, self.phase, self.epoch) == self.at:
            self.left -= 1
            if self.left == 0:
                raise Interrupted

    def on_epoch_start(self, phase: str, epoch: int, n_epochs: int, n_events: int) -> None:
        self.phase, self.epoch = phase, epoch
        self._now("begin")

    def on_step(self, n: int, loss: float | None = None) -> None:
        self._now("step")

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self._now("end")

    def on_stage_start(self, name: str, total: int | None) -> None:
        self._now(name.partition(":")[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run with a refit; its metrics and weights equal those of a run without one."""
    return fit(tmp_path_factory.mktemp("runs") / "whole", refit=True, min_delta=0)


# --- learning ---


def test_averaged_weights_are_validated_saved_and_resumed(tmp_path: Path) -> None:
    """A resumed run ends with the same average."""
    options: dict[str, Any] = {"ema_decay": 0.9, "num_negatives": 3, "min_delta": 0, "epochs": 2, "refit": True}
    averaged = fit(tmp_path / "whole", **options)
    assert (
        averaged.metrics["validation"]
        != fit(tmp_path / "plain", **(options | {"ema_decay": 0.0})).metrics["validation"]
    )
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", callbacks=Interrupts("step", "fit", 2, 2), **options)
    fit(tmp_path / "run", resume=True, **options)
    assert_same_run(tmp_path / "run", averaged.path)


def test_monitor_mrr_selects_the_epoch_by_rank(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", monitor="mrr", ranking="5", epochs=2)
    validation_mrr = [k["validation"]["mrr"] for k in history(run.path) if k["phase"] == "fit"]
    assert run.metrics["validation"]["transductive"]["mrr"] == max(validation_mrr)


def test_monitor_mrr_sets_ranking_and_says_so(tmp_path: Path) -> None:
    messages: list[str] = []

    class Listener(Callback):
        def on_message(self, text: str) -> None:
            messages.append(text)

    run = train(habits(), "counts", out=tmp_path / "run", device="cpu", epochs=1, monitor="mrr", callbacks=Listener())
    assert run.metrics["protocol"]["ranking"] == "100" and "mrr" in run.metrics["validation"]["transductive"]
    assert any("ranking=100" in text for text in messages)
    with pytest.raises(SettingError, match="--set ranking=100"):
        fit(tmp_path / "none", monitor="mrr", ranking="none")


def test_a_setting_that_the_model_does_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"tgn does not read fanout \(read by cordgt, cordgt_plus, cordgt_small\)"):
        train(habits(), "tgn", out=tmp_path / "run", fanout=(32, 1))
    with pytest.raises(SettingError, match="edgebank does not read epochs"):
        train(habits(), "edgebank", out=tmp_path / "run", epochs=3)
    assert not (tmp_path / "run").exists()


def test_train_takes_a_table_a_file_or_a_stream(tmp_path: Path) -> None:
    """The same events give the same metrics; column options apply to what is read, and are kept."""
    n = 160
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"a": draw.integers(0, 9, n), "b": draw.integers(0, 9, n), "when": np.arange(n)})
    frame.to_csv(tmp_path / "events.csv", index=False)
    columns = {"src": "a", "dst": "b", "time": "when"}
    options: dict[str, Any] = {"device": "cpu", "report": False}
    stream = read_events(frame, **columns)
    runs = [
        train(stream, "counts", out=tmp_path / "stream", epochs=1, **options),
        train(frame, "counts", out=tmp_path / "frame", epochs=1, **columns, **options),
        train(tmp_path / "events.csv", "counts", out=tmp_path / "file", epochs=1, **columns, **options),
    ]
    assert runs[0].metrics["test"] == runs[1].metrics["test"] == runs[2].metrics["test"]
    assert runs[1].columns == columns
    with pytest.raises(DataError, match="src"):
        train(stream, "counts", out=tmp_path / "again", src="a")
    with pytest.raises(DataError):
        train(object(), "counts", out=tmp_path / "again")


def test_ema_of_few_steps_is_their_mean() -> None:
    model = build_model(
        make_settings("cordgt", {k: v for k, v in TINY.items() if k not in ("epochs", "batch_size", "lr")}),
        edge_dim=0,
        node_dim=0,
    )
    average, seen = Ema(model, 0.99), []
    for _ in range(5):
        with torch.no_grad():
            for q in model.parameters():
                q += torch.randn(q.shape, generator=torch.Generator().manual_seed(len(seen)))
        average.update(model)
        seen.append({name: q.detach().clone() for name, q in model.named_parameters()})
    with average.swap_into(model):
        for name, q in model.named_parameters():
            torch.testing.assert_close(q, torch.stack([k[name] for k in seen]).mean(0))
    assert all(torch.equal(q, seen[-1][name]) for name, q in model.named_parameters())


def test_training_learns_the_pattern(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", epochs=6, patience=6, hidden=16, td_dim=32, sd_dim=32, batch_size=20)
    loss = [r["loss"] for r in history(run.path)]
    assert len(loss) == 6
    assert loss[5] < 0.85 * loss[0] and min(loss[3:]) < 0.9 * math.log(2)
    seen_before = train(habits(), "edgebank", out=tmp_path / "edgebank", device="cpu").metrics
    assert run.metrics["test"]["transductive"]["ap"] > seen_before["test"]["transductive"]["ap"] - 0.1
    assert run.metrics["test"]["transductive"]["ap"] > 0.7


def test_best_weights_are_saved(whole: Run) -> None:
    records = [r for r in history(whole.path) if r["phase"] == "fit"]
    best = max(records, key=lambda r: r["validation"]["ap"])
    assert whole.metrics["best_epoch"] == best["epoch"]
    assert whole.metrics["validation"]["transductive"]["ap"] == best["validation"]["ap"]
    assert whole.metrics["epochs"] == len(records) == 3
    assert not whole.folder.has("state.safetensors")


def test_early_stopping_after_patience_epochs(tmp_path: Path) -> None:
    """With a min_delta that nothing reaches, the first epoch stays the best."""
    run = fit(tmp_path / "run", epochs=9, patience=2, min_delta=100)
    assert (run.metrics["epochs"], run.metrics["best_epoch"]) == (3, 1)
    first = fit(tmp_path / "first", epochs=1)
    assert_same_weights(weights(run.path), weights(first.path))


def test_min_delta_decides_the_best_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Better means by more than min_delta, relative; patience epochs without it end the training."""
    ap_values = iter([0.6, 0.8, 0.80005, 0.79, 0.5])

    def scripted(*_: Any, **__: Any) -> dict[str, Any]:
        return {"ap": next(ap_values, 0.1), "auc": 0.5, "ap_batch": 0.5, "auc_batch": 0.5, "events": 1}

    with monkeypatch.context() as patched:
        patched.setattr("cordgt.training.trainer.evaluate", scripted)
        run = fit(tmp_path / "run", epochs=9, patience=3)
    assert (run.metrics["epochs"], run.metrics["best_epoch"]) == (5, 2)
    assert [r["best_epoch"] for r in history(run.path)] == [1, 2, 2, 2, 2]
    ap_values = iter([0.6, 0.8])
    with monkeypatch.context() as patched:
        patched.setattr("cordgt.training.trainer.evaluate", scripted)
        two = fit(tmp_path / "two", epochs=2, patience=3)
    assert_same_weights(weights(run.path), weights(two.path))


def test_every_epoch_samples_new_negatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees and negatives of training follow the epoch; those of evaluation are always the same."""
    epochs_seen: dict[str, list[int]] = {"trees": [], "negatives": []}

    def recorded(name: str, function: Any) -> Any:
        def call(*arguments: Any, epoch: int, **rest: Any) -> Any:
            epochs_seen[name].append(int(epoch))
            return function(*arguments, epoch=epoch, **rest)

        return call

    monkeypatch.setattr(models_cordgt, "sample_trees", recorded("trees", models_cordgt.sample_trees))
    monkeypatch.setattr(tasks_link, "draw_negatives", recorded("negatives", tasks_link.draw_negatives))
    fit(tmp_path / "run", epochs=2)
    for epochs in epochs_seen.values():
        turns = [e for i, e in enumerate(epochs) if i == 0 or e != epochs[i - 1]]
        assert turns == [1, 0, 2, 0]  # trained, validated, trained, validated and evaluated


def test_model_without_parameters(tmp_path: Path) -> None:
    run = train(habits(), "edgebank", out=tmp_path / "run", device="cpu", refit=True)
    assert run.metrics["epochs"] == run.metrics["parameters"] == 0
    assert run.metrics["test"]["transductive"]["ap"] > 0.5
    assert without_timings(Run.load(run.path, "cpu").metrics) == without_timings(run.metrics)


def test_results_depend_on_the_seed_only(tmp_path: Path, whole: Run) -> None:
    again, other = fit(tmp_path / "again", min_delta=0), fit(tmp_path / "other", seed=1, min_delta=0)
    assert_same_weights(weights(again.path), weights(whole.path))
    assert without_timings(again.metrics) == {k: v for k, v in without_timings(whole.metrics).items() if k != "refit"}
    assert any(not torch.equal(v, weights(other.path)[k]) for k, v in weights(again.path).items())


def test_training_keeps_the_global_random_state(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    fit(tmp_path / "run", epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_returned_metrics_are_a_copy(tmp_path: Path) -> None:
    run = train(habits(), "edgebank", out=tmp_path / "run", device="cpu")
    run.metrics["protocol"]["visibility"] = "mine"
    assert run.settings.protocol.visibility == "event"


def test_metrics_on_disk_equal_those_returned(whole: Run) -> None:
    assert Run.load(whole.path, "cpu").metrics == json.loads(json.dumps(whole.metrics))
    assert whole.metrics["seconds_per_epoch"] > 0 and whole.metrics["peak_memory_mb"] > 0
    assert whole.metrics["data"] == "habits" and whole.metrics["model"] == "cordgt"


def test_evaluate_reproduces_the_metrics(whole: Run) -> None:
    found = Run.load(whole.path, "cpu").evaluate()
    assert {k: found[k] for k in ("validation", "test")} == {k: whole.metrics[k] for k in ("validation", "test")}
    smaller = Run.load(whole.path, "cpu").evaluate(batch_size=7)
    for part in ("validation", "test"):
        assert smaller[part]["transductive"]["ap"] == pytest.approx(found[part]["transductive"]["ap"], abs=1e-4)
    with pytest.raises(SettingError, match="fixed by the training"):
        whole.evaluate(mask_nodes=0.5)


# --- what training may see ---


def test_masked_nodes_are_hidden_from_training_only() -> None:
    stream = habits()
    task = LinkTask.prepare(stream, Protocol(mask_nodes=0.2), seed=0, device=torch.device("cpu"))
    masked = torch.from_numpy(np.flatnonzero(task.split.masked))
    assert len(masked) == int(0.2 * stream.n_nodes)
    end = torch.tensor(stream.n_events)
    assert (task.train_history.index.degree(masked, end) == 0).all()
    assert (task.full_history.index.degree(masked, end) > 0).all()
    assert not np.isin(stream.src[task.split.train], masked).any()
    assert not np.isin(task.pools.train, masked).any()


def test_undefined_metrics_are_null(tmp_path: Path) -> None:
    """Without new nodes after the training period, inductive metrics are null and the run does not fail."""
    n = 120
    stream = EventStream.from_columns(np.arange(n) % 3, 5 + np.arange(n) % 4, np.arange(n), time=TimeAxis("number"))
    run = fit(tmp_path / "run", stream, epochs=1, mask_nodes=0)
    nothing = {"ap": None, "auc": None, "ap_batch": None, "auc_batch": None, "events": 0}
    assert run.metrics["test"]["inductive"] == run.metrics["validation"]["inductive"] == nothing
    assert "null" in (run.path / "metrics.json").read_text(encoding="utf-8")
    assert Run.load(run.path, "cpu").metrics["test"]["inductive"] == nothing


@pytest.mark.parametrize("rule", ["paper", "batch"])
def test_every_protocol_trains(tmp_path: Path, rule: str) -> None:
    run = fit(tmp_path / "run", habits(features=True), epochs=1, visibility=rule)
    assert run.metrics["protocol"]["visibility"] == rule
    assert run.metrics["test"]["transductive"]["ap"] > 0


# --- cut off and resumed ---


@pytest.mark.parametrize(
    "moment",
    [
        ("step", "fit", 1, 2),
        ("end", "fit", 1),
        ("step", "fit", 2, 2),
        ("validating", "fit", 2),
        ("evaluating", "fit", 3),
        ("step", "refit", 1, 2),
        ("step", "refit", 2, 2),
    ],
    ids=lambda m: "-".join(map(str, m)),
)
def test_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, whole: Run, moment: tuple[Any, ...]) -> None:
    assert whole.metrics["best_epoch"] >= 2, "the refit is too short to be interrupted"
    options = {"refit": True, "min_delta": 0}
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", callbacks=Interrupts(*moment), **options)
    assert not RunFolder(tmp_path / "run").is_finished
    with pytest.raises(RunError, match="--resume"):
        Run.load(tmp_path / "run", "cpu")
    fit(tmp_path / "run", resume=True, min_delta=0)  # that it is to be refitted was said at its beginning
    assert_same_run(tmp_path / "run", whole.path)


def test_resume_after_a_kill_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was written last, the resumed run is the same."""
    stream, options = habits(90), {"epochs": 2, "refit": True, "min_delta": 0, "fanout": (2,), "layers": 1}
    expected = fit(tmp_path / "expected", stream, **options)
    left = 0

    def dies_after(write: Any) -> Any:
        def call(*arguments: Any, **rest: Any) -> Any:
            nonlocal left
            write(*arguments, **rest)
            left -= 1
            if left == 0:
                raise Interrupted

        return call

    with monkeypatch.context() as patched:
        for name in ("write_text", "write_tensors", "append_history", "remove"):
            patched.setattr(RunFolder, name, dies_after(getattr(RunFolder, name)))
        for n in range(1, 99):
            left, out = n, tmp_path / str(n)
            try:
                fit(out, stream, **options)
                break
            except Interrupted:
                left = 0
                fit(out, stream, resume=True, **options)
            assert_same_run(out, expected.path)
    assert n > 12  # so many writes a run has at least


def test_resume_after_repeated_interrupts(tmp_path: Path, whole: Run) -> None:
    moments = [("step", "fit", 1), ("step", "fit", 2, 2), ("validating", "fit", 2), ("end", "fit", 3)]
    moments += [("evaluating", "fit", 3), ("step", "refit", 1), ("end", "refit", 2)]
    for i, moment in enumerate(moments):
        # After the fit is done, the figures are taken again: the epoch is then that of nothing.
        callback = Interrupts(moment[0], "", 0) if moment[0] == "evaluating" else Interrupts(*moment)
        with pytest.raises(Interrupted):
            fit(tmp_path / "run", resume=i > 0, refit=True, min_delta=0, callbacks=callback)
    fit(tmp_path / "run", resume=True, refit=True, min_delta=0)
    assert_same_run(tmp_path / "run", whole.path)


def test_partial_history_line_is_dropped_on_resume(tmp_path: Path, whole: Run) -> None:
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", refit=True, min_delta=0, callbacks=Interrupts("step", "fit", 2))
    with open(tmp_path / "run" / "history.jsonl", "a", encoding="utf-8") as file:
        file.write('{"phase": "fit", "epoch": 2, "eve')
    fit(tmp_path / "run", resume=True, refit=True, min_delta=0)
    assert_same_run(tmp_path / "run", whole.path)


KILLED = """
    import os, signal, sys
    sys.path[:0] = {paths!r}
    import torch
    torch.set_num_threads(1)
    from test_train import Callback, fit
    from pathlib import Path

    class Kills(Callback):
        epoch = 0
        def on_epoch_start(self, phase, epoch, n_epochs, n_events):
            self.epoch = epoch
        def on_step(self, n, loss=None):
            if self.epoch == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    fit(Path({out!r}), refit=True, min_delta=0, callbacks=Kills())
"""


def test_killed_process_is_resumed(tmp_path: Path, whole: Run) -> None:
    """SIGKILL within epoch 2: no handler and no clean-up runs."""
    import cordgt

    out = tmp_path / "run"
    paths = [str(Path(cordgt.__file__).parents[1]), str(Path(__file__).parent)]
    program = textwrap.dedent(KILLED).format(paths=paths, out=str(out))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert RunFolder(out).has("state.safetensors") and not RunFolder(out).is_finished
    fit(out, resume=True, refit=True, min_delta=0)
    assert_same_run(out, whole.path)


def test_resume_without_a_run_starts_one(tmp_path: Path, whole: Run) -> None:
    run = fit(tmp_path / "run", resume=True, refit=True, min_delta=0)
    assert_same_run(run.path, whole.path)


@pytest.mark.parametrize("left", [["events.parquet"], [".nodes.parquet.abc.part"], [".config.toml.x1y2.part"]])
def test_resume_after_a_kill_before_config_is_written(tmp_path: Path, left: list[str]) -> None:
    """Files of a folder without config.toml do not block a new run."""
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).write_bytes(b"PAR1 half of")
    assert fit(tmp_path / "run", resume=True, epochs=1).metrics["epochs"] == 1


def test_resume_of_a_finished_run_changes_nothing(whole: Run) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in whole.path.iterdir()}
    again = fit(whole.path, resume=True, refit=True, min_delta=0, callbacks=Interrupts("begin", "fit", 1))
    assert {p.name: p.stat().st_mtime_ns for p in whole.path.iterdir()} == before
    assert again.metrics == json.loads(json.dumps(whole.metrics))


@pytest.mark.parametrize("broken", ["truncated", "other tensors", "other progress"])
def test_damaged_checkpoint_is_an_error(tmp_path: Path, broken: str) -> None:
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", callbacks=Interrupts("end", "fit", 1))
    folder = RunFolder(tmp_path / "run")
    tensors, about = folder.read_tensors("state.safetensors")
    if broken == "truncated":
        path = folder.path / "state.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
    elif broken == "other tensors":
        folder.write_tensors("state.safetensors", {"model.x": torch.zeros(1)}, about)
    else:
        folder.write_tensors("state.safetensors", tensors, {"phase": "fit", "epochs": 3})
    with pytest.raises(RunError, match=r"state\.safetensors (is damaged|does not fit)"):
        fit(tmp_path / "run", resume=True)


# --- refused ---


def test_folder_with_a_run_is_refused(whole: Run) -> None:
    with pytest.raises(RunError, match=r"already holds a run.*--resume"):
        fit(whole.path, min_delta=0)


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("", encoding="utf-8")
    with pytest.raises(RunError, match=r"not empty \(it contains thesis\.tex\)"):
        fit(tmp_path)
    with pytest.raises(RunError, match="is a file"):
        fit(tmp_path / "thesis.tex")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.02}, "lr=0.01, now 0.02"),
        ({"seed": 1}, "seed=0, now 1"),
        ({"fanout": (4,)}, r"fanout=\[3, 2\], now \[4\]"),
        ({"visibility": "paper"}, 'visibility="event", now "paper"'),
        ({"model": "cordgt_plus"}, "model cordgt, now cordgt_plus"),
    ],
)
def test_resume_with_other_settings_is_refused(whole: Run, changes: dict[str, Any], message: str) -> None:
    before = {p.name: p.stat().st_mtime_ns for p in whole.path.iterdir()}
    with pytest.raises(RunError, match=f"other settings: {message}"):
        fit(whole.path, resume=True, **({"min_delta": 0, "refit": True} | changes))
    assert {p.name: p.stat().st_mtime_ns for p in whole.path.iterdir()} == before


def test_resume_with_other_data_is_refused(whole: Run) -> None:
    stream = habits()
    renamed = EventStream.from_columns(stream.src + 500, stream.dst + 500, stream.t, time=stream.time, name=stream.name)
    for other in (habits(seed=1), habits(159), habits(features=True), renamed):
        with pytest.raises(RunError, match="other data"):
            fit(whole.path, other, resume=True, min_delta=0, refit=True)


def test_too_few_events_leave_no_folder(tmp_path: Path) -> None:
    stream = EventStream.from_columns([1, 2, 3], [4, 5, 6], np.array([0, 0, 0]), time=TimeAxis("number"))
    with pytest.raises(DataError, match="Too few events"):
        fit(tmp_path / "run", stream)
    assert not (tmp_path / "run").exists()


def test_one_destination_leaves_no_folder(tmp_path: Path) -> None:
    stream = EventStream.from_columns(np.arange(60) % 5, np.full(60, 9), np.arange(60), time=TimeAxis("number"))
    with pytest.raises(DataError, match="only one destination"):
        fit(tmp_path / "run", stream)
    assert not (tmp_path / "run").exists()


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(SettingError, match="no device 'gpu'"):
        choose_device("gpu")
    with pytest.raises(SettingError, match="not supported"):
        choose_device("meta")
    if not torch.cuda.is_available():
        with pytest.raises(SettingError, match="CUDA was requested"):
            choose_device("cuda")


# --- when it goes wrong ---


def test_non_finite_loss_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no longer a number in epoch 1"):
        fit(tmp_path / "run", lr=1e30)
    assert not RunFolder(tmp_path / "run").is_finished


def test_non_finite_weights_are_an_error(tmp_path: Path) -> None:
    """The last step may diverge: its loss is computed before the update."""
    with pytest.raises(RunError, match="no longer"):
        fit(tmp_path / "run", lr=1e30, batch_size=1000, epochs=1)


# --- starting from another run ---


def test_init_starts_from_the_weights_of_the_other_run(tmp_path: Path) -> None:
    """With a tiny learning rate the weights stay the given ones."""
    first = fit(tmp_path / "first", epochs=1)
    second = fit(tmp_path / "second", habits(200), epochs=1, lr=1e-30, init=first.path)
    assert_same_weights(weights(second.path), weights(first.path))
    third = fit(tmp_path / "third", epochs=1, lr=1e-30, init=first)
    assert third.metrics["test"] == first.metrics["test"]
    assert third.metrics["validation"] == first.metrics["validation"]


def test_init_leaves_refitted_weights_alone(tmp_path: Path, whole: Run) -> None:
    """Refitted weights saw the test period, on which the new run may be evaluated."""
    run = fit(tmp_path / "run", epochs=1, lr=1e-30, init=whole.path)
    assert_same_weights(weights(run.path), weights(whole.path))
    assert run.metrics["init"] == {"run": str(whole.path), "knows": ""}


def test_init_from_a_run_trained_on_evaluation_events_is_reported(tmp_path: Path) -> None:
    """Trained past the new run's training period, or on nodes that count as new there; kept through a resume."""
    later = fit(tmp_path / "later", habits(), epochs=1)
    options: dict[str, Any] = {"epochs": 2, "train_ratio": 0.4, "mask_seed": 5}
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", init=later.path, callbacks=Interrupts("step", "fit", 1), **options)
    run = fit(tmp_path / "run", resume=True, **options)
    knows = run.metrics["init"]["knows"]
    assert "it was trained on events until" in knows and "past the training period here" in knows
    assert "nodes that count as new here" in knows
    assert Run.load(run.path).evaluate(split="test")["init"]["knows"] == knows
    html = (run.path / "report.html").read_text(encoding="utf-8")
    assert "this run started from" in html


def test_resume_uses_the_original_init_weights(tmp_path: Path, whole: Run) -> None:
    """Resumed before its first checkpoint, without saying --init again, it still starts from the same weights."""
    expected = fit(tmp_path / "expected", epochs=2, seed=3, init=whole.path)
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", epochs=2, seed=3, init=whole.path, callbacks=Interrupts("step", "fit", 1))
    fit(tmp_path / "run", epochs=2, seed=3, resume=True)
    assert_same_run(tmp_path / "run", expected.path)


def test_mismatched_init_leaves_no_folder(tmp_path: Path, whole: Run) -> None:
    with pytest.raises(SettingError, match="do not fit"):
        fit(tmp_path / "a", hidden=16, init=whole.path)
    with pytest.raises(SettingError, match="do not fit"):
        fit(tmp_path / "b", habits(features=True), init=whole.path)
    with pytest.raises(SettingError, match="is a cordgt; this run is a edgebank"):
        train(habits(), "edgebank", out=tmp_path / "c", device="cpu", init=whole.path)
    with pytest.raises(RunError, match="does not exist"):
        fit(tmp_path / "d", init=tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


# --- refit ---


def test_refit_trains_on_all_events(whole: Run) -> None:
    assert whole.metrics["refit"] == {"epochs": whole.metrics["best_epoch"], "events": 160}
    plain, refitted = weights(whole.path), weights(whole.path, "refit.safetensors")
    assert any(not torch.equal(plain[k], refitted[k]) for k in plain)
    lines = [r for r in history(whole.path) if r["phase"] == "refit"]
    assert [r["epoch"] for r in lines] == list(range(1, whole.metrics["best_epoch"] + 1))


def test_refit_of_a_finished_run(tmp_path: Path, whole: Run) -> None:
    fit(tmp_path / "run", min_delta=0)
    fit(tmp_path / "run", min_delta=0, resume=True, refit=True)
    assert_same_run(tmp_path / "run", whole.path)


def test_predictions_use_the_refitted_weights(whole: Run) -> None:
    """Predictions use the refitted weights, to which no node is new; metrics stay those of the split."""
    loaded = Run.load(whole.path, "cpu")
    assert_same_weights(dict(loaded.predictor.model.state_dict()), weights(whole.path, "refit.safetensors"))
    assert loaded.predictor.has_training_events.all()
    assert loaded.evaluate()["test"] == whole.metrics["test"]


# --- several seeds ---


def test_several_seeds(tmp_path: Path) -> None:
    settings = make_settings("cordgt", TINY | {"epochs": 1}, seed=4)
    summary = train_seeds(habits(), settings, tmp_path / "runs", 3, device="cpu")
    each = [Run.load(tmp_path / "runs" / f"seed-{seed}", "cpu").metrics for seed in (4, 5, 6)]
    values = [m["test"]["transductive"]["ap"] for m in each]
    found = summary["test"]["transductive"]["ap"]
    assert found["values"] == values and len(set(values)) > 1
    assert found["mean"] == pytest.approx(sum(values) / 3)
    assert found["std"] == pytest.approx(math.sqrt(sum((v - found["mean"]) ** 2 for v in values) / 2))
    assert summary["seeds"] == [4, 5, 6]
    assert json.loads((tmp_path / "runs" / "metrics.json").read_text(encoding="utf-8")) == summary
    # The same events are asked of all of them, against the same destinations.
    assert len({m["test"]["transductive"]["events"] for m in each}) == 1


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended, but was not waited for, does not."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(status.stdout.strip()) and not status.stdout.startswith("Z")


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class Recorder(Callback):
    """Records which runs have trained which epochs, and which are finished."""

    def __init__(self) -> None:
        self.run, self.epochs, self.finished = "", set[tuple[str, int]](), set[str]()
        self.messages: list[str] = []

    def on_run_start(self, name: str) -> None:
        self.run = name

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self.epochs.add((self.run, record["epoch"]))

    def on_run_end(self, name: str, result: dict[str, Any]) -> None:
        self.finished.add(name)

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def test_seeds_at_once_equal_single_runs(tmp_path: Path) -> None:
    """As on a GPU: a process for each seed. Weights and metrics are those of single runs, to the bit."""
    settings = make_settings("counts", {"epochs": 2})
    by_folder = settings_by_folder(settings, 2, None)
    options: dict[str, Any] = {"device": "cpu", "report": False, "resume": False}
    seen = Recorder()
    found = train_in_processes(habits(), by_folder, tmp_path / "runs", seen, options)
    assert seen.finished == {"seed-0", "seed-1"} and not seen.epochs ^ {
        ("seed-0", 1),
        ("seed-0", 2),
        ("seed-1", 1),
        ("seed-1", 2),
    }
    for (name, own), metrics in zip(by_folder.items(), found, strict=True):
        single = train_run(habits(), own, tmp_path / name, device="cpu", report=False)
        assert metrics["test"] == single.metrics["test"] and metrics["seed"] == own.seed
        a, b = (
            RunFolder(path).read_tensors("model.safetensors")[0] for path in (tmp_path / "runs" / name, tmp_path / name)
        )
        assert all(torch.equal(a[key], b[key]) for key in b)


def test_further_seeds_wait_for_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_processes, "MAX_AT_ONCE", 1)
    by_folder = settings_by_folder(make_settings("counts", {"epochs": 1}), 2, None)
    options: dict[str, Any] = {"device": "cpu", "report": False, "resume": False}
    found = train_in_processes(habits(), by_folder, tmp_path / "runs", Callback(), options)
    assert [metrics["seed"] for metrics in found] == [0, 1]


class Broken(Callback):
    def on_epoch_end(self, record: dict[str, Any]) -> None:
        raise ValueError("broken callback")


def test_an_error_of_a_callback_ends_the_processes(tmp_path: Path) -> None:
    by_folder = settings_by_folder(make_settings("counts", {"epochs": 1}), 1, None)
    options: dict[str, Any] = {"device": "cpu", "report": False, "resume": False}
    with pytest.raises(ValueError, match="broken callback"):
        train_in_processes(habits(), by_folder, tmp_path / "runs", Broken(), options)
    assert not multiprocessing.active_children()


def test_seeds_that_do_not_fit_at_once_train_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out in the worker processes only."""
    plugin = tmp_path / "small_gpu.py"
    plugin.write_text(
        textwrap.dedent(f"""
            import os
            from cordgt.errors import RunError
            from cordgt.workflows import seed_processes

            def train_run(*args, **options):
                try:
                    raise MemoryError
                except MemoryError:
                    raise RunError("Memory ran out.") from None

            if os.getpid() != {os.getpid()}:
                seed_processes.train_run = train_run
        """),
        encoding="utf-8",
    )
    monkeypatch.setattr(plugins, "_loaded_files", {plugin.resolve(): None})
    monkeypatch.setattr("cordgt.workflows.seeds.can_share_gpu", lambda *_: True)
    settings, seen = make_settings("counts", {"epochs": 1}), Recorder()
    metrics = train_seeds(habits(), settings, tmp_path / "runs", 2, device="cpu", report=False, callbacks=seen)
    assert seen.finished == {"seed-0", "seed-1"} and metrics["seeds"] == [0, 1]
    assert any("one after the other" in text for text in seen.messages)


def test_a_request_that_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    """The worker would wait for it forever."""
    by_folder = settings_by_folder(make_settings("counts", {"epochs": 1}), 2, None)
    options: dict[str, Any] = {"device": "cpu", "report": False, "columns": {"src": lambda: 0}}
    with pytest.raises(AttributeError, match="lambda"):
        train_in_processes(habits(), by_folder, tmp_path / "runs", Callback(), options)
    assert not multiprocessing.active_children()


def test_a_worker_ends_with_a_parent_that_ended_before_it_was_ready(tmp_path: Path) -> None:
    """Imports take seconds. A parent that is killed meanwhile is no longer the parent when they are done."""
    script = tmp_path / "start.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing, os, signal, sys, time

            def work(path):
                open(path, "w").write(str(os.getpid()))
                time.sleep(1)
                from cordgt.runtime.worker_processes import exit_with_parent, parent_pid
                exit_with_parent(parent_pid())
                time.sleep(100)

            if __name__ == "__main__":
                multiprocessing.get_context("spawn").Process(target=work, args=(sys.argv[1],)).start()
                while not os.path.exists(sys.argv[1]) or not open(sys.argv[1]).read():
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGKILL)
        """),
        encoding="utf-8",
    )
    pid_file = tmp_path / "pid"
    assert subprocess.run([sys.executable, script, pid_file], check=False).returncode == -signal.SIGKILL
    worker = int(pid_file.read_text(encoding="utf-8"))
    wait_until(lambda: not is_running(worker))


def test_a_side_process_ends_with_a_parent_that_ignores_sigterm(tmp_path: Path) -> None:
    """A child inherits that SIGTERM is ignored."""
    (tmp_path / "slow.py").write_text(
        "import os, time\n\ndef work(task):\n    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(100)\n",
        encoding="utf-8",
    )
    code = """
        import os, signal, time
        import numpy as np
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        import slow
        from cordgt import EventStream
        from cordgt.tasks.link import LinkTask
        from cordgt.training.side_process import SideProcess
        task = LinkTask.prepare(EventStream.from_columns(*np.arange(200).reshape(2, 100) % 9, np.arange(100)))
        SideProcess(slow.work, task)
        while not os.path.exists("pid") or not open("pid").read():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command, environment = [sys.executable, "-c", textwrap.dedent(code)], os.environ | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    worker = int((tmp_path / "pid").read_text(encoding="utf-8"))
    wait_until(lambda: not is_running(worker), 30.0)


MPS_CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then
    echo "$CUDA_MPS_PIPE_DIRECTORY" > "{folder}/started"
elif read -r command; then
    echo "$command $CUDA_MPS_PIPE_DIRECTORY" > "{folder}/ended"
fi
"""


@pytest.fixture
def mps_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for NVIDIA's program. It writes when it is started and ended."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(MPS_CONTROL.format(folder=tmp_path), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return tmp_path


def test_the_gpu_is_shared_within_the_block(mps_control: Path) -> None:
    with seed_processes.shared_gpu():
        pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        assert (mps_control / "started").read_text(encoding="utf-8").strip() == pipe and Path(pipe).is_dir()
    assert (mps_control / "ended").read_text(encoding="utf-8").strip() == f"quit {pipe}"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ and not Path(pipe).parent.exists()


def test_a_killed_process_leaves_no_gpu_service(mps_control: Path) -> None:
    code = (
        "import os; from cordgt.workflows.seed_processes import shared_gpu\nwith shared_gpu(): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    pipe = (mps_control / "started").read_text(encoding="utf-8").strip()
    wait_until(lambda: (mps_control / "ended").exists() and not Path(pipe).parent.exists())


def test_without_the_gpu_service_the_block_runs(mps_control: Path) -> None:
    (mps_control / "bin" / "nvidia-cuda-mps-control").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    with seed_processes.shared_gpu():
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_a_failing_seed_is_named(tmp_path: Path) -> None:
    settings = make_settings("counts", {"epochs": 1})
    (tmp_path / "runs" / "seed-1").mkdir(parents=True)
    (tmp_path / "runs" / "seed-1" / "mine.txt").write_text("x", encoding="utf-8")
    options: dict[str, Any] = {"device": "cpu", "report": False, "resume": False}
    with pytest.raises(RunError, match=r"seed-1: .*seed-1"):
        train_in_processes(habits(), settings_by_folder(settings, 2, None), tmp_path / "runs", Callback(), options)


def test_several_seeds_are_resumed(tmp_path: Path) -> None:
    settings = make_settings("cordgt", TINY | {"epochs": 1}, seed=0)
    train_run(habits(), settings, tmp_path / "runs" / "seed-0", device="cpu")
    with pytest.raises(RunError, match="already holds a run"):
        train_seeds(habits(), settings, tmp_path / "runs", 2, device="cpu")
    before = (tmp_path / "runs" / "seed-0" / "metrics.json").read_bytes()
    summary = train_seeds(habits(), settings, tmp_path / "runs", 2, device="cpu", resume=True)
    assert (tmp_path / "runs" / "seed-0" / "metrics.json").read_bytes() == before
    assert len(summary["test"]["inductive"]["ap"]["values"]) == 2
