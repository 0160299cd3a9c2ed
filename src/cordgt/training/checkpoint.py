"""What a training changes as it goes, all of it: to be saved at any batch, and gone on from as if nothing had been."""

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
    """How far a phase has come: what a checkpoint holds besides tensors."""

    phase: str = "fit"  # or "refit"
    epoch: int = 0  # epochs done
    best_epoch: int = 0
    best_figure: float = -np.inf  # on validation data, of the metric that `monitor` names
    train_seconds: float = 0.0  # over all epochs done, validation left out
    finished: bool = False
    events: int = 0  # of the epoch under way: those trained on,
    loss: float = 0.0  # the sum of their losses,
    seconds: float = 0.0  # and how long they took


@dataclass(eq=False)
class State:
    """The tensors that a training changes. ``optimizer`` is None, and the rest stays as it is, where nothing trains."""

    model: LinkModel
    optimizer: torch.optim.Optimizer | None
    ema: Ema | None  # averaged weights; None: the model's own weights are validated and saved
    best: dict[str, Tensor] = field(default_factory=dict)  # weights, so far

    def eval_weights(self) -> AbstractContextManager[None]:
        """Give the model the weights that are validated and saved: the moving average, or its own."""
        return nullcontext() if self.ema is None else self.ema.in_place(self.model)

    def keep_as_best(self) -> None:
        """Copy the model's weights to ``best``. Call it inside `eval_weights`."""
        self.best = {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def is_sound(self) -> bool:
        """Whether every weight is a number."""
        return all(bool(torch.isfinite(q).all()) for q in self.model.parameters())

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resume needs, by name: weights, best weights, what the model carries, the optimiser's state."""
        assert self.optimizer is not None
        found = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        found |= {f"extra_state.{k}": v for k, v in self.model.get_training_state().items()}
        found |= {f"ema.{k}": v for k, v in (self.ema.tensors() if self.ema else {}).items()}
        found |= {f"best.{k}": v for k, v in self.best.items()}
        for i, parameter in enumerate(self._optimised()):
            found |= {f"adam.{i}.{k}": v for k, v in self.optimizer.state.get(parameter, {}).items()}
        return found

    def _optimised(self) -> list[Tensor]:
        """The parameters in the optimiser's order. Those that never had a gradient have no state."""
        assert self.optimizer is not None
        return [q for group in self.optimizer.param_groups for q in group["params"]]

    def load(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`, in place, so that a captured step keeps its addresses."""
        assert self.optimizer is not None
        self.model.load_state_dict(_below(tensors, "model."))
        self.model.set_training_state(_below(tensors, "extra_state.", "carried."))
        if self.ema is not None:
            self.ema.load(_below(tensors, "ema.", "average."))
        device = next(self.model.parameters()).device
        self.best = {k: v.to(device) for k, v in _below(tensors, "best.").items()}
        for i, parameter in enumerate(self._optimised()):
            given = _below(tensors, f"adam.{i}.")
            state = self.optimizer.state[parameter]
            for k, v in given.items():
                if k in state:
                    state[k].copy_(v)
                else:
                    where = device if self.optimizer.defaults["capturable"] or k != "step" else torch.device("cpu")
                    state[k] = v.to(where).clone()
            if not given:
                for v in state.values():
                    v.zero_()


def restored(folder: RunFolder, phase: str, state: State) -> tuple[Progress, bool]:
    """How far a phase has come by what its folder says, ``state`` brought there; and whether there was anything.

    A phase that is finished leaves its best weights, one cut off its latest checkpoint. Lines of ``history.jsonl`` that
    will be written again are dropped.
    """
    kept = "model.safetensors" if phase == "fit" else "refit.safetensors"
    if folder.has(kept):
        weights, about = folder.read_tensors(kept)
        if about.get("finished"):
            state.best = weights
            return _read_progress(folder, kept, about), True
    progress, found, name = Progress(phase=phase), False, folder.latest_state()
    if name is not None:
        tensors, about = folder.read_tensors(name)
        found = about.get("phase") == phase
        if found:
            progress = _read_progress(folder, name, about)
            try:
                state.load(tensors)
            except (RuntimeError, KeyError):
                raise folder.damaged(name, "it does not fit this run's model.") from None
    folder.keep_history(phase, progress.epoch, progress.events)
    return progress, found


def _read_progress(folder: RunFolder, name: str, about: dict[str, Any]) -> Progress:
    try:
        return Progress(**about)
    except TypeError as error:
        raise folder.damaged(name, f"{error}.") from None


def _below(tensors: dict[str, Tensor], prefix: str, v01_prefix: str | None = None) -> dict[str, Tensor]:
    """Tensors whose names start with ``prefix``, without it. ``v01_prefix`` is the same prefix in v0.1 checkpoints."""
    found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return found if found or v01_prefix is None else _below(tensors, v01_prefix)
