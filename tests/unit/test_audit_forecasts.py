"""The audit of forecasts passes a trained run and finds leaks planted in each part of a forecast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.analysis.audit.checks import FAIL, NOTE, OK, Check
from cordgt.analysis.audit.forecasts import audit_forecasts
from cordgt.events.stream import EventStream
from cordgt.history.activity import ActivityBank, DecayedCounts
from cordgt.inference.run import Run
from cordgt.tasks.drift import Drift
from cordgt.tasks.forecast import Forecaster
from cordgt.tasks.forecast_loops import RateLoop
from cordgt.training.model_factory import build_model
from cordgt.training.settings import make_settings
from cordgt.workflows.train import train_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A `counts` run on events with ties, repeated pairs, self-loops and late nodes."""
    rng, n, nodes = np.random.default_rng(1), 600, 23
    src = (rng.random(n) * np.linspace(nodes / 2, nodes, n)).astype(np.int64)
    dst = (src + rng.choice([0, 1, 1, 2, 5, 9], n)) % nodes
    stream = EventStream.from_columns(src, dst, rng.choice([0, 0, 1, 3, 7], n).cumsum())
    folder: Path = tmp_path_factory.mktemp("audit") / "run"
    return train_run(stream, make_settings("counts", {"epochs": 1}), folder, device="cpu")


def audit(run: Run, queries: int) -> Check:
    return audit_forecasts(run.forecaster, *run.evaluation_task(), queries=queries)[0]


def test_trained_run_passes(run: Run) -> None:
    check = audit(run, queries=40)
    assert (check.check, check.result) == ("forecasts", OK)
    assert "forecasts identical" in check.detail and "40 of 40 queries change" in check.detail
    assert run.forecaster.drift.windows and run.forecaster.calibrators  # every part is there to be checked


@pytest.mark.parametrize(
    ("name", "changes"), [("edgebank", {}), ("counts", {"loss": "ranking"}), ("jodie", {"memory_dim": 4, "block": 20})]
)
def test_other_models_pass(run: Run, name: str, changes: dict[str, Any]) -> None:
    """Without parameters, with a softmax over references, with a memory. Some cuts are between tied events."""
    _, task = run.evaluation_task()
    torch.manual_seed(0)
    model = build_model(make_settings(name, changes), edge_dim=0, node_dim=0).eval()
    assert audit_forecasts(run.forecaster, model, task, queries=6)[0].result == OK


def test_a_run_without_activity_is_not_audited(run: Run) -> None:
    check = audit_forecasts(None, *run.evaluation_task())[0]
    assert check.result == NOTE and "not audited" in check.detail


# -------------------- planted leaks


def leak_in_bank(patch: pytest.MonkeyPatch) -> None:
    """The decayed counts hold one event more."""
    lookup = ActivityBank.lookup

    def leaky(self: ActivityBank, node: Any, cut: Any, t: Any) -> DecayedCounts:
        return lookup(self, node, cut + 1, t)

    patch.setattr(ActivityBank, "lookup", leaky)


def leak_in_loop(patch: pytest.MonkeyPatch) -> None:
    """The compiled rates see one event more."""
    log_expected = RateLoop.log_expected

    def leaky(self: RateLoop, node: Any, cut: Any, t: Any, horizon: Any) -> Any:
        return log_expected(self, node, cut + 1, t, horizon)

    patch.setattr(RateLoop, "log_expected", leaky)


def leak_in_drift(patch: pytest.MonkeyPatch) -> None:
    """The compared window ends after the last visible event."""
    window_ratio = Drift._window_ratio

    def leaky(self: Drift, model: Any, bank: Any, number: np.ndarray, window: float) -> np.ndarray:
        return window_ratio(self, model, bank, number + 1, window)

    patch.setattr(Drift, "_window_ratio", leaky)


def leak_in_partner(patch: pytest.MonkeyPatch) -> None:
    """The link model sees one event more."""
    log_partner = Forecaster.log_partner

    def leaky(self: Forecaster, model: Any, history: Any, queries: Any) -> np.ndarray:
        later = replace(queries, cut=queries.cut + 1, pair_cut=queries.pair_cut + 1)
        return log_partner(self, model, history, later)

    patch.setattr(Forecaster, "log_partner", leaky)


@pytest.mark.parametrize("plant", [leak_in_bank, leak_in_loop, leak_in_drift, leak_in_partner])
def test_planted_leak_is_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    check = audit(run, queries=6)
    assert check.result == FAIL and "forecasts change" in check.detail
