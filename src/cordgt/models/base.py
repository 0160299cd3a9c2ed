"""What a model must answer.

A model comes in two halves. Its *reader* turns queries into arrays: a pure function of (history, queries), without
parameters, that never looks at an event at or after ``cut``. Its *network* turns those arrays into logits: parameters
only, no sampler, no device, no file. The loop calls one after the other, so both can be tested and sped up alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import SettingError
from cordgt.past.history import History, Queries


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
    pairs_at_once = 2000  # how many pairs are scored in one piece outside training: bounds the memory
    halves = False  # True: it may be trained in bfloat16, because it keeps in float32 what that would spoil
    embeds = True  # False where the model has no embedding of a single node
    uses_features = True  # False where those of nodes and events make no difference
    remembers = False  # True: in training a state goes from batch to batch, in one process; see `carried`
    ranks = False  # True: it learns to rank a source's partners, so that scores of different sources do not compare
    by_number = False  # True: it learns something of each node by itself, so a new one is not like a known one
    transductive = False  # True: likewise, and it is made with n_nodes= and has no figures for new nodes

    @property
    def queries_at_once(self) -> int | None:
        """Of a training batch on a CPU, two candidates each, if it may be worked off in parts: what fits its caches.

        As many pairs are scored in one piece there outside training.
        """
        return None

    def works_apart(self) -> bool:
        """Whether threads of a CPU may each work off a part of a batch, or of an evaluation, at the same time.

        True where ``forward`` keeps nothing, draws only through `cordgt.models.attention`, and runs no parallel
        compiled loop.
        """
        return False

    def read(self, history: History, queries: Queries) -> Any:
        """What the reader's ``pairs`` reads, moved to the network: they lie apart where the past outgrows the GPU."""
        self.check_beside(history.index.device)
        return moved(self.reader.pairs(history, queries), self.device)

    def read_nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Any:
        """What the reader's ``nodes`` reads, moved to the network."""
        self.check_beside(history.index.device)
        return moved(self.reader.nodes(history, node, t, cut), self.device)

    def check_beside(self, past: torch.device) -> None:
        """SettingError where the model keeps a state beside the past, which lies elsewhere."""
        if self.remembers and self.device is not None and past.type != self.device.type:
            raise SettingError(
                f"{type(self).__name__} keeps its memory beside the past, which is too large for the GPU and lies on "
                "the host: use --device cpu."
            )

    @property
    def device(self) -> torch.device | None:
        """Where the network computes; None: wherever the past lies, for it has no weights."""
        weight = next(self.parameters(), None)
        return None if weight is None else weight.device

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

    def heard(self, cut: Tensor) -> Tensor:
        """(...,) how many of the first ``cut`` events can have reached an answer: all, but for a memory's last ones."""
        return cut

    @classmethod
    def remark(cls, settings: Any, n_events: int, batch_size: int) -> str:
        """What a person should know before it is trained on so few events; empty: nothing."""
        return ""

    def carried(self) -> dict[str, Tensor]:
        """What training carries from batch to batch besides weights: it belongs in every checkpoint. Nothing."""
        return {}

    def carry_on(self, tensors: dict[str, Tensor]) -> None:
        """Go on training from what `carried` gave. KeyError where that was another model's."""
        if tensors:
            raise KeyError(f"{type(self).__name__} carries nothing")


def moved(read: Any, device: torch.device | None) -> Any:
    """What a reader read, with its tensors on a device; as it is where None is given."""
    return read if device is None else mapped(read, lambda x: x.to(device))


def mapped(read: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What a reader read, whatever it is made of, with every tensor changed. A dataclass where none did is itself."""
    if isinstance(read, Tensor):
        return change(read)
    if isinstance(read, list | tuple):
        parts = [mapped(part, change) for part in read]
        return type(read)(*parts) if hasattr(read, "_fields") else type(read)(parts)
    if isinstance(read, dict):
        return {name: mapped(part, change) for name, part in read.items()}
    if not is_dataclass(read) or isinstance(read, type):
        return read
    own = {field.name: getattr(read, field.name) for field in fields(read)}
    others = {name: mapped(part, change) for name, part in own.items()}
    return read if all(others[name] is part for name, part in own.items()) else replace(read, **others)


def tensors(read: Any) -> list[Tensor]:
    """Every tensor in what a reader read, whatever it is made of, in one order."""
    found: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        found.append(x)
        return x

    mapped(read, keep)
    return found
