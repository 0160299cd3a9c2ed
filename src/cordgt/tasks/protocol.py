"""Protocol: everything a figure depends on besides the model and its training, in one small frozen object."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cordgt.errors import SettingError, check_choice
from cordgt.tasks.split import SPLITS

VISIBILITIES = ("event", "paper", "batch")
POOLS = ("destinations", "nodes")
NEGATIVES = ("random", "historical", "inductive", "historical-pairs", "inductive-pairs")


@dataclass(frozen=True)
class Protocol:
    """How a stream is split, what a query sees, and what a true event is told apart from."""

    visibility: str = "event"  # "event": the stream before the query's time; "paper", "batch": see `cuts`
    split: str = "quantile"  # of the event times; "time": shares of the time range
    train_part: float = 0.70
    validation_part: float = 0.15
    mask_nodes: float = 0.1  # share of the nodes whose training events are taken out, to be new at evaluation
    mask_seed: int = 0  # which nodes those are
    negatives: str = "random"  # at evaluation; the others are harder, see `cordgt.tasks.negatives`
    pool: str = "destinations"  # what negatives are drawn from: the split's destinations, or all "nodes"
    eval_batch: int = 30  # of ap_batch and auc_batch; and of the visibilities "paper" and "batch" at evaluation
    ranking: str = "none"  # rank each true destination among so many others: a number, or "all"
    eval_seed: int = 0  # of the negatives at evaluation, so that models and seeds are asked the same

    def __post_init__(self) -> None:
        check_choice("visibility", self.visibility, VISIBILITIES)
        check_choice("split", self.split, SPLITS)
        check_choice("negatives", self.negatives, NEGATIVES)
        check_choice("pool", self.pool, POOLS)
        if not 0 <= self.mask_nodes < 1:
            raise SettingError(f"mask_nodes={self.mask_nodes}: it is a share of the nodes, from 0 to below 1.")
        if not (self.train_part > 0 and self.validation_part > 0 and self.train_part + self.validation_part < 1):
            raise SettingError(
                f"train_part={self.train_part} and validation_part={self.validation_part}: "
                "both are above 0 and leave something for the test."
            )
        if self.eval_batch < 1:
            raise SettingError(f"eval_batch={self.eval_batch}: it is at least 1.")
        if self.ranking not in ("none", "all") and not (self.ranking.isdecimal() and int(self.ranking) > 0):
            raise SettingError(f"ranking={self.ranking}: it is a number of candidates from 1 up, all, or none.")


def cuts(visibility: str, own_time: Tensor, batch_start: Tensor) -> tuple[Tensor, Tensor]:
    """``cut`` and ``pair_cut`` of queries whose time begins at ``own_time``, in batches from ``batch_start`` on.

    ``event``: trees and records stop at the first event with the query's own time: what a live system knows, whatever
    the batch size. ``paper``: records also stop at the start of the batch. ``batch``: both do.
    """
    so_far = torch.minimum(own_time, batch_start)
    if visibility == "event":
        return own_time, own_time
    return (own_time if visibility == "paper" else so_far), so_far
