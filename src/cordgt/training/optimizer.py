"""Adam as PyTorch's fused one computes it, bit for bit, without importing PyTorch's compiler.

`torch.optim.Adam` imports ``torch._dynamo`` when it is made and at each step, which takes more than a second of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

GPU_SLICE = 8192  # numbers that a GPU's fused Adam updates at once: it has one block for each, and 65,536 at most


def _plain(method: Any) -> Any:
    """Return a method of torch without the decorator that imports its compiler."""
    return getattr(method, "__wrapped__", method)


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam` with ``fused=True``, in one group of parameters on one device."""

    _update = staticmethod(torch._fused_adam_)
    add_param_group = _plain(torch.optim.Adam.add_param_group)
    zero_grad = _plain(torch.optim.Adam.zero_grad)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        (group,) = self.param_groups
        parameters = [q for q in group["params"] if q.grad is not None]
        if not parameters:
            return
        for q in parameters:
            if not self.state[q]:
                zeros = {name: torch.zeros_like(q) for name in ("exp_avg", "exp_avg_sq")}
                self.state[q] = {"step": torch.zeros((), dtype=torch.float32, device=q.device), **zeros}
        states = [self.state[q] for q in parameters]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        lists: list[list[Tensor]] = [parameters, [q.grad for q in parameters]]  # type: ignore[list-item]
        lists += [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
        if parameters[0].device.type == "cuda":
            *lists, steps = _split_large([*lists, steps])
        self._update(
            *lists,
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


class FusedAdamW(FusedAdam):
    """The same with decoupled weight decay, as `torch.optim.AdamW`."""

    _update = staticmethod(torch._fused_adamw_)


def _split_large(lists: Sequence[list[Tensor]]) -> list[list[Tensor]]:
    """Return the lists with every large tensor cut into slices, so that more multiprocessors of a GPU have work.

    Each list has one tensor for each parameter; the last list's, the step counts, are repeated. Adam treats every
    number alike, so no bit changes.
    """
    parts: list[list[Tensor]] = [[] for _ in lists]
    for *tensors, step in zip(*lists, strict=True):
        is_flat = all(x.is_contiguous() for x in tensors)
        rows = [x.view(-1).split(GPU_SLICE) if is_flat else (x,) for x in tensors]
        for part, row in zip(parts, rows, strict=False):
            part += row
        parts[-1] += [step] * len(rows[0])
    return parts
