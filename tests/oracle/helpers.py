"""Build the package's objects from random streams; check types and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cordgt.history.index import TemporalIndex

from . import slow
from .strategies import Stream


def build(stream: Stream) -> TemporalIndex:
    return TemporalIndex.build(
        np.array(stream.src, dtype=np.int64),
        np.array(stream.dst, dtype=np.int64),
        np.array(stream.elapsed, dtype=np.float64),
        stream.n_nodes,
        keep=None if stream.keep is None else np.array(stream.keep, dtype=bool),
    )


def shape_of(values: torch.Tensor, dtype: torch.dtype, size: tuple[int, ...], device: torch.device) -> Any:
    """Check type, shape and device; return the values as lists."""
    assert values.dtype == dtype
    assert tuple(values.shape) == size
    assert values.device.type == device.type
    return values.tolist()


# Ten events at times 10 to 30. Node 5 has none; event 3 is a self-loop; events 1 and 2 are tied, and so are 4, 5, 6.
#             position  0   1   2   3   4   5   6   7   8   9
TEN = Stream(
    src=[0, 1, 0, 2, 0, 3, 1, 4, 2, 1],
    dst=[1, 2, 1, 2, 3, 1, 0, 0, 0, 4],
    t=[10, 12, 12, 13, 15, 15, 15, 18, 20, 30],  # elapsed: 0, 2, 2, 3, 5, 5, 5, 8, 10, 20
    n_nodes=6,
    keep=None,
)


def nodes_of(slots: list[slow.Slot]) -> list[int]:
    return [slot.node for slot in slots]


def positions_of(slots: list[slow.Slot]) -> list[int]:
    return [slot.pos for slot in slots]
