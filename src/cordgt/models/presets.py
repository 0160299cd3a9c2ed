"""Published hyper-parameters by model and dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cordgt.io.datasets.registry import KNOWN_DATASETS
from cordgt.io.datasets.twins import original_dataset


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Published settings of a model: ``common`` to all datasets, and those that differ ``by_dataset``."""

    common: dict[str, Any] = field(default_factory=dict)
    by_dataset: dict[str, dict[str, Any]] = field(default_factory=dict)
    in_paper: bool = True  # False: published by the model's authors, not in the CorDGT paper

    @property
    def publisher(self) -> str:
        """The source of the settings, for messages."""
        return "the paper's" if self.in_paper else "its authors'"


_MEMORY = Preset(common={"memory_dim": 172}, by_dataset={"uci": {"memory_dim": 32}})

PRESETS: dict[str, Preset] = {
    "cordgt": Preset(
        common={"fanout": (20, 1), "alpha": 1.0, "beta": 10.0},
        by_dataset={
            "lastfm": {"fanout": (32, 1), "alpha": 1.0, "beta": 0.1},
            "uci": {"fanout": (32, 1), "alpha": 0.1, "beta": 1.0},
        },
    ),
    "tgn": _MEMORY,
    "dyrep": _MEMORY,
    "jodie": _MEMORY,
    "tgsrec": Preset(by_dataset={name: {"num_embeddings": known.nodes} for name, known in KNOWN_DATASETS.items()}),
    "dygformer": Preset(
        common={"max_seq_len": 32, "patch_size": 1},
        by_dataset={
            "reddit": {"max_seq_len": 64, "patch_size": 2},
            "lastfm": {"max_seq_len": 512, "patch_size": 16},
            "enron": {"max_seq_len": 256, "patch_size": 8},
            "flights": {"max_seq_len": 256, "patch_size": 8},
            "mooc": {"max_seq_len": 256, "patch_size": 8},
        },
        in_paper=False,
    ),
}


def published_settings(name: str, model: str = "cordgt") -> dict[str, Any]:
    """Return the published settings of a model for a dataset or its twin; empty if there are none."""
    dataset, preset = original_dataset(name), PRESETS.get(model)
    if preset is None or dataset not in KNOWN_DATASETS or (preset.in_paper and not KNOWN_DATASETS[dataset].in_paper):
        return {}
    return preset.common | preset.by_dataset.get(dataset, {})
