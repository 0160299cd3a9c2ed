"""The device that a model lies on: which one, how exactly it multiplies, the most memory that was used."""

from __future__ import annotations

import resource
import sys

import torch

from cordgt.errors import SettingError
from cordgt.runtime.distributed import own_device
from cordgt.training.settings import Settings


def choose_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one; of several processes each has its own."""
    name = own_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"There is no device '{name}': it is auto, cpu or cuda.") from None
    if device.type == "cuda" and device.index is not None and torch.cuda.is_available():
        if device.index >= torch.cuda.device_count():
            raise SettingError(f"There is no device '{name}': this machine has {torch.cuda.device_count()} of them.")
        torch.cuda.set_device(device)  # kernels and streams go to the current one
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError("CUDA was asked for, but this machine has no usable CUDA device. Use --device cpu or auto.")
    if device.type not in ("cpu", "cuda"):
        raise SettingError(f"The device '{name}' is not supported: it is auto, cpu or cuda.")
    if str(device) == "cuda":  # with its number, as tensors there have it: "cuda" is not equal to "cuda:0"
        return torch.device("cuda", torch.cuda.current_device())
    return device


def use_precision(settings: Settings, device: torch.device) -> None:
    """Let this process multiply matrices on a GPU as the settings say, also where a trained model is only asked."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if settings.training.precision == "fp32" else "high")


def peak_memory_mb(device: torch.device) -> float:
    """The most memory used so far: the GPU's where one is used, otherwise the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
