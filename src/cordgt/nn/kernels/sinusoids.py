"""Sinusoids of distances as a Triton kernel. Torch reference: `cordgt.nn.positional_encoding.sinusoids`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sinusoids_kernel(x, frequency, out, n, half, scale, ROWS: tl.constexpr, HALF: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, HALF)
    in_range = (row < n)[:, None] & (k < half)[None, :]
    distance = tl.load(x + row, mask=row < n, other=0.0)
    turns = scale * distance[:, None] * tl.load(frequency + k, mask=k < half, other=0.0)[None, :]
    turns = turns * 0.15915494309189535  # 1 / (2 pi)
    phase = ((turns - tl.floor(turns)) * 6.283185307179586).to(tl.float32)
    at = row[:, None] * (2 * half) + k[None, :]
    tl.store(out + at, tl.sin(phase), mask=in_range)
    tl.store(out + at + half, tl.cos(phase), mask=in_range)


def sinusoids(x: Tensor, frequency: Tensor, scale: float) -> Tensor:
    """Return (N, 2 F) float32: sines, then cosines, of ``scale * x * frequency``; x (N,), frequency (F,) float64."""
    n, half = len(x), len(frequency)
    out = torch.empty((n, 2 * half), device=x.device)
    if n:
        _sinusoids_kernel[(triton.cdiv(n, 16),)](
            x.contiguous(), frequency, out, n, half, int(scale), ROWS=16, HALF=triton.next_power_of_2(half)
        )
    return out
