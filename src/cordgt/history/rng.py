"""Counter-based random numbers: a draw is a hash of its key, so it is the same on every device and in every order.

There is no generator and no state, hence nothing to save, seed or replay. As in JAX, `fold_in` derives a key from a key
and a number: a draw's key is folded from (seed, epoch, root, cut, path in the tree). `randint` and `uniform` turn a key
into a number. The hash is the finalizer of splitmix64, in 64-bit integer arithmetic.

Functions take int64 tensors; variants take Python integers (``*_int``) or, in Numba loops, uint64 (``*_u64``).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits as ``value``."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift right logically; torch's own shift is arithmetic and copies the sign bit."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix64(z: Tensor) -> Tensor:
    """Hash 64 bits to 64 bits (splitmix64's finalizer); int64 of any shape."""
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def mix64_int(z: int) -> int:
    """`mix64` of a Python integer."""
    z &= _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return _signed(z ^ (z >> 31))


def fold_in(key: Tensor | int, value: Tensor) -> Tensor:
    """Derive a new key from ``key`` and ``value``. Shapes broadcast."""
    return mix64(key + (value + 1) * _signed(_GOLDEN))


def fold_in_int(key: int, value: int) -> int:
    """`fold_in` of Python integers."""
    return mix64_int(key + (value + 1) * _GOLDEN)


def root_key(seed: int, epoch: Tensor | int, root: Tensor, cut: Tensor) -> Tensor:
    """Return the key of a tree's root. ``epoch`` is 0 outside training; a tensor if a CUDA graph must not freeze it."""
    return fold_in(fold_in(epoch_key(mix64_int(seed), epoch), root), cut)


def epoch_key(key: int, epoch: Tensor | int) -> Tensor | int:
    """Fold an epoch into ``key``: an integer for an integer, a tensor for a tensor."""
    return fold_in_int(key, epoch) if isinstance(epoch, int) else fold_in(key, epoch)


def randint(key: Tensor, n: Tensor | int) -> Tensor:
    """Return an integer in [0, n) from the upper 32 bits of ``key``; 0 where n is 0. n < 2^31."""
    return (_shift_right(key, 32) * n) >> 32


def uniform(key: Tensor) -> Tensor:
    """Return a float64 in (0, 1] from the upper 53 bits of ``key``."""
    return (_shift_right(key, 11) + 1).double() * 2.0**-53


@njit(inline="always")
def mix64_u64(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def fold_in_u64(key, value):  # type: ignore[no-untyped-def]
    return mix64_u64(key + (np.uint64(value) + np.uint64(1)) * np.uint64(_GOLDEN))


@njit(inline="always")
def randint_u64(key, n):  # type: ignore[no-untyped-def]
    return np.int64(((key >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(inline="always")
def uniform_u64(key):  # type: ignore[no-untyped-def]
    return np.float64((key >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
