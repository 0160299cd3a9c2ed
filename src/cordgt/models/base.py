"""What a model must answer.

A model comes in two halves. Its *reader* turns queries into arrays: a pure function of (history, queries), without
parameters, that never looks at an event at or after ``cut``. Its *network* turns those arrays into logits: parameters
only, no sampler, no device, no file. The loop calls one after the other, so both can be tested and sped up alone.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.history import History, Queries


class Reader(Protocol):
    """The half that reads the past."""

    def pairs(self, history: History, queries: Queries) -> Any:
        """What the network needs to score the queries."""

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Any:
        """What the network needs to embed nodes at a time; node, t and cut are (B,)."""


class LinkModel(nn.Module):
    """The half that holds parameters. Adding a model is one file, and one line in the table of names."""

    reader: Reader
    trains = True  # False for a rule without parameters
    queries_at_once: int | None = None  # of a training batch on a CPU, if it may be worked off in parts
    pairs_at_once = 2000  # how many pairs are scored in one piece outside training: bounds the memory
    pairs_at_once_on_cpu: int | None = None  # where fewer, that fit its cache, are faster there
    halves = False  # True: it may be trained in bfloat16, because it keeps in float32 what that would spoil
    embeds = True  # False where the model has no embedding of a single node
    remembers = False  # True: in training a state goes from batch to batch, in one process; see `carried`
    by_number = False  # True: it learns something of each node by itself, so a new one is not like a known one
    transductive = False  # True: moreover it is made with n_nodes=, and has no figures for new nodes

    def prepare(self, history: History, cut: int) -> None:
        """What is learnt before the first epoch, from the first ``cut`` events of what training may see. Nothing."""

    def forward(self, batch: Any) -> Tensor:
        """Logits (B, M) for what ``reader.pairs`` read."""
        raise TypeError(f"{type(self).__name__} does not score pairs")

    def losses(self, batch: Any) -> Tensor:
        """(B,) what training makes small; the first candidate of a query is the true one. Cross-entropy by default."""
        logits = self(batch)  # (B, M)
        truth = torch.zeros_like(logits)
        truth[:, 0] = 1.0
        return F.binary_cross_entropy_with_logits(logits, truth, reduction="none").mean(dim=1)

    def embed(self, batch: Any) -> Tensor:
        """Embeddings (B, D) for what ``reader.nodes`` read."""
        raise TypeError(f"{type(self).__name__} does not embed nodes")

    def lacks(self, node: Tensor) -> Tensor:
        """(...,) True where a transductive model has nothing to say of a node, whatever its history. Never."""
        return torch.zeros_like(node, dtype=torch.bool)

    def carried(self) -> dict[str, Tensor]:
        """What training carries from batch to batch besides weights: it belongs in every checkpoint. Nothing."""
        return {}

    def carry_on(self, tensors: dict[str, Tensor]) -> None:
        """Go on training from what `carried` gave. KeyError where that was another model's."""
        if tensors:
            raise KeyError(f"{type(self).__name__} carries nothing")
