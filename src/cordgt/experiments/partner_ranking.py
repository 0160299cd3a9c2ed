"""Train a model and rank the partners of sampled events among all known destinations: those never met, and all.

A training reads the latest `MAX_TRAIN_EVENTS` events of the training split and chooses its epoch on `MAX_EVENTS` events
of the validation split. So a cell takes seconds or minutes, whatever the size of the stream. History is never cut: a
query sees all events before its own.

A model that scores a pair slowly ranks in two stages, as `cordgt recommend` does. The first stage scores every
destination: the `Counts` network of CorDGT+, or item-kNN for other models. The model ranks the best `N_CANDIDATES`. A
true destination that is not among them keeps its rank of the first stage. The weight of `Counts` in CorDGT+ is chosen
for each row, on events of the validation split.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cordgt.callbacks import NO_CALLBACK
from cordgt.events.arrays import evenly_spaced
from cordgt.events.stream import EventStream
from cordgt.experiments.cells import Cell
from cordgt.models.base import LinkModel
from cordgt.models.cordgt_plus import CordgtPlus
from cordgt.models.item_knn import ItemKnn, ItemKnnSettings
from cordgt.runtime.signals import StopRequest, defer_signals
from cordgt.tasks.blend_weight import WEIGHTS
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import compute_ranks, ranked_queries, score_candidates
from cordgt.tasks.metrics import ranking_metrics
from cordgt.tasks.run_metrics import SPLITS
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import mean_ranks
from cordgt.training.devices import set_matmul_precision
from cordgt.training.model_factory import load_weights
from cordgt.training.run_folder import ReadOnlyRunFolder
from cordgt.training.settings import Settings
from cordgt.training.trainer import Trainer

MAX_EVENTS = 1000  # ranked in each split and row, and validated after each epoch; evenly spread
MAX_TRAIN_EVENTS = 60_000  # the latest of the training split
N_CANDIDATES = 256  # that a slow model ranks
# The rows of each dataset: title, and the protocol of the ranking.
ROWS: dict[str, tuple[str, dict[str, str]]] = {
    "new": ("never met", {"ranking": "all", "filter": "seen", "positives": "new"}),
    "all": ("all partners", {"ranking": "all", "filter": "known", "positives": "all"}),
}


def measure_new_partners(cell: Cell, stream: EventStream, device: torch.device) -> dict[str, Any]:
    """Train the cell's model; return ``{row: {split: metrics}}`` of at most `MAX_EVENTS` events of each split.

    Models without training and CorDGT+ have metrics of the validation split too: they choose settings, or the weight of
    `Counts`, by them.
    """
    task = LinkTask.prepare(stream, cell.settings.protocol, seed=cell.seed, device=device)
    with defer_signals() as stop:
        model = fit_model(task, cell.settings, stop)
        splits = ("test",) if model.is_trainable and own_counts(model) is None else SPLITS
        return {row: rank_partners(model, task, row, splits, stop) for row in ROWS}


def fit_model(task: LinkTask, settings: Settings, stop: StopRequest) -> LinkModel:
    """Return the trained model."""
    own = sample_events(task, "validation")
    own = replace(own, split=replace(own.split, train=own.split.train[-MAX_TRAIN_EVENTS:]))
    set_matmul_precision(settings, task.network_device)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            ReadOnlyRunFolder(Path(folder)),
            settings,
            own,
            phase="fit",
            epochs=settings.training.epochs,
            callbacks=NO_CALLBACK,
            stop=stop,
        )
        best = trainer.fit()
    load_weights(trainer.model, {k: v.to(task.network_device) for k, v in best.items()}, "the training")
    return trainer.model.eval()


def rank_partners(
    model: LinkModel, task: LinkTask, row: str, splits: Sequence[str], stop: StopRequest
) -> dict[str, dict[str, Any]]:
    """Return the metrics of a row by split, with the number of ranked events.

    The weight of `Counts` in CorDGT+ is the best one on the validation split, which ``splits`` must contain.
    """
    first, task, metrics = first_stage(model), task.with_protocol(**ROWS[row][1]), {}
    weight = 0.0
    about: dict[str, float] = {"candidates": 0 if first is None else N_CANDIDATES}
    for split in sorted(splits, key=SPLITS.index):  # validation first
        stop.raise_if_requested()
        own = sample_events(task, split)
        if first is None:
            ranks = compute_ranks(model, own, split, "transductive")
        else:
            stages = score_two_stages(first, model, own, split)
            if split == "validation" and first is own_counts(model):
                weight = best_weight(stages)
                about = about | {"counts_weight": weight}
            ranks = stages.ranks(weight)
        metrics[split] = ranking_metrics(ranks) | {"events": len(ranks)} | about
    return metrics


def own_counts(model: LinkModel) -> LinkModel | None:
    """Return the `Counts` network of CorDGT+; None for other models."""
    return model.counts if isinstance(model, CordgtPlus) else None


def first_stage(model: LinkModel) -> LinkModel | None:
    """Return the model that chooses candidates for a slow one; None for a model that scores every destination."""
    return None if model.is_cheap else own_counts(model) or ItemKnn(ItemKnnSettings(), edge_dim=0, node_dim=0)


class TwoStageScores(NamedTuple):
    """Ranks of the first stage, and the scores of both stages for the true destination and the best candidates."""

    first_rank: np.ndarray  # (B,)
    first: np.ndarray  # (B, N_CANDIDATES), the true destination in column 0
    second: np.ndarray  # (B, N_CANDIDATES)
    competes: np.ndarray  # (B, N_CANDIDATES - 1) bool
    tolerance: float  # of the second stage's scores

    def ranks(self, weight: float = 0.0) -> np.ndarray:
        """Return the final ranks (B,), by ``(1 - weight) * second + weight * first``."""
        scores = self.second if weight == 0 else (1 - weight) * self.second + weight * self.first
        second_rank = mean_ranks(scores[:, 0], scores[:, 1:], self.competes, self.tolerance)
        return np.where(self.first_rank <= N_CANDIDATES, second_rank, self.first_rank)


def best_weight(stages: TwoStageScores) -> float:
    """Return the weight of the first stage with the highest MRR; the largest of equal ones. 1 without events."""
    return float(max(reversed(WEIGHTS), key=lambda weight: float((1 / stages.ranks(weight)).sum())))


def score_two_stages(first: LinkModel, second: LinkModel, task: LinkTask, split: str) -> TwoStageScores:
    """Score every destination with ``first``, and the best `N_CANDIDATES` with ``second``, the true one included."""
    empty = np.empty((0, N_CANDIDATES))
    found = [(empty[:, 0], empty, empty, empty[:, 1:] > 0)]
    for chunk in score_candidates(first, task, split, "transductive"):
        true, others, competes = chunk.scores
        n_missing = max(0, N_CANDIDATES - 1 - others.shape[1])
        nodes, others = (np.pad(x, ((0, 0), (0, n_missing))) for x in (chunk.nodes, others))
        competes = np.pad(competes, ((0, 0), (0, n_missing)))
        rank = mean_ranks(true, others, competes, first.score_tolerance)
        order = np.where(competes, -others, np.inf)
        best = np.argpartition(order, N_CANDIDATES - 2, axis=1)[:, : N_CANDIDATES - 1]
        nodes, others, competes = (np.take_along_axis(x, best, axis=1) for x in (nodes, others, competes))
        dst = chunk.queries.dst[:, :1].cpu().numpy()
        dst = np.concatenate([dst, np.where(competes, nodes, dst)], axis=1)
        queries = replace(chunk.queries, dst=torch.from_numpy(dst).to(task.device))
        scores = score_queries(second, task.full_history, queries)
        found.append((rank, np.concatenate([true[:, None], others], axis=1), scores, competes))
    rank, of_first, of_second, competing = (np.concatenate(part) for part in zip(*found, strict=True))
    return TwoStageScores(rank, of_first, of_second, competing, second.score_tolerance)


def sample_events(task: LinkTask, split: str, n: int = MAX_EVENTS) -> LinkTask:
    """Return the task with at most ``n`` of the events that a split ranks, evenly spread; always the same ones."""
    positions = ranked_queries(task, split, "transductive")[0]
    rows = evenly_spaced(len(positions), n)
    return replace(task, split=replace(task.split, **{split: positions[rows]}))
