"""Sinusoidal encoding of distances, for the positional encodings STPE-U and STPE-C."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.runtime import kernel_loader as kernels

DISTANCE_SCALE = 10_000.0  # the paper's epsilon: spreads distances over the sinusoids


def frequencies(dim: int) -> Tensor:
    """Return (dim/2,) float64 frequencies from 1 down to 1e-4.

    Differs: the paper's end at 10000^(-(d-2)/d). These follow the released code.
    On the CPU, even if a model is built without memory (`torch.device("meta")`): operations there import much of torch.
    """
    n = dim // 2
    return 10_000.0 ** (-torch.arange(n, dtype=torch.float64, device="cpu") / max(n - 1, 1))


def sinusoids(x: Tensor, frequency: Tensor) -> Tensor:
    """Return sines, then cosines, of ``10000 * x`` at each frequency.

    Differs: the paper interleaves them. This order follows the released code. Phases are computed in float64, because
    ``10000 * x`` leaves float32 few decimal digits.

    Shapes: x (...,) and frequency (F,) float64; returns (..., 2 F) float32.
    """
    fused = kernels.load_kernels("nn.kernels.sinusoids", x.device)
    if fused is not None:
        return fused.sinusoids(x.reshape(-1), frequency, DISTANCE_SCALE).view(*x.shape, -1)
    phase = torch.remainder(DISTANCE_SCALE * x.unsqueeze(-1) * frequency, 2 * torch.pi).float()
    return torch.cat([phase.sin(), phase.cos()], dim=-1)


class DistanceEncoding(nn.Module):
    """``MLP(Enc(x))`` of one kind of distance."""

    frequency: Tensor

    def __init__(self, *, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.register_buffer("frequency", frequencies(dim), persistent=False)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., dim) for distances (...,). CorDGT calls the two parts: `hidden`, then `fold_projection`."""
        return self.fc2(self.hidden(x))

    def hidden(self, x: Tensor) -> Tensor:
        """Return the hidden units (..., hidden) of distances (...,), before the last linear layer."""
        return F.relu(self.fc1(sinusoids(x, self.frequency)))

    def fold_projection(self, projection: Tensor, n_summed: int) -> tuple[Tensor, Tensor]:
        """Return weight and bias of one linear map: the last layer followed by ``projection`` (D, dim).

        The map applies to the sum of the hidden units of ``n_summed`` distances, whose encodings the paper sums.
        """
        return projection @ self.fc2.weight, n_summed * (projection @ self.fc2.bias)

    def integer_table(self, largest: int) -> Tensor:
        """Return the hidden units of the integers from 0 to ``largest``, (largest + 1, hidden)."""
        return self.hidden(torch.arange(largest + 1, device=self.frequency.device).double())
