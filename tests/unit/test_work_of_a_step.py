"""A guard for speed that needs no clock: what a step does must not grow unnoticed.

`work.json` beside this file holds how many torch operations a step takes, how much arithmetic, and how many bytes of
tensors at once, for small fixed sizes. A fast path that is lost raises one of them. Where a change is meant to:

    python tests/unit/test_work_of_a_step.py --update
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cordgt.events.stream import EventStream
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.models.base import LinkModel
from cordgt.models.cordgt import Cordgt
from cordgt.runtime.profiling import Counts, counts_of
from cordgt.tasks.link import LinkTask, score_queries
from cordgt.training.model_factory import make_network
from cordgt.training.settings import make
from cordgt.training.step import Step

PINS = Path(__file__).with_name("work.json")
BATCH = 24
SIZES = {"hidden": 16, "heads": 3, "layers": 2, "fanout": (7, 2), "batch_size": BATCH}
# How far a count may lie above its pin (versions of torch differ a little), and below it before it is pinned anew.
MARGIN = {"ops": 1.05, "flops": 1.01, "peak_bytes": 1.05}
GAIN = 0.7


@dataclass(frozen=True)
class Work:
    """A piece of work of one model: a whole training step, reading a batch as on the CPU or as on a GPU, or answers."""

    what: str
    model: str = "cordgt"
    features: bool = False
    changes: tuple[tuple[str, Any], ...] = ()


WORKS = {
    "cordgt, step": Work("step"),
    "cordgt, step with the mask": Work("step", changes=(("mask", True),)),
    "cordgt, step with event features": Work("step", features=True),
    "cordgt, read": Work("read"),
    "cordgt, read as on a GPU": Work("read as on a GPU"),
    "cordgt, evaluate": Work("evaluate"),
    "cordgt, recommend": Work("recommend"),
}


@cache
def stream(features: bool) -> EventStream:
    made = synthetic_stream(nodes=40, events=900, seed=1).stream
    edge_x = np.random.default_rng(0).normal(size=(made.n_events, 5)).astype(np.float32)
    return replace(made, edge_x=edge_x) if features else made


def count(work: Work) -> Counts:
    settings = make(work.model, SIZES | dict(work.changes))
    on = stream(work.features)
    task = LinkTask.prepare(on, settings.protocol, seed=0, device=torch.device("cpu"))
    network = make_network(settings, edge_dim=on.edge_dim, node_dim=on.node_dim).train()
    position = torch.from_numpy(task.split.train[-BATCH:])
    if work.what == "step":
        step = Step(network, task, torch.optim.Adam(network.parameters()), 0, 1)
        step(position, torch.ones(BATCH))  # Adam makes its state at the first
        return counts_of(lambda: step(position, torch.ones(BATCH)))
    if work.what in ("evaluate", "recommend"):
        return answers(network, task, work.what)
    queries = task.queries(position, position[:1].expand_as(position), task.pools.train, seed=0, epoch=1)
    history = task.training
    if work.what == "read as on a GPU":
        history = replace(history, index=history.index.plain(), epoch=torch.ones((), dtype=torch.int64))
    network.reader.pairs(history, queries)  # what is kept is made
    return counts_of(lambda: network.reader.pairs(history, queries))


def answers(network: LinkModel, task: LinkTask, what: str) -> Counts:
    """Scoring events of the validation period, or one source against three times all destinations: several chunks."""
    queries = task.evaluation_queries("validation", "transductive")[1].take(slice(120))
    if what == "recommend":
        everyone = torch.from_numpy(np.unique(task.stream.dst)).repeat(9)[None]
        queries = replace(queries.take(slice(1)), dst=everyone)
    return counts_of(lambda: score_queries(network, task.whole, queries, max_pairs_per_batch=150))


def pins() -> dict[str, dict[str, Any]]:
    return json.loads(PINS.read_text(encoding="utf-8"))


def differences(name: str, found: Counts, pinned: dict[str, Any]) -> list[str]:
    """What rose beyond the margin, or fell so far that the pin guards nothing, in sentences."""
    said = []
    for key, margin in MARGIN.items():
        now, then = getattr(found, key), pinned[key]
        if now > then * margin:
            said.append(f"{name}: {key} rose from {then:,} to {now:,}{_which(found, pinned) if key == 'ops' else ''}")
        elif now < then * GAIN:
            said.append(f"{name}: {key} fell from {then:,} to {now:,}: pin it, so that it stays")
    return said


def _which(found: Counts, pinned: dict[str, Any]) -> str:
    more = {k: n - pinned["by_name"].get(k, 0) for k, n in found.by_name.items()}
    most = sorted((k for k in more if more[k] > 0), key=lambda k: -more[k])[:5]
    return f" ({', '.join(f'{k} +{more[k]}' for k in most)})"


@pytest.mark.parametrize("name", WORKS)
def test_no_more_work_than_pinned(name: str) -> None:
    said = differences(name, count(WORKS[name]), pins()[name])
    assert not said, "\n".join([*said, "Meant? python tests/unit/test_work_of_a_step.py --update"])


def peak_of_a_step(size: int) -> int:
    settings = make("cordgt", SIZES | {"batch_size": size})
    task = LinkTask.prepare(stream(False), settings.protocol, seed=0, device=torch.device("cpu"))
    network = make_network(settings, edge_dim=0, node_dim=0).train()
    step = Step.of(settings, task, network, torch.optim.Adam(network.parameters()), 1)
    position, weight = torch.from_numpy(task.split.train[-size:]), torch.ones(size)
    step(position, weight)  # Adam makes its state at the first
    return counts_of(lambda: step(position, weight)).peak_bytes


def test_a_cpu_works_off_a_batch_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a larger batch takes is what a part takes, and little more: its layers stay in the cache."""
    paper = make("cordgt", {"fanout": (32, 1)})
    assert make_network(paper, edge_dim=0, node_dim=0).micro_batch_size == 25
    monkeypatch.setattr(Cordgt, "micro_batch_size", 25)
    assert peak_of_a_step(100) < 1.1 * peak_of_a_step(50)


def test_a_rise_is_told() -> None:
    pinned = {"ops": 100, "flops": 1000, "peak_bytes": 1000, "by_name": {"aten.add": 60, "aten.mul": 40}}
    grown = Counts(flops=1000, ops=130, peak_bytes=500, moved_bytes=0, by_name={"aten.add": 90, "aten.mul": 40})
    assert differences("a step", grown, pinned) == [
        "a step: ops rose from 100 to 130 (aten.add +30)",
        "a step: peak_bytes fell from 1,000 to 500: pin it, so that it stays",
    ]
    assert differences("a step", replace(grown, ops=104, peak_bytes=1000), pinned) == []


def update() -> None:
    """Count anew and write the pins."""
    torch.set_num_threads(1)
    found = {name: count(work) for name, work in WORKS.items()}
    kept = {
        name: {"ops": c.ops, "flops": c.flops, "peak_bytes": c.peak_bytes, "by_name": dict(sorted(c.by_name.items()))}
        for name, c in found.items()
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(pinned)}" for name, pinned in kept.items())  # a line each
    PINS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    for name, c in found.items():
        print(f"{name}: {c.ops:,} operations, {c.flops / 1e6:,.1f} MFLOP, {c.peak_bytes / 2**20:,.2f} MB")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(__doc__)
    update()
