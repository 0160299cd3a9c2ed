"""Splits by time and masked nodes, compared with a loop over all events."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.errors import DataError
from cordgt.tasks.split import Split, split_events

from . import slow
from .helpers import TEN
from .strategies import Stream, streams

hows = st.sampled_from(("quantile", "time"))
parts = st.sampled_from(((0.70, 0.15), (0.5, 0.25), (0.4, 0.1), (1 / 3, 1 / 3), (0.6, 0.4)))
shares = st.sampled_from((0.0, 0.1, 0.3, 0.5, 0.9))


def split(stream: Stream, how: str = "quantile", mask_nodes: float = 0.0, mask_seed: int = 0, **parts: float) -> Split:
    return split_events(
        np.array(stream.src), np.array(stream.dst), stream.times, stream.n_nodes,
        how=how, mask_nodes=mask_nodes, mask_seed=mask_seed, **parts,
    )  # fmt: skip


def ids(flags: np.ndarray) -> list[int]:
    assert flags.dtype == np.bool_
    return np.flatnonzero(flags).tolist()


# Ten events by hand: times 10 12 12 13 15 15 15 18 20 30


def test_quantiles_by_hand() -> None:
    """70 % of the events lie up to 15 + 0.3 * 3 = 15.9, 85 % up to 18 + 0.65 * 2 = 19.3. Nobody is masked."""
    got = split(TEN)
    assert got.train.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert got.validation.tolist() == [7]
    assert got.test.tolist() == [8, 9]
    assert ids(got.masked) == []
    assert ids(got.new_node) == [4, 5]  # 4 comes with event 7; 5 never comes
    assert got.inductive(got.validation).tolist() == [7]
    assert got.inductive(got.test).tolist() == [9]
    assert got.inductive(got.train).tolist() == []


def test_time_range_by_hand() -> None:
    """From 10 to 30, 40 % of the range ends at 18 and 50 % at 20; events on a border belong to the earlier part."""
    got = split(TEN, how="time", train_ratio=0.4, val_ratio=0.1)
    assert got.train.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]  # up to 18
    assert got.validation.tolist() == [8]  # up to 20
    assert got.test.tolist() == [9]
    assert ids(got.new_node) == [5]
    assert got.inductive(got.test).tolist() == []


def test_empty_split_is_an_error_by_hand() -> None:
    """70 % of the range ends at 24 and 85 % at 27: no event in between."""
    with pytest.raises(DataError, match="validation"):
        split(TEN, how="time")


def test_masked_nodes_by_hand() -> None:
    """After training come 0, 1, 2 and 4. For seed 0 their keys stand in the order 2, 4, 1, 0 (``slow.child``)."""
    one = split(TEN, mask_nodes=0.2)  # int(0.2 * 6) = 1
    assert ids(one.masked) == [2]
    assert one.train.tolist() == [0, 2, 4, 5, 6]  # without 1 and the self-loop 3
    assert ids(one.new_node) == [2, 4, 5]
    assert one.inductive(one.test).tolist() == [8, 9]
    three = split(TEN, mask_nodes=0.5)
    assert ids(three.masked) == [1, 2, 4]
    assert three.train.tolist() == [4]  # 0 with 3
    assert ids(three.new_node) == [1, 2, 4, 5]
    assert three.validation.tolist() == [7] and three.test.tolist() == [8, 9]
    with pytest.raises(DataError, match="training"):
        split(TEN, mask_nodes=0.9)  # asks for 5, takes the 4 there are: no training event is left


def test_masks_depend_on_their_seed() -> None:
    assert ids(split(TEN, mask_nodes=0.2, mask_seed=1).masked) == [4]
    assert ids(split(TEN, mask_nodes=0.2, mask_seed=2).masked) == [0]


# Random streams


@settings(max_examples=200)
@given(
    stream=streams(min_events=3, max_events=48),
    how=hows,
    part=parts,
    mask_nodes=shares,
    mask_seed=st.integers(0, 2**63 - 1),
)
def test_split(stream: Stream, how: str, part: tuple[float, float], mask_nodes: float, mask_seed: int) -> None:
    expected = slow.split_events(stream.src, stream.dst, stream.t, stream.n_nodes, how, mask_nodes, mask_seed, *part)
    ratios = {"train_ratio": part[0], "val_ratio": part[1]}
    if not (expected.train and expected.validation and expected.test):
        with pytest.raises(DataError):
            split(stream, how, mask_nodes, mask_seed, **ratios)
        return
    got = split(stream, how, mask_nodes, mask_seed, **ratios)
    assert got.train.tolist() == expected.train
    assert got.validation.tolist() == expected.validation
    assert got.test.tolist() == expected.test
    assert set(ids(got.masked)) == expected.masked
    assert set(ids(got.new_node)) == expected.new
    assert len(got.masked) == len(got.new_node) == stream.n_nodes
    for positions in (got.train, got.validation, got.test, np.arange(stream.n_events)[::-1]):
        assert got.inductive(positions).tolist() == slow.inductive(expected, stream.src, stream.dst, positions.tolist())


@given(stream=streams(min_events=12, max_events=48), how=hows, mask_nodes=shares)
def test_split_invariants(stream: Stream, how: str, mask_nodes: float) -> None:
    """Parts follow each other, never share a moment, and lose nothing but the training events of masked nodes."""
    try:
        got = split(stream, how, mask_nodes)
    except DataError:
        return
    t = stream.times
    assert t[got.train].max() < t[got.validation].min()
    assert t[got.validation].max() < t[got.test].min()
    lost = sorted(set(range(stream.n_events)) - {*got.train, *got.validation, *got.test})
    assert all(got.masked[stream.src[p]] or got.masked[stream.dst[p]] for p in lost)
    assert len(got.inductive(got.train)) == 0
    assert np.all(got.new_node[got.masked])


@given(values=st.lists(st.one_of(st.integers(-99, 99), st.integers(10**15, 10**15 + 9)), min_size=1), q=st.floats(0, 1))
def test_slow_quantile_equals_numpy(values: list[int], q: float) -> None:
    values.sort()
    for given_values in (values, [value / 7 for value in values]):
        assert slow.quantile(given_values, q) == np.quantile(np.array(given_values), q)
