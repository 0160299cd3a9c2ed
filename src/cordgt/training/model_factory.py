"""The network of a run's settings: made with fresh weights, or given those of another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cordgt import models
from cordgt.errors import SettingError
from cordgt.events.stream import EventStream
from cordgt.models.base import LinkModel
from cordgt.training.settings import Settings


def make_network(settings: Settings, *, edge_dim: int, node_dim: int, n_nodes: int = 0) -> LinkModel:
    """The model of the settings with fresh weights, drawn from the run's seed; some hold a row for each node."""
    torch.manual_seed(settings.seed)
    network: Any = models.find(settings.model).network
    rows = {"n_nodes": n_nodes} if network.is_transductive else {}
    return network(settings.model_settings, edge_dim=edge_dim, node_dim=node_dim, **rows)


def network_for(settings: Settings, stream: EventStream) -> LinkModel:
    """`make_network` for a stream."""
    return make_network(settings, edge_dim=stream.edge_dim, node_dim=stream.node_dim, n_nodes=stream.n_nodes)


def load_weights(model: LinkModel, weights: dict[str, Tensor], where: str) -> None:
    """Put weights into a model; SettingError where they are another model's."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise SettingError(f"The weights of {where} do not fit these settings: {reason}") from None
