"""RateModel: how often a node acts, from decayed counts of its own events (a self-exciting point process).

    rate(u, t) = base_rate + sum over k of (excitation_k * S_k(u, t) + renewal_k * L_k(u, t)) / tau_k

for a node that was seen in the role. ``S_k`` are the decayed counts of `cordgt.history.activity`. ``L_k`` is the last
event's part of them: it fades alike for busy and for quiet nodes, so a node that left differs from a quiet one. Nodes
that were not seen in the role have constant rates. The rest follows in closed form: the probability of no event within
a horizon, quantiles and density of the next event's time, and nearly so the expected number of events. With a rhythm,
it holds in operational time. `cordgt.models.activity_fit` fits the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cordgt.errors import RunError
from cordgt.history.activity import DecayedCounts, Role
from cordgt.history.rhythm import Rhythm, cached_tensor

Unit = Literal["events", "occasions"]
UNITS = ("events", "occasions")
_BISECTIONS = 64
_MAX_EXPONENT = 300.0  # keeps exp and its products finite


@dataclass(frozen=True)
class RateModel:
    """The rate of one role's events. All rates are per time of the stream's unit, and positive.

    ``unit`` says what the rates count: ``events``, or ``occasions``, where all events of a node at one time are one.
    Use occasions for questions about the next time that a node acts, and events for questions about numbers of events.
    """

    role: Role
    unit: Unit
    time_constants: tuple[float, ...]  # tau_k
    excitation: tuple[float, ...]  # mean number of occurrences that one event causes at each time constant; 0 or more
    renewal: tuple[float, ...]  # mean number of further occurrences that the last event causes; 0 or more
    base_rate: float  # of a node that was seen in the role
    known_rate: float  # of a node that was seen, but not in the role
    newcomer_rate: float  # of one node that was never seen
    arrival_rate: float  # of first events of all nodes that were never seen, together
    events_per_unit: float = 1.0  # mean number of events of an occasion; 1 if events are counted
    rhythm: Rhythm | None = None

    def rate(self, counts: DecayedCounts) -> Tensor:
        """Return the rate (…) float64 at the time of the lookup."""
        rate = self._operational_rate(counts, torch.zeros_like(counts.t))
        return rate if self.rhythm is None else rate * self.rhythm.relative_rate(counts.t)

    def rate_with_newcomers(self, counts: DecayedCounts) -> Tensor:
        """Return the rate (…) float64 as `rate`; of a node that was never seen, the rate of all newcomers together.

        This is the rate of the stream's next event, where nodes are numbered by their first appearance: a node without
        events is the next newcomer, whoever it is. The rate of one newcomer divides this rate by a guess of how many
        are still unseen, which no event can confirm. Use this one to compare sources, and `rate` for the probability
        that a certain node acts.
        """
        rate = self.rate(counts)
        arrival = torch.full_like(rate, self.arrival_rate)
        if self.rhythm is not None:
            arrival = arrival * self.rhythm.relative_rate(counts.t)
        return torch.where(counts.degree > 0, rate, arrival)

    def cumulative_hazard(self, counts: DecayedCounts, horizon: Tensor) -> Tensor:
        """Return the rate integrated over the ``horizon`` after the lookup, as long as nothing occurs.

        Horizons are finite and not negative. Shapes broadcast.
        """
        return self._operational_hazard(counts, self._operational_horizon(counts, horizon))

    def survival(self, counts: DecayedCounts, horizon: Tensor) -> Tensor:
        """Return the probability that nothing occurs within the ``horizon`` after the lookup. Shapes broadcast."""
        return torch.exp(-self.cumulative_hazard(counts, horizon))

    def log_density(self, counts: DecayedCounts, horizon: Tensor) -> Tensor:
        """Return the log density of the next occurrence at ``horizon`` after the lookup. Shapes broadcast."""
        elapsed = self._operational_horizon(counts, horizon)
        density = torch.log(self._operational_rate(counts, elapsed)) - self._operational_hazard(counts, elapsed)
        return density if self.rhythm is None else density + torch.log(self.rhythm.relative_rate(counts.t + horizon))

    def quantile(self, counts: DecayedCounts, probability: Tensor) -> Tensor:
        """Return the horizon within which the next occurrence falls with a probability in [0, 1). Shapes broadcast.

        It is finite, but can be far beyond the stream's end.
        """
        target, rate = torch.broadcast_tensors(
            -torch.log1p(-probability), self._operational_rate(counts, torch.zeros_like(counts.t))
        )
        # The rate falls from its present value towards the constant part, so the hazard is between the two lines.
        low, high = target / rate, target / self._constant_rate(counts)
        for _ in range(_BISECTIONS):
            middle = torch.sqrt(low) * torch.sqrt(high)  # the bounds can differ by many powers of ten
            is_less = self._operational_hazard(counts, middle) < target
            low, high = torch.where(is_less, middle, low), torch.where(is_less, high, middle)
        if self.rhythm is None:
            return high
        return (self.rhythm.invert(self.rhythm.rescale(counts.t) + high) - counts.t).clamp_min(0.0)

    def expected_count(self, counts: DecayedCounts, horizon: Tensor) -> Tensor:
        """Return the expected number of occurrences within the ``horizon`` after the lookup. Shapes broadcast.

        Occurrences within the horizon excite later ones. The expected sums follow a linear differential equation, which
        is solved in the eigenbasis of its symmetric form. This is exact without renewal, also for nodes that were not
        seen in the role. With renewal it is close for short horizons and too small for horizons that are as long as the
        time constants of the renewal or longer: only the next occurrence renews the last event's part, not later ones.
        Where the number grows without bound, it is a lower bound for horizons of several hundred periods.
        """
        unit = max(self.time_constants)  # of time, so that no product of times overflows
        h = self._operational_horizon(counts, horizon).unsqueeze(-1) / unit
        values, basis, root, forcing = _eigenbasis(self.time_constants, self.excitation, self.events_per_unit, h.device)
        taus, _, renewal = self._parameters(h.device)
        taus = taus / unit
        weight = renewal / taus
        base, constant = self.base_rate * unit, self._constant_rate(counts).unsqueeze(-1) * unit
        leaving = torch.where((counts.count > 0).unsqueeze(-1), 0.0, constant - base)  # until a node's first event
        terms = [(leaving, constant)]  # exponentials of the rate without excitation, besides its constant
        hazard = self._operational_hazard(counts, h.squeeze(-1) * unit).unsqueeze(-1)
        mean = hazard / torch.where(h > 0, h, 1.0)  # the next occurrence comes at about this rate
        last = self._last_sums(counts)
        for k in (k for k, value in enumerate(self.renewal) if value > 0):
            gap = mean - 1 / taus[k]
            gap = torch.where((gap * taus[k]).abs() < 1e-6, 1e-6 / taus[k], gap)  # the quotient has a limit there
            again = weight[k] * mean / gap
            terms += [(weight[k] * last[..., k : k + 1], 1 / taus[k] + mean), (again, 1 / taus[k]), (-again, mean)]
        direct, response = base * h, base * _double_integral(values, h)
        for factor, rate in terms:
            direct = direct + factor * _integral(-rate, h)
            response = response + factor * _mixed_integral(values, rate, h)
        excited = (counts.sums * root) @ basis * _integral(values, h) + forcing * response  # (..., K)
        number = direct + (excited * (root @ basis)).sum(-1, keepdim=True)
        return number.squeeze(-1)

    def _constant_rate(self, counts: DecayedCounts) -> Tensor:
        """Return the part of the rate that does not decay, in operational time."""
        rate = torch.full_like(counts.t, self.newcomer_rate)
        rate = torch.where(counts.degree > 0, self.known_rate, rate)
        return torch.where(counts.count > 0, self.base_rate, rate)

    def _operational_rate(self, counts: DecayedCounts, horizon: Tensor) -> Tensor:
        taus, *_ = self._parameters(counts.t.device)
        decay = torch.exp(-horizon.unsqueeze(-1) / taus)
        return self._constant_rate(counts) + (self._caused(counts) * decay / taus).sum(-1)

    def _operational_hazard(self, counts: DecayedCounts, horizon: Tensor) -> Tensor:
        taus, *_ = self._parameters(counts.t.device)
        decayed = -torch.expm1(-horizon.unsqueeze(-1) / taus)
        return self._constant_rate(counts) * horizon + (self._caused(counts) * decayed).sum(-1)

    def _caused(self, counts: DecayedCounts) -> Tensor:
        """Return (…, K): number of occurrences that past events still cause at each time constant."""
        _, excitation, renewal = self._parameters(counts.t.device)
        return counts.sums * excitation + self._last_sums(counts) * renewal

    def _last_sums(self, counts: DecayedCounts) -> Tensor:
        """Return (…, K): the last event's part of the decayed counts; 0 for a node that was not seen in the role."""
        taus, *_ = self._parameters(counts.t.device)
        age = self._operational_horizon(replace(counts, t=counts.last), counts.t - counts.last)
        return torch.where((counts.count > 0).unsqueeze(-1), torch.exp(-age.clamp_min(0.0).unsqueeze(-1) / taus), 0.0)

    def _operational_horizon(self, counts: DecayedCounts, horizon: Tensor) -> Tensor:
        if self.rhythm is None:
            return torch.broadcast_tensors(horizon, counts.t)[0]
        return (self.rhythm.rescale(counts.t + horizon) - self.rhythm.rescale(counts.t)).clamp_min(0.0)

    def _parameters(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return time constants, excitation and renewal, (K,) each."""
        time_constants, excitation, renewal = (
            cached_tensor(x, device) for x in (self.time_constants, self.excitation, self.renewal)
        )
        return time_constants, excitation, renewal

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        lists = {name: list(value) for name, value in vars(self).items() if isinstance(value, tuple)}
        return {**vars(self), **lists, "rhythm": None if self.rhythm is None else self.rhythm.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RateModel:
        """Restore the result of `to_dict`. RunError if it is not complete."""
        known = {field.name for field in fields(cls)}
        if set(data) != known:
            wrong = ", ".join(sorted(known ^ set(data)))
            raise RunError(f"The activity model is damaged: its keys differ in {wrong}. Fit it again.")
        rhythm = None if data["rhythm"] is None else Rhythm.from_dict(data["rhythm"])
        tuples = {name: tuple(float(x) for x in data[name]) for name in ("time_constants", "excitation", "renewal")}
        return cls(**{**data, **tuples, "rhythm": rhythm})


def _integral(values: Tensor, h: Tensor) -> Tensor:
    """Return the integral of ``exp(values * s)`` for s from 0 to h."""
    x = (values * h).clamp_max(_MAX_EXPONENT)
    return torch.where(x.abs() < 1e-8, h * (1 + x / 2), h * torch.expm1(x) / torch.where(x == 0, 1.0, x))


def _double_integral(values: Tensor, h: Tensor) -> Tensor:
    """Return the integral of `_integral` over its upper end, from 0 to h."""
    x = (values * h).clamp_max(_MAX_EXPONENT)
    series = h * h * (1 / 2 + x / 6 + x * x / 24 + x**3 / 120)
    return torch.where(x.abs() < 1e-3, series, h * (_integral(values, h) - h) / torch.where(x == 0, 1.0, x))


def _mixed_integral(values: Tensor, rate: Tensor, h: Tensor) -> Tensor:
    """Return the integral, from 0 to h, of the convolution of ``exp(values * s)`` and ``exp(-rate * s)``."""
    gap = values + rate
    quotient = (_integral(values, h) - _integral(-rate, h)) / torch.where(gap == 0, 1.0, gap)
    middle = (values - rate) / 2  # close values: the derivative in between
    x = (middle * h).clamp_max(_MAX_EXPONENT)
    series = h * h * (1 / 2 + x / 3 + x * x / 8 + x**3 / 30)
    derivative = h * (h * torch.exp(x) - _integral(middle, h)) / torch.where(x == 0, 1.0, x)
    return torch.where((gap * h).abs() < 1e-5, torch.where(x.abs() < 1e-3, series, derivative), quotient)


@lru_cache(maxsize=16)
def _eigenbasis(
    time_constants: tuple[float, ...], excitation: tuple[float, ...], events_per_unit: float, device: torch.device
) -> tuple[Tensor, ...]:
    """Return eigenvalues (K,), eigenvectors (K, K), scale (K,) and forcing (K,) of the expected decayed counts.

    With the scale ``sqrt(excitation / tau)`` the matrix of the differential equation is symmetric: minus the diagonal
    of ``1 / tau``, plus a matrix of rank one. Times are in units of the longest time constant.
    """
    taus = np.array(time_constants) / max(time_constants)
    root = np.sqrt(np.array(excitation) / taus)
    values, basis = np.linalg.eigh(events_per_unit * np.outer(root, root) - np.diag(1 / taus))
    return tuple(torch.from_numpy(x).to(device) for x in (values, basis, root, events_per_unit * (root @ basis)))
