"""What is measured on: a stream laid out on a device, a model with fresh weights, and a batch to try."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cordgt import models
from cordgt.bench.machine import Limits
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.models.base import LinkModel
from cordgt.past.context import TreeShape
from cordgt.settings import Settings
from cordgt.tasks.link import LinkTask
from cordgt.training.devices import use_precision
from cordgt.training.network import network_for
from cordgt.training.out_of_memory import fits_told, memory_explained, what_fits
from cordgt.training.step import Average, Step, make_optimizer


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
        if not models.find(self.settings.model).network.trains:
            raise SettingError(f"{self.settings.model} has nothing to train: no step to measure.")

    def step(self) -> Step:
        """One training step as the loop takes it; on a GPU before it is captured."""
        use_precision(self.settings, self.device)
        cuda = self.device.type == "cuda"
        epoch = torch.ones((), dtype=torch.int64, device=self.device) if cuda else 1
        average = Average.of(self.settings, self.model)
        return Step.of(self.settings, self.task, self.model, self.optimizer, epoch, average)

    def batch(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        """Positions and weights of the last training events: those with the longest history."""
        size = size or self.settings.training.batch_size
        last = torch.from_numpy(self.task.split.train[-size:]).to(self.task.device)
        position = last[torch.arange(size, device=last.device) % len(last)]  # a batch larger than the stream repeats
        return position, torch.ones(size, device=self.device)

    def fed(self, run: Callable[[Tensor, Tensor], Any]) -> Callable[[], Any]:
        """``run`` on the last batch, whenever it is called; on one batch after the other where a state goes along.

        A memory that is shown the same batch again has nothing to take up.
        """
        size = self.settings.training.batch_size
        whole = torch.from_numpy(self.task.split.train).to(self.task.device).split(size)[:-1]
        if not self.model.remembers or not whole:
            last = self.batch()
            return lambda: run(*last)
        following = itertools.islice(itertools.cycle(whole), len(whole) // 2, None)  # from the middle on
        weight = torch.ones(size, device=self.device)
        return lambda: run(next(following), weight)
