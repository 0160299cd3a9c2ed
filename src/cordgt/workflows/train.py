"""`train`: train a model on a stream, evaluate it, and write the run folder and its report.

The phases are in `training.phases`, the training loop in `training.trainer`, the files in `training.run_folder`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch

from cordgt import __version__, models
from cordgt.analysis.report.run_report import REPORT_FILE, write_report
from cordgt.callbacks import NO_CALLBACK, Callback, CallbackList, Callbacks, as_callback
from cordgt.errors import DataError, RunError, SettingError, did_you_mean
from cordgt.events.stream import EventStream
from cordgt.inference.run import Run
from cordgt.io.column_options import COLUMN_OPTIONS, options_to_text, remembered_options
from cordgt.io.convert import as_stream
from cordgt.models.base import LinkModel
from cordgt.runtime import distributed
from cordgt.runtime.distributed import ProcessGroup
from cordgt.runtime.threads import pin_num_threads
from cordgt.store.store import open_store
from cordgt.tasks.link import LinkTask, split_stream
from cordgt.tasks.protocol import Protocol
from cordgt.training.devices import choose_device
from cordgt.training.oom import explain_out_of_memory
from cordgt.training.output_folder import (
    check_empty_folder,
    check_init_weights,
    check_same_run,
    default_folder,
    flatten_with_seed,
    next_free_path,
    original_options,
    run_exists_error,
)
from cordgt.training.phases import fit_and_evaluate
from cordgt.training.run_folder import (
    InitWeights,
    ReadOnlyRunFolder,
    RunConfig,
    RunFolder,
    fingerprint,
    ids_fingerprint,
)
from cordgt.training.settings import Settings, check_all_used, make_settings
from cordgt.training.tensorboard import tensorboard_callback
from cordgt.training.trainer import check_distributed_support

# Options of `read_events` that `train` takes.
READ_OPTIONS = (*COLUMN_OPTIONS, "ids", "node_features", "name", "member", "skip_bad_rows")


def train(
    stream: Any,
    model: str | type[LinkModel] | LinkModel = "cordgt",
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
    """Train a model on events and evaluate it.

    Args:
        stream: an `EventStream`, a dataset's name, or what `read_events` takes: a path, a data frame, a graph.
        model: a name; or a subclass of `LinkModel`, which is registered under its own name if it has none; or an
            instance of one. An instance gives its settings and its weights, which are copied; `Run.model` is trained.
        out: the run folder; the default is ``runs/NAME-MODEL-seedN``, with ``-2``, ``-3``, … if it exists.
        resume: continue an interrupted run in ``out``; a finished run is returned unchanged.
        init: a run with the initial weights: those of its evaluation, not the refitted ones.
        refit: afterwards train a second model on all events, for the best number of epochs. It answers queries; the
            metrics stay those of the first model.
        report: write ``report.html`` into the folder at the end.
        columns: the column options for `Run.with_events`; the default is those that the stream was read with.
        callbacks: one `Callback` or several; see `cordgt.callbacks`.
        settings: any setting by name, for example ``epochs=10`` or ``fanout=(32, 1)``. SettingError if the model does
            not read it. For a path or a table also the column options of `read_events`, such as ``src="from"``.

    Examples:
        >>> run = cordgt.train("purchases.csv", "counts", epochs=2, refit=True)
        >>> len(run.recommend("ada", top=3))
        3
    """
    options = {key: settings.pop(key) for key in READ_OPTIONS if key in settings}
    name, instance = resolve_model(model)
    made = make_settings(name, settings, seed=seed)
    check_all_used(made, settings)
    if columns is None:
        columns = remembered_options(stream) if isinstance(stream, EventStream) else options
    else:
        _check_column_options(columns)
    stream = as_stream(stream, **options)
    if instance is not None:
        if init is not None:
            raise SettingError("Give either an instance as the model, or init: both set the initial weights.")
        made = _with_instance(made, instance, settings, stream)
    for note in made.notes:
        as_callback(callbacks).on_message(note)
    path = Path(out) if out is not None else next_free_path(default_folder(stream.name, name, seed))
    return train_run(
        stream,
        made,
        path,
        device=device,
        resume=resume,
        init=init if instance is None else instance,
        refit=refit,
        report=report,
        columns=columns,
        callbacks=callbacks,
    )


def _check_column_options(columns: Mapping[str, Any]) -> None:
    """Raise SettingError if a key is no column option: it would have no effect."""
    for key in columns:
        if key not in COLUMN_OPTIONS:
            raise SettingError(f"columns: there is no column option '{key}'.{did_you_mean(key, COLUMN_OPTIONS)}")


def resolve_model(model: Any) -> tuple[str, LinkModel | None]:
    """Return the name of a model that is given by name, class or instance; and the instance, if it is one."""
    if isinstance(model, str):
        return model, None
    network = model if isinstance(model, type) else type(model)
    if not issubclass(network, LinkModel):
        raise SettingError(
            f"model={model!r}: give a model's name, a subclass of cordgt.LinkModel, or an instance of one."
        )
    return models.registered_name(network), None if isinstance(model, type) else model


def _with_instance(made: Settings, instance: LinkModel, given: Mapping[str, Any], stream: EventStream) -> Settings:
    """Return the settings with those of an instance. SettingError if it cannot be rebuilt for this stream."""
    kind, own = type(instance).__name__, instance.init_settings
    if type(own) is not type(made.model_settings):
        raise SettingError(
            f"{kind} was made with {type(own).__name__}, but its settings are {type(made.model_settings).__name__}. "
            f"Make it as {kind}(settings, edge_dim={stream.edge_dim}, node_dim={stream.node_dim})."
        )
    repeated = sorted(given.keys() & vars(own).keys())
    if repeated:
        raise SettingError(
            f"{', '.join(repeated)}: the instance of {kind} has its settings already. Make it with these, or give "
            f"the class: model={kind}."
        )
    made = dataclasses.replace(made, model_settings=own)
    try:
        check_init_weights(instance.state_dict(), made, stream)
    except SettingError as error:
        reason = str(error).partition(": ")[2]
        raise SettingError(
            f"The instance of {kind} does not fit these events: {reason} Make it with edge_dim={stream.edge_dim} and "
            f"node_dim={stream.node_dim}."
        ) from None
    return made


def train_run(
    stream: EventStream,
    settings: Settings,
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    init: str | Path | Run | LinkModel | None = None,
    refit: bool = False,
    report: bool = True,
    columns: Mapping[str, str] | None = None,
    callbacks: Callbacks = None,
) -> Run:
    """`train` with complete settings. RunError if another process is training in the same folder.

    Under torchrun the processes share the training and each returns the run. Only the main process writes the folder.
    """
    torch_device, callback = choose_device(device), as_callback(callbacks)
    pin_num_threads()
    group = distributed.init_process_group()
    check_distributed_support(settings, group)
    if group.world_size > 1:
        distributed.check_same_inputs(group, _shared_options(settings, stream, resume, refit, init is not None))
    folder = RunFolder(out) if group.is_main_process else ReadOnlyRunFolder(out)
    with folder.lock(), explain_out_of_memory(settings, folder):
        weights = None if init is None or not group.is_main_process else _init_weights(init, settings, stream)
        run, task = _train_locked(
            stream,
            settings,
            folder,
            torch_device,
            resume,
            weights,
            refit,
            options_to_text(columns or {}),
            callback,
            group,
        )
        if report and group.is_main_process and not folder.has(REPORT_FILE):
            try:
                write_report(run, callback, task=task)
            except RunError as error:
                raise RunError(f"The run is finished, but not its report: {error} `cordgt report` writes it.") from None
        if report and group.is_main_process and run.needs_first_scorer():
            run.load_first_scorer(run.predictor, callback)
    return run


def _shared_options(settings: Settings, stream: EventStream, resume: bool, refit: bool, init: bool) -> dict[str, str]:
    """Return the options, by name, that must be the same in every process of a training."""
    options = {key: json.dumps(value) for key, value in flatten_with_seed(settings).items()}
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
    group: ProcessGroup,
) -> tuple[Run, LinkTask | None]:
    """`train_run` in a locked folder. The task is None if the run was finished before.

    Only the main process reads the folder; it broadcasts what the others need.
    """
    finished: Run | None = None
    config = folder.read_config() if resume and group.is_main_process and folder.has_run else None
    original = _stream_at_start(stream, config, group) if resume else stream
    if group.is_main_process and folder.has_run:
        if config is None:
            raise run_exists_error(folder.path)
        check_same_run(folder, config, settings, original)
        init, refit = original_options(folder, config, init, refit)
        if folder.is_finished and not (refit and "refit" not in folder.read_metrics()):
            finished = Run.from_folder(folder, config, str(device))
    metrics, refit, has_init = group.broadcast(
        (None if finished is None else finished.metrics, refit, init is not None)
    )
    if finished is not None:
        return finished, None
    task = None
    if metrics is None:
        weights = group.broadcast_tensors({} if init is None else init.weights) if has_init else None
        callbacks.on_phase_start("index")
        task = LinkTask.prepare(original, settings.protocol, seed=settings.seed, device=device, group=group)
        if group.is_main_process and config is None:  # nothing is written before the task is known to be valid
            check_empty_folder(folder.path)
            check_init_weights(weights, settings, stream)
            callbacks.on_phase_start("write")
            config = folder.create(settings, stream, columns=columns, init=init, refit=refit)
        about = None if init is None else init.to_json()
        callbacks.on_phase_start("prepare")
        with tensorboard_callback(folder.path) if group.is_main_process else nullcontext(NO_CALLBACK) as tensorboard:
            callback = CallbackList([callbacks, tensorboard]) if group.is_main_process else NO_CALLBACK
            metrics = fit_and_evaluate(
                folder, settings, task, init_weights=weights, init_info=about, refit=refit, callbacks=callback
            )
    config = config or RunConfig.from_stream(settings, original, columns=columns, init=init, refit=refit)
    return Run(RunFolder(folder.path), config, stream, original, metrics, device), task


def _stream_at_start(stream: EventStream, config: RunConfig | None, group: ProcessGroup) -> EventStream:
    """Return the stream of a store as it was when the run of ``config`` started, or ``stream`` itself."""
    if stream.backing is None:
        return stream
    fingerprint = group.broadcast(None if config is None else config.data.get("fingerprint"))
    try:
        return stream if fingerprint is None else open_store(stream.backing.path).stream(fingerprint)
    except DataError:
        return stream  # `check_same_run` raises the error


def _init_weights(init: str | Path | Run | LinkModel, settings: Settings, stream: EventStream) -> InitWeights:
    """Return the weights a run was evaluated with, or of an instance of a model.

    Refitted weights may know test events of the new run.
    """
    if isinstance(init, LinkModel):
        weights = {name: value.detach().cpu().clone() for name, value in init.state_dict().items()}
        return InitWeights(weights, f"an instance of {type(init).__name__}", "")
    run = init if isinstance(init, Run) else Run.load(init, "cpu")
    if run.settings.model != settings.model:
        raise SettingError(f"--init {run.path} is a {run.settings.model}; this run is a {settings.model}.")
    leakage = _describe_leakage(run, stream, settings.protocol)
    return InitWeights(run.read_weights("model.safetensors"), str(run.path), leakage)


def _describe_leakage(run: Run, stream: EventStream, protocol: Protocol) -> str:
    """Describe what the run of --init knows of the new run's evaluation data; empty if nothing."""
    original = run.original_stream
    if original.time.kind != stream.time.kind:
        return ""
    init_split, split = split_stream(original, run.settings.protocol), split_stream(stream, protocol)
    if not len(split.train):
        return ""  # the training raises the error
    facts = []
    init_end, end = original.t[init_split.train[-1]], stream.t[split.train[-1]]
    if init_end > end:
        facts.append(
            f"it was trained on events until {original.time.format_one(init_end)}, past the training period here, "
            f"which ends {stream.time.format_one(end)}"
        )
    known = original.ids.names.filter(pa.array(~init_split.new_node))
    new = stream.ids.names.filter(pa.array(split.new_node))
    if known.type == new.type:
        n_known = int(pc.sum(pc.is_in(new, pc.unique(known))).as_py() or 0)
        if n_known:
            facts.append(f"it knows {n_known:,} of the {len(new):,} nodes that count as new here")
    return "; ".join(facts)
