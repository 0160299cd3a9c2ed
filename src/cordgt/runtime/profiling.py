"""Count operations, FLOPs and memory of a piece of work, and estimate which batch size fits into memory.

Counts do not depend on the machine's speed, so tests can pin them.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cordgt.runtime.limits import address_space_limit
from cordgt.runtime.threads import single_thread

_IMPORT_TIME = time.perf_counter()


def seconds_since_start() -> float:
    """Return how long this process runs; where the system does not tell, the time since this module's import."""
    stat, uptime = _lines("/proc/self/stat"), _lines("/proc/uptime")
    if not stat or not uptime:
        return time.perf_counter() - _IMPORT_TIME
    started = int(stat[0].rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return float(uptime[0].split()[0]) - started


class OpCounter(TorchDispatchMode):
    """Counts torch operations within its block, backward passes included.

    Attributes:
        ops: number of operations by name, views included.
        live_bytes, peak_bytes: size of the tensors created within the block that still exist, and its maximum.
        moved_bytes: size of all inputs and outputs: the memory traffic if no value stays in a cache.

    The temporary memory of an operation, numpy and numba are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.live_bytes = 0
        self.peak_bytes = 0
        self.moved_bytes = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        self.ops[str(func.overloadpacket)] += 1
        if not func.is_view:
            self.moved_bytes += sum(_n_bytes(x) for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage(), inputs)
        return out

    def _add(self, storage: Any, inputs: set[int]) -> None:
        key = storage._cdata
        if key in inputs or key in self._storages:
            return
        self._storages.add(key)
        self.live_bytes += storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._remove, key, storage.nbytes())

    def _remove(self, key: int, n_bytes: int) -> None:
        self._storages.discard(key)
        self.live_bytes -= n_bytes


def _n_bytes(tensor: Tensor) -> int:
    """Return the size of a tensor's values; values repeated by ``expand`` count once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


@dataclass(frozen=True)
class OpCounts:
    """The cost of a piece of work."""

    flops: int  # of matrix products; a multiply-add counts as two
    ops: int
    peak_bytes: int  # of the tensors it created, at one time
    moved_bytes: int  # inputs and outputs of its operations
    by_name: dict[str, int] = field(repr=False)


def _attention_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a forward pass, from shapes (S, H, C, D): logits, and weights times values."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


def _attention_backward_flops(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
    """Return the FLOPs of a backward pass: logits again and four products, 2.5 times the forward pass."""
    return 5 * _attention_flops(q, k, v) // 2


# torch knows the FLOPs of all attention kernels but the fused ones on the CPU.
_CPU_ATTENTION: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


def count_ops(work: Callable[[], Any]) -> OpCounts:
    """Run ``work`` once, in one thread because others are not counted, and return its cost."""
    with (
        single_thread(),
        FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION) as flops,
        OpCounter() as counter,
    ):
        work()
    ops = dict(counter.ops)
    return OpCounts(flops.get_total_flops(), sum(ops.values()), counter.peak_bytes, counter.moved_bytes, ops)


def measure_peak_bytes(work: Callable[[], Any], device: torch.device) -> int:
    """Run ``work`` and return the peak size of the tensors it creates: from the allocator on a GPU, else counted."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with single_thread(), OpCounter() as counter:
        work()
    return counter.peak_bytes


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated: on the GPU, or by this process; None if no limit is known."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    limits = [k for k in (_free_machine_memory(), _free_cgroup_memory(), _free_address_space()) if k is not None]
    return min(limits) if limits else None


def _free_machine_memory() -> int | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _free_cgroup_memory() -> int | None:
    """Return what a container's limit leaves."""
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{k}") for k in ("max", "current"))
    return int(limit[0]) - int(used[0]) if limit and used and limit[0].isdigit() else None


def _free_address_space() -> int | None:
    """Return what ``ulimit -v`` leaves."""
    limit, pages = address_space_limit(), _lines("/proc/self/statm")
    if limit is None or not pages:
        return None
    return limit - int(pages[0].split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []


def max_batch_size(peaks: dict[int, int], free: int) -> int:
    """Return the largest batch size for ``free`` bytes, by linear extrapolation; 0 if no batch fits.

    ``peaks``: measured peak bytes by batch size. Sizes must not exceed a micro-batch, above which the peak is no longer
    linear. A tenth of the memory is reserved for what is not counted.
    """
    intercept, slope = _fit_line(peaks)
    return max(0, int((0.9 * free - intercept) / slope)) if slope > 0 else max(peaks)


def predict_peak_bytes(peaks: dict[int, int], size: int) -> int:
    """Return the peak bytes of a batch of ``size`` events, by the same extrapolation."""
    intercept, slope = _fit_line(peaks)
    return int(intercept + size * slope)


def _fit_line(peaks: dict[int, int]) -> tuple[float, float]:
    """Return intercept and slope (bytes per event) of the line through the smallest and the largest size."""
    small, large = min(peaks), max(peaks)
    slope = (peaks[large] - peaks[small]) / max(large - small, 1)
    return peaks[small] - small * slope, slope
