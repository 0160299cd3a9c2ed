"""One training step: run as it is on the CPU, recorded once and replayed as a CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from cordgt import draws
from cordgt.models.base import LinkModel
from cordgt.tasks.link import LinkTask


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
    pieces: int = 0  # of a batch, whose gradients are added up in their order; 0: as is fastest

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        """Shapes: position (B,) int64; weight (B,), 0 for events that only fill the batch. The mean loss comes back."""
        share, start = weight / weight.sum(), position[:1]
        alone = self.task.group.size == 1 and not self.pieces
        loss = self._gradients(position, share, start) if alone else self._shared(position, share, start)
        self.optimizer.step()
        return loss

    def _gradients(self, position: Tensor, share: Tensor, start: Tensor) -> Tensor:
        """Leave the gradients of some events of the batch that begins at ``start``; their part of its loss comes back.

        Shapes: position (n,); share (n,), what each counts in the whole batch; start (1,).
        """
        self.optimizer.zero_grad(set_to_none=True)
        at_once = self.model.queries_at_once if position.device.type == "cpu" else None
        at_once = at_once or len(position)
        parts = zip(position.split(at_once), share.split(at_once), strict=True)
        losses = [self._backward(of, start, part) for of, part in parts]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _shared(self, position: Tensor, share: Tensor, start: Tensor) -> Tensor:
        """`_gradients` of a whole batch, of which each process does its part.

        What each event counts, it counts in the whole batch, so that sums over processes are what one process has, but
        for rounding. In pieces not even that: each is somebody's whole, dropout and all, and all add them up in order.
        """
        group, seed = self.task.group, self._seeds()
        parameters = [q for q in self.model.parameters() if q.requires_grad]
        n_sums, mine = self._own(len(position))
        table = share.new_zeros(n_sums, sum(q.numel() for q in parameters) + 1)  # a row: gradients, and the loss
        for number, part in mine.items():
            seed(number if self.pieces else group.rank)
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

        One for each piece, of which each is one process's; without pieces one, to which all add that have any events.
        """
        group = self.task.group
        if not self.pieces:
            part = group.part(n)
            return 1, {0: part} if part.stop > part.start else {}
        size = -(-n // self.pieces)
        pieces = {number: slice(first, first + size) for number, first in enumerate(range(0, n, size))}
        mine = group.part(len(pieces))
        return len(pieces), {number: pieces[number] for number in range(mine.start, mine.stop)}

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
        generator = dropout_generator(self.task.device)
        if self.task.device.type != "cpu" and self.task.group.size == 1:
            return lambda part: None
        of_batch = generator.initial_seed()
        return lambda part: generator.manual_seed(draws.child_int(of_batch, part) & (2**63 - 1))

    def losses(self, batch: Any) -> Tensor:
        """(B,) what the model makes small, with products as precise as was asked for."""
        with torch.autocast(self.task.device.type, torch.bfloat16, enabled=self.half):
            return self.model.losses(batch).float()

    def _backward(self, position: Tensor, batch_start: Tensor, share: Tensor) -> Tensor:
        """Add the gradients of some events of a batch; their part of its loss comes back."""
        queries = self.task.queries(
            position, batch_start.expand_as(position), self.task.pools.train, seed=self.seed, epoch=self.epoch
        )
        batch = self.model.reader.pairs(replace(self.task.training, epoch=self.epoch), queries)
        loss = (self.losses(batch) * share).sum()
        loss.backward()
        return loss.detach()


class CapturedStep:
    """The same step, recorded once as a CUDA graph and replayed: no launch gaps.

    Shapes are static, so the last batch is filled up with events of weight 0.
    """

    WARM_UP = 3  # steps outside the graph, on a side stream, as recording asks for; weights are put back afterwards,
    # and Adam's state is emptied: whoever had one before puts it back, as `training.Fit` does

    def __init__(self, step: Step, batch_size: int) -> None:
        device = step.task.device
        self.step = step
        self.position = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.weight = torch.ones(batch_size, device=device)
        before = {k: v.clone() for k, v in step.model.state_dict().items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.WARM_UP):
                step(self.position, self.weight)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = step(self.position, self.weight)
        step.model.load_state_dict(before)
        for state in step.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        n = len(position)
        self.position[:n] = position
        self.position[n:] = position[-1]
        self.weight[:n] = weight
        self.weight[n:] = 0.0
        self.graph.replay()
        return self.loss.clone()


def dropout_generator(device: torch.device) -> torch.Generator:
    """Where dropout draws from. `torch.manual_seed` would seed every device there could be, in forty times the time."""
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
