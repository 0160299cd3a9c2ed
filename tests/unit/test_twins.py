"""Twins have the published numbers of nodes, events and pairs, and a skew like that of a real stream."""

from __future__ import annotations

import numpy as np
import pytest

from cordgt.errors import DataError
from cordgt.events.stream import EventStream
from cordgt.io.datasets import registry
from cordgt.io.datasets.twins import TWINS, is_twin, sample_events, twin_stream
from cordgt.models.presets import published_settings

# Gini coefficients of events per source, per destination and per pair in the calibration stream.
SKEW = {
    "wikipedia-twin": (0.822, 0.293, 0.788),
    "social_evolution-twin": (0.583, 0.410, 0.837),
    "outdoors-twin": (0.709, 0.507, 0.354),
}


def gini(counts: np.ndarray) -> float:
    """Return the Gini coefficient of the positive counts: 0 if all are equal, near 1 if one has all."""
    x = np.sort(counts[counts > 0]).astype(float)
    n = len(x)
    return float((2 * np.arange(1, n + 1) - n - 1) @ x / (n * x.sum()))


def n_pairs(stream: EventStream) -> int:
    return len(np.unique(stream.src * stream.n_nodes + stream.dst))


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_published_sizes(name: str) -> None:
    twin, known = TWINS[name], registry.KNOWN_DATASETS[name.removesuffix("-twin")]
    assert (twin.nodes, twin.events) == (known.nodes, known.links)
    assert (twin.sources is not None) == known.is_bipartite
    assert known.intensity is not None
    assert 2 * twin.events / (twin.nodes * twin.days * 86_400) == pytest.approx(known.intensity, rel=0.01)


@pytest.mark.parametrize("name", ["wikipedia-twin", "reddit-twin"])
def test_generated_twin_has_exact_counts(name: str) -> None:
    twin, stream = TWINS[name], twin_stream(name)
    assert (stream.n_nodes, stream.n_events, n_pairs(stream)) == (twin.nodes, twin.events, twin.pairs)
    assert stream.name == name
    assert f"a twin of {name.removesuffix('-twin')}: generated" in stream.notes[0]
    assert not np.intersect1d(stream.src, stream.dst).size
    assert (np.diff(stream.t) >= 0).all()
    assert len(np.unique(stream.src)) == twin.sources
    assert stream.elapsed[-1] / 86_400 == pytest.approx(twin.days, rel=0.01)


@pytest.mark.parametrize("name", TWINS)
def test_scaled_twins(name: str) -> None:
    twin = TWINS[name].scaled(0.02)
    src, dst, t = sample_events(twin, seed=3)
    assert len(src) == len(dst) == len(t) == twin.events
    assert len(np.unique(np.concatenate([src, dst]))) == twin.nodes
    assert len(np.unique(src * twin.nodes + dst)) == twin.pairs
    assert not (src == dst).any()
    again = sample_events(twin, seed=3)
    assert all((a == b).all() for a, b in zip((src, dst, t), again, strict=True))
    assert (sample_events(twin, seed=4)[0] != src).any()


@pytest.mark.parametrize("name", SKEW)
def test_skew_matches_the_calibration_stream(name: str) -> None:
    twin = TWINS[name].scaled(0.1) if name == "outdoors-twin" else TWINS[name]
    src, dst, _ = sample_events(twin)
    of_pair = np.unique(src * twin.nodes + dst, return_counts=True)[1]
    found = gini(np.bincount(src)), gini(np.bincount(dst)), gini(of_pair)
    # Wikipedia's pages were selected by many edits, so their counts are more equal than those of the twin
    off = 0.2 if name == "wikipedia-twin" else 0.06
    assert found == pytest.approx(SKEW[name], abs=off)


def test_twin_by_name_takes_no_options() -> None:
    assert is_twin("food-twin") and not is_twin("food") and not is_twin("uci-twin")
    with pytest.raises(DataError, match=r"no twin 'fod-twin'\. Did you mean 'food-twin'"):
        twin_stream("fod-twin")
    with pytest.raises(DataError, match=r"wikipedia-twin is generated.*leave out --src"):
        registry.load_dataset("wikipedia-twin", src="a")
    assert published_settings("lastfm-twin") == published_settings("lastfm")
    assert twin_stream("wikipedia-twin", scale=0.01).name == "wikipedia-twin, 0.01 times its size"
