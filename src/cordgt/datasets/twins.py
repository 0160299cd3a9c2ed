"""Twins: generated streams with the published sizes of datasets that cannot be had, for speed and memory.

A twin has the dataset's numbers of nodes, events and distinct pairs, exactly, its two sides or its one, its span and
roughly its number of distinct times, and a skew of degrees and of meetings a pair that was calibrated on real streams:
those of the dataset itself where it is at hand, of its kind where it is not. It says nothing about how well a model
predicts, and is always named a twin.

It is drawn in three steps, each with a heavy tail (log-normal) of its own:

- *pairs*: every node meets someone once, then pairs of a drawn source and a drawn destination until there are enough;
- *meetings*: every pair meets once, then the remaining events fall on drawn pairs;
- *times*: a pair first meets at any time, evenly; each further meeting follows after an exponential delay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cordgt.arrays import Floats, Ints
from cordgt.errors import DataError, nearest
from cordgt.events.stream import EventStream, TimeAxis

ENDING = "-twin"
_PATIENCE = 30  # rounds of drawing pairs by weight before the rest is drawn evenly: crowded streams have few left


@dataclass(frozen=True, kw_only=True)
class Twin:
    """What a twin is drawn from.

    Attributes:
        nodes, events, pairs: exact; pairs are ordered. sources: how many of the nodes are sources where there are two
            sides, None where any node may be either.
        days: from the first event to the last, about: 2 events / (nodes * the paper's intensity).
        moments: times lie on a grid of so many steps; most of them are used.
        src_tail, dst_tail, pair_tail: sigma of the log-normal weights of sources, destinations and pairs.
        crowded: most pairs have met, so that an active node cannot have many more partners than others: the weights of
            the nodes then say how often a pair meets again, and pairs are drawn evenly.
        lasts: the mean delay of a further meeting, as a share of the span.
        like: the stream whose skew it was calibrated on.
    """

    nodes: int
    events: int
    pairs: int
    sources: int | None
    days: float
    moments: int
    src_tail: float
    dst_tail: float
    pair_tail: float
    lasts: float
    like: str
    crowded: bool = False

    @property
    def sides(self) -> tuple[int, int]:
        """How many sources and destinations there may be."""
        return (self.nodes, self.nodes) if self.sources is None else (self.sources, self.nodes - self.sources)

    def scaled(self, by: float) -> Twin:
        """The same kind of stream with ``by`` times the nodes, pairs and events, over the same span."""
        if by == 1:
            return self
        nodes, events = max(8, round(self.nodes * by)), max(16, round(self.events * by))
        sources = None if self.sources is None else max(2, round(self.sources * by))
        most = nodes * (nodes - 1) if sources is None else sources * (nodes - sources)
        pairs = min(max(nodes, round(self.pairs * by)), events, most // 2)
        return replace(self, nodes=nodes, events=events, pairs=pairs, sources=sources)


TWINS: dict[str, Twin] = {
    "wikipedia-twin": Twin(
        nodes=9_227,
        events=157_474,
        pairs=18_257,
        sources=8_227,
        days=31.1,
        moments=2_687_000,
        src_tail=1.95,
        dst_tail=0.0,
        pair_tail=2.1,
        lasts=0.003,
        like="wikipedia",
    ),
    "reddit-twin": Twin(
        nodes=10_984,
        events=672_447,
        pairs=78_516,
        sources=10_000,
        days=31.0,
        moments=67_000_000,
        src_tail=1.77,
        dst_tail=0.0,
        pair_tail=2.23,
        lasts=0.003,
        like="wikipedia",
    ),
    "lastfm-twin": Twin(
        nodes=1_980,
        events=1_293_103,
        pairs=154_993,
        sources=980,
        days=30.0,
        moments=88_000_000,
        src_tail=1.9,
        dst_tail=0.75,
        pair_tail=0.1,
        lasts=0.2,
        like="lastfm_prefix",
        crowded=True,
    ),
    "social_evolution-twin": Twin(
        nodes=74,
        events=2_099_519,
        pairs=4_486,
        sources=None,
        days=240.6,
        moments=581_500,
        src_tail=1.2,
        dst_tail=0.58,
        pair_tail=1.61,
        lasts=0.3,
        like="socialevo_month",
        crowded=True,
    ),
    "flights-twin": Twin(
        nodes=13_169,
        events=1_927_145,
        pairs=395_072,
        sources=None,
        days=240.2,
        moments=122,
        src_tail=1.63,
        dst_tail=1.66,
        pair_tail=1.52,
        lasts=0.3,
        like="uci",
    ),
    "outdoors-twin": Twin(
        nodes=223_777,
        events=1_192_397,
        pairs=734_240,
        sources=41_489,
        days=721.3,
        moments=62_320_000,
        src_tail=1.55,
        dst_tail=0.8,
        pair_tail=2.12,
        lasts=0.02,
        like="gowalla_subset",
    ),
    "food-twin": Twin(
        nodes=673_858,
        events=2_708_688,
        pairs=1_667_917,
        sources=124_935,
        days=360.6,
        moments=31_160_000,
        src_tail=1.55,
        dst_tail=0.8,
        pair_tail=2.14,
        lasts=0.02,
        like="gowalla_subset",
    ),
}


def is_twin(name: str) -> bool:
    """Whether a stream of that name can be generated here."""
    return name in TWINS


def twin_of(name: str) -> str:
    """The dataset that a twin is of; other names come back as they are."""
    return name.removesuffix(ENDING)


def twin_stream(name: str, *, scale: float = 1.0, seed: int = 0) -> EventStream:
    """The twin of that name, such as ``food-twin``; the same arguments give the same stream.

    ``scale`` multiplies nodes, pairs and events. DataError, with the nearest name, where there is no such twin.
    """
    if name not in TWINS:
        raise DataError(f"There is no twin '{name}'.{nearest(name, TWINS)} Known twins: {', '.join(TWINS)}.")
    twin = TWINS[name].scaled(scale)
    src, dst, t = draw(twin, seed)
    called = name if scale == 1 else f"{name}, {scale:g} times its size"
    of = twin_of(name)
    note = f"a twin of {of}: generated with its numbers of nodes, events and pairs, and the skew of {twin.like}"
    return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name=called, notes=(f"{note}; not {of}",))


def draw(twin: Twin, seed: int = 0) -> tuple[Ints, Ints, Floats]:
    """Sources, destinations and times in seconds, (E,) each, sorted. Sources count from 0, destinations after them."""
    rng = np.random.default_rng(seed)
    n_src, n_dst = twin.sides
    of_src, of_dst = rng.lognormal(0.0, twin.src_tail, n_src), rng.lognormal(0.0, twin.dst_tail, n_dst)
    of_pair = rng.lognormal(0.0, twin.pair_tail, twin.pairs)
    if twin.crowded:
        src, dst = _pairs(rng, twin, np.ones(n_src), np.ones(n_dst))
        of_pair *= of_src[src] * of_dst[dst]
    else:
        src, dst = _pairs(rng, twin, of_src, of_dst)
    further = _drawn(rng, np.cumsum(of_pair), twin.events - twin.pairs)
    first = rng.random(twin.pairs)
    later = first[further] + rng.exponential(twin.lasts, len(further))
    late = np.flatnonzero(later >= 1)  # past the end: some time between the first meeting and it
    later[late] = first[further[late]] + (1 - first[further[late]]) * rng.random(len(late))
    when = np.concatenate([first, later])
    order = np.argsort(when, kind="stable")
    pair = np.concatenate([np.arange(twin.pairs), further])[order]
    seconds = np.floor(when[order] * twin.moments) * (twin.days * 86_400 / twin.moments)
    return src[pair], dst[pair] if twin.sources is None else dst[pair] + n_src, seconds


def _pairs(rng: np.random.Generator, twin: Twin, of_src: Floats, of_dst: Floats) -> tuple[Ints, Ints]:
    """Distinct pairs, as many as the twin has, that touch every node; no node with itself. Both sides count from 0."""
    n_src, n_dst = twin.sides
    sums_src, sums_dst = np.cumsum(of_src), np.cumsum(of_dst)
    if twin.sources is None:
        everyone = rng.permutation(twin.nodes)
        src, dst = np.append(everyone, everyone[: twin.nodes % 2]).reshape(2, -1)
    else:
        n = max(n_src, n_dst)
        src = np.append(rng.permutation(n_src), _drawn(rng, sums_src, n - n_src))
        dst = np.append(rng.permutation(n_dst), _drawn(rng, sums_dst, n - n_dst))
    key = _distinct(src * n_dst + dst)
    rounds = 0
    while len(key) < twin.pairs:
        n = (twin.pairs - len(key)) * 9 // 8 + 16
        if rounds < _PATIENCE:
            src, dst = _drawn(rng, sums_src, n), _drawn(rng, sums_dst, n)
        else:
            src, dst = rng.integers(n_src, size=n), rng.integers(n_dst, size=n)
        apart = src != dst if twin.sources is None else slice(None)
        key = _distinct(np.append(key, (src * n_dst + dst)[apart]))
        rounds += 1
    return key[: twin.pairs] // n_dst, key[: twin.pairs] % n_dst


def _distinct(key: Ints) -> Ints:
    """Each value once, in order of first appearance."""
    first = np.unique(key, return_index=True)[1]
    return key[np.sort(first)]


def _drawn(rng: np.random.Generator, sums: Floats, n: int) -> Ints:
    """n numbers below ``len(sums)``, each as likely as its weight says."""
    at = np.searchsorted(sums, rng.random(n) * sums[-1], side="right")
    return np.minimum(at, len(sums) - 1)
