"""Which slots of a tree differ: slots that hold the same event of the same node have equal features and distances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from cordgt.history.context import Context


@dataclass(frozen=True)
class DistinctSlots:
    """The distinct slots of each tree, in their order; L is the largest number of them in a tree."""

    slot: Tensor  # (..., L) int64, the first slot that holds the node and event; 0 for padding
    count: Tensor  # (..., L) int64, how many slots hold them; 0 for padding


def find_distinct_slots(trees: Context) -> DistinctSlots:
    """Return the distinct slots of trees (..., C) in host memory."""
    size = trees.node.shape
    node, pos = (x.reshape(-1, size[-1]).contiguous().numpy() for x in (trees.node, trees.pos))
    slot, count = np.zeros(node.shape, np.int64), np.zeros(node.shape, np.int64)
    longest = _fill_distinct(node, pos, slot, count)
    return DistinctSlots(*(torch.from_numpy(x[:, :longest]).view(*size[:-1], longest) for x in (slot, count)))


@njit(cache=True, nogil=True)
def _fill_distinct(node, pos, slot, count):  # type: ignore[no-untyped-def]
    """Fill ``slot`` and ``count``; return the largest number of distinct slots."""
    longest = 0
    for i in range(len(node)):
        n = 0
        for c in range(node.shape[1]):
            if node[i, c] < 0:
                continue
            k = 0
            while k < n and (node[i, slot[i, k]] != node[i, c] or pos[i, slot[i, k]] != pos[i, c]):
                k += 1
            if k == n:
                slot[i, n] = c
                n += 1
            count[i, k] += 1
        longest = max(longest, n)
    return longest
