"""Random numbers as pure functions: the same draw on every device, in every order, after every resume.

A draw is a hash of what it is for (seed, epoch, root, cut, path in the tree), in 64-bit integer arithmetic only
(splitmix64's finaliser). There is no generator and no state, so nothing has to be saved, seeded or replayed.
Each function has two twins: one over int64 tensors, one (``*_u64``) compiled for loops over uint64 scalars.
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
    """The int64 with the same 64 bits as ``value``."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own is arithmetic and would drag the sign along."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    """A well-spread 64-bit hash of 64 bits; int64 in, int64 out, any shape."""
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def mix_int(z: int) -> int:
    """`mix` of one number, on the host."""
    z &= _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return _signed(z ^ (z >> 31))


def child(key: Tensor | int, value: Tensor) -> Tensor:
    """The key of ``value`` below ``key``: chains of children name a draw by its path. Shapes broadcast."""
    return mix(key + (value + 1) * _signed(_GOLDEN))


def child_int(key: int, value: int) -> int:
    """`child` of two numbers, on the host."""
    return mix_int(key + (value + 1) * _GOLDEN)


def root_key(seed: int, epoch: Tensor | int, root: Tensor, cut: Tensor) -> Tensor:
    """The key of a tree's root. ``epoch`` is 0 outside training; a tensor where a CUDA graph must not fix its value."""
    return child(child(epoch_key(mix_int(seed), epoch), root), cut)


def epoch_key(key: int, epoch: Tensor | int) -> Tensor | int:
    """The key of an epoch below ``key``: a number for a number, a tensor for a tensor."""
    return child_int(key, epoch) if isinstance(epoch, int) else child(key, epoch)


def below(key: Tensor, n: Tensor | int) -> Tensor:
    """A number in [0, n) from the upper half of ``key``; 0 where n is 0. n < 2^31."""
    return (_shift_right(key, 32) * n) >> 32


def share(key: Tensor) -> Tensor:
    """A number in (0, 1], float64, from the upper 53 bits of ``key``."""
    return (_shift_right(key, 11) + 1).double() * 2.0**-53


@njit(inline="always")
def mix_u64(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def child_u64(key, value):  # type: ignore[no-untyped-def]
    return mix_u64(key + (np.uint64(value) + np.uint64(1)) * np.uint64(_GOLDEN))


@njit(inline="always")
def below_u64(key, n):  # type: ignore[no-untyped-def]
    return np.int64(((key >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@njit(inline="always")
def share_u64(key):  # type: ignore[no-untyped-def]
    return np.float64((key >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
