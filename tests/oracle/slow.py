"""Slow reference implementations: plain loops over plain integers, lists and dictionaries.

Nothing here imports from ``cordgt`` or uses arrays. Every function is the definition of its fast twin.
Random keys are unsigned 64-bit integers; ``signed`` returns the int64 with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PADDING = -1
BITS = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


# Draws ---------------------------------------------------------------------------------------------------------------


def mix64(z: int) -> int:
    """The finalizer of splitmix64: every bit of the result depends on every bit of ``z``."""
    z &= BITS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & BITS
    return z ^ (z >> 31)


def fold_in(key: int, v: int) -> int:
    """Derive a new key from a key and a number."""
    return mix64(key + (v + 1) * GOLDEN)


def root_key(seed: int, epoch: int, root: int, cut: int) -> int:
    """The key of a whole tree."""
    return fold_in(fold_in(fold_in(mix64(seed), epoch), root), cut)


def randint(key: int, n: int) -> int:
    """An integer in [0, n), from the upper 32 bits of the key."""
    return ((key >> 32) * n) >> 32


def signed(key: int) -> int:
    """The same 64 bits read as two's complement."""
    return key - (1 << 64) if key >> 63 else key


# Index ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """A stream of events, of which only those with ``keep`` are indexed; positions are those of the whole stream."""

    src: Sequence[int]
    dst: Sequence[int]
    elapsed: Sequence[float]
    keep: Sequence[bool]

    def events_of(self, node: int, cut: int) -> list[int]:
        """Positions of the node's visible events among the first ``cut``, oldest first; a self-loop once."""
        found = []
        for p in range(cut):
            if self.keep[p] and (self.src[p] == node or self.dst[p] == node):
                found.append(p)
        return found

    def partner(self, node: int, p: int) -> int:
        """The other end of event ``p``; the node itself in a self-loop."""
        return self.dst[p] if self.src[p] == node else self.src[p]

    def degree(self, node: int, cut: int) -> int:
        return len(self.events_of(node, cut))

    def pair_history(self, node: int, other: int, cut: int) -> tuple[int, float]:
        """Number and last time of the two nodes' events among the first ``cut``, in either direction."""
        count, last = 0, 0.0
        for p in self.events_of(node, cut):
            if self.partner(node, p) == other:
                count, last = count + 1, self.elapsed[p]
        return count, last

    def neighbor(self, node: int, rank: int) -> tuple[int, int]:
        """Neighbor and position of the ``rank``-th visible event of the node; 0 is its oldest."""
        p = self.events_of(node, len(self.src))[rank]
        return self.partner(node, p), p

    def tie_start(self, p: int) -> int:
        """The first position, hidden or not, with the time of event ``p``."""
        while p > 0 and self.elapsed[p - 1] == self.elapsed[p]:
            p -= 1
        return p


# Context -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """A slot of a tree. ``path``: which child, of which child, ... from the root, whose path is ()."""

    path: tuple[int, ...]
    node: int
    pos: int
    cut: int
    key: int


def sample_child(history: History, parent: Slot, j: int, sampling: str) -> Slot:
    """The ``j``-th child of a slot: an event of its node strictly before the parent's own time, or padding."""
    path, key = (*parent.path, j), fold_in(parent.key, j)
    events = [] if parent.node == PADDING else history.events_of(parent.node, parent.cut)
    rank = randint(key, len(events))
    if sampling == "recent":
        rank = len(events) - 1 - j
    if sampling == "mixed" and j % 2 == 1:  # random, latest, random, second latest, ...
        rank = len(events) - 1 - j // 2
    if not events or rank < 0:
        return Slot(path, PADDING, PADDING, 0, key)
    p = events[rank]
    return Slot(path, history.partner(parent.node, p), p, history.tie_start(p), key)


def tree(
    history: History, fanout: Sequence[int], root: int, cut: int, seed: int, epoch: int, sampling: str = "uniform"
) -> list[Slot]:
    """The slots of a tree, hop by hop; within a hop in the order of their parents, then of the children."""
    hop = [Slot((), root, PADDING, cut, root_key(seed, epoch, root, cut))]
    slots = list(hop)
    for n in fanout:
        hop = [sample_child(history, parent, j, sampling) for parent in hop for j in range(n)]
        slots += hop
    return slots


# Recent --------------------------------------------------------------------------------------------------------------


def recent(
    history: History, node: int, t: float, cut: int, n: int, oldest_first: bool
) -> tuple[list[int], list[int], list[float]]:
    """Neighbors, positions and elapsed times of the node's latest ``n`` visible events; then padding."""
    positions = history.events_of(node, cut)[::-1][:n]
    if oldest_first:
        positions = positions[::-1]
    missing = n - len(positions)
    return (
        [history.partner(node, p) for p in positions] + [PADDING] * missing,
        positions + [PADDING] * missing,
        [t - history.elapsed[p] for p in positions] + [0.0] * missing,
    )


def recent_neighbor_mean(
    history: History, table: Sequence[Sequence[float]], node: int, cut: int, n: int
) -> list[float]:
    """Column means over the neighbors in the node's latest ``n`` visible events; 0 without events."""
    neighbors = [history.partner(node, p) for p in history.events_of(node, cut)[::-1][:n]]
    return [sum(table[w][k] for w in neighbors) / max(len(neighbors), 1) for k in range(len(table[0]))]


def count_occurrences(nodes: Sequence[int], others: Sequence[int]) -> list[int]:
    """How often each node occurs among the others; 0 for padding."""
    return [0 if node == PADDING else sum(other == node for other in others) for node in nodes]


# Activity ------------------------------------------------------------------------------------------------------------


def operational_time(t: float, period: float, phase: float, profile: Sequence[float]) -> float:
    """The integral of a periodic profile from 0 to ``t``; ``t`` itself without a profile."""
    if not profile:
        return t
    width = period / len(profile)

    def integral(x: float) -> float:
        whole = math.floor(x / period)
        total = whole * sum(profile) * width
        for b, g in enumerate(profile):
            total += g * min(max(x - whole * period - b * width, 0.0), width)
        return total

    return integral(t + phase) - integral(phase)


def decayed_counts(
    history: History,
    node: int,
    cut: int,
    t: float,
    taus: Sequence[float],
    role: str,
    period: float = 1.0,
    phase: float = 0.0,
    profile: Sequence[float] = (),
) -> tuple[list[float], int, int, float, float]:
    """Decayed counts, number of events in the role and in any role, first and last time in the role.

    A self-loop counts once in each role. A time before the node's last visible event counts as that event's time.
    """
    events = [] if node == PADDING else history.events_of(node, cut)
    ends = {"source": (history.src,), "destination": (history.dst,), "either": (history.src, history.dst)}[role]
    times = [history.elapsed[p] for p in events if any(end[p] == node for end in ends)]
    sums = [0.0] * len(taus)
    for k, tau in enumerate(taus):
        for time in times:
            now = max(t, history.elapsed[events[-1]])
            age = operational_time(now, period, phase, profile) - operational_time(time, period, phase, profile)
            sums[k] += math.exp(-max(age, 0.0) / tau)
    return sums, len(times), len(events), times[0] if times else 0.0, times[-1] if times else 0.0


def is_in_role(history: History, node: int, p: int, role: str) -> bool:
    """Whether the node has the role in event ``p``. In a self-loop it has each role."""
    ends = {"source": (history.src,), "destination": (history.dst,), "either": (history.src, history.dst)}[role]
    return history.keep[p] and any(end[p] == node for end in ends)


def has_event_within(
    history: History, node: int, cut: int, until: float, role: str, partner: int | None = None
) -> bool:
    """Whether the node has an event in the role, with the partner if given, from ``cut`` on and not after a time."""
    for p in range(cut, len(history.src)):
        is_partner = partner is None or history.partner(node, p) == partner
        if history.elapsed[p] <= until and is_in_role(history, node, p, role) and is_partner:
            return True
    return False


def known_nodes(history: History, cut: int, role: str) -> list[int]:
    """Nodes with an event in the role among the first ``cut``: the earliest first, then the smallest number."""
    known: list[int] = []
    for p in range(cut):
        for node in sorted({history.src[p], history.dst[p]}):
            if node not in known and is_in_role(history, node, p, role):
                known.append(node)
    return known


def drift(
    history: History,
    role: str,
    cut: int,
    t: float,
    windows: Sequence[float],
    spacing: float,
    shares: Callable[[int], Sequence[float]],
    hazard: Callable[[int, int, float, float], float],
    pseudo_count: float,
) -> float:
    """The mean over windows of the log of observed to expected active nodes. Only the first ``cut`` events are read.

    Windows end at the last multiple of the spacing that is not after ``t`` and the last visible event. ``shares`` (of
    the multiple) choose known nodes; ``hazard`` (of a node, a cut, a time and a length) is the rates' expectation.
    """
    latest = min(history.elapsed[cut - 1] if cut else 0.0, t)
    number = math.floor(latest / spacing)
    if number * spacing > latest:
        number -= 1
    end, total = number * spacing, 0.0
    for window in windows:
        start = max(end - window, 0.0)
        first = sum(history.elapsed[p] <= start for p in range(cut))
        within = [p for p in range(first, cut) if history.elapsed[p] < end]
        known = known_nodes(history, first, role)
        acted = {u: any(is_in_role(history, u, p, role) for p in within) for u in known}
        expected = {u: 1 - math.exp(-hazard(u, first, start, end - start)) for u in known}
        chosen = [known[int(share * len(known))] for share in shares(number)] if known else []
        observed = sum(acted[u] for u in chosen) + pseudo_count
        total += math.log(observed / (sum(expected[u] for u in chosen) + pseudo_count))
    return total / len(windows)


def interpolate(x: float, points: Sequence[float], values: Sequence[float]) -> float:
    """The value at ``x`` of the broken line through ascending points; its slope is 1 outside them."""
    if x < points[0]:
        return values[0] + (x - points[0])
    if x >= points[-1]:
        return values[-1] + (x - points[-1])
    k = max(k for k, point in enumerate(points) if point <= x)
    return values[k] + (x - points[k]) / (points[k + 1] - points[k]) * (values[k + 1] - values[k])


def running_maximum(values: Sequence[float]) -> list[float]:
    return [max(values[: k + 1]) for k in range(len(values))]


# Walks ---------------------------------------------------------------------------------------------------------------


def step(history: History, node: int, cut: int, key: int, scale: float) -> int | None:
    """The next event of a walk, sampled with weights ``exp(scale * t)``; None if there is none."""
    events = history.events_of(node, cut)
    if not events:
        return None
    latest = history.elapsed[events[-1]]
    weights = [math.exp(scale * (history.elapsed[p] - latest)) for p in events]
    uniform = ((key >> 11) + 1) * 2.0**-53
    rank = next(
        k for k in range(len(events)) if sum(weights[: k + 1]) >= uniform * sum(weights) or k + 1 == len(events)
    )
    return events[rank]


def walk(
    history: History, root: int, cut: int, number: int, length: int, scale: float, seed: int, epoch: int
) -> tuple[list[int], list[int]]:
    """Nodes and positions of the steps of one walk; padding after it ends."""
    node, key = root, fold_in(root_key(seed, epoch, root, cut), number)
    nodes, positions = [], []
    for k in range(length):
        key = fold_in(key, k)
        p = step(history, node, cut, key, scale)
        if p is None:
            return nodes + [PADDING] * (length - k), positions + [PADDING] * (length - k)
        node, cut = history.partner(node, p), history.tie_start(p)
        nodes.append(node)
        positions.append(p)
    return nodes, positions


# Distance ------------------------------------------------------------------------------------------------------------


def spatial_distance(node: int, slots: Sequence[Slot], sd_unseen: float) -> float:
    """The smallest hop at which the node occurs in the tree."""
    hops = [len(slot.path) for slot in slots if slot.node == node and node != PADDING]
    return min(hops) if hops else sd_unseen


def temporal_distance(
    history: History, node: int, root: int, t: float, pair_cut: int, alpha: float, beta: float, td_unseen: float
) -> float:
    """Inverse intensity (times alpha) and recency (times beta) of two nodes' events, seen from time ``t``."""
    if node == PADDING:
        return td_unseen
    if node == root:
        return 0.0
    count, last = history.pair_history(node, root, pair_cut)
    if count == 0:
        return td_unseen
    return alpha * last / (t * count) + beta * (t - last) / t


# Split ---------------------------------------------------------------------------------------------------------------


def quantile(values: Sequence[float], part: float) -> float:
    """The linear quantile of sorted values; interpolated from the nearer neighbour, as numpy does."""
    place = part * (len(values) - 1)
    low = min(math.floor(place), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    share = place - low
    step = values[high] - values[low]
    return values[low] + step * share if share < 0.5 else values[high] - step * (1 - share)


@dataclass(frozen=True)
class Split:
    train: list[int]
    validation: list[int]
    test: list[int]
    masked: set[int]
    new: set[int]


def split_events(
    src: Sequence[int],
    dst: Sequence[int],
    t: Sequence[float],
    n_nodes: int,
    how: str,
    mask_nodes: float,
    mask_seed: int,
    train_ratio: float,
    val_ratio: float,
) -> Split:
    t = [float(moment - t[0]) for moment in t]  # since the first event, so that a shift of all times changes nothing

    def border(part: float) -> float:
        return quantile(t, part) if how == "quantile" else part * t[-1]

    first, second = border(train_ratio), border(train_ratio + val_ratio)
    before = [p for p in range(len(t)) if t[p] <= first]
    validation = [p for p in range(len(t)) if first < t[p] <= second]
    test = [p for p in range(len(t)) if t[p] > second]
    later = {node for p in validation + test for node in (src[p], dst[p])}
    by_key = sorted(later, key=lambda node: fold_in(mix64(mask_seed), node))
    masked = set(by_key[: int(mask_nodes * n_nodes)])
    train = [p for p in before if src[p] not in masked and dst[p] not in masked]
    seen = {node for p in train for node in (src[p], dst[p])}
    return Split(train, validation, test, masked, set(range(n_nodes)) - seen)


def inductive(split: Split, src: Sequence[int], dst: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Those of the events that touch a new node."""
    return [p for p in positions if src[p] in split.new or dst[p] in split.new]


# Negatives -----------------------------------------------------------------------------------------------------------


def negative(
    pool: Sequence[int], dst: int, position: int, seed: int, epoch: int, tag: int, number: int = 0
) -> int | None:
    """One of the pool but never ``dst``; None where there is no other. ``number``: which of several, 0 the first."""
    others = [node for node in pool if node != dst]
    key = fold_in(fold_in(fold_in(mix64(seed), tag), epoch), position)
    key = fold_in(key, number) if number else key
    return others[randint(key, len(others))] if others else None


def past_negative(
    history: History, pool: Sequence[int], random: int, src: int, cut: int, key: int, share: float
) -> int:
    """A past partner of the source with the probability ``share``, if there is one in the pool; else ``random``."""
    events = history.events_of(src, cut)
    is_past = ((key % 2**64 >> 11) + 1) * 2.0**-53 <= share
    if not (is_past and events):
        return random
    partner = history.partner(src, events[randint(mix64(key), len(events))])
    return partner if partner in pool else random


def past_log_ratio(history: History, src: int, dst: int, cut: int, pool_size: int, share: float) -> float:
    """The log of the probability to draw ``dst``, divided by that of a uniform draw."""
    events = history.events_of(src, cut)
    if not events:
        return 0.0
    common = sum(history.partner(src, p) == dst for p in events) / len(events)
    return math.log(((1 - share) / pool_size + share * common) * pool_size)


# Metrics -------------------------------------------------------------------------------------------------------------


def average_precision(pos: Sequence[float], neg: Sequence[float]) -> float:
    """The precision at each distinct score, weighed by the share of positives that have this very score."""
    total = 0.0
    for score in sorted(set(pos) | set(neg), reverse=True):
        found = sum(s >= score for s in pos)
        wrong = sum(s >= score for s in neg)
        total += found / (found + wrong) * sum(s == score for s in pos) / len(pos)
    return total


def area_under_curve(pos: Sequence[float], neg: Sequence[float]) -> float:
    """The share of (positive, negative) pairs in the right order; a tie is half right."""
    right = sum(1.0 if p > n else 0.5 if p == n else 0.0 for p in pos for n in neg)
    return right / (len(pos) * len(neg))


def link_metrics(pos: Sequence[float], neg: Sequence[float], batch_size: int) -> dict[str, float | int | None]:
    if not pos:
        return {"ap": None, "auc": None, "ap_batch": None, "auc_batch": None, "events": 0}
    batches = [(pos[i : i + batch_size], neg[i : i + batch_size]) for i in range(0, len(pos), batch_size)]
    return {
        "ap": average_precision(pos, neg),
        "auc": area_under_curve(pos, neg),
        "ap_batch": sum(average_precision(*batch) for batch in batches) / len(batches),
        "auc_batch": sum(area_under_curve(*batch) for batch in batches) / len(batches),
        "events": len(pos),
    }


def ranking_metrics(ranks: Sequence[float]) -> dict[str, float | None]:
    """The mean of one over the rank, the share of the ranks up to 1, 3 and 10, and the gain of those up to 10."""
    metrics: dict[str, float | None] = {"mrr": sum(1 / rank for rank in ranks) / len(ranks) if ranks else None}
    for k in (1, 3, 10):
        metrics[f"hits@{k}"] = sum(rank <= k for rank in ranks) / len(ranks) if ranks else None
    gains = [1 / math.log2(1 + rank) for rank in ranks if rank <= 10]
    metrics["ndcg@10"] = sum(gains) / len(ranks) if ranks else None
    return metrics


def is_near(score: float, top: float, tolerance: float) -> bool:
    """Whether a score differs from another by at most the tolerance, which grows with the other beyond 1."""
    return abs(score - top) <= tolerance * max(1.0, abs(top))


def merge_near_ties(scores: Sequence[float], tolerance: float) -> list[float]:
    """Take the highest score that is left, give its value to all that are near it, and begin again without them."""
    merged, left = list(scores), list(range(len(scores)))
    while left:
        top = max(scores[i] for i in left)
        for i in left:
            if is_near(scores[i], top, tolerance):
                merged[i] = top
        left = [i for i in left if not is_near(scores[i], top, tolerance)]
    return merged


def mean_rank(true: float, others: Sequence[float], tolerance: float = 0.0) -> float:
    """Halfway between the true score's places when it comes first among its equals and when it comes last.

    Scores near the true one are its equals.
    """
    others = [true if is_near(score, true, tolerance) else score for score in others]
    best_first = sorted([(-true, 0)] + [(-score, 1) for score in others])
    best_last = sorted([(-true, 1)] + [(-score, 0) for score in others])
    return (best_first.index((-true, 0)) + 1 + best_last.index((-true, 1)) + 1) / 2


# Harder negatives ----------------------------------------------------------------------------------------------------


def partners(
    history: History, pool: Sequence[int], node: int, cut: int, now: Sequence[int], since: int = 0
) -> list[int]:
    """Those of the pool whom the node met among the first ``cut`` events and meets in none of the events ``now``.

    And whom it met at no time before ``since``. Ascending; who was the source is of no account.
    """
    met = {history.partner(node, p) for p in history.events_of(node, cut)}
    too_early = {history.partner(node, p) for p in history.events_of(node, min(since, len(history.src)))}
    meets_now = {history.partner(node, p) for p in history.events_of(node, len(history.src)) if p in now}
    return sorted((met & set(pool)) - too_early - meets_now)


def partner(
    history: History,
    pool: Sequence[int],
    node: int,
    cut: int,
    now: Sequence[int],
    position: int,
    since: int,
    seed: int,
    tag: int,
) -> int:
    """One of the ``partners``; padding where there are none."""
    fit = partners(history, pool, node, cut, now, since)
    key = fold_in(fold_in(fold_in(mix64(seed), tag), 0), position)
    return fit[randint(key, len(fit))] if fit else PADDING


Pair = tuple[int, int]


def past_pairs(
    src: Sequence[int], dst: Sequence[int], t: Sequence[float], batch: Sequence[int], trained_until: float | None
) -> set[Pair]:
    """The pairs up to the time of the batch's first event, without those of its own times and those of training."""
    start, end = t[batch[0]], t[batch[-1]]
    events = range(len(t))
    past = {(src[p], dst[p]) for p in events if t[p] <= start}
    own = {(src[p], dst[p]) for p in events if start <= t[p] <= end}
    trained = {(src[p], dst[p]) for p in events if trained_until is not None and t[p] <= trained_until}
    return past - own - trained


def pairs(
    src: Sequence[int],
    dst: Sequence[int],
    t: Sequence[float],
    batches: Sequence[Sequence[int]],
    trained_until: float | None,
    seed: int,
) -> list[list[Pair]]:
    """Of each batch's ``past_pairs`` as many as it has events, in the order of their keys; all if they are fewer."""
    number = {pair: i for i, pair in enumerate(sorted(set(zip(src, dst, strict=True))))}
    found = []
    for b, batch in enumerate(batches):
        fit = past_pairs(src, dst, t, batch, trained_until)
        key = fold_in(mix64(seed), b)
        found.append(sorted(fit, key=lambda pair, key=key: fold_in(key, number[pair]))[: len(batch)])
    return found


def random_pairs(src: Sequence[int], dst: Sequence[int], n: int, absent: set[Pair], key: int) -> list[Pair]:
    """``n`` times any source with any destination, drawn again while the pair is in ``absent``, at most 64 times."""
    sources, destinations = sorted(set(src)), sorted(set(dst))
    found = []
    for i in range(n):
        for attempt in range(64):
            draw = fold_in(fold_in(key, attempt), i)
            pair = (
                sources[randint(fold_in(draw, 0), len(sources))],
                destinations[randint(fold_in(draw, 1), len(destinations))],
            )
            if pair not in absent:
                break
        found.append(pair)
    return found


def candidates(pool: Sequence[int], n: int, dst: int, position: int, seed: int, tag: int) -> list[int]:
    """``n`` of the pool without ``dst``, or all of them.

    Each draw reaches one further than the last; where it hits one that is taken, the newest in reach stands in (Floyd).
    """
    others = [node for node in pool if node != dst]
    if n >= len(pool):
        return others
    key = fold_in(fold_in(fold_in(mix64(seed), tag), 0), position)
    chosen: list[int] = []
    for j in range(n):
        newest = len(others) - n + j
        index = randint(fold_in(key, j), newest + 1)
        chosen.append(newest if index in chosen else index)
    return [others[i] for i in chosen]


# Evaluation ----------------------------------------------------------------------------------------------------------


class Edgebank:
    """1 for a pair that met not longer ago than a share of the time gone by, 0 for any other."""

    def __init__(self, window: float = 1.0) -> None:
        self.window = window

    def score(self, history: History, src: int, dst: int, t: float, cut: int, pair_cut: int) -> float:
        last: dict[frozenset[int], float] = {}
        for p in range(pair_cut):
            last[frozenset((history.src[p], history.dst[p]))] = history.elapsed[p]
        pair = frozenset((src, dst))
        return float(pair in last and t - last[pair] <= self.window * t)


class Popularity:
    """How many events the destination was part of, among the latest ``window`` or all."""

    def __init__(self, window: int = 0) -> None:
        self.window = window

    def score(self, history: History, src: int, dst: int, t: float, cut: int, pair_cut: int) -> float:
        start = max(cut - self.window, 0) if self.window else 0
        return float(sum(dst in (history.src[p], history.dst[p]) for p in range(start, cut)))


@dataclass(frozen=True)
class ItemKnn:
    """Votes of the visitors of the source's latest partners, for what they met around that visit."""

    num_partners: int
    num_visitors: int
    window: int
    decay: float
    unit: int = 2**19

    def votes(self, history: History, src: int, dst: int, cut: int) -> int:
        total = 0
        for j, p in enumerate(history.events_of(src, cut)[::-1][: self.num_partners]):
            age, partner = round(self.unit * self.decay**j), history.partner(src, p)
            if partner == dst:
                total += age * self.unit
                continue
            visits = history.events_of(partner, cut)[-self.num_visitors :]
            for q in visits:
                visitor = history.partner(partner, q)
                row = history.events_of(visitor, cut)
                earlier = sum(history.elapsed[e] < history.elapsed[q] for e in row)
                for lag in range(-self.window, self.window + 1):
                    place = earlier + lag
                    if visitor != src and 0 <= place < len(row) and history.partner(visitor, row[place]) == dst:
                        weight = (2 if lag > 0 else 1) * self.unit // (1 + abs(lag))
                        total += age * weight // len(visits)
        return total


@dataclass(frozen=True)
class Question:
    """What is asked of one event, and how far its answer may look."""

    position: int
    cut: int
    pair_cut: int
    negative: Pair
    at_random: bool
    candidates: list[int]


@dataclass(frozen=True)
class Evaluation:
    """A split under the rules of a protocol; ``rules`` has its fields by name."""

    history: History
    n_nodes: int
    split: Split
    rules: Any
    tag: int

    def positions_and_pool(self, part: str, setting: str) -> tuple[list[int], list[int]]:
        """The positions, and the pool of their negatives."""
        src, dst = self.history.src, self.history.dst
        positions = {"validation": self.split.validation, "test": self.split.test}[part]
        everyone = set(range(self.n_nodes)) if self.rules.pool == "nodes" else set(dst)
        own = everyone
        if setting == "inductive":
            positions = inductive(self.split, src, dst, positions)
            own = everyone if self.rules.pool == "nodes" else {dst[p] for p in positions}
        if self.rules.positives == "new":
            positions = [p for p in positions if dst[p] not in self.met(src[p], self.own_time(p)[0])]
        return positions, sorted(own if len(own) >= 2 else everyone)

    def met(self, node: int, cut: int) -> set[int]:
        """Everyone the node has an event with among the first ``cut``."""
        return {self.history.partner(node, p) for p in self.history.events_of(node, cut)}

    def recommendable(self, node: int, cut: int, pair_cut: int) -> set[int]:
        """The destinations of earlier events, without those the node has met if these are filtered out."""
        known = set(self.history.dst[:cut])
        return known - self.met(node, pair_cut) if self.rules.filter == "seen" else known

    def is_ranked(self, q: Question) -> bool:
        """Whether the true destination is known, if the protocol ranks known destinations only."""
        return self.rules.filter == "none" or self.history.dst[q.position] in self.history.dst[: q.cut]

    def own_time(self, position: int) -> list[int]:
        """All events with the time of this one."""
        elapsed = self.history.elapsed
        return [p for p in range(len(elapsed)) if elapsed[p] == elapsed[position]]

    def questions(self, part: str, setting: str) -> list[Question]:
        history, rules, seed = self.history, self.rules, self.rules.eval_seed
        positions, pool = self.positions_and_pool(part, setting)
        ranked = pool if rules.filter == "none" else self.positions_and_pool(part, "transductive")[1]
        batches = [positions[i : i + rules.eval_batch_size] for i in range(0, len(positions), rules.eval_batch_size)]
        first_after_training = self.split.validation[0]
        whole_pairs = self.negative_pairs(part, setting, batches) if rules.negatives.endswith("-pairs") else None
        found = []
        for b, batch in enumerate(batches):
            for i, p in enumerate(batch):
                now = self.own_time(p)
                so_far = min(now[0], batch[0])
                cut = so_far if rules.visibility == "batch" else now[0]
                pair_cut = now[0] if rules.visibility == "event" else so_far
                u, v = history.src[p], history.dst[p]
                one = (u, negative(pool, v, p, seed, 0, self.tag))
                at_random = rules.negatives not in ("random", "random-any")
                if rules.negatives == "random-any":
                    one = (u, pool[randint(fold_in(fold_in(fold_in(mix64(seed), self.tag), 0), p), len(pool))])
                elif rules.negatives in ("historical", "inductive"):
                    since = 0 if rules.negatives == "historical" else first_after_training
                    other = partner(history, pool, u, cut, now, p, since, seed, self.tag)
                    if other != PADDING:
                        one, at_random = (u, other), False
                elif whole_pairs is not None:
                    past, at_random_pairs = whole_pairs[b]
                    one, at_random = (past + at_random_pairs)[i], i >= len(past)
                competing = []
                if rules.ranking != "none":
                    n = len(ranked) if rules.ranking == "all" else int(rules.ranking)
                    also_true = {history.dst[q] for q in now if history.src[q] == u}
                    competing = [w for w in candidates(ranked, n, v, p, seed, self.tag) if w not in also_true]
                    if rules.filter != "none":
                        competing = [w for w in competing if w in self.recommendable(u, cut, pair_cut)]
                found.append(Question(p, cut, pair_cut, one, at_random, competing))
        return found

    def negative_pairs(self, part: str, setting: str, batches: list[list[int]]) -> list[tuple[list[Pair], list[Pair]]]:
        """Each batch's past pairs and the random pairs that fill up: of all events, or of the inductive ones."""
        events = range(len(self.history.src)) if setting == "transductive" else [p for batch in batches for p in batch]
        src, dst, t = ([x[p] for p in events] for x in (self.history.src, self.history.dst, self.history.elapsed))
        place = {p: i for i, p in enumerate(events)}
        last = {"validation": self.split.train, "test": self.split.validation}[part][-1]
        seen_until = self.history.elapsed[last] if self.rules.negatives == "inductive-pairs" else None
        own = [[place[p] for p in batch] for batch in batches]
        key = fold_in(mix64(self.rules.eval_seed), self.tag)
        found = []
        for b, past in enumerate(pairs(src, dst, t, own, seen_until, self.rules.eval_seed)):
            true = {(src[i], dst[i]) for i in own[b]}
            found.append((past, random_pairs(src, dst, len(own[b]) - len(past), true, fold_in(key, b))))
        return found

    def metrics(self, model: Edgebank | Popularity, part: str, setting: str) -> dict[str, float | int | None]:
        pos, neg, ranks, at_random, unknown = [], [], [], 0, 0
        for q in self.questions(part, setting):
            u, v, t = self.history.src[q.position], self.history.dst[q.position], self.history.elapsed[q.position]

            def score(a: int, b: int, q: Question = q, t: float = t) -> float:
                return model.score(self.history, a, b, t, q.cut, q.pair_cut)

            pos.append(score(u, v))
            neg.append(score(*q.negative))
            at_random += q.at_random
            if self.is_ranked(q):
                ranks.append(mean_rank(pos[-1], [score(u, w) for w in q.candidates]))
            unknown += not self.is_ranked(q)
        found = link_metrics(pos, neg, self.rules.eval_batch_size)
        if self.rules.negatives != "random":
            found["random_negatives"] = at_random
        if self.rules.ranking != "none":
            found |= ranking_metrics(ranks)
        if self.rules.filter != "none":
            found["unknown_destinations"] = unknown
        return found

    def list_metrics(self, model: Edgebank | Popularity, part: str, setting: str, tolerance: float) -> dict[str, Any]:
        """Recall, coverage, novelty, and groups by history, of the ten best of every question."""
        ranks: dict[int, list[float]] = {}
        groups: dict[str, list[float]] = {}
        novelty, listed, known = [], set(), set()
        for q in filter(self.is_ranked, self.questions(part, setting)):
            u, v, t = self.history.src[q.position], self.history.dst[q.position], self.history.elapsed[q.position]
            scores = {w: model.score(self.history, u, w, t, q.cut, q.pair_cut) for w in [v, *q.candidates]}
            rank = mean_rank(scores[v], [scores[w] for w in q.candidates], tolerance)
            top = sorted(sorted(scores), key=lambda w, scores=scores: -scores[w])[:10]
            novelty.append(
                sum(-math.log2(max(self.history.degree(w, q.cut), 1) / max(q.cut, 1)) for w in top) / len(top)
            )
            listed |= set(top)
            known |= set(self.history.dst[: q.cut])
            ranks.setdefault(u, []).append(rank)
            length = self.history.degree(u, q.cut)
            name = next(n for n, low in (("10–31", 10), ("3–9", 3), ("1–2", 1), ("none", 0)) if length >= low)
            groups.setdefault(name, []).append(rank)
        if not ranks:
            return {"recall@10": None, "coverage@10": None, "novelty@10": None, "by_history": {}}
        shares = [sum(rank <= 10 for rank in own) / len(own) for own in ranks.values()]
        by_history = {
            name: {"events": len(own)} | {k: ranking_metrics(own)[k] for k in ("mrr", "hits@10", "ndcg@10")}
            for name, own in groups.items()
        }
        return {
            "recall@10": sum(shares) / len(shares),
            "coverage@10": len(listed) / max(len(known), len(listed)),
            "novelty@10": sum(novelty) / len(novelty),
            "by_history": by_history,
        }


# Pair features -------------------------------------------------------------------------------------------------------


def to_event_count(elapsed: float, t: float, cut: int) -> float:
    """Average number of stream events in an elapsed time."""
    return elapsed / t * cut if t > 0 else 0.0


def log_scaled(values: Sequence[float]) -> list[float]:
    """Counts and ages as the features hold them."""
    return [0.25 * math.log(1 + x) for x in values]


def last_interaction(history: History, node: int, other: int, cut: int) -> int:
    """The position of the last event of the two among the first ``cut``; -1 if there is none."""
    return max((p for p in history.events_of(node, cut) if history.partner(node, p) == other), default=-1)


def relate(history: History, w: int, tree: Sequence[Slot], t: float, cut: int, pair_cut: int) -> list[float]:
    """Occurrences of a node in a tree, and count and age of its events with the root."""
    count, last = history.pair_history(w, tree[0].node, pair_cut)
    return [sum(slot.node == w for slot in tree), count, to_event_count(t - last, t, cut)]


def slot_features(
    history: History, slot: Slot, own: Sequence[Slot], other: Sequence[Slot] | None, t: float, cut: int, pair_cut: int
) -> list[float]:
    """The features of a slot of the tree ``own``, relative to it and to the other tree, if there is one."""
    if slot.node == PADDING:
        return [0.0] * 10
    filled, w = slot.pos >= 0, slot.node
    age = to_event_count(t - history.elapsed[slot.pos], t, cut) if filled else 0.0
    near = [age, cut - slot.pos if filled else 0, history.degree(w, cut), *relate(history, w, own, t, cut, pair_cut)]
    sent = 0.0 if not filled else 1.0 if history.src[slot.pos] == w else -1.0
    far = [0.0] * 3 if other is None else relate(history, w, other, t, cut, pair_cut)
    return [*log_scaled(near), sent, *log_scaled(far)]


def pair_features(history: History, u: int, v: int, t: float, cut: int, pair_cut: int) -> list[float]:
    """The features of a pair."""
    begins = [max(cut - window, 0) for window in (64, 512, 4096, 32768)]
    (count, met), last = history.pair_history(u, v, pair_cut), last_interaction(history, u, v, pair_cut)
    latest = [max(history.events_of(end, cut), default=-1) for end in (u, v)]
    known = [
        count,
        to_event_count(t - met, t, cut),
        *(history.degree(end, cut) - history.degree(end, last + 1) for end in (u, v)),
        *(history.degree(end, cut) for end in (u, v)),
        *(to_event_count(t - (history.elapsed[p] if p >= 0 else 0.0), t, cut) for p in latest),
        *(history.degree(end, cut) - history.degree(end, begin) for end in (u, v) for begin in begins),
        *(count - history.pair_history(u, v, min(begin, pair_cut))[0] for begin in begins),
    ]
    return [*log_scaled(known), 0.0 if last < 0 else 1.0 if history.src[last] == u else -1.0]


# Similar nodes -------------------------------------------------------------------------------------------------------


def partner_weights(history: History, node: int, t: float, cut: int, half_life: float) -> dict[int, float]:
    """Decayed number of events with each partner."""
    weights: dict[int, float] = {}
    for p in history.events_of(node, cut):
        other = history.partner(node, p)
        weights[other] = weights.get(other, 0.0) + 2 ** (-(t - history.elapsed[p]) / half_life)
    return weights


def similar_nodes(
    history: History, n_nodes: int, node: int, t: float, cut: int, half_life: float, *, use_bm25: bool
) -> dict[int, tuple[float, int]]:
    """Score and number of shared partners of every node that shares one with ``node``, which is included."""
    vectors = {n: partner_weights(history, n, t, cut, half_life) for n in range(n_nodes)}
    if use_bm25:
        n_visible = sum(history.degree(n, cut) > 0 for n in range(n_nodes))
        mean_degree = max(1.0, 2 * cut / max(n_visible, 1))
        for n, vector in vectors.items():
            length = 1.2 * (0.25 + 0.75 * history.degree(n, cut) / mean_degree)
            for p, w in vector.items():
                n_partners = sum(history.pair_history(p, other, cut)[0] > 0 for other in range(n_nodes))
                vector[p] = math.log1p(n_visible / n_partners) * w * 2.2 / (w + length)
    found = {}
    for n, vector in vectors.items():
        both = [p for p in vector if p in vectors[node]]
        score = sum(vector[p] * vectors[node][p] for p in both)
        if not use_bm25:
            length = math.prod(math.sqrt(sum(w * w for w in v.values())) for v in (vector, vectors[node]))
            score = score / length if length > 0 else 0.0
        if both:
            found[n] = (score, len(both))
    return found
