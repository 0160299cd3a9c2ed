"""Extensions from code, files and installed packages: models, metrics, negatives, datasets, exporters."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoints, distributions
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import cordgt
from cordgt import plugins
from cordgt.analysis import exporters
from cordgt.analysis.table_files import TABLE_ENDINGS
from cordgt.errors import DataError, PluginWarning, RunError, SettingError
from cordgt.models import MODELS, registered_name
from cordgt.models.counts import Counts, CountsSettings
from cordgt.plugins import LoadedPlugins, Registry
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import LINK_METRICS, SplitScores, link_metrics
from cordgt.tasks.negatives import NEGATIVES, draw_integers
from cordgt.tasks.protocol import Protocol
from cordgt.training.settings import make_settings

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PLUGINS = EXAMPLES / "plugins"


@pytest.fixture(autouse=True)
def clean(restored_registries: Any) -> Iterator[None]:
    with restored_registries():
        yield


@pytest.fixture(scope="module")
def stream(restored_registries: Any) -> cordgt.EventStream:
    with restored_registries():
        return cordgt.read_events(cordgt.load_plugin(PLUGINS / "club.py").club())


def fit(stream: Any, model: Any, out: Path, **settings: Any) -> cordgt.Run:
    return cordgt.train(stream, model, out=out, device="cpu", report=False, **({"epochs": 1} | settings))


@pytest.fixture(scope="module")
def trained(stream: Any, tmp_path_factory: pytest.TempPathFactory) -> cordgt.Run:
    """A run that several tests read. They do not change it."""
    return fit(stream, "counts", tmp_path_factory.mktemp("trained") / "run")


# -------------------- registries


def test_names_are_checked() -> None:
    with pytest.raises(SettingError, match=r"The metric 'ap' is cordgt's own"):
        cordgt.register_metric("ap")(lambda positive, negative: 0.0)
    with pytest.raises(SettingError, match=r"lower-case"):
        cordgt.register_metric("My Metric")(lambda positive, negative: 0.0)
    with pytest.raises(SettingError, match=r"The dataset 'uci' is cordgt's own"):
        cordgt.register_dataset("uci")
    with pytest.raises(SettingError, match=r"The exporter 'csv' is cordgt's own"):
        cordgt.register_exporter(".csv")


@pytest.mark.parametrize("name", ["events", "random_negatives", "predictor"])
def test_a_metric_cannot_hide_another_column(name: str) -> None:
    with pytest.raises(SettingError, match=f"The metric '{name}' is cordgt's own"):
        cordgt.register_metric(name)


@pytest.mark.parametrize("kind", ["metric", "negatives", "model", "dataset", "exporter"])
def test_a_decorator_needs_a_name_and_a_function(kind: str) -> None:
    """Without a name the decorator would register nothing, and the function would be lost."""
    decorator: Any = getattr(cordgt, f"register_{kind}")
    with pytest.raises(SettingError, match=rf'@cordgt.register_{kind}\("name"\)'):

        @decorator
        def forgotten() -> None: ...

    with pytest.raises(SettingError, match=r"must be a (function|class)"):
        decorator("number")(3)


def test_a_definition_may_be_registered_again_but_not_another_one() -> None:
    def one(positive: np.ndarray) -> float:
        return 0.5

    def other(positive: np.ndarray) -> float:
        return 0.25

    cordgt.register_metric("half")(one)
    cordgt.register_metric("half")(one)
    with pytest.raises(SettingError, match=r"There is a metric 'half' already"):
        cordgt.register_metric("half")(other)


def test_unknown_inputs_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(SettingError, match=r"parameter 'positives'. Did you mean 'positive'"):
        cordgt.register_metric("m")(lambda positives: 0.0)
    with pytest.raises(SettingError, match=r"by name: positive, negative, ranks, batch_size\.$"):
        cordgt.register_metric("m")(lambda scores: 0.0)
    with pytest.raises(SettingError, match=r"parameter 'nodes'.*index, queries, pool, n, key"):
        cordgt.register_negatives("s")(lambda nodes: nodes)
    with pytest.raises(SettingError, match=r"either ranks, or positive and negative"):
        cordgt.register_metric("m")(lambda ranks, positive: 0.0)


# -------------------- plug-in files


def test_a_plugin_file_runs_once(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text("import builtins\nbuiltins.n_runs = getattr(builtins, 'n_runs', 0) + 1\n")
    try:
        assert cordgt.load_plugin(file) is cordgt.load_plugin(str(file))
        import builtins

        assert builtins.n_runs == 1  # type: ignore[attr-defined]
    finally:
        del builtins.n_runs  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\ny = nothing\n", "line 2: NameError: name 'nothing' is not defined"),
        ("def (:\n", "line 1: SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        (
            "import cordgt\n\n@cordgt.register_metric('auc')\ndef auc(ranks): return 1\n",
            "The metric 'auc' is cordgt's own",
        ),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, code: str, words: str) -> None:
    (tmp_path / "broken.py").write_text(code)
    with pytest.raises(SettingError) as caught:
        cordgt.load_plugin(tmp_path / "broken.py")
    assert str(tmp_path / "broken.py") in str(caught.value) and words in str(caught.value)
    assert not [name for name in sys.modules if name.endswith("_broken")]


def test_a_file_imports_modules_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shared_part_of_plugins.py").write_text("HALF = 0.5\n")
    (tmp_path / "uses_part.py").write_text("from shared_part_of_plugins import HALF\n")
    (tmp_path / "fails.py").write_text("import no_such_module_here\n")
    with pytest.raises(SettingError, match=r"line 1: ModuleNotFoundError"):
        cordgt.load_plugin(tmp_path / "fails.py")
    assert str(tmp_path) not in sys.path
    assert cordgt.load_plugin(tmp_path / "uses_part.py").HALF == 0.5
    assert sys.path[-1] == str(tmp_path)  # last, so that it hides no installed module


def test_a_worker_process_loads_the_plugins_before_the_other_arguments(restored_registries: Any) -> None:
    """As `cordgt reproduce --workers` sends them: settings of a plug-in's model are unknown until its file has run."""
    with restored_registries():
        settings = cordgt.load_plugin(PLUGINS / "recency.py").RecencySettings(power=3.0)
        sent = ForkingPickler.dumps((LoadedPlugins(), settings))
    assert "recency" not in MODELS
    _, received = ForkingPickler.loads(sent)
    assert received.power == 3.0 and "recency" in MODELS


def test_only_existing_python_files_are_plugins(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"there is no such file"):
        cordgt.load_plugin(tmp_path / "none.py")
    with pytest.raises(SettingError, match=r"ends in .py"):
        cordgt.load_plugin(tmp_path / "text.txt")


# -------------------- entry points


def make_package(folder: Path, name: str, code: str, points: str) -> None:
    """Put a package with entry points into a folder of sys.path, as pip does."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    make_package(
        tmp_path,
        "good_metrics",
        "def share(positive):\n    '''Share of positive logits.'''\n    return (positive > 0).mean()\n",
        "[cordgt.metrics]\nshare = good_metrics:share\n",
    )
    make_package(tmp_path, "bad_metrics", "import not_there\n", "[cordgt.metrics]\nbroken = bad_metrics:broken\n")
    make_package(tmp_path, "silent_metrics", "", "[cordgt.metrics]\nsilent = silent_metrics\n")
    found = EntryPoints(point for package in distributions(path=[str(tmp_path)]) for point in package.entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_installed_entry_points", lambda: found)
    monkeypatch.setattr(LINK_METRICS, "_waiting", None)
    monkeypatch.setattr(LINK_METRICS, "_failures", {})
    yield tmp_path
    for name in ("good_metrics", "silent_metrics"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("packages")
def test_entry_points_are_loaded_when_needed() -> None:
    assert "share" in LINK_METRICS and "broken" in LINK_METRICS
    assert "good_metrics" not in sys.modules
    assert LINK_METRICS["ap"].title == "AP" and "good_metrics" not in sys.modules
    assert LINK_METRICS["share"].description == "Share of positive logits"
    assert LINK_METRICS.plugin_of("share") == "good_metrics"
    assert LINK_METRICS.plugin_of("ap") is None


@pytest.mark.usefixtures("packages")
def test_a_broken_package_is_named_and_stops_nothing_else() -> None:
    with pytest.warns(PluginWarning) as caught:
        found = link_metrics(np.array([1.0, -1.0]), np.zeros(2))
    assert found["share"] == 0.5 and "broken" not in found
    texts = [str(warning.message) for warning in caught]
    assert any("package bad_metrics" in text and "not_there" in text for text in texts)
    assert any("package silent_metrics" in text and "does not register" in text for text in texts)
    assert list(LINK_METRICS)  # warns once
    with pytest.raises(SettingError, match=r"installed package bad_metrics.*No module named 'not_there'"):
        make_settings("counts", {"monitor": "broken"})


# -------------------- metrics


def test_a_metric_that_is_no_number_is_undefined() -> None:
    cordgt.register_metric("nan")(lambda positive: np.nan)
    cordgt.register_metric("large")(lambda positive: 3.0)
    with pytest.warns(PluginWarning) as caught:
        found = link_metrics(np.ones(2), np.zeros(2))
    assert found["nan"] is None and found["large"] is None
    assert [w for w in caught if "is_share=False" in str(w.message)]


def test_a_metric_that_changes_its_inputs_leaves_the_others_alone() -> None:
    @cordgt.register_metric("sorting")
    def sorting(positive: np.ndarray) -> float:
        positive.sort()
        return 0.0

    cordgt.register_metric("wins")(lambda positive, negative: float((positive > negative).mean()))
    assert link_metrics(np.array([3.0, 1.0]), np.array([2.0, 0.0]))["wins"] == 1.0


def test_a_metric_that_fails_is_named() -> None:
    cordgt.register_metric("bad")(lambda positive: positive["x"])
    with pytest.raises(SettingError, match=r"The metric 'bad' failed: IndexError"):
        link_metrics(np.ones(2), np.zeros(2))


def test_monitor_takes_the_lowest_value_of_a_loss(stream: Any, tmp_path: Path) -> None:
    values = iter([3.0, 2.0, 2.5, 2.5, *[9.0] * 200])

    @cordgt.register_metric("surprise", higher_is_better=False, is_share=False)
    def surprise(positive: np.ndarray) -> float:
        return next(values)

    run = fit(stream, "counts", tmp_path / "run", epochs=4, patience=9, monitor="surprise")
    assert run.metrics["best_epoch"] == 2
    assert [record["validation"]["surprise"] for record in run.folder.read_history() if "validation" in record] == [
        3.0,
        2.0,
        2.5,
        2.5,
    ]


def test_resampled_scores_repeat_events() -> None:
    scores = SplitScores(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]), 30, np.array([1.0, 2.0, 3.0]))
    some = scores.resample(np.array([0.0, 2.0, 1.0]))
    assert (
        some.positive.tolist() == [2, 2, 3] and some.negative.tolist() == [5, 5, 6] and some.ranks.tolist() == [2, 2, 3]
    )


# -------------------- negatives


def test_training_negatives_come_from_the_sampler(stream: Any) -> None:
    @cordgt.register_negatives("lowest")
    def lowest(pool: Tensor, n: int, key: Tensor) -> Tensor:
        return pool[:n].expand(len(key), n)

    task = LinkTask.prepare(stream)
    lowest_two = task.pools.train[:2].tolist()
    for _, queries in task.batches("train", batch_size=50, num_negatives=2, negatives="lowest"):
        for true, *negatives in queries.dst.tolist():
            assert all(v != true for v in negatives)
            assert all(v == w or true == w for v, w in zip(negatives, lowest_two, strict=True))


def test_a_sampler_draws_the_same_in_any_batch(stream: Any) -> None:
    cordgt.load_plugin(PLUGINS / "popular_negatives.py")
    task = LinkTask.prepare(stream)
    draws = [
        torch.cat([q.dst for _, q in task.batches("train", batch_size=size, num_negatives=3, negatives="popular")])
        for size in (7, 64)
    ]
    assert torch.equal(*draws)
    other = torch.cat([q.dst for _, q in task.batches("train", epoch=2, num_negatives=3, negatives="popular")])
    assert not torch.equal(draws[0], other)
    random = torch.cat([q.dst for _, q in task.batches("train", num_negatives=3)])
    cut = torch.cat([q.cut for _, q in task.batches("train")])
    degree = task.train_history.index.degree
    popular, uniform = (degree(d[:, 1:], cut[:, None]).double().mean() for d in (draws[0], random))
    assert popular > 1.2 * uniform


def test_historical_negatives_in_training_are_past_partners(stream: Any) -> None:
    task = LinkTask.prepare(stream)
    n_past = 0
    for _, queries in task.batches("train", num_negatives=2, negatives="historical"):
        kind = NEGATIVES["historical"]
        assert kind.on_host
        count = task.train_history.index.pair_history(queries.src[:, None], queries.dst[:, 1:], queries.cut[:, None])[0]
        n_past += int((count > 0).sum())
    assert n_past > len(task.split.train)  # of twice as many


def test_evaluation_counts_the_negatives_that_a_sampler_lacks(trained: cordgt.Run) -> None:
    cordgt.register_negatives("none")(lambda key, n: torch.full((len(key), n), -1))
    found = trained.evaluate(split="test", negatives="none")["test"]["transductive"]
    random = trained.evaluate(split="test")["test"]["transductive"]
    assert found["random_negatives"] == found["events"] and found["ap"] == random["ap"]


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (lambda key: key, r"returned \(\d+,\) torch.int64, but must return int64"),
        (lambda key, n: torch.full((len(key), n), 10**6), "node index 1000000, which is not in the pool"),
        (lambda pool, key, n: np.zeros((len(key), n), np.int64), "returned ndarray.*on_host=True"),
        (lambda key, n: torch.zeros(len(key), n), "torch.float32"),
        (lambda key, n: torch.ones(len(key), n, dtype=torch.bool), "torch.bool"),
        (lambda pool, key, n: pool.fill_(3)[:1].expand(len(key), n), "changed its input 'pool'"),
        (lambda queries, n: queries.src.sub_(1)[:, None].expand(-1, n), "changed its input 'src'"),
        (lambda key, n: 1 // 0, "'wrong' failed: ZeroDivisionError"),
    ],
)
def test_a_wrong_sampler_is_named(stream: Any, sampler: Any, words: str) -> None:
    cordgt.register_negatives("wrong")(sampler)
    with pytest.raises(SettingError, match=words):
        next(LinkTask.prepare(stream).batches("train", negatives="wrong"))


def test_a_sampler_gets_contiguous_destinations(trained: cordgt.Run) -> None:
    """Otherwise `torch.searchsorted(pool, queries.dst)` warns."""
    seen: list[Tensor] = []

    @cordgt.register_negatives("true")
    def true(queries: Any) -> Tensor:
        seen.append(queries.dst)
        return queries.dst  # type: ignore[no-any-return]

    trained.evaluate(split="test", negatives="true")
    assert seen and all(dst.is_contiguous() for dst in seen)


def test_a_sampler_on_the_host_may_use_numpy(stream: Any) -> None:
    @cordgt.register_negatives("first", on_host=True)
    def first(pool: Tensor, n: int, key: Tensor) -> np.ndarray:
        return np.broadcast_to(pool.numpy()[:1], (len(key), n)).copy()

    _, queries = next(LinkTask.prepare(stream).batches("train", negatives="first"))
    assert queries.dst.shape[1] == 2


def test_a_negative_outside_the_pool_is_refused() -> None:
    """Users and items: a user is too easy a negative of a user's event."""
    n = np.arange(60)
    task = LinkTask.prepare(cordgt.read_events({"user_id": n % 7, "item_id": n % 5, "time": n}), Protocol(mask_nodes=0))
    cordgt.register_negatives("source")(lambda queries, n: queries.src[:, None].expand(-1, n))
    with pytest.raises(SettingError, match=r"which is not in the pool"):
        next(task.batches("train", negatives="source"))


def test_random_any_may_draw_the_true_destination(stream: Any) -> None:
    """As in DyGLib: each destination of the pool is equally likely, the true one too."""
    task = LinkTask.prepare(stream)
    queries = torch.cat([q.dst for _, q in task.batches("train", num_negatives=20, negatives="random-any")])
    share = (queries[:, 1:] == queries[:, :1]).double().mean().item()
    assert share == pytest.approx(1 / len(task.pools.train), rel=0.2)
    assert set(queries[:, 1:].flatten().tolist()) == set(task.pools.train.tolist())
    n_true = 0
    for seed in range(20):
        protocol = task.with_protocol(negatives="random-any", eval_seed=seed)
        found = protocol.evaluation_queries("test", "transductive")[1].dst
        n_true += int((found[:, 0] == found[:, 1]).sum())
    assert n_true == pytest.approx(20 * len(task.split.test) / len(task.pools.transductive), rel=0.5)


def test_pairs_cannot_be_training_negatives() -> None:
    with pytest.raises(SettingError, match=r"only at evaluation"):
        make_settings("counts", {"train_negatives": "historical-pairs"})
    with pytest.raises(SettingError, match=r"Did you mean 'historical'"):
        make_settings("counts", {"train_negatives": "historica"})


def test_random_numbers_are_uniform_and_repeat() -> None:
    key = torch.arange(4000) * 7919
    numbers = draw_integers(key, 2, 10)
    assert torch.equal(numbers, draw_integers(key, 2, 10)) and torch.equal(numbers[:, :1], draw_integers(key, 1, 10))
    assert set(numbers.flatten().tolist()) == set(range(10))


# -------------------- models


def test_a_class_is_trained_saved_and_loaded(stream: Any, tmp_path: Path) -> None:
    recency = cordgt.load_plugin(PLUGINS / "recency.py")
    run = fit(stream, recency.Recency, tmp_path / "run", power=2.0)
    assert (run.settings.model, run.settings.model_settings.power, run.settings.training.lr) == ("recency", 2.0, 0.01)
    assert run.config.run["plugins"] == ["model=recency: recency.py"]
    again = cordgt.Run.load(tmp_path / "run", "cpu")
    assert np.array_equal(again.score("m1", "m2"), run.score("m1", "m2"))
    assert isinstance(again.model, recency.Recency) and again.history.index.n_nodes == stream.n_nodes


def test_a_class_without_a_name_gets_its_own(stream: Any, tmp_path: Path) -> None:
    class PairCounter(Counts):
        """Counts under another name."""

        def __init__(self, settings: CountsSettings, *, edge_dim: int, node_dim: int) -> None:
            super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim)

    run = fit(stream, PairCounter, tmp_path / "run")
    assert run.settings.model == "pair_counter" and MODELS["pair_counter"].about == "Counts under another name"
    assert registered_name(Counts) == "counts"


def test_an_instance_gives_settings_and_weights(stream: Any, tmp_path: Path) -> None:
    torch.manual_seed(7)
    instance = Counts(CountsSettings(hidden=5), edge_dim=0, node_dim=0)
    before = {name: value.clone() for name, value in instance.state_dict().items()}
    run = fit(stream, instance, tmp_path / "run", lr=1e-12)
    assert run.settings.model_settings == CountsSettings(hidden=5)
    for name, value in run.model.state_dict().items():
        assert torch.allclose(value, before[name], atol=1e-6)
        assert torch.equal(instance.state_dict()[name], before[name])
    assert run.config.run["init_run"] == "an instance of Counts"
    again = fit(stream, instance, tmp_path / "run", lr=1e-12, resume=True)
    assert again.metrics["test"] == run.metrics["test"]


@dataclass(frozen=True)
class ClashingSettings:
    epochs: int = 3


@dataclass(frozen=True)
class NoSettings:
    pass


def test_a_setting_of_a_model_cannot_hide_one_of_every_model() -> None:
    @cordgt.register_model("clashing")
    class Clashing(cordgt.LinkModel):
        def __init__(self, settings: ClashingSettings, *, edge_dim: int, node_dim: int) -> None:
            super().__init__()

    with pytest.raises(SettingError, match=r"'clashing' has a setting 'epochs', which every model has already"):
        make_settings("clashing", {})


def test_a_model_without_parameters_is_refused(stream: Any, tmp_path: Path) -> None:
    class Rule(cordgt.LinkModel):
        has_embeddings = False

        def __init__(self, settings: NoSettings, *, edge_dim: int, node_dim: int) -> None:
            super().__init__()
            self.reader = Counts(CountsSettings(), edge_dim=0, node_dim=0).reader

    with pytest.raises(SettingError, match=r"Rule has no parameters to train.*is_trainable = False"):
        fit(stream, Rule, tmp_path / "run")


def test_the_history_prints_as_one_line(trained: cordgt.Run) -> None:
    assert repr(trained.history) == "<History: <TemporalIndex: 600 events of 40 nodes on cpu>, seed 0>"


def test_wrong_models_are_refused(stream: Any, tmp_path: Path) -> None:
    instance = Counts(CountsSettings(hidden=5), edge_dim=0, node_dim=0)
    with pytest.raises(SettingError, match=r"hidden: the instance of Counts has its settings already"):
        fit(stream, instance, tmp_path / "run", hidden=6)
    with pytest.raises(SettingError, match=r"either an instance as the model, or init"):
        fit(stream, instance, tmp_path / "run", init="somewhere")
    with pytest.raises(SettingError, match=r"subclass of cordgt.LinkModel"):
        fit(stream, torch.nn.Linear(1, 1), tmp_path / "run")
    from cordgt.models.graphmixer import Graphmixer, GraphmixerSettings

    wide = Graphmixer(GraphmixerSettings(), edge_dim=3, node_dim=0)
    with pytest.raises(SettingError, match=r"does not fit these events.*edge_dim=0"):
        fit(stream, wide, tmp_path / "run")
    with pytest.raises(SettingError, match=r"has no settings: its constructor must be"):
        cordgt.register_model("bare")(type("Bare", (cordgt.LinkModel,), {}))
    assert not (tmp_path / "run").exists()


def test_a_run_names_the_plugin_it_needs_and_runs_no_file(
    stream: Any, tmp_path: Path, restored_registries: Any
) -> None:
    with restored_registries():
        cordgt.load_plugin(PLUGINS / "recency.py")
        fit(stream, "recency", tmp_path / "run")
    (tmp_path / "run" / "recency.py").write_text("raise SystemExit('executed')\n")
    with pytest.raises(
        RunError, match=r"unknown model 'recency'.*trained with the plug-in recency.py.*--plugin FILE.py"
    ):
        cordgt.Run.load(tmp_path / "run")


# -------------------- datasets and exporters


def test_a_dataset_is_read_by_name(stream: Any, tmp_path: Path) -> None:
    cordgt.load_plugin(PLUGINS / "club.py")
    run = fit("club", "counts", tmp_path / "run")
    assert run.metrics["data"] == "club" and run.stream.n_events == 600
    cordgt.register_dataset("empty_table")(lambda: 1 // 0)
    with pytest.raises(DataError, match=r"dataset 'empty_table' of a plug-in failed: ZeroDivisionError"):
        cordgt.load_dataset("empty_table")
    cordgt.register_dataset("unnamed")(lambda: pa.table({"from": [1], "to": [2], "sent": [3]}))
    with pytest.raises(DataError, match=r"The dataset 'unnamed': .*name it with time="):
        cordgt.load_dataset("unnamed")
    assert cordgt.load_dataset("unnamed", time="sent").n_events == 1
    cordgt.register_dataset("ready")(lambda: stream)
    assert cordgt.load_dataset("ready").name == "ready"
    with pytest.raises(DataError, match=r"ready is a stream already"):
        cordgt.load_dataset("ready", src="src")
    with pytest.raises(DataError, match=r"cordgt.load_dataset\('ready'\)"):
        cordgt.read_events("ready")


def test_an_exporter_writes_answers_and_metrics(trained: cordgt.Run, tmp_path: Path) -> None:
    cordgt.load_plugin(PLUGINS / "markdown.py")
    run = trained
    text = cordgt.export(run.metrics, tmp_path / "metrics.md").read_text()
    assert "| test | transductive | counts |" in text and "| seen before |" in text
    answers = cordgt.export(run.recommend("m1", top=2), tmp_path / "answers.md").read_text().splitlines()
    assert answers[0].startswith("| node | score |") and len(answers) == 4
    assert "| 1 |" in cordgt.export(pa.table({"a": [1]}), tmp_path / "table.md").read_text()
    with pytest.raises(DataError, match=r"no exporter for '.xyz'.*.md"):
        cordgt.export(run.metrics, tmp_path / "metrics.xyz")
    cordgt.register_exporter("bad")(lambda table, path: 1 // 0)
    with pytest.raises(SettingError, match=r"The exporter 'bad' failed"):
        cordgt.export(run.metrics, tmp_path / "metrics.bad")
    cordgt.register_exporter("nothing")(lambda table, path: None)
    with pytest.raises(SettingError, match=r"The exporter 'nothing' wrote nothing"):
        cordgt.export(run.metrics, tmp_path / "metrics.nothing")
    assert not [*tmp_path.glob("metrics.bad"), *tmp_path.glob("metrics.nothing")]


def test_usual_formats_need_no_exporter(trained: cordgt.Run, tmp_path: Path) -> None:
    rows = [tuple(row.values()) for row in exporters.metric_rows(trained.metrics)]
    read = {
        ".csv": pd.read_csv,
        ".tsv": lambda path: pd.read_csv(path, sep="\t"),
        ".parquet": pd.read_parquet,
        ".json": pd.read_json,
    }
    assert set(read) == set(TABLE_ENDINGS)
    for ending, read_frame in read.items():
        frame = read_frame(cordgt.export(trained.metrics, tmp_path / f"metrics{ending}"))
        assert [(a, b, c) for a, b, c, *_ in frame.itertuples(index=False)] == [row[:3] for row in rows]
        assert frame["ap"].tolist() == pytest.approx([row[3] for row in rows])


# -------------------- below the front door


@pytest.mark.parametrize("model", ["counts", "cordgt"])
def test_the_loop_of_the_docs_computes_the_trainers_losses(stream: Any, tmp_path: Path, model: str) -> None:
    code = (EXAMPLES / "training_loop.py").read_text().replace("cordgt.synthetic_stream().stream", "given")
    code = code.replace("BATCH_SIZE = 0, 1, 100", "BATCH_SIZE = 0, 1, 6")
    options: dict[str, Any] = {"batch_size": 6}
    if model == "cordgt":
        small = {"fanout": (3, 1), "hidden": 8, "heads": 2, "layers": 1, "td_dim": 4, "sd_dim": 4, "dropout": 0.0}
        options |= small | {"lr": 0.003}
        code = code.replace("cordgt.models.counts import Counts", "cordgt.models.cordgt import Cordgt")
        code = code.replace("CountsSettings()", "CordgtSettings(**small)").replace("Counts", "Cordgt")
    else:
        small = {}
    means: list[float] = []

    class Listener(cordgt.Callback):
        def on_step(self, n: int, loss: float | None = None) -> None:
            if loss is not None:
                means.append(loss)

    fit(stream, model, tmp_path / "run", callbacks=Listener(), **options)
    names: dict[str, Any] = {"given": stream, "small": small, "print": lambda *words: None}
    exec(compile(code, "training_loop.py", "exec"), names)
    losses = names["losses"]
    assert len(losses) >= 50
    for step in (1, 10, 50):
        assert np.mean(losses[:step]) == pytest.approx(means[step - 1], abs=1e-6)


def test_batches_of_evaluation_splits(stream: Any) -> None:
    task = LinkTask.prepare(stream)
    sizes = [len(queries.src) for _, queries in task.batches("test", batch_size=40)]
    assert sum(sizes) == len(task.split.test) and max(sizes) == 40
    history, queries = next(task.batches("validation"))
    assert history is task.full_history and len(queries.src) == task.protocol.eval_batch_size
    with pytest.raises(SettingError, match=r"split"):
        next(task.batches("holdout"))


def test_parts_are_exported_with_docstrings() -> None:
    for name in cordgt.nn.__all__:
        assert getattr(cordgt.nn, name).__doc__, name
    for spec in MODELS.values():
        assert issubclass(spec.network, torch.nn.Module) and spec.network.__doc__


# -------------------- benchmarks by name


def test_a_benchmark_sets_the_evaluation(trained: cordgt.Run) -> None:
    run = trained
    found = run.evaluate(split="test", protocol="dyglib")
    same = run.evaluate(split="test", eval_batch_size=200, visibility="event", negatives="random-any", activity=False)
    assert found["test"] == same["test"]
    assert found["benchmark"] == {"name": "dyglib", "metric": "ap_batch", "changed": []}
    paper = run.evaluate(split="test", protocol="paper", negatives="historical")
    assert paper["protocol"]["visibility"] == "paper" and paper["benchmark"]["changed"] == ["negatives"]
    with pytest.raises(RunError, match=r"trained with mask_nodes=0.1.*--set mask_nodes=0.0"):
        run.evaluate(protocol="tgb")
    with pytest.raises(SettingError, match=r"no protocol 'dyglab'. Did you mean 'dyglib'"):
        run.evaluate(protocol="dyglab")


def test_edgebank_sees_earlier_batches_in_dyglib(stream: Any, tmp_path: Path) -> None:
    """DyGLib adds test events to EdgeBank's memory batch by batch; its other models read all earlier events."""
    run = cordgt.train(stream, "edgebank", out=tmp_path / "run", device="cpu", report=False)
    found = run.evaluate(split="test", protocol="dyglib")
    assert found["protocol"]["visibility"] == "batch" and found["benchmark"]["changed"] == []


def test_tgb_ranks_among_all_and_sees_earlier_batches(stream: Any, tmp_path: Path) -> None:
    run = fit(stream, "counts", tmp_path / "run", mask_nodes=0.0)
    found = run.evaluate(split="test", protocol="tgb")
    assert found["protocol"]["ranking"] == "all" and found["protocol"]["visibility"] == "batch"
    assert found["benchmark"]["metric"] == "mrr" and 0 < found["test"]["transductive"]["mrr"] <= 1


# -------------------- the documentation


def test_the_docs_show_the_example_files() -> None:
    page = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    files = [*PLUGINS.glob("*.py"), EXAMPLES / "training_loop.py"]
    assert sorted(shown) == sorted(file.read_text() for file in files)
    assert len((EXAMPLES / "training_loop.py").read_text().splitlines()) <= 30


def test_a_registry_acts_as_a_dictionary() -> None:
    registry: Registry[int] = Registry("thing", {"a": 1})
    registry["b"] = 2
    assert dict(registry) == {"a": 1, "b": 2} and len(registry) == 2 and registry.get("c") is None
    del registry["b"]
    assert "b" not in registry and registry.is_built_in("a")
    with pytest.raises(SettingError, match=r"There is no thing 'aa'. Did you mean 'a'"):
        registry.find("aa")
