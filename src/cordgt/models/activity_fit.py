"""Fit a `RateModel` to a period of a stream by its exact point-process likelihood, with EM.

The log likelihood is the sum of the events' log rates minus the compensator, which is the rate integrated over the
period. A decayed count satisfies ``integral of S / tau = S(begin) + number of events - S(end)``, so the compensator of
all nodes needs one lookup of each node at both ends. The problem is concave. EM shares each event out among the terms
of its rate, and divides each term's share by its part of the compensator. SQUAREM makes longer steps of it. No step
lowers the likelihood.

For long streams the log rates come from a uniform sample of events, with their mean times the number of all events. It
is an unbiased estimate. The compensator always covers all events. Rows are read in chunks, so the stream can be
memory-mapped and larger than memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from cordgt.errors import DataError, check_choice
from cordgt.events.arrays import Floats
from cordgt.history.activity import ActivityBank, DecayedCounts, Role
from cordgt.history.index import TemporalIndex, as_tensor
from cordgt.history.rhythm import Rhythm
from cordgt.models.activity import UNITS, RateModel, Unit

N_TIME_CONSTANTS = 14
N_RENEWAL = 5  # of those, the longest, at which the last event's own part fades
MAX_SAMPLE = 1 << 18  # events whose log rates enter the likelihood
MAX_ITERATIONS = 400
TOLERANCE = 1e-6  # smallest gain of the mean log likelihood in six iterations
NEGLIGIBLE = 1e-13  # share of a rate, or of all events
_CHUNK = 1 << 20  # nodes or row entries read at a time
_MIN_BASE = 1e-6  # least base rate, in events per period: no rate is zero
_MAX_GROWTH = 1.0  # the expected rate grows at most by a factor of e in one period


@dataclass(frozen=True)
class RateFit:
    """A fitted model and how the fit went."""

    model: RateModel
    log_likelihood: tuple[float, ...]  # after each iteration, of events of nodes that were seen before
    n_events: int  # events in the role in the period
    n_seen: float  # of those, in the model's unit, what came from nodes that were seen before; estimated if sampled
    n_sampled: int  # events whose log rates were computed
    is_capped: bool  # the limit on growth is active


@dataclass(frozen=True)
class PeriodLikelihood:
    """Log likelihood of what a model's unit counts in a period, for nodes that were seen before each event."""

    n: float
    log_rates: float  # sum
    compensator: float

    @property
    def mean(self) -> float:
        """Log likelihood per occurrence; 0 if there are none."""
        return (self.log_rates - self.compensator) / self.n if self.n else 0.0


def choose_time_constants(index: TemporalIndex, stop: int, n: int = N_TIME_CONSTANTS) -> tuple[float, ...]:
    """Return ``n`` geometric time constants for the first ``stop`` events.

    They go from the smallest positive gap between events, but at least a millionth of the period, to twice the period.
    """
    span = float(index.elapsed[stop - 1] - index.elapsed[0]) if stop else 0.0
    if span <= 0:
        return (1.0,)
    gap = span
    for low in range(0, stop - 1, _CHUNK):
        gaps = index.elapsed[low : min(low + _CHUNK + 1, stop)].diff()
        gap = min(gap, float(torch.where(gaps > 0, gaps, span).min()))
    return tuple(np.geomspace(max(gap, span * 1e-6), span * 2, n).tolist())


def fit_rate(
    index: TemporalIndex,
    stop: int,
    *,
    role: Role = "source",
    unit: Unit = "events",
    rhythm: Rhythm | None = None,
    n_time_constants: int = N_TIME_CONSTANTS,
    max_sample: int = MAX_SAMPLE,
    seed: int = 0,
) -> RateFit:
    """Fit the rate of a role to the first ``stop`` events of an index on the CPU.

    Events of equal time do not see each other, so ``stop`` must not cut through them.
    """
    bank = ActivityBank.build(index, choose_time_constants(index, stop, n_time_constants), role, rhythm)
    return fit_bank(bank, stop, unit=unit, max_sample=max_sample, seed=seed)


def fit_bank(
    bank: ActivityBank, stop: int, *, unit: Unit = "events", max_sample: int = MAX_SAMPLE, seed: int = 0
) -> RateFit:
    """Fit the rate of a bank's role and time constants to the first ``stop`` events. See `fit_rate`."""
    check_choice("unit", unit, UNITS)
    if not 0 < stop <= len(bank.index.elapsed):
        raise DataError(f"The activity needs between 1 and {len(bank.index.elapsed)} events, not {stop}.")
    totals = _period_totals(bank, 0, stop)
    sample = _sample_events(bank, 0, stop, totals.n_events, unit, max_sample, seed)
    seen = sample.counts.count > 0
    span = totals.span or 1.0
    counts, clock, long = sample.counts, bank.operational_time, bank.taus[-N_RENEWAL:]
    ages = (clock(counts.t) - clock(counts.last)).clamp_min(0.0).unsqueeze(-1)
    columns = [counts.sums / bank.taus, torch.exp(-ages / long) / long, torch.ones_like(ages)]
    features = torch.cat(columns, dim=1)[seen]
    features = torch.where(features * span < NEGLIGIBLE, 0.0, features)
    events_per_unit = len(sample.weight) / float(sample.weight.sum()) if len(sample.weight) else 1.0
    growth = events_per_unit / (1 + _MAX_GROWTH * bank.taus.numpy() / span)
    parameters, trace, is_capped = _expectation_maximization(
        features.numpy(),
        (sample.weight[seen] * sample.scale).numpy(),
        np.concatenate([totals.decayed, totals.last_decayed[-N_RENEWAL:], [totals.exposure]]),
        growth,
        _MIN_BASE / span,
    )
    # Half an event, as for a rate without data: no rate is zero. First events of the second half of the period: a rate
    # of newcomers often falls. The stream cannot tell how many nodes are still unseen: as many as were seen, we assume.
    arrival = (totals.n_arrivals_late + 0.5) / (span / 2)
    n = len(bank.taus)
    model = RateModel(
        role=bank.role,
        unit=unit,
        time_constants=bank.time_constants,
        excitation=tuple(parameters[:n].tolist()),
        renewal=(*([0.0] * (n - len(long))), *parameters[n:-1].tolist()),
        base_rate=float(parameters[-1]),
        known_rate=(totals.n_known + 0.5) / (totals.known_exposure + span),
        newcomer_rate=arrival / max(totals.n_arrivals, 1),
        arrival_rate=arrival,
        events_per_unit=events_per_unit,
        rhythm=bank.rhythm,
    )
    n_seen = float(sample.weight[seen].sum()) * sample.scale
    return RateFit(model, tuple(trace), totals.n_events, n_seen, len(sample.weight), is_capped)


def period_likelihood(
    model: RateModel, bank: ActivityBank, start: int, stop: int, *, max_sample: int = MAX_SAMPLE, seed: int = 0
) -> PeriodLikelihood:
    """Return the likelihood of the events from position ``start`` up to ``stop``, in the time after event start - 1.

    The bank has the model's role, time constants and rhythm. For long periods the log rates come from a sample.
    """
    totals = _period_totals(bank, start, stop)
    sample = _sample_events(bank, start, stop, totals.n_events, model.unit, max_sample, seed)
    seen = sample.counts.count > 0
    weight = sample.weight[seen] * sample.scale
    log_rates = float((torch.log(model.rate(sample.counts))[seen] * weight).sum())
    caused = totals.decayed @ np.array(model.excitation) + totals.last_decayed @ np.array(model.renewal)
    compensator = float(caused + totals.exposure * model.base_rate)
    return PeriodLikelihood(float(weight.sum()), log_rates, compensator)


@dataclass(frozen=True)
class _PeriodTotals:
    """Sums over all nodes in a period, in operational time."""

    span: float
    n_events: int  # in the role
    decayed: np.ndarray  # (K,) integral of S_k / tau_k
    last_decayed: np.ndarray  # (K,) the same for the part of each node's last event; 0 but for the longest
    exposure: float  # time since each node's first event in the role
    n_known: int  # nodes with their first event in the role after another role's
    known_exposure: float  # time between the two
    n_arrivals: int  # nodes whose first event is in the role
    n_arrivals_late: int  # of those, in the second half of the period


def _period_totals(bank: ActivityBank, start: int, stop: int) -> _PeriodTotals:
    """Add up what the compensator needs. The period begins at event ``start - 1``, or at the first one."""
    index, clock = bank.index, bank.operational_time
    begin, end = index.elapsed[max(start - 1, 0)], index.elapsed[max(stop - 1, 0)]
    low, high = clock(begin), clock(end)
    n_events = n_known = n_arrivals = n_late = 0
    exposure = known_exposure = 0.0
    decayed = np.zeros(len(bank.taus))
    last_decayed = np.zeros(len(bank.taus))
    last_decayed[-N_RENEWAL:] = bank.last_event_integrals(bank.taus[-N_RENEWAL:], low, high, stop)
    for nodes in _chunks(_n_seen(index, stop)):
        node = torch.arange(nodes.start, nodes.stop)
        before, after = (bank.lookup(node, torch.tensor(c), t) for c, t in ((start, begin), (stop, end)))
        n_events += int((after.count - before.count).sum())
        decayed += (before.sums + (after.count - before.count).unsqueeze(-1) - after.sums).sum(0).numpy()
        is_seen, is_known = after.count > 0, after.degree > 0
        first = clock(after.first)
        exposure += float((high - torch.maximum(first, low))[is_seen].sum())
        row = index.row_start[node].long().clamp_max(max(len(index.pos) - 1, 0))
        first_any = clock(index.elapsed[index.pos[row].long()]) if len(index.pos) else first
        is_arrival = is_seen & (first_any == first)
        n_arrivals += int(is_arrival.sum())
        n_late += int((is_arrival & (first > (low + high) / 2)).sum())
        is_other = is_known & ~is_arrival  # was seen in another role first
        n_known += int((is_other & is_seen).sum())
        known_exposure += float((torch.where(is_seen, first, high) - first_any)[is_other].sum())
    return _PeriodTotals(
        float(high - low),
        n_events,
        decayed.clip(0),
        last_decayed,
        exposure,
        n_known,
        known_exposure,
        n_arrivals,
        n_late,
    )


def _n_seen(index: TemporalIndex, cut: int) -> int:
    """Return one more than the largest node with an event before the cut: later nodes must not change a bit."""
    n = 0
    for nodes in _chunks(index.n_nodes):
        is_seen = index.degree(torch.arange(nodes.start, nodes.stop), torch.tensor(cut)) > 0
        n = nodes.start + int(is_seen.nonzero().max()) + 1 if is_seen.any() else n
    return n


@dataclass(frozen=True)
class _Sample:
    """Sampled events in the role, with the state of their node just before them."""

    counts: DecayedCounts  # (n,), among the events that are strictly earlier
    weight: Tensor  # (n,) float64; events of a node at one time share the weight of an occasion
    scale: float  # number of all events for each sampled one


def _draw_events(
    index: TemporalIndex, role: Role, start: int, stop: int, share: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return node and position of a uniform share of the role's events from ``start`` up to ``stop``, (n,) int64 each.

    Later events do not change the draw.
    """
    positions = None
    if share < 1:
        size = math.ceil((stop - start) * share)
        positions = np.random.default_rng(seed).choice(stop - start, size, replace=False, shuffle=False)
        positions = np.sort(positions) + start
    parts = [torch.empty((2, 0), dtype=torch.int64)]
    for chunk in _chunks(stop - start if positions is None else len(positions)):
        pos = (
            torch.arange(chunk.start + start, chunk.stop + start) if positions is None else as_tensor(positions[chunk])
        )
        src = index.src[pos].long()
        rank = index.degree(src, pos)
        is_indexed = index.degree(src, pos + 1) > rank  # False: an event of masked nodes
        src, pos, rank = src[is_indexed], pos[is_indexed], rank[is_indexed]
        dst = index.nbr[index.row_entry(src, rank)].long()
        if role != "destination":
            parts.append(torch.stack([src, pos]))
        if role != "source":
            is_new = dst != src if role == "either" else torch.ones_like(dst, dtype=torch.bool)
            parts.append(torch.stack([dst, pos])[:, is_new])
    node, pos = torch.cat(parts, dim=1)
    return node, pos


def sample_times(index: TemporalIndex, stop: int, role: Role, *, max_sample: int = MAX_SAMPLE, seed: int = 0) -> Floats:
    """Return the elapsed times of about ``max_sample`` of the first ``stop`` events, once for each node and time."""
    node, pos = _draw_events(index, role, 0, stop, max_sample / stop, seed)
    first = torch.unique(torch.stack([index.tie_start[pos].long(), node]), dim=1)[0]
    times: Floats = index.elapsed[first].numpy()
    return times


def _sample_events(
    bank: ActivityBank, start: int, stop: int, n_events: int, unit: Unit, max_sample: int, seed: int
) -> _Sample:
    """Look up about ``max_sample`` of the role's ``n_events`` events from ``start`` up to ``stop``, or all."""
    index = bank.index
    node, pos = _draw_events(index, bank.role, start, stop, max_sample / max(n_events, 1), seed)
    cut = index.tie_start[pos].long()
    counts = bank.lookup(node, cut, index.elapsed[pos])
    weight = torch.ones(len(node), dtype=torch.float64)
    if unit == "occasions":
        end = torch.searchsorted(index.tie_start, index.tie_start[pos], right=True).clamp_max(stop)
        tied = end - cut > 1
        until = bank.lookup(node[tied], end[tied], index.elapsed[pos][tied])
        weight[tied] = 1.0 / (until.count - counts.count[tied]).double()
    return _Sample(counts, weight, n_events / max(len(node), 1))


def _chunks(n: int) -> Iterator[slice]:
    for low in range(0, n, _CHUNK):
        yield slice(low, min(low + _CHUNK, n))


def _expectation_maximization(
    features: np.ndarray, weight: np.ndarray, compensator: np.ndarray, growth: np.ndarray, min_base: float
) -> tuple[np.ndarray, list[float], bool]:
    """Maximize ``sum of weight * log(features @ p) - compensator @ p`` over p >= 0.

    The last parameter is the base rate, at least ``min_base``. The first K satisfy ``growth @ p[:K] <= 1``.

    Shapes: features (n, D); weight (n,); compensator (D,); growth (K,).
    Returns: the parameters, the likelihood after each iteration, and whether the limit on growth is active.
    """
    total = weight.sum()
    usable = compensator > 0
    parameters = np.where(usable, total / np.where(usable, compensator, 1.0) / len(compensator), 0.0)
    parameters[: len(growth)] = np.minimum(parameters[: len(growth)], 1 / growth / len(growth))
    parameters[-1] = max(parameters[-1], min_base)
    trace: list[float] = []
    is_capped = False
    if len(features) == 0:
        return np.append(np.zeros(len(compensator) - 1), min_base), trace, is_capped

    def step(parameters: np.ndarray) -> tuple[float, np.ndarray, bool]:
        """Return the likelihood of the parameters, their values after an iteration of EM, and whether it is capped."""
        log_sum, ratio = _sum_ratios(features, weight, parameters)
        shares = parameters * ratio
        shares[shares < NEGLIGIBLE * total] = 0.0  # it would shrink for ever; tiny numbers are slow
        return log_sum - float(compensator @ parameters), *_maximize(shares, compensator, growth, min_base)

    while len(trace) < MAX_ITERATIONS:
        # SQUAREM: two iterations give a direction and a curvature; go on along them, unless the likelihood falls.
        start, (value, first, is_capped) = parameters, step(parameters)
        trace.append(value)
        value, parameters, is_capped = step(first)
        trace.append(value)
        if len(trace) > 10 and trace[-1] - trace[-7] < TOLERANCE * total:
            break
        change = (first - start) * compensator
        curvature = (parameters - first) * compensator - change
        length = np.sqrt(change @ change / max(curvature @ curvature, 1e-300))
        if length > 1:
            further = start * compensator + 2 * length * change + length**2 * curvature
            further = np.maximum(further / np.where(usable, compensator, 1.0), parameters / 10)
            further[: len(growth)] /= max(growth @ further[: len(growth)], 1.0)
            value, after, capped_after = step(further)
            if value >= trace[-1]:
                trace.append(value)
                parameters, is_capped = after, capped_after
    trace.append(step(parameters)[0])
    return parameters, trace, is_capped


def _maximize(
    shares: np.ndarray, compensator: np.ndarray, growth: np.ndarray, min_base: float
) -> tuple[np.ndarray, bool]:
    """Return the maximum of ``sum of shares * log(p) - compensator * p``, and whether the limit on growth is active.

    A limit on growth adds a multiple of ``growth`` to the compensator.
    """

    def maximum(multiple: float) -> np.ndarray:
        cost = compensator.copy()
        cost[:n] += multiple * growth
        parameters = np.where(cost > 0, shares / np.where(cost > 0, cost, 1.0), 0.0)
        parameters[-1] = max(parameters[-1], min_base)
        return parameters

    n = len(growth)
    if growth @ maximum(0.0)[:n] <= 1:
        return maximum(0.0), False
    low, high = 0.0, shares.sum()  # at this multiple each share is at most its part of 1
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if growth @ maximum(middle)[:n] > 1 else (low, middle)
    return maximum(high), True


@njit(cache=True)
def _sum_ratios(features, weight, parameters):  # type: ignore[no-untyped-def]
    """Return the weighted sum of log rates, and for each feature the weighted sum of feature / rate."""
    log_sum, ratio = 0.0, np.zeros(len(parameters))
    for i in range(len(features)):
        rate = 0.0
        for k in range(len(parameters)):
            rate += parameters[k] * features[i, k]
        log_sum += weight[i] * math.log(rate)
        share = weight[i] / rate
        for k in range(len(parameters)):
            ratio[k] += share * features[i, k]
    return log_sum, ratio
