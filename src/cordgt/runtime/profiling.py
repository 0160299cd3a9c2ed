"""Counting instead of timing: operations, arithmetic and memory of a piece of work. Counts do not depend on a clock."""

from __future__ import annotations

import os
import resource
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

from cordgt.runtime.threads import alone


class Tally(TorchDispatchMode):
    """Counts what torch does while it is entered, backward passes included.

    ``ops`` counts operations by name (those that only look at a tensor in another shape too), ``live`` the bytes of
    tensors made since that still exist, ``peak`` the most there were at once. ``moved`` adds up what each operation is
    given and gives back, in bytes: what memory must carry where nothing stays in a cache. What an operation uses
    inside, and what numpy and the compiled loops do, is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.live = 0
        self.peak = 0
        self.moved = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        self.ops[str(func.overloadpacket)] += 1
        if not func.is_view:
            self.moved += sum(_n_bytes(x) for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._made(tensor.untyped_storage(), given)
        return out

    def _made(self, storage: Any, given: set[int]) -> None:
        key = storage._cdata
        if key in given or key in self._known:
            return
        self._known.add(key)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, key, storage.nbytes())

    def _freed(self, key: int, n_bytes: int) -> None:
        self._known.discard(key)
        self.live -= n_bytes


def _n_bytes(tensor: Tensor) -> int:
    """Of the values a tensor shows; once for those that an expanded one shows again and again."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


@dataclass(frozen=True)
class Counts:
    """What a piece of work costs, without a clock."""

    flops: int  # of matrix products, a multiply-add counting as two
    ops: int
    peak_bytes: int  # of tensors made by it, at once
    moved_bytes: int  # given to its operations and given back by them
    by_name: dict[str, int] = field(repr=False)


def _attention_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    """Of one forward pass, from the shapes (S, H, C, D): logits, and weights times values."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


def _attention_backward_flops(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
    """Logits once more, then four products: two and a half times the forward pass."""
    return 5 * _attention_flops(q, k, v) // 2


# torch counts attention on a GPU, and on the CPU where it is not fused; the CPU's fused kernel it does not know.
_FUSED: dict[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


def counts_of(work: Callable[[], Any]) -> Counts:
    """Run ``work`` once and count. One thread does it: what others do is not seen."""
    with alone(), FlopCounterMode(display=False, custom_mapping=_FUSED) as flops, Tally() as tally:
        work()
    return Counts(flops.get_total_flops(), sum(tally.ops.values()), tally.peak, tally.moved, dict(tally.ops))


def peak_bytes(work: Callable[[], Any], device: torch.device) -> int:
    """The most that tensors made by ``work`` take at once: from the allocator on a GPU, counted on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with alone(), Tally() as tally:
        work()
    return tally.peak


def free_memory(device: torch.device) -> int | None:
    """Bytes that could still be allocated: on the GPU, or for this process by all limits known; None where none is."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    limits = [k for k in (_of_the_machine(), _of_the_group(), _of_the_process()) if k is not None]
    return min(limits) if limits else None


def _of_the_machine() -> int | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _of_the_group() -> int | None:
    """What a container may still take."""
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{k}") for k in ("max", "current"))
    return int(limit[0]) - int(used[0]) if limit and used and limit[0].isdigit() else None


def _of_the_process() -> int | None:
    """What ``ulimit -v`` leaves."""
    limit, pages = resource.getrlimit(resource.RLIMIT_AS)[0], _lines("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return limit - int(pages[0].split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []


def batch_that_fits(peaks: dict[int, int], free: int) -> int:
    """The largest batch for ``free`` bytes, on the line through the peaks of the smallest and largest sizes measured.

    A tenth is left over, for what is not counted. 0 where not even one fits. The sizes must lie where the peak is a
    line: up to a part, where a step works off a batch in parts.
    """
    fixed, each = _line(peaks)
    return max(0, int((0.9 * free - fixed) / each)) if each > 0 else max(peaks)


def peak_of(peaks: dict[int, int], size: int) -> int:
    """Bytes that a batch of so many events takes at its peak, on the same line."""
    fixed, each = _line(peaks)
    return int(fixed + size * each)


def _line(peaks: dict[int, int]) -> tuple[float, float]:
    """Bytes that any batch takes, and those of each event."""
    small, large = min(peaks), max(peaks)
    each = (peaks[large] - peaks[small]) / max(large - small, 1)
    return peaks[small] - small * each, each
