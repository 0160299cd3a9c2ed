"""Memory models: ten events by hand, a slow version with a dictionary for each node, and the training state."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cordgt import models
from cordgt.callbacks import Callback
from cordgt.errors import RunError, SettingError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.inference.predictor import NOTE_NO_HISTORY, NOTE_NOT_IN_MEMORY, Predictor
from cordgt.inference.run import Run
from cordgt.models.jodie import Jodie, gap_statistics
from cordgt.models.memory import MemoryModel
from cordgt.models.tcl import Tcl
from cordgt.nn.graph_attention import attend, attend_reference
from cordgt.nn.layers import TimeEncoding
from cordgt.nn.time_encoding import encode_time
from cordgt.runtime.signals import TrainingStopped
from cordgt.tasks.histories import build_history
from cordgt.tasks.link import LinkTask
from cordgt.tasks.protocol import Protocol
from cordgt.tasks.scoring import score_queries
from cordgt.training import trainer
from cordgt.training.model_factory import build_model
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import make_settings
from cordgt.training.step import Step, prepare_capture
from cordgt.workflows.train import train

CPU = torch.device("cpu")
KINDS = ("tgn", "dyrep", "jodie")
SMALL: dict[str, Any] = {"memory_dim": 4, "time_dim": 6, "num_neighbors": 2, "heads": 2, "block": 3}
every_kind = pytest.mark.parametrize("kind", KINDS)


def network(kind: str, edge_dim: int = 0, node_dim: int = 0, **changes: Any) -> MemoryModel:
    made = build_model(make_settings(kind, SMALL | changes, seed=3), edge_dim=edge_dim, node_dim=node_dim)
    assert isinstance(made, MemoryModel)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return made.eval()


def history(src: Any, dst: Any, t: Any, edge_x: Tensor | None = None, n_nodes: int | None = None) -> History:
    src, dst = np.array(src, np.int64), np.array(dst, np.int64)
    n = n_nodes or int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
    return History(TemporalIndex.build(src, dst, np.array(t, np.float64), n), edge_x, None, seed=0)


def queries(src: list[int], dst: list[list[int]], t: list[float], cut: list[int]) -> Queries:
    at = torch.tensor(cut)
    return Queries(torch.tensor(src), torch.tensor(dst), torch.tensor(t, dtype=torch.float64), at, at)


# --- ten events by hand ---

#       position:  0  1  2 | 3  4  5 | 6  7  8 | 9
TEN = {
    "src": [0, 2, 0, 3, 0, 4, 2, 2, 1, 3],
    "dst": [1, 1, 3, 3, 1, 0, 4, 1, 0, 4],
    "t": [0, 1, 1, 2, 5, 5, 6, 8, 8, 9],
}


class CountingUpdater(nn.Module):
    """An updater whose memory holds the number of messages, and the sum of their parts about the other end."""

    def forward(self, message: Tensor, memory: Tensor) -> Tensor:
        dim = memory.shape[-1]
        other = message[:, dim : dim + 1]
        return torch.cat([memory[:, :1] + 1, memory[:, 1:2] + other, memory[:, 2:]], dim=-1)


def test_ten_events() -> None:
    """Blocks of three: the last message of a block is pending until the node's next message."""
    model = network("tgn")
    model.updater = CountingUpdater()
    past = history(**TEN)

    def state(blocks: int) -> dict[str, list[Any]]:
        now = model._after_blocks(past, blocks).state
        assert int(now.position) == 3 * blocks
        return {
            "pending": now.pending.tolist(),
            "last": now.last.tolist(),
            "n_messages": now.memory[:, 0].tolist(),
            "sum_of_other": now.memory[:, 1].tolist(),
            "other": now.other[:, 0].tolist(),
        }

    nothing = [0.0] * 6
    assert state(0) == {
        "pending": [-1] * 6, "last": nothing, "n_messages": nothing, "sum_of_other": nothing, "other": nothing
    }  # fmt: skip
    # 0-1, 2-1, 0-3: the last message to node 0 is from 3, to node 1 from 2; all memory was empty
    assert state(1) == {
        "pending": [2, 1, 1, 2, -1, -1], "last": nothing, "n_messages": nothing, "sum_of_other": nothing,
        "other": nothing
    }  # fmt: skip
    # 3-3, 0-1, 4-0: pending messages are applied at 0, 1 and 3; 4 is new, and 0 had one message
    assert state(2) == {
        "pending": [5, 4, 1, 3, 5, -1],
        "last": [1.0, 1.0, 0.0, 1.0, 0.0, 0.0],
        "n_messages": [1.0, 1.0, 0.0, 1.0, 0.0, 0.0],
        "sum_of_other": nothing,
        "other": [0.0, 1.0, 0.0, 1.0, 1.0, 0.0],
    }
    # 2-4, 2-1, 1-0: the first messages of 2 and 4 are applied now; 4's says that 0 had one message
    assert state(3) == {
        "pending": [8, 8, 7, 3, 6, -1],
        "last": [5.0, 5.0, 1.0, 1.0, 5.0, 0.0],
        "n_messages": [2.0, 2.0, 1.0, 1.0, 1.0, 0.0],
        "sum_of_other": [0.0, 1.0, 0.0, 0.0, 1.0, 0.0],
        "other": [2.0, 2.0, 2.0, 1.0, 1.0, 0.0],
    }
    # the tenth event fills no block, so it is not visible
    link_queries = queries([3], [[4]], [9.0], [10])
    shorter = history(*(column[:9] for column in TEN.values()))
    model_without_it = network("tgn")
    model_without_it.updater = CountingUpdater()
    now = model._after_blocks(past, int(link_queries.pair_cut[0]) // 3)
    assert torch.equal(model_without_it._after_blocks(shorter, 3).state.memory, now.state.memory)


# --- a slow version ---


class SlowMemory:
    """Memory as a dictionary, one event at a time, one node at a time, with the model's own updater and encodings."""

    def __init__(self, model: MemoryModel, past: History, src: list[int], dst: list[int]) -> None:
        self.model, self.past, self.src, self.dst = model, past, src, dst
        self.memory: dict[int, Tensor] = {}
        self.last: dict[int, float] = {}
        self.pending: dict[int, tuple[Tensor, int]] = {}

    def updated(self, node: int) -> tuple[Tensor, float]:
        memory, last = self.memory.get(node, torch.zeros(4)), self.last.get(node, 0.0)
        if node not in self.pending:
            return memory, last
        other, pos = self.pending[node]
        t = float(self.past.index.elapsed[pos])
        edge_x = [] if self.past.edge_x is None else [self.past.edge_x[pos]]
        time = self.model.time(torch.tensor(t - last, dtype=torch.float64))
        return self.model.updater(torch.cat([memory, other, *edge_x, time])[None], memory[None])[0], t

    def block(self, start: int, stop: int) -> None:
        messages: dict[int, tuple[Tensor, int]] = {}
        for pos in range(start, stop):
            for node, other in ((self.src[pos], self.dst[pos]), (self.dst[pos], self.src[pos])):
                messages[node] = self.message(other, pos), pos
        for node in messages:
            self.memory[node], self.last[node] = self.updated(node)
        self.pending |= messages

    def message(self, node: int, pos: int) -> Tensor:
        if models.MODELS["dyrep"].network is type(self.model):
            t = float(self.past.index.elapsed[pos])
            return self.attended(node, t, int(self.past.index.tie_start[pos]))
        return self.updated(node)[0]

    def attended(self, node: int, t: float, cut: int) -> Tensor:
        """One layer of attention, keys and values projected one by one."""
        module, own = self.model.layers[0], self.updated(node)[0]  # type: ignore[index]
        events = [p for p in range(cut) if node in (self.src[p], self.dst[p])][-2:]
        now = self.model.time(torch.zeros((), dtype=torch.float64))
        attended = torch.zeros(10)
        if events:
            keys = []
            for p in events:
                other = self.dst[p] if self.src[p] == node else self.src[p]
                age = self.model.time(torch.tensor(t - float(self.past.index.elapsed[p]), dtype=torch.float64))
                edge_x = [] if self.past.edge_x is None else [self.past.edge_x[p]]
                keys.append(torch.cat([self.updated(other)[0], *edge_x, age]))
            key, value = (torch.stack(keys) @ w.T for w in (module.key, module.value))
            query = module.query(torch.cat([own, now]))
            parts = []
            for h in (slice(0, 5), slice(5, 10)):
                weight = (key[:, h] @ query[h] / 5**0.5).softmax(dim=0)
                parts.append(weight @ (value[:, h] + module.value_bias[h]))
            attended = module.out(torch.cat(parts))
        return module.fc2(torch.relu(module.fc1(torch.cat([attended, own]))))

    def embedding(self, node: int, t: float, cut: int) -> Tensor:
        if type(self.model).__name__ == "Tgn":
            return self.attended(node, t, cut)
        memory, last = self.updated(node)
        if type(self.model).__name__ == "Dyrep":
            return memory
        gap = (t - last - float(self.model.gap_mean)) / float(self.model.gap_deviation)
        return memory * (1 + self.model.project(torch.tensor([gap], dtype=torch.float32)))


@every_kind
@pytest.mark.parametrize("features", [False, True])
def test_against_a_slow_version(kind: str, features: bool) -> None:
    rng = np.random.default_rng(2)
    src, dst = (rng.integers(0, 7, 40).tolist() for _ in range(2))
    t = rng.choice([0, 0, 1, 3], 40).cumsum()
    edge_x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) if features else None
    past = history(src, dst, t, edge_x)
    model = network(kind, edge_dim=3 if features else 0)
    slow, cut = SlowMemory(model, past, src, dst), 0
    with torch.no_grad():
        for start in range(0, 36, 3):
            slow.block(start, start + 3)
            cut = int(past.index.tie_start[min(start + 4, 39)])
            if cut // 3 * 3 != start + 3:
                continue  # a tie reaches back over the block
            link_queries = queries([src[start], 9], [[dst[start], 6], [1, 2]], [float(t[start + 4])] * 2, [cut, cut])
            got = score_queries(model, past, link_queries)
            for i, (u, candidates) in enumerate(zip([src[start], 9], link_queries.dst.tolist(), strict=True)):
                for j, v in enumerate(candidates):
                    ends = [slow.embedding(node, float(t[start + 4]), cut) for node in (u, v)]
                    np.testing.assert_allclose(got[i, j], model.head(*ends).item(), rtol=0, atol=1e-5)
    assert cut > 20


def test_cosines_against_torch() -> None:
    """Seconds of thirty years at every frequency, and no time at all; the derivative too."""
    elapsed = torch.tensor([[0.0, 1e9, 0.5], [123456.0, 3.0, 7e7]], dtype=torch.float64)
    time = TimeEncoding(40)
    with torch.no_grad():
        time.phase += torch.linspace(-4, 4, 40)
    got, expected = encode_time(elapsed, time.frequency, time.phase), time(elapsed)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    grad = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(0))
    pairs = (torch.autograd.grad(y, (time.frequency, time.phase), grad) for y in (got, expected))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


@pytest.mark.parametrize("dropped", [False, True])
def test_attention_against_torch(dropped: bool) -> None:
    """The compiled loop and its derivative; a node without events gets zeros, and so does its gradient."""
    generator = torch.Generator().manual_seed(0)
    query, x, grad = (torch.randn(size, generator=generator) for size in ((5, 2, 7), (5, 3, 7), (5, 2, 7)))
    attn_mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 1], [1, 1, 0]], dtype=torch.bool)
    scale = torch.tensor([0.0, 1.25, 1.25]).expand(5, 2, 3).contiguous() if dropped else None
    query.requires_grad_()
    x.requires_grad_()
    got, expected = attend(query, x, attn_mask, scale), attend_reference(query, x, attn_mask, scale)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    pairs = zip(*(torch.autograd.grad(y, (query, x), grad) for y in (got, expected)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert got[2].abs().sum() == 0


def test_gaps_between_events() -> None:
    past = history([0, 0, 1, 0], [1, 2, 1, 2], [0, 2, 5, 9])
    # node 0: 0, 2, then 7; node 1: 0, 5; node 2: 2, then 7 — the last two events lie after the cut
    mean, deviation = gap_statistics(past, 3)
    assert mean == np.mean([0, 2, 0, 5, 2]) and deviation == np.std([0, 2, 0, 5, 2])
    assert gap_statistics(past, 0) == (0.0, 1.0) and gap_statistics(history([0], [1], [0]), 1) == (0.0, 1.0)


# --- replay ---


@every_kind
def test_queries_in_any_order(kind: str) -> None:
    """Late, early, late again, all at once: a state past the query is replayed."""
    model, past = network(kind), history(**TEN)
    link_queries = queries([0, 2, 1], [[1], [4], [3]], [9.0, 1.0, 6.0], [9, 3, 6])
    together = score_queries(model, past, link_queries)
    for i in (0, 1, 2, 0):
        one = Queries(**{name: value[i : i + 1] for name, value in vars(link_queries).items()})
        np.testing.assert_allclose(score_queries(model, past, one), together[i : i + 1], rtol=0, atol=1e-6)


@every_kind
def test_changed_weights_or_events_invalidate_the_cache(kind: str) -> None:
    model, past, link_queries = network(kind), history(**TEN), queries([0], [[1]], [9.0], [9])
    before = score_queries(model, past, link_queries)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        model.updater.weight_hh += 1.0
    assert score_queries(model, past, link_queries) != before
    model.load_state_dict(weights)
    assert score_queries(model, past, link_queries) == before
    other = history(**(TEN | {"dst": [4, *TEN["dst"][1:]]}))
    assert score_queries(model, other, link_queries) != before
    assert score_queries(model, past, link_queries) == before
    swapped = dataclasses.replace(past, edge_x=torch.ones(10, 0))
    assert score_queries(model, swapped, link_queries) == before


@every_kind
def test_nodes_without_history_and_a_single_hop(kind: str) -> None:
    """No pair repeats, and the queries are about unknown nodes: scores are finite, and unknown nodes alike."""
    model = network(kind, layers=2) if kind != "jodie" else network(kind)
    past = history(range(0, 12, 2), range(1, 12, 2), range(6))
    found = score_queries(model, past, queries([0, 40, 0], [[40, 41], [1, 12], [1, 3]], [6.0] * 3, [6, 6, 0]))
    assert np.isfinite(found).all() and found[0, 0] == found[0, 1]
    with torch.inference_mode():
        embedded = model.embed(
            model.read_nodes(past, torch.tensor([0, 50, 51]), torch.full((3,), 6.0), torch.tensor([6, 6, 6]))
        )
    assert torch.equal(embedded[1], embedded[2]) and embedded.isfinite().all()


def test_in_blocks_leaves_the_model_unchanged() -> None:
    model, past, link_queries = network("tgn"), history(**TEN), queries([0], [[1]], [9.0], [9])
    other = model.in_blocks(1)
    assert other.block == 1 and model.block == 3
    assert score_queries(other, past, link_queries) != score_queries(model, past, link_queries)


def predictor(kind: str, n_events: int, **changes: Any) -> Predictor:
    """An untrained model over the first of the ten events; all nodes count as known."""
    columns = [column[:n_events] for column in TEN.values()]
    stream = EventStream.from_columns(*columns, time=TimeAxis("number"))
    past = build_history(stream, seed=0, device=CPU)
    return Predictor(network(kind, **changes), stream, past, np.ones(stream.n_nodes, dtype=bool))


@every_kind
def test_nodes_not_yet_in_memory_are_noted(kind: str) -> None:
    """JODIE and DyRep score such a node like an unknown one. TGN reads its neighbors and does not."""
    blind = kind != "tgn"
    link_predictor = predictor(kind, 2)  # 0-1 and 2-1, blocks of three
    (known, unknown), notes = link_predictor.score([0, 77], [1, 78])
    assert (known == unknown) == blind
    assert notes.tolist() == [
        f"src: {NOTE_NOT_IN_MEMORY}; dst: {NOTE_NOT_IN_MEMORY}" if blind else "",
        f"src: {NOTE_NO_HISTORY}; dst: {NOTE_NO_HISTORY}",
    ]
    assert predictor(kind, 2, block=2).score([0], [1])[1].tolist() == [""]
    # node 4 first occurs in event 5, which belongs to the second block
    assert predictor(kind, 6).notes(np.arange(5), np.full(5, 6)).tolist() == [""] * 5
    assert predictor(kind, 6).notes(np.arange(5), np.full(5, 5)).tolist() == [*[""] * 4, NOTE_NO_HISTORY]
    few = predictor(kind, 6, block=4)
    assert few.notes(np.arange(5), np.full(5, 6)).tolist() == [*[""] * 4, NOTE_NOT_IN_MEMORY if blind else ""]


def test_short_stream_gives_a_training_hint() -> None:
    settings = make_settings("jodie", {"block": 30}).model_settings
    hint = Jodie.training_hint(settings, 59, 20)
    assert "blocks of 30" in hint and "batches of 20" in hint and "--set block=2 --set batch_size=2" in hint
    assert not Jodie.training_hint(settings, 60, 20) and Jodie.training_hint(settings, 60, 31)
    assert not Tcl.training_hint(make_settings("tcl", {}).model_settings, 3, 100)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory_dim": 0}, "memory_dim=0"),
        ({"block": 0}, "block=0"),
        ({"heads": 3}, "heads=3"),
        ({"num_neighbors": 0}, "num_neighbors=0"),
        ({"dropout": 1.0}, r"dropout=1\.0"),
    ],
)
def test_invalid_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make_settings("tgn", SMALL | changes)


def test_default_learning_rate_is_the_originals() -> None:
    slowly = {name for name in models.MODELS if make_settings(name, {}).training.lr == 0.0001}
    assert (
        slowly == {"tgn", "dyrep", "jodie", "tgat", "tcl", "tgsrec"}
        and make_settings("cordgt", {}).training.lr == 0.001
    )
    assert make_settings("tgn", {"lr": 0.01}).training.lr == 0.01


# --- training ---


def tied_stream(n: int = 130) -> EventStream:
    """Thirty events at one time, across batches of ten, in the middle of training."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, 8, n)
    dst = 10 + (src + rng.integers(0, 2, n)) % 8
    t = rng.choice([0, 1, 2], n).cumsum()
    t[25:55] = t[25]
    return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name="tied")


def steps(kind: str, stream: EventStream, batches: int) -> tuple[list[float], MemoryModel, LinkTask]:
    task = LinkTask.prepare(stream, Protocol(), seed=3, device=CPU)
    model = network(kind).train()
    step = Step(model, task, torch.optim.Adam(model.parameters(), lr=0.01), 3, 1)
    torch.manual_seed(0)
    found = []
    for batch in torch.from_numpy(task.split.train).split(10)[:batches]:
        found.append(float(step(batch, torch.ones(len(batch)))))
        first = int(stream.tie_start[int(batch[0])])
        pending = model.get_training_state()["pending"]
        in_training = np.isin(np.arange(first), task.split.train)
        for node in range(stream.n_nodes):
            of_node = np.flatnonzero(in_training & ((stream.src[:first] == node) | (stream.dst[:first] == node)))
            assert pending[node] == (of_node[-1] if len(of_node) else -1), "each event once, once it is earlier"
    return found, model, task


@every_kind
def test_batch_sees_only_earlier_events(kind: str) -> None:
    """Also if one time spans three batches; events of masked nodes never enter memory."""
    stream = tied_stream()
    losses, model, task = steps(kind, stream, 99)
    assert task.split.masked.any() and np.isfinite(losses).all()
    for name, parameter in model.named_parameters():
        learns = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert learns != (kind == "dyrep" and name.startswith("layers.")), f"{name} learns: {learns}"


@every_kind
def test_messages_do_not_train_the_time_encoding(kind: str) -> None:
    """A small step of a frequency turns seconds far. Only TGN's attention trains it, with ``learn_time``."""
    past = history([0, 1, 0, 2], [1, 2, 2, 1], [0, 9, 700, 90_000])
    for changes in [{}, {"learn_time": True}][: 1 + (kind == "tgn")]:
        model = network(kind, **changes)
        now = model._after_blocks(past, 1)
        model.read_memory(now, torch.arange(3))[0].sum().backward()
        assert model.updater.weight_ih.grad is not None and model.time.frequency.grad is None
        assert isinstance(model.time.frequency, nn.Parameter) == bool(changes)
        model(model.read(past, queries([0], [[1, 2]], [90_009.0], [4]))).sum().backward()
        assert (model.time.frequency.grad is not None) == bool(changes)


@every_kind
def test_training_knows_nothing_later(kind: str) -> None:
    """Other events after the fourth batch: its loss and all before keep every bit."""
    stream = tied_stream()
    task = LinkTask.prepare(stream, Protocol(), seed=3, device=CPU)
    from_here = int(task.split.train[40])
    dst = stream.dst.copy()
    dst[from_here : int(task.split.train[-1])] = dst[from_here : int(task.split.train[-1])][::-1]
    other = dataclasses.replace(stream, dst=dst)
    again = LinkTask.prepare(other, Protocol(), seed=3, device=CPU)
    if not np.array_equal(again.split.train, task.split.train):
        pytest.skip("the split hides other events")
    assert steps(kind, stream, 4)[0] == steps(kind, other, 4)[0]


@every_kind
def test_another_epoch_begins_with_nothing(kind: str) -> None:
    _, model, task = steps(kind, tied_stream(), 99)
    step = Step(model, task, torch.optim.Adam(model.parameters(), lr=0.0), 3, 2)
    first = torch.from_numpy(task.split.train[:10])
    step(first, torch.ones(10))
    assert (model.get_training_state()["pending"] == -1).all() and (model.get_training_state()["memory"] == 0).all()


def train_steps(kind: str, stream: EventStream, *, fixed: bool) -> tuple[list[float], dict[str, Tensor], MemoryModel]:
    """Return the losses of two epochs in batches of ten, the last one padded, and the state afterwards."""
    task = LinkTask.prepare(stream, Protocol(), seed=3, device=CPU)
    model = network(kind, edge_dim=stream.edge_dim, dropout=0.0 if kind != "jodie" else 0).train()
    assert not fixed or prepare_capture(task, model, 10)
    step, losses = Step(model, task, torch.optim.SGD(model.parameters(), lr=0.1), 3, 1), []
    for epoch in (1, 2):
        step.set_epoch(epoch)
        model.start_epoch(0)
        for batch in torch.from_numpy(task.split.train).split(10):
            weight = torch.cat([torch.ones(len(batch)), torch.zeros(10 - len(batch))])
            padded = torch.cat([batch, batch[-1:].expand(10 - len(batch))])
            losses.append(float(step(padded, weight)))
    return losses, {k: v.clone() for k, v in model.get_training_state().items()}, model


@every_kind
def test_steps_of_fixed_shapes_train_the_same(kind: str) -> None:
    """With ties across batches, repeated nodes, self-loops and masked nodes; the messages are the same to the bit."""
    stream = tied_stream()
    src, dst = stream.ids.decode(stream.src).to_pylist(), stream.ids.decode(stream.dst).to_pylist()
    dst[60:64] = src[60:64]
    stream = EventStream.from_columns(src, dst, stream.t, time=TimeAxis("number"), name="tied")
    plain, fixed = (train_steps(kind, stream, fixed=fixed) for fixed in (False, True))
    np.testing.assert_allclose(fixed[0], plain[0], rtol=1e-5)
    for name, value in plain[1].items():
        torch.testing.assert_close(fixed[1][name], value, rtol=1e-4, atol=1e-5)
    assert torch.equal(fixed[1]["pending"], plain[1]["pending"]) and torch.equal(fixed[1]["last"], plain[1]["last"])
    for a, b in zip(plain[2].parameters(), fixed[2].parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


@every_kind
def test_a_fixed_state_is_restored_in_place(kind: str) -> None:
    """A CUDA graph reads and writes the same tensors again and again."""
    _, saved, model = train_steps(kind, tied_stream(), fixed=True)
    tensors = model.get_training_state()
    addresses = {name: x.data_ptr() for name, x in tensors.items()}
    model.start_epoch(0)
    assert (model.get_training_state()["pending"] == -1).all() and not tensors["memory"].any()
    model.set_training_state(saved)
    for name, x in model.get_training_state().items():
        assert torch.equal(x, saved[name]) and x.data_ptr() == addresses[name]
    model.set_training_state({})
    assert (model.get_training_state()["pending"] == -1).all()


def test_one_large_group_of_equal_times_is_not_recorded() -> None:
    src = np.arange(4000) % 7
    stream = EventStream.from_columns(src, src + 10, np.maximum(np.arange(4000) - 2000, 0), time=TimeAxis("number"))
    task = LinkTask.prepare(stream, Protocol(mask_nodes=0), device=CPU)
    assert not prepare_capture(task, network("tgn"), 10) and prepare_capture(task, network("tgn"), 200)


TINY: dict[str, Any] = SMALL | {"epochs": 2, "batch_size": 20, "lr": 0.01, "min_delta": 0}


class StopAfter(Callback):
    """Asks for an end after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.left -= loss is not None
        if self.left == 0 and loss is not None:
            os.kill(os.getpid(), signal.SIGINT)


def fit(kind: str, out: Path, **options: Any) -> Run:
    known = {k: v for k, v in TINY.items() if kind != "jodie" or k not in ("num_neighbors", "heads")}
    return train(tied_stream(), kind, out=out, **({"device": "cpu"} | known | options))


@every_kind
def test_resume_after_stopping_at_every_second_batch(kind: str, tmp_path: Path) -> None:
    """Memory continues where it stopped: the same weights, bit by bit, and the same metrics."""
    whole = fit(kind, tmp_path / "whole", refit=True)
    for turn in range(40):
        try:
            found = fit(kind, tmp_path / "run", refit=True, resume=turn > 0, callbacks=StopAfter(2))
            break
        except TrainingStopped:
            continue
    assert turn > 4
    for name in ("model.safetensors", "refit.safetensors"):
        a, b = (run.folder.read_tensors(name)[0] for run in (whole, found))
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
        assert not [k for k in a if "memory" in k or "pending" in k], "states are no weights"
    for part in ("validation", "test"):
        assert whole.metrics[part] == found.metrics[part]


# On a GPU the step is recorded. Elsewhere the same code runs without a CUDA graph.
RECORDING_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train as on a GPU: with `CudaGraphStep` and static shapes."""

    def prepare(self: trainer.Trainer, task: LinkTask) -> bool:
        return trainer.prepare_capture(task, self.model, self.settings.training.batch_size)

    monkeypatch.setattr(trainer.Trainer, "_prepare_cuda_graph", prepare)
    monkeypatch.setattr(trainer, "SECONDS_BETWEEN_LINES", 0.0)  # a GPU reports its steps only then


@every_kind
def test_a_recorded_training_is_like_one_without_a_cuda_graph(
    kind: str, tmp_path: Path, records: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs with a padded last batch, evaluation in between and a refit, without dropout."""
    options: dict[str, Any] = {"device": RECORDING_DEVICE, "precision": "fp32", "refit": True, "report": False}
    options |= {} if kind == "jodie" else {"dropout": 0.0}
    recorded = fit(kind, tmp_path / "recorded", **options)
    monkeypatch.setattr(trainer, "prepare_capture", lambda *_: False)
    plain = fit(kind, tmp_path / "plain", **options)
    for name in ("model.safetensors", "refit.safetensors"):
        a, b = (run.folder.read_tensors(name)[0] for run in (recorded, plain))
        assert a.keys() == b.keys()
        for key, value in b.items():
            torch.testing.assert_close(a[key], value, rtol=1e-3, atol=1e-4)
    for part in ("validation", "test"):
        for key, value in plain.metrics[part]["transductive"].items():
            assert value is None or recorded.metrics[part]["transductive"][key] == pytest.approx(value, abs=0.02)


@pytest.mark.parametrize("kind", ["tgn", "dyrep"])
def test_a_recorded_training_with_hidden_candidates(kind: str, tmp_path: Path, records: None) -> None:
    """Hidden candidates have features of their own, so the history of the step is not that of the task."""
    stream = tied_stream()
    stream = dataclasses.replace(stream, node_x=np.ones((stream.n_nodes, 3), dtype=np.float32))
    known = TINY | {"device": RECORDING_DEVICE, "report": False, "hidden_candidates": 0.2}
    assert train(stream, kind, out=tmp_path / "run", **known).metrics["epochs"] == TINY["epochs"]


@every_kind
def test_resume_of_a_recorded_training(kind: str, tmp_path: Path, records: None) -> None:
    """The memory of a checkpoint continues in a new CUDA graph: the same weights, bit by bit."""
    options: dict[str, Any] = {"device": RECORDING_DEVICE, "refit": True, "report": False}
    whole = fit(kind, tmp_path / "whole", **options)
    for turn in range(40):
        try:
            found = fit(kind, tmp_path / "run", resume=turn > 0, callbacks=StopAfter(5), **options)
            break
        except TrainingStopped:
            continue
    assert turn > 1
    for name in ("model.safetensors", "refit.safetensors"):
        a, b = (run.folder.read_tensors(name)[0] for run in (whole, found))
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_checkpoint_without_its_memory(tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped):
        fit("tgn", tmp_path / "run", callbacks=StopAfter(2))
    folder = RunFolder(tmp_path / "run")
    tensors, about = folder.read_tensors("state.safetensors")
    assert {k for k in tensors if k.startswith("extra_state.")} == {
        f"extra_state.{name}" for name in ("position", "memory", "last", "pending", "other")
    }
    del tensors["extra_state.memory"]
    folder.write_tensors("state.safetensors", tensors, about)
    with pytest.raises(RunError, match=r"state\.safetensors is damaged"):
        fit("tgn", tmp_path / "run", resume=True)


@every_kind
def test_predictions_match_the_evaluation(kind: str, tmp_path: Path) -> None:
    """The same pairs at the same times, one by one and out of order. Later events extend the history."""
    run = fit(kind, tmp_path / "run", epochs=1)
    model, task = run.evaluation_task()
    positions, test_queries = task.evaluation_queries("test", "transductive")
    expected = 1 / (1 + np.exp(-score_queries(model, task.full_history, test_queries)[:, 0]))
    stream, names = run.stream, run.stream.ids.names.to_pylist()
    some = np.random.default_rng(0).permutation(len(positions))[:6]
    for i in some:
        p = positions[i]
        got = run.score(names[stream.src[p]], names[stream.dst[p]], at=stream.t[p])
        np.testing.assert_allclose(got, expected[i], rtol=0, atol=1e-6)
    later = EventStream.from_columns([0, 99], [11, 12], [10**4, 10**4 + 1], time=TimeAxis("number"))
    longer = run.with_events(later)
    assert np.isfinite(longer.score([99, 0], [12, 11])).all()
    assert longer.stream.n_nodes == run.stream.n_nodes + 1 and longer.embed([99, 0]).shape == (2, 4)
    assert len(longer.recommend(0, top=3)) == 3
