"""Counter-based random numbers: the same 64 bits as plain integer arithmetic and as splitmix64."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cordgt.history import rng

from . import slow

words = st.one_of(st.integers(0, slow.BITS), st.sampled_from((0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, slow.BITS)))
signed_words = words.map(slow.signed)
batches = st.lists(signed_words, min_size=1, max_size=7)


def test_folding_into_zero_gives_the_published_splitmix64_sequence(device: torch.device) -> None:
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    key = torch.zeros(5, dtype=torch.int64, device=device)
    got = rng.fold_in(key, torch.arange(5, device=device))
    assert got.dtype == torch.int64
    assert got.tolist() == [slow.signed(value) for value in expected]
    assert [slow.fold_in(0, v) for v in range(5)] == expected


@given(keys=batches)
def test_mix64(device: torch.device, keys: list[int]) -> None:
    got = rng.mix64(torch.tensor(keys, device=device))
    assert got.tolist() == [slow.signed(slow.mix64(key)) for key in keys]


@given(key=words, value=words)
@example(key=slow.BITS, value=slow.BITS)
@example(key=2**63, value=0)
def test_python_integers(key: int, value: int) -> None:
    """Of plain integers, given as unsigned or as signed words; epochs are the only draws that may be either kind."""
    assert rng.mix64_int(key) == rng.mix64_int(slow.signed(key)) == slow.signed(slow.mix64(key))
    expected = slow.signed(slow.fold_in(key, value))
    assert rng.fold_in_int(key, value) == rng.fold_in_int(slow.signed(key), slow.signed(value)) == expected
    assert rng.epoch_key(slow.signed(key), value) == expected
    assert rng.epoch_key(slow.signed(key), torch.tensor(slow.signed(value))).item() == expected  # type: ignore[union-attr]


@given(keys=batches, values=batches)
def test_fold_in_broadcasts(device: torch.device, keys: list[int], values: list[int]) -> None:
    got = rng.fold_in(torch.tensor(keys, device=device)[:, None], torch.tensor(values, device=device))
    assert got.tolist() == [[slow.signed(slow.fold_in(key, v)) for v in values] for key in keys]
    for key, row in zip(keys, got, strict=True):  # a plain key means the same as a tensor that holds it
        assert rng.fold_in(key, torch.tensor(values, device=device)).equal(row)


@given(
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 1000),
    pairs=st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=5),
)
def test_root_key(device: torch.device, seed: int, epoch: int, pairs: list[tuple[int, int]]) -> None:
    root, cut = torch.tensor(pairs, device=device).unbind(1)
    expected = [slow.signed(slow.root_key(seed, epoch, r, c)) for r, c in pairs]
    assert rng.root_key(seed, epoch, root, cut).tolist() == expected
    assert rng.root_key(seed, torch.tensor(epoch, device=device), root, cut).tolist() == expected


@given(keys=batches, counts=st.lists(st.one_of(st.integers(1, 99), st.integers(1, 2**31 - 1)), min_size=1, max_size=5))
@example(keys=[-1], counts=[2**31 - 1, 1])
def test_randint(device: torch.device, keys: list[int], counts: list[int]) -> None:
    got = rng.randint(torch.tensor(keys, device=device)[:, None], torch.tensor(counts, device=device))
    assert got.tolist() == [[slow.randint(key & slow.BITS, n) for n in counts] for key in keys]
    assert all(0 <= draw < n for row in got.tolist() for draw, n in zip(row, counts, strict=True))


def test_randint_of_an_empty_range_is_zero(device: torch.device) -> None:
    assert rng.randint(torch.tensor([-1, 0, 5], device=device), 0).tolist() == [0, 0, 0]


@settings(max_examples=20)
@given(seed=st.integers(0, 2**63 - 1), n=st.integers(2, 13))
def test_draws_are_uniform(seed: int, n: int) -> None:
    """Chi-square over the keys folded from one key; chance exceeds the bound about once in 10^7 runs."""
    n_draws = 6000
    samples = rng.randint(rng.fold_in(rng.mix64_int(seed), torch.arange(n_draws)), n)
    seen = torch.bincount(samples, minlength=n).double()
    assert len(seen) == n
    chi2 = float(((seen - n_draws / n) ** 2 / (n_draws / n)).sum())
    assert chi2 < (n - 1) + 8 * (2 * (n - 1)) ** 0.5 + 20


def test_nearby_inputs_give_distinct_keys() -> None:
    """No two keys of nearby seeds, epochs, roots and cuts coincide."""
    axis: Any = range(12)
    keys = {slow.root_key(s, e, r, c) for s in axis for e in axis for r in axis for c in axis}
    assert len(keys) == len(axis) ** 4
