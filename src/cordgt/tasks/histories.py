"""Build the history of a stream: its index and features, in memory or from a store, on a CPU or a GPU."""

from __future__ import annotations

import os

import numpy as np
import torch

from cordgt.errors import SettingError, check_choice
from cordgt.events.backing import IndexData, StreamBacking
from cordgt.events.stream import EventStream
from cordgt.history.index import TemporalIndex, as_tensor
from cordgt.history.index_builder import IndexArrays
from cordgt.history.queries import History

HISTORY_DEVICE_VARIABLE = "CORDGT_HISTORY_DEVICE"  # environment variable; see `choose_history_device`


def choose_history_device(device: torch.device, n_bytes: int) -> torch.device:
    """Return where to keep ``n_bytes`` of history for a network on ``device``: there, or on the CPU if it is large.

    History may take half of a GPU's free memory; the rest is for training. The environment variable
    ``CORDGT_HISTORY_DEVICE`` overrides this: "device" or "host".
    """
    if "CORDGT_PAST" in os.environ:
        raise SettingError(f"The environment variable CORDGT_PAST is now called {HISTORY_DEVICE_VARIABLE}.")
    choice = os.environ.get(HISTORY_DEVICE_VARIABLE, "auto")
    check_choice(HISTORY_DEVICE_VARIABLE, choice, ("auto", "device", "host"))
    if device.type == "cpu" or choice == "device":
        return device
    fits = choice == "auto" and n_bytes <= torch.cuda.mem_get_info(device)[0] // 2
    return device if fits else torch.device("cpu")


def build_history(
    stream: EventStream,
    *,
    seed: int,
    device: torch.device,
    n_nodes: int | None = None,
    index_arrays: IndexArrays | None = None,
) -> History:
    """Return the history of all events of a stream. ``index_arrays``: its index, if it is built already."""
    backing = stream.backing
    if index_arrays is not None:
        index = TemporalIndex.from_arrays(*index_arrays)
    elif backing is not None and n_nodes is None:
        index = _stored_index(stream, backing, backing.index)
    else:
        n = stream.n_nodes if n_nodes is None else n_nodes
        index = TemporalIndex.build(stream.src, stream.dst, stream.elapsed, n)
    # features of a store stay on disk until they are read
    edge_x, node_x = (None if x is None else as_tensor(x) for x in (stream.edge_x, stream.node_x))
    history = History(index, edge_x, node_x, seed=seed)
    return history.to(choose_history_device(device, history.nbytes))


def build_masked_index(stream: EventStream, masked: np.ndarray) -> TemporalIndex:
    """Return the index without events of masked nodes. A store builds its index once and keeps it on disk."""
    backing = stream.backing
    if backing is None:
        keep = ~(masked[stream.src] | masked[stream.dst])
        return TemporalIndex.build(stream.src, stream.dst, stream.elapsed, stream.n_nodes, keep)
    return _stored_index(stream, backing, backing.masked_index(stream.src, stream.dst, masked))


def _stored_index(stream: EventStream, backing: StreamBacking, index: IndexData) -> TemporalIndex:
    """Return an index of a stream on disk; the store may hold later events too."""
    n = stream.n_events
    return TemporalIndex.from_arrays(index, backing.elapsed[:n], backing.tie_start[:n], stream.src)
