"""Counts of operations, FLOPs and memory: compared with numbers computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from cordgt.runtime import phase_times
from cordgt.runtime.phase_times import PhaseTimes
from cordgt.runtime.profiling import (
    OpCounter,
    count_ops,
    free_memory,
    max_batch_size,
    measure_peak_bytes,
    predict_peak_bytes,
    seconds_since_start,
)

CPU = torch.device("cpu")
MILLION = 4_000_000  # bytes of a million float32


def test_live_peak_and_moved_bytes() -> None:
    source = torch.ones(1000, 1000)
    with OpCounter() as counter:
        one = source + 1
        two = one * 2
        assert counter.live_bytes == 2 * MILLION
        del one
        assert counter.live_bytes == MILLION
        two.view(-1).t()  # views
        two.add_(1)
        assert (
            counter.moved_bytes == 2 * MILLION + 2 * MILLION + 2 * MILLION
        )  # in- and outputs of three operations, no views
        assert counter.live_bytes == MILLION
    assert counter.peak_bytes == 2 * MILLION
    assert counter.ops["aten.add"] == 1 and counter.ops["aten.mul"] == 1 and counter.ops["aten.add_"] == 1


def test_tensors_saved_for_backward_are_counted() -> None:
    weight = torch.ones(1000, 1000, requires_grad=True)
    counted = count_ops(lambda: (weight.exp() * 2).sum().backward())
    assert counted.peak_bytes >= 2 * MILLION
    assert counted.by_name["aten.exp"] == 1


def test_flops_of_forward_and_backward() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7, requires_grad=True)
    assert count_ops(lambda: (a @ b).sum().backward()).flops == 2 * (2 * 3 * 5 * 7)


@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["fused", "not fused"])
def test_flops_of_attention_with_and_without_fused_kernel(dropout: float) -> None:
    q = torch.randn(2, 3, 11, 8)

    def attend() -> None:
        F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)

    assert count_ops(attend).flops == 2 * 3 * 11 * 11 * 8 * 2 * 2


def test_max_batch_size_extrapolates_linearly() -> None:
    peaks = {10: 1100, 20: 2100}  # 100 bytes, and 100 per event
    assert max_batch_size(peaks, 10_000) == 89  # a tenth is reserved
    assert max_batch_size(peaks, 50) == 0
    assert max_batch_size({10: 100, 20: 100}, 50) == 20
    assert predict_peak_bytes(peaks, 50) == 5100


def test_free_memory_and_peak_on_cpu() -> None:
    free = free_memory(CPU)
    assert free is None or free > 0
    assert measure_peak_bytes(lambda: torch.ones(1000, 1000) + 1, CPU) == 2 * MILLION


def test_every_second_of_a_job_belongs_to_one_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 105.0, 109.0, 110.0, 117.0])
    monkeypatch.setattr(phase_times.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(phase_times, "seconds_since_start", lambda: 1.0)
    phases = PhaseTimes()
    phases.on_phase_start("read")  # after 3 seconds
    phases.on_epoch_start("fit", 1, 2, 10)
    phases.on_stage_start("validating", None)
    phases.on_epoch_start("fit", 2, 2, 10)
    found = phases.finish()
    assert found["seconds"] == 18
    assert {p["phase"]: p["seconds"] for p in found["phases"]} == {
        "import": 3,
        "read": 3,
        "epochs": 11,
        "validation": 1,
    }
    assert [p["share"] for p in found["phases"]] == [3 / 18, 3 / 18, 11 / 18, 1 / 18]


def test_the_age_of_this_process() -> None:
    assert 0 < seconds_since_start() < 86_400
