"""Tensor files: safetensors with metadata and a checksum that covers both, and the configuration of their run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cordgt.errors import RunError
from cordgt.files import open_regular_file


class TensorFile(NamedTuple):
    """The content of a tensor file."""

    tensors: dict[str, Tensor]
    metadata: dict[str, Any]
    config: str | None  # digest of the run's config.toml; None in formats 1 and 2
    checksum: str


def encode_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any], config: str) -> bytes:
    """Return the bytes of a tensor file. ``config`` is the digest of the run's config.toml."""
    on_cpu = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    about = json.dumps(metadata)
    # Not `save_file`: it would leave a temporary file if killed.
    return save(on_cpu, {"about": about, "config": config, "sha256": _checksum(on_cpu, about, config)})


def read_tensor_file(path: Path) -> TensorFile:
    """Read and verify a tensor file. RunError if it is missing or no regular file; ValueError if it is damaged."""
    open_regular_file(path, error=RunError).close()
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        about, config, expected = header.get("about", "{}"), header.get("config"), header.get("sha256")
        if expected is None:
            raise ValueError("it has no checksum")
        if expected != _checksum(tensors, about, config):
            raise ValueError("its checksum is wrong")
        metadata = json.loads(about)
        if not isinstance(metadata, dict):
            raise ValueError("its metadata is not a JSON object")
        return TensorFile(tensors, metadata, config, expected)
    except (OSError, SafetensorError, TypeError, RuntimeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def read_checksum(path: Path) -> str:
    """Return the checksum in the header of a tensor file, without verifying it; empty if there is none."""
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("sha256", ""))
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from None


def _checksum(tensors: Mapping[str, Tensor], about: str, config: str | None) -> str:
    """Return a hash of the tensors' names, types, shapes and bytes, their metadata and the run's configuration."""
    digest = hashlib.sha256(about.encode() if config is None else f"{about}\n{config}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
