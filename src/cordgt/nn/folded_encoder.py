"""The layers of CorDGT without gradients, on the CPU, for sequences of different lengths.

Every head is as wide as the model, so two products of weights are computed once and save most projections: queries
times keys, ``x Wq' Wk x'``, and values times the output, ``A x Wv' Wo'``. The states themselves are then keys and
values. A token with a count stands for so many equal tokens: it adds the logarithm of its count to its logits.

Torch reference: `cordgt.models.cordgt.CordgtLayer`, with every token repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_VALUES = 1 << 16  # values of tokens processed at once; the queries of all heads fit a core's cache


def encode_sequences(layers: Sequence[Any], tokens: Tensor, count: Tensor, length: Tensor) -> Tensor:
    """Return the mean state (S, D) of each sequence's tokens after the last layer.

    Shapes: tokens (N, D) and their counts (N,), one sequence after the other; length (S,), at least 1. All float32 or
    int64, in host memory.
    """
    folded = [_fold_attention(layer.attention) for layer in layers]
    pooled = tokens.new_empty(len(length), tokens.shape[1])
    for rows, place, present in _chunks(length, max(1, CHUNK_VALUES // tokens.shape[1])):
        multiplicity = torch.where(present, count[place], 0).to(tokens.dtype)  # (S, L)
        bias = multiplicity.log().unsqueeze(1)  # (S, 1, L); -inf for padding
        weight = (multiplicity / multiplicity.sum(dim=1, keepdim=True)).unsqueeze(1)  # (S, 1, L)
        x = tokens[place]  # (S, L, D)
        for layer, (query, out) in zip(layers, folded, strict=True):
            x = x + _attend(layer, layer.norm1(x), bias, query, out)
            hidden = F.relu(layer.fc1(layer.norm2(x)))
            if layer is not layers[-1]:
                x = x + layer.fc2(hidden)
        pooled[rows] = (weight @ x + layer.fc2(weight @ hidden)).squeeze(1)
    return pooled


def _attend(layer: Any, states: Tensor, bias: Tensor, query: Tensor, out: Tensor) -> Tensor:
    """Return the attention (S, L, D) of the normalized states (S, L, D)."""
    n, size, dim = states.shape
    queries = F.linear(states, query).view(n, -1, dim)  # (S, L H, D)
    weights = torch.baddbmm(bias, queries, states.transpose(1, 2)).softmax(dim=-1)  # (S, L H, L)
    return F.linear((weights @ states).view(n, size, -1), out, layer.attention.out.bias)


def _fold_attention(attention: Any) -> tuple[Tensor, Tensor]:
    """Return the queries' weight (H D, D), scaled and multiplied with the keys', and the values' and output's (D, H D).

    In float64, rounded once.
    """
    heads, dim = attention.heads, attention.dim
    q, k, v = attention.qkv.weight.double().view(3, heads, dim, dim)  # (H, D, D) each
    query = (k.transpose(1, 2) @ q) / math.sqrt(dim)
    out = attention.out.weight.double().view(dim, heads, dim).transpose(0, 1) @ v  # (H, D, D)
    return query.flatten(0, 1).float(), out.transpose(0, 1).flatten(1).float()


def _chunks(length: Tensor, max_tokens: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield sequences of similar lengths: their numbers (S,), the places of their tokens (S, L), and which exist."""
    start = length.cumsum(0) - length
    order = length.argsort(descending=True, stable=True)
    sizes, first = length[order].tolist(), 0
    while first < len(sizes):
        rows = order[first : first + max(1, max_tokens // sizes[first])]
        offset = torch.arange(sizes[first])
        present = offset < length[rows, None]
        yield rows, start[rows, None] + torch.where(present, offset, 0), present
        first += len(rows)
