"""The registry of models: one line each. `cordgt.models.base` defines their interface.

A model outside this package is added by `register_model`. Every model is a `torch.nn.Module`.

TGN, DyRep and JODIE are stateful. To list them: ``[name for name, m in MODELS.items() if m.network.is_stateful]``. The
other flags of `LinkModel` work alike.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeVar

from cordgt.errors import SettingError
from cordgt.models.als import Als, AlsSettings
from cordgt.models.base import LinkModel
from cordgt.models.cawn import Cawn, CawnSettings
from cordgt.models.cordgt import Cordgt, CordgtSettings
from cordgt.models.cordgt_plus import CordgtPlus, CordgtPlusSettings, CordgtSmallSettings
from cordgt.models.counts import Counts, CountsSettings
from cordgt.models.ctdne import Ctdne, CtdneSettings
from cordgt.models.dygformer import Dygformer, DygformerSettings
from cordgt.models.dyrep import Dyrep, DyrepSettings
from cordgt.models.edgebank import Edgebank, EdgebankSettings
from cordgt.models.graphmixer import Graphmixer, GraphmixerSettings
from cordgt.models.item_knn import ItemKnn, ItemKnnSettings
from cordgt.models.jodie import Jodie, JodieSettings
from cordgt.models.popularity import Popularity, PopularitySettings
from cordgt.models.tcl import Tcl, TclSettings
from cordgt.models.tgat import Tgat, TgatSettings
from cordgt.models.tgn import Tgn, TgnSettings
from cordgt.models.tgsrec import Tgsrec, TgsrecSettings
from cordgt.plugins import Registry, first_line

C = TypeVar("C", bound=type[LinkModel])


@dataclass(frozen=True)
class ModelSpec:
    """A registered model: its settings (a frozen dataclass), its network, and a line about it.

    ``training`` holds defaults of the training loop that differ for this model, ``grid`` the paper's search space.
    """

    settings: type[Any]
    network: type[LinkModel]
    about: str
    training: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)


# The originals' learning rate. With 0.001 validation metrics are far worse: memory comes from weights that change too
# fast, and a small step of a learned frequency changes the encoding of long times completely.
LOW_LR = {"lr": 0.0001}
PLUS_TRAINING = {"ema_decay": 0.999}
SMALL_TRAINING = PLUS_TRAINING | {"lr": 0.003, "epochs": 10}
CAWN_GRID = {"time_scale": (1e-4, 1e-5, 1e-6, 1e-7), "walk_length": (2, 3, 4, 5), "num_walks": (16, 32, 64, 128)}

# fmt: off
MODELS: Registry[ModelSpec] = Registry("model", {
    "cordgt": ModelSpec(CordgtSettings, Cordgt, "transformer over sampled trees with spatial-temporal encodings"),
    "cordgt_plus": ModelSpec(CordgtPlusSettings, CordgtPlus, "CorDGT and features of slots and pairs", PLUS_TRAINING),
    "cordgt_small": ModelSpec(CordgtSmallSettings, CordgtPlus, "a small CorDGT+, for CPUs", SMALL_TRAINING),
    "tgn": ModelSpec(TgnSettings, Tgn, "gated memory, attention to neighbors' memory; trains in one process", LOW_LR),
    "dyrep": ModelSpec(DyrepSettings, Dyrep, "recurrent memory, messages by attention; trains in one process", LOW_LR),
    "jodie": ModelSpec(JodieSettings, Jodie, "recurrent memory, projected in time; trains in one process", LOW_LR),
    "tgat": ModelSpec(TgatSettings, Tgat, "layers of attention over sampled events and their ages", LOW_LR),
    "graphmixer": ModelSpec(GraphmixerSettings, Graphmixer, "MLP-Mixer over a node's latest events, no attention"),
    "dygformer": ModelSpec(DygformerSettings, Dygformer, "transformer over latest events with co-occurrence counts"),
    "tcl": ModelSpec(TclSettings, Tcl, "self- and cross-attention over both ends' latest events", LOW_LR),
    "cawn": ModelSpec(CawnSettings, Cawn, "anonymous walks into the past, encoded by hitting counts", grid=CAWN_GRID),
    "tgsrec": ModelSpec(TgsrecSettings, Tgsrec, "attention over sampled events, on learned node embeddings", LOW_LR),
    "ctdne": ModelSpec(CtdneSettings, Ctdne, "skip-gram on walks forward in time; transductive", {"lr": 0.01}),
    "counts": ModelSpec(CountsSettings, Counts, "small MLP on the counts of a pair; trains in seconds", {"lr": 0.003}),
    "edgebank": ModelSpec(EdgebankSettings, Edgebank, "pairs seen before; nothing to train"),
    "item_knn": ModelSpec(ItemKnnSettings, ItemKnn, "what others met around the latest partners; nothing to train"),
    "als": ModelSpec(AlsSettings, Als, "factors of the training pairs, sources folded in; transductive"),
    "popularity": ModelSpec(PopularitySettings, Popularity, "destinations with the most events; nothing to train"),
}, lambda name, network: register_model(name)(network))
# fmt: on


def find_model(name: str) -> ModelSpec:
    """Return the spec of a model. Raise SettingError with the nearest name if there is none."""
    return MODELS.find(name)


def register_model(
    name: str,
    *,
    settings: type[Any] | None = None,
    about: str = "",
    training: Mapping[str, Any] | None = None,
    grid: Mapping[str, tuple[Any, ...]] | None = None,
) -> Callable[[C], C]:
    """Register a subclass of `LinkModel`, so that every command and `cordgt.train` find it by name.

    Args:
        name: the value of ``--model NAME``.
        settings: its settings, a frozen dataclass. The default is the type of the constructor's parameter ``settings``.
        about: a line for `cordgt models`; the default is the first line of the docstring.
        training: defaults of the training loop that differ for this model, such as ``{"lr": 0.003}``.
        grid: values that `cordgt search` tries without ``--grid``.

    Examples:
        >>> from cordgt.models.counts import Counts
        >>> @cordgt.register_model("my_counts", training={"lr": 0.01})
        ... class MyCounts(Counts):
        ...     '''Counts with another learning rate.'''
        >>> run = cordgt.train("purchases.csv", "my_counts", epochs=1)
    """
    MODELS.check_name(name)

    def register(network: C) -> C:
        if not (isinstance(network, type) and issubclass(network, LinkModel)):
            raise SettingError(f"The model '{name}' must be a class that extends cordgt.LinkModel.")
        own = settings_class(network) if settings is None else settings
        spec = ModelSpec(own, network, about or first_line(network), dict(training or {}), dict(grid or {}))
        MODELS.add(name, spec, network)
        return network

    return register


def settings_class(network: type[LinkModel]) -> type[Any]:
    """Return the settings of a model: the type of its constructor's parameter ``settings``."""
    try:
        own = typing.get_type_hints(network.__init__).get("settings")
    except NameError as error:
        raise SettingError(f"{network.__name__}: the type of its settings is not known: {error}.") from None
    if not (isinstance(own, type) and is_dataclass(own)):
        raise SettingError(
            f"{network.__name__} has no settings: its constructor must be "
            "__init__(self, settings: SETTINGS, *, edge_dim, node_dim), where SETTINGS is a frozen dataclass."
        )
    return own


def registered_name(network: type[LinkModel]) -> str:
    """Return the name of a model class. A class without one is registered under its own name in snake_case."""
    for name, spec in MODELS.items():
        if spec.network is network:
            return name
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", network.__name__).lower()
    register_model(name)(network)
    return name
