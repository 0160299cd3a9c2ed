"""Estimate how long a training takes, from the time of its own first steps.

Nothing is computed for the estimate: it only reads the clock. So it does not change any result.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from cordgt.tasks.link import LinkTask
from cordgt.tasks.run_metrics import SETTINGS, SPLITS
from cordgt.training.settings import Settings

WARM_STEPS = 2  # not measured: the first steps compile loops and fill caches
MIN_STEPS, MIN_SECONDS = 3, 3.0  # measured at least
MAX_STEPS, MAX_SECONDS = 50, 15.0  # measured at most, once there is one step; a GPU measures MAX_STEPS
SCORING_SHARE = 1 / 3  # of the time of a training step: scoring a pair needs no gradients


class StepTimer:
    """Measures the first warm steps of a training. Call `add` after every step."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"
        self.n_steps = self.n_events = 0
        self.start = 0.0
        self.is_done = False

    def add(self, n_events: int) -> float | None:
        """Count a step of ``n_events`` events. Return the seconds per event, once: when enough steps are measured."""
        if self.is_done:
            return None
        self.n_steps += 1
        if self.n_steps <= WARM_STEPS:
            if self.n_steps == WARM_STEPS:
                self.start = self._now()
            return None
        self.n_events += n_events
        n_measured = self.n_steps - WARM_STEPS
        if self.is_cuda and n_measured < MAX_STEPS:  # reading the clock waits for the GPU
            return None
        seconds = self._now() - self.start
        is_enough = n_measured >= MIN_STEPS and seconds >= MIN_SECONDS
        self.is_done = is_enough or n_measured >= MAX_STEPS or seconds >= MAX_SECONDS
        return seconds / self.n_events if self.is_done else None

    def _now(self) -> float:
        if self.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


@dataclass
class TimeEstimate:
    """The seconds that are left of a training, at most: with all epochs, the evaluation and the refit."""

    epochs: int  # at most
    train_events: int
    validation_events: int = 0  # scored after every epoch
    final_events: int = 0  # scored after the last epoch
    refit_events: int = 0  # trained on in each epoch of a later refit
    scoring_ratio: float = SCORING_SHARE  # time to score an event / time to train on it, until it is measured
    train_seconds: float = 0.0  # per event
    scoring_seconds: float | None = None  # per event; None: not measured yet

    @classmethod
    def from_task(
        cls, settings: Settings, task: LinkTask, *, epochs: int, validates: bool, evaluates: bool, refits: bool
    ) -> TimeEstimate:
        """Return the estimate of a phase of a training, and of the evaluation and the refit that follow it."""
        kinds = [(split, setting) for split in SPLITS for setting in SETTINGS] if evaluates else []
        return cls(
            epochs=epochs,
            train_events=len(task.split.train),
            validation_events=len(task.split.validation) if validates else 0,
            final_events=sum(len(task.evaluation_events(*kind)[0]) for kind in kinds),
            refit_events=task.stream.n_events if refits else 0,
            scoring_ratio=SCORING_SHARE * (2 + _n_ranked(task)) / (1 + settings.training.num_negatives),
        )

    def seconds_left(self, epoch: int, n_events: int, *, is_finished: bool = False, best_epoch: int = 0) -> float:
        """Return the seconds left after ``epoch`` whole epochs and ``n_events`` events of the next one.

        ``is_finished``: no epoch follows, and a refit trains for ``best_epoch`` epochs.
        """
        scoring = self.scoring_seconds
        if scoring is None:
            scoring = self.scoring_ratio * self.train_seconds
        n_epochs = 0 if is_finished else self.epochs - epoch
        n_refit = best_epoch if is_finished else self.epochs
        n_train = n_epochs * self.train_events - n_events + n_refit * self.refit_events
        return n_train * self.train_seconds + (n_epochs * self.validation_events + self.final_events) * scoring


def _n_ranked(task: LinkTask) -> int:
    """Return how many candidates the protocol ranks for each event."""
    ranking = task.protocol.ranking
    if ranking == "none":
        return 0
    n_pool = len(task.pools.transductive)
    return n_pool if ranking == "all" else min(int(ranking), n_pool)
