"""Train a model and rank the partners of sampled events among all known destinations: those never met, and all.

A training reads the latest `MAX_TRAIN_EVENTS` events of the training split and chooses its epoch on `MAX_EVENTS` events
of the validation split. So a cell takes seconds or minutes, whatever the size of the stream. History is never cut: a
query sees all events before its own.

A model that scores a pair slowly ranks in two stages, as `cordgt recommend` does. The first stage scores every
destination: the `Counts` network of CorDGT+, or item-kNN for other models. The model ranks the best `N_CANDIDATES`. A
true destination that is not among them keeps its rank of the first stage.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import compute_ranks, score_candidates
from cordgt.tasks.metrics import ranking_metrics
from cordgt.tasks.run_metrics import SPLITS
from cordgt.tasks.scoring import score_queries
from cordgt.tasks.ties import mean_ranks
from cordgt.training.blend import choose_counts_weight
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

    Only models without training have metrics of the validation split, which choose among their settings.
    """
    task = LinkTask.prepare(stream, cell.settings.protocol, seed=cell.seed, device=device)
    with defer_signals() as stop:
        model = fit_model(task, cell.settings, stop)
        splits = ("test",) if model.is_trainable else SPLITS
        return {row: {split: rank_partners(model, task, row, split, stop) for split in splits} for row in ROWS}


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
    choose_counts_weight(trainer.model, own, settings.training.monitor)
    return trainer.model.eval()


def rank_partners(model: LinkModel, task: LinkTask, row: str, split: str, stop: StopRequest) -> dict[str, Any]:
    """Return the metrics of a row, with the number of ranked events."""
    stop.raise_if_requested()
    own = sample_events(task.with_protocol(**ROWS[row][1]), split)
    first = first_stage(model, task)
    ranks = (
        compute_ranks(model, own, split, "transductive") if first is None else two_stage_ranks(first, model, own, split)
    )
    return ranking_metrics(ranks) | {"events": len(ranks), "candidates": 0 if first is None else N_CANDIDATES}


def first_stage(model: LinkModel, task: LinkTask) -> LinkModel | None:
    """Return the model that chooses candidates for a slow one; None for a model that scores every destination."""
    if model.is_cheap:
        return None
    if isinstance(model, CordgtPlus) and model.counts is not None:
        return model.counts
    return ItemKnn(ItemKnnSettings(), edge_dim=0, node_dim=0)


def two_stage_ranks(first: LinkModel, second: LinkModel, task: LinkTask, split: str) -> np.ndarray:
    """Return ranks (B,) as `compute_ranks` does, where ``second`` scores only the best candidates of ``first``."""
    ranks = [np.empty(0)]
    for chunk in score_candidates(first, task, split, "transductive"):
        true, others, competes = chunk.scores
        rank = mean_ranks(true, others, competes, first.score_tolerance)
        n = min(N_CANDIDATES - 1, others.shape[1])
        best = (
            np.argpartition(np.where(competes, -others, np.inf), n - 1, axis=1)[:, :n]
            if n
            else np.empty((len(true), 0), int)
        )
        nodes, competes = (np.take_along_axis(x, best, axis=1) for x in (chunk.nodes, competes))
        dst = chunk.queries.dst[:, :1]
        nodes = torch.where(torch.from_numpy(competes).to(dst.device), torch.from_numpy(nodes).to(dst.device), dst)
        queries = replace(chunk.queries, dst=torch.cat([dst, nodes], dim=1))
        scores = score_queries(second, task.full_history, queries)
        again = mean_ranks(scores[:, 0], scores[:, 1:], competes, second.score_tolerance)
        ranks.append(np.where(rank <= N_CANDIDATES, again, rank))
    return np.concatenate(ranks)


def sample_events(task: LinkTask, split: str, n: int = MAX_EVENTS) -> LinkTask:
    """Return the task with at most ``n`` of a split's evaluated events, evenly spread; always the same ones."""
    positions = task.evaluation_events(split, "transductive")[0]
    rows = evenly_spaced(len(positions), n)
    return replace(task, split=replace(task.split, **{split: positions[rows]}))
