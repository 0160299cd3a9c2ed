"""Checkpoints: everything that training changes, saved after any batch, so that a resume gives the same result."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt.models.base import LinkModel
from cordgt.training.run_folder import RunFolder
from cordgt.training.step import Ema


@dataclass
class Progress:
    """The position in a training phase: the part of a checkpoint that is not tensors."""

    phase: str = "fit"  # or "refit"
    epoch: int = 0  # completed epochs
    best_epoch: int = 0
    best_metric: float = -np.inf  # best validation value of the metric that `monitor` names
    train_seconds: float = 0.0  # over all completed epochs, without validation
    finished: bool = False
    events: int = 0  # of the current epoch: events trained on,
    loss: float = 0.0  # sum of their losses,
    seconds: float = 0.0  # and their time


@dataclass(eq=False)
class TrainingState:
    """The tensors that training changes. ``optimizer`` is None for a model that does not train."""

    model: LinkModel
    optimizer: torch.optim.Optimizer | None
    ema: Ema | None  # averaged weights; None: the model's own weights are validated and saved
    best: dict[str, Tensor] = field(default_factory=dict)  # best weights so far

    def eval_weights(self) -> AbstractContextManager[None]:
        """Give the model the weights that are validated and saved: the moving average, or its own."""
        return nullcontext() if self.ema is None else self.ema.swap_into(self.model)

    def record_best(self) -> None:
        """Copy the model's weights to ``best``. Call it inside `eval_weights`."""
        self.best = {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def is_finite(self) -> bool:
        """Return whether every weight is finite."""
        return all(bool(torch.isfinite(q).all()) for q in self.model.parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """Return all tensors that a resume needs, by name."""
        assert self.optimizer is not None
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"extra_state.{k}": v for k, v in self.model.get_training_state().items()}
        tensors |= {f"ema.{k}": v for k, v in (self.ema.state_dict() if self.ema else {}).items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        for i, parameter in enumerate(self._optimized_parameters()):
            tensors |= {f"adam.{i}.{k}": v for k, v in self.optimizer.state.get(parameter, {}).items()}
        return tensors

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Load `state_dict` in place, so that a CUDA graph keeps its addresses."""
        assert self.optimizer is not None
        self.model.load_state_dict(_with_prefix(tensors, "model."))
        self.model.set_training_state(_with_prefix(tensors, "extra_state.", "carried."))
        if self.ema is not None:
            self.ema.load_state_dict(_with_prefix(tensors, "ema.", "average."))
        device = next(self.model.parameters()).device
        self.best = {k: v.to(device) for k, v in _with_prefix(tensors, "best.").items()}
        for i, parameter in enumerate(self._optimized_parameters()):
            saved = _with_prefix(tensors, f"adam.{i}.")
            state = self.optimizer.state[parameter]
            for k, v in saved.items():
                if k in state:
                    state[k].copy_(v)
                else:
                    on_device = self.optimizer.defaults["capturable"] or k != "step"
                    state[k] = v.to(device if on_device else torch.device("cpu")).clone()
            if not saved:
                for v in state.values():
                    v.zero_()

    def _optimized_parameters(self) -> list[Tensor]:
        """Return the parameters in the optimizer's order. Those that never had a gradient have no state."""
        assert self.optimizer is not None
        return [q for group in self.optimizer.param_groups for q in group["params"]]


def restore_progress(folder: RunFolder, phase: str, state: TrainingState) -> tuple[Progress, bool]:
    """Load the latest checkpoint of a phase into ``state``; return its progress, and whether there was one.

    A finished phase has its best weights instead of a checkpoint. Lines of ``history.jsonl`` after the checkpoint are
    deleted, because they will be written again.
    """
    final = "model.safetensors" if phase == "fit" else "refit.safetensors"
    if folder.has(final):
        weights, metadata = folder.read_tensors(final)
        if metadata.get("finished"):
            state.best = weights
            return _parse_progress(folder, final, metadata), True
    progress, found, name = Progress(phase=phase), False, folder.latest_checkpoint()
    if name is not None:
        tensors, metadata = folder.read_tensors(name)
        found = metadata.get("phase") == phase
        if found:
            progress = _parse_progress(folder, name, metadata)
            try:
                state.load_state_dict(tensors)
            except (RuntimeError, KeyError, ValueError, TypeError):
                raise folder.damaged_error(name, "it does not fit this run's model.") from None
    folder.truncate_history(phase, progress.epoch, progress.events)
    return progress, found


def _parse_progress(folder: RunFolder, name: str, metadata: dict[str, Any]) -> Progress:
    try:
        progress = Progress(
            **{"best_metric" if k == "best_figure" else k: v for k, v in metadata.items()}
        )  # v0.1's name
    except TypeError as error:
        raise folder.damaged_error(name, f"{error}.") from None
    for key, default in vars(Progress()).items():
        value = getattr(progress, key)
        is_valid = type(value) is type(default) or (isinstance(default, float) and type(value) is int)
        if not is_valid or (isinstance(value, int) and value < 0):
            raise folder.damaged_error(name, f"'{key}' has an invalid value.")
    return progress


def _with_prefix(tensors: dict[str, Tensor], prefix: str, v01_prefix: str | None = None) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix``, without it; in v0.1 checkpoints, with ``v01_prefix``."""
    found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return found if found or v01_prefix is None else _with_prefix(tensors, v01_prefix)
