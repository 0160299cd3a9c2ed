"""The table of models: one line each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cordgt.errors import SettingError, nearest
from cordgt.models.base import LinkModel
from cordgt.models.cawn import Cawn, CawnSettings
from cordgt.models.cordgt import Cordgt, CordgtSettings
from cordgt.models.cordgt_plus import CordgtPlus, CordgtPlusSettings
from cordgt.models.counts import Counts, CountsSettings
from cordgt.models.ctdne import Ctdne, CtdneSettings
from cordgt.models.dygformer import Dygformer, DygformerSettings
from cordgt.models.dyrep import Dyrep, DyrepSettings
from cordgt.models.edgebank import Edgebank, EdgebankSettings
from cordgt.models.graphmixer import Graphmixer, GraphmixerSettings
from cordgt.models.jodie import Jodie, JodieSettings
from cordgt.models.popularity import Popularity, PopularitySettings
from cordgt.models.tcl import Tcl, TclSettings
from cordgt.models.tgat import Tgat, TgatSettings
from cordgt.models.tgn import Tgn, TgnSettings
from cordgt.models.tgsrec import Tgsrec, TgsrecSettings


@dataclass(frozen=True)
class Kind:
    """How a model is made: its settings (a frozen dataclass) and its network, and what it is in a line.

    ``training`` holds those settings of the loop whose defaults differ for it, ``grid`` what the paper searched.
    """

    settings: type[Any]
    network: type[LinkModel]
    about: str
    training: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)


# The originals' learning rate. At 0.001 they fall far behind on validation data: memory is made by weights that change,
# and angles of seconds turn far with every step of a frequency that is learnt.
SLOWLY = {"lr": 0.0001}


MODELS: dict[str, Kind] = {
    "cordgt": Kind(CordgtSettings, Cordgt, "transformer over sampled trees with correlated spatial-temporal encodings"),
    "cordgt_plus": Kind(
        CordgtPlusSettings, CordgtPlus, "CorDGT, told more of what history knows of nodes and pairs", {"average": 0.999}
    ),
    "tgn": Kind(TgnSettings, Tgn, "gated memory, attention to what others remember; trains in one process", SLOWLY),
    "dyrep": Kind(DyrepSettings, Dyrep, "recurrent memory, told by attention; trains in one process", SLOWLY),
    "jodie": Kind(JodieSettings, Jodie, "recurrent memory, projected in time; trains in one process", SLOWLY),
    "tgat": Kind(TgatSettings, Tgat, "layers of attention over sampled events and their ages", SLOWLY),
    "graphmixer": Kind(GraphmixerSettings, Graphmixer, "MLP-Mixer over a node's latest events, no attention"),
    "dygformer": Kind(DygformerSettings, Dygformer, "transformer over both ends' latest events and who stands in both"),
    "tcl": Kind(TclSettings, Tcl, "two streams of latest events that hear themselves and each other", SLOWLY),
    "cawn": Kind(
        CawnSettings,
        Cawn,
        "walks into the past, their nodes known by how often either end's walks meet them",
        grid={"time_scale": (1e-4, 1e-5, 1e-6, 1e-7), "walk_length": (2, 3, 4, 5), "walks": (16, 32, 64, 128)},
    ),
    "tgsrec": Kind(
        TgsrecSettings, Tgsrec, "attention over sampled events, on an embedding that each node learns", SLOWLY
    ),
    "ctdne": Kind(
        CtdneSettings, Ctdne, "skip-gram on walks forward in time; knows the nodes of its training", {"lr": 0.01}
    ),
    "counts": Kind(
        CountsSettings, Counts, "a small network on what history counts of a pair; trains in seconds", {"lr": 0.003}
    ),
    "edgebank": Kind(EdgebankSettings, Edgebank, "pairs seen before; nothing to train"),
    "popularity": Kind(PopularitySettings, Popularity, "destinations with the most events; nothing to train"),
}


def find(name: str) -> Kind:
    """The model of that name; SettingError, with the nearest one, where there is none."""
    if name not in MODELS:
        raise SettingError(f"There is no model '{name}'.{nearest(name, MODELS)} Known models: {', '.join(MODELS)}.")
    return MODELS[name]
