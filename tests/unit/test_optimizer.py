"""`FusedAdam` against `torch.optim.Adam`, and what a training imports."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch
from torch import nn

from cordgt.training.optimizer import GPU_SLICE, FusedAdam, FusedAdamW, _split_large


def test_the_same_bits_as_torch_computes() -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    frozen = [net[0].bias.requires_grad_(False) for net in (ours, theirs)]
    fused = (
        FusedAdam(ours.parameters(), lr=0.01, fused=True),
        torch.optim.Adam(theirs.parameters(), lr=0.01, fused=True),
    )
    for _ in range(5):
        x = torch.randn(4, 5)
        for net, optimizer in zip((ours, theirs), fused, strict=True):
            optimizer.zero_grad(set_to_none=True)
            net(x).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert frozen[0] not in fused[0].state
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        own, other = fused[0].state[a], fused[1].state[b]
        assert own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)


def test_weight_decay_as_torch_computes_it() -> None:
    ours, theirs = (nn.Linear(5, 3) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "fused": True}
    for net, optimizer in (
        (ours, FusedAdamW(ours.parameters(), **options)),
        (theirs, torch.optim.AdamW(theirs.parameters(), **options)),
    ):
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 5)).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_no_import_of_the_compiler() -> None:
    code = (
        "import sys, torch; from cordgt.training.optimizer import FusedAdam;"
        "w = torch.ones(3, requires_grad=True); adam = FusedAdam([w], fused=True); adam.zero_grad();"
        "w.sum().backward(); adam.step(); print('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_slices_cover_every_number_once() -> None:
    """As on a GPU: large tensors in slices, and tensors of another memory layout whole."""
    shapes = [(3, 5000), (7,), (2, GPU_SLICE), ()]
    weights, grads = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    weights.append(torch.randn(5000, 3).t())
    grads.append(torch.randn(3, 5000))
    steps = [torch.tensor(float(i)) for i in range(5)]
    parts, grad_parts, step_parts = _split_large([weights, grads, steps])
    assert [len(x.view(-1)) for x in parts[:5]] == [GPU_SLICE, 15_000 - GPU_SLICE, 7, GPU_SLICE, GPU_SLICE]
    assert [int(x) for x in step_parts] == [0, 0, 1, 2, 2, 3, 4]
    assert parts[-1] is weights[-1] and grad_parts[-1] is grads[-1]
    for x in parts:
        x.fill_(0.0)
    assert not any(x.any() for x in weights)
