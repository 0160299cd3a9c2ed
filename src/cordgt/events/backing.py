"""`StreamBacking`: precomputed data of a stream on disk. `cordgt.store` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

INDEX_ARRAYS = ("row_start", "nbr", "pos", "nbr_degree", "pair_start", "pair_nbr", "pair_pos_start", "pair_pos")


@dataclass(frozen=True, eq=False)
class IndexData:
    """The input of `TemporalIndex.from_arrays`; the arrays may be memory-mapped."""

    arrays: Mapping[str, npt.NDArray[Any]]  # by the names of `INDEX_ARRAYS`
    longest: Mapping[str, int]  # max_degree, max_pairs, max_meetings


class StreamBacking(Protocol):
    """Precomputed data of a stream on disk. Its arrays may go on with later events than the stream's own."""

    @property
    def path(self) -> Path: ...

    @property
    def fingerprint(self) -> str:
        """Hash of the stream's arrays."""

    @property
    def ids_fingerprint(self) -> str:
        """Hash of the node ids."""

    @property
    def elapsed(self) -> npt.NDArray[np.float64]:
        """(E,) or longer: time since the first event."""

    @property
    def tie_start(self) -> npt.NDArray[Any]:
        """(E,) or longer, int32 or int64: position of the first event with the same time."""

    @property
    def index(self) -> IndexData:
        """The index of all events."""

    def masked_index(self, src: npt.NDArray[Any], dst: npt.NDArray[Any], masked: npt.NDArray[np.bool_]) -> IndexData:
        """The index of the events (src, dst) that touch no node where ``masked`` (N,) is True."""
