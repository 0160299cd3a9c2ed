"""The setup that every stage measures on: a stream, a model with fresh weights, a training step, and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cordgt import models
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.experiments.bench.hardware import HardwareLimits
from cordgt.experiments.bench.timing import Timing, time_calls
from cordgt.history.context import TreeShape
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel
from cordgt.runtime.profiling import measure_peak_bytes
from cordgt.tasks.link import LinkTask
from cordgt.training.devices import set_matmul_precision
from cordgt.training.model_factory import build_model_for
from cordgt.training.oom import explain_out_of_memory, oom_hint, suggest_batch_size
from cordgt.training.settings import Settings
from cordgt.training.step import Ema, Step, make_optimizer


@dataclass(frozen=True)
class BenchSetup:
    """Everything a stage needs. ``quick``: small sizes, to check that it runs."""

    stream: EventStream
    settings: Settings
    device: torch.device
    limits: HardwareLimits
    repeat: int
    quick: bool = False

    @cached_property
    def task(self) -> LinkTask:
        task = LinkTask.prepare(self.stream, self.settings.protocol, seed=self.settings.seed, device=self.device)
        if task.is_history_on_host:
            raise SettingError(
                "The events do not fit the GPU, and stages are measured on one device. Use --device cpu."
            )
        return task

    @cached_property
    def model(self) -> LinkModel:
        return build_model_for(self.settings, self.stream).to(self.device)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def tree_shape(self) -> TreeShape | None:
        """Shape of the model's trees; None if it samples none."""
        shape = getattr(self.model, "shape", None)
        return shape if isinstance(shape, TreeShape) else None

    def n_items(self, *, quick: int, cpu: int, cuda: int) -> int:
        """Return how many items a stage processes at once."""
        return quick if self.quick else cuda if self.is_cuda else cpu

    def time(self, work: Callable[[], Any]) -> Timing:
        return time_calls(work, self.device, self.repeat)

    def peak_bytes(self, work: Callable[[], Any]) -> int:
        return measure_peak_bytes(work, self.device)

    @contextmanager
    def explain_oom(self) -> Iterator[None]:
        """Re-raise an out-of-memory error as training does, with a batch size that fits."""
        hint = oom_hint(lambda: suggest_batch_size(self.settings, self.task, self.model))
        with explain_out_of_memory(self.settings), hint:
            yield

    @cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        self.check_trainable()
        return make_optimizer(self.settings, self.model, self.device)

    def check_trainable(self) -> None:
        """Raise SettingError if the model has nothing to train."""
        if not models.find_model(self.settings.model).network.is_trainable:
            raise SettingError(f"{self.settings.model} has nothing to train, so there is no step to measure.")

    def make_step(self) -> Step:
        """Make a training step as the trainer does; on a GPU without CUDA graph."""
        set_matmul_precision(self.settings, self.device)
        epoch = torch.ones((), dtype=torch.int64, device=self.device) if self.is_cuda else 1
        ema = Ema.from_settings(self.settings, self.model)
        return Step.from_settings(self.settings, self.task, self.model, self.optimizer, epoch, ema)

    def next_batch(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        """Return positions and weights of the last training events, which have the longest history.

        A stateful model gets consecutive batches instead, from the middle of the training events on: the same events
        again would not update its memory. The first of these makes it process the first half at once.
        """
        size, train = size or self.settings.training.batch_size, self._train
        if size not in self._batches:
            at = torch.arange(size, device=train.device) % min(size, len(train))  # repeat if there are too few
            self._batches[size] = train[-size:][at], torch.ones(size, device=self.device)
        position, weight = self._batches[size]
        if not self.model.is_stateful or size > len(train):
            return position, weight
        start = self._next_start[0] if self._next_start[0] + size <= len(train) else 0
        self._next_start[0] = start + size
        return train[start : start + size], weight

    def next_queries(self) -> Queries:
        """Return the queries of a training step on the next batch."""
        position, _ = self.next_batch()
        return self.task.queries(
            position,
            position[:1].expand_as(position),
            self.task.pools.train,
            seed=self.settings.seed,
            epoch=1,
            num_negatives=self.settings.training.num_negatives,
        )

    def read(self, queries: Queries) -> Any:
        """Return the network's input for training queries."""
        return self.model.reader.read(replace(self.task.train_history, epoch=1), queries)

    @cached_property
    def _train(self) -> Tensor:
        return torch.from_numpy(self.task.split.train).to(self.task.device)

    @cached_property
    def _batches(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Batches by size, cached so that making them is not timed with the step."""
        return {}

    @cached_property
    def _next_start(self) -> list[int]:
        """Start of a stateful model's next batch among the training events: one number, in a list to change."""
        return [len(self._train) // 2]
