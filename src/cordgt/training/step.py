"""One training step: queries, forward, backward and optimizer. It runs directly on a CPU, as a CUDA graph on a GPU.

`Step` is the step itself, with the gradient all-reduce over processes. `CudaGraphStep` records it once and replays it.
`PrefetchStep` does the same where history does not fit on the GPU: a thread reads batches on the host in advance.
The loop around it is in `cordgt.training.trainer`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cordgt.errors import SettingError
from cordgt.history import rng
from cordgt.models.base import LinkModel, list_tensors, map_tensors, to_device
from cordgt.nn.attention import dropout_seed
from cordgt.runtime.signals import StopRequest
from cordgt.runtime.threads import parallel_map, pin_num_threads, single_thread
from cordgt.tasks.hidden_candidates import hide_candidates, with_hidden_nodes
from cordgt.tasks.link import LinkTask
from cordgt.tasks.negatives import mix_past_negatives, negatives_key, past_log_ratio
from cordgt.tasks.protocol import visible_cuts
from cordgt.training.devices import trains_in_bf16
from cordgt.training.optimizer import FusedAdam
from cordgt.training.settings import Settings

N_WARMUP_STEPS = 3  # steps on a side stream before a CUDA graph is recorded, as PyTorch requires


class Ema:
    """Exponential moving average of a model's parameters.

    The first steps are averaged evenly, until 1 / steps falls below 1 - ``decay``. Buffers and frozen parameters are
    not averaged.
    """

    def __init__(self, model: LinkModel, decay: float) -> None:
        self.decay = decay
        self.weights = {name: q.detach().clone() for name, q in _trained_parameters(model).items()}
        device = next(iter(self.weights.values())).device
        self.steps = torch.zeros((), dtype=torch.float32, device=device)

    @classmethod
    def from_settings(cls, settings: Settings, model: LinkModel) -> Ema | None:
        """Return the average for these settings; None if ``ema_decay`` is 0 or the model does not train."""
        decay = settings.training.ema_decay
        return cls(model, decay) if decay and model.is_trainable else None

    @torch.no_grad()
    def update(self, model: LinkModel) -> None:
        """Update the average after an optimizer step. Does not synchronize with the device."""
        self.steps += 1
        share = (1.0 / self.steps).clamp_min(1.0 - self.decay)
        averages = list(self.weights.values())
        change = torch._foreach_sub([q.detach() for q in _trained_parameters(model).values()], averages)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(averages, change)

    @contextmanager
    def swap_into(self, model: LinkModel) -> Iterator[None]:
        """Give the model the averaged weights inside this context, its own again afterwards."""
        own = {name: q.detach().clone() for name, q in _trained_parameters(model).items()}
        self._copy(self.weights, model)
        try:
            yield
        finally:
            self._copy(own, model)

    @staticmethod
    @torch.no_grad()
    def _copy(weights: dict[str, Tensor], model: LinkModel) -> None:
        for name, q in _trained_parameters(model).items():
            q.copy_(weights[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the step count and the averaged weights."""
        return {"steps": self.steps, **self.weights}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Load `state_dict` in place. KeyError if a tensor is missing."""
        for name, target in self.state_dict().items():
            target.copy_(tensors[name])


def _trained_parameters(model: LinkModel) -> dict[str, Tensor]:
    """Return the parameters that are not frozen, by name."""
    return {name: q for name, q in model.named_parameters() if q.requires_grad}


def make_optimizer(settings: Settings, model: LinkModel, device: torch.device) -> torch.optim.Optimizer:
    """Return fused Adam for a model; on a GPU a CUDA graph can record it.

    On a CPU fused Adam is four times as fast, but requires gradients with the memory layout of their parameters.
    """
    if next(model.parameters(), None) is None:
        raise SettingError(
            f"{type(model).__name__} has no parameters to train. For a rule without parameters, set "
            "is_trainable = False in its class."
        )
    cuda = device.type == "cuda"
    return FusedAdam(model.parameters(), lr=settings.training.lr, capturable=cuda, fused=True)


def max_events_per_chunk(model: LinkModel, num_negatives: int) -> int | None:
    """Return how many events a CPU trains on at once; None means the whole batch."""
    return None if model.chunk_size is None else max(1, 2 * model.chunk_size // (1 + num_negatives))


class TrainingBatch(NamedTuple):
    """A batch as the step reads it."""

    input: Any  # the output of the model's reader
    log_ratio: Tensor | None  # (B, M) float32, see `past_log_ratio`; None if all negatives are random


@dataclass
class Step:
    """One training step on one device: queries, context, distances, forward, backward, Adam.

    Its input is the positions of events. Everything else is already on the device. With several processes, each
    computes its share of the batch, and an all-reduce gives all of them the same gradients.
    """

    model: LinkModel
    task: LinkTask
    optimizer: torch.optim.Optimizer
    seed: int
    epoch: Tensor | int
    use_bf16: bool = False  # True: matrix products in bfloat16; sums, the residual stream and Adam stay in float32
    num_negatives: int = 1  # per event
    past_negatives: float = 0.0  # share of them that are past partners of the source
    negatives: str = "random"  # their kind
    hidden_candidates: float = 0.0  # share of never-met candidates that are shown as new nodes
    ema: Ema | None = None
    micro_batches: int = 0  # splits a batch; gradients are summed in order. 0: fastest
    stop: StopRequest | None = (
        None  # checked before each chunk of a batch is read; `TrainingStopped` leaves weights and optimizer unchanged
    )

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        task: LinkTask,
        model: LinkModel,
        optimizer: torch.optim.Optimizer,
        epoch: Tensor | int,
        ema: Ema | None = None,
        stop: StopRequest | None = None,
    ) -> Step:
        """Return the step that the settings describe."""
        training = settings.training
        if training.hidden_candidates:
            task = replace(task, train_history=with_hidden_nodes(task.train_history))
        return cls(
            model,
            task,
            optimizer,
            settings.seed,
            epoch,
            use_bf16=model.supports_bf16 and trains_in_bf16(training.precision, task.network_device),
            num_negatives=training.num_negatives,
            past_negatives=training.past_negatives,
            negatives=training.train_negatives,
            hidden_candidates=training.hidden_candidates,
            ema=ema,
            micro_batches=training.micro_batches,
            stop=stop,
        )

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self.task.network_device

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next batches."""
        self.epoch = epoch

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        """Train on one batch and return its mean loss.

        Shapes: position (B,) int64; weight (B,), 0 for events that only pad the batch.
        """
        loss_weight, start = weight / weight.sum(), position[:1]
        if self.task.group.world_size == 1 and not self.micro_batches:
            loss = self._compute_gradients(position, loss_weight, start)
        else:
            loss = self._all_reduce_gradients(position, loss_weight, start)
        self._update_weights()
        return loss

    def train_on_batch(self, batch: TrainingBatch, weight: Tensor) -> Tensor:
        """`__call__` for a batch that is read already and is on the network's device."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(batch, weight / weight.sum())
        self._update_weights()
        return loss

    def read(self, position: Tensor, batch_start: Tensor) -> TrainingBatch:
        """Return the batch of the events at ``position``, on the device of the history."""
        if self.stop is not None:
            self.stop.raise_if_requested()
        queries = self.task.queries(
            position,
            batch_start.expand_as(position),
            self.task.pools.train,
            seed=self.seed,
            epoch=self.epoch,
            num_negatives=self.num_negatives,
            negatives=self.negatives,
        )
        log_ratio, index = None, self.task.train_history.index
        if self.past_negatives:
            pool = self.task.pools.train
            queries = mix_past_negatives(index, queries, pool, position, key=self._key(), share=self.past_negatives)
            log_ratio = past_log_ratio(index, queries, len(pool), self.past_negatives)
        if self.hidden_candidates:
            queries = hide_candidates(index, queries, position, key=self._key(), share=self.hidden_candidates)
        history = replace(self.task.train_history, epoch=self.epoch)
        return TrainingBatch(self.model.reader.read(history, queries), log_ratio)

    def _key(self) -> Tensor | int:
        """The hashed seed of this epoch's draws."""
        return rng.epoch_key(negatives_key(self.seed), self.epoch)

    def losses(self, batch: Any, log_ratio: Tensor | None = None) -> Tensor:
        """Return the loss of each event, (B,) float32, for the two parts of a `TrainingBatch`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.use_bf16):
            if log_ratio is None:
                return self.model.losses(batch).float()
            return self.model.losses(batch, log_ratio).float()

    def _backward(self, batch: TrainingBatch, loss_weight: Tensor) -> Tensor:
        loss = (self.losses(*batch) * loss_weight).sum()
        loss.backward()
        return loss.detach()

    def _update_weights(self) -> None:
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update(self.model)

    def _compute_gradients(self, position: Tensor, loss_weight: Tensor, start: Tensor) -> Tensor:
        """Set the gradients of some events of the batch that begins at ``start``; return their weighted loss.

        Shapes: position (n,); loss_weight (n,), the weight of each event in the mean over the whole batch; start (1,).
        """
        self.optimizer.zero_grad(set_to_none=True)
        n_chunks = self._n_chunks(len(position))
        if n_chunks > 1:
            return self._compute_gradients_in_chunks(position, loss_weight, start, n_chunks)
        with single_thread() if self.device.type == "cpu" and self.model.is_thread_safe() else nullcontext():
            return self._backward(to_device(self.read(position, start), self.device), loss_weight)

    def _n_chunks(self, n: int) -> int:
        """Return in how many chunks ``n`` events are trained on: 1 on a GPU or for few events.

        Otherwise a power of two, so that an even number of threads finishes together.
        """
        max_events = max_events_per_chunk(self.model, self.num_negatives)
        if self.device.type != "cpu" or max_events is None or 8 * n <= max_events:
            return 1
        return 2 ** max(1, (math.ceil(n / max_events) - 1).bit_length())

    def _compute_gradients_in_chunks(
        self, position: Tensor, loss_weight: Tensor, start: Tensor, n_chunks: int
    ) -> Tensor:
        """`_compute_gradients` on a CPU, in equal chunks that fit its caches; in threads if the model is thread-safe.

        Each chunk has its own dropout seed, and gradients are summed in order: the number of threads changes nothing.
        """
        parameters = [q for q in self.model.parameters() if q.requires_grad]
        size = -(-len(position) // n_chunks)
        seeds = torch.randint(2**62, (-(-len(position) // size),)).tolist()
        chunks = zip(position.split(size), loss_weight.split(size), seeds, strict=True)
        inputs = ((self.read(events, start), weight, seed) for events, weight, seed in chunks)

        def differentiate(chunk: tuple[TrainingBatch, Tensor, int]) -> tuple[Tensor, ...]:
            batch, weight, seed = chunk
            with dropout_seed(seed):
                loss = (self.losses(*batch) * weight).sum()
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            return loss.detach(), *gradients

        total = loss_weight.new_zeros(())
        map_chunks = parallel_map if self.model.is_thread_safe() else map
        for loss, *gradients in map_chunks(differentiate, inputs):
            total += loss
            for q, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    q.grad = gradient.contiguous() if q.grad is None else q.grad + gradient
        return total

    def _all_reduce_gradients(self, position: Tensor, loss_weight: Tensor, start: Tensor) -> Tensor:
        """`_compute_gradients` of a whole batch, shared by all processes and summed with an all-reduce.

        Events keep their weight in the whole batch, so the sum equals that of one process except for rounding.
        Micro-batches remove the rounding too: one process computes each micro-batch, with its own dropout seed, and
        all processes sum the micro-batches in the same order.
        """
        group, seed_dropout, n = self.task.group, self._dropout_seeder(), len(position)
        parameters = [q for q in self.model.parameters() if q.requires_grad]
        sizes = [q.numel() for q in parameters]
        if self.micro_batches:  # a row for each, computed by one process
            size = -(-n // self.micro_batches)
            slices = [slice(first, first + size) for first in range(0, n, size)]
            own = group.shard(len(slices))
            own_rows = [(row, slices[row], row) for row in range(own.start, own.stop)]
        else:  # a single row, to which every process adds
            slices = [group.shard(n)]
            own_rows = [(0, s, group.rank) for s in slices if s.stop > s.start]
        table = loss_weight.new_zeros(len(slices), sum(sizes) + 1)  # a row: all gradients, then the loss
        for row, events, part in own_rows:
            seed_dropout(part)
            loss = self._compute_gradients(position[events], loss_weight[events], start)
            # zeros where there is no gradient: another process may have one, and Adam ignores a zero
            gradients = [torch.zeros_like(q) if q.grad is None else q.grad for q in parameters]
            table[row] = torch.cat([*(gradient.flatten() for gradient in gradients), loss.reshape(1)])
        group.all_reduce_sum(table)
        total = torch.zeros_like(table[0])
        for gradient_row in table:
            total += gradient_row
        *sums, loss = total.split([*sizes, 1])
        for q, gradient in zip(parameters, sums, strict=True):
            q.grad = gradient.view_as(q)
        return loss.squeeze(0)

    def _dropout_seeder(self) -> Callable[[int], Any]:
        """Return a function that seeds dropout for a part of the batch, from the batch's seed and the part's number.

        It does nothing in a step that a CUDA graph records: there the parts draw one after the other.
        """
        generator = dropout_generator(self.device)
        if self.device.type != "cpu" and self.task.group.world_size == 1:
            return lambda part: None
        batch_seed = generator.initial_seed()
        return lambda part: generator.manual_seed(rng.fold_in_int(batch_seed, part) & (2**63 - 1))


def prepare_capture(task: LinkTask, model: LinkModel, batch_size: int) -> bool:
    """Make a stateful model use static shapes. Return whether a CUDA graph can capture its training step.

    It changes the model. A model without state has static shapes anyway.
    """
    if not model.is_stateful:
        return True
    first = torch.from_numpy(task.split.train[::batch_size]).to(task.device)
    own_time = task.train_history.index.tie_start[first].long()
    _, stops = visible_cuts(task.protocol.visibility, own_time, first)
    return model.use_static_shapes(task.train_history, stops.cpu().numpy(), batch_size)


class CudaGraphStep:
    """A `Step` that is recorded once as a CUDA graph and replayed, without gaps between kernel launches.

    Shapes are static, so the last batch is padded with events of weight 0.
    """

    def __init__(self, step: Step, batch_size: int) -> None:
        self.position = torch.zeros(batch_size, dtype=torch.int64, device=step.device)
        self.weight = torch.ones(batch_size, device=step.device)
        self.replay = _record(step, lambda: step(self.position, self.weight))

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        n = len(position)
        self.position[:n] = position
        self.position[n:] = position[-1]
        self.weight[:n] = weight
        self.weight[n:] = 0.0
        return self.replay()


class PrefetchStep:
    """A CUDA graph step for history on the host, where it is if it does not fit on the GPU.

    `prefetch` names the next batches. A thread reads `PREFETCH_BATCHES` of them in advance, into pinned memory, so
    reading, copying and training overlap. On a CPU nothing is recorded.
    """

    PREFETCH_BATCHES = 4  # enough to balance slow and fast batches

    def __init__(self, step: Step, batch_size: int) -> None:
        self.step, self.batch_size = step, batch_size
        self.weight = torch.ones(batch_size, device=step.device)
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="cordgt-reads", initializer=pin_num_threads)
        self.upcoming: Iterator[Tensor] = iter(())
        self.queue: deque[tuple[Tensor, Future[Any]]] = deque()
        first = self._read(torch.from_numpy(step.task.split.train[:1]))
        self.batch = map_tensors(first, lambda x: x.to(step.device, copy=True))  # the graph's input
        self.replay = _record(step, lambda: step.train_on_batch(self.batch, self.weight))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next batches; the queue must be empty."""
        self.step.epoch = epoch

    def prefetch(self, batches: Iterable[Tensor]) -> None:
        """Read these batches of positions in advance; each must then be passed to a call, in order."""
        while self.queue:  # left over from an interrupted epoch
            self.queue.popleft()[1].cancel()
        self.upcoming = iter(batches)
        self._fill_queue()

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        expected, future = self.queue.popleft()
        if expected is not position:
            raise ValueError("the batch is not the next one given to prefetch")
        self._copy_into_batch(future.result())
        self._fill_queue()
        n = len(position)
        self.weight[:n] = weight
        self.weight[n:] = 0.0
        return self.replay()

    def close(self) -> None:
        """Stop reading."""
        self.executor.shutdown(cancel_futures=True)

    def _fill_queue(self) -> None:
        for position in islice(self.upcoming, self.PREFETCH_BATCHES - len(self.queue)):
            self.queue.append((position, self.executor.submit(self._read, position)))

    def _read(self, position: Tensor) -> Any:
        padded = torch.cat([position, position[-1:].expand(self.batch_size - len(position))])
        batch = self.step.read(padded, padded[:1])
        if self.step.device.type != "cuda":
            return batch
        return map_tensors(batch, lambda x: x.contiguous().pin_memory())

    def _copy_into_batch(self, batch: Any) -> None:
        for target, tensor in zip(list_tensors(self.batch), list_tensors(batch), strict=True):
            if target.shape != tensor.shape:
                raise ValueError(f"a batch has shape {tensor.shape}, but the first one has {target.shape}")
            target.copy_(tensor, non_blocking=True)


def _record(step: Step, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return a function that replays ``run`` as a CUDA graph; on a CPU, return ``run`` itself.

    Weights are restored afterwards. The optimizer's state is zeroed: the caller restores it, as `Trainer` does.
    """
    if step.device.type == "cpu":
        return run
    before = {k: v.clone() for k, v in step.model.state_dict().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(N_WARMUP_STEPS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = run()
    step.model.load_state_dict(before)
    for state in step.optimizer.state.values():
        for value in state.values():
            value.zero_()

    def replay() -> Tensor:
        graph.replay()
        return loss.clone()

    return replay


def dropout_generator(device: torch.device) -> torch.Generator:
    """Return the generator of dropout. `torch.manual_seed` seeds every device, which takes forty times as long."""
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
