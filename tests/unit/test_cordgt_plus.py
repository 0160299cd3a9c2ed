"""CorDGT+: each part can be switched off, a run has a report, and every weight gets a gradient."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.callbacks import Callback
from cordgt.errors import SettingError
from cordgt.inference.run import Run
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.models.base import comparing_sources
from cordgt.models.cordgt_plus import CordgtPlus
from cordgt.runtime.distributed import ProcessGroup
from cordgt.tasks.blend_weight import MIN_TIMES, choose_by_ap, choose_by_gain, time_blocks
from cordgt.tasks.link import LinkTask
from cordgt.tasks.scoring import score_queries
from cordgt.training.blend import choose_counts_weight, counts_weights
from cordgt.training.model_factory import build_model_for
from cordgt.training.settings import from_toml, make_settings
from cordgt.workflows.train import train

CPU = torch.device("cpu")


class LonelyGroup(ProcessGroup):
    """A process of a group without the others."""

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


TINY: dict[str, Any] = {"hidden": 8, "heads": 2, "fanout": (4, 1), "epochs": 1, "batch_size": 50}


@pytest.mark.parametrize("head", ["mlp", "linear"])
def test_run_and_report(tmp_path: Path, head: str) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    run = train(stream, model="cordgt_plus", out=tmp_path / "run", device="cpu", head=head, **TINY)
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    source = stream.ids.decode(stream.src[-1:])[0].as_py()
    assert len(run.recommend(source, top=3)) == 3


def test_the_small_model_is_a_cordgt_plus_with_other_defaults(tmp_path: Path) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    plus, small = (build_model_for(make_settings(name, {}), stream) for name in ("cordgt_plus", "cordgt_small"))
    assert type(small) is type(plus) and small.counts is not None
    n_plus, n_small = (sum(p.numel() for p in model.parameters()) for model in (plus, small))
    assert n_small < n_plus / 5 and 4 * small.shape.n_slots < 1.1 * plus.shape.n_slots
    run = train(stream, "cordgt_small", out=tmp_path / "run", device="cpu", report=False, epochs=1)
    assert run.settings.model_settings.collaborative and run.metrics["counts_weight"] is not None


@pytest.mark.parametrize(
    "part",
    [{}, {"slot_features": False}, {"pair_features": False}, {"slot_features": False, "pair_features": False}],
    ids=str,
)
@pytest.mark.parametrize("head", ["mlp", "linear"])
def test_every_weight_gets_a_gradient(part: dict[str, bool], head: str) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    settings = make_settings("cordgt_plus", {k: v for k, v in TINY.items() if k != "epochs"} | part | {"head": head})
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=CPU)
    network = build_model_for(settings, stream)
    position = torch.from_numpy(task.split.train[-20:])
    queries = task.queries(position, position[:1].expand(20), task.pools.train, seed=0, epoch=1, num_negatives=3)
    batch = network.read(task.train_history, queries)
    assert network(batch).shape == (20, 4)
    network.losses(batch).mean().backward()
    trained = {name: weight for name, weight in network.named_parameters() if not name.startswith("counts.")}
    assert not [name for name, weight in trained.items() if weight.grad is None or not weight.grad.any()]


def test_ranking_loss_is_softmax_cross_entropy() -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    settings = make_settings("cordgt_plus", {k: v for k, v in TINY.items() if k != "epochs"} | {"loss": "ranking"})
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=CPU)
    network = build_model_for(settings, stream).eval()
    position = torch.from_numpy(task.split.train[-5:])
    queries = task.queries(position, position[:1].expand(5), task.pools.train, seed=0, epoch=1, num_negatives=6)
    batch = network.read(task.train_history, queries)
    logits = network(batch)
    expected = logits.exp().sum(1).log() - logits[:, 0]
    torch.testing.assert_close(network.losses(batch), expected)
    with pytest.raises(SettingError, match="loss"):
        make_settings("cordgt_plus", {"loss": "hinge"})


@pytest.fixture(scope="module")
def blended(tmp_path_factory: pytest.TempPathFactory) -> Run:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    folder = tmp_path_factory.mktemp("blended")
    return train(stream, "cordgt_plus", out=folder / "run", device="cpu", report=False, **(TINY | {"epochs": 3}))


def test_contains_the_counts_model_of_the_same_seed(tmp_path: Path, blended: Run) -> None:
    counts = train(blended.stream, "counts", out=tmp_path / "run", device="cpu", report=False, epochs=3, batch_size=50)
    inside = counts_weights(blended.read_weights("model.safetensors"))
    own = counts.read_weights("model.safetensors")
    assert inside is not None
    assert inside.keys() == own.keys()
    assert all(torch.equal(inside[name], own[name]) for name in own)


def test_blend_leaves_its_own_network_unchanged(tmp_path: Path, blended: Run) -> None:
    settings = TINY | {"epochs": 3, "counts_blend": False}
    alone = train(blended.stream, "cordgt_plus", out=tmp_path / "run", device="cpu", report=False, **settings)
    weights = blended.read_weights("model.safetensors")
    assert all(torch.equal(weights[k], v) for k, v in alone.read_weights("model.safetensors").items())
    assert "counts_weight" not in alone.metrics


@pytest.mark.parametrize("across", [False, True])
def test_logit_is_the_weighted_mean_of_both_networks(blended: Run, across: bool) -> None:
    model, task = blended.evaluation_task()
    assert isinstance(model, CordgtPlus)
    assert model.counts is not None
    _, queries = task.evaluation_queries("test", "transductive")
    counts = score_queries(model.counts, task.full_history, queries)

    def scores(*weights: float) -> np.ndarray:
        model.counts_weight.copy_(torch.tensor(weights))
        with comparing_sources(model) if across else nullcontext():
            return score_queries(model, task.full_history, queries)

    own = scores(0.0, 0.0)
    np.testing.assert_allclose(scores(1.0, 1.0), counts, atol=1e-5)
    weight = 0.75 if across else 0.25
    np.testing.assert_allclose(scores(0.25, 0.75), (1 - weight) * own + weight * counts, atol=1e-5)


@pytest.mark.parametrize("across", [False, True])
def test_a_weight_of_one_gives_the_scores_of_counts_without_reading_trees(
    blended: Run, across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = blended.evaluation_task()
    assert isinstance(model, CordgtPlus) and model.counts is not None
    _, queries = task.evaluation_queries("test", "transductive")
    counts = score_queries(model.counts, task.full_history, queries)
    model.counts_weight.copy_(torch.tensor([0.5, 1.0] if across else [1.0, 0.5]))
    monkeypatch.setattr(CordgtPlus, "read", None)
    with comparing_sources(model) if across else nullcontext():
        np.testing.assert_array_equal(score_queries(model, task.full_history, queries), counts)
    with nullcontext() if across else comparing_sources(model), pytest.raises(TypeError):  # the trees are read
        score_queries(model, task.full_history, queries)


@pytest.mark.parametrize(
    ("own", "counts", "winner"),
    [
        ([0.9, 0.9], [0.5, 0.5], "own"),  # better with every kind of negatives
        ([0.5, 0.5], [0.9, 0.9], "counts"),  # worse with every kind
        ([1.0, 0.4], [0.6, 0.6], "counts"),  # better on average, but it loses with one kind
    ],
)
def test_no_kind_of_negatives_loses_to_counts(own: list[float], counts: list[float], winner: str) -> None:
    """Each network ranks a share of the true events above their negative, and the others below."""

    def column(share: float) -> np.ndarray:
        return np.where(np.arange(1000) % 10 < 10 * share, -1.0, 1.0)

    negatives = {str(i): np.stack([column(a), column(b)]) for i, (a, b) in enumerate(zip(own, counts, strict=True))}
    for choose in (choose_by_ap, lambda x, y: choose_by_gain(x, y, np.arange(1000.0))):
        assert (choose(np.zeros((2, 1000)), negatives) > 0.5) == (winner == "counts")


def test_a_gain_that_one_block_of_time_causes_is_not_sure() -> None:
    """CorDGT+ is much better in the last tenth of the time, and a little worse before."""
    own, counts = (np.where(np.arange(1000) % 100 < wrong, 1.0, -1.0) for wrong in (33, 30))
    own[900:] = -1.0
    negatives, true = {"random": np.stack([own, counts])}, np.zeros((2, 1000))
    assert choose_by_ap(true, negatives) < 0.5
    assert choose_by_gain(true, negatives, np.arange(1000.0)) == 1.0


def test_blocks_do_not_divide_events_of_one_time() -> None:
    blocks = time_blocks(np.repeat([0.0, 1.0, 2.0, 3.0], [1, 5, 60, 34]))
    assert [(b.start, b.stop) for b in blocks] == [(0, 6), (6, 66), (66, 100)]
    assert len(time_blocks(np.arange(1000.0))) == 10
    perfect = {"random": np.stack([np.full(1000, -1.0), np.full(1000, 1.0)])}  # but the times are too few to know
    assert choose_by_gain(np.zeros((2, 1000)), perfect, np.repeat([0.0, 1.0, 2.0, 3.0], 250)) == 1.0


def test_weight_is_in_the_metrics_and_the_weights(blended: Run) -> None:
    chosen = blended.metrics["counts_weight"]
    assert set(chosen) == {"same_source", "across_sources"}
    saved = blended.read_weights("model.safetensors")["counts_weight"]
    assert saved.tolist() == pytest.approx(list(chosen.values()))


@pytest.mark.parametrize(("n_times", "is_counts"), [(MIN_TIMES - 1, True), (MIN_TIMES, False)])
def test_few_times_give_the_weight_to_counts(blended: Run, n_times: int, is_counts: bool) -> None:
    """The validation split has this many times. Events of one time are one observation."""
    model, task = blended.evaluation_task()
    assert isinstance(model, CordgtPlus)
    t = np.array(task.stream.t)
    validation = task.split.validation
    t[validation] = t[validation[0]] + np.arange(len(validation)) * n_times // len(validation)
    model.counts_weight.fill_(-1.0)
    choose_counts_weight(model, replace(task, stream=replace(task.stream, t=t)), "ap")
    chosen = model.counts_weight.tolist()
    assert chosen == [1.0, 1.0] if is_counts else all(0 <= w <= 1 for w in chosen)


def test_weight_of_a_run_that_evaluates_first_meetings_only(tmp_path: Path) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    run = train(
        stream, "cordgt_plus", out=tmp_path / "run", device="cpu", report=False, positives="new", mask_nodes=0, **TINY
    )
    assert all(0 <= weight <= 1 for weight in run.metrics["counts_weight"].values())


@pytest.mark.parametrize("size", [1, 3])
def test_scores_of_both_networks_do_not_depend_on_the_number_of_processes(blended: Run, size: int) -> None:
    """The last of three processes has no queries."""
    model, task = blended.evaluation_task()
    assert isinstance(model, CordgtPlus)
    queries = task.evaluation_queries("test", "transductive")[1].take(slice(0, 20))
    options: dict[str, Any] = {"max_pairs_per_batch": 20, "forward": model.own_and_counts, "further_axes": (2,)}
    whole = score_queries(model, task.full_history, queries, **options)
    parts = [
        score_queries(model, task.full_history, queries, group=LonelyGroup(rank, size), **options)
        for rank in range(size)
    ]
    assert whole.shape == (20, 2, 2) and np.array_equal(sum(parts), whole)
    assert score_queries(model, task.full_history, queries.take(slice(0, 0)), **options).shape == (0, 2, 2)


def test_with_few_times_the_own_network_trains_for_one_epoch(tmp_path: Path) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    stream = replace(stream, t=np.arange(400.0) // 50)
    shared: dict[str, Any] = {"device": "cpu", "report": False, "epochs": 3, "batch_size": 50, "activity": False}
    run = train(stream, "cordgt_plus", out=tmp_path / "run", hidden=8, heads=2, fanout=(4, 1), **shared)
    counts = train(stream, "counts", out=tmp_path / "counts", **shared)
    assert run.metrics["epochs"] == 1
    assert counts.metrics["epochs"] > 1
    assert run.metrics["test"]["transductive"]["ap"] == counts.metrics["test"]["transductive"]["ap"]


def test_training_for_ranking_chooses_one_weight(tmp_path: Path) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    run = train(stream, "cordgt_plus", out=tmp_path / "run", device="cpu", report=False, loss="ranking", **TINY)
    weight = run.metrics["counts_weight"]
    assert weight["same_source"] == weight["across_sources"]


def test_refit_keeps_the_counts_network_and_its_weight(tmp_path: Path) -> None:
    stream = synthetic_stream(nodes=40, events=400, seed=1).stream
    run = train(stream, "cordgt_plus", out=tmp_path / "run", device="cpu", report=False, refit=True, **TINY)
    first, second = (run.read_weights(name) for name in ("model.safetensors", "refit.safetensors"))
    frozen = [name for name in first if name.startswith("counts")]
    assert frozen
    assert all(torch.equal(first[name], second[name]) for name in frozen)


def test_starts_from_a_run_without_counts(tmp_path: Path, blended: Run) -> None:
    settings = TINY | {"counts_blend": False}
    old = train(blended.stream, "cordgt_plus", out=tmp_path / "old", device="cpu", report=False, **settings)
    new = train(blended.stream, "cordgt_plus", out=tmp_path / "new", device="cpu", report=False, init=old, **TINY)
    assert "counts_weight" in new.metrics


def test_interrupted_counts_training_starts_again(tmp_path: Path, blended: Run) -> None:
    class Interrupt(Callback):
        n_steps = 0

        def on_stage_start(self, name: str, total: int | None) -> None:
            if "counts" in name and "training" in name:
                self.n_steps = 1

        def on_step(self, n: int, loss: float | None = None) -> None:
            self.n_steps += self.n_steps > 0
            if self.n_steps == 4:
                signal.raise_signal(signal.SIGINT)

    settings, out = TINY | {"epochs": 3}, tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(blended.stream, "cordgt_plus", out=out, device="cpu", report=False, callbacks=Interrupt(), **settings)
    run = train(blended.stream, "cordgt_plus", out=out, device="cpu", report=False, resume=True, **settings)
    expected = blended.read_weights("model.safetensors")
    assert all(torch.equal(expected[k], v) for k, v in run.read_weights("model.safetensors").items())


def test_config_without_the_setting_has_no_counts() -> None:
    text = make_settings("cordgt_plus", {}).to_toml().replace("counts_blend = true\n", "")
    assert not from_toml("format = 3\n" + text, "config.toml").model_settings.counts_blend
    assert from_toml(text, "my.toml").model_settings.counts_blend
