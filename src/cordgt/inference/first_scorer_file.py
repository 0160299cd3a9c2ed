"""The first scorer of a run folder: ``first_scorer.safetensors``, with the budget that was measured for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import RunError
from cordgt.inference.predictor import Predictor
from cordgt.inference.retrieval.budget import BudgetChoice, choose_budget
from cordgt.inference.retrieval.first_scorer import FirstScorer, distill_first_scorer, new_first_scorer
from cordgt.training.run_folder import RunFolder
from cordgt.training.tensor_files import read_checksum

FIRST_SCORER_FILE = "first_scorer.safetensors"  # can be deleted: it is made again when it is needed


@dataclass(frozen=True)
class FirstScorerFile:
    """Reads the first scorer of a run folder, or makes it."""

    folder: RunFolder
    weights_file: str  # name of the file with the weights of the model

    def read(self) -> FirstScorer | None:
        """Return the first scorer; None if it is missing, damaged or of other weights."""
        if not self.folder.has(FIRST_SCORER_FILE):
            return None
        try:
            weights, origin = self.folder.read_tensors(FIRST_SCORER_FILE)
            is_of_model = origin.get("weights") == self._origin()["weights"]
            return new_first_scorer(weights) if is_of_model else None
        except (RunError, RuntimeError, KeyError, TypeError):
            return None

    def read_or_make(
        self,
        predictor: Predictor,
        split_positions: Callable[[], tuple[np.ndarray, np.ndarray]],
        callbacks: Callback = NO_CALLBACK,
    ) -> FirstScorer:
        """Return the first scorer of the folder. If there is none for these weights, train it and store it.

        ``split_positions`` returns the events to learn from, and those to measure the budget at. A folder that cannot
        be written stays without a first scorer.
        """
        scorer = self.read()
        if scorer is None:
            scorer, choice = make_first_scorer(predictor, *split_positions(), callbacks)
            measured = {"questions": choice.n_questions, "recall": {str(k): v for k, v in choice.recall.items()}}
            with suppress(RunError):
                self.folder.write_tensors(FIRST_SCORER_FILE, scorer.state_dict(), self._origin() | measured)
        return scorer.to(predictor.model.device or predictor.device)

    def _origin(self) -> dict[str, Any]:
        """Return what a first scorer depends on: the checksum of the model's weights."""
        return {"weights": read_checksum(self.folder.path / self.weights_file)}


def make_first_scorer(
    predictor: Predictor, train: np.ndarray, validation: np.ndarray, callbacks: Callback = NO_CALLBACK
) -> tuple[FirstScorer, BudgetChoice]:
    """Train a first scorer at the events ``train``, and measure its budget at the events ``validation``."""
    model, history, destinations = predictor.model, predictor.history, predictor.destinations
    scorer = distill_first_scorer(model, history, destinations, train, callbacks)
    choice = choose_budget(model, scorer, history, destinations, validation, callbacks)
    return scorer.with_budget(choice.budget), choice
