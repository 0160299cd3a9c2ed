"""Time encoding ``cos(t w + b)`` and its gradient, with a compiled loop for the CPU.

Models with a time encoding spend most of their CPU time here. Times are in seconds, so angles are large, and torch is
five times slower on large angles. The loop first reduces an angle to [-pi/2, pi/2] in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.runtime.kernel_loader import is_plain_forced

_ROUND = 1.5 * 2.0**52  # adding and subtracting it rounds to the nearest integer; rint is slower
# Taylor coefficients up to the 14th power: error below 1e-10 on [-pi/2, pi/2]
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = ((-1) ** i / math.factorial(2 * i) for i in range(8))
_S0, _S1, _S2, _S3, _S4, _S5, _S6 = ((-1) ** i / math.factorial(2 * i + 1) for i in range(7))


def encode_time(elapsed: Tensor, frequency: Tensor, phase: Tensor) -> Tensor:
    """Return ``cos(elapsed.float() * frequency + phase)``, (..., Dt) float32, for elapsed times (...,)."""
    elapsed = elapsed.to(frequency.dtype)
    if elapsed.device.type == "cpu" and frequency.dtype == torch.float32 and not is_plain_forced():
        out: Tensor = _CosineEncoding.apply(elapsed, frequency, phase)
        return out
    return torch.cos(elapsed.unsqueeze(-1) * frequency + phase)


class _CosineEncoding(torch.autograd.Function):
    """`encode_time` with gradients for frequencies and phases; times are data."""

    @staticmethod
    def forward(ctx: Any, elapsed: Tensor, frequency: Tensor, phase: Tensor) -> Tensor:
        t = elapsed.reshape(-1).contiguous()
        cos = t.new_empty(len(t), len(frequency))
        arrays = [x.detach().numpy() for x in (t, frequency, phase, cos)]
        if any(ctx.needs_input_grad):
            sin = torch.empty_like(cos)
            arrays.append(sin.numpy())
            _fill_cos_sin(*arrays)
            ctx.save_for_backward(t, sin)
        else:
            _fill_cos(*arrays)
        return cos.view(*elapsed.shape, len(frequency))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        t, sin = ctx.saved_tensors
        d_angle = sin * grad.reshape(sin.shape)  # negated
        return None, -(t @ d_angle), -d_angle.sum(dim=0)


@njit(inline="always")
def _reduce_angle(t, frequency, phase):  # type: ignore[no-untyped-def]
    """Return the angle reduced by half turns to [-pi/2, pi/2], and the sign that the half turns give."""
    angle = np.float64(np.float32(np.float32(t * frequency) + phase))
    half_turns = (angle * (1 / math.pi) + _ROUND) - _ROUND
    half = 0.5 * half_turns
    return angle - half_turns * math.pi, 1.0 - 4.0 * abs(half - ((half + _ROUND) - _ROUND))


@njit(inline="always")
def _cos(x):  # type: ignore[no-untyped-def]
    return _C0 + x * (_C1 + x * (_C2 + x * (_C3 + x * (_C4 + x * (_C5 + x * (_C6 + x * _C7))))))


@njit(inline="always")
def _sin(x):  # type: ignore[no-untyped-def]
    return _S0 + x * (_S1 + x * (_S2 + x * (_S3 + x * (_S4 + x * (_S5 + x * _S6)))))


@njit(parallel=True, cache=True)
def _fill_cos(t, frequency, phase, cos):  # type: ignore[no-untyped-def]
    for i in prange(len(t)):
        for k in range(len(frequency)):
            angle, sign = _reduce_angle(t[i], frequency[k], phase[k])
            cos[i, k] = sign * _cos(angle * angle)


@njit(parallel=True, cache=True)
def _fill_cos_sin(t, frequency, phase, cos, sin):  # type: ignore[no-untyped-def]
    for i in prange(len(t)):
        for k in range(len(frequency)):
            angle, sign = _reduce_angle(t[i], frequency[k], phase[k])
            square = angle * angle
            cos[i, k] = sign * _cos(square)
            sin[i, k] = sign * angle * _sin(square)
