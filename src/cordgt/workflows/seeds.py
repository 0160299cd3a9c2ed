"""Train one model with several seeds or several draws of masked nodes, and report mean and std of each metric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cordgt.callbacks import Callbacks, as_callback
from cordgt.events.stream import EventStream
from cordgt.runtime import distributed
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.output_folder import check_run_names
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import Settings
from cordgt.workflows.seed_processes import SharedGpuMemoryError, can_share_gpu, train_in_processes
from cordgt.workflows.train import train_run


def train_seeds(
    stream: EventStream,
    settings: Settings,
    out: Path,
    seeds: int | None,
    *,
    mask_draws: int | None = None,
    resume: bool = False,
    callbacks: Callbacks = None,
    **options: Any,
) -> RunMetrics:
    """Train several runs into the folders of `settings_by_folder`: on a GPU at once, elsewhere one after the other.

    Runs that do not fit into a GPU's memory together are continued one after the other.
    Returns the metrics over all runs, as in `RunMetrics.from_runs`, and writes them to ``metrics.json`` in ``out``.
    ``options`` are those of `train_run`.
    """
    by_folder = settings_by_folder(settings, seeds, mask_draws)
    if distributed.init_process_group().is_main_process:
        check_run_names(out, list(by_folder), resume)
    runs, callback = [], as_callback(callbacks)
    if len(by_folder) > 1 and can_share_gpu(stream, options.get("device", "auto"), options):
        try:
            runs = train_in_processes(stream, by_folder, out, callback, {"resume": resume, **options})
        except SharedGpuMemoryError:
            callback.on_message("The GPU has too little memory for several seeds at once: one after the other.")
            resume = True
    if not runs:
        for name, own in by_folder.items():
            callback.on_run_start(name)
            runs.append(train_run(stream, own, out / name, resume=resume, callbacks=callback, **options).metrics)
            callback.on_run_end(name, runs[-1])
    summary = RunMetrics.from_runs(runs)
    if distributed.current_group().is_main_process:
        RunFolder(out).write_metrics(summary)
    return summary


def settings_by_folder(settings: Settings, seeds: int | None, mask_draws: int | None) -> dict[str, Settings]:
    """Return the settings of each run by its folder: ``seed-*``, ``mask-*``, or ``mask-*-seed-*`` if both vary.

    Seeds count up from those in ``settings``.
    """
    by_folder = {}
    for mask in range(mask_draws or 1):
        for seed in range(seeds or 1):
            protocol = replace(settings.protocol, mask_seed=settings.protocol.mask_seed + mask)
            own = replace(settings, seed=settings.seed + seed, protocol=protocol)
            names = [] if mask_draws is None else [f"mask-{protocol.mask_seed}"]
            names += [] if seeds is None else [f"seed-{own.seed}"]
            by_folder["-".join(names)] = own
    return by_folder
