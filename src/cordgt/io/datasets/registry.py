"""Known datasets: their published statistics, and where to find them by name. `fetch` downloads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cordgt.errors import CordgtError, DataError, did_you_mean
from cordgt.events.stream import EventStream
from cordgt.files import cache_folder, sibling_names
from cordgt.io.column_options import COLUMN_OPTIONS
from cordgt.io.column_roles import ColumnOptions
from cordgt.io.datasets.synthetic import synthetic_stream
from cordgt.io.datasets.twins import TWINS, is_twin, twin_stream
from cordgt.io.folders import suggest_files
from cordgt.io.open_table import LoadedFile
from cordgt.io.readers import read_events
from cordgt.plugins import Registry
from cordgt.store.store import is_partial, is_store, partial_store_hint

AS_PUBLISHED = " as published: "  # marks the notes of `describe_difference`


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Published facts of a dataset. Intensity is 2 links / (nodes * span in seconds); None if not published."""

    nodes: int
    links: int
    node_attributes: int = 0
    link_attributes: int = 0
    intensity: float | None = None
    is_bipartite: bool = False
    has_labels: bool = False  # published with labels 0 and 1; False: without labels, or with zeros only
    in_paper: bool = True


# fmt: off
KNOWN_DATASETS: dict[str, Dataset] = {
    "reddit": Dataset(
        nodes=10984, links=672447, node_attributes=172, link_attributes=172, intensity=4.57e-5,
        is_bipartite=True, has_labels=True,
    ),
    "wikipedia": Dataset(
        nodes=9227, links=157474, node_attributes=172, link_attributes=172, intensity=1.27e-5,
        is_bipartite=True, has_labels=True,
    ),
    "lastfm": Dataset(nodes=1980, links=1293103, intensity=5.04e-4, is_bipartite=True),
    "uci": Dataset(nodes=1899, links=59835, intensity=3.79e-6),
    "enron": Dataset(nodes=184, links=125235, intensity=1.2e-5),
    "social_evolution": Dataset(nodes=74, links=2099519, link_attributes=2, intensity=2.73e-3),
    "flights": Dataset(nodes=13169, links=1927145, link_attributes=1, intensity=1.41e-5),
    "outdoors": Dataset(nodes=223777, links=1192397, intensity=1.71e-7, is_bipartite=True),
    "food": Dataset(nodes=673858, links=2708688, intensity=2.58e-7, is_bipartite=True),
    "mooc": Dataset(
        nodes=7144, links=411749, link_attributes=4, is_bipartite=True, has_labels=True, in_paper=False,
    ),
    "tgbl-review": Dataset(nodes=352637, links=4873540, link_attributes=1, in_paper=False),
    "tgbl-coin": Dataset(nodes=638486, links=22809486, link_attributes=1, in_paper=False),
    "ML-20M": Dataset(nodes=110431, links=14494325, is_bipartite=True, in_paper=False),
    "Taobao": Dataset(nodes=1623633, links=18853792, is_bipartite=True, in_paper=False),
    "Yelp": Dataset(nodes=1743769, links=19760293, is_bipartite=True, in_paper=False),
    "GoogleLocal": Dataset(nodes=473580, links=1913967, is_bipartite=True, in_paper=False),
    "Flickr": Dataset(nodes=233836, links=7223559, in_paper=False),
    "YouTube": Dataset(nodes=402422, links=3288028, in_paper=False),
    "WikiLink": Dataset(nodes=1361972, links=34163774, in_paper=False),
}
# fmt: on
SYNTHETIC = "synthetic"  # the stream of the demo
GENERATED = (SYNTHETIC, *TWINS)  # generated on demand in seconds, always the same
F = TypeVar("F", bound=Callable[..., Any])
# Datasets of plug-ins: functions that return a stream, or what `read_events` takes.
DATASETS: Registry[Callable[[], Any]] = Registry(
    "dataset", {}, lambda name, function: register_dataset(name)(function), (*KNOWN_DATASETS, *GENERATED)
)


def register_dataset(name: str) -> Callable[[F], F]:
    """Register a function without arguments that returns events: DATA of every command, and of `cordgt.train`.

    It returns an `EventStream`, a path, or a table that `read_events` takes. It is called when the data are needed.

    Examples:
        >>> @cordgt.register_dataset("our-shop")
        ... def our_shop():
        ...     return "purchases.csv"
        >>> run = cordgt.train("our-shop", "counts", epochs=1)
    """
    DATASETS.check_name(name)

    def register(function: F) -> F:
        DATASETS.add(name, function, function)
        return function

    return register


@dataclass(frozen=True)
class DatasetEntry:
    """A row of `list_datasets`. ``path`` is None if the dataset is not on this machine."""

    name: str
    nodes: int | None  # published; None for a dataset that is not in `KNOWN_DATASETS`
    links: int | None
    path: Path | None
    is_generated: bool = False


def data_folders() -> tuple[Path, ...]:
    """Return the folders searched for datasets: $CORDGT_DATA if set, then the user's cache."""
    own = os.environ.get("CORDGT_DATA")
    return (Path(own).expanduser(), cache_folder()) if own else (cache_folder(),)


def find_dataset(name: str) -> Path | None:
    """Return the path of NAME/ml_NAME.csv or .csv.gz in the data folders; None if no folder has it."""
    if not _is_dataset_name(name):
        return None
    for folder in data_folders():
        for suffix in (".csv", ".csv.gz"):
            path = folder / name / f"ml_{name}{suffix}"
            if os.path.isfile(path):  # Path.is_file raises if the name is too long
                return path
    return None


def resolve_path(data: str | os.PathLike[str]) -> Path:
    """Return the path of ``data``, which is a dataset's name or a path.

    It is a path if it contains a separator or a dot, or if no dataset has that name. DataError if there is neither,
    with the nearest name and the places searched.
    """
    text = os.fspath(data)
    if not text:
        raise DataError("No data is named: give a dataset's name or a path.")
    path = Path(os.path.expanduser(text))  # Path.expanduser raises if there is no such user
    if not _is_dataset_name(text):
        if not os.path.exists(path):
            raise DataError(
                f"There is no file {path}.{partial_store_hint(path) or did_you_mean(path.name, sibling_names(path))}"
            )
        if is_partial(path):
            raise DataError(f"{path} is a store that is not finished.{partial_store_hint(path)}")
        return path
    found = find_dataset(text)
    if found is not None:
        return found
    if text not in KNOWN_DATASETS and os.path.exists(path):
        return path
    raise DataError(_not_found_message(text, path))


def list_datasets() -> list[DatasetEntry]:
    """List every known dataset, every other one in the data folders, and every twin."""
    rows = [DatasetEntry(name, known.nodes, known.links, find_dataset(name)) for name, known in KNOWN_DATASETS.items()]
    rows += [
        DatasetEntry(name, None, None, find_dataset(name)) for name in _names_in_folders() if name not in KNOWN_DATASETS
    ]
    rows += [DatasetEntry(name, None, None, None, is_generated=True) for name in DATASETS]
    return rows + [DatasetEntry(name, k.nodes, k.events, None, is_generated=True) for name, k in TWINS.items()]


def load_dataset(data: str | os.PathLike[str], **options: Any) -> EventStream:
    """Read the events that ``data`` stands for, with a note if a known dataset differs from the published one.

    A twin's name, or ``synthetic``, generates the stream. To read a file of that name, write it as a path.

    Examples:
        >>> cordgt.load_dataset("synthetic").n_events > 0
        True
    """
    name = os.fspath(data)
    if name in GENERATED:
        return _generate_stream(name, options)
    if name in DATASETS:
        return _registered_stream(name, options)
    path = resolve_path(data)
    if path.is_dir() and not is_store(path):
        raise DataError(suggest_files(path, ColumnOptions(**{k: v for k, v in options.items() if k in COLUMN_OPTIONS})))
    stream = read_events(data if isinstance(data, LoadedFile) else path, **options)
    note = describe_difference(name, stream)
    return stream.with_notes(note) if note else stream


def _generate_stream(name: str, options: dict[str, Any]) -> EventStream:
    for key, value in options.items():
        if value is not None and value is not False and (key, value) != ("ids", "auto"):
            raise DataError(f"{name} is generated: there is no file to read, so leave out --{key.replace('_', '-')}.")
    return twin_stream(name) if is_twin(name) else synthetic_stream().stream


def _registered_stream(name: str, options: dict[str, Any]) -> EventStream:
    """Return the events of a plug-in's dataset. Column options apply if it returns a path or a table."""
    try:
        data = DATASETS[name]()
    except CordgtError:
        raise
    except Exception as error:
        raise DataError(f"The dataset '{name}' of a plug-in failed: {type(error).__name__}: {error}") from error
    if not isinstance(data, EventStream):
        try:
            data = read_events(data, **options)
        except DataError as error:
            raise DataError(f"The dataset '{name}': {error}") from None
    elif given := [k for k, v in options.items() if v is not None and v is not False and (k, v) != ("ids", "auto")]:
        raise DataError(f"{name} is a stream already: leave out --{given[0].replace('_', '-')}.")
    return replace(data, name=name)


def describe_difference(name: str, stream: EventStream) -> str:
    """Describe how a stream differs from the published dataset of that name; empty if it does not.

    Node attributes are not compared: the published ones are all zeros, which are read as none.
    """
    known = KNOWN_DATASETS.get(name)
    if known is None:
        return ""
    compared = (
        ("nodes", stream.n_nodes, known.nodes),
        ("links", stream.n_events, known.links),
        ("link attributes", stream.edge_dim, known.link_attributes),
    )
    parts = [f"{here} {what} (published: {there})" for what, here, there in compared if here != there]
    missing = describe_missing_labels(name, stream)
    parts += [missing] if missing else []
    return f"not {name}{AS_PUBLISHED}{', '.join(parts)}" if parts else ""


def describe_missing_labels(name: str, stream: EventStream) -> str:
    """Describe what is wrong with labels that are published as 0 and 1; empty if nothing is."""
    known = KNOWN_DATASETS.get(name)
    if known is None or not known.has_labels:
        return ""
    labels = np.empty(0) if stream.label is None else stream.label[np.isfinite(stream.label)]
    if len(labels) == 0:
        return "no labels (published: 0 and 1)"
    return f"every label is {labels[0]:g} (published: 0 and 1)" if labels.min() == labels.max() else ""


def select_differences(notes: Iterable[str]) -> list[str]:
    """Return the notes that come from `describe_difference`."""
    return [note for note in notes if note.startswith("not ") and AS_PUBLISHED in note]


def _is_dataset_name(text: str) -> bool:
    """Whether this can be a dataset's name: no separator, no dot."""
    return bool(text) and not any(k in text for k in (os.sep, os.altsep or os.sep, "/", "."))


def _names_in_folders() -> list[str]:
    names = {k.name for folder in data_folders() if folder.is_dir() for k in folder.iterdir() if k.is_dir()}
    return sorted(k for k in names if find_dataset(k) is not None)


def _not_found_message(name: str, path: Path) -> str:
    places = " and ".join(str(folder / name / f"ml_{name}.csv[.gz]") for folder in data_folders())
    if not os.environ.get("CORDGT_DATA"):
        places += "; CORDGT_DATA is not set"
    if name in KNOWN_DATASETS:
        hint = f" To read the file of that name here, write .{os.sep}{name}." if path.exists() else ""
        return f"The dataset {name} was not found: looked for {places}.{hint} Fetch it: cordgt data fetch {name}."
    hint = partial_store_hint(path) or did_you_mean(
        name, [*KNOWN_DATASETS, *GENERATED, *DATASETS, *_names_in_folders(), *sibling_names(path)]
    )
    return f"'{name}' is neither a known dataset nor a file.{hint} Looked for the file {path}, and for {places}."
