"""Split a stream by time into train, validation and test; mask nodes so that they are new at evaluation."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cordgt.errors import DataError
from cordgt.events.arrays import unique_nodes
from cordgt.history import rng

SPLIT_RULES = ("quantile", "time")
MAX_COARSE_TIMES, MIN_EVENTS_PER_TIME = 20, 5  # fewer times with more events each: the column may not be the time
CHUNK_EVENTS = 1 << 22  # events processed at a time, because a stream may be larger than memory


@dataclass(frozen=True)
class Split:
    """The events of each split. Events with the same time are always in the same split."""

    train: np.ndarray  # positions of events, without those of masked nodes
    validation: np.ndarray  # positions
    test: np.ndarray  # positions
    masked: np.ndarray  # (N,) bool, True: its training events are removed, so that it is new at evaluation
    new_node: np.ndarray  # (N,) bool, True: the node has no training event
    touches_new: np.ndarray  # (E,) bool, True: source or destination is a new node

    def inductive(self, positions: np.ndarray) -> np.ndarray:
        """Return the ``positions`` whose source or destination is a new node."""
        return positions[self.touches_new[positions]]


def split_events(
    src: np.ndarray,
    dst: np.ndarray,
    t: np.ndarray,
    n_nodes: int,
    *,
    how: str = "quantile",
    mask_nodes: float = 0.1,
    mask_seed: int = 0,
    train_ratio: float = 0.70,
    val_ratio: float = 0.15,
) -> Split:
    """Split a stream, sorted by time, at two moments, and mask a share of the nodes.

    ``how="quantile"`` splits at quantiles of the event times, ``"time"`` at shares of the time range. Masked nodes are
    drawn among those that occur after the training period: the share ``mask_nodes`` of all nodes, or as many as there
    are.

    Raises:
        DataError: a split would be empty.
    """
    end_train, end_validation = _boundaries(t, how, train_ratio, val_ratio)
    validation, test = np.arange(end_train, end_validation), np.arange(end_validation, len(t))
    masked = _draw_masked(src[end_train:], dst[end_train:], n_nodes, mask_nodes, mask_seed)
    train = np.flatnonzero(~_touches(masked, src[:end_train], dst[:end_train]))
    for name, positions in (("training", train), ("validation", validation), ("test", test)):
        if len(positions) == 0:
            n_times = len(np.unique(t))
            problem = f"{len(t)} events at {n_times} {'time' if n_times == 1 else 'times'} leave none for {name}."
            other_split = "another split (--set train_ratio=…, --set val_ratio=…, --set mask_nodes=0)"
            if n_times <= MAX_COARSE_TIMES and len(t) >= MIN_EVENTS_PER_TIME * n_times:
                raise DataError(
                    f"Too few different times to split: {problem} Events of one time stay together. Check that this "
                    "column is the time and not a weight or a rating: name another with --time, use finer times, or "
                    f"{other_split}."
                )
            raise DataError(f"Too few events to split: {problem} Use more events, or {other_split}.")
    new_node = np.ones(n_nodes, dtype=bool)
    for start in range(0, len(train), CHUNK_EVENTS):
        chunk = train[start : start + CHUNK_EVENTS]
        new_node[src[chunk]] = False
        new_node[dst[chunk]] = False
    return Split(train, validation, test, masked, new_node, _touches(new_node, src, dst))


def _touches(is_marked: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Return (E,) bool: source or destination of the event is marked."""
    touches = np.empty(len(src), dtype=bool)
    for start in range(0, len(src), CHUNK_EVENTS):
        chunk = slice(start, start + CHUNK_EVENTS)
        touches[chunk] = is_marked[src[chunk]] | is_marked[dst[chunk]]
    return touches


def _boundaries(t: np.ndarray, how: str, train_ratio: float, val_ratio: float) -> tuple[int, int]:
    """Return the number of events in train, and in train and validation together."""
    if len(t) == 0:
        return 0, 0

    def elapsed(position: int) -> Any:  # since the first event, so that a shift of all times changes nothing
        return np.float64(t[position] - t[0])

    def end_time(share: float) -> Any:
        if how == "time":
            return share * elapsed(len(t) - 1)
        rank = (len(t) - 1) * share  # the times are sorted: a quantile lies between two adjacent ones
        low = int(rank)
        return np.quantile([elapsed(low), elapsed(min(low + 1, len(t) - 1))], rank - low)

    shares = (train_ratio, min(train_ratio + val_ratio, 1.0))
    first, second = (bisect_right(range(len(t)), end_time(share), key=elapsed) for share in shares)
    return first, second


def _draw_masked(src: np.ndarray, dst: np.ndarray, n_nodes: int, share: float, seed: int) -> np.ndarray:
    """Return (N,) bool: ``share`` of all nodes, those with the smallest hashes among the nodes of the given events."""
    occurs = np.zeros(n_nodes, dtype=bool)
    for ends in (src, dst):
        occurs[unique_nodes(ends, n_nodes)] = True
    candidates = np.flatnonzero(occurs)
    key = rng.fold_in(rng.mix64_int(seed), torch.from_numpy(candidates.astype(np.int64))).numpy().view(np.uint64)
    masked = np.zeros(n_nodes, dtype=bool)
    masked[candidates[np.argsort(key, kind="stable")[: int(share * n_nodes)]]] = True
    return masked
