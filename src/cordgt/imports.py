"""Import torch and Numba faster, for commands that answer a question.

Imports take half of the time of a short command. `quick_imports` turns garbage collection off and skips two libraries;
`block_import` also skips pandas:

- pandas, which Arrow looks for at its first conversion. ``to_pandas`` still imports it.
- SciPy, which Numba looks for to compile linear algebra. No loop here has any.
- ``torch._meta_registrations``, a third of torch: kernels of meta tensors, for tracing, compiling and `torch.func`. It
  is imported before the first module of torch that traces or compiles, and before a plug-in (`finish_torch`).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

META_KERNELS = "torch._meta_registrations"
# Modules of torch that need it first: those that trace and compile.
TRACING_MODULES = (
    "torch._decomp",
    "torch._dynamo",
    "torch._functorch",
    "torch._prims",
    "torch._subclasses",
    "torch.export",
    "torch.fx.experimental",
    "torch.utils._content_store",
    "torch.utils.flop_counter",
)


class _ImportBlocker(MetaPathFinder):
    """Refuses to import one package."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname.partition(".")[0] == self.package:
            raise ImportError(fullname)


class _MetaKernelsImporter(MetaPathFinder):
    """Imports `META_KERNELS` before the first of `TRACING_MODULES`. Without it these modules import each other."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname in TRACING_MODULES:
            sys.meta_path.remove(self)
            import_module(META_KERNELS)


@contextmanager
def block_import(package: str) -> Iterator[None]:
    """Make imports of a package fail within the block, unless it is imported already."""
    blocker = _ImportBlocker(package)
    sys.meta_path.insert(0, blocker)
    try:
        yield
    finally:
        sys.meta_path.remove(blocker)


def finish_torch() -> None:
    """Import what `quick_imports` left out of torch. Code of other people may need it."""
    if "torch" in sys.modules:
        import_module(META_KERNELS)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import torch and Numba quickly. Within the block, imports are quick too. Does nothing if torch is imported."""
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        with block_import("scipy"):
            import numba.np.arraymath  # noqa: F401  # looks for SciPy once
        sys.modules[META_KERNELS] = ModuleType(META_KERNELS)  # empty: torch then skips the real one
        try:
            import torch  # noqa: F401
        finally:
            del sys.modules[META_KERNELS]
        sys.meta_path.insert(0, _MetaKernelsImporter())
        yield
    finally:
        gc.freeze()  # modules stay, so they need not be looked at again
        gc.enable()
