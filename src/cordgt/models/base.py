"""The interface of a model.

A model has two parts. Its *reader* turns queries into tensors. It is a pure function of (history, queries), has no
parameters and never looks at an event at or after ``cut``. Its *network* turns those arrays into logits. It has
parameters only: no sampler, no device, no file. The training loop calls one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import SettingError
from cordgt.history.queries import History, Queries
from cordgt.nn.layers import ranking_loss

# Scores (logits) of the same input agree within SCORE_TOLERANCE * max(1, |score|): at another place in a batch, in
# another batch size, with other CPU kernels. The largest difference measured is 7e-6. Nearer scores tie in rankings.
SCORE_TOLERANCE = 1e-5
GPU_SCORE_TOLERANCE = 1e-4  # the same on a GPU, with float32 products (not TF32); only the audit uses it


class HistoryReader(Protocol):
    """The part that reads the history; it has no parameters."""

    def read(self, history: History, queries: Queries) -> Any:
        """Return the network's input for the queries. Queries without candidates (M = 0) ask for node embeddings."""


class LinkModel(nn.Module):
    """The network: the part with parameters. A new model is one file; `cordgt.register_model` gives it a name.

    Examples:
        >>> run = cordgt.Run.load("runs/mine")
        >>> isinstance(run.model, cordgt.LinkModel)
        True
    """

    reader: HistoryReader
    init_settings: Any = None  # the settings that an instance was made with
    is_trainable = True  # False: a rule without parameters
    max_pairs_per_batch = 2000  # pairs scored at once outside training; bounds the memory
    supports_bf16 = False  # trains safely under bfloat16 autocast
    has_embeddings = True  # False: has no embedding of a single node
    is_cheap = False  # scores a pair in about a microsecond: `recommend` needs no first scorer
    uses_features = True  # False: ignores the features of nodes and events
    is_stateful = False  # carries state from batch to batch (single process only); see `get_training_state`
    learns_ranking = False  # ranks the candidates of one source; scores of different sources cannot be compared
    uses_node_ids = False  # learns a table per node id, so an unseen node differs from a known one
    score_tolerance = SCORE_TOLERANCE  # logits nearer than this, times max(1, |logit|), tie in rankings
    compares_sources = False  # True while pairs of different sources are scored: see `comparing_sources`
    pair_slope: float | None = (
        None  # of the logit in scores of whole pairs; None: `score_pairs` chooses it on validation data
    )
    is_transductive = False  # knows only nodes of its training: takes n_nodes=, has no inductive metrics

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Remember the settings, so that `cordgt.train` can save and rebuild any instance."""
        model = super().__new__(cls)
        object.__setattr__(model, "init_settings", args[0] if args else kwargs.get("settings"))
        return model

    @property
    def chunk_size(self) -> int | None:
        """Queries with two candidates each that fit a CPU's caches; None: a batch cannot be split.

        A CPU trains a batch in parts of this size, and scores twice as many pairs at once outside training.
        """
        return None

    def is_thread_safe(self) -> bool:
        """Return whether several CPU threads may each process a part of a batch, or of an evaluation, at once.

        True if ``forward`` stores nothing, draws only through `cordgt.nn.dropout`, and runs no parallel
        compiled loop.
        """
        return False

    def read(self, history: History, queries: Queries) -> Any:
        """Return the input of `forward`, on the network's device. A large index may be on the host."""
        self.check_same_device(history.index.device)
        return to_device(self.reader.read(history, queries), self.device)

    def read_nodes(self, history: History, node: Tensor, t: Tensor, cut: Tensor) -> Any:
        """Return the input of `embed` for nodes at times ``t``; all are (B,)."""
        return self.read(history, Queries(node, node.new_empty(len(node), 0), t, cut, cut))

    def check_same_device(self, index_device: torch.device) -> None:
        """Raise SettingError if the model is stateful and the index is on another device."""
        if self.is_stateful and self.device is not None and index_device.type != self.device.type:
            raise SettingError(
                f"{type(self).__name__} needs its memory and the events on one device, but the events do not fit the "
                "GPU and stay on the host. Use --device cpu."
            )

    @property
    def device(self) -> torch.device | None:
        """Device of the weights; None without weights: the model then computes where the index is."""
        weight = next(self.parameters(), None)
        return None if weight is None else weight.device

    def prepare(self, history: History, cut: int) -> None:
        """Learn from the first ``cut`` training events before the first epoch. Nothing by default."""

    def scoring_model(self) -> LinkModel:
        """Return the model that scores queries: this one, or a cheaper one that gives the same scores."""
        return self

    def forward(self, batch: Any) -> Tensor:
        """Return logits (B, M) for the output of `read`."""
        raise TypeError(f"{type(self).__name__} does not score pairs")

    def losses(self, batch: Any, log_ratio: Tensor | None = None) -> Tensor:
        """Return losses (B,): binary cross-entropy, or softmax cross-entropy over the candidates if `learns_ranking`.

        The first candidate of a query is the true one. ``log_ratio`` (B, M) is the log of how much more likely each
        candidate was drawn than by a uniform draw; None: all draws are uniform. It is subtracted from the logits, so
        that scores compare with random partners however the negatives were drawn.
        """
        logits = self(batch)  # (B, M)
        if log_ratio is not None:
            logits = logits - log_ratio
        if self.learns_ranking:
            return ranking_loss(logits)
        truth = torch.zeros_like(logits)
        truth[:, 0] = 1.0
        return F.binary_cross_entropy_with_logits(logits, truth, reduction="none").mean(dim=1)

    def embed(self, batch: Any) -> Tensor:
        """Return embeddings (B, D) for the output of `read_nodes`."""
        raise TypeError(f"{type(self).__name__} does not embed nodes")

    def is_unknown(self, node: Tensor) -> Tensor:
        """Return (...,) bool, True: a transductive model cannot score the node. All False by default."""
        return torch.zeros_like(node, dtype=torch.bool)

    def visible_events(self, cut: Tensor) -> Tensor:
        """Return (...,) how many of the first ``cut`` events can influence an answer. All by default."""
        return cut

    @classmethod
    def training_hint(cls, settings: Any, n_events: int, batch_size: int) -> str:
        """Return advice for training on ``n_events`` events; empty if there is none."""
        return ""

    def use_static_shapes(self, history: History, stops: np.ndarray, batch_size: int) -> bool:
        """Use static shapes in every training step from now on. Return whether a CUDA graph can capture a step.

        ``stops``: for each batch of an epoch, the smallest ``pair_cut`` of its queries. Only stateful models use it.
        """
        return True

    def start_epoch(self, n_events: int) -> None:
        """Prepare for an epoch, of which ``n_events`` events are already trained: 0, or more after a resume.

        Only stateful models with static shapes use it.
        """

    def get_training_state(self) -> dict[str, Tensor]:
        """Return what training carries from batch to batch besides weights. It is part of every checkpoint.

        Not torch's ``get_extra_state``: `state_dict` would call that, and put the state into the weights.
        """
        return {}

    def set_training_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore the output of `get_training_state`. Raise KeyError if it is another model's."""
        if tensors:
            raise KeyError(f"{type(self).__name__} carries no training state")


@contextmanager
def comparing_sources(model: LinkModel) -> Iterator[None]:
    """Score pairs of different sources inside this context, for models that weigh them differently."""
    before, model.compares_sources = model.compares_sources, True
    try:
        yield
    finally:
        model.compares_sources = before


def to_device(batch: Any, device: torch.device | None) -> Any:
    """Move the tensors of a reader's output to a device; None leaves them where they are."""
    return batch if device is None else map_tensors(batch, lambda x: x.to(device))


def map_tensors(batch: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a reader's output, of any nesting. An unchanged dataclass is not copied."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, list | tuple):
        parts = [map_tensors(part, function) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, dict):
        return {name: map_tensors(part, function) for name, part in batch.items()}
    if not is_dataclass(batch) or isinstance(batch, type):
        return batch
    old = {field.name: getattr(batch, field.name) for field in fields(batch)}
    new = {name: map_tensors(part, function) for name, part in old.items()}
    return batch if all(new[name] is part for name, part in old.items()) else replace(batch, **new)


def list_tensors(batch: Any) -> list[Tensor]:
    """Return every tensor of a reader's output, of any nesting, in a fixed order."""
    tensors: list[Tensor] = []

    def collect(x: Tensor) -> Tensor:
        tensors.append(x)
        return x

    map_tensors(batch, collect)
    return tensors
