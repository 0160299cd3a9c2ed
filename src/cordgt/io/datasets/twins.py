"""Twins: generated streams with the published sizes of datasets that are not available, for speed and memory tests.

A twin has exactly the dataset's numbers of nodes, events and distinct pairs, and is bipartite if the dataset is. It has
the same time span and nearly as many distinct times. The skew of its degrees and of its events per pair was calibrated
on a real stream: the dataset itself if available, otherwise a similar one. A twin says nothing about how well a model
predicts, and its name always ends in ``-twin``.

Sampling takes three steps, each with log-normal weights:

- *pairs*: every node gets one partner, then sources and destinations are sampled until there are enough pairs;
- *events*: every pair gets one event, then the remaining events go to sampled pairs;
- *times*: a pair's first event is uniform in time; each further one follows after an exponential delay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cordgt.errors import DataError, did_you_mean
from cordgt.events.arrays import Floats, Ints
from cordgt.events.stream import EventStream, TimeAxis

TWIN_SUFFIX = "-twin"
_MAX_WEIGHTED_ROUNDS = 30  # then pairs are sampled uniformly: a dense stream has few new ones of high weight left


@dataclass(frozen=True, kw_only=True)
class Twin:
    """Parameters of a twin.

    Attributes:
        nodes, events, pairs: exact counts; pairs are ordered.
        sources: the number of source nodes if bipartite; None if any node may be a source or a destination.
        days: approximate time span, 2 events / (nodes * the paper's intensity).
        n_times: times lie on a grid of this many steps; most of them are used.
        src_sigma, dst_sigma, pair_sigma: sigma of the log-normal weights of sources, destinations and pairs.
        mean_delay: of a further event of a pair, as a fraction of the span.
        calibrated_on: the stream that the skew was calibrated on.
        is_dense: most possible pairs occur, so that active nodes cannot have many more partners than others. Pairs are
            then sampled uniformly, and the nodes' weights decide how often a pair repeats.
    """

    nodes: int
    events: int
    pairs: int
    sources: int | None
    days: float
    n_times: int
    src_sigma: float
    dst_sigma: float
    pair_sigma: float
    mean_delay: float
    calibrated_on: str
    is_dense: bool = False

    @property
    def sides(self) -> tuple[int, int]:
        """The numbers of possible sources and destinations."""
        return (self.nodes, self.nodes) if self.sources is None else (self.sources, self.nodes - self.sources)

    def scaled(self, factor: float) -> Twin:
        """Return the parameters of a stream with ``factor`` times the nodes, pairs and events, over the same span."""
        if factor == 1:
            return self
        nodes, events = max(8, round(self.nodes * factor)), max(16, round(self.events * factor))
        sources = None if self.sources is None else max(2, round(self.sources * factor))
        n_possible = nodes * (nodes - 1) if sources is None else sources * (nodes - sources)
        pairs = min(max(nodes, round(self.pairs * factor)), events, n_possible // 2)
        return replace(self, nodes=nodes, events=events, pairs=pairs, sources=sources)


# fmt: off
TWINS: dict[str, Twin] = {
    "wikipedia-twin": Twin(
        nodes=9_227, events=157_474, pairs=18_257, sources=8_227, days=31.1, n_times=2_687_000,
        src_sigma=1.95, dst_sigma=0.0, pair_sigma=2.1, mean_delay=0.003, calibrated_on="wikipedia",
    ),
    "reddit-twin": Twin(
        nodes=10_984, events=672_447, pairs=78_516, sources=10_000, days=31.0, n_times=67_000_000,
        src_sigma=1.77, dst_sigma=0.0, pair_sigma=2.23, mean_delay=0.003, calibrated_on="wikipedia",
    ),
    "lastfm-twin": Twin(
        nodes=1_980, events=1_293_103, pairs=154_993, sources=980, days=30.0, n_times=88_000_000,
        src_sigma=1.9, dst_sigma=0.75, pair_sigma=0.1, mean_delay=0.2, calibrated_on="lastfm_prefix", is_dense=True,
    ),
    "social_evolution-twin": Twin(
        nodes=74, events=2_099_519, pairs=4_486, sources=None, days=240.6, n_times=581_500,
        src_sigma=1.2, dst_sigma=0.58, pair_sigma=1.61, mean_delay=0.3, calibrated_on="socialevo_month", is_dense=True,
    ),
    "flights-twin": Twin(
        nodes=13_169, events=1_927_145, pairs=395_072, sources=None, days=240.2, n_times=122,
        src_sigma=1.63, dst_sigma=1.66, pair_sigma=1.52, mean_delay=0.3, calibrated_on="uci",
    ),
    "outdoors-twin": Twin(
        nodes=223_777, events=1_192_397, pairs=734_240, sources=41_489, days=721.3, n_times=62_320_000,
        src_sigma=1.55, dst_sigma=0.8, pair_sigma=2.12, mean_delay=0.02, calibrated_on="gowalla_subset",
    ),
    "food-twin": Twin(
        nodes=673_858, events=2_708_688, pairs=1_667_917, sources=124_935, days=360.6, n_times=31_160_000,
        src_sigma=1.55, dst_sigma=0.8, pair_sigma=2.14, mean_delay=0.02, calibrated_on="gowalla_subset",
    ),
}
# fmt: on


def is_twin(name: str) -> bool:
    """Whether this is the name of a twin."""
    return name in TWINS


def original_dataset(name: str) -> str:
    """Return the name of the dataset that a twin imitates; other names unchanged."""
    return name.removesuffix(TWIN_SUFFIX)


def twin_stream(name: str, *, scale: float = 1.0, seed: int = 0) -> EventStream:
    """Generate a twin such as ``food-twin``. The same arguments give the same stream.

    ``scale`` multiplies nodes, pairs and events. DataError, with the nearest name, if there is no such twin.
    """
    if name not in TWINS:
        raise DataError(f"There is no twin '{name}'.{did_you_mean(name, TWINS)} Known twins: {', '.join(TWINS)}.")
    twin, dataset = TWINS[name].scaled(scale), original_dataset(name)
    src, dst, t = sample_events(twin, seed)
    stream_name = name if scale == 1 else f"{name}, {scale:g} times its size"
    note = (
        f"a twin of {dataset}: generated with its numbers of nodes, events and pairs, and the skew of "
        f"{twin.calibrated_on}; not {dataset}"
    )
    return EventStream.from_columns(src, dst, t, time=TimeAxis("number"), name=stream_name, notes=(note,))


def sample_events(twin: Twin, seed: int = 0) -> tuple[Ints, Ints, Floats]:
    """Sample sources, destinations and times in seconds, (E,) each, sorted by time.

    Sources count from 0. In a bipartite stream the destinations follow them.
    """
    rng = np.random.default_rng(seed)
    n_src, n_dst = twin.sides
    src_weight, dst_weight = rng.lognormal(0.0, twin.src_sigma, n_src), rng.lognormal(0.0, twin.dst_sigma, n_dst)
    pair_weight = rng.lognormal(0.0, twin.pair_sigma, twin.pairs)
    if twin.is_dense:
        src, dst = _sample_pairs(rng, twin, np.ones(n_src), np.ones(n_dst))
        pair_weight *= src_weight[src] * dst_weight[dst]
    else:
        src, dst = _sample_pairs(rng, twin, src_weight, dst_weight)
    repeats = _sample(rng, np.cumsum(pair_weight), twin.events - twin.pairs)
    first = rng.random(twin.pairs)
    later = first[repeats] + rng.exponential(twin.mean_delay, len(repeats))
    late = np.flatnonzero(later >= 1)  # past the end: uniform between the pair's first event and the end
    later[late] = first[repeats[late]] + (1 - first[repeats[late]]) * rng.random(len(late))
    time = np.concatenate([first, later])
    order = np.argsort(time, kind="stable")
    pair = np.concatenate([np.arange(twin.pairs), repeats])[order]
    seconds = np.floor(time[order] * twin.n_times) * (twin.days * 86_400 / twin.n_times)
    return src[pair], dst[pair] if twin.sources is None else dst[pair] + n_src, seconds


def _sample_pairs(rng: np.random.Generator, twin: Twin, src_weight: Floats, dst_weight: Floats) -> tuple[Ints, Ints]:
    """Sample ``twin.pairs`` distinct pairs that touch every node, without self-loops. Both sides count from 0."""
    n_src, n_dst = twin.sides
    src_cumulative, dst_cumulative = np.cumsum(src_weight), np.cumsum(dst_weight)
    if twin.sources is None:
        nodes = rng.permutation(twin.nodes)
        src, dst = np.append(nodes, nodes[: twin.nodes % 2]).reshape(2, -1)
    else:
        n = max(n_src, n_dst)
        src = np.append(rng.permutation(n_src), _sample(rng, src_cumulative, n - n_src))
        dst = np.append(rng.permutation(n_dst), _sample(rng, dst_cumulative, n - n_dst))
    key = _unique(src * n_dst + dst)
    n_rounds = 0
    while len(key) < twin.pairs:
        n = (twin.pairs - len(key)) * 9 // 8 + 16
        if n_rounds < _MAX_WEIGHTED_ROUNDS:
            src, dst = _sample(rng, src_cumulative, n), _sample(rng, dst_cumulative, n)
        else:
            src, dst = rng.integers(n_src, size=n), rng.integers(n_dst, size=n)
        mask = src != dst if twin.sources is None else slice(None)
        key = _unique(np.append(key, (src * n_dst + dst)[mask]))
        n_rounds += 1
    return key[: twin.pairs] // n_dst, key[: twin.pairs] % n_dst


def _unique(key: Ints) -> Ints:
    """Return the distinct values in order of first appearance."""
    first = np.unique(key, return_index=True)[1]
    return key[np.sort(first)]


def _sample(rng: np.random.Generator, cumulative: Floats, n: int) -> Ints:
    """Sample n indices with probabilities proportional to the weights behind ``cumulative``."""
    index = np.searchsorted(cumulative, rng.random(n) * cumulative[-1], side="right")
    return np.minimum(index, len(cumulative) - 1)
