"""Metrics of link prediction: score the events of a split and their negatives, and rank true destinations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel
from cordgt.tasks.candidate_filter import can_be_recommended, first_as_destination
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import LinkMetrics, link_metrics, ranking_metrics
from cordgt.tasks.negatives import NEGATIVES, draw_candidates
from cordgt.tasks.pair_scores import negative_pair_queries, score_pairs
from cordgt.tasks.recommendation_metrics import TOP, RecommendationLists, top_candidates
from cordgt.tasks.scoring import gather_rows, score_queries
from cordgt.tasks.ties import mean_ranks, merge_near_ties


def evaluate(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    *,
    callbacks: Callback = NO_CALLBACK,
) -> LinkMetrics:
    """Return the metrics of a split under the task's protocol.

    All are None if the split has no events, or if the model cannot score new nodes and ``setting`` is inductive.
    Where no negative of the requested kind exists, a random one replaces it; ``random_negatives`` is their number.
    """
    protocol = task.protocol
    if model.is_transductive and setting == "inductive":
        metrics = link_metrics(np.empty(0), np.empty(0), protocol.eval_batch_size)
        if protocol.ranking != "none":
            metrics |= ranking_metrics(np.empty(0))
        metrics["events"] = len(task.evaluation_events(split, setting)[0])
        return metrics
    positive, negative, n_random = split_scores(model, task, split, setting, callbacks)
    metrics = link_metrics(positive, negative, protocol.eval_batch_size)
    if protocol.negatives != "random":
        metrics["random_negatives"] = n_random
    if protocol.lists_recommendations:
        lists = recommendation_lists(model, task, split, setting, callbacks=callbacks)
        metrics |= ranking_metrics(lists.rank) | lists.metrics()
    elif protocol.ranking != "none":
        metrics |= ranking_metrics(compute_ranks(model, task, split, setting, callbacks=callbacks))
    if protocol.filter != "none":
        n_ranked = len(ranked_queries(task, split, setting)[0])
        metrics["unknown_destinations"] = len(task.evaluation_events(split, setting)[0]) - n_ranked
    return metrics


def split_scores(
    model: LinkModel, task: LinkTask, split: str, setting: str, callbacks: Callback = NO_CALLBACK
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return logits of the true events and of their negatives, (B,) each, and how many negatives are replacements.

    Near-equal logits of the split are made equal (`merge_near_ties`), so that AP and AUC count them as ties.
    """

    def score(some: Queries) -> np.ndarray:
        return score_queries(model, task.full_history, some, callbacks=callbacks, group=task.group)

    positions, queries = task.evaluation_queries(split, setting)
    n_random = 0
    if NEGATIVES[task.protocol.negatives].replaces_source:
        pairs, n_random = negative_pair_queries(task, split, setting)
        scores = score_pairs(model, task, replace(queries, dst=queries.dst[:, :1]), pairs, callbacks=callbacks)
    else:
        scores = score(queries)
        if task.protocol.negatives != "random":
            pool = task.evaluation_events(split, setting)[1]
            n_random = int((task.hard_negatives(positions, queries, pool) < 0).sum())
    scores = merge_near_ties(scores, model.score_tolerance)
    return scores[:, 0], scores[:, 1], n_random


def ranked_queries(task: LinkTask, split: str, setting: str) -> tuple[np.ndarray, Queries]:
    """Return positions and queries of the events whose true destination is ranked.

    With a filter, events with an unknown destination are left out: nobody could recommend it, and it would be the only
    unknown candidate, which a model could recognize.
    """
    positions, queries = task.evaluation_queries(split, setting)
    if task.protocol.filter == "none":
        return positions, queries
    known = first_as_destination(task)[np.asarray(task.stream.dst[positions])] < queries.cut.cpu().numpy()
    return positions[known], queries.take(np.flatnonzero(known))


class CandidateScores(NamedTuple):
    """Logits of true destinations and of the candidates they compete with."""

    true: np.ndarray  # (B,)
    others: np.ndarray  # (B, M)
    competes: np.ndarray  # (B, M) bool; False: ignored


def compute_ranks(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    *,
    max_pairs_per_batch: int = 200_000,
    callbacks: Callback = NO_CALLBACK,
) -> np.ndarray:
    """Return the rank of each true destination among the protocol's candidates, (B,) float64.

    1 is best; near-equal scores tie, and ties get their mean rank (`mean_ranks`). Candidates come from the split's
    pool: as many as ``ranking`` says, or all. Other true destinations of the same source and time do not compete, nor
    do candidates that ``filter`` leaves out. The events are those of `ranked_queries`. They see the same history as in
    `evaluate`; ``max_pairs_per_batch`` limits how many candidates are in memory.
    """
    ranks = [np.empty(0)]
    for scores in candidate_scores(
        model, task, split, setting, max_pairs_per_batch=max_pairs_per_batch, callbacks=callbacks
    ):
        ranks.append(mean_ranks(*scores, model.score_tolerance))
    n = len(ranked_queries(task, split, setting)[0])
    own = task.group.shard(n, _ranking_step(task, split, setting, max_pairs_per_batch))
    return gather_rows(task.group, np.concatenate(ranks), own, n)


def candidate_scores(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    *,
    max_pairs_per_batch: int = 200_000,
    callbacks: Callback = NO_CALLBACK,
) -> Iterator[CandidateScores]:
    """Yield the scores of the protocol's candidates, some events at a time; a process of a group yields its share."""
    for chunk in score_candidates(model, task, split, setting, max_pairs_per_batch, callbacks):
        yield chunk.scores


class ScoredChunk(NamedTuple):
    """Some queries with their candidates (B, 1 + M), the true destination first, and the scores of these."""

    queries: Queries
    nodes: np.ndarray  # (B, M) the other candidates; -1 in the place of the true one, if all are ranked
    scores: CandidateScores


def score_candidates(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str,
    max_pairs_per_batch: int = 200_000,
    callbacks: Callback = NO_CALLBACK,
) -> Iterator[ScoredChunk]:
    """Yield the queries of this process in chunks, with the scores of their candidates."""
    positions, queries = ranked_queries(task, split, setting)
    pool = _candidate_pool(task, split, setting).cpu().numpy()
    step = _ranking_step(task, split, setting, max_pairs_per_batch)
    own = task.group.shard(len(positions), step)
    for start in range(own.start, own.stop, step):
        events = positions[start : start + step]
        true = task.stream.dst[events]
        others = draw_candidates(pool, _n_candidates(task, pool), true, events, seed=task.protocol.eval_seed)
        chunk = queries.take(slice(start, start + step))
        competes = can_be_recommended(task, chunk, others) & ~_is_also_true(task, events, others)
        candidates = np.concatenate([true[:, None], np.where(others >= 0, others, true[:, None])], axis=1)
        chunk = replace(chunk, dst=torch.from_numpy(candidates).to(task.device))
        scores = score_queries(model, task.full_history, chunk, callbacks=callbacks)
        yield ScoredChunk(chunk, others, CandidateScores(scores[:, 0], scores[:, 1:], competes))


def recommendation_lists(
    model: LinkModel,
    task: LinkTask,
    split: str,
    setting: str = "transductive",
    *,
    max_pairs_per_batch: int = 200_000,
    callbacks: Callback = NO_CALLBACK,
) -> RecommendationLists:
    """Return the best destinations of each query, and the rank of the true one as `compute_ranks` has it.

    The protocol ranks all destinations that its ``filter`` allows.
    """
    positions, queries = ranked_queries(task, split, setting)
    index, n = task.full_history.index, len(positions)
    rows = [np.empty((0, 2 + TOP))]
    for chunk in score_candidates(model, task, split, setting, max_pairs_per_batch, callbacks):
        true, others, competes = chunk.scores
        is_true = chunk.nodes < 0
        scores = np.where(is_true, true[:, None], others)
        nodes = np.where(is_true, chunk.queries.dst[:, :1].cpu().numpy(), chunk.nodes)
        top = top_candidates(scores, nodes, competes | is_true, model.score_tolerance)
        cut = chunk.queries.cut[:, None]
        degree = index.degree(torch.from_numpy(top).to(task.device), cut).cpu().numpy()
        bits = np.log2(np.maximum(cut.cpu().numpy(), 1)) - np.log2(np.maximum(degree, 1))
        n_listed = (top >= 0).sum(axis=1)
        novelty = np.where(top >= 0, bits, 0.0).sum(axis=1) / np.maximum(n_listed, 1)
        ranks = mean_ranks(true, others, competes, model.score_tolerance)
        rows.append(np.column_stack([ranks, np.where(n_listed > 0, novelty, np.nan), top]))
    own = task.group.shard(n, _ranking_step(task, split, setting, max_pairs_per_batch))
    table = gather_rows(task.group, np.concatenate(rows), own, n)
    end = int(queries.cut.max()) if n else 0
    return RecommendationLists(
        rank=table[:, 0],
        src=queries.src.cpu().numpy(),
        history=index.degree(queries.src, queries.cut).cpu().numpy(),
        top=table[:, 2:].astype(np.int64),
        novelty=table[:, 1],
        n_known=int((first_as_destination(task) < end).sum()),
    )


def _candidate_pool(task: LinkTask, split: str, setting: str) -> Tensor:
    """Return the nodes that candidates come from. A filtered ranking has the same ones in both settings."""
    return task.evaluation_events(split, setting)[1] if task.protocol.filter == "none" else task.pools.transductive


def _n_candidates(task: LinkTask, pool: np.ndarray | Tensor) -> int:
    return len(pool) if task.protocol.ranking == "all" else int(task.protocol.ranking)


def _ranking_step(task: LinkTask, split: str, setting: str, max_pairs_per_batch: int) -> int:
    """Return how many events are ranked at once."""
    pool = _candidate_pool(task, split, setting)
    return max(1, max_pairs_per_batch // min(_n_candidates(task, pool), len(pool)))


def _is_also_true(task: LinkTask, positions: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Return (B, M) bool: the candidate is a true destination of the query's source at the query's own time."""
    src, dst = task.stream.src, task.stream.dst
    is_true = np.zeros(candidates.shape, dtype=bool)
    for i, (position, start, end) in enumerate(zip(positions, *task.tie_ranges(positions), strict=True)):
        if end - start > 1:
            tied = dst[start:end][src[start:end] == src[position]]
            for true in set(tied.tolist()):  # few values, so faster than np.isin
                is_true[i] |= candidates[i] == true
    return is_true
