"""What a captured CUDA graph asks for, checked without a GPU: nothing is fetched from the device, and what is done
depends on shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cordgt.history.queries import History
from cordgt.inference.retrieval.first_scorer import new_first_scorer
from cordgt.models.base import LinkModel

from .worlds import Case, World, every_model, query_events, random_world

# Operations whose result the host waits for, or whose shape depends on values.
WAITS = (
    "aten._local_scalar_dense aten.nonzero aten.nonzero_numpy aten.masked_select aten.equal aten.is_nonzero "
    "aten.unique_dim aten._unique2 aten.unique_consecutive aten.bincount aten.histc aten.argwhere"
).split()
SENDS = ("tensor", "as_tensor", "from_numpy")  # of the module torch: what they make stands on the host
FETCHES = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__")


class OnDevice(TorchDispatchMode):
    """Keeps the names of all operations, and refuses those that a capture would."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        assert name not in WAITS, f"{name}: the host would wait for the device"
        if name in ("aten.index", "aten.index_put", "aten.index_put_"):
            chosen = [i for i in args[1] if isinstance(i, Tensor)]
            assert not any(i.dtype in (torch.bool, torch.uint8) for i in chosen), f"{name} by a mask: its shape varies"
        assert name != "aten.repeat_interleave" or "output_size" in (kwargs or {}), f"{name}: its shape varies"
        self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Some ways of fetching a value pass by the dispatcher: they are refused by name."""

    def refused(name: str) -> Any:
        def fetch(self: Tensor, *_: Any, **__: Any) -> Any:
            raise AssertionError(f"{name}: the host would wait for the device, or send to it")

        return fetch

    with monkeypatch.context() as patched:
        for name in FETCHES:
            patched.setattr(Tensor, name, refused(name))
        for name in SENDS:
            patched.setattr(torch, name, refused(name))
        yield


def as_on_a_gpu(world: World) -> History:
    """The history answering through torch operations, with the epoch in a tensor, as inside a captured step."""
    history = world.history
    return replace(history, index=history.index.without_kernels(), epoch=torch.ones((), dtype=torch.int64))


def read_and_train(
    network: LinkModel, world: World, positions: list[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[str]]:
    """The operations of reading a batch, and of its losses and their gradients."""
    history, queries = as_on_a_gpu(world), query_events(world, positions, "event").to_queries(world.stream)
    network.reader.read(history, queries)  # what is made once and kept, is made here
    with nothing_fetched(monkeypatch), OnDevice() as reading:
        batch = network.reader.read(history, queries)
    if not network.is_trainable:
        return reading.names, []
    network.zero_grad(set_to_none=True)
    if network.is_stateful:  # as the trainer does it where a step is recorded
        assert network.use_static_shapes(history, np.array([40]), 60)
        network.losses(batch)  # what is made once, is made here
    with nothing_fetched(monkeypatch) if network.is_stateful else nullcontext(), OnDevice() as training:
        network.losses(batch).sum().backward()
    return reading.names, training.names


@every_model
@pytest.mark.parametrize("features", [False, True], ids=["plain", "features"])
def test_a_step_never_waits_for_the_device(case: Case, features: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDGT_PLAIN", "1")  # what is made for the CPU may talk to the host
    world = random_world(3, 60, features=features)
    network = case.network(world).train()
    late = read_and_train(network, world, [40, 45, 50, 55, 59], monkeypatch)
    early = read_and_train(network, world, [0, 1, 2, 3, 4], monkeypatch)
    assert late[0], "a reader reads something"
    assert early == late, "what is done depends on values, not on shapes alone"


def test_the_first_scorer_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORDGT_PLAIN", "1")
    world, scorer = random_world(3, 60, features=False), new_first_scorer()
    history = as_on_a_gpu(world)
    names = []
    for positions in ([40, 45], [0, 1]):
        queries = query_events(world, positions, "event").to_queries(world.stream)
        scorer.reader.read(history, queries)
        with nothing_fetched(monkeypatch), OnDevice() as scoring, torch.inference_mode():
            scorer(scorer.reader.read(history, queries))
        names.append(scoring.names)
    assert names[0] == names[1]
