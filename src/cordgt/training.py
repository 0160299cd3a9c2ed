"""The one loop: chronological batches, validation each epoch, early stopping, best weights kept, every epoch resumable.

Nothing in it is remembered between batches but weights, the optimiser's state and what a model says it carries: trees
and negatives are hashes, and dropout is seeded anew from (seed, epoch, batch). So these and the position are all a
resume needs, wherever it was.
"""

from __future__ import annotations

import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from signal import Signals
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cordgt import draws, models
from cordgt.counting import batch_that_fits, free_memory, peak_bytes, peak_of
from cordgt.errors import RunError, SettingError
from cordgt.events import EventStream
from cordgt.floors import floor_figures
from cordgt.models.base import LinkModel
from cordgt.processes import Group, Lost, own_device
from cordgt.run import STATES, RunFolder
from cordgt.settings import Settings
from cordgt.step import Average, CapturedStep, FedStep, Step, dropout_generator, events_a_part
from cordgt.stopping import Stop, Stopped, listening
from cordgt.tasks.link import PARTS, SETTINGS, LinkTask, evaluate

SECONDS_BETWEEN_LINES = 5.0  # of history.jsonl within an epoch
PLACE_BYTES = 64  # of an event of a batch however it is worked off: its position, weight and share, and copies of them


class Watcher(Protocol):
    """Who is told how the training goes: a progress bar, a log, nobody."""

    def epoch_begins(self, phase: str, epoch: int, epochs: int, events: int) -> None: ...
    def step(self, events: int, loss: float | None) -> None: ...
    def validating(self, events: int) -> None: ...
    def epoch_ends(self, record: dict[str, Any]) -> None: ...
    def evaluating(self, what: str, events: int) -> None: ...


class Silent:
    """Tells nobody."""

    def epoch_begins(self, phase: str, epoch: int, epochs: int, events: int) -> None:
        """Nothing to show."""

    def step(self, events: int, loss: float | None) -> None:
        """Nothing to show."""

    def validating(self, events: int) -> None:
        """Nothing to show."""

    def epoch_ends(self, record: dict[str, Any]) -> None:
        """Nothing to show."""

    def evaluating(self, what: str, events: int) -> None:
        """Nothing to show."""


class Heeding(Silent):
    """Passes on what it is told of an evaluation, and ends it where a signal asks for that."""

    def __init__(self, inner: Watcher, stop: Stop) -> None:
        self.inner, self.stop = inner, stop

    def step(self, events: int, loss: float | None) -> None:
        self.inner.step(events, loss)
        self.stop.check()

    def evaluating(self, what: str, events: int) -> None:
        self.inner.evaluating(what, events)


@contextmanager
def memory_explained(settings: Settings, folder: RunFolder | None = None) -> Iterator[None]:
    """RunError, with what to do, where memory runs out: Python's, numpy's, torch's on the CPU or on a GPU.

    ``folder``: where a training writes; None where nothing is trained, only measured.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        used: dict[str, Any] = {"batch_size": settings.training.batch_size}
        used |= {k: v for k, v in vars(settings.model_settings).items() if k in ("fanout", "hidden")}
        fewer = ", ".join(f"{k} (now {','.join(map(str, v)) if isinstance(v, tuple) else v})" for k, v in used.items())
        fits = f" {error.fits}" if isinstance(error, TooLarge) and error.fits else ""
        another = "" if folder is None else "another --out and "
        saved = ""
        if folder is not None and folder.holds_run:
            saved = f" What {folder.path} holds is intact: --resume goes on from it where there is more memory."
        raise RunError(f"Memory ran out. With {another}a smaller {fewer} it takes less.{fits}{saved}") from None


@contextmanager
def fits_told(told: Callable[[], str]) -> Iterator[None]:
    """`TooLarge`, with what ``told`` says once the memory is free again, where it runs out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # which hold what had been made so far
        raise TooLarge(told()) from None


class TooLarge(MemoryError):
    """Memory ran out in a training step. ``fits`` says which batch size would fit, as far as it can be told."""

    def __init__(self, fits: str) -> None:
        super().__init__(fits)
        self.fits = fits


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(words in str(error) for words in ("can't allocate memory", "not enough memory", "CUDA out of memory"))


def events_at_once(settings: Settings, model: LinkModel, device: torch.device) -> int | None:
    """The most events that a step holds at once, because it works off parts, as many as there are threads.

    None where it works off everything together.
    """
    part = events_a_part(model, settings.training.drawn) if device.type == "cpu" else None
    return part if part is None or not model.works_apart() else part * torch.get_num_threads()


def what_fits(settings: Settings, task: LinkTask, model: LinkModel) -> str:
    """Which batch size the memory that is free now would hold, judged by steps of a few events; empty if unknown.

    Where a batch is worked off in parts, it is a part that has to fit. On the CPU tensors are counted, on a GPU the
    allocator is asked.
    """
    size, device = settings.training.batch_size, task.network_device
    few = min(4, size)
    try:
        free = free_memory(device)
        peaks = {n: peak_at_once(settings, task, model, n) for n in (few, 2 * few)}
    except (MemoryError, RuntimeError):  # not even these fit, or the device is lost
        return ""
    if free is None:
        return ""
    pieces = max(1, settings.training.pieces)
    n, at_once = batch_that_fits(peaks, free), events_at_once(settings, model, device)
    bounded = at_once is not None and size > at_once * pieces
    parts = f"A batch is worked off {at_once} events at a time" if bounded else ""
    if at_once is not None and bounded and n >= at_once:
        if size * PLACE_BYTES > free:
            return ""  # it is the batch after all
        each, below = peak_of(peaks, at_once) / 2**20, at_once * pieces
        return f"{parts}, which takes about {each:,.0f} MB: only below {below} does a smaller batch_size take less."
    if n * pieces >= size:
        return ""
    told = f"batch_size={n * pieces}" if n else "no batch"
    by = f"{parts}; by" if parts else "By"
    return f"{by} a step of {2 * few} events, {told} would fit the {free / 2**30:.1f} GB that are free."


def peak_at_once(settings: Settings, task: LinkTask, model: LinkModel, size: int) -> int:
    """Bytes that so many events hold at once in a step; it is taken back to front but not applied."""
    positions = torch.from_numpy(task.split.train[-size:]).to(task.device)

    def back_to_front() -> None:
        seed, drawn = settings.seed, settings.training.drawn
        queries = task.queries(positions, positions[:1], task.pools.train, seed=seed, epoch=1, drawn=drawn)
        model.losses(model.read(task.training, queries)).sum().backward()
        model.zero_grad(set_to_none=True)

    return peak_bytes(back_to_front, task.network_device)


def choose_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one; of several processes each has its own."""
    name = own_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"There is no device '{name}': it is auto, cpu or cuda.") from None
    if device.type == "cuda" and device.index is not None and torch.cuda.is_available():
        if device.index >= torch.cuda.device_count():
            raise SettingError(f"There is no device '{name}': this machine has {torch.cuda.device_count()} of them.")
        torch.cuda.set_device(device)  # kernels and streams go to the current one
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SettingError("CUDA was asked for, but this machine has no usable CUDA device. Use --device cpu or auto.")
    if device.type not in ("cpu", "cuda"):
        raise SettingError(f"The device '{name}' is not supported: it is auto, cpu or cuda.")
    if str(device) == "cuda":  # with its number, as tensors there have it: "cuda" is not equal to "cuda:0"
        return torch.device("cuda", torch.cuda.current_device())
    return device


def use_precision(settings: Settings, device: torch.device) -> None:
    """Let this process multiply matrices on a GPU as the settings say, also where a trained model is only asked."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if settings.training.precision == "fp32" else "high")


def make_network(settings: Settings, *, edge_dim: int, node_dim: int, n_nodes: int = 0) -> LinkModel:
    """The model of the settings with fresh weights, drawn from the run's seed; some hold a row for each node."""
    torch.manual_seed(settings.seed)
    network: Any = models.find(settings.model).network
    rows = {"n_nodes": n_nodes} if network.transductive else {}
    return network(settings.model_settings, edge_dim=edge_dim, node_dim=node_dim, **rows)


def network_for(settings: Settings, stream: EventStream) -> LinkModel:
    """`make_network` for a stream."""
    return make_network(settings, edge_dim=stream.edge_dim, node_dim=stream.node_dim, n_nodes=stream.n_nodes)


@dataclass
class Progress:
    """How far a phase has come: what a checkpoint holds besides tensors."""

    phase: str = "fit"  # or "refit"
    epoch: int = 0  # epochs done
    best_epoch: int = 0
    best_figure: float = -np.inf  # on validation data, of the kind that `judge` says
    train_seconds: float = 0.0  # over all epochs done, validation left out
    finished: bool = False
    events: int = 0  # of the epoch under way: those trained on,
    loss: float = 0.0  # the sum of their losses,
    seconds: float = 0.0  # and how long they took


@dataclass
class StoppableStep(Step):
    """A step that heeds a signal between the parts of a batch, and so within seconds, however large the batch is.

    It ends with `Stopped` then. Only gradients were made, which the next step makes anew: weights and whatever else a
    checkpoint holds are those before the batch.
    """

    stop: Stop = field(default_factory=Stop)  # one that nobody asks, until the training's own takes its place

    def read(self, position: Tensor, batch_start: Tensor) -> Any:
        """What the network is told of a part, unless it is time to end."""
        self.stop.check()
        return super().read(position, batch_start)


class Fit:
    """One phase of training in a run folder, from wherever its checkpoint left off."""

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        task: LinkTask,
        *,
        phase: str,
        epochs: int,
        start: dict[str, Tensor] | None,
        watcher: Watcher,
        stop: Stop,
    ) -> None:
        self.folder, self.settings, self.task, self.watcher, self.epochs = folder, settings, task, watcher, epochs
        self.stop = stop
        self.validates = phase == "fit"
        self.progress = Progress(phase=phase)
        self.best: dict[str, Tensor] = {}
        device = task.network_device
        model = network_for(settings, task.stream)
        if start is not None:
            load_weights(model, start, "the run given to --init")
        self.device = device
        self.model = model.to(device)
        self.model.check_beside(task.device)
        cuda = device.type == "cuda"
        self.optimizer = (
            torch.optim.Adam(
                self.model.parameters(), lr=settings.training.lr, capturable=cuda, fused=True if cuda else None
            )
            if model.trains
            else None
        )
        kept = settings.training.average
        self.average = Average(self.model, kept) if kept and model.trains else None
        self.epoch_tensor = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)  # `Progress.loss`, where the batches are
        self.saved = time.perf_counter()  # when the last checkpoint was written

    def run(self) -> dict[str, Tensor]:
        """Train to the end and return the weights to keep: the best ones, or the last where nothing validates."""
        if self.optimizer is None:
            return dict(self.model.state_dict())
        if not self.task.group.from_first(self._restore()):
            self.model.prepare(self.task.training, int(self.task.split.train[-1]) + 1)
        self._agree()
        with ExitStack() as closing:
            self._epochs(closing)
        return self.best

    def _epochs(self, closing: ExitStack) -> None:
        """All epochs that are left; what has to be ended afterwards is left to ``closing``."""
        step = None
        while not self.progress.finished:
            try:
                with fits_told(lambda: what_fits(self.settings, self.task, self.model)):
                    if step is None:
                        step = self._make_step()
                        if isinstance(step, FedStep):
                            closing.callback(step.close)
                    self._epoch(step)
            except Stopped as stopped:
                self._save()
                raise Stopped(stopped.asked, self._whereabouts()) from None
            except Lost as lost:
                raise self._left_alone(lost) from None

    def _agree(self) -> None:
        """Every process goes on from where the first one stands: only that one reads the folder."""
        group = self.task.group
        if group.size == 1:
            return
        self.progress = Progress(**group.from_first(dict(vars(self.progress))))
        self.loss.fill_(self.progress.loss)
        tensors = group.tensors_from_first(self._tensors())
        if not group.leads:
            self._load_tensors(tensors)

    def _left_alone(self, lost: Lost) -> BaseException:
        """What to raise where another process is lost, after a checkpoint: sums that were not made changed nothing."""
        saved = ""
        if self.device.type == "cpu":  # a GPU may still be waiting for a sum
            self._save()
            saved = f" Saved after {self._whereabouts()}."
        if self.stop.asked is not None:  # the others were asked to end, and have
            return Stopped(self.stop.asked, self._whereabouts() if saved else "")
        return Lost(f"{lost}{saved}")

    def _whereabouts(self) -> str:
        p = self.progress
        what = "refit, epoch" if p.phase == "refit" else "epoch"
        return f"{p.events:,} of {len(self.task.split.train):,} events of {what} {p.epoch + 1}"

    def _make_step(self) -> Callable[[Tensor, Tensor], Tensor]:
        assert self.optimizer is not None
        recorded = self.device.type == "cuda" and not self.model.remembers  # memory reaches as far as it must:
        recorded = recorded and self.task.group.size == 1  # no fixed shapes; nor are sums over processes recorded
        fed = self.task.past_on_host
        if fed and self.settings.training.pieces:
            raise SettingError("pieces: the past is read on the host, whole batches at a time. Leave them out.")
        epoch = self.epoch_tensor if recorded and not fed else 0
        if self.task.group.size == 1 and not recorded:  # several processes end after the same batch
            step = StoppableStep.of(self.settings, self.task, self.model, self.optimizer, epoch, self.average)
            step.stop = self.stop
            return step
        plain = Step.of(self.settings, self.task, self.model, self.optimizer, epoch, self.average)
        if not recorded:
            return plain
        self.model.train()
        saved = {k: v.clone() for k, v in self._tensors().items()}
        captured = (FedStep if fed else CapturedStep)(plain, self.settings.training.batch_size)
        self._load_tensors(saved)
        return captured

    def _epoch(self, step: Callable[[Tensor, Tensor], Tensor]) -> None:
        p, settings = self.progress, self.settings
        epoch = p.epoch + 1
        self.epoch_tensor.fill_(epoch)
        if isinstance(step, Step | FedStep):
            step.at(epoch)
        loss = self._train_once(step, epoch)
        record: dict[str, Any] = {"phase": p.phase, "epoch": epoch, "loss": loss, "train_seconds": p.seconds}
        if self.validates:
            record |= self._validate(epoch)
        else:
            p.best_epoch = epoch
            with self._judged():
                self.best = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        p.epoch, p.train_seconds = epoch, p.train_seconds + p.seconds
        p.events, p.seconds = 0, 0.0
        self.loss.zero_()
        waited = epoch - p.best_epoch
        p.finished = epoch >= self.epochs or (self.validates and waited >= settings.training.patience)
        record["best_epoch"] = p.best_epoch
        self.folder.append_history(record)
        self._save()
        self.watcher.epoch_ends(record)

    def _train_once(self, step: Callable[[Tensor, Tensor], Tensor], epoch: int) -> float:
        """The rest of a pass over the training events in stream order; the mean loss over all of it."""
        p, size = self.progress, self.settings.training.batch_size
        positions = torch.from_numpy(self.task.split.train).to(self.task.device)
        batches = [positions[start : start + size] for start in range(p.events, len(positions), size)]
        weight = torch.ones(min(size, len(positions)), device=self.device)
        generator = dropout_generator(self.device)
        if isinstance(step, FedStep):
            step.expect(batches)
        key = draws.child_int(draws.mix_int(self.settings.seed), epoch)
        self.watcher.epoch_begins(p.phase, epoch, self.epochs, len(positions))
        self.model.train()
        shown, last = 0, time.perf_counter()
        began = last - p.seconds
        for number, batch in enumerate(batches, start=p.events // size):
            generator.manual_seed(draws.child_int(key, number) & (2**63 - 1))
            self.loss += step(batch, weight[: len(batch)]).double() * len(batch)
            p.events += len(batch)
            now = time.perf_counter()
            p.seconds = now - began
            if now - last > SECONDS_BETWEEN_LINES or self.device.type == "cpu":
                loss = self._mean_loss(epoch)
                self.watcher.step(p.events - shown, loss)
                shown = p.events
                if now - last > SECONDS_BETWEEN_LINES:
                    self.folder.append_history({"phase": p.phase, "epoch": epoch, "events": p.events, "loss": loss})
                    last = now
            self._heed()
            if now - self.saved > 60 * self.settings.training.checkpoint_minutes:
                self._save()
        loss = self._mean_loss(epoch)
        p.seconds = time.perf_counter() - began
        self._check_weights(epoch)
        self.watcher.step(p.events - shown, loss)
        return loss

    def _heed(self) -> None:
        """Raises `Stopped`, in all processes after the same batch, where a signal has come to any of them."""
        asked = self.task.group.largest(self.stop.asked or 0)
        if asked:
            self.stop.asked = Signals(asked)
        self.stop.check()

    def _mean_loss(self, epoch: int) -> float:
        """Over the epoch so far; RunError where it is no number."""
        loss = float(self.loss) / self.progress.events
        if not np.isfinite(loss):
            raise self._diverged("The loss is no longer a number", epoch)
        return loss

    def _check_weights(self, epoch: int) -> None:
        """RunError where a weight is no number: the step that goes too far has a loss that was taken before it."""
        if not all(bool(torch.isfinite(q).all()) for q in self.model.parameters()):
            raise self._diverged("The weights are no longer numbers", epoch)

    def _diverged(self, what: str, epoch: int) -> RunError:
        p, path = self.progress, self.folder.path
        kept = f"The best weights, of epoch {p.best_epoch}, are kept in {path}. " if p.best_epoch else ""
        return RunError(
            f"{what} in epoch {epoch}. {kept}A smaller learning rate often helps (--set lr=0.0003, with another "
            "--out), or features of a smaller scale."
        )

    def _validate(self, epoch: int) -> dict[str, Any]:
        p = self.progress
        began = time.perf_counter()
        self.watcher.validating(len(self.task.split.validation))
        with self._judged():
            heed = self.stop.check
            figures = evaluate(self.model, self.task, "validation", "transductive", progress=lambda _: heed())
            judge = self.settings.training.judge
            figure = figures["mrr"] if judge == "mrr" else figures["ap"]
            assert figure is not None
            if p.best_epoch == 0 or (figure - p.best_figure) / abs(p.best_figure) > self.settings.training.tolerance:
                p.best_figure, p.best_epoch = figure, epoch
                self.best = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
                self.folder.write_tensors(
                    "model.safetensors", self.best, {"epoch": epoch, f"validation_{judge}": figure}
                )
        seconds = time.perf_counter() - began
        shown = {k: figures[k] for k in ("ap", "auc", "mrr") if k in figures}
        return {"validation": shown, "validation_seconds": seconds}

    def _judged(self) -> AbstractContextManager[None]:
        """The model with the weights that are judged and kept: its own, or their average."""
        return nullcontext() if self.average is None else self.average.in_place(self.model)

    def _tensors(self) -> dict[str, Tensor]:
        """Everything a resume needs, by name: weights, best weights, what the model carries, the optimiser's state."""
        assert self.optimizer is not None
        found = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        found |= {f"carried.{k}": v for k, v in self.model.carried().items()}
        found |= {f"average.{k}": v for k, v in (self.average.tensors() if self.average else {}).items()}
        found |= {f"best.{k}": v for k, v in self.best.items()}
        for i, parameter in enumerate(self._optimised()):
            found |= {f"adam.{i}.{k}": v for k, v in self.optimizer.state.get(parameter, {}).items()}
        return found

    def _optimised(self) -> list[Tensor]:
        """The parameters in the optimiser's order. Those that never had a gradient have no state."""
        assert self.optimizer is not None
        return [q for group in self.optimizer.param_groups for q in group["params"]]

    def _load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `_tensors`, in place, so that a captured step keeps its addresses."""
        assert self.optimizer is not None
        self.model.load_state_dict(_below(tensors, "model."))
        self.model.carry_on(_below(tensors, "carried."))
        if self.average is not None:
            self.average.load(_below(tensors, "average."))
        device = self.device
        self.best = {k: v.to(device) for k, v in _below(tensors, "best.").items()}
        for i, parameter in enumerate(self._optimised()):
            given = _below(tensors, f"adam.{i}.")
            state = self.optimizer.state[parameter]
            for k, v in given.items():
                if k in state:
                    state[k].copy_(v)
                else:
                    where = device if self.optimizer.defaults["capturable"] or k != "step" else torch.device("cpu")
                    state[k] = v.to(where).clone()
            if not given:
                for v in state.values():
                    v.zero_()

    def _save(self) -> None:
        """A checkpoint of sound weights; where they are not, the last one stays."""
        self._check_weights(self.progress.epoch + 1)
        self.progress.loss = float(self.loss)
        self.folder.write_state(self._tensors(), vars(self.progress))
        self.saved = time.perf_counter()

    def _restore(self) -> bool:
        """Go on from where the folder says: after a finished phase, after a batch, or (False) at the start."""
        kept = "model.safetensors" if self.validates else "refit.safetensors"
        if self.folder.has(kept):
            weights, about = self.folder.read_tensors(kept)
            if about.get("finished"):
                self.best, self.progress = weights, self._read_progress(kept, about)
                return True
        state, found = self.folder.latest_state(), False
        if state is not None:
            tensors, about = self.folder.read_tensors(state)
            found = about.get("phase") == self.progress.phase
            if found:
                self.progress = self._read_progress(state, about)
                self.loss.fill_(self.progress.loss)
                try:
                    self._load_tensors(tensors)
                except (RuntimeError, KeyError):
                    raise self.folder.damaged(state, "it does not fit this run's model.") from None
        self.folder.keep_history(self.progress.phase, self.progress.epoch, self.progress.events)
        return found

    def _read_progress(self, name: str, about: dict[str, Any]) -> Progress:
        try:
            return Progress(**about)
        except TypeError as error:
            raise self.folder.damaged(name, f"{error}.") from None


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def load_weights(model: LinkModel, weights: dict[str, Tensor], where: str) -> None:
    """Put weights into a model; SettingError where they are another model's."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise SettingError(f"The weights of {where} do not fit these settings: {reason}") from None


def train_in(
    folder: RunFolder,
    settings: Settings,
    task: LinkTask,
    *,
    start: dict[str, Tensor] | None = None,
    refit: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train, evaluate and write everything into ``folder``; the contents of ``metrics.json`` come back."""
    watcher = watcher or Silent()
    device = task.network_device
    use_precision(settings, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    folder.sweep()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), listening() as stop:
        try:
            metrics = _fit_and_measure(folder, settings, task, start, refit, watcher, stop)
        except Lost:
            stop.check()  # the others were asked to end as well, and this one waited for them
            raise
    metrics["peak_memory_mb"] = peak_memory_mb(device)
    for name in STATES:  # the weights above are finished, so a resume needs no checkpoint
        folder.remove(name)
    folder.write_metrics(metrics)
    return metrics


def _fit_and_measure(
    folder: RunFolder,
    settings: Settings,
    task: LinkTask,
    start: dict[str, Tensor] | None,
    refit: bool,
    watcher: Watcher,
    stop: Stop,
) -> dict[str, Any]:
    """Train, keep the weights that validation chose, measure them; then, if asked for, train on everything."""
    epochs = settings.training.epochs
    fit = Fit(folder, settings, task, phase="fit", epochs=epochs, start=start, watcher=watcher, stop=stop)
    best = fit.run()
    load_weights(fit.model, {k: v.to(task.network_device) for k, v in best.items()}, str(folder.path))
    folder.write_tensors("model.safetensors", fit.model.state_dict(), vars(fit.progress))
    metrics = _figures(fit.model, task, settings, fit.progress, Heeding(watcher, stop))
    if refit and fit.model.trains:
        metrics["refit"] = _refit(folder, settings, task, fit.progress.best_epoch, start, watcher, stop)
    return metrics


def check_may_share(settings: Settings, group: Group) -> None:
    """SettingError where batches are to be shared of a model that carries a state from one to the next."""
    if not models.find(settings.model).network.remembers:
        return
    whole = f"{settings.model} has a memory that goes from batch to batch, so it trains in one process"
    if group.size > 1:
        raise SettingError(f"{whole}: start it without torchrun and without --processes.")
    if settings.training.pieces:
        raise SettingError(f"{whole}, on whole batches: pieces={settings.training.pieces} is not for it.")


def _refit(
    folder: RunFolder,
    settings: Settings,
    task: LinkTask,
    epochs: int,
    start: dict[str, Tensor] | None,
    watcher: Watcher,
    stop: Stop,
) -> dict[str, Any]:
    """Train anew on every event for as many epochs as validation chose. The figures stay those of the honest split."""
    fit = Fit(
        folder, settings, task.on_everything(), phase="refit", epochs=epochs, start=start, watcher=watcher, stop=stop
    )
    weights = fit.run()
    folder.write_tensors("refit.safetensors", weights, vars(fit.progress))
    return {"epochs": epochs, "events": task.stream.n_events}


def _figures(
    model: LinkModel, task: LinkTask, settings: Settings, progress: Progress, watcher: Watcher
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": settings.model,
        "data": task.stream.name,
        "seed": settings.seed,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "seconds_per_epoch": progress.train_seconds / progress.epoch if progress.epoch else 0.0,
        "parameters": sum(p.numel() for p in model.parameters()),
        "protocol": dict(vars(settings.protocol)),
        "device": str(task.network_device),
        "past_on": str(task.device),
    }
    found |= {"processes": task.group.size} if task.group.size > 1 else {}
    found |= all_figures(model, task, watcher)
    return found


def all_figures(
    model: LinkModel, task: LinkTask, watcher: Watcher | None = None, parts: Sequence[str] = PARTS
) -> dict[str, Any]:
    """``{"validation": {"transductive": …, "inductive": …}, "test": …, "floors": …}``, of the parts asked for."""
    watcher = watcher or Silent()
    found: dict[str, Any] = {}
    for part in parts:
        found[part] = {}
        for setting in SETTINGS:
            positions = getattr(task.split, part)
            n = len(positions if setting == "transductive" else task.split.inductive(positions))
            watcher.evaluating(f"{part}, {setting}", n)
            found[part][setting] = evaluate(model, task, part, setting, progress=lambda k: watcher.step(k, None))
    found["floors"] = floor_figures(task, parts)
    return found


def peak_memory_mb(device: torch.device) -> float:
    """The most memory used so far: the GPU's where one is used, otherwise the process's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
