"""Compiled loops for the layers of CorDGT on a CPU: everything between two matrix products in one pass.

Arrays hold float32, or bfloat16 as the upper halves of float32 (uint16). Sums are in float32. Dropout is a hash of
(key, element), so both passes can recompute it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

EPS = np.float32(1e-5)  # of `torch.nn.LayerNorm`
LOWEST = np.float32(-3e38)
FAST = {"reassoc", "contract", "nsz", "arcp"}  # so that LLVM vectorizes sums; NaN and infinity keep their meaning


def to_float(value: Any) -> Any:
    """Return the float32 of an element."""


def from_float(value: Any, like: Any) -> Any:
    """Return a float32 as an element of the type of ``like``, rounded to the nearest even."""


@overload(to_float, inline="always")
def _to_float(value):  # type: ignore[no-untyped-def]
    if isinstance(value, types.Integer):
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@overload(from_float, inline="always")
def _from_float(value, like):  # type: ignore[no-untyped-def]
    if isinstance(like, types.Integer):

        def rounded(value, like):  # type: ignore[no-untyped-def]
            bits = np.float32(value).view(np.uint32)
            odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
            return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

        return rounded
    return lambda value, like: value


@njit(inline="always")
def is_kept(key, i, threshold):  # type: ignore[no-untyped-def]
    """Return whether dropout keeps element ``i``."""
    z = np.uint32(key + np.uint32(np.uint32(i) * np.uint32(0x9E3779B1)))
    z = np.uint32((z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D))
    z = np.uint32((z ^ (z >> np.uint32(15))) * np.uint32(0x846CA68B))
    z = np.uint32(z ^ (z >> np.uint32(16)))
    return z >= threshold


@njit(inline="always")
def sortable(x):  # type: ignore[no-untyped-def]
    """Return an integer that sorts as the float ``x``: the maximum of integers vectorizes."""
    bits = np.float32(x).view(np.int32)
    return np.int32(bits ^ np.int32((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(inline="always")
def unsortable(key):  # type: ignore[no-untyped-def]
    """Return the float of `sortable`."""
    return np.int32(key ^ np.int32((key >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@njit(inline="always")
def exp(x):  # type: ignore[no-untyped-def]
    """Return exp(x) for x <= 0, with a relative error below 3e-7; 0 below -80. Unlike `math.exp` it vectorizes."""
    t = max(x, np.float32(-80.0)) * np.float32(1.44269504)
    n = np.floor(t)
    f = t - n
    p = np.float32(1.8775767e-3)
    p = p * f + np.float32(8.9893397e-3)
    p = p * f + np.float32(5.5826318e-2)
    p = p * f + np.float32(2.4015361e-1)
    p = p * f + np.float32(6.9315308e-1)
    p = p * f + np.float32(9.9999994e-1)
    y = p * np.uint32(np.int32(np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return y if x > np.float32(-80.0) else np.float32(0)


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def softmax_dropout(logits, attn_mask, weights, attended_weights, key, first, threshold, gain):  # type: ignore[no-untyped-def]
    """Write softmax(logits) into ``weights``, negative where dropout drops a weight.

    Write the weights after dropout into ``attended_weights``. Shapes: logits, weights, attended_weights (S, C H, C);
    attn_mask (S, C or 1, C) uint8. ``first``: number of the first element for dropout.
    """
    n, n_rows, size = logits.shape
    heads = n_rows // size
    row = np.empty(size, np.float32)
    bias = np.empty(size, np.float32)
    for s in range(n):
        for r in range(n_rows):
            if r == 0 or (attn_mask.shape[1] > 1 and r % heads == 0):
                for j in range(size):
                    bias[j] = np.float32(0) if attn_mask[s, min(r // heads, attn_mask.shape[1] - 1), j] else LOWEST
            logit, weight, drop = logits[s, r], weights[s, r], attended_weights[s, r]
            top = np.int32(-(2**31))
            for j in range(size):
                x = to_float(logit[j]) + bias[j]
                row[j] = x
                top = max(top, sortable(x))
            largest = unsortable(top)
            total = np.float32(0)
            for j in range(size):
                x = exp(row[j] - largest)
                row[j] = x
                total += x
            scale = np.float32(1) / total
            start = np.uint32(first + (s * n_rows + r) * size)
            for j in range(size):
                x = row[j] * scale
                keep = is_kept(key, start + np.uint32(j), threshold)
                weight[j] = from_float(x if keep else -x, weight[j])
                drop[j] = from_float(x * gain if keep else np.float32(0), drop[j])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def softmax_dropout_backward(weights, grad, attended_weights, gain):  # type: ignore[no-untyped-def]
    """Turn the gradient of ``attended_weights`` into that of the logits, in place; write ``attended_weights`` again."""
    n, n_rows, size = weights.shape
    row = np.empty(size, np.float32)
    for s in range(n):
        for r in range(n_rows):
            total = np.float32(0)
            for j in range(size):
                w = to_float(weights[s, r, j])
                kept = w * gain if w > 0 else np.float32(0)
                attended_weights[s, r, j] = from_float(kept, attended_weights[s, r, j])
                row[j] = kept * to_float(grad[s, r, j])  # weight x its gradient
                total += row[j]
            for j in range(size):
                w = abs(to_float(weights[s, r, j]))
                grad[s, r, j] = from_float(row[j] - w * total, grad[s, r, j])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_norm(x, change, bias, key, first, threshold, gain, out, normed, stats, scale, shift):  # type: ignore[no-untyped-def]
    """Write x + dropout(change + bias) into ``out``, its layer norm into ``normed``, mean and 1 / std into ``stats``.

    Shapes: (N, D), bias, scale, shift (D,), stats (N, 2). ``first``: number of the first element for dropout.
    """
    n, dim = x.shape
    for i in range(n):
        start = np.uint32(first + i * dim)
        total = np.float32(0)
        for j in range(dim):
            keep = is_kept(key, start + np.uint32(j), threshold)
            y = x[i, j] + ((to_float(change[i, j]) + bias[j]) * gain if keep else np.float32(0))
            out[i, j] = y
            total += y
        mean = total / np.float32(dim)
        square = np.float32(0)
        for j in range(dim):
            square += (out[i, j] - mean) * (out[i, j] - mean)
        inverse = np.float32(1) / np.sqrt(square / np.float32(dim) + EPS)
        stats[i, 0], stats[i, 1] = mean, inverse
        for j in range(dim):
            normed[i, j] = from_float((out[i, j] - mean) * inverse * scale[j] + shift[j], normed[i, j])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def norm_backward(grad, x, stats, scale, d_x, d_scale, d_shift):  # type: ignore[no-untyped-def]
    """Add the gradients of a layer norm of x (N, D) to ``d_x``, ``d_scale``, ``d_shift``. ``grad``: of its result."""
    n, dim = x.shape
    for i in range(n):
        mean, inverse = stats[i, 0], stats[i, 1]
        first = second = np.float32(0)
        for j in range(dim):
            y = (x[i, j] - mean) * inverse
            g = to_float(grad[i, j])
            d_shift[j] += g
            d_scale[j] += g * y
            first += g * scale[j]
            second += g * scale[j] * y
        first, second = first / np.float32(dim), second / np.float32(dim)
        for j in range(dim):
            y = (x[i, j] - mean) * inverse
            d_x[i, j] += inverse * (to_float(grad[i, j]) * scale[j] - first - y * second)


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def dropout_backward(grad, key, first, threshold, gain, out, d_bias):  # type: ignore[no-untyped-def]
    """Write the gradient of ``change`` in `add_norm` into ``out``, and add that of ``bias`` to ``d_bias``."""
    n, dim = grad.shape
    for i in range(n):
        start = np.uint32(first + i * dim)
        for j in range(dim):
            g = grad[i, j] * gain if is_kept(key, start + np.uint32(j), threshold) else np.float32(0)
            out[i, j] = from_float(g, out[i, j])
            d_bias[j] += g


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_relu(x, bias):  # type: ignore[no-untyped-def]
    """Turn x (N, D) into relu(x + bias), in place."""
    n, dim = x.shape
    for i in range(n):
        for j in range(dim):
            x[i, j] = from_float(max(to_float(x[i, j]) + bias[j], np.float32(0)), x[i, j])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_relu_backward(grad, hidden, d_bias):  # type: ignore[no-untyped-def]
    """Turn the gradient of the result ``hidden`` into that of the input, in place; add it to ``d_bias``."""
    n, dim = grad.shape
    for i in range(n):
        for j in range(dim):
            g = to_float(grad[i, j]) if to_float(hidden[i, j]) > 0 else np.float32(0)
            grad[i, j] = from_float(g, grad[i, j])
            d_bias[j] += g


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def embedding_sum(table, rows, out):  # type: ignore[no-untyped-def]
    """Write the sum of some rows of a table (V, D) into ``out`` (N, D). rows: (K, N), which K rows each sum has."""
    for i in range(len(out)):
        for j in range(table.shape[1]):
            out[i, j] = table[rows[0, i], j]
        for k in range(1, len(rows)):
            for j in range(table.shape[1]):
                out[i, j] += table[rows[k, i], j]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def embedding_sum_backward(grad, rows, d_table):  # type: ignore[no-untyped-def]
    """Add the gradient of `embedding_sum` to ``d_table``."""
    for i in range(len(grad)):
        for k in range(len(rows)):
            for j in range(grad.shape[1]):
                d_table[rows[k, i], j] += grad[i, j]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_event_logits(normed, event, parent, logits):  # type: ignore[no-untyped-def]
    """Add the products of each parent's state and its children's event keys to ``logits``, in place.

    Shapes: normed (S, C, D), event (S, C, 2, H, D): keys, then values; parent (C,), logits (S, C H, C).
    """
    n, size, _, heads, dim = event.shape
    for s in range(n):
        for j in range(1, size):
            p = parent[j]
            for h in range(heads):
                total = np.float32(0)
                for d in range(dim):
                    total += to_float(normed[s, p, d]) * to_float(event[s, j, 0, h, d])
                logits[s, p * heads + h, j] = from_float(to_float(logits[s, p * heads + h, j]) + total, logits[s, 0, 0])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_event_values(attended_weights, event, parent, out):  # type: ignore[no-untyped-def]
    """Add each child's event values, weighted by its parent's attention, to its parent's row of ``out`` (S, C, D)."""
    n, size, _, heads, dim = event.shape
    for s in range(n):
        for j in range(1, size):
            p = parent[j]
            for h in range(heads):
                w = to_float(attended_weights[s, p * heads + h, j])
                for d in range(dim):
                    out[s, p, d] += w * to_float(event[s, j, 1, h, d])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_event_values_backward(d_out, weights, event, parent, gain, d_attended_weights, d_event):  # type: ignore[no-untyped-def]
    """Add to ``d_attended_weights``, and write the values' part of ``d_event``.

    ``weights`` are those of `softmax_dropout`: negative where dropout drops a weight.
    """
    n, size, _, heads, dim = event.shape
    for s in range(n):
        for h in range(heads):
            for d in range(dim):
                d_event[s, 0, 1, h, d] = from_float(np.float32(0), d_event[s, 0, 1, h, d])
        for j in range(1, size):
            p = parent[j]
            for h in range(heads):
                w = to_float(weights[s, p * heads + h, j])
                kept = w * gain if w > 0 else np.float32(0)
                total = np.float32(0)
                for d in range(dim):
                    g = to_float(d_out[s, p, d])
                    total += g * to_float(event[s, j, 1, h, d])
                    d_event[s, j, 1, h, d] = from_float(kept * g, d_event[s, j, 1, h, d])
                before = to_float(d_attended_weights[s, p * heads + h, j])
                d_attended_weights[s, p * heads + h, j] = from_float(before + total, d_attended_weights[s, 0, 0])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_event_logits_backward(d_logits, normed, event, parent, d_normed, d_event):  # type: ignore[no-untyped-def]
    """Add to ``d_normed`` (S, C, D) float32 and write the keys' part of ``d_event``."""
    n, size, _, heads, dim = event.shape
    for s in range(n):
        for h in range(heads):
            for d in range(dim):
                d_event[s, 0, 0, h, d] = from_float(np.float32(0), d_event[s, 0, 0, h, d])
        for j in range(1, size):
            p = parent[j]
            for h in range(heads):
                g = to_float(d_logits[s, p * heads + h, j])
                for d in range(dim):
                    d_normed[s, p, d] += g * to_float(event[s, j, 0, h, d])
                    d_event[s, j, 0, h, d] = from_float(g * to_float(normed[s, p, d]), d_event[s, j, 0, h, d])
