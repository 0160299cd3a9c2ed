"""The interface of a model.

A model has two halves. Its *reader* turns queries into arrays. It is a pure function of (history, queries), has no
parameters and never looks at an event at or after ``cut``. Its *network* turns those arrays into logits. It has
parameters only: no sampler, no device, no file. The training loop calls one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import SettingError
from cordgt.history.queries import History, Queries


class HistoryReader(Protocol):
    """The half that reads the past."""

    def pairs(self, history: History, queries: Queries) -> Any:
        """The network's input for scoring the queries."""

    def nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Any:
        """The network's input for embedding nodes at a time; node, t and cut are (B,)."""


class LinkModel(nn.Module):
    """The half that holds parameters. A new model is one file, and one line in `cordgt.models.MODELS`."""

    reader: HistoryReader
    is_trainable = True  # False: a rule without parameters
    max_pairs_per_batch = 2000  # pairs scored at once outside training; bounds the memory
    supports_bf16 = False  # trains safely under bfloat16 autocast
    has_embeddings = True  # False: has no embedding of a single node
    uses_features = True  # False: ignores the features of nodes and events
    is_stateful = False  # carries state from batch to batch (single process only); see `get_training_state`
    learns_ranking = False  # ranks the candidates of one source; scores of different sources do not compare
    uses_node_ids = False  # learns a table per node id, so an unseen node differs from a known one
    is_transductive = False  # likewise; its constructor takes n_nodes=, and it has no metrics for unseen nodes

    @property
    def micro_batch_size(self) -> int | None:
        """Queries with two candidates each that fit a CPU's caches; None: a batch cannot be split.

        A CPU trains a batch in parts of this size, and scores twice as many pairs at once outside training.
        """
        return None

    def is_thread_safe(self) -> bool:
        """Whether several CPU threads may each process a part of a batch, or of an evaluation, at the same time.

        True if ``forward`` stores nothing, draws only through `cordgt.nn.attention`, and runs no parallel
        compiled loop.
        """
        return False

    def read(self, history: History, queries: Queries) -> Any:
        """The reader's ``pairs``, on the network's device, which differs from the index's if that outgrows the GPU."""
        self.check_same_device(history.index.device)
        return to_device(self.reader.pairs(history, queries), self.device)

    def read_nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Any:
        """The reader's ``nodes``, on the network's device."""
        self.check_same_device(history.index.device)
        return to_device(self.reader.nodes(history, node, t, cut), self.device)

    def check_same_device(self, index_device: torch.device) -> None:
        """SettingError if a stateful model and the index are on different devices."""
        if self.is_stateful and self.device is not None and index_device.type != self.device.type:
            raise SettingError(
                f"{type(self).__name__} needs its memory and the events on one device, but the events do not fit the "
                "GPU and stay on the host. Use --device cpu."
            )

    @property
    def device(self) -> torch.device | None:
        """Where the network computes; None if it has no weights: it then computes where the index is."""
        weight = next(self.parameters(), None)
        return None if weight is None else weight.device

    def prepare(self, history: History, cut: int) -> None:
        """Learn from the first ``cut`` training events before the first epoch. Nothing by default."""

    def forward(self, batch: Any) -> Tensor:
        """Logits (B, M) for the output of ``reader.pairs``."""
        raise TypeError(f"{type(self).__name__} does not score pairs")

    def losses(self, batch: Any) -> Tensor:
        """Losses (B,). The first candidate of a query is the true one. Binary cross-entropy by default."""
        logits = self(batch)  # (B, M)
        truth = torch.zeros_like(logits)
        truth[:, 0] = 1.0
        return F.binary_cross_entropy_with_logits(logits, truth, reduction="none").mean(dim=1)

    def embed(self, batch: Any) -> Tensor:
        """Embeddings (B, D) for the output of ``reader.nodes``."""
        raise TypeError(f"{type(self).__name__} does not embed nodes")

    def is_unknown(self, node: Tensor) -> Tensor:
        """(...,) True where a transductive model cannot score a node, whatever its history. Never by default."""
        return torch.zeros_like(node, dtype=torch.bool)

    def visible_events(self, cut: Tensor) -> Tensor:
        """(...,) how many of the first ``cut`` events can influence an answer. All by default."""
        return cut

    @classmethod
    def training_hint(cls, settings: Any, n_events: int, batch_size: int) -> str:
        """Advice for training on ``n_events`` events; empty if there is none."""
        return ""

    def get_training_state(self) -> dict[str, Tensor]:
        """What training carries from batch to batch besides weights. It is part of every checkpoint.

        Not torch's ``get_extra_state``: `state_dict` would call that, and put the state into the weights.
        """
        return {}

    def set_training_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue training from a `get_training_state`. KeyError if it is another model's."""
        if tensors:
            raise KeyError(f"{type(self).__name__} carries no training state")


def to_device(read: Any, device: torch.device | None) -> Any:
    """A reader's output with its tensors on a device; unchanged if the device is None."""
    return read if device is None else map_tensors(read, lambda x: x.to(device))


def map_tensors(read: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A reader's output, of any nesting, with every tensor changed. A dataclass without a change is returned itself."""
    if isinstance(read, Tensor):
        return change(read)
    if isinstance(read, list | tuple):
        parts = [map_tensors(part, change) for part in read]
        return type(read)(*parts) if hasattr(read, "_fields") else type(read)(parts)
    if isinstance(read, dict):
        return {name: map_tensors(part, change) for name, part in read.items()}
    if not is_dataclass(read) or isinstance(read, type):
        return read
    old = {field.name: getattr(read, field.name) for field in fields(read)}
    new = {name: map_tensors(part, change) for name, part in old.items()}
    return read if all(new[name] is part for name, part in old.items()) else replace(read, **new)


def list_tensors(read: Any) -> list[Tensor]:
    """Every tensor in a reader's output, of any nesting, in a fixed order."""
    found: list[Tensor] = []

    def collect(x: Tensor) -> Tensor:
        found.append(x)
        return x

    map_tensors(read, collect)
    return found
