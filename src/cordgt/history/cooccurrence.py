"""Neighbor co-occurrence: how often a node occurs in a list of nodes. Used by DyGFormer, CAWN and `pair_features`."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history.index import lower_bound_scalar


def count_occurrences(node: Tensor, others: Tensor, *, use_numba: bool) -> Tensor:
    """Return how often each node occurs among ``others``: (..., C) int64; 0 for padding (-1).

    ``use_numba``: compiled loops or torch operations, with the same result; see `TemporalIndex.uses_numba`.

    Shapes: node (..., C), others (..., K); leading axes broadcast.
    """
    size = np.broadcast_shapes(node.shape[:-1], others.shape[:-1])  # torch's imports sympy, for half a second
    node, others = node.expand(*size, -1), others.expand(*size, -1)
    if not use_numba:
        return ((node.unsqueeze(-1) == others.unsqueeze(-2)) & (node >= 0).unsqueeze(-1)).sum(-1)
    out = np.empty(node.shape, dtype=np.int64)
    _fill_counts(_to_rows(node), _to_rows(others), out.reshape(-1, node.shape[-1]))
    return torch.from_numpy(out)


def _to_rows(x: Tensor) -> np.ndarray:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1]).contiguous().numpy()


@njit(parallel=True, cache=True)
def _fill_counts(node, others, out):  # type: ignore[no-untyped-def]
    for i in prange(len(node)):
        ordered = np.sort(others[i])
        for c in range(node.shape[1]):
            w = node[i, c]
            first = lower_bound_scalar(ordered, 0, len(ordered), w)
            out[i, c] = lower_bound_scalar(ordered, first, len(ordered), w + 1) - first if w >= 0 else 0
