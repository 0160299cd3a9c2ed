"""One training step: run as it is on the CPU, recorded once and replayed as a CUDA graph on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

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

    def __call__(self, position: Tensor, weight: Tensor) -> Tensor:
        """Shapes: position (B,) int64; weight (B,), 0 for events that only fill the batch. The mean loss comes back."""
        self.optimizer.zero_grad(set_to_none=True)
        share, start = weight / weight.sum(), position[:1]
        mine = self.task.group.part(len(position))
        position, share = position[mine], share[mine]
        at_once = self.model.queries_at_once if position.device.type == "cpu" else None
        at_once = at_once or max(len(position), 1)
        parts = zip(position.split(at_once), share.split(at_once), strict=True)
        losses = [self._backward(of, start, part) for of, part in parts if len(of)]
        loss = losses[0] if len(losses) == 1 else torch.stack([*losses, share.new_zeros(())]).sum()
        if self.task.group.size > 1:
            loss = self._add_up(loss)
        self.optimizer.step()
        return loss

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

    def _add_up(self, loss: Tensor) -> Tensor:
        """Gradients and loss of the whole batch, from those of each process's part, in one sum.

        Each is weighted by its share of the whole batch, so the sum is what one process has, but for rounding. A
        parameter without a gradient gets zeros, for others may have one: Adam leaves it as it is where none has.
        """
        parameters = [q for q in self.model.parameters() if q.requires_grad]
        parts = [torch.zeros_like(q) if q.grad is None else q.grad for q in parameters]
        flat = self.task.group.add_up(torch.cat([*(part.flatten() for part in parts), loss.reshape(1)]))
        sums = flat.split([*(q.numel() for q in parameters), 1])
        for q, total in zip(parameters, sums, strict=False):
            q.grad = total.view_as(q)
        return sums[-1].squeeze(0)


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
