"""The layers of CorDGT on a CPU, forward and backward, as one function.

Every head is as wide as the model, so two products of weights are computed once: queries times keys, ``x Wq' Wk x'``,
and values times the output, ``A x Wv' Wo'``. The normalized states themselves are then keys and values of all heads, no
tensor is copied, and most projections are saved. After the last layer only the mean of a sequence goes through the last
matrix.

A few sequences at a time go through all layers, so that they stay in a core's cache. Products are in float32, or in
bfloat16 under autocast. Everything between two products is one compiled loop (`cordgt.nn.cpu_loops`), in float32.

Torch reference: `cordgt.models.cordgt.CordgtLayer`.

Axes: S sequences, C slots, H heads, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cordgt.nn import cpu_loops as loops
from cordgt.nn.dropout import new_key
from cordgt.runtime import kernel_loader as kernels

BLOCK_VALUES = 1 << 19  # attention weights, or queries, of the sequences that go through the layers at once


def is_supported(x: Tensor, edge_x: Tensor | None = None) -> bool:
    """Return True if this module handles ``x``; otherwise use the torch reference.

    It gives no gradient of event features.
    """
    if edge_x is not None and edge_x.requires_grad:
        return False
    return x.device.type == "cpu" and x.dtype == torch.float32 and not kernels.is_plain_forced()


class LayerWeights(NamedTuple):
    """The weights of a layer, folded."""

    query: Tensor  # (H D, D): of the products of queries and keys, scaled
    out: Tensor  # (D, H D): from values to the output
    fc1: Tensor  # (4 D, D)
    fc2: Tensor  # (D, 4 D)
    event: Tensor  # (2 H D, De): from event features to keys, times the queries and scaled, and to values; or (0, 0)
    out_bias: Tensor
    fc1_bias: Tensor
    fc2_bias: Tensor
    scale1: Tensor  # of the layer norms
    shift1: Tensor
    scale2: Tensor
    shift2: Tensor


N_MATRICES = 5  # the first of `LayerWeights`: bfloat16 under autocast


class DropoutConstants(NamedTuple):
    """Threshold of the hash, and factor of the elements that dropout keeps."""

    threshold: np.uint32
    gain: np.float32

    @classmethod
    def of(cls, probability: float) -> DropoutConstants:
        """Return dropout with this probability."""
        return cls(np.uint32(min(int(probability * 2**32), 2**32 - 1)), np.float32(1 / (1 - probability)))


NO_KEY, NO_DROPOUT = np.uint32(0), DropoutConstants.of(0.0)


class SavedActivations(NamedTuple):
    """What the backward pass needs of some sequences in a layer."""

    x: Tensor  # (N, D) float32, N = S C
    stats1: Tensor  # (N, 2)
    normed1: Tensor  # (N, D)
    y: Tensor  # (S, C H, D)
    weights: Tensor  # (S, C H, C), negative where dropout drops them
    attended: Tensor  # (N, H D)
    x1: Tensor  # (N, D) float32
    stats2: Tensor  # (N, 2)
    normed2: Tensor  # (N, D)
    hidden: Tensor  # (N, 4 D)


def encode(layers: Any, x: Tensor, attn_mask: Tensor, edge_x: Tensor | None, pool: Tensor, dropout_p: float) -> Tensor:
    """Return the weighted mean (S, D) of each sequence's states after the last layer.

    Shapes: x (S, C, D) float32; attn_mask (S, C or 1, C), True: row i may attend to j; edge_x (S, C, De); pool (S, C),
    which sums to 1.
    """
    weights = [w for layer in layers for w in _fold(layer)]
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    needs_grad = torch.is_grad_enabled()
    key = new_key() if dropout_p else 0
    attention = layers[0].attention
    with torch.autocast("cpu", enabled=False):
        pooled: Tensor = _Encoder.apply(
            x,
            attn_mask.contiguous(),
            edge_x,
            pool,
            DropoutConstants.of(dropout_p),
            key,
            dtype,
            attention,
            needs_grad,
            *weights,
        )
    return pooled


def _fold(layer: Any) -> LayerWeights:
    """Return a layer's weights, with queries folded into keys, and values into the output."""
    attention = layer.attention
    heads, dim = attention.heads, attention.dim
    with torch.autocast("cpu", enabled=False):
        q, k, v = attention.qkv.weight.view(3, heads, dim, dim)  # (H, D, D) each
        query = (k.transpose(1, 2) @ q) / math.sqrt(dim)
        out = attention.out.weight.view(dim, heads, dim).transpose(0, 1) @ v
        event = query.new_zeros(0, 0)
        if attention.edge_kv is not None:
            event_k, event_v = attention.edge_kv.weight.view(2, heads, dim, -1)  # (H, D, De) each
            event_k = (q.transpose(1, 2) @ event_k) / math.sqrt(dim)
            event_v = attention.out.weight.view(dim, heads, dim).transpose(0, 1) @ event_v
            event = torch.stack([event_k, event_v]).flatten(0, 2)
        return LayerWeights(
            query=query.flatten(0, 1),
            out=out.transpose(0, 1).flatten(1),
            fc1=layer.fc1.weight,
            fc2=layer.fc2.weight,
            event=event,
            out_bias=attention.out.bias,
            fc1_bias=layer.fc1.bias,
            fc2_bias=layer.fc2.bias,
            scale1=layer.norm1.weight,
            shift1=layer.norm1.bias,
            scale2=layer.norm2.weight,
            shift2=layer.norm2.bias,
        )


class _Encoder(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        attn_mask: Tensor,
        edge_x: Tensor | None,
        pool: Tensor,
        dropout: DropoutConstants,
        key: int,
        dtype: torch.dtype,
        attention: Any,
        needs_grad: bool,
        *weights: Tensor,
    ) -> Tensor:
        n, size, dim = x.shape
        layers = _split_layers(weights, dtype)
        block = max(1, BLOCK_VALUES // (size * attention.heads * max(size, dim)))
        pooled, saved = torch.empty(n, dim), []
        for start in range(0, n, block):
            rows = slice(start, min(n, start + block))
            events = None if edge_x is None else edge_x[rows].to(dtype)
            of_block = _Block(layers, attn_mask[rows], events, pool[rows], dropout, key, start, attention)
            pooled[rows] = of_block.forward(x[rows], needs_grad)
            if needs_grad:
                saved.append(of_block)
        ctx.blocks, ctx.layers, ctx.shape = saved, layers, x.shape
        return pooled

    @staticmethod
    def backward(ctx: Any, d_pooled: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.blocks is None:
            raise RuntimeError("The layers can go backward once: what they saved is freed. Compute the states again.")
        blocks, ctx.blocks = ctx.blocks, None
        gradients = [LayerWeights(*(torch.zeros(w.shape) for w in layer)) for layer in ctx.layers]
        d_x, start = d_pooled.new_empty(ctx.shape), 0
        for block in blocks:
            rows = slice(start, start + len(block.pool))
            d_x[rows] = block.backward(d_pooled[rows], gradients)
            start = rows.stop
        return d_x, *(None,) * 8, *(g for layer in gradients for g in layer)


def _split_layers(weights: Sequence[Tensor], dtype: torch.dtype) -> list[LayerWeights]:
    """Return the weights layer by layer, matrices in ``dtype``."""
    width = len(LayerWeights._fields)
    parts = [weights[i : i + width] for i in range(0, len(weights), width)]
    return [
        LayerWeights(*(w.detach().to(dtype) for w in p[:N_MATRICES]), *(w.detach() for w in p[N_MATRICES:]))
        for p in parts
    ]


class _Block:
    """Some sequences on their way through the layers."""

    def __init__(
        self,
        layers: list[LayerWeights],
        attn_mask: Tensor,
        edge_x: Tensor | None,
        pool: Tensor,
        dropout: DropoutConstants,
        key: int,
        first: int,
        attention: Any,
    ) -> None:
        self.layers, self.pool, self.dropout, self.edge_x = layers, pool, dropout, edge_x
        self.heads, self.parent = attention.heads, as_numpy(attention.parent)
        self.attn_mask, self.first_sequence, self.key = attn_mask.view(torch.uint8), first, key
        self.saved: list[SavedActivations] = []
        self.pooled_hidden = pool

    def forward(self, x: Tensor, needs_grad: bool) -> Tensor:
        """Return the pooled states (S, D) of x (S, C, D). ``needs_grad``: keep what `backward` reads."""
        n, size, dim = x.shape
        dtype = self.layers[0].query.dtype
        x = x.reshape(-1, dim)
        change, bias = torch.zeros(1, dtype=dtype).expand(x.shape), torch.zeros(dim)
        for number, w in enumerate(self.layers):
            x, normed1, stats1 = self._add_norm(x, change, bias, w.scale1, w.shift1)
            y = (normed1 @ w.query.T).view(n, -1, dim)
            keys = normed1.view(n, size, dim)
            attended_weights = y @ keys.transpose(1, 2)  # (S, C H, C), logits until the loop overwrites them
            event = self._event(w)
            if event is not None:
                loops.add_event_logits(as_numpy(keys), as_numpy(event), self.parent, as_numpy(attended_weights))
            weights = torch.empty_like(attended_weights)
            loops.softmax_dropout(
                as_numpy(attended_weights),
                as_numpy(self.attn_mask),
                as_numpy(weights),
                as_numpy(attended_weights),
                self._key(2 * number),
                np.uint32(self.first_sequence * attended_weights[0].numel() % 2**32),
                *self.dropout,
            )
            attended = (attended_weights @ keys).view(len(x), -1)
            change = attended @ w.out.T
            if event is not None:
                change = change.float()
                loops.add_event_values(
                    as_numpy(attended_weights), as_numpy(event), self.parent, as_numpy(change.view(n, size, dim))
                )
            x1, normed2, stats2 = self._add_norm(
                x, change, w.out_bias, w.scale2, w.shift2, self._key(2 * number + 1), self.dropout
            )
            hidden = normed2 @ w.fc1.T
            loops.add_relu(as_numpy(hidden), as_numpy(w.fc1_bias))
            if needs_grad:
                self.saved.append(
                    SavedActivations(x, stats1, normed1, y, weights, attended, x1, stats2, normed2, hidden)
                )
            if number < len(self.layers) - 1:
                x, change, bias = x1, hidden @ w.fc2.T, w.fc2_bias
        pool = self.pool.unsqueeze(1)  # (S, 1, C)
        self.pooled_hidden = (pool.to(dtype) @ hidden.view(n, size, -1)).squeeze(1)
        return (pool @ x1.view(n, size, dim)).squeeze(1) + (self.pooled_hidden @ w.fc2.T).float() + w.fc2_bias

    def backward(self, d_pooled: Tensor, gradients: list[LayerWeights]) -> Tensor:
        """Add to ``gradients``; return the gradient of the first states (S, C, D). d_pooled: (S, D)."""
        n, size = self.pool.shape
        dtype = self.layers[0].query.dtype
        last, g = self.layers[-1], gradients[-1]
        d_pooled = d_pooled.contiguous()
        d_out = d_pooled.to(dtype)
        g.fc2.add_(d_out.T @ self.pooled_hidden)
        g.fc2_bias.add_(d_pooled.sum(0))
        pool = self.pool.unsqueeze(-1)  # (S, C, 1)
        d_x = (pool * d_pooled.unsqueeze(1)).flatten(0, 1)  # (N, D)
        d_hidden = (pool.to(dtype) * (d_out @ last.fc2).unsqueeze(1)).flatten(0, 1)
        for number in reversed(range(len(self.layers))):
            w, g, saved = self.layers[number], gradients[number], self.saved.pop()
            if number < len(self.layers) - 1:
                d_out = d_x.to(dtype)
                g.fc2.add_(d_out.T @ saved.hidden)
                g.fc2_bias.add_(d_x.sum(0))
                d_hidden = d_out @ w.fc2
            loops.add_relu_backward(as_numpy(d_hidden), as_numpy(saved.hidden), as_numpy(g.fc1_bias))
            g.fc1.add_(d_hidden.T @ saved.normed2)
            loops.norm_backward(
                as_numpy(d_hidden @ w.fc1),
                as_numpy(saved.x1),
                as_numpy(saved.stats2),
                as_numpy(w.scale2),
                as_numpy(d_x),
                as_numpy(g.scale2),
                as_numpy(g.shift2),
            )
            self._attention_backward(number, saved, d_x, g)
        return d_x.view(n, size, -1)

    def _attention_backward(self, number: int, saved: SavedActivations, d_x: Tensor, g: LayerWeights) -> None:
        """Add to ``d_x``, until now the gradient after attention, and to ``g``."""
        n, size = self.pool.shape
        w = self.layers[number]
        d_out = torch.empty(d_x.shape, dtype=w.out.dtype)
        loops.dropout_backward(
            as_numpy(d_x),
            self._key(2 * number + 1),
            self._first_element(d_x),
            *self.dropout,
            as_numpy(d_out),
            as_numpy(g.out_bias),
        )
        g.out.add_(d_out.T @ saved.attended)
        keys = saved.normed1.view(n, size, -1)  # (S, C, D)
        d_attended = (d_out @ w.out).view(saved.y.shape)  # (S, C H, D)
        d_logits, attended_weights = d_attended @ keys.transpose(1, 2), torch.empty_like(saved.weights)
        event = self._event(w)
        if event is not None:
            d_event, by_slot = torch.empty_like(event), as_numpy(d_out.view(keys.shape))
            loops.add_event_values_backward(
                by_slot,
                as_numpy(saved.weights),
                as_numpy(event),
                self.parent,
                self.dropout.gain,
                as_numpy(d_logits),
                as_numpy(d_event),
            )
        loops.softmax_dropout_backward(
            as_numpy(saved.weights), as_numpy(d_logits), as_numpy(attended_weights), self.dropout.gain
        )
        d_y = (d_logits @ keys).view(len(d_x), -1)
        g.query.add_(d_y.T @ saved.normed1)
        d_normed = (attended_weights.transpose(1, 2) @ d_attended).float()
        d_normed += d_logits.transpose(1, 2) @ saved.y
        if event is not None and self.edge_x is not None:
            loops.add_event_logits_backward(
                as_numpy(d_logits), as_numpy(keys), as_numpy(event), self.parent, as_numpy(d_normed), as_numpy(d_event)
            )
            g.event.add_(d_event.view(len(d_x), -1).T @ self.edge_x.flatten(0, 1))
        d_normed = d_normed.view(d_x.shape)
        d_normed += d_y @ w.query
        loops.norm_backward(
            as_numpy(d_normed),
            as_numpy(saved.x),
            as_numpy(saved.stats1),
            as_numpy(w.scale1),
            as_numpy(d_x),
            as_numpy(g.scale1),
            as_numpy(g.shift1),
        )

    def _event(self, w: LayerWeights) -> Tensor | None:
        """Return the keys and values of the events that led to the slots, (S, C, 2, H, D); None without features."""
        if self.edge_x is None:
            return None
        return (self.edge_x @ w.event.T).unflatten(-1, (2, self.heads, -1))

    def _add_norm(
        self,
        x: Tensor,
        change: Tensor,
        bias: Tensor,
        scale: Tensor,
        shift: Tensor,
        key: np.uint32 = NO_KEY,
        dropout: DropoutConstants = NO_DROPOUT,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return x + dropout(change + bias), its layer norm, and the mean and 1 / std of each row."""
        out, normed, stats = (
            torch.empty_like(x),
            torch.empty(x.shape, dtype=self.layers[0].query.dtype),
            x.new_empty(len(x), 2),
        )
        loops.add_norm(
            as_numpy(x),
            as_numpy(change),
            as_numpy(bias),
            key,
            self._first_element(x),
            *dropout,
            as_numpy(out),
            as_numpy(normed),
            as_numpy(stats),
            as_numpy(scale),
            as_numpy(shift),
        )
        return out, normed, stats

    def _key(self, number: int) -> np.uint32:
        """Return the key of a layer's dropout."""
        return np.uint32((self.key + 0x3C6EF372 * number) % 2**32)

    def _first_element(self, x: Tensor) -> np.uint32:
        """Return the number of the first element of x (N, D), among all sequences."""
        return np.uint32(self.first_sequence * (x.numel() // len(self.pool)) % 2**32)


def as_numpy(x: Tensor) -> np.ndarray:
    """Return a tensor as an array that shares its memory; bfloat16 as uint16."""
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def embedding_sum(table: Tensor, rows: Tensor) -> Tensor:
    """Return the sums (N, D) of K rows each of a table (V, D) float32. rows: (K, N) int64.

    As `F.embedding_bag` with ``mode="sum"``, with a faster backward pass.
    """
    total: Tensor = _EmbeddingSum.apply(table, rows.contiguous())
    return total


class _EmbeddingSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.rows, ctx.shape = rows, table.shape
        out = table.new_empty(rows.shape[1], table.shape[1])
        loops.embedding_sum(as_numpy(table.detach().contiguous()), as_numpy(rows), as_numpy(out))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_table = grad.new_zeros(ctx.shape)
        loops.embedding_sum_backward(as_numpy(grad.contiguous()), as_numpy(ctx.rows), as_numpy(d_table))
        return d_table, None
