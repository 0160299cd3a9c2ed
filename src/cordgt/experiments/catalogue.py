"""What can be reproduced, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cordgt.errors import SettingError, nearest
from cordgt.experiments import (
    ablation,
    beyond,
    complexity,
    heatmap,
    link,
    node,
    paper,
    ranking,
    scalability,
    sensitivity,
    statistics,
)
from cordgt.experiments.cells import Cell, Store
from cordgt.experiments.tables import Asked, Report
from cordgt.models import MODELS


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper's: what it is, of which data and models, its cells, and how they are shown."""

    about: str
    datasets: tuple[str, ...]  # those of the paper's
    models: tuple[str, ...]  # those that can be asked for
    cells: Callable[[Asked], list[Cell]] | None  # None: nothing is trained, the data is looked at
    report: Callable[[Asked, Store], Report]
    twins: bool = False  # True: where a dataset is not at hand, its twin stands in
    usual: tuple[str, ...] = ()  # models that are taken where none is named; empty: all that can be asked for
    seeds: int = 3  # where their number is not named

    @property
    def usual_models(self) -> list[str]:
        """Those that are taken where none is named."""
        return list(self.usual or self.models)

    def usual_seeds(self, quick: bool) -> list[int]:
        """Those that are taken where none is named."""
        return list(range(1 if quick else self.seeds))


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
        ablation.ablation_cells,
        ablation.ablation_report,
    ),
    "beyond": Experiment(
        "CorDGT+ against CorDGT, DyGFormer and counts: AP beside the best published, harder negatives, ranks",
        beyond.DATASETS,
        tuple(MODELS),
        beyond.beyond_cells,
        beyond.beyond_report,
        usual=beyond.USUAL,
        seeds=5,
    ),
    "plus-ablation": Experiment(
        "AP of CorDGT+ with one part taken away",
        ("uci", "enron", "wikipedia"),
        ("cordgt_plus",),
        partial(ablation.ablation_cells, ablation=ablation.OF_PLUS),
        partial(ablation.ablation_report, ablation=ablation.OF_PLUS),
    ),
    "ranking": Experiment(
        "MRR among all destinations, beside the leaderboard tgbl-wiki-v2",
        ranking.DATASETS,
        tuple(MODELS),
        ranking.ranking_cells,
        ranking.ranking_report,
        usual=ranking.USUAL,
    ),
    "node-classification": Experiment(
        "AUC of a classifier on each frozen encoder",
        node.DATASETS,
        node.ENCODERS,
        node.node_cells,
        node.node_report,
    ),
    "datasets": Experiment(
        "the datasets' statistics",
        tuple(paper.figures()["datasets"]),
        ("cordgt",),
        None,
        statistics.statistics_report,
    ),
    "complexity": Experiment(
        "how a step grows with batch, context and events, beside the claimed order",
        complexity.DATASETS,
        complexity.MODELS,
        complexity.complexity_cells,
        complexity.complexity_report,
        twins=True,
    ),
    "scalability": Experiment(
        "one epoch on Food and Outdoors or their twins: inductive AP against seconds",
        scalability.DATASETS,
        scalability.TRAINED,
        scalability.scalability_cells,
        scalability.scalability_report,
        twins=True,
    ),
    "heatmap": Experiment(
        "what context nodes say, by their distance to either end (linear head)",
        heatmap.DATASETS,
        ("cordgt",),
        heatmap.heatmap_cells,
        heatmap.heatmap_report,
    ),
    "sensitivity": Experiment(
        "inductive AP over alpha and beta, neighbours, batch size",
        sensitivity.DATASETS,
        ("cordgt",),
        sensitivity.sensitivity_cells,
        sensitivity.sensitivity_report,
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
