"""Limits of the hardware: rate of matrix products, memory bandwidth, and time to launch an operation."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from cordgt.experiments.bench.timing import time_calls
from cordgt.runtime.launch import available_cores


@dataclass(frozen=True)
class HardwareLimits:
    """Limits measured in this run. Rates are those of the fastest quarter of the samples, not of an average one."""

    matrix_flops: float  # per second, a multiply-add counted as two, in the precision of training
    memory_bytes: float  # read and written per second, by a copy far larger than the caches
    launch_seconds: float  # of an operation on a tensor of one element
    threads: int
    name: str
    precision: str


def measure_limits(device: torch.device, *, repeat: int = 5, quick: bool = False) -> HardwareLimits:
    """Measure the limits of a device in the precision that torch is set to. ``quick``: with small tensors."""
    cuda = device.type == "cuda"
    side = 256 if quick else 8192 if cuda else 2048
    n_values = (1 << 20) if quick else (1 << 28) if cuda else (1 << 26)
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    out = torch.empty(side, side, device=device)
    matrix = time_calls(lambda: torch.mm(a, b, out=out), device, repeat)
    source, target = torch.ones(n_values, device=device), torch.empty(n_values, device=device)
    copy = time_calls(lambda: target.copy_(source), device, repeat)
    one = torch.zeros(1, device=device)
    launch = time_calls(lambda: one.add_(1.0), device, repeat)
    return HardwareLimits(
        matrix_flops=2 * side**3 / matrix.low,
        memory_bytes=2 * n_values * 4 / copy.low,
        launch_seconds=launch.median,
        threads=torch.get_num_threads(),
        name=torch.cuda.get_device_name(device) if cuda else _processor_name(),
        precision="tf32" if cuda and torch.get_float32_matmul_precision() == "high" else "fp32",
    )


def _processor_name() -> str:
    """Return the processor's name and how many of its cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {available_cores()} cores"
