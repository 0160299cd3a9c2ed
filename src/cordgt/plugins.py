"""Extensions by name: a registry for each kind, filled by decorators, by installed packages and by plug-in files.

A *plug-in* is Python code outside this package that registers extensions. It comes from one of three places:

- your own code, which calls a decorator such as ``cordgt.register_metric``;
- an installed package, which names its extensions in entry points (group ``cordgt.models``, ``cordgt.metrics``, …).
  Its code is imported when the extension is first needed;
- a file, which a user names with ``--plugin FILE.py`` or `load_plugin`.

A run folder stores the names of its extensions and plug-ins, but no code is ever loaded because a run names it.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from cordgt.errors import PluginWarning, SettingError, did_you_mean
from cordgt.imports import finish_torch

T = TypeVar("T")
MODULE_PREFIX = "cordgt_plugin_"  # of the modules of plug-in files
_NAME = re.compile(r"[a-z0-9][a-z0-9_@-]*")
_current_plugin: ContextVar[str | None] = ContextVar("current_plugin", default=None)
_loaded_files: dict[Path, ModuleType] = {}


class _Owner(NamedTuple):
    """Where an extension is defined."""

    module: str
    qualified_name: str
    file: str | None
    plugin: str  # the file's or package's name that a run remembers


class Registry(MutableMapping[str, T], Generic[T]):
    """Extensions of one kind by name: those of cordgt, those that were registered, and those of entry points.

    ``register`` adds an object of an entry point that did not register itself. A package whose extension cannot be
    imported gives a warning and is left out, except if the extension is asked for by its name: then a SettingError.
    ``reserved`` names have a meaning of their own, so no extension may have one.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, T],
        register: Callable[[str, Any], Any] | None = None,
        reserved: Sequence[str] = (),
    ) -> None:
        self.kind, self.group = kind, f"cordgt.{kind if kind.endswith('s') else f'{kind}s'}"
        self._entries: dict[str, T] = dict(entries)
        self._built_in = frozenset(entries)
        self._reserved = frozenset(reserved)
        self._owners: dict[str, _Owner] = {}
        self._register = register
        self._failures: dict[str, str] = {}
        self._waiting: dict[str, EntryPoint] | None = None  # entry points that are not loaded yet; None: not searched

    def __getitem__(self, name: str) -> T:
        if name not in self._entries and name in self._entry_points():
            self._load(name)
        if name not in self._entries and name in self._failures:
            raise SettingError(self._failures[name])
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._entry_points() or name in self._failures

    def __iter__(self) -> Iterator[str]:
        for name in list(self._entry_points()):
            try:
                self._load(name)
            except SettingError as error:
                warnings.warn(f"{error} It is left out.", PluginWarning, stacklevel=2)
        return iter(list(self._entries))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, entry: T) -> None:
        self._entries[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries[name]
        self._owners.pop(name, None)

    def is_built_in(self, name: str) -> bool:
        """Return whether cordgt itself defines the extension."""
        return name in self._built_in

    def plugin_of(self, name: str) -> str | None:
        """Return the name of the plug-in that an extension comes from; None if it is cordgt's own, or not known."""
        if name in self._built_in or name not in self:
            return None
        self[name]
        return self._owners[name].plugin if name in self._owners else None

    def check_name(self, name: Any) -> None:
        """Raise SettingError if an extension cannot have this name. Decorators call it before they see a function."""
        if callable(name):
            raise SettingError(f'Give the {self.kind} a name: @cordgt.register_{self.kind}("name").')
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SettingError(
                f"{name!r} cannot be the name of a {self.kind}: use lower-case letters, digits, '_', '-' and '@'."
            )
        if name in self._built_in or name in self._reserved:
            raise SettingError(f"The {self.kind} '{name}' is cordgt's own. Choose another name.")

    def add(self, name: str, entry: T, definition: Any) -> None:
        """Register an extension that ``definition``, a function or class, defines. SettingError if the name is taken.

        The same definition may be registered again, as in a notebook.
        """
        self.check_name(name)
        check_callable(self.kind, name, definition)
        owner, other = _owner_of(definition), self._owners.get(name)
        if other is not None and not _is_same(owner, other):
            raise SettingError(
                f"There is a {self.kind} '{name}' already, from {other.plugin}. Choose another name for that of "
                f"{owner.plugin}."
            )
        self._entries[name] = entry
        self._owners[name] = owner

    def find(self, name: str) -> T:
        """Return an extension. SettingError with the nearest name if there is none, or its plug-in cannot be loaded."""
        if name not in self:
            raise SettingError(
                f"There is no {self.kind} '{name}'.{did_you_mean(name, self)} Known: {', '.join(self)}. "
                "Load your own with --plugin FILE.py."
            )
        return self[name]

    def _entry_points(self) -> dict[str, EntryPoint]:
        """Return the entry points of this kind that are not loaded yet, by name."""
        if self._waiting is None:
            self._waiting = {}
            for point in _installed_entry_points().select(group=self.group):
                if point.name not in self._built_in:
                    self._waiting[point.name] = point
        return self._waiting

    def _load(self, name: str) -> None:
        """Import the package of an entry point. SettingError that names the package if that fails."""
        point = self._entry_points().pop(name)
        package = point.dist.name if point.dist is not None else point.module
        try:
            with _plugin(package):
                finish_torch()
                loaded = point.load()
                if name not in self._entries and self._register is not None and not isinstance(loaded, ModuleType):
                    self._register(name, loaded)
        except (Exception, SystemExit) as error:
            self._failures[name] = (
                f"The {self.kind} '{name}' of the installed package {package} ({point.value}) cannot be loaded: "
                f"{_describe(error)} Repair or remove the package."
            )
            raise SettingError(self._failures[name]) from error
        if name not in self._entries:
            self._failures[name] = (
                f"The installed package {package} names the {self.kind} '{name}' ({point.value}), but does not "
                "register it. Repair or remove the package."
            )
            raise SettingError(self._failures[name])


@functools.cache
def _installed_entry_points() -> Any:
    """Return the entry points of all installed packages; their files are read once."""
    return entry_points()


def load_plugin(path: str | Path) -> ModuleType:
    """Run a Python file that registers extensions, and return it as a module. A file runs once per process.

    The file may import modules of its own folder, as a script may: the folder becomes the last of ``sys.path``.
    SettingError if it does not exist or fails. Load only files that you trust: they run with your rights.

    Examples:
        >>> module = cordgt.load_plugin("win_rate.py")
        >>> run = cordgt.train("purchases.csv", "counts", epochs=1, monitor="win_rate")
    """
    file = Path(path)
    if file.suffix != ".py":
        raise SettingError(f"--plugin {file}: a plug-in is a Python file, whose name ends in .py.")
    if not file.is_file():
        raise SettingError(f"--plugin {file}: there is no such file.")
    resolved = file.resolve()
    if resolved in _loaded_files:
        return _loaded_files[resolved]
    name = f"{MODULE_PREFIX}{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}"
    if name in sys.modules:  # another file of the same name
        name = f"{name}_{len(_loaded_files)}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(resolved.parent)
    is_new_folder = folder not in sys.path
    if is_new_folder:
        sys.path.append(folder)
    finish_torch()
    try:
        with _plugin(file.name):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if is_new_folder:
            sys.path.remove(folder)
        raise SettingError(f"--plugin {file} cannot be loaded: {_describe(error, resolved)}") from error
    _loaded_files[resolved] = module
    return module


class LoadedPlugins:
    """The files that `load_plugin` has run in this process. Sent to a worker process, it runs them there.

    It must be the first argument of the worker: the others may hold objects whose classes the files define.
    """

    def __init__(self, files: Sequence[Path] | None = None) -> None:
        self.files = tuple(_loaded_files) if files is None else tuple(files)
        for file in self.files:
            load_plugin(file)

    def __reduce__(self) -> tuple[type[LoadedPlugins], tuple[tuple[Path, ...]]]:
        return LoadedPlugins, (self.files,)


@contextmanager
def _plugin(name: str) -> Iterator[None]:
    """Give what is registered inside this context the plug-in's name."""
    token = _current_plugin.set(name)
    try:
        yield
    finally:
        _current_plugin.reset(token)


def _describe(error: BaseException, file: Path | None = None) -> str:
    """Return the kind and text of an error as a sentence, with the line of ``file`` where it was raised."""
    trace, line = error.__traceback__, getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    while trace is not None and file is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f"line {line}: "
    return f"{where}{type(error).__name__}: {str(error).rstrip('.')}."


def _owner_of(definition: Any) -> _Owner:
    module = str(getattr(definition, "__module__", "?"))
    try:
        file = inspect.getsourcefile(definition)
    except (TypeError, OSError):
        file = None
    plugin = _current_plugin.get() or module.removeprefix(MODULE_PREFIX)
    name = str(getattr(definition, "__qualname__", definition))
    return _Owner(module, name, None if file is None else str(Path(file).resolve()), plugin)


def _is_same(a: _Owner, b: _Owner) -> bool:
    """Return whether two definitions are one: of one module, or of one file that two modules come from."""
    is_same_place = a.module == b.module or (a.file is not None and a.file == b.file)
    return a.qualified_name == b.qualified_name and is_same_place


def check_extension(setting: str, name: str, registry: Registry[Any]) -> None:
    """Raise SettingError if the value of a setting names no extension of the registry, or one that cannot be loaded."""
    if name not in registry:
        raise SettingError(
            f"{setting}={name} is not known. Choose one of {', '.join(registry)}.{did_you_mean(name, registry)} Load "
            "your own with --plugin FILE.py."
        )
    registry[name]


def check_callable(kind: str, name: str, definition: Any) -> None:
    """Raise SettingError if what a decorator stands above, or an entry point names, is no function or class."""
    if not callable(definition):
        raise SettingError(f"The {kind} '{name}' must be a function or class, not {type(definition).__name__}.")


def check_inputs(
    kind: str, name: str, function: Callable[..., Any], known: Sequence[str], internal: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the names of a function's parameters. SettingError if one is not among the ``known`` inputs.

    ``internal`` inputs are for functions of cordgt itself: the message does not offer them.
    """
    check_callable(kind, name, function)
    parameters = inspect.signature(function).parameters.values()
    inputs = tuple(p.name for p in parameters if p.default is p.empty)
    for unknown in inputs:
        if unknown not in known and unknown not in internal:
            raise SettingError(
                f"The {kind} '{name}' has a parameter '{unknown}'.{did_you_mean(unknown, known)} Its parameters choose "
                f"its inputs by name: {', '.join(known)}."
            )
    return inputs


def first_line(definition: Any) -> str:
    """Return the first line of a docstring without its full stop; empty if there is none."""
    text = inspect.getdoc(definition) or ""
    return text.strip().partition("\n")[0].rstrip(".")
