"""What can be reproduced, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cordgt.errors import SettingError, nearest
from cordgt.experiments import link, paper
from cordgt.experiments.cells import Cell, Store
from cordgt.experiments.tables import Asked, Report
from cordgt.models import MODELS


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper's: what it is, of which data and models, its cells, and how they are shown."""

    about: str
    datasets: tuple[str, ...]  # those of the paper's
    models: tuple[str, ...]  # those that can be asked for
    cells: Callable[[Asked], list[Cell]]
    report: Callable[[Asked, Store], Report]


EXPERIMENTS: dict[str, Experiment] = {
    "link-ap": Experiment(
        "AP of link prediction, transductive and inductive (Table 1)",
        paper.LINK_DATASETS,
        tuple(MODELS),
        link.link_cells,
        partial(link.link_report, metric="ap"),
    ),
    "link-auc": Experiment(
        "AUC of link prediction, from the same cells",
        paper.LINK_DATASETS,
        tuple(MODELS),
        link.link_cells,
        partial(link.link_report, metric="auc"),
    ),
    "ablation": Experiment(
        "inductive AP and AUC with one part taken away (Table 2)",
        paper.ABLATION_DATASETS,
        ("cordgt",),
        link.ablation_cells,
        link.ablation_report,
    ),
}


def find(name: str) -> Experiment:
    """The experiment of that name; SettingError, with the nearest one, where there is none."""
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise SettingError(
            f"There is nothing called '{name}' to reproduce.{nearest(name, EXPERIMENTS)} Known: {known}."
        )
    return EXPERIMENTS[name]
