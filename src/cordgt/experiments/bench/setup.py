"""What is measured on: a stream laid out on a device, a model with fresh weights, and a batch to try."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cordgt import models
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.experiments.bench.hardware import Limits
from cordgt.history.context import TreeShape
from cordgt.models.base import LinkModel
from cordgt.tasks.link import LinkTask
from cordgt.training.devices import use_precision
from cordgt.training.model_factory import network_for
from cordgt.training.oom import fits_told, memory_explained, what_fits
from cordgt.training.settings import Settings
from cordgt.training.step import Ema, Step, make_optimizer


@dataclass(frozen=True)
class Place:
    """Everything a stage needs. ``quick``: small sizes, to see that it runs."""

    stream: EventStream
    settings: Settings
    device: torch.device
    limits: Limits
    repeat: int
    quick: bool = False

    @cached_property
    def task(self) -> LinkTask:
        task = LinkTask.prepare(self.stream, self.settings.protocol, seed=self.settings.seed, device=self.device)
        if task.past_on_host:
            raise SettingError(
                "The past lies on the host: stages are measured where it fits the GPU. Use --device cpu."
            )
        return task

    @cached_property
    def model(self) -> LinkModel:
        return network_for(self.settings, self.stream).to(self.device)

    @contextmanager
    def memory_explained(self) -> Iterator[None]:
        """RunError, as a training says it, where memory runs out while something is measured."""
        with memory_explained(self.settings), fits_told(lambda: what_fits(self.settings, self.task, self.model)):
            yield

    @property
    def trees(self) -> TreeShape | None:
        """The shape of the model's trees, where it reads trees."""
        shape = getattr(self.model, "shape", None)
        return shape if isinstance(shape, TreeShape) else None

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """As training makes it; SettingError where there is nothing to train."""
        self.check_trains()
        return make_optimizer(self.settings, self.model, self.device)

    def check_trains(self) -> None:
        """SettingError where there is nothing to train."""
        if not models.find(self.settings.model).network.is_trainable:
            raise SettingError(f"{self.settings.model} has nothing to train: no step to measure.")

    def step(self) -> Step:
        """One training step as the loop takes it; on a GPU before it is captured."""
        use_precision(self.settings, self.device)
        cuda = self.device.type == "cuda"
        epoch = torch.ones((), dtype=torch.int64, device=self.device) if cuda else 1
        ema = Ema.of(self.settings, self.model)
        return Step.of(self.settings, self.task, self.model, self.optimizer, epoch, ema)

    def batch(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        """Positions and weights of the last training events: those with the longest history.

        Where a state goes from batch to batch, of those that follow what was given last, from the middle on: a memory
        that is shown the same again has nothing to take up. The first of these brings it to the middle at one go.
        """
        size, train = size or self.settings.training.batch_size, self._train
        if size not in self._made:
            place = torch.arange(size, device=train.device) % min(size, len(train))  # more than there are repeat
            self._made[size] = train[-size:][place], torch.ones(size, device=self.device)
        last, weight = self._made[size]
        if not self.model.is_stateful or size > len(train):
            return last, weight
        start = self._given[0] if self._given[0] + size <= len(train) else 0
        self._given[0] = start + size
        return train[start : start + size], weight

    @cached_property
    def _train(self) -> Tensor:
        return torch.from_numpy(self.task.split.train).to(self.task.device)

    @cached_property
    def _made(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Batches of the last events, by their size: making one anew would be timed with the step."""
        return {}

    @cached_property
    def _given(self) -> list[int]:
        """Of the training events, how many were given to a model with a state: one number, which goes on."""
        return [len(self._train) // 2]
