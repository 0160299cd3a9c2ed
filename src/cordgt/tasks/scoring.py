"""Score any number of queries with a model, in batches, in one process or in several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import RunError
from cordgt.history.queries import History, Queries
from cordgt.models.base import LinkModel
from cordgt.runtime.distributed import SINGLE_PROCESS, ProcessGroup
from cordgt.runtime.threads import parallel_map

GPU_FACTOR = 10  # a GPU scores so many times more pairs at once with a cheap model: starting its kernels takes longest


def score_queries(
    model: LinkModel,
    history: History,
    queries: Queries,
    *,
    max_pairs_per_batch: int | None = None,
    callbacks: Callback = NO_CALLBACK,
    group: ProcessGroup = SINGLE_PROCESS,
    forward: Callable[[Any], torch.Tensor] | None = None,
    further_axes: tuple[int, ...] = (),
) -> np.ndarray:
    """Return logits (B, M) of any number of queries, float64 on the host.

    ``forward`` is called on a batch instead of the model, and returns (B, M, *further_axes).
    ``max_pairs_per_batch`` limits how many candidates are scored at once, and so the memory; None: the model's value.
    The processes of a group share the batches, and each returns all scores. The scores do not depend on the number of
    processes, to the bit, because the batches do not. Without queries or candidates the model is not called. RunError
    if a logit is not finite, because its rank would be arbitrary.
    """
    n, width = queries.dst.shape
    if not n * width:
        callbacks.on_step(n)
        return np.empty((n, width, *further_axes))
    model.eval()
    if forward is None:
        model = model.scoring_model()
    on_cpu = (model.device or history.index.device).type == "cpu"
    if not max_pairs_per_batch:
        fits_caches = 2 * (model.chunk_size or 0) if on_cpu else 0
        factor = GPU_FACTOR if model.is_cheap and not on_cpu else 1
        max_pairs_per_batch = fits_caches or factor * model.max_pairs_per_batch
    step = max(1, max_pairs_per_batch // width)
    n_column_blocks = -(-width // max_pairs_per_batch)  # above 1: a query alone has too many candidates for one call
    own = group.shard(n, step)
    blocks = (
        replace(chunk, dst=dst)
        for chunk in (queries.take(slice(k, k + step)) for k in range(own.start, own.stop, step))
        for dst in chunk.dst.split(-(-width // n_column_blocks), dim=1)  # equal parts, so that no thread waits
    )
    inputs = (model.read(history, block) for block in blocks)
    done, row, n_done = [], [], 0
    with torch.inference_mode():
        use_threads = on_cpu and model.is_thread_safe()
        call = torch.inference_mode()(forward or model.__call__)
        for logits in parallel_map(call, inputs) if use_threads else map(call, inputs):
            row.append(logits)
            if len(row) < n_column_blocks:
                continue
            done.append(torch.cat(row, dim=1))
            row.clear()
            n_new = min(n - n_done, len(done[-1]) * group.world_size)  # assume the other processes are equally far
            callbacks.on_step(n_new)
            n_done += n_new
    scores = torch.cat(done).double().cpu().numpy() if done else np.empty((0, width, *further_axes))
    if group.world_size > 1:
        scores = gather_rows(group, scores, own, n)
    check_finite(scores)
    return scores


def check_finite(scores: np.ndarray) -> None:
    """Raise RunError if a score is not finite."""
    if not np.isfinite(scores).all():
        raise RunError(
            "The model's scores are no longer numbers: its weights grew without bound in training. "
            "Train with a smaller learning rate (--set lr=0.0003, with another --out)."
        )


def gather_rows(group: ProcessGroup, rows: np.ndarray, own: slice, n: int) -> np.ndarray:
    """Return all ``n`` rows; ``rows`` are those of this process, at ``own``. Adding zeros keeps every bit."""
    table = np.zeros((n, *rows.shape[1:]))
    table[own] = rows
    return group.all_reduce_sum(torch.from_numpy(table)).numpy()
