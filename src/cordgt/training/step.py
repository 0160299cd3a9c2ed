"""One training step: run as it is on the CPU, recorded once and replayed as a CUDA graph on a GPU.

Where the past does not fit the GPU, it is read on the host, a few batches ahead, and the recorded step is fed with what
was read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

import torch
from torch import Tensor, nn

from cordgt.history import rng
from cordgt.models.base import LinkModel, list_tensors, map_tensors, to_device
from cordgt.nn.attention import drawing_from
from cordgt.runtime.threads import alone, keep_threads, side_by_side
from cordgt.tasks.link import LinkTask
from cordgt.training.settings import Settings


class Ema:
    """Exponential moving average of a model's parameters.

    The first steps are averaged evenly, until 1 / steps falls below 1 - ``decay``. Buffers are not averaged.
    """

    def __init__(self, model: LinkModel, decay: float) -> None:
        self.decay = decay
        self.weights = {name: q.detach().clone() for name, q in model.named_parameters()}
        device = next(iter(self.weights.values())).device
        self.steps = torch.zeros((), dtype=torch.float32, device=device)

    @classmethod
    def of(cls, settings: Settings, model: LinkModel) -> Ema | None:
        """The average for these settings; None if ``ema_decay`` is 0 or the model does not train."""
        decay = settings.training.ema_decay
        return cls(model, decay) if decay and model.is_trainable else None

    @torch.no_grad()
    def add(self, model: LinkModel) -> None:
        """Update the average after an optimizer step. Does not synchronise with the device."""
        self.steps += 1
        share = (1.0 / self.steps).clamp_min(1.0 - self.decay)
        averages = list(self.weights.values())
        change = torch._foreach_sub([q.detach() for q in model.parameters()], averages)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(averages, change)

    @contextmanager
    def in_place(self, model: LinkModel) -> Iterator[None]:
        """Give the model the averaged weights inside this context, its own again afterwards."""
        own = {name: q.detach().clone() for name, q in model.named_parameters()}
        self._copy(self.weights, model)
        try:
            yield
        finally:
            self._copy(own, model)

    @staticmethod
    @torch.no_grad()
    def _copy(weights: dict[str, Tensor], model: LinkModel) -> None:
        for name, q in model.named_parameters():
            q.copy_(weights[name])

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resume needs, by name."""
        return {"steps": self.steps, **self.weights}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`, in place. KeyError where something is missing."""
        for name, place in self.tensors().items():
            place.copy_(tensors[name])


def make_optimizer(settings: Settings, model: LinkModel, device: torch.device) -> torch.optim.Optimizer:
    """Adam over a model's parameters, in one kernel, such that a step on a GPU can be recorded.

    On a CPU it is four times as fast so, and takes gradients to lie in memory as their parameters do.
    """
    cuda = device.type == "cuda"
    return torch.optim.Adam(model.parameters(), lr=settings.training.lr, capturable=cuda, fused=True)


def events_a_part(model: LinkModel, num_negatives: int) -> int | None:
    """The most events that are worked off together in training on a CPU; None: as many as there are."""
    return None if model.micro_batch_size is None else max(1, 2 * model.micro_batch_size // (1 + num_negatives))


@dataclass
class Step:
    """One training step on one device, everything included: queries, trees, distances, forward, backward, Adam.

    It is given positions of events and nothing else; the rest is read from what already lies on the device. Where
    several processes train, each takes its part of the batch it is given, and all end with the same weights.
    """

    model: LinkModel
    task: LinkTask
    optimizer: torch.optim.Optimizer
    seed: int
    epoch: Tensor | int
    half: bool = False  # True: matrix products in bfloat16; the sums, the residual stream and Adam stay in float32
    num_negatives: int = 1  # random destinations per event
    ema: Ema | None = None
    micro_batches: int = 0  # splits a batch; gradients are summed in order. 0: fastest

    @classmethod
    def of(
        cls,
        settings: Settings,
        task: LinkTask,
        model: LinkModel,
        optimizer: torch.optim.Optimizer,
        epoch: Tensor | int,
        ema: Ema | None = None,
    ) -> Self:
        """The step that settings ask for, in training as where it is measured."""
        training = settings.training
        half = task.network_device.type == "cuda" and model.supports_bf16 and training.precision == "bf16"
        return cls(
            model, task, optimizer, settings.seed, epoch, half, training.num_negatives, ema, training.micro_batches
        )

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        """Shapes: position (B,) int64; weight (B,), 0 for events that only fill the batch. The mean loss comes back."""
        share, start = weight / weight.sum(), position[:1]
        in_one = self.task.group.size == 1 and not self.micro_batches
        loss = self._gradients(position, share, start) if in_one else self._shared(position, share, start)
        self._move()
        return loss

    def _move(self) -> None:
        """Change the weights by the gradients at hand."""
        self.optimizer.step()
        if self.ema is not None:
            self.ema.add(self.model)

    def _gradients(self, position: Tensor, share: Tensor, start: Tensor) -> Tensor:
        """Leave the gradients of some events of the batch that begins at ``start``; their part of its loss comes back.

        Shapes: position (n,); share (n,), what each counts in the whole batch; start (1,).
        """
        self.optimizer.zero_grad(set_to_none=True)
        n_parts = self._n_parts(len(position))
        if n_parts > 1:
            return self._in_parts(position, share, start, n_parts)
        with alone() if self.device.type == "cpu" and self.model.is_thread_safe() else nullcontext():
            return self._learn(to_device(self.read(position, start), self.device), share)

    def _n_parts(self, n: int) -> int:
        """In how many parts ``n`` events are worked off: one on a GPU, and where there is too little to share.

        A power of two otherwise, so that even numbers of threads end together.
        """
        at_once = events_a_part(self.model, self.num_negatives)
        if self.device.type != "cpu" or at_once is None or 8 * n <= at_once:
            return 1
        return 2 ** max(1, (math.ceil(n / at_once) - 1).bit_length())

    def _in_parts(self, position: Tensor, share: Tensor, start: Tensor, n_parts: int) -> Tensor:
        """`_gradients` on a CPU in even parts that fit its caches, several at once where the model lets threads do so.

        Each draws its own dropout, and all are added up in their order: how many threads there are changes nothing.
        """
        parameters = [q for q in self.model.parameters() if q.requires_grad]
        size = -(-len(position) // n_parts)
        seeds = torch.randint(2**62, (-(-len(position) // size),)).tolist()
        parts = zip(position.split(size), share.split(size), seeds, strict=True)
        read = ((self.read(of, start), part, seed) for of, part, seed in parts)

        def learn(part: tuple[Any, Tensor, int]) -> tuple[Tensor, ...]:
            batch, share, seed = part
            with drawing_from(seed):
                loss = (self.losses(batch) * share).sum()
                found = torch.autograd.grad(loss, parameters, allow_unused=True)
            return loss.detach(), *found

        loss = share.new_zeros(())
        for own, *gradients in side_by_side(learn, read) if self.model.is_thread_safe() else map(learn, read):
            loss += own
            for q, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    q.grad = gradient.contiguous() if q.grad is None else q.grad + gradient
        return loss

    def _shared(self, position: Tensor, share: Tensor, start: Tensor) -> Tensor:
        """`_gradients` of a whole batch, of which each process does its part.

        What each event counts, it counts in the whole batch, so that sums over processes are what one process has, but
        for rounding. Micro-batches avoid the rounding too: one process computes each whole micro-batch, with its own
        dropout, and all processes sum them in the same order.
        """
        group, seed = self.task.group, self._seeds()
        parameters = [q for q in self.model.parameters() if q.requires_grad]
        n_sums, mine = self._own(len(position))
        table = share.new_zeros(n_sums, sum(q.numel() for q in parameters) + 1)  # a row: gradients, and the loss
        for number, part in mine.items():
            seed(number if self.micro_batches else group.rank)
            table[number] = self._flat(parameters, self._gradients(position[part], share[part], start))
        group.add_up(table)
        total = torch.zeros_like(table[0])
        for row in table:
            total += row
        *sums, loss = total.split([*(q.numel() for q in parameters), 1])
        for q, gradient in zip(parameters, sums, strict=True):
            q.grad = gradient.view_as(q)
        return loss.squeeze(0)

    def _own(self, n: int) -> tuple[int, dict[int, slice]]:
        """How many sums a batch of ``n`` events has, and this process's part of each that it adds to.

        With micro-batches there is one sum for each, computed by one process. Without, all processes add to one sum.
        """
        group = self.task.group
        if not self.micro_batches:
            part = group.part(n)
            return 1, {0: part} if part.stop > part.start else {}
        size = -(-n // self.micro_batches)
        slices = [slice(first, first + size) for first in range(0, n, size)]
        mine = group.part(len(slices))
        return len(slices), {number: slices[number] for number in range(mine.start, mine.stop)}

    @staticmethod
    def _flat(parameters: list[nn.Parameter], loss: Tensor) -> Tensor:
        """Gradients and loss in a row. Where there is no gradient, zeros: others may have one, and Adam moves nothing
        by zeros."""
        found = [torch.zeros_like(q) if q.grad is None else q.grad for q in parameters]
        return torch.cat([*(gradient.flatten() for gradient in found), loss.reshape(1)])

    def _seeds(self) -> Callable[[int], Any]:
        """Lets each part of a batch draw its own dropout, from the batch's seed and the part's number.

        Not in a step that is recorded: there the parts draw one after the other.
        """
        generator = dropout_generator(self.device)
        if self.device.type != "cpu" and self.task.group.size == 1:
            return lambda part: None
        of_batch = generator.initial_seed()
        return lambda part: generator.manual_seed(rng.child_int(of_batch, part) & (2**63 - 1))

    def at(self, epoch: int) -> None:
        """The epoch that the next batches are of."""
        self.epoch = epoch

    def losses(self, batch: Any) -> Tensor:
        """(B,) what the model makes small, with products as precise as was asked for."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            return self.model.losses(batch).float()

    def read(self, position: Tensor, batch_start: Tensor) -> Any:
        """What the network is told of the events at ``position``, where the past lies."""
        start, pool = batch_start.expand_as(position), self.task.pools.train
        n = self.num_negatives
        queries = self.task.queries(position, start, pool, seed=self.seed, epoch=self.epoch, num_negatives=n)
        return self.model.reader.pairs(replace(self.task.training, epoch=self.epoch), queries)

    def _learn(self, batch: Any, share: Tensor) -> Tensor:
        loss = (self.losses(batch) * share).sum()
        loss.backward()
        return loss.detach()

    def learn(self, batch: Any, weight: Tensor) -> Tensor:
        """The rest of a step, once its batch has been read and lies where the network is."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._learn(batch, weight / weight.sum())
        self._move()
        return loss

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return self.task.network_device


class CapturedStep:
    """The same step, recorded once as a CUDA graph and replayed: no launch gaps.

    Shapes are static, so the last batch is filled up with events of weight 0.
    """

    def __init__(self, step: Step, batch_size: int) -> None:
        self.step = step
        self.position = torch.zeros(batch_size, dtype=torch.int64, device=step.device)
        self.weight = torch.ones(batch_size, device=step.device)
        self.replay = _recorded(step, lambda: step(self.position, self.weight))

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        n = len(position)
        self.position[:n] = position
        self.position[n:] = position[-1]
        self.weight[:n] = weight
        self.weight[n:] = 0.0
        return self.replay()


class FedStep:
    """A captured step whose batches are read on the host: the past lies there, because it does not fit the GPU.

    `expect` says which batches come; a thread reads them, `AHEAD` of the one that is learnt from, into pinned memory.
    So reading and learning go on at the same time, and copies wait for nobody. On a CPU nothing is recorded.
    """

    AHEAD = 4  # batches: enough to even out slow and fast ones

    def __init__(self, step: Step, batch_size: int) -> None:
        self.step, self.size = step, batch_size
        self.weight = torch.ones(batch_size, device=step.device)
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="cordgt-reads", initializer=keep_threads)
        self.coming: Iterator[Tensor] = iter(())
        self.waiting: deque[tuple[Tensor, Future[Any]]] = deque()
        self.batch = _copied(self._read(torch.from_numpy(step.task.split.train[:1])), step.device)
        self.replay = _recorded(step, lambda: step.learn(self.batch, self.weight))

    def at(self, epoch: int) -> None:
        """The epoch that the next batches are of; none may be waiting."""
        self.step.epoch = epoch

    def expect(self, batches: Iterable[Tensor]) -> None:
        """These batches of positions come next, each given to a call in turn."""
        while self.waiting:  # those of an epoch that was left
            self.waiting.popleft()[1].cancel()
        self.coming = iter(batches)
        self._go_on()

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        expected, read = self.waiting.popleft()
        if expected is not position:
            raise ValueError("a batch was given that was not expected")
        self._fill(read.result())
        self._go_on()
        n = len(position)
        self.weight[:n] = weight
        self.weight[n:] = 0.0
        return self.replay()

    def close(self) -> None:
        """Read no further."""
        self.reader.shutdown(cancel_futures=True)

    def _go_on(self) -> None:
        for position in islice(self.coming, self.AHEAD - len(self.waiting)):
            self.waiting.append((position, self.reader.submit(self._read, position)))

    def _read(self, position: Tensor) -> Any:
        filled = torch.cat([position, position[-1:].expand(self.size - len(position))])
        read = self.step.read(filled, filled[:1])
        return _pinned(read) if self.step.device.type == "cuda" else read

    def _fill(self, read: Any) -> None:
        for place, tensor in zip(list_tensors(self.batch), list_tensors(read), strict=True):
            if place.shape != tensor.shape:
                raise ValueError(f"a batch has another shape than the first: {tensor.shape}, not {place.shape}")
            place.copy_(tensor, non_blocking=True)


WARM_UP = 3  # steps outside the graph, on a side stream, as recording asks for


def _recorded(step: Step, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """``run`` as a CUDA graph that is replayed; as it is on a CPU.

    Weights are as they were before; Adam's state is emptied: whoever had one puts it back, as `loop.Fit` does.
    """
    if step.device.type == "cpu":
        return run
    before = {k: v.clone() for k, v in step.model.state_dict().items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
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


def _copied(read: Any, device: torch.device) -> Any:
    """A batch of its own on a device, to be filled again and again."""
    return map_tensors(read, lambda x: x.to(device, copy=True))


def _pinned(read: Any) -> Any:
    """A batch in memory from which a GPU copies by itself."""
    return map_tensors(read, lambda x: x.contiguous().pin_memory())


def dropout_generator(device: torch.device) -> torch.Generator:
    """Where dropout draws from. `torch.manual_seed` would seed every device there could be, in forty times the time."""
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
