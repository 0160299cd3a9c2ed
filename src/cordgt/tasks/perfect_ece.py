"""The expected calibration error (ECE) that a perfect forecaster would have on the same questions, by chance.

An ECE above 0 can be chance: few questions, or many questions that share few outcomes. Two questions about one node,
asked within one horizon, share most of what happens. So the forecasts are taken as true, events are drawn from them
(consistency resampling), and the ECE of the true probabilities is measured. The draws of different nodes are
independent. A shock to the whole stream is not in them: real outcomes vary more.
"""

from __future__ import annotations

import numpy as np

from cordgt.tasks.probability import expected_calibration_error
from cordgt.tasks.questions import Questions

N_DRAWS = 20
N_CELLS = 8  # parts of a horizon
MAX_PROBABILITY = 1 - 1e-12


def perfect_ece(questions: Questions, probability: np.ndarray, horizon: float, step: float = 0.0) -> float | None:
    """Return the mean ECE of a perfect forecaster whose probabilities are like these (n,). None without questions.

    The hazard of a node, or of a pair, is spread over the cells of its horizons; where horizons overlap, it is
    averaged. With a ``step``, events happen at multiples of it only.
    """
    n = len(questions)
    if not n or not horizon > 0:
        return None
    row, place, size = _cells(questions, horizon, step)
    hazard = -np.log1p(-np.minimum(probability, MAX_PROBABILITY)) / size
    mean = np.bincount(place, hazard[row]) / np.bincount(place)
    true = -np.expm1(-np.bincount(row, mean[place], n))
    random, chance = np.random.default_rng(0), -np.expm1(-mean)
    errors = []
    for _ in range(N_DRAWS):
        acts = random.random(len(mean)) < chance
        outcome = np.bincount(row, acts[place], n) > 0
        errors.append(expected_calibration_error(true, outcome))
    return float(np.mean(errors))


def _cells(questions: Questions, horizon: float, step: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide the horizon of each question into cells of time, which questions about one node or pair share.

    Return, of every cell of every question, the question (E,) and the number (E,) of the cell; and the number of cells
    (n,) of each question.
    """
    n = len(questions)
    width = step or horizon / N_CELLS
    first = np.floor(questions.t / width).astype(np.int64) + (1 if step else 0)
    size = np.floor((questions.t + horizon) / width).astype(np.int64) + 1 - first if step else np.full(n, N_CELLS)
    size = np.maximum(size, 1)
    row = np.repeat(np.arange(n), size)
    cell = np.repeat(first, size) + np.arange(len(row)) - np.repeat(np.cumsum(size) - size, size)
    who = questions.node
    if questions.partner is not None:
        who = who * (questions.partner.max() + 1) + questions.partner
    who = np.unique(who, return_inverse=True)[1]
    cell -= cell.min()
    return row, np.unique(who[row] * (cell.max() + 1) + cell, return_inverse=True)[1], size
