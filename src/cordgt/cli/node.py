"""`cordgt train --task node`: a classifier of nodes on the frozen encoder of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from cordgt.cli import console
from cordgt.cli.distributed import started_as_one_of_several
from cordgt.cli.loading import BEGUN
from cordgt.errors import DataError, MissingColumn, SettingError, check_choice

TASKS = ("link", "node")


def check_task(task: str, encoder: Path | None, not_for_nodes: dict[str, Any]) -> None:
    """SettingError where the options, or several processes, do not fit the task.

    ``not_for_nodes``: what was given that only links take.
    """
    check_choice("--task", task, TASKS)
    if task == "link" and encoder is not None:
        raise SettingError("--encoder is for --task node: the run whose frozen model gives the embeddings.")
    if task == "node" and encoder is None:
        raise SettingError("--task node needs --encoder RUN: a run on the same events, made by `cordgt train DATA`.")
    given = [name for name, value in not_for_nodes.items() if value]
    if task == "node" and given:
        raise SettingError(
            f"{given[0]} is not for --task node: it trains a small classifier on an encoder that is trained already."
        )
    if task == "node" and started_as_one_of_several():
        raise SettingError("--task node runs in one process: start it without torchrun.")


def train_classifier(
    data: str,
    encoder: Path,
    assignments: list[str],
    seed: int | None,
    device: str,
    out: Path | None,
    columns: dict[str, Any],
    json_: str | None,
) -> None:
    """Train it, keep it in a folder, and show its figures."""
    from cordgt.cli import writers
    from cordgt.inference.run import Run
    from cordgt.io.datasets import registry
    from cordgt.io.open_table import load_file
    from cordgt.training.output_folder import default_folder
    from cordgt.training.settings import parse_assignments
    from cordgt.workflows.node_classification import check_encoder, classifier_settings, classify_in, labels_of

    settings = classifier_settings(parse_assignments(assignments))
    run = Run.load(encoder, device)
    check_encoder(run)
    asked = {k: v for k, v in columns.items() if k != "ids" or v != "auto"}
    known = data in registry.KNOWN or registry.find(data) is not None
    source = data if known else load_file(os.path.expanduser(data))
    try:
        stream = registry.load(source, **(asked if known else run.columns_for(source, asked, labels_needed=True)))
    except MissingColumn as error:
        if error.role != "label" or "label" in asked:
            raise
        raise DataError(f"{error} {encoder} was trained with that one; name another with --label.") from None
    label = labels_of(run, stream, data)
    own_seed = run.settings.seed if seed is None else seed
    folder = out or default_folder(stream.name, f"{run.settings.model}-node", own_seed)
    console.note(f"classifier of nodes on {encoder} ({run.settings.model}), frozen; it goes to {folder}")
    BEGUN.set(True)
    with console.ProgressBar() as bar:
        metrics = classify_in(run, label, settings, folder, data=data, seed=seed, callbacks=bar)
    if json_ is not None:
        writers.write_json(metrics, json_)
    if json_ != "-":
        console.out.print(_table(metrics))
    for text in said_of(metrics):
        console.note(text)


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


def said_of(metrics: dict[str, Any]) -> list[str]:
    """What is to be known of the figures: the imbalance and how it was dealt with, and what is not defined."""
    train, test = metrics["train"], metrics["test"]
    weighed = (
        "both kinds weigh the same in the loss" if metrics["balance"] == "weights" else "every event weighs the same"
    )
    said = [f"{train['positive']:,} of {train['events']:,} training events are positive; {weighed}."]
    few = min(test["positive"], test["events"] - test["positive"])
    if test["auc"] is None:
        said.append("test: not defined, all labels are of one kind.")
    elif few < 50:
        said.append(
            f"The test AUC rests on {few} events of the rarer kind: another draw could move it by several points."
        )
    return said
