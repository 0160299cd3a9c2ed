"""Sinusoidal encoding of distances against a slow formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cordgt.nn.positional_encoding import DistanceEncoding, frequencies, sinusoids


def slow_sinusoids(x: float, dim: int) -> list[float]:
    """All sines, then all cosines, of 10000 x at dim/2 frequencies from 1 down to 1/10000."""
    n = dim // 2
    frequency = [1.0] if n == 1 else [10_000.0 ** (-i / (n - 1)) for i in range(n)]
    return [math.sin(10_000.0 * x * f) for f in frequency] + [math.cos(10_000.0 * x * f) for f in frequency]


def slow_encoding(encoding: DistanceEncoding, x: float) -> np.ndarray:
    """``MLP(Enc(x))``, in float64."""
    w1, b1, w2, b2 = (
        p.detach().double().numpy()
        for p in (encoding.fc1.weight, encoding.fc1.bias, encoding.fc2.weight, encoding.fc2.bias)
    )
    return w2 @ np.maximum(w1 @ np.array(slow_sinusoids(x, len(b2))) + b1, 0) + b2


@pytest.fixture(scope="module")
def encoding() -> DistanceEncoding:
    torch.manual_seed(3)
    return DistanceEncoding(dim=12, hidden=7)


@given(x=st.floats(0, 100), dim=st.sampled_from((2, 4, 10, 100)))
def test_sinusoids_equal_the_formula(x: float, dim: int) -> None:
    got = sinusoids(torch.tensor(x, dtype=torch.float64), frequencies(dim))
    assert got.dtype == torch.float32 and got.shape == (dim,)
    np.testing.assert_allclose(got.numpy(), slow_sinusoids(x, dim), rtol=0, atol=1e-6)


def test_sinusoids_by_hand() -> None:
    """At 0 the sines are 0 and the cosines 1; the lowest frequency reaches one radian at distance 1."""
    assert sinusoids(torch.zeros(3, dtype=torch.float64), frequencies(6)).tolist() == [[0.0] * 3 + [1.0] * 3] * 3
    assert sinusoids(torch.ones((), dtype=torch.float64), frequencies(6))[[2, 5]].tolist() == pytest.approx(
        [math.sin(1), math.cos(1)], abs=1e-6
    )


def test_sinusoids_separate_close_distances() -> None:
    """Phases are in float64: distances near 10 that float32 would confuse differ at the highest frequency."""
    near = torch.tensor([10.0, 10.0 + 1e-4], dtype=torch.float64)
    a, b = sinusoids(near, frequencies(100))
    assert (a - b).abs().max() > 0.5


@settings(max_examples=30)
@given(x=st.floats(0, 30))
def test_encoding_equals_the_formula(encoding: DistanceEncoding, x: float) -> None:
    got = encoding(torch.tensor([x], dtype=torch.float64))
    assert got.shape == (1, 12)
    np.testing.assert_allclose(got[0].detach().numpy(), slow_encoding(encoding, x), rtol=0, atol=1e-5)


@settings(max_examples=30)
@given(distances=st.lists(st.floats(0, 30), min_size=1, max_size=2))
def test_projection_of_a_sum_of_encodings(encoding: DistanceEncoding, distances: list[float]) -> None:
    """Summed hidden units and one linear map equal the projection of the summed encodings."""
    projection = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))
    weight, bias = encoding.fold_projection(projection, len(distances))
    hidden = sum(encoding.hidden(torch.tensor(x, dtype=torch.float64)) for x in distances)
    expected = projection.double().numpy() @ sum(slow_encoding(encoding, x) for x in distances)
    np.testing.assert_allclose((weight @ hidden + bias).detach().numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("largest", [0, 3])
def test_integer_table(encoding: DistanceEncoding, largest: int) -> None:
    expected = encoding.hidden(torch.arange(largest + 1).double())
    assert torch.equal(encoding.integer_table(largest), expected) and expected.shape == (largest + 1, 7)
