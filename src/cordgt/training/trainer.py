"""The one loop: chronological batches, validation each epoch, early stopping, best weights kept, every epoch resumable.

Nothing in it is remembered between batches but weights, the optimiser's state and what a model says it carries: trees
and negatives are hashes, and dropout is seeded anew from (seed, epoch, batch). So these and the position are all a
resume needs, wherever it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from signal import Signals
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt import models
from cordgt.callbacks import NO_CALLBACK, Callback, CallbackList
from cordgt.errors import RunError, SettingError
from cordgt.history import rng
from cordgt.models.base import LinkModel
from cordgt.runtime.distributed import Group, Lost
from cordgt.runtime.signals import Stop, StopCallback, Stopped, listening
from cordgt.tasks.link import LinkTask, evaluate
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.checkpoint import Progress, State, restored
from cordgt.training.devices import peak_memory_mb, use_precision
from cordgt.training.evaluation import evaluate_splits
from cordgt.training.model_factory import load_weights, network_for
from cordgt.training.oom import fits_told, what_fits
from cordgt.training.run_folder import STATES, RunFolder
from cordgt.training.settings import Settings
from cordgt.training.step import CapturedStep, Ema, FedStep, Step, dropout_generator, make_optimizer

SECONDS_BETWEEN_LINES = 5.0  # of history.jsonl within an epoch


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
        callbacks: Callback,
        stop: Stop,
    ) -> None:
        self.folder, self.settings, self.task, self.epochs = folder, settings, task, epochs
        self.stop, self.callbacks = stop, callbacks
        self.validates = phase == "fit"
        self.progress = Progress(phase=phase)
        device = task.network_device
        model = network_for(settings, task.stream)
        if start is not None:
            load_weights(model, start, "the run given to --init")
        self.device = device
        self.model = model.to(device)
        self.model.check_same_device(task.device)
        self.optimizer = make_optimizer(settings, self.model, device) if model.is_trainable else None
        self.state = State(self.model, self.optimizer, Ema.of(settings, self.model))
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
        return self.state.best

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
        tensors = group.tensors_from_first(self.state.tensors())
        if not group.leads:
            self.state.load(tensors)

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
        # A memory reaches back as far as it must, so its shapes are not fixed; sums over processes cannot be recorded.
        alone = self.task.group.size == 1
        recorded = self.device.type == "cuda" and not self.model.is_stateful and alone
        fed = self.task.past_on_host
        if fed and self.settings.training.micro_batches:
            raise SettingError("micro_batches=0 is required here: the past is on the host, which reads whole batches.")
        epoch = self.epoch_tensor if recorded and not fed else 0
        if alone and not recorded:  # several processes end after the same batch
            step = StoppableStep.of(self.settings, self.task, self.model, self.optimizer, epoch, self.state.ema)
            step.stop = self.stop
            return step
        plain = Step.of(self.settings, self.task, self.model, self.optimizer, epoch, self.state.ema)
        if not recorded:
            return plain
        self.model.train()
        saved = {k: v.clone() for k, v in self.state.tensors().items()}
        captured = (FedStep if fed else CapturedStep)(plain, self.settings.training.batch_size)
        self.state.load(saved)
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
            with self.state.eval_weights():
                self.state.keep_as_best()
        p.epoch, p.train_seconds = epoch, p.train_seconds + p.seconds
        p.events, p.seconds = 0, 0.0
        self.loss.zero_()
        waited = epoch - p.best_epoch
        p.finished = epoch >= self.epochs or (self.validates and waited >= settings.training.patience)
        record["best_epoch"] = p.best_epoch
        self.folder.append_history(record)
        self._save()
        self.callbacks.on_epoch_end(record)

    def _train_once(self, step: Callable[[Tensor, Tensor], Tensor], epoch: int) -> float:
        """The rest of a pass over the training events in stream order; the mean loss over all of it."""
        p, size = self.progress, self.settings.training.batch_size
        positions = torch.from_numpy(self.task.split.train).to(self.task.device)
        batches = [positions[start : start + size] for start in range(p.events, len(positions), size)]
        weight = torch.ones(min(size, len(positions)), device=self.device)
        generator = dropout_generator(self.device)
        if isinstance(step, FedStep):
            step.expect(batches)
        key = rng.child_int(rng.mix_int(self.settings.seed), epoch)
        self.callbacks.on_epoch_start(p.phase, epoch, self.epochs, len(positions))
        self.model.train()
        shown, last = 0, time.perf_counter()
        began = last - p.seconds
        for number, batch in enumerate(batches, start=p.events // size):
            generator.manual_seed(rng.child_int(key, number) & (2**63 - 1))
            self.loss += step(batch, weight[: len(batch)]).double() * len(batch)
            p.events += len(batch)
            now = time.perf_counter()
            p.seconds = now - began
            if now - last > SECONDS_BETWEEN_LINES or self.device.type == "cpu":
                loss = self._mean_loss(epoch)
                self.callbacks.on_step(p.events - shown, loss)
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
        self.callbacks.on_step(p.events - shown, loss)
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
        if not self.state.is_sound():
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
        self.callbacks.on_stage_start("validating", len(self.task.split.validation))
        with self.state.eval_weights():
            stoppable = CallbackList([self.callbacks, StopCallback(self.stop)])
            figures = evaluate(self.model, self.task, "validation", "transductive", callbacks=stoppable)
            monitor = self.settings.training.monitor
            figure = figures["mrr"] if monitor == "mrr" else figures["ap"]
            assert figure is not None
            if p.best_epoch == 0 or (figure - p.best_figure) / abs(p.best_figure) > self.settings.training.min_delta:
                p.best_figure, p.best_epoch = figure, epoch
                self.state.keep_as_best()
                self.folder.write_tensors(
                    "model.safetensors", self.state.best, {"epoch": epoch, f"validation_{monitor}": figure}
                )
        seconds = time.perf_counter() - began
        shown = {k: figures[k] for k in ("ap", "auc", "mrr") if k in figures}
        return {"validation": shown, "validation_seconds": seconds}

    def _save(self) -> None:
        """Write a checkpoint. RunError where a weight is no number: the checkpoint before it stays."""
        self._check_weights(self.progress.epoch + 1)
        self.progress.loss = float(self.loss)
        self.folder.write_state(self.state.tensors(), vars(self.progress))
        self.saved = time.perf_counter()

    def _restore(self) -> bool:
        """Go on from where the folder says: after a finished phase, after a batch, or (False) at the start."""
        self.progress, found = restored(self.folder, self.progress.phase, self.state)
        self.loss.fill_(self.progress.loss)
        return found


def train_in(
    folder: RunFolder,
    settings: Settings,
    task: LinkTask,
    *,
    start: dict[str, Tensor] | None = None,
    init: Mapping[str, str] | None = None,
    refit: bool = False,
    callbacks: Callback = NO_CALLBACK,
) -> RunMetrics:
    """Train, evaluate and write everything into ``folder``; the contents of ``metrics.json`` come back.

    ``init``: what is to be said there of ``start``.
    """
    device = task.network_device
    use_precision(settings, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    folder.sweep()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), listening() as stop:
        try:
            metrics = _fit_and_measure(folder, settings, task, start, refit, callbacks, stop)
        except Lost:
            stop.check()  # the others were asked to end as well, and this one waited for them
            raise
    metrics["peak_memory_mb"] = peak_memory_mb(device)
    if init is not None:
        metrics["init"] = dict(init)
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
    callbacks: Callback,
    stop: Stop,
) -> RunMetrics:
    """Train, keep the weights that validation chose, measure them; then, if asked for, train on everything."""
    epochs = settings.training.epochs
    fit = Fit(folder, settings, task, phase="fit", epochs=epochs, start=start, callbacks=callbacks, stop=stop)
    best = fit.run()
    load_weights(fit.model, {k: v.to(task.network_device) for k, v in best.items()}, str(folder.path))
    folder.write_tensors("model.safetensors", fit.model.state_dict(), vars(fit.progress))
    metrics = _metrics(fit.model, task, settings, fit.progress, CallbackList([callbacks, StopCallback(stop)]))
    if refit and fit.model.is_trainable:
        metrics["refit"] = _refit(folder, settings, task, fit.progress.best_epoch, start, callbacks, stop)
    return metrics


def check_may_share(settings: Settings, group: Group) -> None:
    """SettingError where batches are to be shared of a model that carries a state from one to the next."""
    if not models.find(settings.model).network.is_stateful:
        return
    whole = f"{settings.model} has a memory that goes from batch to batch, so it trains in one process"
    if group.size > 1:
        raise SettingError(f"{whole}: start it without torchrun and without --processes.")
    if settings.training.micro_batches:
        raise SettingError(f"{whole}, on whole batches: micro_batches={settings.training.micro_batches} is not for it.")


def _refit(
    folder: RunFolder,
    settings: Settings,
    task: LinkTask,
    epochs: int,
    start: dict[str, Tensor] | None,
    callbacks: Callback,
    stop: Stop,
) -> dict[str, Any]:
    """Train anew on every event for as many epochs as validation chose. The figures stay those of the honest split."""
    fit = Fit(
        folder,
        settings,
        task.on_everything(),
        phase="refit",
        epochs=epochs,
        start=start,
        callbacks=callbacks,
        stop=stop,
    )
    weights = fit.run()
    folder.write_tensors("refit.safetensors", weights, vars(fit.progress))
    return {"epochs": epochs, "events": task.stream.n_events}


def _metrics(
    model: LinkModel, task: LinkTask, settings: Settings, progress: Progress, callbacks: Callback
) -> RunMetrics:
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
    return RunMetrics(found | evaluate_splits(model, task, callbacks))
