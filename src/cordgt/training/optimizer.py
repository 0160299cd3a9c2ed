"""Adam as PyTorch's fused one computes it, bit for bit, without importing PyTorch's compiler.

`torch.optim.Adam` imports ``torch._dynamo`` when it is made and at each step, which takes more than a second of a job.
"""

from __future__ import annotations

from typing import Any

import torch


def _plain(method: Any) -> Any:
    """Return a method of torch without the decorator that imports its compiler."""
    return getattr(method, "__wrapped__", method)


class FusedAdam(torch.optim.Adam):
    """`torch.optim.Adam` with ``fused=True``, in one group of parameters on one device."""

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
        torch._fused_adam_(
            parameters,
            [q.grad for q in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
