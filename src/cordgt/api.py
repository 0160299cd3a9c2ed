"""The Python interface: ``train`` a model on a stream, then query the ``Run``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from cordgt import __version__
from cordgt.callbacks import NO_CALLBACK, Callback, CallbackList, Callbacks, as_callback
from cordgt.errors import DataError, RunError, SettingError, check_choice
from cordgt.events.stream import EventStream
from cordgt.machine import processes
from cordgt.machine.processes import Group
from cordgt.machine.threads import keep_threads
from cordgt.models.base import LinkModel
from cordgt.predict import Predictor, Recommendation
from cordgt.reading.columns import as_text, has_columns
from cordgt.reading.opening import COMMENTS, load_file
from cordgt.reading.readers import read_events
from cordgt.report.asked import AT_MOST
from cordgt.report.look import ReportData, collect_report_data
from cordgt.report.one import FILE, write_report
from cordgt.run import (
    InitWeights,
    ReadOnlyRunFolder,
    RunConfig,
    RunFolder,
    fingerprint,
    ids_fingerprint,
    is_same_data,
)
from cordgt.settings import Settings, known_keys, make, unknown_setting
from cordgt.store.folder import is_store, open_store
from cordgt.tasks.link import EVALUATION_SETTINGS, LinkTask, history_of, split_of
from cordgt.tasks.protocol import Protocol
from cordgt.tasks.run_metrics import SPLITS, RunMetrics
from cordgt.training.devices import choose_device, use_precision
from cordgt.training.figures import evaluate_splits
from cordgt.training.loop import check_may_share, train_in
from cordgt.training.network import load_weights, network_for
from cordgt.training.out_folder import (
    check_free,
    check_same,
    check_weights,
    default_folder,
    first_free,
    original_options,
    taken_error,
    with_seed,
)
from cordgt.training.out_of_memory import memory_explained
from cordgt.training.tensorboard import tensorboard_callback

# Settings that an evaluation may change. With any other change, training events could become test events.
EVALUATION_KEYS = (*EVALUATION_SETTINGS, "pool")  # a new pool means new negative pools


def _check_same_protocol(folder: RunFolder, settings: Settings, metrics: Mapping[str, Any]) -> None:
    """RunError if config.toml and metrics.json have different protocols: training events could be test events."""
    protocol = metrics.get("protocol")
    if not isinstance(protocol, dict):
        raise RunError(f"{folder.path} is damaged: metrics.json has no protocol.")
    for key, value in vars(settings.protocol).items():
        if key in protocol and protocol[key] != value:
            raise RunError(
                f"{folder.path} is damaged: config.toml has {key}={value}, but it was trained with {protocol[key]}."
            )


@dataclass(frozen=True)
class Run:
    """A trained model with the history it answers from."""

    folder: RunFolder
    config: RunConfig
    stream: EventStream  # the history it answers from
    own_stream: EventStream  # the events it was trained and evaluated on, without later ones
    metrics: RunMetrics
    device: torch.device
    _weights: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)  # by file name

    def __repr__(self) -> str:
        """One line, for notebooks."""
        return f"<Run {self.path}: {self.settings.model} on {self.stream.name or 'a stream without a name'}>"

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Run:
        """Load a finished run. RunError if the folder is missing, unfinished or damaged."""
        keep_threads()
        folder = RunFolder(Path(path))
        return cls._load(folder, folder.read_config(), device)

    @classmethod
    def _load(cls, folder: RunFolder, config: RunConfig, device: str) -> Run:
        metrics = folder.read_metrics()
        own, stream = folder.streams(config.data_fingerprint)
        if not is_same_data(own, config.data):
            raise RunError(f"{folder.path} is damaged: its events are not those it was trained on.")
        _check_same_protocol(folder, config.settings, metrics)
        return cls(folder, config, stream, own, metrics, choose_device(device))

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def settings(self) -> Settings:
        return self.config.settings

    @property
    def columns(self) -> dict[str, str]:
        """The column options that the events of the training were read with."""
        return self.config.columns

    def with_events(self, source: Any, **columns: Any) -> Run:
        """The same model with a longer history: append later events from a file, a pipe, a table or a stream.

        Options as in `read_events`. The default columns are those of the training, if the source has them.
        """
        if isinstance(source, EventStream):
            return replace(self, stream=self.stream.append_stream(source))
        source = load_file(source)
        ids = {"ids": "shared" if self.stream.ids.shared else "separate"}
        later = read_events(source, **(ids | self.columns_for(source, columns)))
        longer = self.stream.append_stream(later)
        comment_notes = tuple(note for note in later.notes if COMMENTS in note)
        return replace(self, stream=replace(longer, notes=(*longer.notes, *comment_notes)))

    def columns_for(self, source: Any, given: Mapping[str, Any], *, labels_needed: bool = False) -> dict[str, Any]:
        """Column options to read a source of events with: those ``given``, and those of the training.

        The options of the training apply only if the source has its columns for source, destination and time. Then
        reading the source raises an error for any other column that it lacks; for the label only if ``labels_needed``.
        A path is read, so pass a pipe as a `LoadedFile`.
        """
        merged = {**self.columns, **given}
        if is_store(source):  # its columns are fixed
            return dict(given)
        if not self.columns or has_columns(source, merged):
            return merged
        if not has_columns(source, {k: v for k, v in merged.items() if k in ("src", "dst", "time")}):
            return dict(given)
        return {k: v for k, v in merged.items() if k != "label" or labels_needed or k in given}

    def score(self, src: Any, dst: Any, at: Any = None) -> np.ndarray:
        """Scores (n,) between 0 and 1: how likely each source meets each destination.

        A score compares with random partners: 0.9 means "more likely than a random partner", not "in nine of ten
        cases". ``at`` is one time, or one per pair. Without it, the whole history is visible.
        """
        src, dst = (_ids(_as_list(x)) for x in (src, dst))
        n = max(len(src), len(dst))
        src, dst = (x * n if len(x) == 1 else x for x in (src, dst))
        if len(src) != len(dst):
            raise SettingError(
                f"{len(src)} sources and {len(dst)} destinations: give the same number of each, or one of either."
            )
        return self.predictor.score(src, dst, self._times(at, n))[0]

    def recommend(self, node: Any, at: Any = None, top: int = 10, *, new_only: bool = False) -> list[Recommendation]:
        """The ``top`` destinations most likely to meet ``node``, best first; with ``new_only`` those it has not met.

        ``node`` is a single id. An unknown id is a node without history.
        """
        _ids([node])
        return self.predictor.recommend(node, self._time(at), top, new_only=new_only)[0]

    def embed(self, nodes: Any = None, at: Any = None, *, sides: Sequence[str] | None = None) -> np.ndarray:
        """Embeddings (n, D) of nodes at a time. The default is all nodes of the history, in order of appearance.

        If sources and destinations have separate id spaces and an id is in both, ``sides`` says which node is meant:
        "src" or "dst" for each node.
        """
        found = np.arange(self.stream.n_nodes)
        if nodes is not None:
            found = self.predictor.nodes_of_either_side(_ids(_as_list(nodes)), sides)
        return self.predictor.embed(found, self._time(at))

    def evaluate(self, callbacks: Callbacks = None, *, split: str | None = None, **changes: Any) -> RunMetrics:
        """Metrics on the run's own splits.

        ``split`` is "validation" or "test"; the default is both. ``changes`` may set another visibility, pool, seed of
        negatives or ``batch_size``. The latter is the evaluation batch: of per-batch means, and of the visibility rules
        "paper" and "batch".
        """
        if split is not None:
            check_choice("split", split, SPLITS)
        if "part" in changes:
            raise SettingError("'part' is now called 'split'.")
        model, task = self.evaluation_task(**changes)
        metrics = evaluate_splits(model, task, as_callback(callbacks), SPLITS if split is None else (split,))
        about: dict[str, Any] = {key: self.metrics[key] for key in ("model", "data", "seed", "epochs")}
        about |= {"init": self.metrics["init"]} if "init" in self.metrics else {}
        return RunMetrics(about | {"protocol": dict(vars(task.protocol))} | metrics)

    def evaluation_task(self, **changes: Any) -> tuple[LinkModel, LinkTask]:
        """A new model with the weights that validation selected, and the task to evaluate it on.

        ``changes`` as in `evaluate`.
        """
        protocol, seed, group = self._evaluation_protocol(changes), self.settings.seed, processes.current()
        task = LinkTask.prepare(self.own_stream, protocol, seed=seed, device=self.device, group=group)
        return self._network("model.safetensors"), task

    def report_data(self, callbacks: Callbacks = None, *, at_most: int | None = AT_MOST) -> ReportData:
        """The content of a report, from at most ``at_most`` test events, evenly spread; None for all of them."""
        model, task = self.evaluation_task()
        return _report_data(self, model, task, as_callback(callbacks), at_most)

    def report(self, callbacks: Callbacks = None, *, at_most: int | None = AT_MOST) -> Path:
        """Write ``report.html`` into the run folder, replacing an old one, and return its path."""
        write_report(self.folder, self.report_data(callbacks, at_most=at_most))
        return self.path / FILE

    @cached_property
    def predictor(self) -> Predictor:
        """The model on its device, with its history. A refitted run uses the refitted weights."""
        own = self.own_stream
        trained = np.zeros(self.stream.n_nodes, dtype=bool)
        if "refit" in self.metrics:
            trained[: own.n_nodes] = True
        else:
            trained[: own.n_nodes] = ~split_of(own, self.settings.protocol).new_node
        history = history_of(self.stream, seed=self.settings.seed, device=self.device)
        return Predictor(self._network(self.weights), self.stream, history, trained)

    @property
    def weights(self) -> str:
        """The file name of the weights that `predictor` uses: the refitted ones if there are any."""
        return "refit.safetensors" if "refit" in self.metrics else "model.safetensors"

    def _read_weights(self, name: str) -> dict[str, Tensor]:
        """The weights in a file, which is read once."""
        if name not in self._weights:
            self._weights[name] = self.folder.read_tensors(name)[0]
        return self._weights[name]

    def _network(self, name: str) -> LinkModel:
        """A new model on the run's device, with the weights of a file."""
        weights = self._read_weights(name)
        with torch.random.fork_rng(devices=[]):
            model = network_for(self.settings, self.own_stream)
        try:
            load_weights(model, weights, str(self.path / name))
        except SettingError as error:
            raise RunError(f"{self.path / name} is damaged: {error}") from None
        use_precision(self.settings, self.device)
        return model.to(self.device).eval()

    def _evaluation_protocol(self, changes: dict[str, Any]) -> Protocol:
        wanted = {
            ("eval_batch_size" if key == "batch_size" else key): value
            for key, value in changes.items()
            if value is not None
        }
        fixed = [key for key in wanted if key not in EVALUATION_KEYS]
        if fixed:
            if fixed[0] not in known_keys():
                raise SettingError(f"evaluate: {unknown_setting(fixed[0])}")
            allowed = ", ".join(("batch_size", *(k for k in EVALUATION_KEYS if k != "eval_batch_size")))
            raise SettingError(f"'{fixed[0]}' is fixed by the training. An evaluation can change: {allowed}.")
        return make(self.settings.model, vars(self.settings.protocol) | wanted).protocol

    def _time(self, at: Any) -> Any:
        return None if at is None else self.stream.time.parse(at)

    def _times(self, at: Any, n: int) -> np.ndarray | None:
        if at is None:
            return None
        times = [self.stream.time.parse(x) for x in _as_list(at)]
        if len(times) not in (1, n):
            raise SettingError(f"{len(times)} times for {n} pairs: give one, or one per pair.")
        return np.array(times * n if len(times) == 1 else times)


def _report_data(run: Run, model: LinkModel, task: LinkTask, callbacks: Callback, at_most: int | None) -> ReportData:
    n = len(task.split.test)
    callbacks.on_stage_start("evaluating: the report", n if at_most is None else min(n, at_most))
    return collect_report_data(
        run.folder,
        run.settings,
        run.metrics,
        model,
        task,
        at_most=at_most,
        callbacks=callbacks,
    )


def _as_list(values: Any) -> list[Any]:
    """Ids or times as a list; a single one becomes a list of one."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        return [values]
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def _ids(values: list[Any]) -> list[Any]:
    """The values, unchanged. SettingError if one cannot be a node id: it would count as a node without history."""
    for value in values:
        whole = isinstance(value, float | np.floating) and value == np.floor(value)
        if isinstance(value, bool | np.bool_) or not (whole or isinstance(value, str | int | np.integer)):
            several = " Give one id per call." if hasattr(value, "__len__") else ""
            raise SettingError(f"{value!r} is not a node id: an id is text or a whole number.{several}")
    return values


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
    group = processes.join()
    check_may_share(settings, group)
    if group.size > 1:
        processes.check_same(group, _shared_options(settings, stream, resume, refit, init is not None))
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
        if task is None:
            run.report(callbacks)
        else:
            model = run._network("model.safetensors")
            write_report(run.folder, _report_data(run, model, task, callbacks, AT_MOST))
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
