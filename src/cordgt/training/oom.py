"""Out of memory: turn the error into one that says what to do, and which batch size would fit."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cordgt.errors import RunError, is_out_of_memory
from cordgt.models.base import LinkModel
from cordgt.runtime.profiling import free_memory, max_batch_size, measure_peak_bytes, predict_peak_bytes
from cordgt.tasks.link import LinkTask
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import Settings, format_value
from cordgt.training.step import max_events_per_chunk

BYTES_PER_EVENT = 64  # of a batch, however it is split: position and weight of an event, and copies of them


class OutOfMemoryHint(MemoryError):
    """Memory ran out in a training step. Its text says which batch size would fit; it is empty if that is unknown."""


@contextmanager
def explain_out_of_memory(settings: Settings, folder: RunFolder | None = None) -> Iterator[None]:
    """Re-raise an out-of-memory error of Python, NumPy or PyTorch as a RunError that says what to do.

    ``folder`` is where a training writes; None if nothing is written.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        sizes: dict[str, Any] = {"batch_size": settings.training.batch_size}
        sizes |= {k: v for k, v in vars(settings.model_settings).items() if k in ("fanout", "hidden")}
        message = "Memory ran out. Use a smaller " + ", ".join(f"{k} (now {format_value(v)})" for k, v in sizes.items())
        message += "." if folder is None else ", with another --out."
        if isinstance(error, OutOfMemoryHint) and str(error):
            message += f" {error}"
        if folder is not None and folder.has_run:
            message += f" {folder.path} is intact: with more memory, --resume continues it."
        raise RunError(message) from None


@contextmanager
def oom_hint(make_hint: Callable[[], str]) -> Iterator[None]:
    """Re-raise an out-of-memory error as `OutOfMemoryHint`.

    ``make_hint`` is called after the failed step's tensors are freed, so it may allocate.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # frees the tensors of the failed step
        raise OutOfMemoryHint(make_hint()) from None


def max_events_in_memory(settings: Settings, model: LinkModel, device: torch.device) -> int | None:
    """Return how many events a step holds in memory at once: a chunk per thread. None means the whole batch."""
    chunk = max_events_per_chunk(model, settings.training.num_negatives) if device.type == "cpu" else None
    return chunk if chunk is None or not model.is_thread_safe() else chunk * torch.get_num_threads()


def suggest_batch_size(settings: Settings, task: LinkTask, model: LinkModel) -> str:
    """Return a sentence with the batch size that fits in the free memory; empty if that is unknown.

    It is estimated from steps of a few events. Where a batch is split into chunks, the chunks have to fit.
    """
    batch_size, device = settings.training.batch_size, task.network_device
    few = min(4, batch_size)
    try:
        free = free_memory(device)
        peaks = {n: peak_step_memory(settings, task, model, n) for n in (few, 2 * few)}
    except (MemoryError, RuntimeError):  # not even these fit, or the device is lost
        return ""
    if free is None:
        return ""
    micro_batches = max(1, settings.training.micro_batches)
    n_fit, n_held = max_batch_size(peaks, free), max_events_in_memory(settings, model, device)
    prefix = ""
    if n_held is not None and batch_size > n_held * micro_batches:
        prefix = f"Training holds {n_held} events of a batch in memory at a time. "
        if n_fit >= n_held:
            if batch_size * BYTES_PER_EVENT > free:
                return ""  # the batch itself is too large
            megabytes = predict_peak_bytes(peaks, n_held) / 2**20
            return (
                f"{prefix}They take about {megabytes:,.0f} MB: only a batch_size below {n_held * micro_batches} "
                "takes less."
            )
    if n_fit * micro_batches >= batch_size:
        return ""
    suggestion = f"batch_size={n_fit * micro_batches}" if n_fit else "no batch size"
    return f"{prefix}Estimate: {suggestion} fits in the {free / 2**30:.1f} GB of free memory."


def peak_step_memory(settings: Settings, task: LinkTask, model: LinkModel, batch_size: int) -> int:
    """Return the peak memory in bytes of a forward and backward pass; weights do not change."""
    positions = torch.from_numpy(task.split.train[-batch_size:]).to(task.device)

    def run_step() -> None:
        queries = task.queries(
            positions,
            positions[:1],
            task.pools.train,
            seed=settings.seed,
            epoch=1,
            num_negatives=settings.training.num_negatives,
        )
        model.losses(model.read(task.train_history, queries)).sum().backward()
        model.zero_grad(set_to_none=True)

    return measure_peak_bytes(run_step, task.network_device)
