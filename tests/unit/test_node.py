"""Node classification: what a classifier sees, learns and refuses, and how it handles rare labels."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt import train
from cordgt.errors import DataError, RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.tasks.link import LinkTask
from cordgt.tasks.node import ClassifierSettings, NodeTask, classifier_metrics, embed_sources, fit_classifier
from cordgt.workflows.node_classification import classifier_settings, labels_for, train_classifier, train_classifier_run

SMALL: dict[str, Any] = {
    "fanout": (3, 1), "hidden": 8, "heads": 1, "layers": 1, "td_dim": 8, "sd_dim": 8, "epochs": 1, "device": "cpu",
}  # fmt: skip


def labelled(n: int = 400, *, label: Any = None) -> EventStream:
    """Eleven sources and five destinations; a source has a positive label just after the first destination."""
    draw = np.random.default_rng(7)
    src, dst = draw.integers(0, 11, n), 11 + draw.integers(0, 5, n)
    t = np.cumsum(draw.integers(0, 3, n))
    last: dict[int, int] = {}
    found = np.zeros(n, dtype=np.int64)
    for i in range(n):
        found[i] = last.get(int(src[i])) == 11
        last[int(src[i])] = int(dst[i])
    return EventStream.from_columns(src, dst, t, None, found if label is None else label, name="labelled")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(labelled(), out=tmp_path_factory.mktemp("node") / "run", **SMALL)


def test_splits_have_their_own_events(run: Run) -> None:
    _, link = run.evaluation_task()
    task = NodeTask.prepare(link, link.stream.label)
    parts = [task.positions(part) for part in ("train", "validation", "test")]
    assert np.array_equal(np.concatenate(parts), np.arange(400))
    assert len(parts[0]) > len(link.split.train)  # those of masked nodes too


def test_embedding_sees_only_earlier_events(run: Run) -> None:
    model, link = run.evaluation_task()
    task = NodeTask.prepare(link, link.stream.label)
    before = embed_sources(model, task, "test")
    at = int(task.positions("test")[10])
    start = int(link.full_history.index.tie_start[at])
    stream = link.stream
    dst = stream.dst.copy()
    dst[start:] = dst[start:][::-1]  # from its own moment on, everything is otherwise
    other = LinkTask.prepare(replace(stream, dst=dst), link.protocol, seed=0, device=torch.device("cpu"))
    after = embed_sources(model, NodeTask.prepare(other, stream.label), "test")
    tied = np.flatnonzero(link.full_history.index.tie_start.numpy()[task.positions("test")] <= start)
    assert torch.equal(before[tied], after[tied])
    assert not torch.equal(before, after)


def test_embeddings_do_not_depend_on_the_batch_size(run: Run) -> None:
    model, link = run.evaluation_task()
    task = NodeTask.prepare(link, link.stream.label)
    one, other = (embed_sources(model, task, "test", batch_size=k) for k in (7, 1000))
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "has no labels"),
        (np.zeros(400), r"two different values.* have 1 \(0\)"),
        (np.arange(400) % 3, r"two different values.* have 3 \(0, 1, 2\)"),
        (np.full(400, np.nan), r"two different values.* have 0 \(none\)"),
        (np.r_[np.zeros(399), 1], "training period has 0 events of label 1"),
        (np.where(np.arange(400) < 330, np.arange(400) % 2, np.nan), "no event of the test period has a label"),
        (np.where(abs(np.arange(400) - 310) > 40, np.arange(400) % 2, np.nan), "no event of the validation period"),
    ],
)
def test_unusable_labels_are_an_error(run: Run, label: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        NodeTask.prepare(run.evaluation_task()[1], label)


def test_events_without_labels_are_skipped(run: Run) -> None:
    _, link = run.evaluation_task()
    label = np.where(np.arange(400) % 2, labelled().label, np.nan)
    task = NodeTask.prepare(link, label)
    assert (task.positions("test") % 2 == 1).all()


def test_rare_positives_are_learned() -> None:
    """Four positives in a thousand are learned, because the loss weights both classes equally."""
    draw = np.random.default_rng(0)
    truth = {part: np.arange(1000) % 330 == 7 for part in ("train", "validation", "test")}
    x = {k: torch.from_numpy(draw.normal(size=(1000, 5)) + 4.0 * v[:, None]).float() for k, v in truth.items()}
    fitted = fit_classifier(x, truth, ClassifierSettings(batch_size=100, epochs=30), seed=0)
    found = classifier_metrics(fitted.model, x["test"], truth["test"])
    assert found["auc"] > 0.97
    assert (found["positive"], found["events"]) == (4, 1000)
    again = fit_classifier(x, truth, ClassifierSettings(batch_size=100, epochs=30), seed=0)
    assert again.history == fitted.history
    plain = fit_classifier(x, truth, ClassifierSettings(balance="none", epochs=1), seed=0)
    assert plain.history != fitted.history[:1]


def test_constant_dimension_is_harmless() -> None:
    truth = {part: np.arange(60) % 5 == 0 for part in ("train", "validation", "test")}
    x = {k: torch.zeros(60, 3) for k in truth}
    fitted = fit_classifier(x, truth, ClassifierSettings(epochs=2), seed=0)
    assert classifier_metrics(fitted.model, x["test"], truth["test"])["auc"] == 0.5


def test_metrics_of_one_class_are_undefined() -> None:
    truth = {"train": np.arange(60) % 5 == 0, "validation": np.zeros(20, dtype=bool)}
    x = {k: torch.randn(len(v), 3) for k, v in truth.items()}
    fitted = fit_classifier(x, truth, ClassifierSettings(epochs=9, patience=4), seed=0)
    assert len(fitted.history) == 4  # nothing to choose by
    assert fitted.best_epoch == 4
    assert classifier_metrics(fitted.model, x["validation"], truth["validation"])["auc"] is None


def test_encoder_is_unchanged_and_classifier_reproducible(run: Run, tmp_path: Path) -> None:
    weights = (run.path / "model.safetensors").read_bytes()
    settings = ClassifierSettings(epochs=3)
    assert run.stream.label is not None
    first = train_classifier_run(run, run.stream.label, settings, tmp_path / "a")
    second = train_classifier_run(run, run.stream.label, settings, tmp_path / "b")
    assert first["test"] == second["test"]
    assert (run.path / "model.safetensors").read_bytes() == weights
    assert first["train"]["events"] + first["validation"]["events"] + first["test"]["events"] == 400
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"config.toml", "classifier.safetensors", "metrics.json"}
    with pytest.raises(RunError, match="not empty"):
        train_classifier_run(run, run.stream.label, settings, tmp_path / "a")
    with pytest.raises(RunError, match="is a node classifier"):
        Run.load(tmp_path / "a")


def test_encoder_path_round_trips(run: Run, tmp_path: Path) -> None:
    """TOML has no halves of a character, which JSON writes for those beyond 16 bits, and no bare DEL."""
    folder = shutil.copytree(run.path, tmp_path / "a run 😀\x7f")
    assert run.stream.label is not None
    train_classifier_run(
        Run.load(folder, "cpu"), run.stream.label, ClassifierSettings(epochs=1), tmp_path / "classifier"
    )
    with pytest.raises(RunError, match=f"use its encoder: {re.escape(str(folder))}"):
        Run.load(tmp_path / "classifier")


def test_encoder_of_other_events_is_refused(run: Run) -> None:
    with pytest.raises(DataError, match="other events"):
        labels_for(run, labelled(300))
    assert np.array_equal(labels_for(run, labelled()), labelled().label)


def test_model_without_embeddings_is_refused(tmp_path: Path) -> None:
    bank = train(labelled(), "edgebank", out=tmp_path / "bank", device="cpu")
    with pytest.raises(SettingError, match="edgebank has no embeddings"):
        train_classifier(bank)


def test_classifier_settings_are_checked() -> None:
    assert classifier_settings({"hidden": "16,4", "lr": "0.01"}).hidden == (16, 4)
    with pytest.raises(SettingError, match=r"no setting 'balanc'. Did you mean 'balance'"):
        classifier_settings({"balanc": "none"})
    for wrong in ({"balance": "half"}, {"lr": 0}, {"epochs": 0}, {"hidden": (0,)}, {"dropout": 1}):
        with pytest.raises(SettingError):
            classifier_settings(wrong)
