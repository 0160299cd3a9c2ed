"""Parts that several models are made of: the encoding of elapsed times, and the score of a pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TimeEncoding(nn.Module):
    """``cos(t w + b)`` of an elapsed time: TGAT's encoding, which most rivals share.

    Frequencies start at 1 and go down to 1e-9, spread evenly in their logarithm; phases start at 0. Both are learnt
    unless ``learnt`` is False, as in GraphMixer.
    """

    def __init__(self, dim: int, *, learnt: bool = True) -> None:
        super().__init__()
        # in float64 and rounded once: the same start everywhere
        frequency = (10.0 ** -torch.linspace(0, 9, dim, dtype=torch.float64)).float()
        self.frequency = nn.Parameter(frequency, requires_grad=learnt)
        self.phase = nn.Parameter(torch.zeros(dim), requires_grad=learnt)

    def forward(self, elapsed: Tensor) -> Tensor:
        """(..., dim) of elapsed times (...,), which are differences taken in float64.

        The product and the sum are rounded one after the other, so that every device turns by the same angle.
        """
        return torch.cos(elapsed.to(self.frequency.dtype).unsqueeze(-1) * self.frequency + self.phase)


class MergeHead(nn.Module):
    """The score of a pair from both embeddings: an MLP on the two, side by side."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2 * dim, dim)
        self.fc2 = nn.Linear(dim, 1)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_normal_(layer.weight)

    def forward(self, src: Tensor, dst: Tensor) -> Tensor:
        """Logits (...,) of embeddings (..., D), whose shapes broadcast."""
        src, dst = torch.broadcast_tensors(src, dst)
        return self.fc2(F.relu(self.fc1(torch.cat([src, dst], dim=-1)))).squeeze(-1)
