"""Performance regression tests by counts, not by time: the work of a step must not grow unnoticed.

`operation_counts.json` in this folder pins torch operations, FLOPs and peak bytes of a step, for small fixed sizes.
A lost fast path raises one of them. If a rise is intended, update the pins:

    python tests/unit/test_operation_counts.py --update
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
from cordgt.runtime.profiling import OpCounts, count_ops
from cordgt.tasks.link import LinkTask
from cordgt.tasks.scoring import score_queries
from cordgt.training.model_factory import build_model
from cordgt.training.settings import make_settings
from cordgt.training.step import Step

PINS = Path(__file__).with_name("operation_counts.json")
BATCH = 24
SIZES = {"hidden": 16, "heads": 3, "layers": 2, "fanout": (7, 2), "batch_size": BATCH}
# A count may exceed its pin by MARGIN (torch versions differ a little); below GAIN it must be pinned again.
MARGIN = {"ops": 1.05, "flops": 1.01, "peak_bytes": 1.05}
GAIN = 0.7


@dataclass(frozen=True)
class Work:
    """Work of one model: a training step, reading a batch (as on the CPU or on a GPU), evaluation or recommendation."""

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
    events = synthetic_stream(nodes=40, events=900, seed=1).stream
    edge_x = np.random.default_rng(0).normal(size=(events.n_events, 5)).astype(np.float32)
    return replace(events, edge_x=edge_x) if features else events


def count(work: Work) -> OpCounts:
    settings = make_settings(work.model, SIZES | dict(work.changes))
    events = stream(work.features)
    task = LinkTask.prepare(events, settings.protocol, seed=0, device=torch.device("cpu"))
    network = build_model(settings, edge_dim=events.edge_dim, node_dim=events.node_dim).train()
    position = torch.from_numpy(task.split.train[-BATCH:])
    if work.what == "step":
        step = Step(network, task, torch.optim.Adam(network.parameters()), 0, 1)
        step(position, torch.ones(BATCH))  # Adam creates its state in the first step
        return count_ops(lambda: step(position, torch.ones(BATCH)))
    if work.what in ("evaluate", "recommend"):
        return count_inference(network, task, work.what)
    queries = task.queries(position, position[:1].expand_as(position), task.pools.train, seed=0, epoch=1)
    history = task.train_history
    if work.what == "read as on a GPU":
        history = replace(history, index=history.index.without_kernels(), epoch=torch.ones((), dtype=torch.int64))
    network.reader.read(history, queries)  # fills caches
    return count_ops(lambda: network.reader.read(history, queries))


def count_inference(network: LinkModel, task: LinkTask, what: str) -> OpCounts:
    """Score validation events, or one source against all destinations, repeated to need several chunks."""
    queries = task.evaluation_queries("validation", "transductive")[1].take(slice(120))
    if what == "recommend":
        candidates = torch.from_numpy(np.unique(task.stream.dst)).repeat(9)[None]
        queries = replace(queries.take(slice(1)), dst=candidates)
    return count_ops(lambda: score_queries(network, task.full_history, queries, max_pairs_per_batch=150))


def pins() -> dict[str, dict[str, Any]]:
    return json.loads(PINS.read_text(encoding="utf-8"))


def differences(name: str, found: OpCounts, pinned: dict[str, Any]) -> list[str]:
    """Return a message for each count above its margin, or too far below its pin."""
    messages = []
    for key, margin in MARGIN.items():
        now, then = getattr(found, key), pinned[key]
        if now > then * margin:
            messages.append(
                f"{name}: {key} rose from {then:,} to {now:,}{_largest_rises(found, pinned) if key == 'ops' else ''}"
            )
        elif now < then * GAIN:
            messages.append(f"{name}: {key} fell from {then:,} to {now:,}: pin the new value")
    return messages


def _largest_rises(found: OpCounts, pinned: dict[str, Any]) -> str:
    more = {k: n - pinned["by_name"].get(k, 0) for k, n in found.by_name.items()}
    most = sorted((k for k in more if more[k] > 0), key=lambda k: -more[k])[:5]
    return f" ({', '.join(f'{k} +{more[k]}' for k in most)})"


@pytest.mark.parametrize("name", WORKS)
def test_no_more_work_than_pinned(name: str) -> None:
    messages = differences(name, count(WORKS[name]), pins()[name])
    assert not messages, "\n".join([*messages, "Intended? python tests/unit/test_operation_counts.py --update"])


def peak_of_a_step(size: int) -> int:
    settings = make_settings("cordgt", SIZES | {"batch_size": size})
    task = LinkTask.prepare(stream(False), settings.protocol, seed=0, device=torch.device("cpu"))
    network = build_model(settings, edge_dim=0, node_dim=0).train()
    step = Step.from_settings(settings, task, network, torch.optim.Adam(network.parameters()), 1)
    position, weight = torch.from_numpy(task.split.train[-size:]), torch.ones(size)
    step(position, weight)  # Adam creates its state in the first step
    return count_ops(lambda: step(position, weight)).peak_bytes


def test_micro_batches_bound_the_peak_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger batch needs hardly more memory than a micro-batch."""
    paper = make_settings("cordgt", {"fanout": (32, 1)})
    assert build_model(paper, edge_dim=0, node_dim=0).chunk_size == 25
    monkeypatch.setattr(Cordgt, "chunk_size", 25)
    assert peak_of_a_step(100) < 1.1 * peak_of_a_step(50)


def test_rises_and_falls_are_reported() -> None:
    pinned = {"ops": 100, "flops": 1000, "peak_bytes": 1000, "by_name": {"aten.add": 60, "aten.mul": 40}}
    grown = OpCounts(flops=1000, ops=130, peak_bytes=500, moved_bytes=0, by_name={"aten.add": 90, "aten.mul": 40})
    assert differences("a step", grown, pinned) == [
        "a step: ops rose from 100 to 130 (aten.add +30)",
        "a step: peak_bytes fell from 1,000 to 500: pin the new value",
    ]
    assert differences("a step", replace(grown, ops=104, peak_bytes=1000), pinned) == []


def update() -> None:
    """Count anew and write the pins."""
    torch.set_num_threads(1)
    found = {name: count(work) for name, work in WORKS.items()}
    new_pins = {
        name: {"ops": c.ops, "flops": c.flops, "peak_bytes": c.peak_bytes, "by_name": dict(sorted(c.by_name.items()))}
        for name, c in found.items()
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(pinned)}" for name, pinned in new_pins.items())  # a line each
    PINS.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    for name, c in found.items():
        print(f"{name}: {c.ops:,} operations, {c.flops / 1e6:,.1f} MFLOP, {c.peak_bytes / 2**20:,.2f} MB")


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(__doc__)
    update()
