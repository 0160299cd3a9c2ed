"""What the fast modules mean, said slowly: plain loops over plain integers, lists and dictionaries.

Nothing here imports from ``cordgt`` or knows an array. Every function can be read as the definition of its fast twin.
Keys of draws are unsigned 64-bit integers; ``signed`` gives the same bits as an int64 tensor holds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PADDING = -1
BITS = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


# Draws ---------------------------------------------------------------------------------------------------------------


def mix(z: int) -> int:
    """The finaliser of splitmix64: every bit of the answer depends on every bit of ``z``."""
    z &= BITS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & BITS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & BITS
    return z ^ (z >> 31)


def child(key: int, v: int) -> int:
    """The key of the ``v``-th thing below ``key``."""
    return mix(key + (v + 1) * GOLDEN)


def root_key(seed: int, epoch: int, root: int, cut: int) -> int:
    """The key of a whole tree."""
    return child(child(child(mix(seed), epoch), root), cut)


def below(key: int, n: int) -> int:
    """A number in [0, n), from the upper half of the key."""
    return ((key >> 32) * n) >> 32


def signed(key: int) -> int:
    """The same 64 bits read as two's complement."""
    return key - (1 << 64) if key >> 63 else key


# Index ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """A stream of events, of which only those with ``keep`` can be seen; positions are those of the whole stream."""

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
        """How often, and when last, the two met among the first ``cut`` events, whichever of them was the source."""
        count, last = 0, 0.0
        for p in self.events_of(node, cut):
            if self.partner(node, p) == other:
                count, last = count + 1, self.elapsed[p]
        return count, last

    def neighbour(self, node: int, rank: int) -> tuple[int, int]:
        """The node met at, and the position of, the ``rank``-th visible event of the node; 0 is its oldest."""
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
    """One place of a tree. ``path`` is the way from the root: which child, of which child, ... ; the root's is ()."""

    path: tuple[int, ...]
    node: int
    pos: int
    cut: int
    key: int


def grow(history: History, parent: Slot, j: int, sampling: str) -> Slot:
    """The ``j``-th child of a slot: an event of its node strictly before the parent's own time, or padding."""
    path, key = (*parent.path, j), child(parent.key, j)
    events = [] if parent.node == PADDING else history.events_of(parent.node, parent.cut)
    rank = below(key, len(events)) if sampling == "uniform" else len(events) - 1 - j
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
        hop = [grow(history, parent, j, sampling) for parent in hop for j in range(n)]
        slots += hop
    return slots


# Distance ------------------------------------------------------------------------------------------------------------


def spatial_distance(node: int, slots: Sequence[Slot], absent: float) -> float:
    """The smallest hop at which the node stands in the tree."""
    hops = [len(slot.path) for slot in slots if slot.node == node and node != PADDING]
    return min(hops) if hops else absent


def temporal_distance(
    history: History, node: int, root: int, t: float, pair_cut: int, alpha: float, beta: float, never_met: float
) -> float:
    """Inverse intensity (by alpha) and recency (by beta) of two nodes' meetings, seen from elapsed time ``t``."""
    if node == PADDING:
        return never_met
    if node == root:
        return 0.0
    count, last = history.pair_history(node, root, pair_cut)
    if count == 0:
        return never_met
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
    train_part: float,
    validation_part: float,
) -> Split:
    t = [float(moment - t[0]) for moment in t]  # since the first event, so that a shift of all times changes nothing

    def border(part: float) -> float:
        return quantile(t, part) if how == "quantile" else part * t[-1]

    first, second = border(train_part), border(train_part + validation_part)
    before = [p for p in range(len(t)) if t[p] <= first]
    validation = [p for p in range(len(t)) if first < t[p] <= second]
    test = [p for p in range(len(t)) if t[p] > second]
    later = {node for p in validation + test for node in (src[p], dst[p])}
    by_key = sorted(later, key=lambda node: child(mix(mask_seed), node))
    masked = set(by_key[: int(mask_nodes * n_nodes)])
    train = [p for p in before if src[p] not in masked and dst[p] not in masked]
    seen = {node for p in train for node in (src[p], dst[p])}
    return Split(train, validation, test, masked, set(range(n_nodes)) - seen)


def inductive(split: Split, src: Sequence[int], dst: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Those of the events that touch a new node."""
    return [p for p in positions if src[p] in split.new or dst[p] in split.new]


# Negatives -----------------------------------------------------------------------------------------------------------


def negative(pool: Sequence[int], dst: int, position: int, seed: int, epoch: int, tag: int) -> int | None:
    """One of the pool but never ``dst``; None where there is no other."""
    others = [node for node in pool if node != dst]
    key = child(child(child(mix(seed), tag), epoch), position)
    return others[below(key, len(others))] if others else None


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
