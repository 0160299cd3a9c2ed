"""Node classification: will the source's state change with this event? A small classifier on a frozen encoder.

The encoder was trained on links. A question is the source of a labelled event at the event's time, and sees what is
strictly earlier: not the event itself, nor others of its moment. Its embedding is that of a node alone (STPE-U).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cordgt.errors import DataError, SettingError, check_choice
from cordgt.models.base import LinkModel
from cordgt.models.parts import check_dropout, check_sizes
from cordgt.past import draws
from cordgt.tasks.link import LinkTask
from cordgt.tasks.metrics import ap_and_auc
from cordgt.tasks.split import Split

ALL_PARTS = ("train", "validation", "test")
BALANCES = ("weights", "none")


@dataclass(frozen=True)
class ClassifierSettings:
    """Settings of the classifier and of its training."""

    hidden: tuple[int, ...] = (80, 10)  # the layers between embedding and score, as in TGN's code
    dropout: float = 0.1
    lr: float = 0.001
    batch_size: int = 200
    epochs: int = 100  # at most
    patience: int = 10  # epochs without a better validation AUC before it stops
    balance: str = "weights"  # both classes weigh the same in the loss; "none": each event does

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
    """The labelled events of a stream that is laid out for its encoder."""

    link: LinkTask
    positive: np.ndarray  # (E,) bool, True: the state changes
    known: np.ndarray  # (E,) bool, True: the event has a label

    @classmethod
    def prepare(cls, link: LinkTask, label: np.ndarray | None, name: str | None = None) -> NodeTask:
        """``name``: what people know the labels by; the stream's by default. DataError as in `positive_labels`."""
        return cls(link, *positive_labels(link.stream.name if name is None else name, label, link.split))

    def positions(self, part: str) -> np.ndarray:
        """The labelled events of a part. In training also those of masked nodes, which only the encoder was to miss."""
        split = self.link.split
        if part == "train":
            found = np.arange(split.validation[0])
        else:
            found = split.validation if part == "validation" else split.test
        return found[self.known[found]]

    def labels(self, part: str) -> np.ndarray:
        """(n,) bool."""
        return self.positive[self.positions(part)]


def positive_labels(name: str, label: np.ndarray | None, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Which events of a stream are positive, and which have a label at all: (E,) bool each.

    The larger one of two values is positive. DataError where there are no labels, more or fewer values than two, only
    one of them in the training period, or none at all in a later one.
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
    for part, positions in (("validation", split.validation), ("test", split.test)):
        if not known[positions].any():
            raise DataError(f"{name}: no event of the {part} period has a label.")
    return label == values[1], known


def embeddings(
    model: LinkModel,
    task: NodeTask,
    part: str,
    *,
    progress: Callable[[int], None] | None = None,
    at_once: int = 1000,
) -> Tensor:
    """(n, D) float32 where the model is: the sources of a part's labelled events, each before its event's time."""
    if not model.has_embeddings:
        raise DataError(f"This model ({type(model).__name__.lower()}) has no embeddings of single nodes.")
    index = task.link.whole.index
    position = torch.from_numpy(task.positions(part)).to(task.link.device)
    found = []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(position), at_once):
            here = position[start : start + at_once]
            read = model.read_nodes(
                task.link.whole, task.link.src[here], index.elapsed[here], index.tie_start[here].long()
            )
            found.append(model.embed(read).float())
            if progress is not None:
                progress(len(here))
    return torch.cat(found).clone()  # which training may use, unlike what inference mode made


class Classifier(nn.Module):
    """An MLP on standardised embeddings."""

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
        """Take mean and spread from (n, D) training embeddings; a value that is always the same counts for nothing."""
        self.mean.copy_(x.mean(dim=0))
        spread = x.std(dim=0, correction=0)
        self.scale.copy_(torch.where(spread > 1e-6, 1 / spread.clamp_min(1e-6), 0.0))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n,) of embeddings (n, D)."""
        x = (x - self.mean) * self.scale
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.dropout, self.training)
        return self.out(x).squeeze(-1)


@dataclass(frozen=True)
class Fitted:
    """A trained classifier, the epoch it is of, and its validation AUC by epoch."""

    model: Classifier
    best_epoch: int
    history: list[float]


def fit(
    x: dict[str, Tensor],
    y: dict[str, np.ndarray],
    settings: ClassifierSettings,
    seed: int,
) -> Fitted:
    """Train a classifier on ``train``, stopping by the AUC on ``validation``; its best weights come back.

    Where validation has labels of one kind only, there is nothing to choose by: it trains for ``patience`` epochs.
    With ``balance="weights"`` the few positive events weigh as much together as the many others.
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
            key = draws.child_int(draws.mix_int(seed), epoch)
            order = np.argsort(draws.child(key, torch.arange(len(truth))).numpy())
            for some in torch.from_numpy(order).to(device).split(settings.batch_size):
                loss = F.binary_cross_entropy_with_logits(model(x["train"][some]), truth[some], weight[some])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            auc = figures(model, x["validation"], y["validation"])["auc"] if chooses else None
            history.append(0.0 if auc is None else auc)
            if auc is None or auc > best_auc:
                best = {k: v.detach().clone() for k, v in model.state_dict().items()}
                best_epoch, best_auc = epoch, -1.0 if auc is None else auc
            if epoch - best_epoch >= settings.patience or (not chooses and epoch >= settings.patience):
                break
    model.load_state_dict(best)
    return Fitted(model.eval(), best_epoch, history)


def figures(model: Classifier, x: Tensor, truth: np.ndarray) -> dict[str, Any]:
    """AUC and AP over a whole part, 0–1, None where its labels are all of one kind; and how many of each there are.

    Chance has an AUC of one half and an AP of ``positive_share``.
    """
    model.eval()
    with torch.inference_mode():
        scores = model(x).double().cpu().numpy()
    counts = {"events": len(truth), "positive": int(truth.sum()), "positive_share": float(truth.mean())}
    if not 0 < counts["positive"] < counts["events"]:
        return {"auc": None, "ap": None, **counts}
    ap, auc = ap_and_auc(scores[truth][None], scores[~truth][None])
    return {"auc": float(auc[0]), "ap": float(ap[0]), **counts}
