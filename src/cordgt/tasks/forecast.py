"""Forecaster: how likely a node acts, or a pair meets, within a horizon; and when a node acts next.

An event is a source that acts, at a time, and a partner that it picks: ``rate(u, v, t) = rate(u, t) * P(v | u, t)``. The
first factor is a `RateModel`, the second comes from a link model. Every answer is a pure function of ``cut``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import RunError, check_choice
from cordgt.history.activity import ActivityBank, DecayedCounts
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import History, Queries
from cordgt.models.activity import RateModel
from cordgt.models.activity_fit import fit_rate
from cordgt.models.base import LinkModel
from cordgt.tasks.link import LinkTask
from cordgt.tasks.scoring import score_queries

ACT_ROLES = ("source", "destination")
MAX_REFERENCES = 256  # destinations that the softmax of a ranking model is normalized with


@dataclass(frozen=True)
class Forecaster:
    """Fitted rates of both roles, and the number of destinations that a partner is chosen from."""

    source_rate: RateModel
    destination_rate: RateModel
    references: tuple[int, ...]  # destinations of the training period, or a sample of them
    n_destinations: int  # of the training period
    longest_horizon: float  # the longest that was calibrated, in the stream's unit; 0: none was
    cache: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # banks of the last index

    @classmethod
    def fit(cls, task: LinkTask, model: LinkModel, callbacks: Callback = NO_CALLBACK) -> Forecaster:
        """Fit the rates to the events before validation, and calibrate on the validation period."""
        stop = int(task.split.validation[0])
        source, destination = (fit_rate(task.host_index, stop, role=r, unit="occasions").model for r in ACT_ROLES)
        pool = task.pools.train.cpu().numpy()
        chosen = np.unique(np.linspace(0, len(pool) - 1, min(len(pool), MAX_REFERENCES)).round().astype(np.int64))
        return cls(source, destination, tuple(pool[chosen].tolist()), len(pool), 0.0)

    def act_probability(
        self, index: TemporalIndex, node: Any, cut: Any, t: Any, horizon: Any, role: str = "source"
    ) -> np.ndarray:
        """Return the probability (...) that each node acts in the role within ``(t, t + horizon]``.

        ``t`` and ``horizon`` are elapsed times. Shapes broadcast.
        """
        hazard = self._hazard(index, node, cut, t, horizon, role)
        return -np.expm1(-hazard)

    def pair_probability(
        self, index: TemporalIndex, log_partner: np.ndarray, src: Any, cut: Any, t: Any, horizon: Any
    ) -> np.ndarray:
        """Return the probability (B, M) that each source (B,) has an event with each candidate within the horizon.

        ``log_partner`` (B, M) is the output of `log_partner` for the same queries.
        """
        hazard = self._hazard(index, src, cut, t, horizon, "source")
        return -np.expm1(-np.exp(np.minimum(log_partner, 0.0)) * hazard[:, None])

    def next_time(
        self, index: TemporalIndex, node: Any, cut: Any, t: Any, probability: Any, role: str = "source"
    ) -> np.ndarray:
        """Return (n, P): the time after ``t`` within which each node (n,) acts with each probability (P,).

        It is infinite if the node never acts with that probability.
        """
        model, counts = self._lookup(index, node, cut, t, role)
        wide = DecayedCounts(**{k: v.unsqueeze(1) for k, v in vars(counts).items()})
        return model.quantile(wide, _tensor(probability)).numpy()

    def rate(self, index: TemporalIndex, node: Any, cut: Any, t: Any, role: str = "source") -> np.ndarray:
        """Return the rate (...) at which each node acts in the role at ``t``, per time of the stream's unit."""
        model, counts = self._lookup(index, node, cut, t, role)
        return model.rate(counts).numpy()

    def log_partner(
        self, model: LinkModel, history: History, queries: Queries, logits: np.ndarray | None = None
    ) -> np.ndarray:
        """Return (B, M): the log probability that the source of each query picks the candidate at its next event.

        ``logits`` (B, M) are the model's scores of these queries, if the caller has them.

        The logit of a model with a binary loss is the log of how much likelier the candidate is than a random
        destination. A model that learns ranking has a softmax over destinations of the training period.
        """
        if logits is None:
            logits = score_queries(model, history, queries)
        if not model.learns_ranking:
            return logits - np.log(self.n_destinations)
        references = torch.tensor(self.references, device=queries.src.device).expand(len(queries.src), -1)
        others = score_queries(model, history, Queries(queries.src, references, *_times(queries)))
        total = np.logaddexp.reduce(others, axis=1, keepdims=True) + np.log(self.n_destinations / len(self.references))
        return logits - total

    def _lookup(self, index: TemporalIndex, node: Any, cut: Any, t: Any, role: str) -> tuple[RateModel, DecayedCounts]:
        check_choice("role", role, ACT_ROLES)
        model = self.source_rate if role == "source" else self.destination_rate
        if self.cache.get("index") is not index:
            self.cache.clear()
            self.cache["index"], self.cache["host"] = index, index.to("cpu")
        if role not in self.cache:
            self.cache[role] = ActivityBank.build(self.cache["host"], model.time_constants, model.role, model.rhythm)
        return model, self.cache[role].lookup(*(_tensor(x) for x in (node, cut, t)))

    def _hazard(self, index: TemporalIndex, node: Any, cut: Any, t: Any, horizon: Any, role: str) -> np.ndarray:
        model, counts = self._lookup(index, node, cut, t, role)
        return model.cumulative_hazard(counts, _tensor(horizon)).numpy()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "source_rate": self.source_rate.to_dict(),
            "destination_rate": self.destination_rate.to_dict(),
            "references": list(self.references),
            "n_destinations": self.n_destinations,
            "longest_horizon": self.longest_horizon,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Forecaster:
        """Restore the result of `to_dict`. RunError if it is damaged."""
        try:
            return cls(
                RateModel.from_dict(data["source_rate"]),
                RateModel.from_dict(data["destination_rate"]),
                tuple(int(x) for x in data["references"]),
                int(data["n_destinations"]),
                float(data["longest_horizon"]),
            )
        except (KeyError, TypeError, ValueError):
            raise RunError("The activity of this run is damaged. Train the run again.") from None


def _tensor(values: Any) -> Tensor:
    """Return values as a tensor on the CPU: float64, or int64 for whole numbers."""
    tensor = torch.as_tensor(values).cpu()
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def _times(queries: Queries) -> tuple[Tensor, Tensor, Tensor]:
    return queries.t, queries.cut, queries.pair_cut
