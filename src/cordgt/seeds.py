"""One training several times, with other seeds or draws of the masked nodes: each figure with its spread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cordgt.api import train_run
from cordgt.events.stream import EventStream
from cordgt.machine import processes
from cordgt.run import RunFolder
from cordgt.settings import Settings
from cordgt.training.out_folder import check_free_for
from cordgt.training.watching import Watcher


def train_seeds(
    stream: EventStream,
    settings: Settings,
    out: Path,
    seeds: int | None,
    *,
    mask_draws: int | None = None,
    resume: bool = False,
    watch: Callable[[str], Watcher] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train several times in a row, into the folders of `spread`; mean, standard deviation and every value come back.

    ``watch`` gives who watches the training in a folder; ``options`` as for `train_run`.
    """
    each = spread(settings, seeds, mask_draws)
    if processes.join().leads:
        check_free_for(out, list(each), resume)
    runs = []
    for name, own in each.items():
        watcher = None if watch is None else watch(name)
        runs.append(train_run(stream, own, out / name, resume=resume, watcher=watcher, **options).metrics)
    summary = summarise(runs)
    if processes.current().leads:
        RunFolder(out).write_metrics(summary)
    return summary


def spread(settings: Settings, seeds: int | None, mask_draws: int | None) -> dict[str, Settings]:
    """The settings of each of several runs by its folder: ``seed-*``, ``mask-*``, or ``mask-*-seed-*`` where both vary.

    Both count on from those of the settings. What does not vary stays out of the name.
    """
    found = {}
    for mask in range(mask_draws or 1):
        for seed in range(seeds or 1):
            protocol = replace(settings.protocol, mask_seed=settings.protocol.mask_seed + mask)
            own = replace(settings, seed=settings.seed + seed, protocol=protocol)
            masks = [] if mask_draws is None else [f"mask-{protocol.mask_seed}"]
            found["-".join([*masks, *([] if seeds is None else [f"seed-{own.seed}"])])] = own
    return found


def summarise(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """``metrics.json`` of several runs: each figure as mean, std and values (sample deviation; 0 for one value).

    The values stand in the order of ``seeds`` and ``mask_seeds``, one a run.
    """

    def over_runs(values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            return {key: over_runs([v[key] for v in values]) for key in values[0]}
        if any(v is None for v in values):
            return {"mean": None, "std": None, "values": values}
        std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return {"mean": float(np.mean(values)), "std": std, "values": values}

    first = metrics[0]
    measured = ("epochs", "best_epoch", "seconds_per_epoch", "peak_memory_mb", "validation", "test", "floors")
    return {
        "model": first["model"],
        "data": first["data"],
        **({"init": first["init"]} if "init" in first else {}),
        "seeds": [m["seed"] for m in metrics],
        "mask_seeds": (masks := [m["protocol"]["mask_seed"] for m in metrics]),
        # one protocol but for the draws of the masked nodes, which are listed where there are several
        "protocol": first["protocol"] | ({"mask_seed": sorted(set(masks))} if len(set(masks)) > 1 else {}),
        **{key: over_runs([m[key] for m in metrics]) for key in measured},
    }
