"""A stream of meetings whose true intensities are known, for the demo and for tests that need the best possible score.

Time runs in whole seconds. In every second each ordered pair of nodes meets a Poisson number of times, with a mean that
depends only on events of *earlier* seconds:

- every pair has its own base rate, heavy-tailed, far higher within a community than across;
- bursts: a meeting raises the rate of the same pair, and the rise fades;
- closing triangles: when ``a`` and ``b`` meet, ``a`` becomes likelier to meet whom ``b`` met lately, and vice versa;
- newcomers: some nodes join their community late, and have no rate before.

Every rise is linear in the past, so the stream is drawn exactly, as a branching process: a meeting begets further
meetings. The number it begets is below one on average, whatever happens, so the stream never runs away.
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

from cordgt.arrays import Floats, Ints
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream, TimeAxis

HOUR = 3600
DAY = 24 * HOUR

_COLOURS = "amber azure coral green indigo ivory jade lilac olive pink ruby slate teal umber".split()


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a meeting leads to others, after geometric delays of at least one second; ``*_after`` is their mean.

    Attributes:
        again: how many meetings of the same pair a meeting begets on average.
        closing: how many meetings each of the two has, on average, with someone whom the other met lately.
        lately: for how many seconds a meeting counts as recent.
    """

    again: float = 0.30
    again_after: int = 3 * HOUR
    closing: float = 0.20
    closing_after: int = 8 * HOUR
    lately: int = 2 * DAY

    def __post_init__(self) -> None:
        if min(self.again, self.closing) < 0 or self.again + 2 * self.closing >= 1:
            raise SettingError(
                f"again + 2 * closing must lie in [0, 1) so that the stream does not run away; "
                f"got again={self.again}, closing={self.closing}."
            )
        if min(self.again_after, self.closing_after, self.lately) < 1:
            raise SettingError("again_after, closing_after and lately must each be at least one second.")


@dataclass(frozen=True)
class Truth:
    """What made the stream. Nodes go by the stream's internal ids; those from ``stream.n_nodes`` on never met anyone.

    Attributes:
        base: (N, N) symmetric, meetings of a pair per second once both have joined, whoever starts them; diagonal 0.
        initiative: (N,) positive; u starts the share ``initiative[u] / (initiative[u] + initiative[v])`` of the
            meetings of u and v.
        community: (N,) the home community.
        joined: (N,) the second from which a node can meet others; 0 for those present from the start.
        src, dst, t: (E,) the events so far, sorted by time.
    """

    base: Floats
    initiative: Floats
    community: Ints
    joined: Ints
    habits: Habits
    src: Ints
    dst: Ints
    t: Ints

    def intensity(self, src: ArrayLike, dst: ArrayLike, t: ArrayLike) -> Floats:
        """Expected events from ``src`` to ``dst`` in the second ``t``, given all events strictly before ``t``.

        The arguments broadcast. 0 where one of the two has not joined yet, and for a node with itself.
        """
        u, v, at = np.broadcast_arrays(np.asarray(src, np.int64), np.asarray(dst, np.int64), np.asarray(t, np.int64))
        present = at >= np.maximum(self.joined[u], self.joined[v])
        rate = np.where(present, self.base[u, v], 0.0) + self._again.at(u, v, at) + self._closing.at(u, v, at)
        share: Floats = self.initiative[u] / (self.initiative[u] + self.initiative[v])
        return rate * share

    def partner_probability(self, src: ArrayLike, dst: ArrayLike, t: ArrayLike) -> Floats:
        """The probability that an event of ``src`` at ``t`` goes to ``dst``, given all events strictly before ``t``.

        On average no score that knows the past tells true from random destinations better. 0 where the intensity is 0.
        """
        rate = self.intensity(src, dst, t)
        u, at = (np.broadcast_to(np.asarray(a, np.int64), rate.shape).reshape(-1, 1) for a in (src, t))
        everyone = np.arange(len(self.base))
        parts = np.array_split(np.arange(rate.size), 1 + rate.size * len(everyone) // 1_000_000)  # bounds the memory
        total = np.concatenate([self.intensity(u[part], everyone, at[part]).sum(axis=1) for part in parts])
        return np.divide(rate, total.reshape(rate.shape), out=np.zeros_like(rate), where=rate > 0)

    @cached_property
    def _again(self) -> _Rises:
        return _Rises.of(self.src, self.dst, self.t, np.full(len(self.t), self.habits.again), self.habits.again_after)

    @cached_property
    def _closing(self) -> _Rises:
        met = _Meetings(len(self.base), self.habits.lately)
        one: list[int] = []
        other: list[int] = []
        when: list[int] = []
        weight: list[float] = []
        for t, pairs in _by_second(self.src, self.dst, self.t):
            for a, b in pairs:
                for end, via in ((a, b), (b, a)):
                    third = met.lately(via, end, t)
                    one += [end] * len(third)
                    other += third
                    when += [t] * len(third)
                    weight += [self.habits.closing / len(third)] * len(third) if third else []
            met.add(pairs, t)
        ends = np.array([one, other, when], np.int64)
        return _Rises.of(ends[0], ends[1], ends[2], np.array(weight, np.float64), self.habits.closing_after)


@dataclass(frozen=True)
class Synthetic:
    """A generated stream and the truth behind it."""

    stream: EventStream
    truth: Truth


def synthetic_stream(
    *,
    nodes: int = 300,
    events: int = 12_000,
    seed: int = 0,
    communities: int | None = None,
    days: float = 60,
    newcomers: float = 0.25,
    habits: Habits | None = None,
) -> Synthetic:
    """Draw a stream of directed events among people of several communities; the same arguments give the same stream.

    Args:
        nodes: how many nodes there are; some may never meet anyone when events are few.
        events: how many events come back, exactly.
        communities: one to about thirty nodes unless told.
        days: how long the stream lasts, roughly. Times are whole seconds from 0, as int64; a few of them are equal.
        newcomers: the share of the nodes that join late.

    Ids are strings such as ``teal-07``: the community and a number within it.
    """
    if nodes < 4 or events < 1 or days <= 0 or not 0 <= newcomers <= 0.9:
        raise SettingError("A synthetic stream needs nodes >= 4, events >= 1, days > 0 and newcomers in [0, 0.9].")
    n_communities = max(2, round(nodes / 30)) if communities is None else communities
    if not 1 <= n_communities <= nodes // 2:
        raise SettingError(f"communities must lie between 1 and {nodes // 2} for {nodes} nodes; got {n_communities}.")

    rng = np.random.default_rng(seed)
    habits = habits or Habits()
    community = rng.permutation(np.arange(nodes) % n_communities)
    joined = _join_times(rng, nodes, newcomers, days * DAY)
    base = _base_rates(rng, community)
    lifetime = np.maximum(days * DAY - np.maximum(joined[:, None], joined), 0)
    base *= 2 * events * (1 - _begotten_share(habits, 2 * events / nodes / (days * DAY))) / (base * lifetime).sum()
    initiative = rng.lognormal(0.0, 0.5, nodes)

    src, dst, t = _draw_events(rng, base, initiative, joined, habits, events)
    order = _first_appearance(src, dst, nodes)
    place = np.argsort(order)
    names = pa.array(np.array(_names(community))[order])
    stream = EventStream.from_columns(
        names.take(pa.array(place[src])), names.take(pa.array(place[dst])), t, time=TimeAxis("number"), name="synthetic"
    )
    truth = Truth(
        base=base[np.ix_(order, order)],
        initiative=initiative[order],
        community=community[order],
        joined=joined[order],
        habits=habits,
        src=place[src],
        dst=place[dst],
        t=t,
    )
    return Synthetic(stream, truth)


# --- the latent parameters ---


def _join_times(rng: np.random.Generator, nodes: int, newcomers: float, seconds: float) -> Ints:
    """(N,) int64: 0 for those present from the start; the others spread evenly over most of the stream."""
    joined = np.zeros(nodes, np.int64)
    late = rng.permutation(nodes)[: int(newcomers * nodes)]
    joined[late] = (rng.uniform(0.05, 0.95, len(late)) * seconds).astype(np.int64)
    return joined


def _base_rates(rng: np.random.Generator, community: Ints) -> Floats:
    """(N, N) symmetric, up to a factor: both ends' activity, nearness of communities, the pair's own heavy tail."""
    n = len(community)
    activity = rng.lognormal(0.0, 0.5, n)
    near = np.where(community[:, None] == community, 1.0, 0.003)
    tail = rng.lognormal(0.0, 1.2, (n, n))
    rate = np.triu(np.outer(activity, activity) * near * tail, k=1)
    return rate + rate.T


def _begotten_share(habits: Habits, meetings_per_second: float) -> float:
    """Roughly which share of the events others beget: triangles close only where a node has met someone else lately."""
    has_company = 1 - np.exp(-0.6 * meetings_per_second * habits.lately)
    return float(habits.again + 2 * habits.closing * has_company)


def _names(community: Ints) -> list[str]:
    """A readable name a node: its community's colour (numbered when the colours run out) and its number in there."""
    seen: dict[int, int] = defaultdict(int)
    names = []
    for c in community.tolist():
        seen[c] += 1
        again, colour = divmod(c, len(_COLOURS))
        names.append(f"{_COLOURS[colour]}{again + 1 if again else ''}-{seen[c]:02d}")
    return names


def _first_appearance(src: Ints, dst: Ints, nodes: int) -> Ints:
    """(N,) the nodes in the order in which the stream shows them, then those it never shows."""
    ids = np.concatenate([np.stack([src, dst], axis=1).ravel(), np.arange(nodes)])
    found, first = np.unique(ids, return_index=True)
    return found[np.argsort(first)]


# --- the drawing ---


class _Meetings:
    """Who met whom lately, kept while going through the events second by second."""

    def __init__(self, nodes: int, lately: int) -> None:
        self._last: list[dict[int, int]] = [{} for _ in range(nodes)]
        self._lately = lately

    def lately(self, node: int, other: int, t: int) -> list[int]:
        """Whom ``node`` met within the last seconds before ``t``, without ``other``; longest known first."""
        last = self._last[node]
        for gone in [c for c, when in last.items() if when < t - self._lately]:
            del last[gone]
        return [c for c in last if c != other]

    def add(self, pairs: list[tuple[int, int]], t: int) -> None:
        """Record the meetings of the second ``t``."""
        for a, b in pairs:
            self._last[a][b] = self._last[b][a] = t


def _draw_events(
    rng: np.random.Generator, base: Floats, initiative: Floats, joined: Ints, habits: Habits, events: int
) -> tuple[Ints, Ints, Ints]:
    """The first ``events`` events, by time: each base meeting and each begotten one begets others at later seconds."""
    met = _Meetings(len(base), habits.lately)
    fresh = _base_meetings(rng, base, joined)
    upcoming = [next(fresh)]  # a heap of (second, one end, other end, whether from the base rates)
    drawn: list[tuple[int, int, int]] = []
    while len(drawn) < events:
        t, pairs = upcoming[0][0], []
        while upcoming[0][0] == t:
            _, a, b, is_fresh = heapq.heappop(upcoming)
            pairs.append((a, b))
            if is_fresh:
                heapq.heappush(upcoming, next(fresh))
        for a, b in pairs:
            for pair, delay in _begotten(rng, met, a, b, t, habits):
                heapq.heappush(upcoming, (t + delay, *pair, False))
        met.add(pairs, t)
        for a, b in pairs:
            a_starts = rng.random() * (initiative[a] + initiative[b]) < initiative[a]
            drawn.append((a, b, t) if a_starts else (b, a, t))
    src, dst, when = np.array(drawn[:events], np.int64).T.copy()
    return src, dst, when


def _base_meetings(rng: np.random.Generator, base: Floats, joined: Ints) -> Iterator[tuple[int, int, int, bool]]:
    """Meetings from the base rates alone, without end: drawn as if all had joined, kept where both have."""
    a, b = np.triu_indices(len(base), k=1)
    share = np.cumsum(base[a, b])
    start, chunk = 0.0, 4096
    while True:
        when = start + np.cumsum(rng.exponential(1 / share[-1], chunk))
        pair = np.searchsorted(share, rng.random(chunk) * share[-1], side="right")
        t = when.astype(np.int64)
        keep = t >= np.maximum(joined[a[pair]], joined[b[pair]])
        for second, p in zip(t[keep].tolist(), pair[keep].tolist(), strict=True):
            yield second, int(a[p]), int(b[p]), True
        start = float(when[-1])


def _begotten(
    rng: np.random.Generator, met: _Meetings, a: int, b: int, t: int, habits: Habits
) -> Iterator[tuple[tuple[int, int], int]]:
    """The further meetings to which one of ``a`` and ``b`` at ``t`` leads: each a pair and its delay in seconds."""
    for _ in range(rng.poisson(habits.again)):
        yield (a, b), int(rng.geometric(1 / habits.again_after))
    for one, via in ((a, b), (b, a)):
        third = met.lately(via, one, t)
        for _ in range(rng.poisson(habits.closing) if third else 0):
            yield (one, third[rng.integers(len(third))]), int(rng.geometric(1 / habits.closing_after))


def _by_second(src: Ints, dst: Ints, t: Ints) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Each distinct time with the pairs that met then."""
    times, first = np.unique(t, return_index=True)
    ends = np.append(first, len(t))[1:]
    for second, i, j in zip(times.tolist(), first.tolist(), ends.tolist(), strict=True):
        yield second, list(zip(src[i:j].tolist(), dst[i:j].tolist(), strict=True))


# --- rates that rise and fade ---


@dataclass(frozen=True)
class _Rises:
    """Rises of pairs' rates, sorted by pair, then time. ``level`` is what has gathered up to and including each."""

    low: Ints
    high: Ints
    t: Ints
    level: Floats
    fade: float

    @classmethod
    def of(cls, one: Ints, other: Ints, t: Ints, weight: Floats, mean_delay: int) -> _Rises:
        """A rise of weight w at s adds ``w (1 - fade) fade^(t - s - 1)`` to the rate at each second t > s: w in all."""
        low, high, fade = np.minimum(one, other), np.maximum(one, other), 1 - 1 / mean_delay
        order = np.lexsort((t, high, low))
        low, high, t, weight = low[order], high[order], t[order], weight[order]
        same_pair = np.zeros(len(t), bool)
        same_pair[1:] = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
        kept = np.where(same_pair, fade ** np.diff(t, prepend=t[:1]).clip(0), 0.0)
        level = weight.tolist()
        for i, share in enumerate(kept.tolist()):
            if share:
                level[i] += share * level[i - 1]
        return cls(low, high, t, np.array(level, np.float64), fade)

    def at(self, one: Ints, other: Ints, t: Ints) -> Floats:
        """What the rises strictly before ``t`` add to the pair's rate at ``t``."""
        shape, n = t.shape, len(self.t)
        low, high, t = np.minimum(one, other).ravel(), np.maximum(one, other).ravel(), t.ravel()
        is_rise = np.arange(n + len(t)) < n
        # Rises and questions in one order: by pair, then time, a question before the rises of its own second.
        keys = (is_rise, np.append(self.t, t), np.append(self.high, high), np.append(self.low, low))
        order = np.lexsort(keys)
        # Rises keep their own order, so the latest so far is the one with the largest place.
        last = np.empty(n + len(t), np.int64)
        last[order] = np.maximum.accumulate(np.where(is_rise[order], order, -1))
        last = last[n:]
        found = last >= 0
        found[found] = (self.low[last[found]] == low[found]) & (self.high[last[found]] == high[found])
        rate = np.zeros(len(t))
        since = t[found] - self.t[last[found]] - 1
        rate[found] = self.level[last[found]] * (1 - self.fade) * self.fade**since
        return rate.reshape(shape)
