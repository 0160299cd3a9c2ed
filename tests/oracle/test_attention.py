"""CPU attention and dropout against torch's, forward and backward; micro-batches against the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numba
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cordgt.events.stream import EventStream
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.models.cordgt import Cordgt
from cordgt.nn import attention as on_cpu
from cordgt.runtime.threads import pin_num_threads
from cordgt.tasks.link import LinkTask
from cordgt.tasks.scoring import score_queries
from cordgt.training import devices
from cordgt.training.model_factory import build_model
from cordgt.training.settings import make_settings
from cordgt.training.step import Step, make_optimizer

SHAPE = (4, 7, 3, 2, 8)  # S, C, 3, H, D


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("no_mask", [False, True])
def test_attention_equals_torchs(rows: int, no_mask: bool) -> None:
    qkv, above = some(*SHAPE).requires_grad_(), some(4, 7, 2, 8, seed=1)
    attn_mask = (some(4, rows, 7, seed=2) < 0.5) | no_mask
    attn_mask[..., 0] = True
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask.unsqueeze(1)).transpose(1, 2)
    got = on_cpu.attention(qkv, attn_mask, 0.0)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    mine, theirs = (torch.autograd.grad(y, qkv, above)[0] for y in (got, expected))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_attention_dropout_masks_weights() -> None:
    """Equal weights over unit values, one mask per head: outputs show which weights were kept; gradients agree."""
    n, size, drop = 30, 7, 0.4
    qkv = torch.zeros(n, size, 3, 2, size)
    qkv[:, :, 2] = torch.eye(size)[None, :, None]  # the weight of slot j is output j
    qkv.requires_grad_()
    attn_mask = torch.ones(n, 1, size, dtype=torch.bool)
    torch.manual_seed(5)
    y = on_cpu.attention(qkv, attn_mask, drop)
    nonzero = y > 0
    torch.testing.assert_close(y[nonzero], torch.full_like(y[nonzero], 1 / size / (1 - drop)))
    assert float(nonzero.float().mean()) == pytest.approx(1 - drop, abs=0.03)
    assert not torch.equal(nonzero[:, :, 0], nonzero[:, :, 1]) and not torch.equal(nonzero[0], nonzero[1])
    weight = some(*y.shape, seed=3)
    (gradient,) = torch.autograd.grad((y * weight).sum(), qkv)
    used = y.detach().permute(0, 2, 1, 3)  # (S, H, C, C): the weights as they were used
    expected = (used.transpose(-1, -2) @ weight.permute(0, 2, 1, 3)).transpose(1, 2)
    torch.testing.assert_close(gradient[:, :, 2], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_attention_in_bfloat16_is_that_in_float32_but_for_rounding(drop: float) -> None:
    """Of the same rounded inputs, with the same dropout: within a few units of bfloat16's last place."""
    qkv, above = some(*SHAPE).bfloat16(), some(4, 7, 2, 8, seed=1).bfloat16()
    attn_mask = some(4, 1, 7, seed=2) < 0.5
    attn_mask[..., 0] = True
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        x = qkv.to(dtype).requires_grad_()
        torch.manual_seed(7)
        y = on_cpu.attention(x, attn_mask, drop)
        assert y.dtype == dtype
        found.append((y.float(), torch.autograd.grad(y, x, above.to(dtype))[0].float()))
    for exact, half in zip(*found, strict=True):
        torch.testing.assert_close(half, exact, rtol=0.02, atol=0.03)


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


@pytest.mark.parametrize("drop", [0.0, 0.1, 0.9])
def test_dropout_has_its_probability_and_the_same_mask_backward(drop: float) -> None:
    x = torch.ones(300, 500, requires_grad=True)
    torch.manual_seed(1)
    y = on_cpu.dropout(x, drop)
    torch.manual_seed(1)
    assert torch.equal(y, on_cpu.dropout(x, drop))
    assert float((y > 0).float().mean()) == pytest.approx(1 - drop, abs=0.005)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y.detach())


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
