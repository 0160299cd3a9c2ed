"""Node classification: does the source's state change with this event? A small classifier on a frozen encoder.

The encoder is a trained link model. A query is the source of a labeled event at the event's time. It sees only
earlier events: neither the event itself nor others with the same time. It uses the embedding of one node (STPE-U).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError, SettingError, check_choice
from cordgt.history import rng
from cordgt.models.base import LinkModel
from cordgt.nn.layers import check_dropout, check_positive
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import ap_and_auc
from cordgt.tasks.split import Split

ALL_SPLITS = ("train", "validation", "test")
BALANCES = ("weights", "none")


@dataclass(frozen=True)
class ClassifierSettings:
    """Settings of the classifier and of its training."""

    hidden: tuple[int, ...] = (80, 10)  # widths of the hidden layers, as in TGN's code
    dropout: float = 0.1
    lr: float = 0.001
    batch_size: int = 200
    epochs: int = 100  # maximum
    patience: int = 10  # training stops after this many epochs without a better validation AUC
    balance: str = "weights"  # "weights": both classes have the same weight in the loss; "none": all events do

    def __post_init__(self) -> None:
        check_choice("balance", self.balance, BALANCES)
        check_positive(self, "batch_size", "epochs", "patience")
        check_dropout(self)
        if any(width < 1 for width in self.hidden):
            raise SettingError(f"hidden={','.join(map(str, self.hidden))}: every width must be at least 1.")
        if not 0 < self.lr < float("inf"):
            raise SettingError(f"lr={self.lr}: the learning rate must be above 0.")


@dataclass(frozen=True)
class NodeTask:
    """The labeled events of a link task."""

    link: LinkTask
    is_positive: np.ndarray  # (E,) bool, True: the state changes
    has_label: np.ndarray  # (E,) bool

    @classmethod
    def prepare(cls, link: LinkTask, label: np.ndarray | None, name: str | None = None) -> NodeTask:
        """Build the task. ``name`` names the data in the errors of `positive_labels`; default: the stream's name."""
        return cls(link, *positive_labels(link.stream.name if name is None else name, label, link.split))

    def positions(self, split: str) -> np.ndarray:
        """Return the positions of a split's labeled events. Here train includes events of masked nodes."""
        events = self.link.split
        positions = np.arange(events.validation[0]) if split == "train" else getattr(events, split)
        return positions[self.has_label[positions]]

    def labels(self, split: str) -> np.ndarray:
        """Return the labels of a split's labeled events, (n,) bool."""
        return self.is_positive[self.positions(split)]


def positive_labels(name: str, label: np.ndarray | None, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return which events are positive, and which have a label: (E,) bool each. The larger label value is positive.

    DataError if there are no labels, if they do not have exactly two values, if the training period lacks one of them,
    or if a later period has no label.
    """
    if label is None:
        raise DataError(f"{name} has no labels. Name their column with --label.")
    has_label = np.isfinite(label)
    values = np.unique(label[has_label])
    if len(values) != 2:
        shown = ", ".join(f"{v:g}" for v in values[:5]) or "none"
        raise DataError(
            f"The labels of {name} must have two different values, such as 0 and 1, but have {len(values)} ({shown})."
        )
    counts = [int((label[: split.validation[0]] == value).sum()) for value in values]
    if not all(counts):
        raise DataError(
            f"{name}: the training period has {counts[1]} events of label {values[1]:g} and {counts[0]} of "
            f"{values[0]:g}; a classifier needs both."
        )
    for period, positions in (("validation", split.validation), ("test", split.test)):
        if not has_label[positions].any():
            raise DataError(f"{name}: no event of the {period} period has a label.")
    return label == values[1], has_label


def embed_sources(
    model: LinkModel,
    task: NodeTask,
    split: str,
    *,
    callbacks: Callback = NO_CALLBACK,
    batch_size: int = 1000,
) -> Tensor:
    """Return embeddings (n, D) float32 of the sources of a split's labeled events, just before their times."""
    if not model.has_embeddings:
        raise DataError(f"This model ({type(model).__name__.lower()}) has no embeddings of single nodes.")
    index = task.link.full_history.index
    position = torch.from_numpy(task.positions(split)).to(task.link.device)
    embeddings = []
    model.eval()
    with torch.inference_mode():
        for batch in position.split(batch_size):
            cut = index.tie_start[batch].long()
            inputs = model.read_nodes(task.link.full_history, task.link.src[batch], index.elapsed[batch], cut)
            embeddings.append(model.embed(inputs).float())
            callbacks.on_step(len(batch))
    return torch.cat(embeddings).clone()  # a clone, because training cannot use tensors of inference mode


class Classifier(nn.Module):
    """A multilayer perceptron on standardized embeddings."""

    mean: Tensor
    scale: Tensor

    def __init__(self, settings: ClassifierSettings, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))
        widths = (dim, *settings.hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.out = nn.Linear(widths[-1], 1)
        self.dropout = settings.dropout

    def set_scale(self, x: Tensor) -> None:
        """Set mean and scale from the training embeddings (n, D). A constant dimension gets scale 0."""
        self.mean.copy_(x.mean(dim=0))
        std = x.std(dim=0, correction=0)
        self.scale.copy_(torch.where(std > 1e-6, 1 / std.clamp_min(1e-6), 0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n,) of embeddings (n, D)."""
        x = (x - self.mean) * self.scale
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.dropout, self.training)
        return self.out(x).squeeze(-1)


@dataclass(frozen=True)
class FittedClassifier:
    """A trained classifier, the epoch of its weights, and the validation AUC of every epoch."""

    model: Classifier
    best_epoch: int
    history: list[float]


def fit_classifier(
    x: dict[str, Tensor],
    y: dict[str, np.ndarray],
    settings: ClassifierSettings,
    seed: int,
) -> FittedClassifier:
    """Train a classifier on ``train`` and return the weights with the best AUC on ``validation``.

    If validation has labels of one class only, its AUC is not defined, and training takes ``patience`` epochs. With
    ``balance="weights"`` both classes have the same total weight in the loss.
    """
    device = x["train"].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = Classifier(settings, x["train"].shape[1]).to(device)
        model.set_scale(x["train"])
        target = torch.from_numpy(y["train"]).to(device).float()
        share = target.mean()
        weight = torch.where(target > 0, 0.5 / share, 0.5 / (1 - share))
        weight = weight if settings.balance == "weights" else torch.ones_like(weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
        best: dict[str, Tensor] = {}
        best_epoch, best_auc, history = 0, -1.0, []
        has_auc = 0 < y["validation"].sum() < len(y["validation"])
        for epoch in range(1, settings.epochs + 1):
            model.train()
            key = rng.fold_in_int(rng.mix64_int(seed), epoch)
            order = np.argsort(rng.fold_in(key, torch.arange(len(target))).numpy())
            for batch in torch.from_numpy(order).to(device).split(settings.batch_size):
                loss = F.binary_cross_entropy_with_logits(model(x["train"][batch]), target[batch], weight[batch])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            auc = classifier_metrics(model, x["validation"], y["validation"])["auc"] if has_auc else None
            history.append(0.0 if auc is None else auc)
            if auc is None or auc > best_auc:
                best = {k: v.detach().clone() for k, v in model.state_dict().items()}
                best_epoch, best_auc = epoch, -1.0 if auc is None else auc
            if epoch - best_epoch >= settings.patience or (not has_auc and epoch >= settings.patience):
                break
    model.load_state_dict(best)
    return FittedClassifier(model.eval(), best_epoch, history)


def classifier_metrics(model: Classifier, x: Tensor, y: np.ndarray) -> dict[str, Any]:
    """Return AUC and AP over a whole split, 0-1, and the numbers of events. None if all labels are of one class.

    Guessing has an AUC of one half and an AP of ``positive_share``.
    """
    model.eval()
    with torch.inference_mode():
        scores = model(x).double().cpu().numpy()
    counts = {"events": len(y), "positive": int(y.sum()), "positive_share": float(y.mean())}
    if not 0 < counts["positive"] < counts["events"]:
        return {"auc": None, "ap": None, **counts}
    ap, auc = ap_and_auc(scores[y][None], scores[~y][None])
    return {"auc": float(auc[0]), "ap": float(ap[0]), **counts}
