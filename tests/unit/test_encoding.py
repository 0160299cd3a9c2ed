"""Enc against a slow formula, and the encodings made of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.encoding import DistanceEncoding, sinusoids


def slow_sinusoids(x: float, dim: int) -> list[float]:
    """All sines, then all cosines, of 10000 x at dim/2 frequencies from 1 down to 1/10000."""
    n = dim // 2
    frequency = [1.0] if n == 1 else [10_000.0 ** (-i / (n - 1)) for i in range(n)]
    return [math.sin(10_000.0 * x * f) for f in frequency] + [math.cos(10_000.0 * x * f) for f in frequency]


def slow_encoding(encoding: DistanceEncoding, *distances: float) -> np.ndarray:
    """The sum of ``MLP(Enc(x))``, in float64."""
    w1, b1, w2, b2 = (
        p.detach().double().numpy()
        for p in (encoding.fc1.weight, encoding.fc1.bias, encoding.fc2.weight, encoding.fc2.bias)
    )
    total = np.zeros(encoding.dim)
    for x in distances:
        total += w2 @ np.maximum(w1 @ np.array(slow_sinusoids(x, encoding.dim)) + b1, 0) + b2
    return total


@pytest.fixture(scope="module")
def encoding() -> DistanceEncoding:
    torch.manual_seed(3)
    return DistanceEncoding(dim=12, hidden=7)


@given(x=st.floats(0, 100), dim=st.sampled_from((2, 4, 10, 100)))
def test_sinusoids_are_the_formula(x: float, dim: int) -> None:
    got = sinusoids(torch.tensor(x, dtype=torch.float64), dim)
    assert got.dtype == torch.float32 and got.shape == (dim,)
    np.testing.assert_allclose(got.numpy(), slow_sinusoids(x, dim), rtol=0, atol=1e-6)


def test_sinusoids_by_hand() -> None:
    """At 0 the sines are 0 and the cosines 1; the slowest wave has gone one radian at a distance of 1."""
    assert sinusoids(torch.zeros(3, dtype=torch.float64), 6).tolist() == [[0.0] * 3 + [1.0] * 3] * 3
    assert sinusoids(torch.ones((), dtype=torch.float64), 6)[[2, 5]].tolist() == pytest.approx(
        [math.sin(1), math.cos(1)], abs=1e-6
    )


def test_sinusoids_tell_near_distances_apart() -> None:
    """Phases are taken in float64: distances near 10 that float32 would confuse are far apart in the fastest wave."""
    near = torch.tensor([10.0, 10.0 + 1e-4], dtype=torch.float64)
    a, b = sinusoids(near, 100)
    assert (a - b).abs().max() > 0.5


@settings(max_examples=30)
@given(distances=st.lists(st.floats(0, 30), min_size=1, max_size=2))
def test_encoding_is_the_formula(encoding: DistanceEncoding, distances: list[float]) -> None:
    got = encoding(*(torch.tensor([x], dtype=torch.float64) for x in distances))
    assert got.shape == (1, 12)
    np.testing.assert_allclose(got[0].detach().numpy(), slow_encoding(encoding, *distances), rtol=0, atol=1e-5)


@given(x=st.floats(0, 30), y=st.floats(0, 30))
def test_both_ends_count_alike(encoding: DistanceEncoding, x: float, y: float) -> None:
    a, b = (torch.tensor([v], dtype=torch.float64) for v in (x, y))
    assert torch.equal(encoding(a, b), encoding(b, a))


def test_shapes_broadcast(encoding: DistanceEncoding) -> None:
    """The source's own distances are the same for all its candidates: (B, 1, C) and (B, M, C)."""
    own, other = torch.rand(2, 1, 5, dtype=torch.float64), torch.rand(2, 3, 5, dtype=torch.float64)
    got = encoding(own, other)
    assert got.shape == (2, 3, 5, 12)
    torch.testing.assert_close(got, encoding(own.expand(2, 3, 5), other))


@settings(max_examples=30)
@given(largest=st.integers(0, 6), ends=st.integers(1, 2), seed=st.integers(0, 99))
def test_whole_numbers_are_looked_up(encoding: DistanceEncoding, largest: int, ends: int, seed: int) -> None:
    """The same values, and the same gradients, as encoding each distance by itself."""
    draw = torch.Generator().manual_seed(seed)
    distances = [torch.randint(0, largest + 1, (3, 4), generator=draw) for _ in range(ends)]
    weight = torch.randn(3, 4, 12, generator=draw)
    looked_up = encoding.of_integers(*distances, largest=largest)
    one_by_one = encoding(*(x.double() for x in distances))
    torch.testing.assert_close(looked_up, one_by_one, rtol=0, atol=1e-5)
    parameters = list(encoding.parameters())
    got, expected = (torch.autograd.grad((x * weight).sum(), parameters) for x in (looked_up, one_by_one))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
