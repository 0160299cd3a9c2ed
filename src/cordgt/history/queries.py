"""History and Queries: what is asked, and what may be read to answer it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cordgt.history.index import TemporalIndex


@dataclass(frozen=True)
class Queries:
    """Will ``src`` meet each of its candidates at time ``t``? B queries with M candidates each.

    ``cut`` is what the trees see (the first ``cut`` events of the stream), ``pair_cut <= cut`` what the pair records
    see; they differ only when the paper's own rule is reproduced.
    """

    src: Tensor  # (B,) int64
    dst: Tensor  # (B, M) int64
    t: Tensor  # (B,) float64, since the stream's first event
    cut: Tensor  # (B,) int64
    pair_cut: Tensor  # (B,) int64

    @property
    def ends(self) -> Tensor:
        """(B, 1 + M) int64: the source, then its candidates."""
        return torch.cat([self.src[:, None], self.dst], dim=1)

    def take(self, rows: Tensor | np.ndarray | slice) -> Queries:
        """Some of the queries, by their rows: int64 in any order, also several times, or a slice."""
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(rows).to(self.src.device)
        return Queries(**{name: value[rows] for name, value in vars(self).items()})


@dataclass(frozen=True)
class History:
    """The past as a model may read it, on one device: an index, the features, and what the draws depend on."""

    index: TemporalIndex
    edge_x: Tensor | None  # (E, De) float32
    node_x: Tensor | None  # (N, Dn) float32
    seed: int
    epoch: Tensor | int = 0  # 0 outside training; a tensor where it changes inside a captured step

    def to(self, device: torch.device) -> History:
        """The same past on another device."""
        edge_x, node_x = (None if x is None else x.to(device) for x in (self.edge_x, self.node_x))
        return replace(self, index=self.index.to(device), edge_x=edge_x, node_x=node_x)

    @property
    def size(self) -> int:
        """In bytes."""
        return self.index.size + sum(x.nbytes for x in (self.edge_x, self.node_x) if x is not None)

    def edge_features(self, pos: Tensor) -> Tensor | None:
        """(..., De) features of the events at ``pos``, zero where it is -1; None where the stream has none."""
        return None if self.edge_x is None else _rows(self.edge_x, pos)

    def node_features(self, node: Tensor) -> Tensor | None:
        """(..., Dn) features of the nodes, zero for padding and newcomers; None where the stream has none."""
        return None if self.node_x is None else _rows(self.node_x, node)


def _rows(table: Tensor, at: Tensor) -> Tensor:
    known = (at >= 0) & (at < len(table))
    return torch.where(known.unsqueeze(-1), table[torch.where(known, at, 0)], 0.0)
