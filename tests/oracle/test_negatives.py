"""Random negatives, compared with a choice from a list without the true destination."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.errors import DataError
from cordgt.tasks.negatives import check_pool, draw_negatives

from . import slow

TAG = 0x6E6567  # "neg": what keeps these draws apart from all others; it must never change
pools = st.lists(st.integers(0, 40), min_size=2, max_size=12, unique=True).map(sorted)
events = st.lists(st.tuples(st.integers(0, 42), st.integers(0, 2**40)), min_size=1, max_size=9)


def draw(device: torch.device, pool: list[int], dst: Any, position: Any, seed: int, epoch: Any = 0) -> torch.Tensor:
    ints = [torch.as_tensor(values, dtype=torch.int64, device=device) for values in (pool, dst, position)]
    return draw_negatives(*ints, seed=seed, epoch=epoch).squeeze(-1)


@settings(max_examples=200)
@given(pool=pools, queries=events, seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 9))
def test_negatives(
    device: torch.device, pool: list[int], queries: list[tuple[int, int]], seed: int, epoch: int
) -> None:
    """Destinations inside the pool and outside of it, below its first and beyond its last."""
    dst, position = zip(*queries, strict=True)
    got = draw(device, pool, dst, position, seed, epoch)
    assert got.dtype == torch.int64
    assert got.tolist() == [slow.negative(pool, d, p, seed, epoch, TAG) for d, p in queries]
    assert all(negative in pool and negative != d for negative, d in zip(got.tolist(), dst, strict=True))
    held = draw(device, pool, dst, position, seed, torch.tensor(epoch, device=device))
    assert held.equal(got)


@given(pool=pools, queries=events, data=st.data())
def test_negatives_do_not_depend_on_the_batch(
    device: torch.device, pool: list[int], queries: list[tuple[int, int]], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(queries))
    whole = dict(zip(queries, draw(device, pool, *zip(*queries, strict=True), seed=4, epoch=1).tolist(), strict=True))
    assert draw(device, pool, *zip(*order, strict=True), seed=4, epoch=1).tolist() == [whole[query] for query in order]
    for dst, position in queries:
        assert draw(device, pool, [dst], [position], seed=4, epoch=1).tolist() == [whole[dst, position]]


@given(pool=pools, queries=events, n=st.integers(2, 5))
def test_first_negative_does_not_depend_on_their_number(
    device: torch.device, pool: list[int], queries: list[tuple[int, int]], n: int
) -> None:
    dst, position = zip(*queries, strict=True)
    ints = [torch.as_tensor(values, dtype=torch.int64, device=device) for values in (pool, dst, position)]
    several = draw_negatives(*ints, seed=3, epoch=2, n=n)
    assert several.shape == (len(queries), n)
    assert several[:, 0].equal(draw(device, pool, dst, position, 3, 2))
    expected = [[slow.negative(pool, d, p, 3, 2, TAG, j) for j in range(1, n)] for d, p in queries]
    assert several[:, 1:].tolist() == expected


def test_pool_of_two_by_hand(device: torch.device) -> None:
    assert draw(device, [3, 8], [3, 8, 3, 8], [0, 1, 2, 3], seed=0).tolist() == [8, 3, 8, 3]


@pytest.mark.parametrize("dst", [2, 5, 11, 7])
def test_negatives_are_uniform(device: torch.device, dst: int) -> None:
    """Every other member about equally often, wherever the true one stands (chi-square, at most 4 df)."""
    pool = [2, 3, 5, 9, 11]
    n = 6000
    negatives = draw(device, pool, [dst] * n, list(range(n)), seed=1).tolist()
    others = [node for node in pool if node != dst]
    assert set(negatives) == set(others)
    expected = n / len(others)
    assert sum((negatives.count(node) - expected) ** 2 / expected for node in others) < 25


def test_pool_of_one_is_an_error() -> None:
    for pool in ([], [4]):
        with pytest.raises(DataError):
            check_pool(torch.tensor(pool, dtype=torch.int64))
    check_pool(torch.tensor([4, 6]))
