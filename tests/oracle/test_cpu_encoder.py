"""The layers on a CPU against torch's, forward and backward; micro-batches against the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.events.stream import EventStream
from cordgt.history.context import TreeShape
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.models.cordgt import Cordgt, CordgtLayer
from cordgt.nn import cpu_encoder
from cordgt.nn import cpu_loops as loops
from cordgt.nn.dropout import dropout_seed
from cordgt.runtime import kernel_loader as kernels
from cordgt.runtime.threads import pin_num_threads
from cordgt.tasks.link import LinkTask
from cordgt.tasks.scoring import score_queries
from cordgt.training import devices
from cordgt.training.model_factory import build_model
from cordgt.training.settings import make_settings
from cordgt.training.step import Step, make_optimizer

SIZES = {"dim": 8, "heads": 3, "shape": TreeShape((3, 1))}  # C = 7 slots
N = 5  # sequences


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Case(NamedTuple):
    layers: nn.ModuleList
    x: Tensor
    attn_mask: Tensor
    edge_x: Tensor | None
    pool: Tensor

    def encode(self, dropout_p: float = 0.0) -> Tensor:
        return cpu_encoder.encode(*self, dropout_p)

    def reference(self) -> Tensor:
        """The layers themselves, slot by slot, then the mean."""
        states = self.x
        for layer in self.layers:
            states = layer(states, self.attn_mask, self.edge_x)
        return (self.pool.unsqueeze(1) @ states).squeeze(1)

    def gradients(self, pooled: Tensor) -> list[Tensor]:
        inputs = [self.x, *self.layers.parameters()]
        return list(torch.autograd.grad((pooled * some(*pooled.shape, seed=9)).sum(), inputs))


def make_case(*, edge_dim: int = 0, row_mask: bool = False, n_layers: int = 2) -> Case:
    torch.manual_seed(1)
    layers = nn.ModuleList(CordgtLayer(**SIZES, edge_dim=edge_dim, dropout=0.0) for _ in range(n_layers))
    for weight in layers.parameters():
        if weight.dim() == 1:
            nn.init.normal_(weight, std=0.3)
    valid = some(N, 7, seed=2) < 0.5
    valid[:, 0] = True
    attn_mask = valid.unsqueeze(1)
    if row_mask:
        attn_mask = (attn_mask & (some(N, 7, 7, seed=3) < 0.5)) | torch.eye(7, dtype=torch.bool)
    edge_x = some(N, 7, edge_dim, seed=4) if edge_dim else None
    return Case(layers, some(N, 7, 8).requires_grad_(), attn_mask, edge_x, valid / valid.sum(-1, keepdim=True))


@pytest.mark.parametrize("block_values", [1, 400, 1 << 19])
@pytest.mark.parametrize("row_mask", [False, True])
@pytest.mark.parametrize("edge_dim", [0, 2])
@pytest.mark.parametrize("n_layers", [1, 3])
def test_encoder_equals_the_layers(
    n_layers: int, edge_dim: int, row_mask: bool, block_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, for any number of sequences at a time."""
    monkeypatch.setattr(cpu_encoder, "BLOCK_VALUES", block_values)
    case = make_case(edge_dim=edge_dim, row_mask=row_mask, n_layers=n_layers)
    expected, got = case.reference(), case.encode()
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
    for mine, theirs in zip(case.gradients(got), case.gradients(expected), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))
    with torch.no_grad():
        assert torch.equal(case.encode(), got)


@pytest.mark.parametrize("edge_dim", [0, 2])
def test_no_sequences(edge_dim: int) -> None:
    """Gradients of an empty batch are zeros, as torch has them."""
    case = make_case(edge_dim=edge_dim)
    edge_x = None if case.edge_x is None else case.edge_x[:0]
    empty = Case(case.layers, case.x.detach()[:0].requires_grad_(), case.attn_mask[:0], edge_x, case.pool[:0])
    for mine, theirs in zip(empty.gradients(empty.encode()), empty.gradients(empty.reference()), strict=True):
        assert mine.shape == theirs.shape and torch.equal(mine, theirs)


def test_a_second_backward_pass_is_refused() -> None:
    case = make_case()
    pooled = case.encode()
    torch.autograd.grad(pooled.sum(), case.x, retain_graph=True)
    with pytest.raises(RuntimeError, match="backward once"):
        torch.autograd.grad(pooled.sum(), case.x)


@pytest.mark.parametrize("edge_dim", [0, 2])
def test_gradients_with_dropout_are_those_of_its_values(edge_dim: int) -> None:
    """With the same key, along one direction, by differences."""
    case = make_case(edge_dim=edge_dim)

    def value() -> Tensor:
        with dropout_seed(3):
            return case.encode(0.3)

    pooled, step = value(), 1e-3
    inputs = [case.x, *case.layers.parameters()]
    for number, (tensor, gradient) in enumerate(zip(inputs, case.gradients(pooled), strict=True)):
        direction = some(*tensor.shape, seed=20 + number)
        sums = []
        for sign in (1, -1):
            with torch.no_grad():
                tensor += sign * step * direction
                sums.append(float((value() * some(*pooled.shape, seed=9)).sum()))
                tensor -= sign * step * direction
        expected = (sums[0] - sums[1]) / (2 * step)
        assert float((gradient * direction).sum()) == pytest.approx(expected, rel=0.02, abs=0.02)


def test_dropout_has_its_probability_and_other_elements_other_masks() -> None:
    drop = cpu_encoder.DropoutConstants.of(0.3)
    logits = np.zeros((20, 6, 3), np.float32)
    weights, dropped = np.empty_like(logits), np.empty_like(logits)
    attn_mask = np.ones((20, 1, 3), np.uint8)
    loops.softmax_dropout(logits, attn_mask, weights, dropped, np.uint32(7), np.uint32(0), *drop)
    kept = dropped > 0
    assert np.array_equal(kept, weights > 0) and float(kept.mean()) == pytest.approx(0.7, abs=0.08)
    assert dropped[kept] == pytest.approx(1 / 3 / 0.7) and np.abs(weights) == pytest.approx(1 / 3)
    again = np.empty_like(dropped)
    loops.softmax_dropout(logits[10:], attn_mask, weights[:10], again[:10], np.uint32(7), np.uint32(10 * 18), *drop)
    assert np.array_equal(again[:10], dropped[10:])  # the number of the element decides, not the block
    loops.softmax_dropout(logits, attn_mask, weights, again, np.uint32(8), np.uint32(0), *drop)
    assert not np.array_equal(again, dropped)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_equals_torchs(dtype: torch.dtype) -> None:
    logits = (30 * some(4, 14, 7)).to(dtype)
    attn_mask = some(4, 7, 7, seed=1) < 0.5
    attn_mask[..., 2] = True
    weights, dropped = torch.empty_like(logits), torch.empty_like(logits)
    arrays = [cpu_encoder.as_numpy(x) for x in (logits, attn_mask.view(torch.uint8), weights, dropped)]
    loops.softmax_dropout(*arrays, np.uint32(0), np.uint32(0), *cpu_encoder.DropoutConstants.of(0.0))
    mask = attn_mask.repeat_interleave(2, dim=1)  # two heads: rows (c, h)
    expected = logits.float().masked_fill(~mask, -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(weights.float(), expected, rtol=0, atol=1e-6 if dtype == torch.float32 else 3e-3)
    assert torch.equal(weights, dropped)


@pytest.mark.parametrize("edge_dim", [0, 2])
def test_encoder_in_bfloat16_is_that_in_float32_but_for_rounding(edge_dim: int) -> None:
    case = make_case(edge_dim=edge_dim)
    expected = case.encode()
    with torch.autocast("cpu", torch.bfloat16):
        got = case.encode()
    torch.testing.assert_close(got, expected, rtol=0.02, atol=0.03)
    for mine, theirs in zip(case.gradients(got), case.gradients(expected), strict=True):
        assert float(F.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0)) > 0.998


def test_sums_of_rows() -> None:
    table, rows = some(5, 3).requires_grad_(), torch.tensor([[0, 4, 4, 1], [0, 2, 3, 1]])
    got, expected = cpu_encoder.embedding_sum(table, rows), table[rows].sum(0)
    torch.testing.assert_close(got, expected)
    above = some(4, 3, seed=1)
    mine, theirs = (torch.autograd.grad(y, table, above)[0] for y in (got, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("given", [{}, {"mask": True}, {"stpe": "u"}, {"td": False}, {"sd": False}, {"head": "linear"}])
@pytest.mark.parametrize("edge_dim", [0, 3])
def test_a_step_equals_the_plain_one(edge_dim: int, given: dict[str, Any]) -> None:
    """Loss and gradients, with the distances' encodings, against torch's own operations."""
    draw = np.random.default_rng(0)
    edge_x = draw.normal(size=(300, edge_dim)).astype(np.float32) if edge_dim else None
    stream = EventStream.from_columns(*draw.integers(0, 20, (2, 300)), np.arange(300), edge_x=edge_x)
    settings = make_settings("cordgt", {"fanout": "4,1", "hidden": 8, "heads": 2, "dropout": 0.0} | given)
    task, found = LinkTask.prepare(stream, seed=0), []
    for context in (nullcontext(), kernels.plain_torch()):
        with context:
            model = build_model(settings, edge_dim=stream.edge_dim, node_dim=stream.node_dim).train()
            step = Step.from_settings(settings, task, model, torch.optim.SGD(model.parameters(), lr=0.0), 1)
            positions = torch.from_numpy(task.split.train[-20:])
            loss = step(positions, torch.ones(len(positions)))
        found.append([loss, *(q.grad for q in model.parameters() if q.grad is not None)])
    for fast, plain in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("edge_dim", [0, 3])
def test_a_step_in_bfloat16(edge_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients are near those of float32. A CPU without bfloat16 computes in float32, to the bit."""
    draw = np.random.default_rng(0)
    edge_x = draw.normal(size=(300, edge_dim)).astype(np.float32) if edge_dim else None
    stream = EventStream.from_columns(*draw.integers(0, 20, (2, 300)), np.arange(300), edge_x=edge_x)
    losses = {}
    for precision, is_fast in (("bf16", True), ("bf16-cpu", False), ("bf16-cpu", True)):
        monkeypatch.setattr(devices, "has_fast_bf16", lambda is_fast=is_fast: is_fast)
        settings = make_settings("cordgt", {"fanout": "4,1", "hidden": 16, "heads": 2, "precision": precision})
        model = build_model(settings, edge_dim=stream.edge_dim, node_dim=stream.node_dim).train()
        task = LinkTask.prepare(stream, seed=0)
        step = Step.from_settings(settings, task, model, torch.optim.SGD(model.parameters(), lr=0.0), 1)
        torch.manual_seed(0)
        positions = torch.from_numpy(task.split.train[-50:])
        loss = float(step(positions, torch.ones(len(positions))))
        losses[precision, is_fast] = (
            loss,
            torch.cat([q.grad.flatten() for q in model.parameters() if q.grad is not None]),
        )
    plain, slow, half = losses.values()
    assert slow[0] == plain[0] and torch.equal(slow[1], plain[1])
    assert half[0] == pytest.approx(plain[0], rel=0.02) and half[0] != plain[0]
    assert float(F.cosine_similarity(half[1], plain[1], dim=0)) > 0.99


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Return a function that sets the number of threads; restore it afterwards."""
    before, numba_threads = torch.get_num_threads(), numba.get_num_threads()

    def use(n: int) -> None:
        numba.set_num_threads(numba_threads)
        torch.set_num_threads(n)
        pin_num_threads()

    yield use
    use(before)


def test_micro_batches_give_the_step_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same loss and weights after a step, up to rounding."""
    for parts, whole in zip(run_step(10, 0.0, monkeypatch), run_step(None, 0.0, monkeypatch), strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


def test_steps_do_not_depend_on_the_number_of_threads(
    threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, with dropout; other micro-batches draw other dropout."""
    found = []
    for n in (1, 2, 3):
        threads(n)
        found.append(run_step(10, 0.3, monkeypatch))
    assert all(torch.equal(a, b) for others in found[1:] for a, b in zip(found[0], others, strict=True))
    assert not torch.equal(found[0][0], run_step(20, 0.3, monkeypatch)[0])
    few = []
    for n in (1, 2):
        threads(n)
        few.append(run_step(1000, 0.3, monkeypatch))  # one micro-batch: nothing to parallelize
    assert all(torch.equal(a, b) for a, b in zip(*few, strict=True))


@pytest.mark.parametrize("micro_batch_size", [10, None])
def test_gradients_may_have_any_strides(micro_batch_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused Adam uses the strides of the parameter, so gradients must be given to it with the same strides."""
    plain, transposed = (
        run_step(micro_batch_size, 0.0, monkeypatch, adam=True, transposed=transposed) for transposed in (False, True)
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, transposed, strict=True))


def run_step(
    micro_batch_size: int | None,
    drop: float,
    monkeypatch: pytest.MonkeyPatch,
    *,
    adam: bool = False,
    transposed: bool = False,
) -> list[Tensor]:
    """Return the loss and the weights after a step; ``chunk_size`` None: in one batch.

    ``adam``: training's optimizer instead of SGD. ``transposed``: gradients of matrices are column-major.
    """
    stream = synthetic_stream(events=600, nodes=40, seed=1).stream
    settings = make_settings(
        "cordgt", {"fanout": "3,1", "hidden": 8, "heads": 2, "td_dim": 6, "sd_dim": 6, "dropout": drop}
    )
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=torch.device("cpu"))
    position = torch.from_numpy(task.split.train[100:137])
    weight = torch.ones(len(position))
    weight[-3:] = 0.0
    torch.manual_seed(3)
    model = build_model(settings, edge_dim=0, node_dim=0).train()
    for matrix in (p for p in model.parameters() if transposed and p.dim() == 2):
        matrix.register_hook(lambda gradient: gradient.t().contiguous().t())
    monkeypatch.setattr(Cordgt, "chunk_size", micro_batch_size)
    cpu = torch.device("cpu")
    optimizer = make_optimizer(settings, model, cpu) if adam else torch.optim.SGD(model.parameters(), lr=0.1)
    loss = Step(model, task, optimizer, 0, 1)(position, weight)
    return [loss, *(p.detach() for p in model.parameters())]


def test_scores_do_not_depend_on_the_number_of_threads(threads: Callable[[int], None]) -> None:
    stream = synthetic_stream(events=600, nodes=40, seed=1).stream
    settings = make_settings("cordgt", {"fanout": "3,1", "hidden": 8, "heads": 2, "td_dim": 6, "sd_dim": 6})
    task = LinkTask.prepare(stream, settings.protocol, seed=0, device=torch.device("cpu"))
    model = build_model(settings, edge_dim=0, node_dim=0)
    _, queries = task.evaluation_queries("test", "transductive")
    found = []
    for n in (1, 2):
        threads(n)
        found.append(score_queries(model, task.full_history, queries, max_pairs_per_batch=16))
    assert np.array_equal(*found)
