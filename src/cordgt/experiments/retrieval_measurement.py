"""Train a model with its own settings, and compare the two stages of `recommend` with exhaustive ranking.

A training reads the latest `MAX_TRAIN_EVENTS` events of the training split. History is never cut: a query sees all
events before its own. The first scorer and its budget are made as `cordgt train` makes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cordgt.events.stream import EventStream
from cordgt.experiments.bench.recommendation import measure_recommend
from cordgt.experiments.cells import Cell
from cordgt.experiments.partner_ranking import fit_model, sample_events
from cordgt.inference.first_scorer_file import make_first_scorer
from cordgt.inference.predictor import Predictor
from cordgt.inference.retrieval.first_scorer import FirstScorer
from cordgt.runtime.signals import defer_signals
from cordgt.tasks.link import LinkTask
from cordgt.training.blend import choose_counts_weight

MAX_QUESTIONS = 1000  # so that a difference of 0.002 in MRR can be seen
MAX_PAIRS = {"cpu": 1_000_000, "cuda": 8_000_000}  # scored by exhaustive ranking, for all questions together


def measure_retrieval(cell: Cell, stream: EventStream, device: torch.device) -> dict[str, Any]:
    """Return the measurements of `measure_recommend` at test events."""
    task = LinkTask.prepare(stream, cell.settings.protocol, seed=cell.seed, device=device)
    with defer_signals() as stop:
        model = fit_model(task, cell.settings, stop)
        choose_counts_weight(model, sample_events(task, "validation"), cell.settings.training.monitor)
    split = task.split

    def make_scorer(predictor: Predictor) -> FirstScorer:
        return make_first_scorer(predictor, split.train, split.validation)[0]

    is_trained = np.ones(stream.n_nodes, dtype=bool)  # only notes read it
    predictor = Predictor(model, stream, task.full_history, is_trained, make_scorer)
    n_destinations = max(1, predictor.destinations.count(stream.n_events))
    n_questions = int(np.clip(MAX_PAIRS[device.type] // n_destinations, 10, MAX_QUESTIONS))
    if model.is_cheap:
        return measure_recommend(predictor, split.test, max_questions=MAX_QUESTIONS)
    return measure_recommend(predictor, split.test, n_questions=n_questions)
