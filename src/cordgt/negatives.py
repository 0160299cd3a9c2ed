"""Negatives: destinations that a source did not meet, each draw a function of the seed and the event."""

from __future__ import annotations

import torch
from torch import Tensor

from cordgt import draws
from cordgt.errors import DataError

_TAG = 0x6E6567  # keeps these draws apart from those of the trees


def check_pool(pool: Tensor) -> None:
    """DataError where a pool of destinations cannot give a negative for every event."""
    if len(pool) < 2:
        raise DataError(
            "There is only one destination to draw from, so no event can be told from a random one. "
            "Give data with at least two destinations, or draw among all nodes (--set pool=nodes)."
        )


def draw_negatives(pool: Tensor, dst: Tensor, position: Tensor, *, seed: int, epoch: Tensor | int = 0) -> Tensor:
    """One node of ``pool`` for each query, uniformly, never ``dst`` itself. The source may be drawn.

    Shapes: pool (P,) int64, ascending and distinct, P >= 2; dst and position (B,) int64; (B,) int64 comes back.
    """
    key = draws.epoch_key(draws.child_int(draws.mix_int(seed), _TAG), epoch)
    key = draws.child(key, position)
    place = torch.searchsorted(pool, dst)
    in_pool = pool[place.clamp_max(len(pool) - 1)] == dst
    drawn = draws.below(key, len(pool) - in_pool.long())
    return pool[drawn + (in_pool & (drawn >= place)).long()]
