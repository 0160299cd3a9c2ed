"""Published ways to evaluate, by name: split, pool, batch, visibility, negatives and metric of each source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cordgt.errors import RunError, SettingError, did_you_mean
from cordgt.tasks.protocol import Protocol

_USUAL_SPLIT = {"split": "quantile", "train_ratio": 0.70, "val_ratio": 0.15}
_ANY_DESTINATION = {"negatives": "random-any", "pool": "destinations", "activity": False}


@dataclass(frozen=True)
class Benchmark:
    """How one source evaluates link prediction."""

    about: str
    source: str  # where it is written down
    split: Mapping[str, Any]  # settings that the training must have
    evaluation: Mapping[str, Any]  # settings of the evaluation
    metric: str  # what the source reports
    of_models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings that a model has instead

    def settings(self, model: str) -> dict[str, Any]:
        """Return the settings of the evaluation of a model."""
        return {**self.evaluation, **self.of_models.get(model, {})}


BENCHMARKS: dict[str, Benchmark] = {
    "paper": Benchmark(
        "the CorDGT paper: AP as the mean over batches of 30; pair counts see earlier batches only",
        "the CorDGT paper and github.com/wangz3066/CorDGT (78ac8cf), learn_edge.py",
        {**_USUAL_SPLIT, "mask_nodes": 0.1},
        {"visibility": "paper", "eval_batch_size": 30, **_ANY_DESTINATION},
        "ap_batch",
    ),
    "dyglib": Benchmark(
        "DyGLib: AP as the mean over batches of 200; a query sees all events before its time",
        "github.com/yule-BUAA/DyGLib (3aacc36), evaluate_link_prediction.py and evaluate_models_utils.py",
        {**_USUAL_SPLIT, "mask_nodes": 0.1},
        {"visibility": "event", "eval_batch_size": 200, **_ANY_DESTINATION},
        "ap_batch",
        {"edgebank": {"visibility": "batch"}},
    ),
    "tgb": Benchmark(
        "TGB's tgbl-wiki: MRR among all destinations; a query sees the events before its batch of 200",
        "github.com/shenyangHuang/TGB (3b83e5c), examples/linkproppred/tgbl-wiki and negative_generator.py",
        {**_USUAL_SPLIT, "mask_nodes": 0.0},
        {
            "visibility": "batch",
            "eval_batch_size": 200,
            "negatives": "random",
            "pool": "destinations",
            "ranking": "all",
        },
        "mrr",
    ),
    "tgb-seq": Benchmark(
        "TGB-Seq: MRR among 100 random destinations; a query sees all events before its time",
        "github.com/TGB-Seq/TGB-Seq, tgb_seq/LinkPred and examples/evaluate_models_utils_mrr.py",
        {"split": "quantile", "mask_nodes": 0.0},
        {
            "visibility": "event",
            "eval_batch_size": 200,
            "negatives": "random",
            "pool": "destinations",
            "ranking": "100",
            "filter": "none",
            "positives": "all",
        },
        "mrr",
    ),
}


def find_benchmark(name: str) -> Benchmark:
    """Return a benchmark. SettingError with the nearest name if there is none."""
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        raise SettingError(f"There is no protocol '{name}'.{did_you_mean(name, BENCHMARKS)} Known: {known}.")
    return BENCHMARKS[name]


def benchmark_changes(name: str, trained: Protocol, run: str, model: str) -> dict[str, Any]:
    """Return the settings of a model's evaluation as in a benchmark. RunError if the run has another split."""
    benchmark = find_benchmark(name)
    differing = {key: value for key, value in benchmark.split.items() if getattr(trained, key) != value}
    if differing:
        own = ", ".join(f"{key}={getattr(trained, key)}" for key in differing)
        needed = " ".join(f"--set {key}={value}" for key, value in differing.items())
        raise RunError(
            f"{run} cannot be evaluated as in {name}: it was trained with {own}, so its test events are others. Train "
            f"it again with {needed}."
        )
    return benchmark.settings(model)
