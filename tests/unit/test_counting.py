"""Counting operations, arithmetic and memory: exact where it can be told by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cordgt.runtime.profiling import Tally, batch_that_fits, counts_of, free_memory, peak_bytes, peak_of

CPU = torch.device("cpu")
MILLION = 4_000_000  # bytes of a million float32


def test_tensors_that_live_at_once() -> None:
    given = torch.ones(1000, 1000)
    with Tally() as tally:
        one = given + 1
        two = one * 2
        assert tally.live == 2 * MILLION
        del one
        assert tally.live == MILLION
        two.view(-1).t()  # looks at it in another shape
        two.add_(1)
        assert tally.moved == 2 * MILLION + 2 * MILLION + 2 * MILLION  # in and out of three; looking moves nothing
        assert tally.live == MILLION
    assert tally.peak == 2 * MILLION
    assert tally.ops["aten.add"] == 1 and tally.ops["aten.mul"] == 1 and tally.ops["aten.add_"] == 1


def test_what_backward_keeps_is_counted() -> None:
    weight = torch.ones(1000, 1000, requires_grad=True)
    counted = counts_of(lambda: (weight.exp() * 2).sum().backward())
    assert counted.peak_bytes >= 2 * MILLION
    assert counted.by_name["aten.exp"] == 1


def test_arithmetic_forward_and_backward() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7, requires_grad=True)
    assert counts_of(lambda: (a @ b).sum().backward()).flops == 2 * (2 * 3 * 5 * 7)


@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["fused", "not fused"])
def test_attention_is_counted_alike(dropout: float) -> None:
    q = torch.randn(2, 3, 11, 8)

    def attend() -> None:
        F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)

    assert counts_of(attend).flops == 2 * 3 * 11 * 11 * 8 * 2 * 2


def test_the_batch_that_fits_lies_on_the_line() -> None:
    peaks = {10: 1100, 20: 2100}  # 100 and 100 more an event
    assert batch_that_fits(peaks, 10_000) == 89  # a tenth is left over
    assert batch_that_fits(peaks, 50) == 0
    assert batch_that_fits({10: 100, 20: 100}, 50) == 20
    assert peak_of(peaks, 50) == 5100


def test_memory_of_this_machine() -> None:
    free = free_memory(CPU)
    assert free is None or free > 0
    assert peak_bytes(lambda: torch.ones(1000, 1000) + 1, CPU) == 2 * MILLION
