"""`train`: train a model on a stream, evaluate it, and write the run folder and its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from cordgt import __version__
from cordgt.analysis.report.run_report import FILE, write_report
from cordgt.callbacks import NO_CALLBACK, Callback, CallbackList, Callbacks, as_callback
from cordgt.errors import DataError, RunError, SettingError
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.io.column_options import as_text
from cordgt.runtime import distributed
from cordgt.runtime.distributed import Group
from cordgt.runtime.threads import keep_threads
from cordgt.store.store import open_store
from cordgt.tasks.link import LinkTask, split_of
from cordgt.tasks.protocol import Protocol
from cordgt.training.devices import choose_device
from cordgt.training.oom import memory_explained
from cordgt.training.output_folder import (
    check_free,
    check_same,
    check_weights,
    default_folder,
    first_free,
    original_options,
    taken_error,
    with_seed,
)
from cordgt.training.run_folder import (
    InitWeights,
    ReadOnlyRunFolder,
    RunConfig,
    RunFolder,
    fingerprint,
    ids_fingerprint,
)
from cordgt.training.settings import Settings, make
from cordgt.training.tensorboard import tensorboard_callback
from cordgt.training.trainer import check_may_share, train_in


def train(
    stream: EventStream,
    model: str = "cordgt",
    seed: int = 0,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    init: str | Path | Run | None = None,
    refit: bool = False,
    report: bool = True,
    columns: Mapping[str, str] | None = None,
    callbacks: Callbacks = None,
    **settings: Any,
) -> Run:
    """Train a model on a stream and evaluate it.

    Args:
        out: the run folder; the default is ``runs/NAME-MODEL-seedN``, with ``-2``, ``-3``, … if it exists.
        resume: continue an interrupted run in ``out``; a finished run is returned unchanged.
        init: a run with the initial weights: those of its evaluation, not the refitted ones.
        refit: afterwards train a second model on all events, for the best number of epochs. It answers queries; the
            metrics stay those of the first model.
        report: write ``report.html`` into the folder at the end.
        columns: the column options the stream was read with; `Run.with_events` uses them again.
        settings: any setting by name, for example ``epochs=10`` or ``fanout=(32, 1)``.
    """
    made = make(model, settings, seed=seed)
    path = Path(out) if out is not None else first_free(default_folder(stream.name, model, seed))
    return train_run(
        stream,
        made,
        path,
        device=device,
        resume=resume,
        init=init,
        refit=refit,
        report=report,
        columns=columns,
        callbacks=callbacks,
    )


def train_run(
    stream: EventStream,
    settings: Settings,
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    init: str | Path | Run | None = None,
    refit: bool = False,
    report: bool = True,
    columns: Mapping[str, str] | None = None,
    callbacks: Callbacks = None,
) -> Run:
    """`train` with complete settings. RunError if another process is training in the same folder.

    Under torchrun the processes share the training, and each returns the run. Only the first writes the folder.
    """
    chosen, callback = choose_device(device), as_callback(callbacks)
    keep_threads()
    group = distributed.join()
    check_may_share(settings, group)
    if group.size > 1:
        distributed.check_same(group, _shared_options(settings, stream, resume, refit, init is not None))
    folder = RunFolder(out) if group.leads else ReadOnlyRunFolder(out)
    with folder.locked(), memory_explained(settings, folder):
        weights = None if init is None or not group.leads else _init_weights(init, settings, stream)
        run, task = _train_locked(
            stream, settings, folder, chosen, resume, weights, refit, as_text(columns or {}), callback, group
        )
        if report and group.leads and not folder.has(FILE):
            _report_at_the_end(run, task, callback)
    return run


def _report_at_the_end(run: Run, task: LinkTask | None, callbacks: Callback) -> None:
    """Write the report of a finished run. ``task`` is that of the training, if it is in memory."""
    try:
        write_report(run, callbacks, task=task)
    except RunError as error:
        raise RunError(f"The run is finished, but not its report: {error} `cordgt report` writes it.") from None


def _shared_options(settings: Settings, stream: EventStream, resume: bool, refit: bool, init: bool) -> dict[str, str]:
    """The options that must be the same in every process of a training, by name."""
    options = {key: json.dumps(value) for key, value in with_seed(settings).items()}
    options |= {"model": settings.model, "the data": f"{stream.n_events} events, hash {fingerprint(stream)}"}
    options |= {"the data's ids": ids_fingerprint(stream), "cordgt": __version__, "torch": torch.__version__}
    return options | {"--resume": str(resume), "--refit": str(refit), "--init": str(init)}


def _train_locked(
    stream: EventStream,
    settings: Settings,
    folder: RunFolder,
    device: torch.device,
    resume: bool,
    init: InitWeights | None,
    refit: bool,
    columns: dict[str, str],
    callbacks: Callback,
    group: Group,
) -> tuple[Run, LinkTask | None]:
    """`train_run` in a locked folder. The task is None if the run was finished before.

    Only the first process reads the folder, and sends the others what they need.
    """
    finished: Run | None = None
    config = folder.read_config() if resume and group.leads and folder.holds_run else None
    own = _stream_at_start(stream, config, group) if resume else stream
    if group.leads and folder.holds_run:
        if config is None:
            raise taken_error(folder.path)
        check_same(folder, config, settings, own)
        init, refit = original_options(folder, config, init, refit)
        if folder.finished and not (refit and "refit" not in folder.read_metrics()):
            finished = Run._load(folder, config, str(device))
    metrics, refit, has_init = group.from_first(
        (None if finished is None else finished.metrics, refit, init is not None)
    )
    if finished is not None:
        return finished, None
    task = None
    if metrics is None:
        weights = group.tensors_from_first({} if init is None else init.weights) if has_init else None
        task = LinkTask.prepare(own, settings.protocol, seed=settings.seed, device=device, group=group)
        if group.leads and config is None:  # nothing is written before the task is known to be valid
            check_free(folder.path)
            check_weights(weights, settings, stream)
            config = folder.create(settings, stream, columns=columns, init=init, refit=refit)
        about = None if init is None else init.about
        with tensorboard_callback(folder.path) if group.leads else nullcontext(NO_CALLBACK) as curves:
            both = CallbackList([callbacks, curves]) if group.leads else NO_CALLBACK
            metrics = train_in(folder, settings, task, start=weights, init=about, refit=refit, callbacks=both)
    config = config or RunConfig.new(settings, own, columns=columns, init=init, refit=refit)
    return Run(RunFolder(folder.path), config, stream, own, metrics, device), task


def _stream_at_start(stream: EventStream, config: RunConfig | None, group: Group) -> EventStream:
    """The stream of a store as it was when the run of ``config`` began; otherwise ``stream`` itself."""
    if stream.backing is None:
        return stream
    fingerprint = group.from_first(None if config is None else config.data.get("fingerprint"))
    try:
        return stream if fingerprint is None else open_store(stream.backing.path).stream(fingerprint)
    except DataError:
        return stream  # `check_same` raises the error


def _init_weights(init: str | Path | Run, settings: Settings, stream: EventStream) -> InitWeights:
    """The weights a run was evaluated with. Refitted weights may know test events of the new run."""
    run = init if isinstance(init, Run) else Run.load(init, "cpu")
    if run.settings.model != settings.model:
        raise SettingError(f"--init {run.path} is a {run.settings.model}; this run is a {settings.model}.")
    known = _known_before(run, stream, settings.protocol)
    return InitWeights(run._read_weights("model.safetensors"), str(run.path), known)


def _known_before(run: Run, stream: EventStream, protocol: Protocol) -> str:
    """What the run of --init knows of the new run's evaluation data, in words; empty if nothing."""
    own = run.own_stream
    if own.time.kind != stream.time.kind:
        return ""
    theirs, ours = split_of(own, run.settings.protocol), split_of(stream, protocol)
    if not len(ours.train):
        return ""  # the training raises the error
    facts = []
    until, end = (of.t[split.train[-1]] for of, split in ((own, theirs), (stream, ours)))
    if until > end:
        shown = (of.time.format(np.array([t]))[0].as_py() for of, t in ((own, until), (stream, end)))
        facts.append("it was trained on events until {}, past the training period here, which ends {}".format(*shown))
    known, new = (
        of.ids.names.filter(pa.array(which)) for of, which in ((own, ~theirs.new_node), (stream, ours.new_node))
    )
    if known.type == new.type:
        both = int(pc.sum(pc.is_in(new, pc.unique(known))).as_py() or 0)
        if both:
            facts.append(f"it knows {both:,} of the {len(new):,} nodes that count as new here")
    return "; ".join(facts)
