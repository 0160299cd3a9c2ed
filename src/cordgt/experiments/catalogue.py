"""The experiments that `cordgt reproduce` knows, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cordgt.errors import SettingError, did_you_mean
from cordgt.experiments import (
    ablation,
    anchors,
    beyond,
    calibration,
    complexity,
    heatmap,
    link,
    new_partners,
    node,
    paper,
    paper_protocol,
    ranking,
    retrieval,
    scalability,
    sensitivity,
    statistics,
    time_to_accuracy,
)
from cordgt.experiments.cells import Cell, CellStore
from cordgt.experiments.tables import ExperimentRequest, Report
from cordgt.models import MODELS

# Models of the paper's tables without --models: the small CorDGT+ is compared with CorDGT+ only.
TABLE_MODELS = tuple(name for name in MODELS if name != "cordgt_small")


@dataclass(frozen=True)
class Experiment:
    """A table or figure: its data and models, its cells, and the report made from them."""

    description: str
    datasets: tuple[str, ...]  # used by default, if available
    models: tuple[str, ...]  # supported by --models
    cells: Callable[[ExperimentRequest], list[Cell]] | None  # None: nothing is trained
    report: Callable[[ExperimentRequest, CellStore], Report]
    twins: bool = False  # replace missing datasets by their twins
    selected_models: tuple[str, ...] = ()  # used without --models; empty: all supported ones
    n_seeds: int = 3  # used without --seeds

    @property
    def default_models(self) -> list[str]:
        return list(self.selected_models or self.models)

    def default_seeds(self, quick: bool) -> list[int]:
        return list(range(1 if quick else self.n_seeds))


EXPERIMENTS: dict[str, Experiment] = {
    "link-ap": Experiment(
        "AP of link prediction, transductive and inductive (Table 1)",
        paper.LINK_DATASETS,
        tuple(MODELS),
        link.link_cells,
        partial(link.link_report, metric="ap"),
        selected_models=TABLE_MODELS,
    ),
    "link-auc": Experiment(
        "AUC of link prediction, from the same cells",
        paper.LINK_DATASETS,
        tuple(MODELS),
        link.link_cells,
        partial(link.link_report, metric="auc"),
        selected_models=TABLE_MODELS,
    ),
    "paper-protocol": Experiment(
        "AP and AUC under the paper's own protocol: its mask, visibility rule and means over batches of 30",
        paper.LINK_DATASETS,
        paper_protocol.MODELS,
        paper_protocol.paper_protocol_cells,
        paper_protocol.paper_protocol_report,
        n_seeds=5,
    ),
    "ablation": Experiment(
        "inductive AP and AUC of CorDGT with one component removed (Table 2)",
        paper.ABLATION_DATASETS,
        ("cordgt",),
        ablation.ablation_cells,
        ablation.ablation_report,
    ),
    "beyond": Experiment(
        "CorDGT+ against CorDGT, DyGFormer and counts: best published AP, hard negatives, ranking",
        beyond.DATASETS,
        tuple(MODELS),
        beyond.beyond_cells,
        beyond.beyond_report,
        selected_models=beyond.DEFAULT_MODELS,
        n_seeds=5,
    ),
    "anchors": Experiment(
        "AP with random, historical and inductive negatives of DyGLib, next to the best published",
        anchors.DATASETS,
        tuple(MODELS),
        anchors.anchor_cells,
        anchors.anchor_report,
        selected_models=anchors.DEFAULT_MODELS,
        n_seeds=5,
    ),
    "calibration": Experiment(
        "probabilities within a horizon and the next event's time, next to simple baselines",
        calibration.DATASETS,
        tuple(MODELS),
        calibration.calibration_cells,
        calibration.calibration_report,
        selected_models=calibration.DEFAULT_MODELS,
    ),
    "plus-ablation": Experiment(
        "AP of CorDGT+ with one component removed",
        ("uci", "enron", "wikipedia"),
        ("cordgt_plus",),
        partial(ablation.ablation_cells, ablation=ablation.PLUS_ABLATION),
        partial(ablation.ablation_report, ablation=ablation.PLUS_ABLATION),
    ),
    "ranking": Experiment(
        "MRR among all destinations, next to the leaderboard tgbl-wiki-v2",
        ranking.DATASETS,
        tuple(MODELS),
        ranking.ranking_cells,
        ranking.ranking_report,
        selected_models=ranking.DEFAULT_MODELS,
        n_seeds=5,
    ),
    "new-partners": Experiment(
        "MRR, NDCG@10 and hits@10 among all known destinations: partners never met, and all partners",
        new_partners.DATASETS,
        tuple(MODELS),
        new_partners.new_partner_cells,
        new_partners.new_partner_report,
        selected_models=new_partners.DEFAULT_MODELS,
    ),
    "retrieval": Experiment(
        "recall and MRR of the two stages of recommend, next to exhaustive ranking",
        retrieval.DATASETS,
        retrieval.SUPPORTED_MODELS,
        retrieval.retrieval_cells,
        retrieval.retrieval_report,
        selected_models=retrieval.DEFAULT_MODELS,
        n_seeds=1,
    ),
    "node-classification": Experiment(
        "AUC of a classifier on each frozen encoder",
        node.DATASETS,
        node.ENCODERS,
        node.node_cells,
        node.node_report,
        selected_models=tuple(name for name in node.ENCODERS if name in TABLE_MODELS),
    ),
    "datasets": Experiment(
        "statistics of the datasets",
        tuple(paper.load_paper()["datasets"]),
        ("cordgt",),
        None,
        statistics.statistics_report,
    ),
    "complexity": Experiment(
        "cost of a training step by batch size, context size and events, next to the claimed order",
        complexity.DATASETS,
        complexity.MODELS,
        complexity.complexity_cells,
        complexity.complexity_report,
        twins=True,
    ),
    "scalability": Experiment(
        "one epoch on Food and Outdoors or their twins: inductive AP against seconds",
        scalability.DATASETS,
        scalability.SUPPORTED_MODELS,
        scalability.scalability_cells,
        scalability.scalability_report,
        selected_models=tuple(name for name in scalability.SUPPORTED_MODELS if name in TABLE_MODELS),
        twins=True,
    ),
    "time-to-accuracy": Experiment(
        "seconds of training until 99 % of the best validation AP",
        time_to_accuracy.DATASETS,
        time_to_accuracy.SUPPORTED_MODELS,
        time_to_accuracy.time_to_accuracy_cells,
        time_to_accuracy.time_to_accuracy_report,
        n_seeds=1,
    ),
    "heatmap": Experiment(
        "influence of context nodes, by distance to source and target (linear head)",
        heatmap.DATASETS,
        ("cordgt",),
        heatmap.heatmap_cells,
        heatmap.heatmap_report,
    ),
    "sensitivity": Experiment(
        "inductive AP over alpha and beta, neighbors, batch size",
        sensitivity.DATASETS,
        ("cordgt",),
        sensitivity.sensitivity_cells,
        sensitivity.sensitivity_report,
    ),
}


def find_experiment(name: str) -> Experiment:
    """Return an experiment by name. Raise SettingError with the closest name if it is unknown."""
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise SettingError(f"There is no experiment '{name}'.{did_you_mean(name, EXPERIMENTS)} Known: {known}.")
    return EXPERIMENTS[name]
