"""JODIE: a recurrent memory of each node, projected to the time of the query.

Kumar et al., Predicting Dynamic Embedding Trajectory in Temporal Interaction Networks, 2019, in the form that TGN's
authors measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from cordgt.history.queries import History
from cordgt.models.memory import MemoryBatch, MemoryModel, MemorySettings


@dataclass(frozen=True)
class JodieSettings(MemorySettings):
    """Settings of JODIE."""


class Jodie(MemoryModel):
    """Messages from memory, an RNN as updater, embeddings by projection: ``memory * (1 + w dt + b)``.

    ``dt``, the time since the node's last event, is standardized by its mean and deviation in training. Differs: one
    mean for both ends, since a node may be either; the original has one for sources and one for destinations.
    """

    gap_mean: Tensor
    gap_deviation: Tensor

    def __init__(self, settings: JodieSettings, *, edge_dim: int, node_dim: int) -> None:
        super().__init__(settings, edge_dim=edge_dim, node_dim=node_dim)
        self.project = nn.Linear(1, self.dim)
        nn.init.normal_(self.project.weight)
        nn.init.normal_(self.project.bias)
        self.register_buffer("gap_mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("gap_deviation", torch.ones((), dtype=torch.float64))

    def prepare(self, history: History, cut: int) -> None:
        """Measure the mean and deviation of ``dt`` over the first ``cut`` events."""
        mean, deviation = gap_statistics(history, cut)
        self.gap_mean.fill_(mean)
        self.gap_deviation.fill_(deviation)

    def embedding(self, batch: MemoryBatch, memory: Tensor, last: Tensor) -> Tensor:
        gap = (batch.t[:, None] - last - self.gap_mean) / self.gap_deviation  # (B, 1+M)
        return memory[..., 0, :] * (1 + self.project(gap.float().unsqueeze(-1)))


def gap_statistics(history: History, cut: int) -> tuple[float, float]:
    """Return mean and deviation of the time from a node's event to its next among the first ``cut``.

    A node's first event is counted from the stream's beginning, as in its memory. 0 and 1 without events; the
    deviation is 1 if all gaps are equal.
    """
    index = history.index.to("cpu")
    t = index.elapsed.numpy()[index.pos.numpy()]
    before = np.concatenate([[0.0], t[:-1]])[: len(t)]
    start = index.row_start.numpy()
    before[start[:-1][np.diff(start) > 0]] = 0.0
    gap = (t - before)[index.pos.numpy() < cut]
    if not len(gap):
        return 0.0, 1.0
    deviation = float(gap.std())
    return float(gap.mean()), deviation if deviation > 0 and math.isfinite(deviation) else 1.0
