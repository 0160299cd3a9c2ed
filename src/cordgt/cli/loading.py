"""Load what a command works on: data, runs and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cordgt.cli import console
from cordgt.errors import SettingError
from cordgt.imports import quick_imports

if TYPE_CHECKING:
    from cordgt.inference.prefetched_history import PrefetchedHistory
    from cordgt.inference.run import Run
    from cordgt.training.settings import ParsedSettings, Settings


def load_data(data: str, columns: dict[str, Any]) -> Any:
    """Load the stream of DATA and print the assumptions made in reading it."""
    from cordgt.events.notes import merge_append_notes
    from cordgt.io.datasets import registry
    from cordgt.store.store import is_store, open_store

    if is_store(data):  # with a bar: the first use of a large store takes a while
        with console.StageBar() as bar:
            open_store(data).check_once(callbacks=bar)
    stream = registry.load_dataset(data, **columns)
    for text in merge_append_notes(stream.notes):
        console.print_note(f"{stream.name}: {text}")
    return stream


def build_settings(
    data: str, model: str | None, config: Path | None, assignments: list[str], seed: int | None, init: Path | None
) -> Settings:
    """Merge settings from five sources. Each overrides those before it.

    1. defaults, 2. the paper's settings for a known dataset, 3. the run of --init, 4. --config, 5. --set.
    """
    from cordgt.files import follow_link
    from cordgt.models.presets import PRESETS, published_settings
    from cordgt.training.run_folder import RunFolder
    from cordgt.training.settings import ParsedSettings, check_all_used, make_settings, parse_assignments, read_config

    from_file = ParsedSettings(None, None, {}) if config is None else read_config(config)
    from_init = None if init is None else RunFolder(follow_link(init)).read_config().settings
    changes = parse_assignments(assignments)
    model = model or from_file.model or ("cordgt" if from_init is None else from_init.model)
    given = from_file.keys | changes
    preset: dict[str, Any] = published_settings(data, model)
    origin = f"{PRESETS[model].publisher} settings for {data}" if preset else ""
    if from_init is not None and from_init.model == model:
        preset, origin = vars(from_init.model_settings), f"settings of {init}"
    preset = {k: v for k, v in preset.items() if k not in given}
    if preset:
        console.print_note(f"{origin}: {format_assignments(preset)}")
    seed = seed if seed is not None else from_file.seed if from_file.seed is not None else 0
    try:
        settings = make_settings(model, preset | given, seed=seed)
    except SettingError as error:
        if config is not None and _is_error_of_file(str(error), from_file, model, preset, seed):
            raise SettingError(f"{config}: {str(error).removeprefix('settings: ')}") from None
        raise
    check_all_used(settings, changes)
    if config is not None and not from_file.is_run_config:
        check_all_used(settings, from_file.keys, str(config))
    if settings.unused:
        console.print_note(f"not used by {model}: {', '.join(settings.unused)}")
    for text in settings.notes:
        console.print_note(text)
    return settings


def _is_error_of_file(message: str, from_file: ParsedSettings, model: str, preset: dict[str, Any], seed: int) -> bool:
    """Return whether the settings of a --config file give this error without those of --set."""
    from cordgt.training.settings import make_settings

    try:
        make_settings(model, preset | from_file.keys, seed=seed)
    except SettingError as error:
        return str(error) == message
    return False


def prefetch_history(path: Path) -> PrefetchedHistory | None:
    """Start to read a run's history in a thread, and import the modules of an answer. Pass the result to `open_run`."""
    from cordgt.files import follow_link
    from cordgt.inference.prefetched_history import PrefetchedHistory

    prefetched = PrefetchedHistory.start(follow_link(path))
    with quick_imports():
        import cordgt.inference.run  # noqa: F401
    return prefetched


def open_run(
    path: Path,
    device: str,
    events: Path | None = None,
    columns: dict[str, Any] | None = None,
    prefetched: PrefetchedHistory | None = None,
) -> Run:
    """Load a run and append later ``events``, read with the options ``columns``, to its history.

    SettingError for --node-features without --events, or for a run without node features.
    """
    from cordgt.inference.run import Run

    columns = columns or {}
    if events is None and "node_features" in columns:
        raise SettingError("--node-features describes the nodes of --events. Remove it, or add --events.")
    loaded = Run.load(path, device, prefetched=prefetched)
    if events is None:
        return loaded
    if "node_features" in columns and not loaded.stream.node_dim:
        raise SettingError(f"--node-features: {path} was trained without node features.")
    longer = loaded.with_events(events, **columns)
    console.print_note(f"{events}: {longer.stream.n_events - loaded.stream.n_events:,} events appended to the history")
    for text in longer.stream.notes[len(loaded.stream.notes) :]:
        console.print_note(f"{events}: {text}")
    return longer


def query_columns(
    run: Run, file: Any, columns: dict[str, Any], names: tuple[str, ...], *, has_events: bool
) -> dict[str, Any]:
    """Return the column options for a file of pairs or ids, from `load_file`.

    These are those of ``columns`` in ``names``, and those of the training whose columns are in the file's header. With
    ``has_events`` the user may have given ``columns`` for --events only. They then apply here only if the file has
    these columns.
    """
    from cordgt.io.column_options import columns_in_header, has_columns

    given = {k: v for k, v in columns.items() if k in names}
    trained = {k: v for k, v in run.columns.items() if k in ("src", "dst", "time")}
    merged = columns_in_header(file, trained) | given
    if has_events and not has_columns(file, merged, need_time=False):
        return columns_in_header(file, trained | given)
    return merged


def format_assignments(values: dict[str, Any]) -> str:
    """Return settings in the syntax of --set: ``fanout=20,1 hidden=64``."""
    from cordgt.training.settings import format_value

    return " ".join(f"{k}={format_value(v)}" for k, v in values.items())
