"""Where memory runs out: an error that says what to do, and which batch size would have fitted."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cordgt.errors import RunError
from cordgt.models.base import LinkModel
from cordgt.runtime.profiling import batch_that_fits, free_memory, peak_bytes, peak_of
from cordgt.tasks.link import LinkTask
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import Settings, written
from cordgt.training.step import events_a_part

PLACE_BYTES = 64  # of an event of a batch however it is worked off: its position, weight and share, and copies of them


@contextmanager
def memory_explained(settings: Settings, folder: RunFolder | None = None) -> Iterator[None]:
    """RunError, with what to do, where memory runs out: Python's, numpy's, torch's on the CPU or on a GPU.

    ``folder``: where a training writes; None where nothing is trained, only measured.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        used: dict[str, Any] = {"batch_size": settings.training.batch_size}
        used |= {k: v for k, v in vars(settings.model_settings).items() if k in ("fanout", "hidden")}
        fewer = ", ".join(f"{k} (now {written(v)})" for k, v in used.items())
        fits = f" {error.fits}" if isinstance(error, TooLarge) and error.fits else ""
        another = "" if folder is None else "another --out and "
        saved = ""
        if folder is not None and folder.holds_run:
            saved = f" What {folder.path} holds is intact: --resume goes on from it where there is more memory."
        raise RunError(f"Memory ran out. With {another}a smaller {fewer} it takes less.{fits}{saved}") from None


@contextmanager
def fits_told(told: Callable[[], str]) -> Iterator[None]:
    """`TooLarge`, with what ``told`` says once the memory is free again, where it runs out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # which hold what had been made so far
        raise TooLarge(told()) from None


class TooLarge(MemoryError):
    """Memory ran out in a training step. ``fits`` says which batch size would fit, as far as it can be told."""

    def __init__(self, fits: str) -> None:
        super().__init__(fits)
        self.fits = fits


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in ("can't allocate memory", "not enough memory", "CUDA out of memory"))


def events_at_once(settings: Settings, model: LinkModel, device: torch.device) -> int | None:
    """The most events that a step holds at once, because it works off parts, as many as there are threads.

    None where it works off everything together.
    """
    part = events_a_part(model, settings.training.num_negatives) if device.type == "cpu" else None
    return part if part is None or not model.is_thread_safe() else part * torch.get_num_threads()


def what_fits(settings: Settings, task: LinkTask, model: LinkModel) -> str:
    """Which batch size the memory that is free now would hold, judged by steps of a few events; empty if unknown.

    Where a batch is worked off in parts, it is a part that has to fit. On the CPU tensors are counted, on a GPU the
    allocator is asked.
    """
    size, device = settings.training.batch_size, task.network_device
    few = min(4, size)
    try:
        free = free_memory(device)
        peaks = {n: peak_at_once(settings, task, model, n) for n in (few, 2 * few)}
    except (MemoryError, RuntimeError):  # not even these fit, or the device is lost
        return ""
    if free is None:
        return ""
    micro_batches = max(1, settings.training.micro_batches)
    n, at_once = batch_that_fits(peaks, free), events_at_once(settings, model, device)
    bounded = at_once is not None and size > at_once * micro_batches
    parts = f"A batch is worked off {at_once} events at a time" if bounded else ""
    if at_once is not None and bounded and n >= at_once:
        if size * PLACE_BYTES > free:
            return ""  # it is the batch after all
        each, below = peak_of(peaks, at_once) / 2**20, at_once * micro_batches
        return f"{parts}, which takes about {each:,.0f} MB: only below {below} does a smaller batch_size take less."
    if n * micro_batches >= size:
        return ""
    told = f"batch_size={n * micro_batches}" if n else "no batch"
    by = f"{parts}; by" if parts else "By"
    return f"{by} a step of {2 * few} events, {told} would fit the {free / 2**30:.1f} GB that are free."


def peak_at_once(settings: Settings, task: LinkTask, model: LinkModel, size: int) -> int:
    """Bytes that so many events hold at once in a step; it is taken back to front but not applied."""
    positions = torch.from_numpy(task.split.train[-size:]).to(task.device)

    def back_to_front() -> None:
        seed, num_negatives = settings.seed, settings.training.num_negatives
        queries = task.queries(
            positions, positions[:1], task.pools.train, seed=seed, epoch=1, num_negatives=num_negatives
        )
        model.losses(model.read(task.training, queries)).sum().backward()
        model.zero_grad(set_to_none=True)

    return peak_bytes(back_to_front, task.network_device)
