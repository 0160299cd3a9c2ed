"""The demo: a generated stream whose truth is known, a training, and a few questions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from cordgt.cli import console
from cordgt.inference.run import Run
from cordgt.io.datasets.synthetic import SyntheticStream, synthetic_stream
from cordgt.models import find
from cordgt.tasks.link import LinkTask, evaluate
from cordgt.tasks.metrics import link_metrics
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.training.output_folder import first_free
from cordgt.training.settings import make
from cordgt.workflows.train import train_run

# Small enough for two cores and three minutes; everything else is as by default.
SMALL = {"fanout": (12, 1), "hidden": 32, "heads": 2, "epochs": 8, "batch_size": 50}


def run_demo(out: Path | None, seed: int, device: str, *, quiet: bool = False) -> dict[str, Any]:
    """Train on the generated stream, print the figures beside those of the oracle, and ask a few questions.

    The figures and answers come back too; ``quiet``: without being printed.
    """
    console.note("Generating a stream: communities, pairs with their own intensities, bursts, triangles, newcomers.")
    world = synthetic_stream(seed=seed)
    stream = world.stream
    console.note(f"{stream.n_events:,} events of {stream.n_nodes:,} nodes. Training CorDGT on the first 70 %.")
    began = time.perf_counter()
    with console.ProgressBar() as bar:
        folder = out or first_free(Path("runs") / "demo")
        run = train_run(stream, make("cordgt", SMALL, seed=seed), folder, device=device, callbacks=bar)
    found = {
        "run": str(run.path),
        "seconds": time.perf_counter() - began,
        "ap": _comparison(run, world),
        "recommendations": _ask(run),
    }
    if not quiet:
        _show(run, found)
    return found


def _show(run: Run, found: dict[str, Any]) -> None:
    table = Table(title="Average precision on the last 15 % of the events", title_justify="left")
    for name in ("", *SETTINGS):
        table.add_column(name, justify="right" if name else "left")
    for name, values in found["ap"].items():
        table.add_row(name, *("–" if v is None else f"{100 * v:.2f}" for v in values.values()))
    console.out.print(table)
    console.out.print(f"Training and evaluation took {found['seconds']:.0f} s.\n")
    for node, best in found["recommendations"].items():
        told = ", ".join(f"{r['node']} ({r['score']:.2f}{', met before' if r['met'] else ''})" for r in best)
        console.out.print(f"{node} will most likely meet {told}", markup=False)
    console.out.print(f"\nThe run is in {run.path}. Ask it more:", markup=False)
    some = next(iter(found["recommendations"]))
    console.out.print(f"  cordgt recommend {run.path} --source {some}", markup=False)


def _comparison(run: Run, world: SyntheticStream) -> dict[str, dict[str, float | None]]:
    """AP on the test events: pairs seen before, CorDGT, and an oracle that knows the true intensities."""
    task = LinkTask.prepare(run.stream, run.settings.protocol, seed=run.settings.seed, device=torch.device("cpu"))
    seen = find("edgebank").network(find("edgebank").settings(), edge_dim=0, node_dim=0)
    return {
        "pairs seen before": {setting: evaluate(seen, task, "test", setting)["ap"] for setting in SETTINGS},
        "CorDGT": {setting: run.metrics["test"][setting]["ap"] for setting in SETTINGS},
        "oracle": {setting: _oracle_ap(task, world, setting) for setting in SETTINGS},
    }


def _oracle_ap(task: LinkTask, world: SyntheticStream, setting: str) -> float | None:
    positions, queries = task.evaluation_queries("test", setting)
    t = np.asarray(task.stream.t)[positions]
    src = queries.src.numpy()
    true, drawn = (world.truth.partner_probability(src, queries.dst[:, i].numpy(), t) for i in (0, 1))
    return link_metrics(true, drawn)["ap"]


def _ask(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Who will three of the last senders write to next?"""
    last = list(dict.fromkeys(run.stream.src[::-1].tolist()))[:3]
    return {str(node): [vars(r) for r in run.recommend(node, top=3)] for node in run.stream.ids.take(last).to_pylist()}
