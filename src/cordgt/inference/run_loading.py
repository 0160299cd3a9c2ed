"""Build the model of a run folder, and check that its files belong together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cordgt.errors import RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.models.base import LinkModel
from cordgt.training.devices import set_matmul_precision
from cordgt.training.model_factory import build_model_for, load_weights
from cordgt.training.run_folder import RunConfig, RunFolder
from cordgt.training.settings import Settings


def check_metrics_match_config(folder: RunFolder, config: RunConfig, metrics: Mapping[str, Any]) -> None:
    """Raise RunError if config.toml and metrics.json are not of one run.

    With another protocol, training events could be test events.
    """
    settings = config.settings
    expected = {"model": settings.model, "seed": settings.seed, "data": config.data.get("name")}
    pairs = [(key, value, metrics[key]) for key, value in expected.items()]
    protocol = metrics["protocol"]
    pairs += [(key, value, protocol[key]) for key, value in vars(settings.protocol).items() if key in protocol]
    for key, value, trained in pairs:
        if trained != value:
            raise RunError(
                f"{folder.path} is damaged: config.toml has {key}={value}, but it was trained with {trained}. "
                "Restore the original files."
            )


def load_run_model(
    settings: Settings, stream: EventStream, weights: dict[str, Tensor], path: Path, device: torch.device
) -> LinkModel:
    """Build a model on a device, with the weights of the file ``path``. RunError if they do not fit the settings."""
    _check_size(settings, stream, weights, path)
    with torch.random.fork_rng(devices=[]):
        model = build_model_for(settings, stream)
    try:
        load_weights(model, weights, str(path))
    except SettingError as error:
        raise RunError(f"{path} is damaged: {error}") from None
    set_matmul_precision(settings, device)
    return model.to(device).eval()


def _check_size(settings: Settings, stream: EventStream, weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise RunError if the weights are of a smaller model than the settings describe. Allocates no memory."""
    too_large = RunError(f"{path} is damaged: config.toml describes a larger model. Restore the original files.")
    if getattr(settings.model_settings, "layers", 0) > len(weights):  # each layer has weights
        raise too_large
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _SkipRandomInit():
            expected = build_model_for(settings, stream).state_dict()
    except MemoryError:
        raise
    except Exception as error:
        if "overflow" in str(error):
            raise too_large from None
        return  # a user's own model that cannot be built without memory
    if sum(x.numel() for x in expected.values()) > sum(x.numel() for x in weights.values()):
        raise too_large


class _SkipRandomInit(TorchFunctionMode):
    """Skips random initial weights. On the meta device they would make torch import much of itself, over a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
