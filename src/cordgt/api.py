"""The Python interface: ``train`` a stream, keep the ``Run``, ask it."""

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

from cordgt import __version__
from cordgt.errors import DataError, RunError, SettingError, check_choice
from cordgt.events.stream import EventStream
from cordgt.machine import processes
from cordgt.machine.processes import Group
from cordgt.machine.threads import keep_threads
from cordgt.models.base import LinkModel
from cordgt.predict import Oracle, Recommendation
from cordgt.reading.columns import as_text, can_be_read_twice, fit
from cordgt.reading.opening import COMMENTS
from cordgt.reading.readers import read_events
from cordgt.report.asked import AT_MOST
from cordgt.report.look import Look, look_at
from cordgt.report.one import FILE, write_report
from cordgt.run import RunFolder, Start, Unwritten, fingerprint, ids_fingerprint, is_same_data
from cordgt.settings import Settings, known_keys, make, unknown_setting
from cordgt.store.folder import open_store
from cordgt.tasks.link import MEASURED_BY, LinkTask, history_of, split_of
from cordgt.tasks.protocol import Protocol
from cordgt.tasks.run_metrics import SPLITS, RunMetrics
from cordgt.training.devices import choose_device, use_precision
from cordgt.training.figures import evaluate_splits
from cordgt.training.loop import check_may_share, train_in
from cordgt.training.network import load_weights, network_for
from cordgt.training.out_folder import (
    as_begun,
    check_free,
    check_same,
    check_weights,
    default_folder,
    first_free,
    taken_error,
    with_seed,
)
from cordgt.training.out_of_memory import memory_explained
from cordgt.training.tensorboard import curves
from cordgt.training.watching import Silent, Watcher

# What may differ from training when a run is evaluated; anything else would measure it on events it was trained on.
EVALUATION_KEYS = (*MEASURED_BY, "pool")  # for which the pools are laid out anew


def _check_same_protocol(folder: RunFolder, settings: Settings, metrics: Mapping[str, Any]) -> None:
    """RunError where config.toml has another protocol than the figures: its test could be what it was trained on."""
    measured = metrics.get("protocol")
    if not isinstance(measured, dict):
        raise RunError(f"{folder.path} is damaged: metrics.json does not say how its figures were measured.")
    for key, value in vars(settings.protocol).items():
        if key in measured and measured[key] != value:
            raise RunError(
                f"{folder.path} is damaged: config.toml has {key}={value}, but it was trained with {measured[key]}."
            )


@dataclass(frozen=True)
class Run:
    """A trained model with the history it answers from."""

    folder: RunFolder
    settings: Settings
    stream: EventStream
    metrics: RunMetrics
    device: torch.device
    columns: dict[str, str] = field(default_factory=dict)  # the column options its events were read with

    def __repr__(self) -> str:
        """A line, for notebooks: settings and figures would fill the screen."""
        return f"<Run {self.path}: {self.settings.model} on {self.stream.name or 'a stream without a name'}>"

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Run:
        """A finished run; RunError where the folder is missing, unfinished or damaged."""
        keep_threads()
        folder = RunFolder(Path(path))
        settings, data = folder.read_config()
        metrics = folder.read_metrics()
        own, stream = folder.streams(str(data.get("fingerprint")))
        if not is_same_data(own, data):
            raise RunError(f"{folder.path} is damaged: its events are not those it was trained on.")
        _check_same_protocol(folder, settings, metrics)
        return cls(folder, settings, stream, metrics, choose_device(device), _columns_of(data))

    @property
    def path(self) -> Path:
        return self.folder.path

    def with_events(self, source: Any, **columns: Any) -> Run:
        """The same model answering from a longer history: later events from a file, a table or a stream are appended.

        Options as in `read_events`; columns that are not named are those the run was trained with, where it has these.
        """
        if isinstance(source, EventStream):
            return replace(self, stream=self.stream.append_stream(source))
        ids = {"ids": "shared" if self.stream.ids.shared else "separate"}
        later = read_events(source, **(ids | self.columns_for(source, columns)))
        grown = self.stream.append_stream(later)
        skipped = tuple(note for note in later.notes if COMMENTS in note)
        return replace(self, stream=replace(grown, notes=(*grown.notes, *skipped)))

    def columns_for(self, source: Any, asked: Mapping[str, Any], *, labels_needed: bool = False) -> dict[str, Any]:
        """The options ``asked`` for, completed by those of the training if a file of events has its ends and times.

        Other columns of the training's that it has not stay named, for reading to say that there is no such column;
        the label only where ``labels_needed``.
        """
        together = {**self.columns, **asked}
        without_label = {k: v for k, v in together.items() if k != "label" or k in asked}
        if not self.columns or not can_be_read_twice(source) or fit(source, together):
            return together
        ends = {k: v for k, v in together.items() if k in ("src", "dst", "time")}
        if not fit(source, ends):
            return dict(asked)
        return together if labels_needed else without_label

    def score(self, src: Any, dst: Any, at: Any = None) -> np.ndarray:
        """How likely each source meets each destination at the given time (one, or one a pair), between 0 and 1.

        Relative to random partners, not a base rate: 0.9 says "rather this one than a random one", not "in nine of ten
        cases". Without a time, everything in the history is seen. A single pair gives an array of one.
        """
        src, dst = (_ids(_as_list(x)) for x in (src, dst))
        n = max(len(src), len(dst))
        src, dst = (x * n if len(x) == 1 else x for x in (src, dst))
        if len(src) != len(dst):
            raise SettingError(
                f"{len(src)} sources and {len(dst)} destinations: give as many of each, or one of either."
            )
        return self.oracle.score(src, dst, self._times(at, n))[0]

    def recommend(self, node: Any, at: Any = None, top: int = 10, *, new_only: bool = False) -> list[Recommendation]:
        """The ``top`` destinations most likely to meet ``node``, best first; with ``new_only`` those it has not met.

        A node that is not in the history is asked for as a newcomer; several are asked for one by one.
        """
        _ids([node])
        return self.oracle.recommend(node, self._time(at), top, new_only=new_only)[0]

    def embed(self, nodes: Any = None, at: Any = None, *, sides: Sequence[str] | None = None) -> np.ndarray:
        """Embeddings (n, D) of nodes at a time; of all nodes in the history, in order of appearance, if none are named.

        Where sources and destinations have id spaces of their own and both have an id, ``sides`` says which is meant:
        "src" or "dst" for each node.
        """
        found = np.arange(self.stream.n_nodes)
        if nodes is not None:
            found = self.oracle.nodes_of_either_side(_ids(_as_list(nodes)), sides)
        return self.oracle.embed(found, self._time(at))

    def evaluate(self, watcher: Watcher | None = None, *, split: str | None = None, **changes: Any) -> RunMetrics:
        """Metrics on the run's own splits, with another visibility, batch size, pool or seed of negatives if given.

        ``split``: only "validation" or "test". ``batch_size`` is that of the evaluation: of the means over batches,
        and of the rules "paper" and "batch".
        """
        if split is not None:
            check_choice("split", split, SPLITS)
        if "part" in changes:
            raise SettingError("'part' is now called 'split'.")
        model, task = self.measured(**changes)
        metrics = evaluate_splits(model, task, watcher or Silent(), SPLITS if split is None else (split,))
        about: dict[str, Any] = {key: self.metrics[key] for key in ("model", "data", "seed", "epochs")}
        about |= {"init": self.metrics["init"]} if "init" in self.metrics else {}
        return RunMetrics(about | {"protocol": dict(vars(task.protocol))} | metrics)

    def measured(self, **changes: Any) -> tuple[LinkModel, LinkTask]:
        """What figures are taken of: the weights that validation chose, and the run's own stream, as in `evaluate`."""
        protocol, own = self._evaluation_protocol(changes), self._own_stream()
        task = LinkTask.prepare(own, protocol, seed=self.settings.seed, device=self.device, group=processes.current())
        return self._network("model.safetensors", own), task

    def look(self, watcher: Watcher | None = None, *, at_most: int | None = AT_MOST) -> Look:
        """What a report shows of the run, from ``at_most`` so many test events, evenly spread; None: from all."""
        model, task = self.measured()
        return _looked_at(self, model, task, watcher or Silent(), at_most)

    def report(self, watcher: Watcher | None = None, *, at_most: int | None = AT_MOST) -> Path:
        """Write ``report.html`` into the run folder, anew where there is one. Its path comes back."""
        write_report(self.folder, self.look(watcher, at_most=at_most))
        return self.path / FILE

    @cached_property
    def oracle(self) -> Oracle:
        """The model on its device, ready to answer; with the refitted weights where there are some."""
        own = self._own_stream()
        trained = np.zeros(self.stream.n_nodes, dtype=bool)
        if "refit" in self.metrics:
            trained[: own.n_nodes] = True
        else:
            trained[: own.n_nodes] = ~split_of(own, self.settings.protocol).new_node
        history = history_of(self.stream, seed=self.settings.seed, device=self.device)
        return Oracle(self._network(self.weights, own), self.stream, history, trained)

    @property
    def weights(self) -> str:
        """The file of the weights that answer: the refitted ones where there are some."""
        return "refit.safetensors" if "refit" in self.metrics else "model.safetensors"

    def _network(self, name: str, own: EventStream) -> LinkModel:
        """The model with the weights in a file, on the run's device; ``own`` is the stream that it was trained on."""
        tensors, _ = self.folder.read_tensors(name)
        with torch.random.fork_rng(devices=[]):
            model = network_for(self.settings, own)
        try:
            load_weights(model, tensors, str(self.path / name))
        except SettingError as error:
            raise RunError(f"{self.path / name} is damaged: {error}") from None
        use_precision(self.settings, self.device)
        return model.to(self.device).eval()

    def _own_stream(self) -> EventStream:
        """The events the run was trained and measured on, without those appended since."""
        return self.folder.streams(str(self.folder.read_config()[1].get("fingerprint")))[0]

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
        made = make(self.settings.model, vars(self.settings.protocol) | wanted)
        return made.protocol

    def _time(self, at: Any) -> Any:
        return None if at is None else self.stream.time.parse(at)

    def _times(self, at: Any, n: int) -> np.ndarray | None:
        if at is None:
            return None
        times = [self.stream.time.parse(x) for x in _as_list(at)]
        if len(times) not in (1, n):
            raise SettingError(f"{len(times)} times for {n} pairs: give one, or one a pair.")
        return np.array(times * n if len(times) == 1 else times)


def _looked_at(run: Run, model: LinkModel, task: LinkTask, watcher: Watcher, at_most: int | None) -> Look:
    n = len(task.split.test)
    watcher.evaluating("the report", n if at_most is None else min(n, at_most))
    return look_at(
        run.folder,
        run.settings,
        run.metrics,
        model,
        task,
        at_most=at_most,
        progress=lambda k: watcher.step(k, None),
    )


def _as_list(values: Any) -> list[Any]:
    """Several ids or times as a list, a single one as a list of one."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        return [values]
    return values.to_pylist() if hasattr(values, "to_pylist") else list(values)


def _ids(values: list[Any]) -> list[Any]:
    """The values, if each can be the id of a node; SettingError otherwise, where it would pass for a newcomer's."""
    for value in values:
        whole = isinstance(value, float | np.floating) and value == np.floor(value)
        if isinstance(value, bool | np.bool_) or not (whole or isinstance(value, str | int | np.integer)):
            several = " Ask for several one by one." if hasattr(value, "__len__") else ""
            raise SettingError(f"{value!r} is not the id of a node: text and whole numbers are.{several}")
    return values


def _columns_of(data: Mapping[str, Any]) -> dict[str, str]:
    found = data.get("columns")
    return as_text(found) if isinstance(found, dict) else {}


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
    watcher: Watcher | None = None,
    **settings: Any,
) -> Run:
    """Train a model on a stream and evaluate it.

    Args:
        out: the run folder; by default the first free one of ``runs/NAME-MODEL-seedN``.
        resume: continue the run in ``out`` where it was interrupted; a finished one is returned as it is.
        init: a run whose weights to start from: those it was measured with, not refitted ones.
        refit: afterwards train on all events for as many epochs as validation chose; questions are then answered by
            that model, while the figures stay those of the split.
        report: write ``report.html`` into the folder at the end.
        columns: the column options the stream was read with, remembered for `Run.with_events`.
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
        watcher=watcher,
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
    watcher: Watcher | None = None,
) -> Run:
    """`train` for settings that are made already. RunError where another process is training in the same folder.

    Under torchrun the processes share the training, and each of them returns the run; the first one writes its folder.
    """
    chosen = choose_device(device)
    keep_threads()
    group = processes.join()
    check_may_share(settings, group)
    if group.size > 1:
        processes.check_same(group, _told(settings, stream, resume, refit, init is not None))
    folder = RunFolder(out) if group.leads else Unwritten(out)
    with folder.locked(), memory_explained(settings, folder):
        start = None if init is None or not group.leads else _initial_weights(init, settings, stream)
        run, task = _train_locked(
            stream, settings, folder, chosen, resume, start, refit, as_text(columns or {}), watcher, group
        )
        if report and group.leads and not folder.has(FILE):
            _report_at_the_end(run, task, watcher or Silent())
    return run


def _report_at_the_end(run: Run, task: LinkTask | None, watcher: Watcher) -> None:
    """``report.html`` of a run that is finished. ``task``: as it was trained on, where that is at hand."""
    try:
        if task is None:
            run.report(watcher)
        else:
            model = run._network("model.safetensors", task.stream)
            write_report(run.folder, _looked_at(run, model, task, watcher, AT_MOST))
    except RunError as error:
        raise RunError(f"The run is finished, but not its report: {error} `cordgt report` writes it.") from None


def _told(settings: Settings, stream: EventStream, resume: bool, refit: bool, init: bool) -> dict[str, str]:
    """What every process of a training must have alike, by name."""
    told = {key: json.dumps(value) for key, value in with_seed(settings).items()}
    told |= {"model": settings.model, "the data": f"{stream.n_events} events, hash {fingerprint(stream)}"}
    told |= {"the data's ids": ids_fingerprint(stream), "cordgt": __version__, "torch": torch.__version__}
    return told | {"--resume": str(resume), "--refit": str(refit), "--init": str(init)}


def _train_locked(
    stream: EventStream,
    settings: Settings,
    folder: RunFolder,
    device: torch.device,
    resume: bool,
    begins: Start | None,
    refit: bool,
    columns: dict[str, str],
    watcher: Watcher | None,
    group: Group,
) -> tuple[Run, LinkTask | None]:
    """`train_run` in a folder that is ours alone; the task comes back too, unless the run was finished before.

    What the folder holds, the first process tells the others.
    """
    out = folder.path
    done: Run | None = None
    trained_on = _as_it_was(stream, folder, group) if resume else stream
    if group.leads and folder.holds_run:
        if not resume:
            raise taken_error(out)
        check_same(folder, settings, trained_on)
        begins, refit = as_begun(folder, begins, refit)
        if folder.finished and not (refit and "refit" not in folder.read_metrics()):
            done = Run.load(out, str(device))
    metrics, refit, starts = group.from_first((None if done is None else done.metrics, refit, begins is not None))
    if metrics is not None:
        return done or Run(RunFolder(out), settings, stream, metrics, device, columns), None
    start = group.tensors_from_first({} if begins is None else begins.weights) if starts else None
    task = LinkTask.prepare(
        trained_on, settings.protocol, seed=settings.seed, device=device, group=group
    )  # before anything is written
    if group.leads and not folder.holds_run:
        check_free(out)
        check_weights(start, settings, stream)
        folder.create(settings, stream, columns=columns, start=begins, refit=refit)
    about = None if begins is None else begins.about
    with curves(watcher or Silent(), out) if group.leads else nullcontext(Silent()) as watching:
        metrics = train_in(folder, settings, task, start=start, init=about, refit=refit, watcher=watching)
    return Run(RunFolder(out), settings, stream, metrics, device, columns), task


def _as_it_was(stream: EventStream, folder: RunFolder, group: Group) -> EventStream:
    """A store's stream as it was when the run in the folder began; as it is, where none did or it never was that."""
    if stream.backing is None:
        return stream
    begun = folder.read_config()[1].get("fingerprint") if group.leads and folder.holds_run else None
    begun = group.from_first(begun)
    try:
        return stream if begun is None else open_store(stream.backing.path).stream(begun)
    except DataError:
        return stream  # `check_same` says so


def _initial_weights(init: str | Path | Run, settings: Settings, stream: EventStream) -> Start:
    """The weights that a run was measured with. Refitted ones know events that the new run may be measured on."""
    run = init if isinstance(init, Run) else Run.load(init, "cpu")
    if run.settings.model != settings.model:
        raise SettingError(f"--init {run.path} is a {run.settings.model}; this run is a {settings.model}.")
    return Start(
        run.folder.read_tensors("model.safetensors")[0], str(run.path), _known_before(run, stream, settings.protocol)
    )


def _known_before(run: Run, stream: EventStream, protocol: Protocol) -> str:
    """What a run that another starts from has seen of what that one is measured on, in words; empty: nothing."""
    own = run._own_stream()
    if own.time.kind != stream.time.kind:
        return ""
    theirs, ours = split_of(own, run.settings.protocol), split_of(stream, protocol)
    if not len(ours.train):
        return ""  # there is nothing to train on, which is said where the training begins
    said = []
    until, end = (of.t[split.train[-1]] for of, split in ((own, theirs), (stream, ours)))
    if until > end:
        shown = (of.time.format(np.array([t]))[0].as_py() for of, t in ((own, until), (stream, end)))
        said.append("it was trained on events until {}, past the training period here, which ends {}".format(*shown))
    known, new = (
        of.ids.names.filter(pa.array(which)) for of, which in ((own, ~theirs.new_node), (stream, ours.new_node))
    )
    if known.type == new.type:
        both = int(pc.sum(pc.is_in(new, pc.unique(known))).as_py() or 0)
        if both:
            said.append(f"it knows {both:,} of the {len(new):,} nodes that count as new here")
    return "; ".join(said)
