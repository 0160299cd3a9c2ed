"""The counter-based random numbers of `cordgt.history.rng` in Triton, bit for bit the same, over uint64."""

from __future__ import annotations

import triton
import triton.language as tl

_GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2: tl.constexpr = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def mix64(z):
    z = (z ^ (z >> 30)) * tl.full((1,), _MIX_1, tl.uint64)
    z = (z ^ (z >> 27)) * tl.full((1,), _MIX_2, tl.uint64)
    return z ^ (z >> 31)


@triton.jit
def fold_in(key, value):
    """Derive a new key from ``key`` (uint64) and ``value`` (any integer type); shapes broadcast."""
    return mix64(key + (value.to(tl.uint64) + 1) * tl.full((1,), _GOLDEN, tl.uint64))


@triton.jit
def randint(key, n):
    """Return an int64 in [0, n) from the upper 32 bits of ``key``."""
    return (((key >> 32) * n.to(tl.uint64)) >> 32).to(tl.int64)
