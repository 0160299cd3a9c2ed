"""Choose the device of a model, its matmul precision, and measure its peak memory."""

from __future__ import annotations

import torch

from cordgt.errors import SettingError
from cordgt.runtime.distributed import local_device
from cordgt.runtime.limits import peak_memory_bytes
from cordgt.training.settings import Settings


def choose_device(name: str) -> torch.device:
    """Return the device of a name: cpu, cuda or ``auto``, a GPU if there is one. Each process has its own GPU."""
    name = local_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"There is no device '{name}'. Use auto, cpu or cuda.") from None
    if device.type == "cuda" and device.index is not None and torch.cuda.is_available():
        if device.index >= torch.cuda.device_count():
            raise SettingError(
                f"There is no device '{name}': this machine has {torch.cuda.device_count()} CUDA devices."
            )
        torch.cuda.set_device(device)  # kernels and streams use the current device
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError("CUDA was requested, but this machine has no usable CUDA device. Use --device cpu or auto.")
    if device.type == "mps":
        raise SettingError(
            "The device 'mps' (Apple's GPU) is not supported: it has no float64, which times need. Use --device cpu."
        )
    if device.type not in ("cpu", "cuda"):
        raise SettingError(f"The device '{name}' is not supported. Use auto, cpu or cuda.")
    if str(device) == "cuda":  # add the index, as tensors have it: "cuda" is not equal to "cuda:0"
        return torch.device("cuda", torch.cuda.current_device())
    return device


def has_fast_bf16() -> bool:
    """Return whether this CPU multiplies bfloat16 numbers (AVX512-BF16 or AMX), which is faster than float32."""
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return torch.backends.mkldnn.is_available() and any(check() for check in checks if check is not None)


def trains_in_bf16(precision: str, device: torch.device) -> bool:
    """Return whether a model that supports it trains in bfloat16 with this setting."""
    if device.type == "cpu":
        return precision == "bf16-cpu" and has_fast_bf16()
    return precision in ("bf16", "bf16-cpu")


def set_matmul_precision(settings: Settings, device: torch.device) -> None:
    """Set the precision of matrix products on a GPU in this process, for training and inference."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if settings.training.precision == "fp32" else "high")


def peak_memory_mb(device: torch.device) -> float:
    """Return the peak memory so far in MiB: of the GPU if ``device`` is one, otherwise of the process.

    0 if the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return peak_memory_bytes() / 2**20
