"""`cordgt train --task node`: train a node classifier on the frozen encoder of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from cordgt.cli import console
from cordgt.cli.distributed import is_distributed_launch
from cordgt.cli.resume import training_started
from cordgt.errors import DataError, MissingColumnError, SettingError, check_choice

TASKS = ("link", "node")


def check_task(task: str, encoder: Path | None, link_options: dict[str, Any]) -> None:
    """Raise SettingError if the options or several processes do not fit the task.

    ``link_options`` are the values of the options that only --task link takes.
    """
    check_choice("--task", task, TASKS)
    if task == "link" and encoder is not None:
        raise SettingError("--encoder is for --task node: the run whose frozen model gives the embeddings.")
    if task == "node" and encoder is None:
        raise SettingError("--task node needs --encoder RUN: a run on the same events, made by `cordgt train DATA`.")
    given = [name for name, value in link_options.items() if value]
    if task == "node" and given:
        raise SettingError(
            f"{given[0]} is not for --task node, which trains a small classifier on an encoder that is trained already."
        )
    if task == "node" and is_distributed_launch():
        raise SettingError("--task node runs in one process: start it without torchrun.")


def train_node_classifier(
    data: str,
    encoder: Path,
    assignments: list[str],
    seed: int | None,
    device: str,
    out: Path | None,
    columns: dict[str, Any],
    json_: str | None,
) -> None:
    """Train a classifier, write its folder, and print its metrics."""
    from cordgt.cli import writers
    from cordgt.inference.run import Run
    from cordgt.io.datasets import registry
    from cordgt.io.open_table import load_file
    from cordgt.training.output_folder import default_folder
    from cordgt.training.settings import parse_assignments
    from cordgt.workflows.node_classification import (
        check_encoder,
        classifier_settings,
        labels_for,
        train_classifier_run,
    )

    settings = classifier_settings(parse_assignments(assignments))
    run = Run.load(encoder, device)
    check_encoder(run)
    given = {k: v for k, v in columns.items() if (k, v) != ("ids", "auto")}
    is_known = data in registry.KNOWN_DATASETS or registry.find_dataset(data) is not None
    source = data if is_known else load_file(os.path.expanduser(data), columns.get("member"))
    merged = given if is_known else run.columns_for(source, given, labels_needed=True)
    try:
        stream = registry.load_dataset(source, **merged)
    except MissingColumnError as error:
        if error.role != "label" or "label" in given:
            raise
        raise DataError(f"{error} {encoder} was trained with that column; give another with --label.") from None
    label = labels_for(run, stream, data)
    folder_seed = run.settings.seed if seed is None else seed
    folder = out or default_folder(stream.name, f"{run.settings.model}-node", folder_seed)
    console.print_note(f"node classifier on {encoder} ({run.settings.model}, frozen); it goes to {folder}")
    training_started.set(True)
    with console.ProgressBar() as bar:
        metrics = train_classifier_run(run, label, settings, folder, data=data, seed=seed, callbacks=bar)
    writers.write_json(metrics, json_)
    if json_ != "-":
        console.stdout.print(_table(metrics))
    for text in metric_notes(metrics):
        console.print_note(text)


def _table(metrics: dict[str, Any]) -> Table:
    title = f"{metrics['model']} on {metrics['data']}: does the source's state change?"
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("split", no_wrap=True)
    for name in ("AUC", "AP", "AP of chance", "positive", "events"):
        table.add_column(name, justify="right")
    for split in ("train", "validation", "test"):
        row = metrics[split]
        shown = ["–" if row[k] is None else f"{100 * row[k]:.2f}" for k in ("auc", "ap", "positive_share")]
        table.add_row(split, *shown, f"{row['positive']:,}", f"{row['events']:,}")
    return table


def metric_notes(metrics: dict[str, Any]) -> list[str]:
    """Return notes on the metrics: the class imbalance, and a test AUC that is undefined or uncertain."""
    train, test = metrics["train"], metrics["test"]
    weighting = (
        "both classes weigh the same in the loss" if metrics["balance"] == "weights" else "every event weighs the same"
    )
    notes = [f"{train['positive']:,} of {train['events']:,} training events are positive; {weighting}."]
    n_rare = min(test["positive"], test["events"] - test["positive"])
    if test["auc"] is None:
        notes.append("test: not defined, because all labels are the same.")
    elif n_rare < 50:
        notes.append(f"The test AUC is uncertain: the rarer class has only {n_rare} events.")
    return notes
