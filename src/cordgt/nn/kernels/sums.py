"""Sum of the partial gradients that the programs of a kernel leave: ``x.sum(dim=0)`` of few rows and many columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sum_rows(x, out, n_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    in_range = (row < n_rows)[:, None] & (column < width)[None, :]
    values = tl.load(x + row[:, None] * width + column[None, :], mask=in_range, other=0.0)
    tl.store(out + column, tl.sum(values, axis=0), mask=column < width)


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum (W,) of the rows of x (P, W) float32, contiguous, in a fixed order; P at most 1,024."""
    n_rows, width = x.shape
    columns = 16 if width < 4096 else 32
    out = torch.empty(width, device=x.device)
    _sum_rows[(triton.cdiv(width, columns),)](
        x, out, n_rows, width, ROWS=triton.next_power_of_2(n_rows), COLUMNS=columns, num_warps=4
    )
    return out
