"""Counter-based dropout: the mask is a hash of (seed, element), so the backward pass recomputes it."""

from __future__ import annotations

import triton
import triton.language as tl


def dropout_threshold(p: float) -> int:
    """Return the smallest 32-bit hash that keeps an element, for dropout probability ``p``."""
    return min(int(p * 2**32), 2**32 - 1)


@triton.jit
def block_key(seed, block):
    """Return the uint32 key of a block of elements; ``seed`` and the block's number are int64."""
    z = seed.to(tl.uint32) + block.to(tl.uint32) * 0x9E3779B1 + (block >> 32).to(tl.uint32) * 0x85EBCA77
    z = (z ^ (z >> 16)) * 0x7FEB352D
    return z ^ (z >> 15)


@triton.jit
def keep_mask(key, element, threshold):
    """Return True for the elements (int32, numbered within the block) that dropout keeps."""
    z = key + element.to(tl.uint32) * 0x9E3779B1
    z = (z ^ (z >> 16)) * 0x7FEB352D
    z = (z ^ (z >> 15)) * 0x846CA68B
    return (z ^ (z >> 16)) >= threshold.to(tl.uint32)


@triton.jit
def keep_mask_of_pairs(key, row, column, size, threshold):
    """Return True for the elements (row, column) of a matrix of ``size`` columns that dropout keeps.

    Two neighbors in a row share a hash, 16 bits each: half the work.
    """
    z = key + (row * ((size + 1) // 2) + column // 2).to(tl.uint32) * 0x9E3779B1
    z = (z ^ (z >> 16)) * 0x7FEB352D
    z = (z ^ (z >> 15)) * 0x846CA68B
    z = z ^ (z >> 16)
    bits = tl.where(column % 2 == 0, z & 0xFFFF, z >> 16)
    return bits >= (threshold >> 16).to(tl.uint32)
