"""Build the model of a run's settings, and load weights into it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cordgt import models
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.models.base import LinkModel
from cordgt.models.cordgt_plus import CordgtPlus
from cordgt.training.settings import Settings


def build_model(settings: Settings, *, edge_dim: int, node_dim: int, n_nodes: int = 0) -> LinkModel:
    """Return the model with new weights from the run's seed. Transductive models have a row per node."""
    torch.manual_seed(settings.seed)
    network: Any = models.find_model(settings.model).network
    sizes = {"n_nodes": n_nodes} if network.is_transductive else {}
    return network(settings.model_settings, edge_dim=edge_dim, node_dim=node_dim, **sizes)


def build_model_for(settings: Settings, stream: EventStream) -> LinkModel:
    """Return `build_model` with the dimensions of a stream."""
    return build_model(settings, edge_dim=stream.edge_dim, node_dim=stream.node_dim, n_nodes=stream.n_nodes)


def load_weights(model: LinkModel, weights: dict[str, Tensor], where: str) -> None:
    """Load weights into a model. SettingError if they do not fit; ``where`` names their origin.

    Weights of a CorDGT+ without ``counts_blend`` fit one with it, whose `Counts` network then keeps its own.
    """
    missing = {} if any(name.startswith("counts") for name in weights) else _counts_state(model)
    try:
        model.load_state_dict(missing | weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise SettingError(f"The weights of {where} do not fit these settings: {reason}") from None


def _counts_state(model: LinkModel) -> dict[str, Tensor]:
    """Return the weights of the `Counts` network in CorDGT+ under their names there; empty for other models."""
    if not isinstance(model, CordgtPlus):
        return {}
    return {name: value for name, value in model.state_dict().items() if name.startswith("counts")}
