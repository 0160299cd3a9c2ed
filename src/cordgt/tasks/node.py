"""Node classification: does the source's state change with this event? A small classifier on a frozen encoder.

The encoder is trained on links. A query is the source of a labelled event at the event's time. It sees strictly earlier
events only: neither the event itself nor others with the same time. It uses the embedding of a single node (STPE-U).
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
from cordgt.nn.layers import check_dropout, check_sizes
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
    balance: str = "weights"  # both classes have the same weight in the loss; "none": every event has

    def __post_init__(self) -> None:
        check_choice("balance", self.balance, BALANCES)
        check_sizes(self, "batch_size", "epochs", "patience")
        check_dropout(self)
        if any(width < 1 for width in self.hidden):
            raise SettingError(f"hidden={','.join(map(str, self.hidden))}: every layer is at least 1 wide.")
        if not 0 < self.lr < float("inf"):
            raise SettingError(f"lr={self.lr}: the learning rate is above 0.")


@dataclass(frozen=True)
class NodeTask:
    """The labelled events of a stream that is prepared for the encoder."""

    link: LinkTask
    positive: np.ndarray  # (E,) bool, True: the state changes
    known: np.ndarray  # (E,) bool, True: the event has a label

    @classmethod
    def prepare(cls, link: LinkTask, label: np.ndarray | None, name: str | None = None) -> NodeTask:
        """``name``: of the data in errors; by default the stream's. DataError as in `positive_labels`."""
        return cls(link, *positive_labels(link.stream.name if name is None else name, label, link.split))

    def positions(self, split: str) -> np.ndarray:
        """Positions of a split's labelled events. Train includes events of masked nodes, unlike for the encoder."""
        events = self.link.split
        if split == "train":
            found = np.arange(events.validation[0])
        else:
            found = events.validation if split == "validation" else events.test
        return found[self.known[found]]

    def labels(self, split: str) -> np.ndarray:
        """Labels of a split's labelled events, (n,) bool."""
        return self.positive[self.positions(split)]


def positive_labels(name: str, label: np.ndarray | None, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Which events are positive, and which have a label: (E,) bool each. The larger label value is positive.

    DataError where there are no labels, the labels do not have exactly two values, the training period lacks one of
    them, or a later period has no label.
    """
    if label is None:
        raise DataError(f"{name} has no labels: name their column with --label.")
    known = np.isfinite(label)
    values = np.unique(label[known])
    if len(values) == 1:
        raise DataError(f"{name} has no labels to tell apart: every one is {values[0]:g}; two values were expected.")
    if len(values) != 2:
        shown = ", ".join(f"{v:g}" for v in values[:5])
        raise DataError(
            f"The labels of {name} have {len(values)} different values ({shown or 'none'}); two were expected, such as "
            "0 and 1."
        )
    counts = [int((label[: split.validation[0]] == value).sum()) for value in values]
    if not all(counts):
        raise DataError(
            f"{name}: training has {counts[1]} events of label {values[1]:g} and {counts[0]} of {values[0]:g}; a "
            "classifier needs both."
        )
    for period, positions in (("validation", split.validation), ("test", split.test)):
        if not known[positions].any():
            raise DataError(f"{name}: no event of the {period} period has a label.")
    return label == values[1], known


def embeddings(
    model: LinkModel,
    task: NodeTask,
    split: str,
    *,
    callbacks: Callback = NO_CALLBACK,
    at_once: int = 1000,
) -> Tensor:
    """Embeddings (n, D) float32, on the model's device: the sources of a split's labelled events before their times."""
    if not model.has_embeddings:
        raise DataError(f"This model ({type(model).__name__.lower()}) has no embeddings of single nodes.")
    index = task.link.whole.index
    position = torch.from_numpy(task.positions(split)).to(task.link.device)
    found = []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(position), at_once):
            here = position[start : start + at_once]
            read = model.read_nodes(
                task.link.whole, task.link.src[here], index.elapsed[here], index.tie_start[here].long()
            )
            found.append(model.embed(read).float())
            callbacks.on_step(len(here))
    return torch.cat(found).clone()  # a clone, because training cannot use tensors of inference mode


class Classifier(nn.Module):
    """A multilayer perceptron on standardised embeddings."""

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

    def standardise(self, x: Tensor) -> None:
        """Set mean and scale from the training embeddings (n, D). A constant dimension gets scale 0."""
        self.mean.copy_(x.mean(dim=0))
        std = x.std(dim=0, correction=0)
        self.scale.copy_(torch.where(std > 1e-6, 1 / std.clamp_min(1e-6), 0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n,) of embeddings (n, D)."""
        x = (x - self.mean) * self.scale
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.dropout, self.training)
        return self.out(x).squeeze(-1)


@dataclass(frozen=True)
class Fitted:
    """A trained classifier, the epoch of its weights, and the validation AUC of every epoch."""

    model: Classifier
    best_epoch: int
    history: list[float]


def fit(
    x: dict[str, Tensor],
    y: dict[str, np.ndarray],
    settings: ClassifierSettings,
    seed: int,
) -> Fitted:
    """Train a classifier on ``train`` and return the weights with the best AUC on ``validation``.

    Where validation has labels of one class only, its AUC is not defined, and training takes ``patience`` epochs. With
    ``balance="weights"`` both classes have the same total weight in the loss.
    """
    device = x["train"].device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = Classifier(settings, x["train"].shape[1]).to(device)
        model.standardise(x["train"])
        truth = torch.from_numpy(y["train"]).to(device).float()
        share = truth.mean()
        weight = torch.where(truth > 0, 0.5 / share, 0.5 / (1 - share))
        weight = weight if settings.balance == "weights" else torch.ones_like(weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr)
        best: dict[str, Tensor] = {}
        best_epoch, best_auc, history = 0, -1.0, []
        chooses = 0 < y["validation"].sum() < len(y["validation"])
        for epoch in range(1, settings.epochs + 1):
            model.train()
            key = rng.child_int(rng.mix_int(seed), epoch)
            order = np.argsort(rng.child(key, torch.arange(len(truth))).numpy())
            for some in torch.from_numpy(order).to(device).split(settings.batch_size):
                loss = F.binary_cross_entropy_with_logits(model(x["train"][some]), truth[some], weight[some])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            auc = classifier_metrics(model, x["validation"], y["validation"])["auc"] if chooses else None
            history.append(0.0 if auc is None else auc)
            if auc is None or auc > best_auc:
                best = {k: v.detach().clone() for k, v in model.state_dict().items()}
                best_epoch, best_auc = epoch, -1.0 if auc is None else auc
            if epoch - best_epoch >= settings.patience or (not chooses and epoch >= settings.patience):
                break
    model.load_state_dict(best)
    return Fitted(model.eval(), best_epoch, history)


def classifier_metrics(model: Classifier, x: Tensor, truth: np.ndarray) -> dict[str, Any]:
    """AUC and AP over a whole split, 0-1, and the numbers of events. None where all labels are of one class.

    Guessing has an AUC of one half and an AP of ``positive_share``.
    """
    model.eval()
    with torch.inference_mode():
        scores = model(x).double().cpu().numpy()
    counts = {"events": len(truth), "positive": int(truth.sum()), "positive_share": float(truth.mean())}
    if not 0 < counts["positive"] < counts["events"]:
        return {"auc": None, "ap": None, **counts}
    ap, auc = ap_and_auc(scores[truth][None], scores[~truth][None])
    return {"auc": float(auc[0]), "ap": float(ap[0]), **counts}
