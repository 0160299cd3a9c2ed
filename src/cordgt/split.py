"""Train, validation and test by time; new-node draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cordgt import draws
from cordgt.errors import DataError

SPLITS = ("quantile", "time")


@dataclass(frozen=True)
class Split:
    """Which events are trained on, chosen by, and measured on. Events with the same time are never parted."""

    train: np.ndarray  # positions, without the events of masked nodes
    validation: np.ndarray  # positions
    test: np.ndarray  # positions
    masked: np.ndarray  # (N,) bool, True: its training events were taken out, so that it is new at evaluation
    new_node: np.ndarray  # (N,) bool, True: in no training event
    touches_new: np.ndarray  # (E,) bool, True: an end of the event is a new node

    def inductive(self, positions: np.ndarray) -> np.ndarray:
        """Those of ``positions`` whose event touches a new node."""
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
    train_part: float = 0.70,
    validation_part: float = 0.15,
) -> Split:
    """Part a sorted stream at two moments and mask a share of the nodes.

    ``quantile`` parts at quantiles of the event times, ``time`` at shares of the time range. Masked nodes are drawn
    among those that occur after the training period: ``mask_nodes`` of all nodes, or fewer where there are not as many.

    Raises:
        DataError: a part would be empty.
    """
    end_train, end_validation = _boundaries(t, how, train_part, validation_part)
    positions = np.arange(len(t))
    validation, test = positions[end_train:end_validation], positions[end_validation:]
    masked = _draw_masked(src[end_train:], dst[end_train:], n_nodes, mask_nodes, mask_seed)
    early = positions[:end_train]
    train = early[~(masked[src[early]] | masked[dst[early]])]
    for name, part in (("training", train), ("validation", validation), ("test", test)):
        if len(part) == 0:
            raise DataError(
                f"Too few events to split: {len(t)} events at {len(np.unique(t))} times leave none for {name}. "
                "Give more events, or other parts (--set train_part=…, --set validation_part=…, --set mask_nodes=0)."
            )
    new_node = np.ones(n_nodes, dtype=bool)
    new_node[src[train]] = False
    new_node[dst[train]] = False
    return Split(train, validation, test, masked, new_node, new_node[src] | new_node[dst])


def _boundaries(t: np.ndarray, how: str, train_part: float, validation_part: float) -> tuple[int, int]:
    """Number of events in training, and in training and validation together."""
    if len(t) == 0:
        return 0, 0
    since = (t - t[0]).astype(np.float64)  # so that shifting all times parts them alike
    parts = [train_part, min(train_part + validation_part, 1.0)]
    moments = np.quantile(since, parts) if how == "quantile" else np.array(parts) * since[-1]
    first, second = np.searchsorted(since, moments, side="right")
    return int(first), int(second)


def _draw_masked(src: np.ndarray, dst: np.ndarray, n_nodes: int, share: float, seed: int) -> np.ndarray:
    """(N,) bool: the nodes with the smallest hashes among those that occur in the given events."""
    candidates = np.unique(np.concatenate([src, dst]))
    key = draws.child(draws.mix_int(seed), torch.from_numpy(candidates.astype(np.int64))).numpy().view(np.uint64)
    masked = np.zeros(n_nodes, dtype=bool)
    masked[candidates[np.argsort(key, kind="stable")[: int(share * n_nodes)]]] = True
    return masked
