"""Dropout as a hash of (seed, place): the backward pass asks again instead of storing it."""

from __future__ import annotations

import triton
import triton.language as tl


def threshold(share: float) -> int:
    """What a 32-bit hash must reach for its place to be kept."""
    return min(int(share * 2**32), 2**32 - 1)


@triton.jit
def key_of(seed, part):
    """The key of one part of a tensor (a program's): uint32 of the seed and the part's number, both int64."""
    z = seed.to(tl.uint32) + part.to(tl.uint32) * 0x9E3779B1 + (part >> 32).to(tl.uint32) * 0x85EBCA77
    z = (z ^ (z >> 16)) * 0x7FEB352D
    return z ^ (z >> 15)


@triton.jit
def kept(key, place, least):
    """True for all but a share of the places (int32) of a part; ``least`` as `threshold` says."""
    z = key + place.to(tl.uint32) * 0x9E3779B1
    z = (z ^ (z >> 16)) * 0x7FEB352D
    z = (z ^ (z >> 15)) * 0x846CA68B
    return (z ^ (z >> 16)) >= least.to(tl.uint32)
