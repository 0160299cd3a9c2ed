"""Build the model of a run's settings, and load weights into it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cordgt import models
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.models.base import LinkModel
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
    """Load weights into a model. SettingError if they do not fit; ``where`` names their origin."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise SettingError(f"The weights of {where} do not fit these settings: {reason}") from None
