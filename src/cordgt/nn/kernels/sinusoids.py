"""Sinusoids of distances. Twin: the other half of `cordgt.nn.positional_encoding.sinusoids`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _waves(x, frequency, out, n, half, amplify, ROWS: tl.constexpr, HALF: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, HALF)
    real = (row < n)[:, None] & (k < half)[None, :]
    distance = tl.load(x + row, mask=row < n, other=0.0)
    turns = amplify * distance[:, None] * tl.load(frequency + k, mask=k < half, other=0.0)[None, :]
    turns = turns * 0.15915494309189535
    phase = ((turns - tl.floor(turns)) * 6.283185307179586).to(tl.float32)
    at = row[:, None] * (2 * half) + k[None, :]
    tl.store(out + at, tl.sin(phase), mask=real)
    tl.store(out + at + half, tl.cos(phase), mask=real)


def sinusoids(x: Tensor, frequency: Tensor, amplify: float) -> Tensor:
    """(N, 2 F) float32: sines, then cosines, of ``amplify * x * frequency`` for x (N,) and frequency (F,) float64."""
    n, half = len(x), len(frequency)
    out = torch.empty((n, 2 * half), device=x.device)
    if n:
        _waves[(triton.cdiv(n, 16),)](
            x.contiguous(), frequency, out, n, half, int(amplify), ROWS=16, HALF=triton.next_power_of_2(half)
        )
    return out
