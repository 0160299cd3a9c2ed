"""The machine's own limits: how fast it multiplies matrices, moves memory, and starts an operation."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch

from cordgt.experiments.bench.timing import timed
from cordgt.runtime.launch import cores


@dataclass(frozen=True)
class Limits:
    """What was measured in this run. Rates are the best of several samples: a limit is not an average."""

    matrix_flops: float  # multiply-adds counted as two, a second, in the precision that training uses
    memory_bytes: float  # read and written, a second, by a copy far larger than the caches
    launch_seconds: float  # of an operation on a tensor of one element
    threads: int
    name: str
    precision: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(device: torch.device, *, repeat: int = 5, toy: bool = False) -> Limits:
    """The limits of a device; ``toy`` measures small, for a try. The precision is what torch is set to at the time."""
    cuda = device.type == "cuda"
    side = 256 if toy else 8192 if cuda else 2048
    values = (1 << 20) if toy else (1 << 28) if cuda else (1 << 26)
    a, b = torch.randn(side, side, device=device), torch.randn(side, side, device=device)
    out = torch.empty(side, side, device=device)
    matrix = timed(lambda: torch.mm(a, b, out=out), device, repeat)
    source, target = torch.ones(values, device=device), torch.empty(values, device=device)
    copy = timed(lambda: target.copy_(source), device, repeat)
    one = torch.zeros(1, device=device)
    launch = timed(lambda: one.add_(1.0), device, repeat)
    return Limits(
        matrix_flops=2 * side**3 / matrix.low,
        memory_bytes=2 * values * 4 / copy.low,
        launch_seconds=launch.median,
        threads=torch.get_num_threads(),
        name=torch.cuda.get_device_name(device) if cuda else _processor(),
        precision="tf32" if cuda and torch.get_float32_matmul_precision() == "high" else "fp32",
    )


def _processor() -> str:
    """The processor and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {cores()} cores"
