"""Enc, and the positional encodings made of it: STPE-U and STPE-C."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

AMPLIFY = 10_000.0  # the paper's epsilon: spreads distances over the sinusoids


def sinusoids(x: Tensor, dim: int) -> Tensor:
    """``dim`` sines and cosines of ``10000 * x`` at dim/2 frequencies from 1 down to 1e-4: all sines, then all cosines.

    Differs: the paper interleaves them, with frequencies down to 10000^(-(d-2)/d); this is the released code's way.
    Phases are taken in float64, for ``10000 * x`` would leave float32 few digits after the point.

    Shapes: x (...,) float64; (..., dim) float32 comes back.
    """
    n = dim // 2
    frequency = 10_000.0 ** (-torch.arange(n, dtype=torch.float64, device=x.device) / max(n - 1, 1))
    phase = torch.remainder(AMPLIFY * x.unsqueeze(-1) * frequency, 2 * torch.pi).float()
    return torch.cat([phase.sin(), phase.cos()], dim=-1)


class DistanceEncoding(nn.Module):
    """``MLP(Enc(x))`` of one kind of distance."""

    def __init__(self, *, dim: int, hidden: int) -> None:
        super().__init__()
        self.dim = dim
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, *distances: Tensor) -> Tensor:
        """The sum of the encodings of the given distances, whose shapes broadcast: one for STPE-U, two for STPE-C.

        The last layer is linear, so it is applied once, to the sum. Shapes: (...,) each; (..., dim) comes back.
        """
        hidden = [F.relu(self.fc1(sinusoids(x, self.dim))) for x in distances]
        total = hidden[0] if len(hidden) == 1 else hidden[0] + hidden[1]
        return F.linear(total, self.fc2.weight) + len(hidden) * self.fc2.bias

    def of_integers(self, *distances: Tensor, largest: int) -> Tensor:
        """The same for whole numbers from 0 to ``largest``: each value is encoded once and looked up.

        The lookup is a product with counts, which is faster and more exact backwards than gathering rows.
        """
        values = torch.arange(largest + 1, device=distances[0].device)
        counts = [(x.unsqueeze(-1) == values).to(self.fc2.weight.dtype) for x in distances]
        total = counts[0] if len(counts) == 1 else counts[0] + counts[1]
        return total @ self(values.double())
