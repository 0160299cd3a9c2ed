"""The arrays of a `cordgt.history.index.TemporalIndex` that the kernels read.

A protocol, because importing the class would be circular.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class IndexArrays(Protocol):
    """The arrays and bounds of a `TemporalIndex`, documented there."""

    @property
    def row_arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    @property
    def pair_arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    @property
    def row_start(self) -> Tensor: ...
    @property
    def pos(self) -> Tensor: ...
    @property
    def elapsed(self) -> Tensor: ...
    @property
    def tie_start(self) -> Tensor: ...
    @property
    def src(self) -> Tensor: ...
    @property
    def max_degree(self) -> int: ...
    @property
    def max_pairs(self) -> int: ...
    @property
    def max_meetings(self) -> int: ...
    @property
    def n_nodes(self) -> int: ...
