"""The evaluation protocol: how events are split, what a query may see, and how negatives are chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cordgt.errors import SettingError, check_choice
from cordgt.plugins import check_extension
from cordgt.tasks.negatives import NEGATIVES
from cordgt.tasks.split import SPLIT_RULES

VISIBILITIES = ("event", "paper", "batch")
POOLS = ("destinations", "nodes")
FILTERS = ("none", "known", "seen")
POSITIVES = ("all", "new")


@dataclass(frozen=True)
class Protocol:
    """How a stream is split, what a query sees, and which negatives each event is compared with.

    Examples:
        >>> cordgt.Protocol(negatives="historical", ranking="100").visibility
        'event'
    """

    visibility: str = (
        "event"  # what a query sees; "event": all events before its time. "paper", "batch": see `visible_cuts`
    )
    split: str = "quantile"  # split by "quantile" of the event times, or by "time": shares of the time range
    train_ratio: float = 0.70  # share for training
    val_ratio: float = 0.15  # share for validation; the rest is the test split
    mask_nodes: float = 0.1  # share of nodes removed from training, so that they are new at evaluation
    mask_seed: int = 0  # seed that chooses these nodes
    negatives: str = "random"  # negatives at evaluation; harder kinds: see `cordgt.tasks.negatives`
    pool: str = "destinations"  # negatives are sampled from the split's "destinations", or from all "nodes"
    eval_batch_size: int = 30  # events per batch in ap_batch and auc_batch, and for visibility "paper" and "batch"
    ranking: str = "none"  # rank each true destination among this many candidates: a number, "all" or "none"
    filter: str = "none"  # "known": rank only destinations that occurred before; "seen": also without past partners
    positives: str = "all"  # "new": evaluate only events whose pair has not met before
    eval_seed: int = 0  # seed of the evaluation negatives: the same for all models and training seeds
    activity: bool = True  # where negatives replace the source too ("-pairs"), scores include how often a source acts

    def __post_init__(self) -> None:
        check_choice("visibility", self.visibility, VISIBILITIES)
        check_choice("split", self.split, SPLIT_RULES)
        check_extension("negatives", self.negatives, NEGATIVES)
        check_choice("pool", self.pool, POOLS)
        check_choice("filter", self.filter, FILTERS)
        check_choice("positives", self.positives, POSITIVES)
        if not 0 <= self.mask_nodes < 1:
            raise SettingError(f"mask_nodes={self.mask_nodes}: use a share of the nodes, from 0 to below 1.")
        if not (self.train_ratio > 0 and self.val_ratio > 0 and self.train_ratio + self.val_ratio < 1):
            raise SettingError(
                f"train_ratio={self.train_ratio} and val_ratio={self.val_ratio}: "
                "both must be above 0, and their sum below 1, so that test events are left."
            )
        if self.eval_batch_size < 1:
            raise SettingError(f"eval_batch_size={self.eval_batch_size}: it must be at least 1.")
        if self.ranking not in ("none", "all") and not (self.ranking.isdecimal() and int(self.ranking) > 0):
            raise SettingError(f"ranking={self.ranking}: use a number of candidates from 1 up, all, or none.")
        if self.filter != "none" and self.ranking == "none":
            raise SettingError(
                f"filter={self.filter} chooses the candidates of a ranking, but ranking=none ranks none. Set ranking "
                "to all, or to a number of candidates."
            )

    @property
    def lists_recommendations(self) -> bool:
        """True if each query ranks every destination that can be recommended, so that its best ones form a list."""
        return self.ranking == "all" and self.filter != "none"


def visible_cuts(visibility: str, own_time: Tensor, batch_start: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers of visible events: ``cut`` for sampled trees, ``pair_cut`` for pair counts.

    ``own_time``: position of the first event with the query's time. ``batch_start``: position of the first event of
    the query's batch. Shapes: all broadcast to (B,), int64.

    - ``event``: both stop at ``own_time``. This is what a live system knows, whatever the batch size.
    - ``paper``: trees stop at ``own_time``, records at the start of the batch if that is earlier.
    - ``batch``: both stop at the start of the batch if that is earlier.
    """
    if visibility == "event":
        return own_time, own_time
    before_batch = torch.minimum(own_time, batch_start)
    return (own_time if visibility == "paper" else before_batch), before_batch
