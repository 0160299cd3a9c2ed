"""Folders written by v0.1, with its names of settings, load today: a run, an interrupted run, a store, a cell."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cordgt
from cordgt.errors import RunWarning
from cordgt.experiments.cells import CellStore, flatten_settings, make_cell
from cordgt.store.store import open_store
from cordgt.training.checkpoint import TrainingState
from cordgt.training.model_factory import build_model
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import FORMAT, RENAMED_SETTINGS, make_settings, parse_toml
from cordgt.training.step import Ema, make_optimizer
from cordgt.workflows.upgrade import upgrade_run

V01 = Path(__file__).parents[1] / "fixtures" / "v0.1"
ANSWERS: dict[str, Any] = json.loads((V01 / "answers.json").read_text(encoding="utf-8"))


# Metrics computed on another CPU: its rounding reorders the near-equal scores of this small model.
CPU_TOLERANCE = 0.05


def assert_close(found: Any, expected: Any, atol: float = 1e-6) -> None:
    """Equal keys and numbers within ``atol`` in nested dictionaries; ``found`` may have more keys."""
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_close(found[key], value, atol)
        else:
            assert found[key] == pytest.approx(value, abs=atol), key


@pytest.fixture(scope="module")
def run() -> cordgt.Run:
    return cordgt.Run.load(V01 / "run", "cpu")


def test_settings_have_their_new_names(run: cordgt.Run) -> None:
    training, protocol, model = run.settings.training, run.settings.protocol, run.settings.model_settings
    assert (training.num_negatives, training.ema_decay, training.monitor) == (2, 0.9, "mrr")
    assert (protocol.train_ratio, protocol.eval_batch_size) == (0.6, 30)
    assert (model.td_unseen, model.sd_unseen, model.slot_features, model.pair_features) == (10.0, 2, True, True)
    assert run.metrics["protocol"] == vars(protocol)
    assert run.settings.unused == ()


def test_scores_and_recommendations(run: cordgt.Run) -> None:
    np.testing.assert_allclose(run.score(ANSWERS["src"], ANSWERS["dst"]), ANSWERS["score"], rtol=0, atol=1e-6)
    found = {each.node: each.score for each in run.recommend("p1", top=100)}
    scores = dict(ANSWERS["recommend"])  # by node: near-equal scores may change places on another CPU
    assert {node: found[node] for node in scores} == pytest.approx(scores, abs=1e-6)
    assert sorted(found.values())[-len(scores) :] == pytest.approx(sorted(scores.values()), abs=1e-6)


def test_metrics(run: cordgt.Run) -> None:
    assert_close(run.metrics, {split: ANSWERS[split] for split in ("validation", "test")})
    assert_close(run.evaluate(split="test")["test"], ANSWERS["evaluate"], CPU_TOLERANCE)


def test_opening_warns_of_the_old_format() -> None:
    with pytest.warns(RunWarning, match="has format 1 of an older version"):
        cordgt.Run.load(V01 / "run", "cpu")


def test_an_upgraded_copy_gives_the_same_answers(run: cordgt.Run, tmp_path: Path) -> None:
    copy = cordgt.Run.load(upgrade_run(V01 / "run", tmp_path / "new"), "cpu")
    assert copy.config.format == FORMAT and copy.settings == run.settings and copy.metrics == run.metrics
    assert copy.score(ANSWERS["src"], ANSWERS["dst"]).tolist() == run.score(ANSWERS["src"], ANSWERS["dst"]).tolist()
    assert copy.folder.read_history() == run.folder.read_history()


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    """In the middle of an epoch, with a memory (``carried.*``) and the optimizer's state."""
    shutil.copytree(V01 / "interrupted", tmp_path / "run")
    settings = RunFolder(tmp_path / "run").read_config().settings
    given = {**vars(settings.training), **vars(settings.model_settings)}
    stream = cordgt.read_events(V01 / "events.csv")
    options: dict[str, Any] = {"out": tmp_path / "run", "device": "cpu", "report": False}
    resumed = cordgt.train(stream, "tgn", resume=True, **options, **given)
    assert_close(resumed.metrics["test"], ANSWERS["resumed"]["test"], CPU_TOLERANCE)
    assert cordgt.Run.load(tmp_path / "run", "cpu").metrics == resumed.metrics


def test_a_moving_average_is_read_from_its_old_key() -> None:
    settings = make_settings("cordgt", {"fanout": (2,), "hidden": 4, "heads": 1, "layers": 1, "td_dim": 2, "sd_dim": 2})
    settings = replace(settings, training=replace(settings.training, ema_decay=0.5))

    def state() -> TrainingState:
        model = build_model(settings, edge_dim=0, node_dim=0)
        return TrainingState(
            model, make_optimizer(settings, model, torch.device("cpu")), Ema.from_settings(settings, model)
        )

    saved, loaded = state(), state()
    assert saved.ema is not None and loaded.ema is not None
    tensors = saved.state_dict()
    assert any(key.startswith("ema.") for key in tensors)
    loaded.load_state_dict(
        {key.replace("ema.", "average.", 1) if key.startswith("ema.") else key: v for key, v in tensors.items()}
    )
    assert all(torch.equal(value, loaded.ema.weights[name]) for name, value in saved.ema.weights.items())


def test_a_store_reads_and_grows(tmp_path: Path) -> None:
    expected = ANSWERS["store"]
    stream = open_store(V01 / "store").stream()
    assert (stream.n_events, stream.n_nodes) == (expected["events"], expected["nodes"])
    src, dst = ([str(stream.ids.names[i]) for i in np.asarray(end)] for end in (stream.src, stream.dst))
    assert (src[:12], dst[-12:]) == (expected["src"], expected["dst"])
    assert np.asarray(stream.t)[::40].tolist() == expected["t"]
    assert stream.edge_x is not None
    assert np.asarray(stream.edge_x)[::40, 0].tolist() == expected["amount"]
    shutil.copytree(V01 / "store", tmp_path / "store")
    (tmp_path / "later.csv").write_text("user,item,time,amount\np0,x0,9000,0.5\np0,new,9001,0.25\n", encoding="utf-8")
    cordgt.append_to(tmp_path / "store", tmp_path / "later.csv")
    grown = open_store(tmp_path / "store").stream()
    assert (grown.n_events, grown.n_nodes) == (stream.n_events + 2, stream.n_nodes + 1)
    assert np.asarray(grown.t)[-2:].tolist() == [9000, 9001]


# -------------------- names of settings


def test_new_folders_have_the_new_format(tmp_path: Path, run: cordgt.Run) -> None:
    folder = RunFolder(tmp_path)
    folder.create(run.settings, run.stream)
    text = (tmp_path / "config.toml").read_text(encoding="utf-8")
    assert text.startswith(f"format = {FORMAT}\n") and "num_negatives = 2\n" in text
    assert folder.read_config().settings == run.settings


@pytest.mark.parametrize(("old", "new"), RENAMED_SETTINGS.items())
def test_old_setting_name_suggests_the_new_one(old: str, new: str) -> None:
    with pytest.raises(cordgt.SettingError, match=f"'{old}' is now called '{new}'"):
        make_settings("cordgt", {old: "1"})
    assert parse_toml(f"[training]\n{old} = 1\n", "x.toml").keys == {old: 1}
    assert parse_toml(f"format = 1\n[training]\n{old} = 1\n", "x.toml").keys == {new: 1}


def test_evaluate_suggests_the_new_setting_name(run: cordgt.Run) -> None:
    with pytest.raises(cordgt.SettingError, match="'eval_batch_size'"):
        run.evaluate(eval_batch=10)


def test_cell_is_found_by_its_old_name(tmp_path: Path) -> None:
    cell = make_cell("uci", "cordgt_plus", 0, {"num_negatives": 20, "slot_features": False, "lr": 0.01})
    assert cell.variant == "lr-0.01_num_negatives-20_slot_features-false"
    old_names = {new: old for old, new in RENAMED_SETTINGS.items()}
    written = dict.fromkeys(("variant", "stream", "figures", "seconds", "device"), "")
    written |= {"format": 1, "kind": "link", "data": "uci", "model": "cordgt_plus", "seed": 0}
    written |= {"settings": {old_names.get(key, key): value for key, value in flatten_settings(cell.settings).items()}}
    path = tmp_path / "cells" / "link" / "uci" / "cordgt_plus" / "drawn-20_lr-0.01_slots-false-seed0.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(written), encoding="utf-8")
    found = CellStore(tmp_path).read(cell)
    assert found is not None and found["settings"] == flatten_settings(cell.settings)
    path.write_text(json.dumps(written | {"settings": written["settings"] | {"drawn": 3}}), encoding="utf-8")
    assert CellStore(tmp_path).read(cell) is None
