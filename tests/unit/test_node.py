"""Node classification: what a classifier sees, learns, refuses, and how rare labels are dealt with."""

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
from cordgt.tasks.node import ClassifierSettings, NodeTask, classifier_metrics, embeddings, fit
from cordgt.workflows.node_classification import classifier_settings, classify, classify_in, labels_of

SMALL: dict[str, Any] = {
    "fanout": (3, 1), "hidden": 8, "heads": 1, "layers": 1, "td_dim": 8, "sd_dim": 8, "epochs": 1, "device": "cpu",
}  # fmt: skip


def labelled(n: int = 400, *, label: Any = None) -> EventStream:
    """Eleven sources and five destinations; who met the first destination just before has a positive label."""
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


def test_every_part_has_its_own_events(run: Run) -> None:
    _, link = run.evaluation_task()
    task = NodeTask.prepare(link, link.stream.label)
    parts = [task.positions(part) for part in ("train", "validation", "test")]
    assert np.array_equal(np.concatenate(parts), np.arange(400))
    assert len(parts[0]) > len(link.split.train)  # those of masked nodes too


def test_an_embedding_does_not_see_its_own_event_nor_later_ones(run: Run) -> None:
    model, link = run.evaluation_task()
    task = NodeTask.prepare(link, link.stream.label)
    before = embeddings(model, task, "test")
    at = int(task.positions("test")[10])
    start = int(link.whole.index.tie_start[at])
    stream = link.stream
    dst = stream.dst.copy()
    dst[start:] = dst[start:][::-1]  # from its own moment on, everything is otherwise
    other = LinkTask.prepare(replace(stream, dst=dst), link.protocol, seed=0, device=torch.device("cpu"))
    after = embeddings(model, NodeTask.prepare(other, stream.label), "test")
    tied = np.flatnonzero(link.whole.index.tie_start.numpy()[task.positions("test")] <= start)
    assert torch.equal(before[tied], after[tied])
    assert not torch.equal(before, after)


def test_the_batch_size_changes_nothing(run: Run) -> None:
    model, link = run.evaluation_task()
    task = NodeTask.prepare(link, link.stream.label)
    one, other = (embeddings(model, task, "test", at_once=k) for k in (7, 1000))
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "has no labels"),
        (np.zeros(400), "has no labels to tell apart: every one is 0"),
        (np.arange(400) % 3, "3 different values"),
        (np.full(400, np.nan), "0 different values"),
        (np.r_[np.zeros(399), 1], "training has 0 events of label 1"),
        (np.where(np.arange(400) < 330, np.arange(400) % 2, np.nan), "no event of the test period has a label"),
        (np.where(abs(np.arange(400) - 310) > 40, np.arange(400) % 2, np.nan), "no event of the validation period"),
    ],
)
def test_labels_that_cannot_be_learnt(run: Run, label: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        NodeTask.prepare(run.evaluation_task()[1], label)


def test_missing_labels_are_not_asked(run: Run) -> None:
    _, link = run.evaluation_task()
    label = np.where(np.arange(400) % 2, labelled().label, np.nan)
    task = NodeTask.prepare(link, label)
    assert (task.positions("test") % 2 == 1).all()


def test_rare_positives_are_learnt() -> None:
    """Four in a thousand, told by their values: with weights that balance the two kinds."""
    draw = np.random.default_rng(0)
    truth = {part: np.arange(1000) % 330 == 7 for part in ("train", "validation", "test")}
    x = {k: torch.from_numpy(draw.normal(size=(1000, 5)) + 4.0 * v[:, None]).float() for k, v in truth.items()}
    fitted = fit(x, truth, ClassifierSettings(batch_size=100, epochs=30), seed=0)
    found = classifier_metrics(fitted.model, x["test"], truth["test"])
    assert found["auc"] > 0.97
    assert (found["positive"], found["events"]) == (4, 1000)
    again = fit(x, truth, ClassifierSettings(batch_size=100, epochs=30), seed=0)
    assert again.history == fitted.history
    plain = fit(x, truth, ClassifierSettings(balance="none", epochs=1), seed=0)
    assert plain.history != fitted.history[:1]


def test_a_value_that_never_varies_is_no_trouble() -> None:
    truth = {part: np.arange(60) % 5 == 0 for part in ("train", "validation", "test")}
    x = {k: torch.zeros(60, 3) for k in truth}
    fitted = fit(x, truth, ClassifierSettings(epochs=2), seed=0)
    assert classifier_metrics(fitted.model, x["test"], truth["test"])["auc"] == 0.5


def test_labels_of_one_kind_have_no_figure() -> None:
    truth = {"train": np.arange(60) % 5 == 0, "validation": np.zeros(20, dtype=bool)}
    x = {k: torch.randn(len(v), 3) for k, v in truth.items()}
    fitted = fit(x, truth, ClassifierSettings(epochs=9, patience=4), seed=0)
    assert len(fitted.history) == 4  # nothing to choose by
    assert fitted.best_epoch == 4
    assert classifier_metrics(fitted.model, x["validation"], truth["validation"])["auc"] is None


def test_the_encoder_stays_as_it_is_and_the_classifier_comes_again(run: Run, tmp_path: Path) -> None:
    weights = (run.path / "model.safetensors").read_bytes()
    settings = ClassifierSettings(epochs=3)
    assert run.stream.label is not None
    first = classify_in(run, run.stream.label, settings, tmp_path / "a")
    second = classify_in(run, run.stream.label, settings, tmp_path / "b")
    assert first["test"] == second["test"]
    assert (run.path / "model.safetensors").read_bytes() == weights
    assert first["train"]["events"] + first["validation"]["events"] + first["test"]["events"] == 400
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"config.toml", "classifier.safetensors", "metrics.json"}
    with pytest.raises(RunError, match="not empty"):
        classify_in(run, run.stream.label, settings, tmp_path / "a")
    with pytest.raises(RunError, match="is a node classifier"):
        Run.load(tmp_path / "a")


def test_a_folder_with_any_name_is_known_again(run: Run, tmp_path: Path) -> None:
    """TOML has no halves of a character, which JSON writes for those beyond 16 bits, and no bare DEL."""
    folder = shutil.copytree(run.path, tmp_path / "a run 😀\x7f")
    assert run.stream.label is not None
    classify_in(Run.load(folder, "cpu"), run.stream.label, ClassifierSettings(epochs=1), tmp_path / "classifier")
    with pytest.raises(RunError, match=f"use its encoder: {re.escape(str(folder))}"):
        Run.load(tmp_path / "classifier")


def test_other_events_are_refused(run: Run) -> None:
    with pytest.raises(DataError, match="other events"):
        labels_of(run, labelled(300))
    assert np.array_equal(labels_of(run, labelled()), labelled().label)


def test_a_model_without_embeddings_is_refused(tmp_path: Path) -> None:
    bank = train(labelled(), "edgebank", out=tmp_path / "bank", device="cpu")
    with pytest.raises(SettingError, match="edgebank has no embeddings"):
        classify(bank)


def test_settings_of_a_classifier() -> None:
    assert classifier_settings({"hidden": "16,4", "lr": "0.01"}).hidden == (16, 4)
    with pytest.raises(SettingError, match=r"no setting 'balanc'. Did you mean 'balance'"):
        classifier_settings({"balanc": "none"})
    for wrong in ({"balance": "half"}, {"lr": 0}, {"epochs": 0}, {"hidden": (0,)}, {"dropout": 1}):
        with pytest.raises(SettingError):
            classifier_settings(wrong)
