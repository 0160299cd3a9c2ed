"""The demo: train on a generated stream with known probabilities, and recommend a few partners."""

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
from cordgt.models import find_model
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import evaluate
from cordgt.tasks.metrics import link_metrics
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.training.output_folder import next_free_path
from cordgt.training.settings import make_settings
from cordgt.workflows.train import train_run

# Trains and evaluates in about 45 s on two idle cores. All other settings are the defaults.
SMALL_SETTINGS = {"fanout": (12, 1), "hidden": 32, "heads": 2, "epochs": 8, "batch_size": 50}


def run_demo(out: Path | None, seed: int, device: str, *, quiet: bool = False) -> dict[str, Any]:
    """Train on a generated stream, compare with an oracle that knows the true probabilities, and recommend partners.

    Returns the metrics and recommendations, and prints them unless ``quiet``.
    """
    console.print_note("Generating a stream with communities, pair intensities, bursts, triangles and new nodes.")
    world = synthetic_stream(seed=seed)
    stream = world.stream
    console.print_note(f"{stream.n_events:,} events of {stream.n_nodes:,} nodes. Training CorDGT on the first 70 %.")
    start = time.perf_counter()
    with console.ProgressBar() as bar:
        folder = out or next_free_path(Path("runs") / "demo")
        run = train_run(
            stream, make_settings("cordgt", SMALL_SETTINGS, seed=seed), folder, device=device, callbacks=bar
        )
    results = {
        "run": str(run.path),
        "seconds": time.perf_counter() - start,
        "ap": _average_precisions(run, world),
        "recommendations": _recommendations(run),
    }
    if not quiet:
        _print_results(run, results)
    return results


def _print_results(run: Run, results: dict[str, Any]) -> None:
    table = Table(title="Average precision on the last 15 % of the events", title_justify="left")
    for name in ("", *SETTINGS):
        table.add_column(name, justify="right" if name else "left")
    for name, values in results["ap"].items():
        table.add_row(name, *("–" if v is None else f"{100 * v:.2f}" for v in values.values()))
    console.stdout.print(table)
    console.stdout.print(f"Training and evaluation took {results['seconds']:.0f} s.\n")
    for node, best in results["recommendations"].items():
        partners = ", ".join(f"{r['node']} ({r['score']:.2f}{', met before' if r['met'] else ''})" for r in best)
        console.stdout.print(f"{node} will most likely interact with {partners}", markup=False)
    console.stdout.print(f"\nThe run is in {run.path}. Query it:", markup=False)
    example = next(iter(results["recommendations"]))
    console.stdout.print(f"  cordgt recommend {run.path} --source {example}", markup=False)


def _average_precisions(run: Run, world: SyntheticStream) -> dict[str, dict[str, float | None]]:
    """Return the AP on the test events of EdgeBank, of CorDGT, and of an oracle that knows the true intensities."""
    task = LinkTask.prepare(run.stream, run.settings.protocol, seed=run.settings.seed, device=torch.device("cpu"))
    seen = find_model("edgebank").network(find_model("edgebank").settings(), edge_dim=0, node_dim=0)
    return {
        "pairs seen before": {setting: evaluate(seen, task, "test", setting)["ap"] for setting in SETTINGS},
        "CorDGT": {setting: run.metrics["test"][setting]["ap"] for setting in SETTINGS},
        "oracle": {setting: _oracle_ap(task, world, setting) for setting in SETTINGS},
    }


def _oracle_ap(task: LinkTask, world: SyntheticStream, setting: str) -> float | None:
    positions, queries = task.evaluation_queries("test", setting)
    t = np.asarray(task.stream.t)[positions]
    src = queries.src.numpy()
    true, negative = (world.truth.partner_probability(src, queries.dst[:, i].numpy(), t) for i in (0, 1))
    return link_metrics(true, negative)["ap"]


def _recommendations(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return the best partners of the last three sources."""
    last = list(dict.fromkeys(run.stream.src[::-1].tolist()))[:3]
    return {
        str(node): [vars(r) for r in run.recommend(node, top=3)] for node in run.stream.ids.decode(last).to_pylist()
    }
