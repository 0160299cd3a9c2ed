"""The audit passes every built-in model and finds every leak planted in a model or in a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cordgt.analysis.audit.checks import BY_DESIGN, FAIL, NOTE, OK, WARNING, Check, has_failures
from cordgt.analysis.audit.data import audit_data
from cordgt.analysis.audit.model import audit_model
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.history.queries import History, Queries
from cordgt.models import MODELS
from cordgt.models.base import HistoryReader, LinkModel
from cordgt.models.edgebank import Edgebank, EdgebankSettings
from cordgt.tasks.link import LinkTask
from cordgt.tasks.protocol import VISIBILITIES, Protocol
from cordgt.training.model_factory import build_model
from cordgt.training.settings import make_settings

CPU = torch.device("cpu")
SMALL = {
    "fanout": (4, 2), "hidden": 8, "heads": 2, "layers": 1, "td_dim": 6, "sd_dim": 4, "num_neighbors": 4, "time_dim": 4,
    "max_seq_len": 8, "channel_dim": 4, "num_walks": 4, "walk_length": 2, "position_dim": 6, "num_embeddings": 64,
    "memory_dim": 4, "block": 20,
}  # fmt: skip


def columns(n: int = 320, nodes: int = 23, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Events with repeated pairs, ties and self-loops; some nodes appear late."""
    rng = np.random.default_rng(seed)
    src = (rng.random(n) * np.linspace(nodes / 2, nodes, n)).astype(np.int64)
    dst = (src + rng.choice([0, 1, 1, 2, 5, 9], n)) % nodes
    return src, dst, 1000 + rng.choice([0, 0, 1, 3, 7], n).cumsum()


def stream(*, features: bool = False, floats: bool = False) -> EventStream:
    src, dst, t = columns()
    rng = np.random.default_rng(2)
    edge_x = rng.normal(size=(len(src), 3)).astype(np.float32) if features else None
    times = 0.1 * t if floats else t
    events = EventStream.from_columns(src, dst, times, edge_x, time=TimeAxis("number"), name="habits")
    return events.with_node_features(rng.normal(size=(events.n_nodes, 2))) if features else events


def make_task(rule: str = "event", kind: type[LinkTask] = LinkTask, **options: bool) -> LinkTask:
    return kind.prepare(stream(**options), Protocol(visibility=rule), seed=3, device=CPU)


def network(model: str, task: LinkTask, **changes: Any) -> LinkModel:
    settings = make_settings(model, SMALL | changes, seed=3)  # keys of other models are ignored
    return build_model(settings, edge_dim=task.stream.edge_dim, node_dim=task.stream.node_dim)


def results(checks: list[Check]) -> dict[str, str]:
    return {check.check: check.result for check in checks}


every_rule = pytest.mark.parametrize("rule", VISIBILITIES)
every_model = pytest.mark.parametrize("model", list(MODELS))


# -------------------- built-in models pass


@every_model
@every_rule
def test_every_built_in_model_passes(model: str, rule: str) -> None:
    task = make_task(rule)
    found = results(audit_model(network(model, task), task, queries=40))
    assert found.pop("batch size") == (OK if rule == "event" else BY_DESIGN)
    kind = MODELS[model].network
    assert found.pop("memory blocks", None) == (BY_DESIGN if kind.is_stateful else None)
    assert found.pop("new like known") == (BY_DESIGN if kind.uses_node_ids or kind.is_transductive else OK)
    assert set(found.values()) == {OK}


@pytest.mark.parametrize("options", [{"features": True}, {"floats": True}], ids=["features", "float times"])
@pytest.mark.parametrize(
    "changes", [{}, {"sampling": "recent", "mask": True}, {"stpe": "u", "head": "linear"}], ids=str
)
def test_other_streams_and_settings_pass(options: dict[str, bool], changes: dict[str, Any]) -> None:
    task = make_task(**options)
    assert set(results(audit_model(network("cordgt", task, **changes), task, queries=24)).values()) == {OK}


def test_dropout_is_off_in_an_audit() -> None:
    task = make_task()
    model = network("cordgt", task, dropout=0.5).train()
    assert not has_failures(audit_model(model, task, queries=16))


def test_other_seeds_negatives_and_masks_pass() -> None:
    for protocol in (Protocol(mask_nodes=0.0), Protocol(negatives="historical"), Protocol(pool="nodes", split="time")):
        task = LinkTask.prepare(stream(), protocol, seed=8, device=CPU)
        assert not has_failures(audit_model(network("edgebank", task), task, queries=30))


# -------------------- leaks in a model


@dataclass(frozen=True)
class LeakyReader:
    """A reader that calls another one with other cuts, or with another history."""

    honest: HistoryReader
    leak: Callable[[History, Queries], tuple[History, Queries]]

    def read(self, history: History, queries: Queries) -> Any:
        return self.honest.read(*self.leak(history, queries))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.honest, name)


def with_cuts(queries: Queries, change: Callable[[Tensor], Tensor]) -> Queries:
    return replace(queries, cut=change(queries.cut), pair_cut=change(queries.pair_cut))


def future_edge(task: LinkTask) -> Callable[[History, Queries], tuple[History, Queries]]:
    """Show one event too many."""
    return lambda history, queries: (history, with_cuts(queries, lambda cut: cut + 1))


def same_time_edge(task: LinkTask) -> Callable[[History, Queries], tuple[History, Queries]]:
    """Show all events of the query's own time."""

    def leak(history: History, queries: Queries) -> tuple[History, Queries]:
        end = torch.searchsorted(history.index.elapsed, queries.t, right=True)
        return history, replace(queries, cut=end, pair_cut=end)

    return leak


def batch_order(task: LinkTask) -> Callable[[History, Queries], tuple[History, Queries]]:
    """Show every query what the last one of its batch may see."""
    return lambda history, queries: (history, with_cuts(queries, lambda cut: cut.max().expand_as(cut)))


def training_records(task: LinkTask) -> Callable[[History, Queries], tuple[History, Queries]]:
    """Use the pair records of training, which lack the events of masked nodes."""
    pairs = {k: v for k, v in vars(task.train_history.index).items() if k.startswith("pair_") or k in PAIR_SIZES}

    def leak(history: History, queries: Queries) -> tuple[History, Queries]:
        return replace(history, index=replace(history.index, **pairs)), queries

    return leak


PAIR_SIZES = ("elapsed", "max_pairs", "max_meetings")  # index fields that pair records need besides pair_*


class HiddenRecords:
    """The same leak without another index: EdgeBank without the pairs of masked nodes."""

    def __init__(self, honest: HistoryReader, masked: np.ndarray) -> None:
        self.honest, self.masked = honest, torch.from_numpy(masked)

    def read(self, history: History, queries: Queries) -> Tensor:
        hidden = self.masked[queries.src][:, None] | self.masked[queries.dst]
        return self.honest.read(history, queries) & ~hidden


PLANTED = [
    (future_edge, {"future"}),
    (same_time_edge, {"future", "same moment"}),
    (batch_order, {"batch size"}),
    (training_records, {"new like known"}),
]


@pytest.mark.parametrize("model", ["cordgt", "edgebank"])
@pytest.mark.parametrize(("leak", "caught_by"), PLANTED, ids=lambda x: getattr(x, "__name__", ""))
@every_rule
def test_each_planted_leak_is_caught(leak: Any, caught_by: set[str], model: str, rule: str) -> None:
    task = make_task(rule)
    planted = network(model, task)
    planted.reader = LeakyReader(planted.reader, leak(task))
    checks = audit_model(planted, task, queries=60)
    found = {check.check for check in checks if check.result == FAIL}
    assert caught_by <= found, checks


def test_leaks_in_popularity_are_caught() -> None:
    task = make_task()
    for leak in (future_edge, same_time_edge, batch_order):
        planted = network("popularity", task)
        planted.reader = LeakyReader(planted.reader, leak(task))
        assert has_failures(audit_model(planted, task, queries=60)), leak


def test_pair_records_without_masked_nodes_are_caught() -> None:
    task = make_task()
    planted = network("edgebank", task)
    planted.reader = HiddenRecords(planted.reader, task.split.masked)  # type: ignore[assignment]
    assert results(audit_model(planted, task, queries=40))["new like known"] == FAIL


class IdReader:
    def read(self, history: History, queries: Queries) -> Tensor:
        return queries.dst


class IdModel(LinkModel):
    """A model that scores a destination by its id alone."""

    has_embeddings = False

    def __init__(self) -> None:
        super().__init__()
        self.reader = IdReader()  # type: ignore[assignment]

    def forward(self, batch: Tensor) -> Tensor:
        return batch.double()


def test_model_that_uses_node_ids_is_caught() -> None:
    task = make_task()
    assert results(audit_model(IdModel(), task, queries=20))["new like known"] == FAIL


class RandomModel(IdModel):
    def forward(self, batch: Tensor) -> Tensor:
        return torch.rand(batch.shape)


def test_random_scores_are_caught() -> None:
    task = make_task()
    found = results(audit_model(RandomModel(), task, queries=20))
    assert found["same seed"] == found["future"] == found["batch size"] == FAIL


# -------------------- leaks in a task


@dataclass(frozen=True)
class TieTask(LinkTask):
    """Shows each query all events of its own time."""

    def evaluation_queries(self, part: str, setting: str) -> tuple[np.ndarray, Queries]:
        positions, queries = super().evaluation_queries(part, setting)
        end = torch.from_numpy(self.tie_ranges(positions)[1])
        return positions, replace(queries, cut=end, pair_cut=end)


@dataclass(frozen=True)
class BatchTask(LinkTask):
    """Shows each query what the last of its batch may see."""

    def evaluation_queries(self, part: str, setting: str) -> tuple[np.ndarray, Queries]:
        positions, queries = super().evaluation_queries(part, setting)
        size = self.protocol.eval_batch_size
        last = (torch.arange(len(positions)) // size * size + size - 1).clamp_max(len(positions) - 1)
        return positions, replace(queries, cut=queries.cut[last], pair_cut=queries.pair_cut[last])


@pytest.mark.parametrize(
    "model", [m for m in MODELS if not (MODELS[m].network.is_stateful or MODELS[m].network.is_transductive)] + ["tgn"]
)
@pytest.mark.parametrize(
    ("kind", "caught_by"),
    [(TieTask, {"visible events", "future", "same moment"}), (BatchTask, {"visible events", "future", "batch size"})],
)
def test_task_that_shows_too_much_is_caught(kind: type[LinkTask], caught_by: set[str], model: str) -> None:
    task = make_task(kind=kind)
    found = results(audit_model(network(model, task), task, queries=60))
    assert {found[name] for name in caught_by} == {FAIL}


def test_task_that_shows_too_much_to_a_memory_is_caught() -> None:
    """A memory reads whole blocks, so only small blocks can show too much."""
    task = make_task(kind=TieTask)
    found = results(audit_model(network("jodie", task, block=2), task, queries=20))
    assert {found[name] for name in ("visible events", "future", "same moment")} == {FAIL}


def test_task_whose_records_hide_masked_nodes_is_caught() -> None:
    task = make_task()
    _, queries = task.evaluation_queries("test", "transductive")
    task = replace(task, full_history=training_records(task)(task.full_history, queries)[0])
    found = results(audit_model(network("edgebank", task), task, queries=60))
    assert found["whole records"] == FAIL


# -------------------- data


def data(src: Any, dst: Any, t: Any) -> dict[str, Check]:
    events = EventStream.from_columns(np.array(src), np.array(dst), np.array(t), time=TimeAxis("number"))
    return {check.check: check for check in audit_data(events, Protocol())}


def test_audit_of_data_has_every_check() -> None:
    found = {check.check: check for check in audit_data(stream(), Protocol())}
    assert list(found) == ["ties", "duplicates", "gaps", "split", "repetition", "new nodes", "destinations"]
    assert not has_failures(list(found.values()))


def test_ties_and_duplicates_are_counted() -> None:
    found = data([0, 0, 0, 1, 2, 3, 4, 4], [5, 5, 6, 5, 6, 5, 6, 4], [1, 1, 1, 2, 3, 4, 5, 6])
    assert "37.5% of the events share their time" in found["ties"].detail and "at most 3" in found["ties"].detail
    assert found["duplicates"].detail.startswith("1 events repeat") and "1 self-loops" in found["duplicates"].detail
    assert found["duplicates"].result == WARNING


def test_repetition_and_new_nodes_match_a_slow_count() -> None:
    src, dst, t = columns()
    events = stream()
    test = np.flatnonzero(t > np.quantile(t - t[0], 0.85) + t[0])
    trained = np.flatnonzero(t <= np.quantile(t - t[0], 0.70) + t[0])
    pairs = [frozenset((s, d)) for s, d in zip(src, dst, strict=True)]
    again = np.mean([pairs[i] in {pairs[j] for j in range(len(t)) if t[j] < t[i]} for i in test])
    known = {*src[trained], *dst[trained]}
    new = np.mean([src[i] not in known or dst[i] not in known for i in test])
    found = {check.check: check.detail for check in audit_data(events, Protocol())}
    assert found["repetition"].startswith(f"{again:.1%} of the test events")
    assert found["new nodes"].startswith(f"{new:.1%} of the test events")


def test_gaps_and_a_stream_with_one_time() -> None:
    found = data([0, 1, 2, 3] * 6, [5, 6] * 12, [*range(12), *range(1000, 1012)])
    assert found["gaps"].result == WARNING and "after 11 (event 12 of 24)" in found["gaps"].detail
    still = data([0, 1, 2], [5, 6, 5], [7, 7, 7])
    assert still["gaps"].result == WARNING
    assert still["split"].result == FAIL and "Too few events" in still["split"].detail
    assert "the most frequent has 66.7% of the events" in still["destinations"].detail  # there is no test period


def test_one_destination_fails() -> None:
    found = data([0, 1, 2, 3] * 6, [5] * 24, range(24))
    assert found["destinations"].result == FAIL
    assert found["ties"].result == NOTE


# -------------------- the output in docs/trust.md


def show_planted() -> None:
    """Print which checks find each leak in a small CorDGT (``python tests/unit/test_audit.py``)."""
    task = make_task()
    for name, leak in (("(none)", None), *((leak.__name__, leak) for leak, _ in PLANTED)):
        planted = network("cordgt", task)
        if leak is not None:
            planted.reader = LeakyReader(planted.reader, leak(task))
        checks = audit_model(planted, task, queries=60)
        caught = [f"{check.check}: {check.detail}" for check in checks if check.result == FAIL]
        print(f"{name:<17}", "\n                  ".join(caught or ["passes"]))


if __name__ == "__main__":
    show_planted()


def test_model_that_uses_the_candidate_order_is_caught() -> None:
    class FirstCandidateModel(Edgebank):
        def forward(self, batch: Tensor) -> Tensor:
            scores = super().forward(batch)
            scores[:, 0] += 1e-3
            return scores

    task = make_task()
    found = results(audit_model(FirstCandidateModel(EdgebankSettings(), edge_dim=0, node_dim=0), task, queries=20))
    assert found["candidate order"] == FAIL
