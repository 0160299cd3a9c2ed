"""Forecaster: probabilities that a node acts or a pair meets within a time, and the time of the next event."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cordgt
from cordgt import models
from cordgt.errors import DataError, RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.models.base import LinkModel
from cordgt.tasks.baselines import baseline_metrics
from cordgt.tasks.calibration import Calibrator, probability, split_questions
from cordgt.tasks.forecast import ACT_ROLES, Forecaster
from cordgt.tasks.forecast_metrics import forecast_metrics
from cordgt.tasks.link import LinkTask
from cordgt.tasks.perfect_ece import perfect_ece
from cordgt.tasks.probability import log_loss, probability_metrics, reliability_bins
from cordgt.tasks.protocol import Protocol
from cordgt.tasks.questions import Questions
from cordgt.tasks.time_grid import TimeGrid
from cordgt.training.run_folder import RunFolder
from cordgt.training.side_process import SideProcess
from cordgt.workflows.upgrade import upgrade_run


def make_model(name: str = "counts", **settings: object) -> LinkModel:
    torch.manual_seed(0)
    spec = models.find_model(name)
    return spec.network(spec.settings(**settings), edge_dim=0, node_dim=0).eval()


def make_task(src: np.ndarray, dst: np.ndarray, t: np.ndarray) -> LinkTask:
    stream = EventStream.from_columns(src, dst, t)
    return LinkTask.prepare(stream, Protocol(mask_nodes=0.0), seed=0, device=torch.device("cpu"))


def busy_and_quiet(n: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Twenty sources whose rates differ by a factor of 10, constant in time, with ten destinations."""
    random = np.random.default_rng(seed)
    rates = np.geomspace(1, 10, 20)
    src = random.choice(20, n, p=rates / rates.sum())
    return src, 20 + random.integers(0, 10, n), np.sort(random.uniform(0, 1000, n))


@pytest.fixture(scope="module")
def task() -> LinkTask:
    return make_task(*busy_and_quiet())


@pytest.fixture(scope="module")
def forecaster(task: LinkTask) -> Forecaster:
    return Forecaster.fit(task, make_model())


def at_the_end(task: LinkTask, n: int = 20) -> tuple[np.ndarray, int, float]:
    return np.arange(n), task.stream.n_events, float(task.stream.elapsed[-1])


# -------------------- answers


def test_probabilities_are_calibrated_on_constant_rates(task: LinkTask, forecaster: Forecaster) -> None:
    metrics = forecast_metrics(forecaster, task, make_model())["calibration"]["horizons"]
    assert [row["share"] for row in metrics] == [0.001, 0.01, 0.1]
    # 20 sources and 150 windows of this horizon; longer horizons have too few windows to judge
    assert metrics[0]["source"]["ece"] < 0.04
    assert metrics[0]["source"]["log_loss"] < metrics[0]["source"]["baselines"]["constant rate"]["log_loss"]


def test_longer_horizons_are_never_less_likely(task: LinkTask, forecaster: Forecaster) -> None:
    node, cut, t = at_the_end(task)
    horizons = np.concatenate([[0.0], np.geomspace(1e-3, 1e5, 60)])
    index = task.host_index
    lp = np.full((len(node), 1), -2.0)
    for values in (
        [forecaster.act_probability(index, node, cut, t, h) for h in horizons],
        [forecaster.act_probability(index, node, cut, t, h, "destination") for h in horizons],
        [forecaster.pair_probability(index, lp, node, cut, t, h)[:, 0] for h in horizons],
    ):
        p = np.stack(values)
        assert (p[0] == 0).all()
        assert (np.diff(p, axis=0) >= -1e-12).all()
        assert (p <= 1).all()
        assert p[-1].max() > 0.5  # nodes that were never seen in the role stay unlikely


def test_next_time_inverts_the_probability(task: LinkTask, forecaster: Forecaster) -> None:
    node, cut, t = at_the_end(task)
    wanted = np.array([0.1, 0.5, 0.9])
    times = forecaster.next_time(task.host_index, node, cut, t, wanted)
    assert times.shape == (20, 3)
    for k, p in enumerate(wanted):
        np.testing.assert_allclose(forecaster.act_probability(task.host_index, node, cut, t, times[:, k]), p, rtol=1e-6)


def test_a_pair_meets_at_most_as_often_as_its_source_acts(task: LinkTask, forecaster: Forecaster) -> None:
    node, cut, t = at_the_end(task)
    pair = forecaster.pair_probability(task.host_index, np.full((20, 3), 5.0), node, cut, t, 1.0)
    acts = forecaster.act_probability(task.host_index, node, cut, t, 1.0)
    assert (pair <= acts[:, None] + 1e-12).all()


def test_candidates_do_not_influence_each_other(task: LinkTask, forecaster: Forecaster) -> None:
    node, cut, t = at_the_end(task)
    lp = np.random.default_rng(0).normal(-3, 1, (20, 7))
    together = forecaster.pair_probability(task.host_index, lp, node, cut, t, 3.0)
    alone = [forecaster.pair_probability(task.host_index, lp[:, k : k + 1], node, cut, t, 3.0) for k in range(7)]
    np.testing.assert_array_equal(together, np.concatenate(alone, axis=1))


def test_softmax_of_a_ranking_model_sums_to_one(task: LinkTask, forecaster: Forecaster) -> None:
    model = make_model("counts", loss="ranking")
    _, queries = task.evaluation_queries("test", "transductive")
    some = queries.take(slice(0, 5))
    pool = torch.tensor(forecaster.references)
    all_candidates = replace(some, dst=pool.expand(5, -1))
    p = np.exp(forecaster.log_partner(model, task.full_history, all_candidates))
    assert len(pool) == forecaster.n_destinations == 10
    assert (p.sum(axis=1) < 1.0).all()  # each candidate also competes with itself
    assert (p.sum(axis=1) > 0.8).all()


@pytest.mark.parametrize("horizon", [-1.0, np.nan, np.inf])
def test_a_horizon_is_a_number_from_zero_up(task: LinkTask, forecaster: Forecaster, horizon: float) -> None:
    node, cut, t = at_the_end(task)
    with pytest.raises(SettingError, match="horizon"):
        forecaster.act_probability(task.host_index, node, cut, t, horizon)


# -------------------- what a query may see


def test_later_events_change_no_bit(task: LinkTask, forecaster: Forecaster) -> None:
    src, dst, t = busy_and_quiet()
    cut = 2400
    changed = dst.copy(), src.copy(), t.copy()
    for own, other in zip(changed, (src, dst, t), strict=True):
        own[:cut] = other[:cut]
    changed[2][cut:] = t[cut] + np.arange(len(t) - cut) * 0.01
    # `EventStream` numbers nodes by first appearance: all appear before the cut
    other = make_task(*(changed[0], changed[1], changed[2]))
    node = np.arange(20)
    when = float(task.stream.elapsed[cut - 1])
    before = len(np.unique(src[:cut]))
    assert before == 20
    for role in ACT_ROLES:
        answers = [forecaster.act_probability(x.host_index, node, cut, when + 0.001, 5.0, role) for x in (task, other)]
        np.testing.assert_array_equal(*answers)


def test_fit_does_not_see_the_test_period() -> None:
    src, dst, t = busy_and_quiet()
    first = make_task(src, dst, t)
    start = int(first.split.test[0])
    dst = dst.copy()
    dst[start:] = dst[start:][::-1]
    src = src.copy()
    src[start:] = src[start]
    second = make_task(src, dst, t)
    fits = [Forecaster.fit(task, make_model()).to_dict() for task in (first, second)]
    assert fits[0] == fits[1]


# -------------------- unusual streams


def fit_and_judge(task: LinkTask) -> tuple[Forecaster, dict[str, object]]:
    model = make_model()
    forecaster = Forecaster.fit(task, model)
    metrics = forecast_metrics(forecaster, task, model)
    json.dumps(metrics, allow_nan=False)
    assert Forecaster.from_dict(json.loads(json.dumps(forecaster.to_dict()))) == forecaster
    return forecaster, metrics


def test_sources_with_one_event_each() -> None:
    n = 300
    task = make_task(np.arange(n), n + np.arange(n) % 7, np.arange(n) * 1.0)
    forecaster, _ = fit_and_judge(task)
    p = forecaster.act_probability(task.host_index, [0, n - 8, 5000], n, float(n), 1.0)
    assert ((p > 0) & (p < 0.5)).all()


def test_one_time_stamp_cannot_be_split() -> None:
    with pytest.raises(DataError, match="leave none"):
        make_task(np.arange(90) % 9, 9 + np.arange(90) % 5, np.zeros(90))


def test_one_time_in_training() -> None:
    """Without elapsed time there is no rate to speak of; the answer is still a probability."""
    src, dst = np.arange(100) % 9, 9 + np.arange(100) % 5
    t = np.concatenate([np.zeros(70), np.full(15, 1.0), np.full(15, 2.0)])
    task = make_task(src, dst, t)
    forecaster, _ = fit_and_judge(task)
    p = forecaster.act_probability(task.host_index, np.arange(9), 100, 2.0, 5.0)
    assert ((p >= 0) & (p <= 1)).all()


def test_ties_are_one_occasion() -> None:
    src, dst, t = busy_and_quiet(1000)
    once = make_task(src, dst, t)
    thrice = make_task(*(np.repeat(x, 3) for x in (src, dst, t)))
    p = [
        Forecaster.fit(task, make_model()).rates["source"].base_rate for task in (once, thrice)
    ]  # three events at one time are one occasion
    assert p[1] == pytest.approx(p[0], rel=0.2)


def test_horizon_longer_than_the_stream(task: LinkTask, forecaster: Forecaster) -> None:
    node, cut, t = at_the_end(task)
    assert forecaster.longest_horizon < 1000
    p = forecaster.act_probability(task.host_index, node, cut, t, 1e9)
    assert ((p > 0.9) & (p <= 1)).all()


def test_a_yearly_stream_counts_horizons_in_years() -> None:
    """Half of the sources act each year, until one of them leaves. Between two years nothing happens."""
    years, n = 16, 60
    src = np.tile(np.arange(n), years)
    year = np.repeat(np.arange(years), n)
    last_year = np.where(np.arange(n) % 3 == 0, 3 + np.arange(n) // 3, years)
    keep = (src < 30) & (year < last_year[src]) | (np.random.default_rng(0).random(len(src)) < 0.1) & (src >= 30)
    t = year[keep] * 365.0
    src = src[keep]
    task = make_task(src, n + src % 7, t)
    forecaster, metrics = fit_and_judge(task)
    assert forecaster.grid.step == 365
    now, cut = float(task.stream.elapsed[-1]), len(src)
    ids = np.unique(task.stream.src)

    def acts(after: float, horizon: float) -> np.ndarray:
        return forecaster.act_probability(task.host_index, ids, cut, now + after, horizon)

    assert acts(100, 200).max() < 0.02
    assert acts(100, 265).max() > 0.6
    assert acts(0, 364).max() < 0.02
    assert (acts(300, 100) > 0.5).sum() >= 15
    names = task.stream.ids.decode(ids).to_pylist()
    left = [k for k, name in enumerate(names) if int(name) < 30 and last_year[int(name)] < years - 1]
    assert len(left) >= 8 and acts(0, 365)[left].max() < 0.3  # they acted every year, and then stopped
    waits = forecaster.next_time(task.host_index, ids, cut, now, [0.5])[:, 0]
    assert set(waits[acts(0, 365) > 0.6].tolist()) == {365.0}
    next_event = metrics["next_event"]
    assert next_event["nll"] < min(k["nll"] for k in next_event["baselines"].values())
    assert next_event["share_without_next"] < 0.9  # the last year before the test period counts too


# -------------------- parts


def test_sources_that_act_at_every_step_will_act_at_the_next() -> None:
    """Not one question has the answer no. A rate of one event a step alone would give 63 %."""
    src = np.tile(np.repeat(np.arange(30), 5), 12)
    random = np.random.default_rng(0)
    task = make_task(src, 30 + random.integers(0, 20, len(src)), np.repeat(np.arange(12) * 10.0, 150))
    forecaster, metrics = fit_and_judge(task)
    assert forecaster.grid.step == 10
    p = forecaster.act_probability(task.host_index, np.unique(task.stream.src), len(src), 110.0, 10.0)
    assert p.min() > 0.95
    source = metrics["calibration"]["horizons"][-1]["source"]
    assert source["ece"] < 0.05 and source["log_loss"] < source["baselines"]["constant rate"]["log_loss"]


def test_few_events_are_not_calibrated() -> None:
    """A thousand questions about six events tell nothing more than the events."""
    task = make_task(np.array([0, 1, 0, 0, 2, 0]), np.array([1, 2, 2, 1, 1, 3]), np.arange(6) * 1.0)
    forecaster, _ = fit_and_judge(task)
    assert all(c is None for fits in forecaster.calibrators.values() for c in fits)
    p = forecaster.act_probability(task.host_index, np.unique(task.stream.src), 6, 5.0, 1.0)
    assert ((p > 0.02) & (p < 0.98)).all()


def test_grid_tolerates_leap_years_and_rejects_other_gaps() -> None:
    assert TimeGrid.find(np.array([0, 365, 731, 1096, 1461.0])).step == 365
    assert TimeGrid.find(np.array([0, 365, 731, 1500.0])).step == 0
    assert TimeGrid.find(np.arange(100.0)).step == 0
    assert TimeGrid.find(np.zeros(5)).step == 0
    grid = TimeGrid(365.0, 0.003)
    assert grid.length(np.array(364.5), np.array(2.0)) == pytest.approx(365 + 0.002)  # the step is not yet over
    assert grid.length(np.array(100.0), np.array(0.0)) == 0
    waits = grid.next_step(np.array([0.0, 0.0, 100.0]), np.array([364.0, 300.0, 266.0]))
    assert waits.tolist() == [365.0, 300.0, 265.0]
    assert TimeGrid().next_step(np.array(0.0), np.array(364.0)) == 364


def test_a_daily_rhythm_is_found_in_dates_and_changes_the_answers() -> None:
    """Sources act between 8 and 20 h only. Without a unit there is no day."""
    random = np.random.default_rng(0)
    n = 1500
    hours = np.sort(random.integers(0, 60, n)) * 24 + random.uniform(8, 20, n)
    order = np.argsort(hours)
    src, seconds = random.integers(0, 20, n)[order], (hours[order] * 3600).astype(np.int64)
    start = 1_704_067_200  # 2024-01-01
    task = make_task(src, 20 + src % 5, start + seconds)
    forecaster = Forecaster.fit(task, make_model())
    rhythm = forecaster.rates["source"].rhythm
    assert rhythm is not None and rhythm.period % 86_400 == 0
    first = int(task.stream.t[0])

    def acts(hour: float) -> np.ndarray:
        t = start + 50 * 86_400 + hour * 3600
        return forecaster.act_probability(task.host_index, np.arange(20), task.stream.cut_at(t), t - first, 3600.0)

    assert acts(22).mean() < 0.5 * acts(12).mean()
    plain = Forecaster.fit(make_task(src, 20 + src % 5, seconds), make_model())
    assert plain.rates["source"].rhythm is None


def test_newcomers_share_a_prior_that_calibration_does_not_change(task: LinkTask, forecaster: Forecaster) -> None:
    """A node that is only a destination, and one without events. Questions of the calibration are about others."""
    _, cut, t = at_the_end(task)
    other = replace(forecaster, calibrators={"source": (Calibrator(5.0, (0.5, 1.0)),) * len(forecaster.horizons)})
    known, only_destination = int(task.stream.src[0]), int(task.stream.dst[0])
    nodes = [known, only_destination, -1]
    p, q = (each.act_probability(task.host_index, nodes, cut, t, 3.0) for each in (forecaster, other))
    assert p[0] != q[0]
    assert p[1:].tolist() == q[1:].tolist() and (p[1:] > 0).all()


def with_recency(x: np.ndarray, recency: np.ndarray | float = 0.0) -> np.ndarray:
    return np.stack(np.broadcast_arrays(x, recency), axis=-1)


def fit_calibrator(x: np.ndarray, outcome: np.ndarray, recency: np.ndarray | float = 0.0) -> Calibrator | None:
    """Fit to questions in this order, with 1,000 horizons in their period."""
    return Calibrator.fit(with_recency(x, recency), outcome, np.arange(len(x)) / len(x), 0.001)


def test_calibrator_repairs_a_wrong_scale() -> None:
    random = np.random.default_rng(0)
    x = random.normal(-2, 1, 8000)
    outcome = random.random(8000) < probability(0.5 + 0.7 * x)
    fitted = fit_calibrator(x, outcome)
    assert fitted is not None
    assert log_loss(fitted(with_recency(x)), outcome) < log_loss(probability(x), outcome)
    assert np.abs(fitted(with_recency(x)) - probability(0.5 + 0.7 * x)).mean() < 0.02
    assert Calibrator.from_dict(json.loads(json.dumps(fitted.to_dict()))) == fitted


def test_calibrator_keeps_what_is_right_and_what_it_cannot_judge() -> None:
    random = np.random.default_rng(1)
    x = random.normal(-2, 1, 500)
    assert fit_calibrator(x, np.zeros(500, dtype=bool)) is None
    outcome = random.random(500) < probability(x)
    fitted = fit_calibrator(x, outcome)
    assert fitted is not None and np.abs(fitted(with_recency(x)) - probability(x)).mean() < 0.05


def test_calibrator_learns_that_silent_nodes_have_left() -> None:
    random = np.random.default_rng(3)
    x, is_gone = random.normal(0, 0.5, 4000), random.random(4000) < 0.5
    outcome = (random.random(4000) < probability(x)) & ~is_gone
    recency = np.where(is_gone, -2.0, 0.0)
    fitted = fit_calibrator(x, outcome, recency)
    assert fitted is not None and fitted(with_recency(x, recency))[is_gone].max() < 0.05
    opposite = fit_calibrator(x, outcome, -recency)
    assert opposite is not None and opposite.slopes[1] == 0  # a long silence never makes an event likelier


def test_the_choice_of_a_calibrator_is_nested_in_time() -> None:
    t = np.linspace(0, 10, 101)
    early, late = split_questions(t, 2.0)
    assert t[early].max() + 2.0 <= t[late].min()  # the earlier outcomes are known when the later questions are asked
    early, late = split_questions(t, 9.0)  # too short a time for that
    assert (early ^ late).all()
    assert not len(split_questions(np.empty(0), 1.0)[0])


def test_isotonic_never_falls_and_stays_a_probability() -> None:
    random = np.random.default_rng(2)
    x = np.sort(random.normal(-1, 2, 4000))
    outcome = random.random(4000) < np.where(x < -1, 0.1, 0.9)  # a step, which no line fits
    order = random.permutation(4000)
    fitted = fit_calibrator(x[order], outcome[order])
    assert fitted is not None and fitted.kind == "isotonic"
    p = fitted(with_recency(np.linspace(-50, 50, 1000)))
    assert (np.diff(p) >= 0).all()
    assert ((p >= 0) & (p <= 1)).all()


def test_a_perfect_forecaster_errs_more_where_questions_share_outcomes() -> None:
    random = np.random.default_rng(0)
    n, p = 4000, random.random(4000) * 0.5
    t = np.sort(random.random(n))
    apart = Questions(np.arange(n), t, np.zeros(n, dtype=np.int64))
    together = replace(apart, node=np.arange(n) % 40)
    errors = [perfect_ece(questions, p, 1.0) for questions in (apart, together)]
    expected = 0.8 * np.sqrt(0.25 * 0.75 / 400)  # the mean distance of a share of 400 from its probability
    assert errors[0] == pytest.approx(expected, rel=0.3) and errors[1] > 2 * errors[0]
    assert perfect_ece(apart.take(np.zeros(0, dtype=np.int64)), np.empty(0), 1.0) is None
    assert perfect_ece(apart, p, 1.0, step=0.5) is not None


def test_probability_metrics_by_hand() -> None:
    p, outcome = np.array([0.2, 0.2, 0.8, 0.8]), np.array([False, True, True, True])
    metrics = probability_metrics(p, outcome)
    assert metrics["brier"] == pytest.approx((0.04 + 0.64 + 0.04 + 0.04) / 4)
    assert metrics["ece"] == pytest.approx((0.3 + 0.2) / 2)
    assert [(k["n"], k["observed"]) for k in reliability_bins(p, outcome)] == [(2, 0.5), (2, 1.0)]
    assert probability_metrics(np.empty(0), np.empty(0, dtype=bool))["ece"] is None


# -------------------- the run folder


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    cordgt.train(EventStream.from_columns(*busy_and_quiet(800)), "counts", out=path, epochs=1, report=False)
    return path


def test_training_saves_the_activity_and_its_metrics(run_path: Path) -> None:
    run = cordgt.Run.load(run_path)
    rows = run.metrics["calibration"]["horizons"]
    assert len(rows) == 3
    assert {"ece", "brier", "log_loss", "bins", "baselines"} <= rows[0]["source"].keys() & rows[0]["pair"].keys()
    assert {"nll", "mae", "baselines", "log_likelihood"} <= run.metrics["next_event"].keys()
    index = run.predictor.history.index
    p = run.forecaster.act_probability(index, [0, 1], run.stream.n_events, float(run.stream.elapsed[-1]), 10.0)
    assert ((p > 0) & (p < 1)).all()


def test_a_run_that_was_just_trained_has_its_forecaster(tmp_path: Path) -> None:
    stream = EventStream.from_columns(*busy_and_quiet(400))
    run = cordgt.train(stream, "counts", out=tmp_path / "run", epochs=1, report=False)
    assert run.forecaster == cordgt.Run.load(tmp_path / "run").forecaster


def test_changed_activity_is_refused(run_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in run_path.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    text = (copy / "activity.json").read_text()
    (copy / "activity.json").write_text(text.replace('"n_destinations": ', '"n_destinations": 1'))
    with pytest.raises(RunError, match="checksum"):
        _ = cordgt.Run.load(copy).forecaster
    (copy / "activity.json").unlink()
    with pytest.raises(RunError, match="missing"):
        _ = cordgt.Run.load(copy).forecaster


def test_without_activity_and_after_an_upgrade(tmp_path: Path) -> None:
    stream = EventStream.from_columns(*busy_and_quiet(400))
    cordgt.train(stream, "counts", out=tmp_path / "old", epochs=1, report=False, activity=False)
    run = cordgt.Run.load(tmp_path / "old")
    assert not RunFolder(run.path).has("activity.json")
    assert "calibration" not in run.metrics
    with pytest.raises(RunError, match="cordgt upgrade"):
        _ = run.forecaster
    upgraded = cordgt.Run.load(upgrade_run(tmp_path / "old", tmp_path / "new"))
    assert upgraded.forecaster.rates["source"].base_rate > 0
    with pytest.raises(RunError, match="already"):
        upgrade_run(tmp_path / "new", tmp_path / "newer")


@pytest.mark.parametrize("damage", [{}, {"rates": 3}, {"horizons": ["x"]}, {"calibrators": {"source": []}}])
def test_damaged_activity_is_an_error_of_the_run(forecaster: Forecaster, damage: dict[str, object]) -> None:
    content = {**forecaster.to_dict(), **damage} if damage else {}
    with pytest.raises(RunError, match="damaged"):
        Forecaster.from_dict(content)


def test_a_side_process_gives_the_same_bits(task: LinkTask) -> None:
    """As beside a training on a GPU: what needs no model."""
    processes = [SideProcess(Forecaster.fit_nodes, task), SideProcess(baseline_metrics, task)]
    nodes, baselines = (process.result() for process in processes)
    assert nodes.to_dict() == Forecaster.fit_nodes(task).to_dict() and baselines == baseline_metrics(task)
    assert all(process.output for process in processes), "the processes have failed"


def test_what_a_side_process_prints_is_not_its_result(task: LinkTask) -> None:
    process = SideProcess(print, task)
    assert process.result() is None and process.output
    process.output, process.function = process.output[:-2], lambda _: 7
    assert process.result() == 7


def test_a_side_process_imports_nothing_from_the_working_folder(
    task: LinkTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "statistics.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    process = SideProcess(baseline_metrics, task)
    assert process.result() == baseline_metrics(task) and process.output


def test_a_side_process_that_fails(task: LinkTask) -> None:
    process = SideProcess(len, task)  # type: ignore[arg-type]
    process.close()
    process.function = lambda _: 7
    assert process.result() == 7


def test_a_request_that_cannot_be_sent(task: LinkTask) -> None:
    process = SideProcess(lambda task: task.stream.n_events, task)
    assert process.result() == task.stream.n_events
