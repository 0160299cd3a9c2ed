"""What every test can ask for: a device to compute on, and the folder of real datasets where there is one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported: its kernels run without a GPU

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@dataclass(frozen=True)
class Place:
    """``cpu``: compiled loops. ``torch``: tensor operations on the CPU. ``cuda``: fused kernels there."""

    name: str

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.name == "cuda" else "cpu")

    def index(self, index: Any) -> Any:
        """The same index, answering this way."""
        return index.without_kernels() if self.name == "torch" else index.to(self.device)

    def ints(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=self.device)

    def floats(self, values: Any) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64, device=self.device)


PLACES = ["cpu", "torch", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Small batches are faster on one thread, and tests that run side by side do not fight over cores."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from the user's cache, and nothing is left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def all_threads() -> Iterator[None]:
    """Compiled loops on every core, for tests of what runs side by side."""
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    yield
    numba.set_num_threads(1)


@pytest.fixture(scope="session", params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Every way of looking things up that this machine has."""
    return Place(request.param)


@pytest.fixture(scope="session", params=[p for p in PLACES if p != "torch"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device of this machine."""
    return torch.device(request.param)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder that ``$CORDGT_DATA`` names; the test is skipped where there is none."""
    named = os.environ.get("CORDGT_DATA")
    if not named:
        pytest.skip("set CORDGT_DATA to a folder that holds NAME/ml_NAME.csv to run the tests on real data")
    folder = Path(named)
    if not folder.is_dir():
        pytest.skip(f"CORDGT_DATA names {folder}, which is no folder")
    return folder


@contextmanager
def _restored_registries() -> Iterator[None]:
    """Registries are as before after this context, and plug-in files can be loaded again."""
    from cordgt import plugins
    from cordgt.analysis.exporters import EXPORTERS
    from cordgt.io.datasets.registry import DATASETS
    from cordgt.models import MODELS
    from cordgt.tasks.metrics import LINK_METRICS
    from cordgt.tasks.negatives import NEGATIVES

    registries: tuple[plugins.Registry[Any], ...] = (MODELS, LINK_METRICS, NEGATIVES, DATASETS, EXPORTERS)
    saved = [(r, dict(r._entries), dict(r._owners)) for r in registries]
    files, modules = dict(plugins._loaded_files), set(sys.modules)
    try:
        yield
    finally:
        for registry, entries, owners in saved:
            registry._entries, registry._owners = entries, owners
        plugins._loaded_files.clear()
        plugins._loaded_files.update(files)
        for name in set(sys.modules) - modules:
            if name.startswith(plugins.MODULE_PREFIX):
                del sys.modules[name]


@pytest.fixture(scope="session")
def restored_registries() -> Callable[[], AbstractContextManager[None]]:
    """A context that undoes what is registered inside it."""
    return _restored_registries
