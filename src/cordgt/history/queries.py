"""Queries: what a model scores. History: the events and features it may read to do so."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cordgt.history.index import TemporalIndex


@dataclass(frozen=True)
class Queries:
    """Will ``src`` interact with each of its candidates at time ``t``? B queries with M candidates each.

    A query sees the first ``cut`` events of the stream. Pair lookups (counts, distances) see the first ``pair_cut``,
    which is smaller than ``cut`` only under the paper's own visibility rule.
    """

    src: Tensor  # (B,) int64
    dst: Tensor  # (B, M) int64, the candidates
    t: Tensor  # (B,) float64, since the stream's first event
    cut: Tensor  # (B,) int64, number of visible events
    pair_cut: Tensor  # (B,) int64, number of events visible to pair lookups, at most cut

    @property
    def endpoints(self) -> Tensor:
        """(B, 1 + M) int64: the source, then its candidates."""
        return torch.cat([self.src[:, None], self.dst], dim=1)

    def take(self, rows: Tensor | np.ndarray | slice) -> Queries:
        """Return the queries at ``rows``: int64 in any order, repeats allowed, or a slice."""
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(rows).to(self.src.device)
        return Queries(**{name: value[rows] for name, value in vars(self).items()})


@dataclass(frozen=True)
class History:
    """What a model may read, on one device: an index of the events, features, and the seed of all random draws."""

    index: TemporalIndex
    edge_x: Tensor | None  # (E, De) float32
    node_x: Tensor | None  # (N, Dn) float32
    seed: int
    epoch: Tensor | int = 0  # 0 outside training; a tensor if it changes within a captured CUDA graph

    def __repr__(self) -> str:
        return f"<History: {self.index!r}, seed {self.seed}>"

    def to(self, device: torch.device) -> History:
        """Return this history on another device."""
        edge_x, node_x = (None if x is None else x.to(device) for x in (self.edge_x, self.node_x))
        return replace(self, index=self.index.to(device), edge_x=edge_x, node_x=node_x)

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return self.index.nbytes + sum(x.nbytes for x in (self.edge_x, self.node_x) if x is not None)

    def edge_features(self, pos: Tensor) -> Tensor | None:
        """Return features (..., De) of the events at ``pos``, zero where it is -1; None if the stream has none."""
        return None if self.edge_x is None else _rows_or_zero(self.edge_x, pos)

    def node_features(self, node: Tensor) -> Tensor | None:
        """Return features (..., Dn) of the nodes, zero for padding and new nodes; None if the stream has none."""
        return None if self.node_x is None else _rows_or_zero(self.node_x, node)


def _rows_or_zero(table: Tensor, at: Tensor) -> Tensor:
    in_range = (at >= 0) & (at < len(table))
    return torch.where(in_range.unsqueeze(-1), table[torch.where(in_range, at, 0)], 0.0)
