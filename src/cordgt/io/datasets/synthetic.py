"""A synthetic stream with known intensities, for the demo and for tests that need the best possible score.

The stream is a Hawkes process in discrete time. Time runs in whole seconds. In each second, each ordered pair of nodes
has a Poisson number of events, with a mean that depends only on events of *earlier* seconds:

- every pair has a base rate, heavy-tailed, much higher within a community than across;
- repetition: an event raises the rate of the same pair, and the rise decays;
- triadic closure: an event of ``a`` and ``b`` raises the rates of ``a`` with recent partners of ``b``, and vice versa;
- newcomers: some nodes join late and have rate zero before.

The rates are linear in the past, so the stream is sampled exactly as a branching process: an event triggers further
events. An event triggers less than one other on average, so the process is stable.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from cordgt.errors import SettingError
from cordgt.events.arrays import Floats, Ints
from cordgt.events.stream import EventStream, TimeAxis

HOUR = 3600
DAY = 24 * HOUR

_COLORS = "amber azure coral green indigo ivory jade lilac olive pink ruby slate teal umber".split()


@dataclass(frozen=True, kw_only=True)
class Excitation:
    """How an event triggers others. Delays are geometric with the given mean, in seconds, and at least 1.

    Attributes:
        repetition: mean number of further events of the same pair that an event triggers.
        closure: mean number of events that it triggers between each of its two nodes and a recent partner of the other.
        recent_window: a partner is recent for so many seconds.
    """

    repetition: float = 0.30
    repetition_delay: int = 3 * HOUR
    closure: float = 0.20
    closure_delay: int = 8 * HOUR
    recent_window: int = 2 * DAY

    def __post_init__(self) -> None:
        if min(self.repetition, self.closure) < 0 or self.repetition + 2 * self.closure >= 1:
            raise SettingError(
                "repetition + 2 * closure must lie in [0, 1), or the process is not stable; "
                f"got repetition={self.repetition}, closure={self.closure}."
            )
        if min(self.repetition_delay, self.closure_delay, self.recent_window) < 1:
            raise SettingError("repetition_delay, closure_delay and recent_window must be at least one second.")


@dataclass(frozen=True)
class GroundTruth:
    """The process behind a stream. Nodes have the stream's ids; those from ``stream.n_nodes`` on have no event.

    Attributes:
        base_rate: (N, N) symmetric, events of a pair per second in both directions, once both joined; diagonal 0.
        initiative: (N,) positive; u is the source of the fraction ``initiative[u] / (initiative[u] + initiative[v])``
            of the events of u and v.
        community: (N,) the home community.
        join_time: (N,) the second from which a node can have events; 0 for nodes present from the start.
        src, dst, t: (E,) the events so far, sorted by time.
    """

    base_rate: Floats
    initiative: Floats
    community: Ints
    join_time: Ints
    excitation: Excitation
    src: Ints
    dst: Ints
    t: Ints

    def intensity(self, src: ArrayLike, dst: ArrayLike, t: ArrayLike) -> Floats:
        """Return the expected events from ``src`` to ``dst`` in the second ``t``, given all events before ``t``.

        The arguments broadcast. 0 if one of the two has not joined yet, and for a node with itself.
        """
        u, v, at = np.broadcast_arrays(np.asarray(src, np.int64), np.asarray(dst, np.int64), np.asarray(t, np.int64))
        present = at >= np.maximum(self.join_time[u], self.join_time[v])
        base_rate = np.where(present, self.base_rate[u, v], 0.0)
        rate = base_rate + self._repetition.rate_at(u, v, at) + self._closure.rate_at(u, v, at)
        share: Floats = self.initiative[u] / (self.initiative[u] + self.initiative[v])
        return rate * share

    def partner_probability(self, src: ArrayLike, dst: ArrayLike, t: ArrayLike) -> Floats:
        """Return the probability that an event of ``src`` at ``t`` goes to ``dst``, given all events before ``t``.

        On average no score that knows the past separates true from random destinations better. 0 if the intensity is 0.
        """
        rate = self.intensity(src, dst, t)
        u, at = (np.broadcast_to(np.asarray(a, np.int64), rate.shape).reshape(-1, 1) for a in (src, t))
        nodes = np.arange(len(self.base_rate))
        chunks = np.array_split(np.arange(rate.size), 1 + rate.size * len(nodes) // 1_000_000)  # bounds the memory
        total = np.concatenate([self.intensity(u[chunk], nodes, at[chunk]).sum(axis=1) for chunk in chunks])
        return np.divide(rate, total.reshape(rate.shape), out=np.zeros_like(rate), where=rate > 0)

    @cached_property
    def _repetition(self) -> _Kernel:
        weight = np.full(len(self.t), self.excitation.repetition)
        return _Kernel.build(self.src, self.dst, self.t, weight, self.excitation.repetition_delay)

    @cached_property
    def _closure(self) -> _Kernel:
        recent = _RecentPartners(len(self.base_rate), self.excitation.recent_window)
        ends: list[tuple[int, int, int]] = []  # one node, the other, second
        weight: list[float] = []
        for t, pairs in _group_by_second(self.src, self.dst, self.t):
            for a, b in pairs:
                for node, via in ((a, b), (b, a)):
                    partners = recent.partners(via, node, t)
                    ends += [(node, partner, t) for partner in partners]
                    weight += [self.excitation.closure / len(partners)] * len(partners) if partners else []
            recent.add(pairs, t)
        one, other, when = np.array(ends, np.int64).reshape(-1, 3).T
        return _Kernel.build(one, other, when, np.array(weight, np.float64), self.excitation.closure_delay)


@dataclass(frozen=True)
class SyntheticStream:
    """A generated stream and the process behind it."""

    stream: EventStream
    truth: GroundTruth


def synthetic_stream(
    *,
    nodes: int = 300,
    events: int = 12_000,
    seed: int = 0,
    communities: int | None = None,
    days: float = 60,
    newcomers: float = 0.25,
    excitation: Excitation | None = None,
) -> SyntheticStream:
    """Generate directed events among people of several communities. The same arguments give the same stream.

    Args:
        nodes: number of nodes; some may have no event if events are few.
        events: exact number of events.
        communities: number of communities; by default one for every 30 nodes.
        days: approximate length of the stream. Times are whole seconds from 0, int64; a few of them are equal.
        newcomers: fraction of the nodes that join late.

    Ids are strings such as ``teal-07``: the community and a number within it.

    Examples:
        >>> cordgt.synthetic_stream(nodes=30, events=200).stream.n_events
        200
    """
    if nodes < 4 or events < 1 or days <= 0 or not 0 <= newcomers <= 0.9:
        raise SettingError("A synthetic stream needs nodes >= 4, events >= 1, days > 0 and newcomers in [0, 0.9].")
    n_communities = max(2, round(nodes / 30)) if communities is None else communities
    if not 1 <= n_communities <= nodes // 2:
        raise SettingError(f"communities must lie between 1 and {nodes // 2} for {nodes} nodes; got {n_communities}.")

    rng = np.random.default_rng(seed)
    excitation = excitation or Excitation()
    community = rng.permutation(np.arange(nodes) % n_communities)
    join_time = _sample_join_times(rng, nodes, newcomers, days * DAY)
    base_rate = _sample_base_rates(rng, community)
    lifetime = np.maximum(days * DAY - np.maximum(join_time[:, None], join_time), 0)
    n_base = 2 * events * (1 - _triggered_share(excitation, 2 * events / nodes / (days * DAY)))
    base_rate *= n_base / (base_rate * lifetime).sum()
    initiative = rng.lognormal(0.0, 0.5, nodes)

    src, dst, t = _sample_events(rng, base_rate, initiative, join_time, excitation, events)
    order = _order_of_appearance(src, dst, nodes)
    position = np.argsort(order)
    src, dst = position[src], position[dst]
    names = pa.array(np.array(_node_names(community))[order])
    stream = EventStream.from_columns(
        names.take(pa.array(src)), names.take(pa.array(dst)), t, time=TimeAxis("number"), name="synthetic"
    )
    truth = GroundTruth(
        base_rate=base_rate[np.ix_(order, order)],
        initiative=initiative[order],
        community=community[order],
        join_time=join_time[order],
        excitation=excitation,
        src=src,
        dst=dst,
        t=t,
    )
    return SyntheticStream(stream, truth)


# --- parameters of the process ---


def _sample_join_times(rng: np.random.Generator, nodes: int, newcomers: float, seconds: float) -> Ints:
    """Sample (N,) int64: 0 for nodes present from the start; the others uniform over most of the stream."""
    join_time = np.zeros(nodes, np.int64)
    late = rng.permutation(nodes)[: int(newcomers * nodes)]
    join_time[late] = (rng.uniform(0.05, 0.95, len(late)) * seconds).astype(np.int64)
    return join_time


def _sample_base_rates(rng: np.random.Generator, community: Ints) -> Floats:
    """Sample (N, N) symmetric rates up to a factor: activity of both nodes, community, a heavy-tailed pair effect."""
    n = len(community)
    activity = rng.lognormal(0.0, 0.5, n)
    affinity = np.where(community[:, None] == community, 1.0, 0.003)
    pair_effect = rng.lognormal(0.0, 1.2, (n, n))
    rate = np.triu(np.outer(activity, activity) * affinity * pair_effect, k=1)
    return rate + rate.T


def _triggered_share(excitation: Excitation, events_per_second: float) -> float:
    """Estimate the fraction of triggered events. Closure needs a recent partner, which not every node has."""
    has_partner = 1 - np.exp(-0.6 * events_per_second * excitation.recent_window)
    return float(excitation.repetition + 2 * excitation.closure * has_partner)


def _node_names(community: Ints) -> list[str]:
    """Return one name per node: the community's color (numbered if colors run out) and the node's number in it."""
    seen: dict[int, int] = defaultdict(int)
    names = []
    for c in community.tolist():
        seen[c] += 1
        cycle, colour = divmod(c, len(_COLORS))
        names.append(f"{_COLORS[colour]}{cycle + 1 if cycle else ''}-{seen[c]:02d}")
    return names


def _order_of_appearance(src: Ints, dst: Ints, nodes: int) -> Ints:
    """Return (N,) nodes in order of their first event, then those without events."""
    ids = np.concatenate([np.stack([src, dst], axis=1).ravel(), np.arange(nodes)])
    found, first = np.unique(ids, return_index=True)
    return found[np.argsort(first)]


# --- sampling ---


class _RecentPartners:
    """The recent partners of each node, updated second by second."""

    def __init__(self, nodes: int, window: int) -> None:
        self._last: list[dict[int, int]] = [{} for _ in range(nodes)]
        self._window = window

    def partners(self, node: int, excluded: int, t: int) -> list[int]:
        """Return the partners of ``node`` in the window before ``t``, without ``excluded``; oldest partner first."""
        last = self._last[node]
        for expired in [c for c, when in last.items() if when < t - self._window]:
            del last[expired]
        return [c for c in last if c != excluded]

    def add(self, pairs: list[tuple[int, int]], t: int) -> None:
        """Record the events of the second ``t``."""
        for a, b in pairs:
            self._last[a][b] = self._last[b][a] = t


def _sample_events(
    rng: np.random.Generator, base_rate: Floats, initiative: Floats, join_time: Ints, excitation: Excitation, n: int
) -> tuple[Ints, Ints, Ints]:
    """Sample the first ``n`` events. Each event, from a base rate or triggered, triggers others in later seconds."""
    recent = _RecentPartners(len(base_rate), excitation.recent_window)
    base_events = _sample_base_events(rng, base_rate, join_time)
    queue = [next(base_events)]  # a heap of (second, one node, other node, whether from the base rates)
    events: list[tuple[int, int, int]] = []
    while len(events) < n:
        t, pairs = queue[0][0], []
        while queue[0][0] == t:
            _, a, b, is_base = heapq.heappop(queue)
            pairs.append((a, b))
            if is_base:
                heapq.heappush(queue, next(base_events))
        for a, b in pairs:
            for pair, delay in _sample_triggered(rng, recent, a, b, t, excitation):
                heapq.heappush(queue, (t + delay, *pair, False))
        recent.add(pairs, t)
        for a, b in pairs:
            a_is_src = rng.random() * (initiative[a] + initiative[b]) < initiative[a]
            events.append((a, b, t) if a_is_src else (b, a, t))
    src, dst, when = np.array(events[:n], np.int64).T.copy()
    return src, dst, when


def _sample_base_events(
    rng: np.random.Generator, base_rate: Floats, join_time: Ints
) -> Iterator[tuple[int, int, int, bool]]:
    """Yield endless events from the base rates alone: sampled as if all nodes had joined, then filtered."""
    a, b = np.triu_indices(len(base_rate), k=1)
    cumulative = np.cumsum(base_rate[a, b])
    start, chunk = 0.0, 4096
    while True:
        when = start + np.cumsum(rng.exponential(1 / cumulative[-1], chunk))
        pair = np.searchsorted(cumulative, rng.random(chunk) * cumulative[-1], side="right")
        t = when.astype(np.int64)
        joined = t >= np.maximum(join_time[a[pair]], join_time[b[pair]])
        for second, p in zip(t[joined].tolist(), pair[joined].tolist(), strict=True):
            yield second, int(a[p]), int(b[p]), True
        start = float(when[-1])


def _sample_triggered(
    rng: np.random.Generator, recent: _RecentPartners, a: int, b: int, t: int, excitation: Excitation
) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield the events that one of ``a`` and ``b`` at ``t`` triggers: each a pair and its delay in seconds."""
    for _ in range(rng.poisson(excitation.repetition)):
        yield (a, b), int(rng.geometric(1 / excitation.repetition_delay))
    for node, via in ((a, b), (b, a)):
        partners = recent.partners(via, node, t)
        for _ in range(rng.poisson(excitation.closure) if partners else 0):
            yield (node, partners[rng.integers(len(partners))]), int(rng.geometric(1 / excitation.closure_delay))


def _group_by_second(src: Ints, dst: Ints, t: Ints) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yield each distinct time with the pairs of its events."""
    times, first = np.unique(t, return_index=True)
    ends = np.append(first, len(t))[1:]
    for second, i, j in zip(times.tolist(), first.tolist(), ends.tolist(), strict=True):
        yield second, list(zip(src[i:j].tolist(), dst[i:j].tolist(), strict=True))


# --- rates ---


@dataclass(frozen=True)
class _Kernel:
    """Decaying increments of pairs' rates, sorted by pair, then time.

    ``level`` is the sum of a pair's increments up to and including each one, decayed to its time.
    """

    low: Ints
    high: Ints
    t: Ints
    level: Floats
    decay: float

    @classmethod
    def build(cls, one: Ints, other: Ints, t: Ints, weight: Floats, mean_delay: int) -> _Kernel:
        """An increment w at s adds ``w (1 - decay) decay^(t - s - 1)`` to the rate in each second t > s: w in total."""
        low, high, decay = np.minimum(one, other), np.maximum(one, other), 1 - 1 / mean_delay
        order = np.lexsort((t, high, low))
        low, high, t, weight = low[order], high[order], t[order], weight[order]
        same_pair = np.zeros(len(t), bool)
        same_pair[1:] = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
        carry = np.where(same_pair, decay ** np.diff(t, prepend=t[:1]).clip(0), 0.0)
        level = weight.tolist()
        for i, factor in enumerate(carry.tolist()):
            if factor:
                level[i] += factor * level[i - 1]
        return cls(low, high, t, np.array(level, np.float64), decay)

    def rate_at(self, one: Ints, other: Ints, t: Ints) -> Floats:
        """Return what the increments strictly before ``t`` add to the pair's rate at ``t``."""
        shape, n = t.shape, len(self.t)
        low, high, t = np.minimum(one, other).ravel(), np.maximum(one, other).ravel(), t.ravel()
        is_increment = np.arange(n + len(t)) < n
        # Sort increments and queries together: by pair, then time, a query before the increments of its own second.
        keys = (is_increment, np.append(self.t, t), np.append(self.high, high), np.append(self.low, low))
        order = np.lexsort(keys)
        # Increments stay in their own order, so the latest one so far has the largest index.
        last = np.empty(n + len(t), np.int64)
        last[order] = np.maximum.accumulate(np.where(is_increment[order], order, -1))
        last = last[n:]
        found = last >= 0
        found[found] = (self.low[last[found]] == low[found]) & (self.high[last[found]] == high[found])
        rate = np.zeros(len(t))
        elapsed = t[found] - self.t[last[found]] - 1
        rate[found] = self.level[last[found]] * (1 - self.decay) * self.decay**elapsed
        return rate.reshape(shape)
