"""Scores of whole pairs, whose sources differ: how often the source acts, and whom it picks.

``score = log rate(u, t) + slope * logit(v | u, t)``: the rate of the source (`cordgt.models.activity`), and the logit
of a model. The logit learned to separate the partners of one source, whose order no slope changes. Between sources it
can be too sure, so validation data choose a slope from 0 to 1 (the inverse of a temperature).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.history import rng
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel, comparing_sources
from cordgt.tasks.blend_weight import choose_by_ap, sample_validation
from cordgt.tasks.link import LinkTask
from cordgt.tasks.negative_pairs import draw_negative_pairs, draw_random_pairs
from cordgt.tasks.negatives import negatives_key
from cordgt.tasks.scoring import score_queries

TRUE = "true"
PAIR_NEGATIVES = ("historical-pairs", "inductive-pairs")
BATCH_SIZE = 200  # for which the validation negatives are drawn, as published


def score_pairs(model: LinkModel, task: LinkTask, *columns: Queries, callbacks: Callback = NO_CALLBACK) -> np.ndarray:
    """Return scores (B, len(columns)) of queries with one candidate each, which compare across sources.

    Without the protocol's activity they are the model's logits.
    """
    logits = partner_logits(model, task, *columns, callbacks=callbacks)
    if not task.protocol.activity:
        return logits
    if model.pair_slope is None:
        model.pair_slope = choose_pair_slope(model, task, callbacks)
    return np.stack([task.log_source_rates(queries) for queries in columns], axis=1) + model.pair_slope * logits


def partner_logits(
    model: LinkModel, task: LinkTask, *columns: Queries, callbacks: Callback = NO_CALLBACK
) -> np.ndarray:
    """Return the logits (B, len(columns)) of queries with one candidate each, as for pairs of different sources."""
    with comparing_sources(model):
        parts = [
            score_queries(model, task.full_history, queries, callbacks=callbacks, group=task.group)
            for queries in columns
        ]
    return np.concatenate(parts, axis=1)


def choose_pair_slope(model: LinkModel, task: LinkTask, callbacks: Callback = NO_CALLBACK) -> float:
    """Return the slope of the logit with the highest mean AP on the validation split, against whole pairs.

    It may lose little to slope 1 with each of `PAIR_NEGATIVES`, see `choose_by_ap`. 1 without validation events.
    """
    if not len(task.split.validation):
        return 1.0
    pairs = validation_pairs(task)
    logits = {kind: partner_logits(model, task, queries, callbacks=callbacks)[:, 0] for kind, queries in pairs.items()}
    return best_slope(logits, {kind: task.log_source_rates(queries) for kind, queries in pairs.items()})


def best_slope(logits: dict[str, np.ndarray], rates: dict[str, np.ndarray]) -> float:
    """Return the slope of `choose_pair_slope` from the logits and log rates (B,) of the `validation_pairs`."""
    found = {kind: np.stack([rates[kind] + logits[kind], rates[kind]]) for kind in logits}
    return round(1.0 - choose_by_ap(found.pop(TRUE), found, reference=0), 3)


def validation_pairs(task: LinkTask, setting: str = "transductive") -> dict[str, Queries]:
    """Return some validation events as queries with one candidate, under `TRUE`, and negatives of each kind for them.

    The kinds are `PAIR_NEGATIVES`, in batches of `BATCH_SIZE` whatever the protocol says. Events of the test split do
    not change them.
    """
    task = task.with_protocol(positives="all", negatives="random", eval_batch_size=BATCH_SIZE)
    _, true = task.evaluation_queries("validation", setting)
    columns, stop = {TRUE: replace(true, dst=true.dst[:, :1])}, int(task.split.validation[-1]) + 1
    for kind in PAIR_NEGATIVES:
        changed = task.with_protocol(negatives=kind)
        columns[kind], _ = negative_pair_queries(changed, "validation", setting, stop=stop)
    chosen = sample_validation(len(true.src), len(columns))
    return {kind: queries.take(chosen) for kind, queries in columns.items()}


def negative_pair_queries(task: LinkTask, split: str, setting: str, *, stop: int | None = None) -> tuple[Queries, int]:
    """Return negatives as in DyGLib, which replace the source too, as queries (B, 1); and how many are random pairs.

    They are past pairs of the stream (its first ``stop`` events), or of the split's own inductive events. Those of
    `inductive-pairs` were not seen before the split. Where a batch has too few of them, random pairs of the same
    sources and destinations fill up.
    """
    positions, queries = task.evaluation_queries(split, setting)
    stream, protocol = task.stream, task.protocol
    own = positions if setting == "inductive" else np.arange(stream.n_events if stop is None else stop)
    all_src, all_dst = (np.asarray(x[own], dtype=np.int64) for x in (stream.src, stream.dst))
    places = np.arange(len(positions)) if setting == "inductive" else positions
    size = protocol.eval_batch_size
    batches = [places[i : i + size] for i in range(0, len(places), size)]
    seen = task.split.train if split == "validation" else task.split.validation
    seen_until = None if protocol.negatives == "historical-pairs" else float(stream.t[seen[-1]])
    src, dst = (np.empty(len(positions), dtype=np.int64) for _ in range(2))
    n_random, key = 0, negatives_key(protocol.eval_seed)
    sources, destinations = np.unique(all_src), np.unique(all_dst)
    drawn = draw_negative_pairs(
        all_src, all_dst, np.asarray(stream.t[own]), batches, trained_until=seen_until, seed=protocol.eval_seed
    )
    for number, (batch, (u, v)) in enumerate(zip(batches, drawn, strict=True)):
        n_missing = len(batch) - len(u)
        if n_missing:
            true = all_src[batch], all_dst[batch]
            any_u, any_v = draw_random_pairs(sources, destinations, n_missing, true, key=rng.fold_in_int(key, number))
            u, v = np.concatenate([u, any_u]), np.concatenate([v, any_v])
            n_random += n_missing
        rows = slice(number * size, number * size + len(batch))
        src[rows], dst[rows] = u, v
    new_src, new_dst = (torch.from_numpy(x).to(task.device) for x in (src, dst))
    return replace(queries, src=new_src, dst=new_dst[:, None]), n_random
