"""How often nodes stand in each other's past: the counts that DyGFormer and CAWN know nodes by."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.history.index import lower_bound_scalar


def appearances(node: Tensor, among: Tensor, *, compiled: bool) -> Tensor:
    """How often each node stands among others: (..., C) int64. Padding (-1) stands nowhere.

    ``compiled`` as in `TemporalIndex.runs_compiled`: loops or tensor operations, with the same result.

    Shapes: node (..., C), among (..., K); what comes before C and K broadcasts.
    """
    size = torch.broadcast_shapes(node.shape[:-1], among.shape[:-1])
    node, among = node.expand(*size, -1), among.expand(*size, -1)
    if not compiled:
        return ((node.unsqueeze(-1) == among.unsqueeze(-2)) & (node >= 0).unsqueeze(-1)).sum(-1)
    out = np.empty(node.shape, dtype=np.int64)
    _count(_rows(node), _rows(among), out.reshape(-1, node.shape[-1]))
    return torch.from_numpy(out)


def _rows(x: Tensor) -> np.ndarray:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1]).contiguous().numpy()


@njit(parallel=True, cache=True)
def _count(node, among, out):  # type: ignore[no-untyped-def]
    for i in prange(len(node)):
        ordered = np.sort(among[i])
        for c in range(node.shape[1]):
            w = node[i, c]
            first = lower_bound_scalar(ordered, 0, len(ordered), w)
            out[i, c] = lower_bound_scalar(ordered, first, len(ordered), w + 1) - first if w >= 0 else 0
