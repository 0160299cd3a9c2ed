"""The training loop. `cordgt.training.phases` runs it and evaluates the result.

One epoch of `Trainer`:

1. Train on all batches in stream order (`Step`). Each batch has its own dropout seed, from (seed, epoch, batch).
2. Within the epoch: report progress, append to ``history.jsonl``, stop on a signal, write a checkpoint when one is due.
3. Evaluate on validation data, with the averaged weights if there are any; keep the weights if they are the best.
4. Write a checkpoint. Stop after ``epochs``, or after ``patience`` epochs without improvement.

Sampled history and negatives are hashes of the seed. So weights, optimizer state, the model's own state and the
position are all that a resume needs, after any batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from signal import Signals
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cordgt import models
from cordgt.callbacks import Callback, CallbackList, StepCallback
from cordgt.errors import RunError, SettingError
from cordgt.history import rng
from cordgt.models.cordgt_plus import CordgtPlus
from cordgt.models.counts import Counts
from cordgt.runtime.distributed import ProcessGroup, ProcessLostError
from cordgt.runtime.signals import StopCallback, StopRequest, TrainingStopped
from cordgt.tasks.hidden_candidates import with_hidden_nodes
from cordgt.tasks.link import LinkTask
from cordgt.tasks.link_evaluation import evaluate
from cordgt.tasks.metrics import LINK_METRICS, LinkMetrics, summary_metrics
from cordgt.training.blend import answers_as_counts, counts_settings, counts_weights
from cordgt.training.checkpoint import Progress, TrainingState, restore_progress
from cordgt.training.model_factory import build_model_for, load_weights
from cordgt.training.oom import oom_hint, suggest_batch_size
from cordgt.training.run_folder import ReadOnlyRunFolder, RunFolder
from cordgt.training.settings import Settings
from cordgt.training.step import (
    CudaGraphStep,
    Ema,
    PrefetchStep,
    Step,
    dropout_generator,
    make_optimizer,
    prepare_capture,
)
from cordgt.training.time_estimate import StepTimer, TimeEstimate

SECONDS_BETWEEN_LINES = 5.0  # of history.jsonl, within an epoch


class Trainer:
    """One phase of a training in a run folder. It continues from the latest checkpoint of that phase.

    ``phase`` is "fit", which validates and stops early, or "refit", which trains for exactly ``epochs``. ``evaluates``
    and ``refits`` say what follows; the estimate of the time includes it.
    """

    def __init__(
        self,
        folder: RunFolder,
        settings: Settings,
        task: LinkTask,
        *,
        phase: str,
        epochs: int,
        init_weights: dict[str, Tensor] | None = None,
        callbacks: Callback,
        stop: StopRequest,
        evaluates: bool = False,
        refits: bool = False,
    ) -> None:
        self.folder, self.settings, self.task, self.epochs = folder, settings, task, epochs
        self.stop, self.callbacks, self.init_weights = stop, callbacks, init_weights
        self.validates = phase == "fit"
        self.progress = Progress(phase=phase)
        device = task.network_device
        model = build_model_for(settings, task.stream)
        if init_weights is not None:
            load_weights(model, init_weights, "the run given to --init")
        self.device = device
        self.model = model.to(device)
        self.model.check_same_device(task.device)
        self.model.pair_slope = 1.0  # it is chosen for the trained model, not for each epoch
        self.optimizer = make_optimizer(settings, self.model, device) if model.is_trainable else None
        self.state = TrainingState(self.model, self.optimizer, Ema.from_settings(settings, self.model))
        self.epoch_tensor = torch.zeros((), dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)  # `Progress.loss`, on the network's device
        self.best_validation: LinkMetrics | None = None  # of the best epoch; None if an earlier process validated it
        self.began = self.last_checkpoint = time.perf_counter()
        self.setup_seconds = 0.0  # before the first epoch of this process
        self.timer = StepTimer(device)
        self.estimate = TimeEstimate.from_task(
            settings, task, epochs=epochs, validates=self.validates, evaluates=evaluates, refits=refits
        )

    def fit(self) -> dict[str, Tensor]:
        """Train to the end and return the best weights, or the last ones in a phase without validation."""
        train_end = int(self.task.split.train[-1]) + 1
        if self.optimizer is None:
            self.model.prepare(self.task.train_history, train_end)
            return dict(self.model.state_dict())
        if not self.task.group.broadcast(self._restore()):
            self.model.prepare(self.task.train_history, train_end)
            if self.validates and isinstance(self.model, CordgtPlus) and self.model.counts is not None:
                self._train_counts(self.model.counts)
        if self.validates and answers_as_counts(self.model, self.task):
            self.epochs = self.estimate.epochs = 1  # of its own network, whose scores are not used
            self.callbacks.on_message(
                "The validation split has too few different times to judge CorDGT+: it answers as counts, and trains "
                "its own network for one epoch."
            )
        self._broadcast_state()
        with ExitStack() as closing:
            self._run_epochs(closing)
        return self.state.best

    def _train_counts(self, counts: Counts) -> None:
        """Train the `Counts` network of CorDGT+. It is not saved before its end: an interrupted one starts again."""
        self.callbacks.on_stage_start("training counts, a part of CorDGT+", None)
        trainer = Trainer(
            ReadOnlyRunFolder(self.folder.path),
            counts_settings(self.settings),
            self.task,
            phase="fit",
            epochs=self.epochs,
            init_weights=None if self.init_weights is None else counts_weights(self.init_weights),
            callbacks=StepCallback(self.callbacks),
            stop=self.stop,
        )
        try:
            best = trainer.fit()
        except TrainingStopped as stopped:
            raise TrainingStopped(stopped.signum) from None
        load_weights(counts, best, "counts")

    def _restore(self) -> bool:
        """Load the latest checkpoint of this phase; return False if there is none."""
        self.progress, found = restore_progress(self.folder, self.progress.phase, self.state)
        self.loss.fill_(self.progress.loss)
        return found

    def _broadcast_state(self) -> None:
        """Give every process the state of the main process, the only one that reads the folder."""
        group = self.task.group
        if group.world_size == 1:
            return
        self.progress = Progress(**group.broadcast(dict(vars(self.progress))))
        self.loss.fill_(self.progress.loss)
        tensors = group.broadcast_tensors(self.state.state_dict())
        if not group.is_main_process:
            self.state.load_state_dict(tensors)

    def _run_epochs(self, closing: ExitStack) -> None:
        """Run the remaining epochs. A step that must be closed is registered with ``closing``."""
        step = None
        while not self.progress.finished:
            try:
                with oom_hint(lambda: suggest_batch_size(self.settings, self.task, self.model)):
                    if step is None:
                        step = self._make_step()
                        if isinstance(step, PrefetchStep):
                            closing.callback(step.close)
                        self.setup_seconds = time.perf_counter() - self.began
                    self._run_epoch(step)
            except TrainingStopped as stopped:
                self._save()
                raise TrainingStopped(stopped.signum, self._position_text()) from None
            except ProcessLostError as lost:
                raise self._save_after_loss(lost) from None

    def _prepare_cuda_graph(self, task: LinkTask) -> bool:
        """Make a stateful model use static shapes. Return whether a CUDA graph can record the step.

        It needs fixed shapes and cannot record an all-reduce. On the GPU it records only the sampler of random
        negatives. With the history on the host, any sampler runs outside the graph.
        """
        training = self.settings.training
        if self.device.type != "cuda" or self.task.group.world_size > 1:
            return False
        if training.train_negatives != "random" and not self.task.is_history_on_host:
            return False
        return prepare_capture(task, self.model, training.batch_size)

    def _make_step(self) -> Callable[[Tensor, Tensor], Tensor]:
        assert self.optimizer is not None
        task, is_single = self.task, self.task.group.world_size == 1
        if self.settings.training.hidden_candidates:
            task = replace(task, train_history=with_hidden_nodes(task.train_history))
        on_host, is_recorded = task.is_history_on_host, self._prepare_cuda_graph(task)
        if on_host and self.settings.training.micro_batches:
            raise SettingError("Set micro_batches=0: history is on the host here, which supports only whole batches.")
        step = Step.from_settings(
            self.settings,
            task,
            self.model,
            self.optimizer,
            self.epoch_tensor if is_recorded and not on_host else 0,
            self.state.ema,
            stop=self.stop if is_single and not is_recorded else None,  # several processes stop after the same batch
        )
        if not is_recorded:
            return step
        self.callbacks.on_phase_start("capture")
        self.model.train()
        saved = {k: v.clone() for k, v in self.state.state_dict().items()}
        recorded = (PrefetchStep if on_host else CudaGraphStep)(step, self.settings.training.batch_size)
        self.state.load_state_dict(saved)
        return recorded

    def _run_epoch(self, step: Callable[[Tensor, Tensor], Tensor]) -> None:
        p = self.progress
        epoch = p.epoch + 1
        self.epoch_tensor.fill_(epoch)
        if isinstance(step, Step | PrefetchStep):
            step.set_epoch(epoch)
        loss = self._train_epoch(step, epoch)
        record: dict[str, Any] = {"phase": p.phase, "epoch": epoch, "loss": loss, "train_seconds": p.seconds}
        if self.setup_seconds:
            record["setup_seconds"], self.setup_seconds = self.setup_seconds, 0.0
        if self.validates:
            record |= self._validate(epoch)
        else:
            p.best_epoch = epoch
            with self.state.eval_weights():
                self.state.record_best()
        p.epoch, p.train_seconds = epoch, p.train_seconds + p.seconds
        p.events, p.seconds = 0, 0.0
        self.loss.zero_()
        n_without_improvement = epoch - p.best_epoch
        p.finished = epoch >= self.epochs or (
            self.validates and n_without_improvement >= self.settings.training.patience
        )
        record["best_epoch"] = p.best_epoch
        self.folder.append_history(record)
        self._save()
        self.callbacks.on_epoch_end(record)
        self._update_estimate(record)

    def _train_epoch(self, step: Callable[[Tensor, Tensor], Tensor], epoch: int) -> float:
        """Train on the remaining batches of an epoch, in stream order; return the mean loss of the whole epoch."""
        p, size = self.progress, self.settings.training.batch_size
        positions = torch.from_numpy(self.task.split.train).to(self.task.device)
        batches = [positions[start : start + size] for start in range(p.events, len(positions), size)]
        weight = torch.ones(min(size, len(positions)), device=self.device)
        generator = dropout_generator(self.device)
        if isinstance(step, PrefetchStep):
            step.prefetch(batches)
        key = rng.fold_in_int(rng.mix64_int(self.settings.seed), epoch)
        self.callbacks.on_epoch_start(p.phase, epoch, self.epochs, len(positions))
        self.model.start_epoch(p.events)
        self.model.train()
        n_reported, last_line = 0, time.perf_counter()
        began = last_line - p.seconds
        for number, batch in enumerate(batches, start=p.events // size):
            generator.manual_seed(rng.fold_in_int(key, number) & (2**63 - 1))
            self.loss += step(batch, weight[: len(batch)]).double() * len(batch)
            p.events += len(batch)
            event_seconds = self.timer.add(len(batch))
            now = time.perf_counter()
            p.seconds = now - began
            if event_seconds is not None:
                self.estimate.train_seconds = event_seconds
                self.callbacks.on_time_estimate(self.estimate.seconds_left(p.epoch, p.events))
            is_line_due = now - last_line > SECONDS_BETWEEN_LINES
            if is_line_due or self.device.type == "cpu":  # the loss of a GPU is read rarely, because that waits for it
                loss = self._mean_loss(epoch)
                self.callbacks.on_step(p.events - n_reported, loss)
                n_reported = p.events
                if is_line_due:
                    self.folder.append_history({"phase": p.phase, "epoch": epoch, "events": p.events, "loss": loss})
                    last_line = now
            self._stop_if_requested()
            if now - self.last_checkpoint > 60 * self.settings.training.checkpoint_minutes:
                self._save()
        loss = self._mean_loss(epoch)
        p.seconds = time.perf_counter() - began
        self._check_weights(epoch)
        self.callbacks.on_step(p.events - n_reported, loss)
        return loss

    def _update_estimate(self, record: Mapping[str, Any]) -> None:
        """Estimate the time that is left from a whole epoch."""
        p, estimate = self.progress, self.estimate
        estimate.train_seconds = record["train_seconds"] / max(1, estimate.train_events)
        if self.validates:
            estimate.scoring_seconds = record["validation_seconds"] / max(1, estimate.validation_events)
        self.timer.is_done = True
        left = estimate.seconds_left(p.epoch, 0, is_finished=p.finished, best_epoch=p.best_epoch)
        self.callbacks.on_time_estimate(left)

    def _validate(self, epoch: int) -> dict[str, Any]:
        """Evaluate on validation data and keep the weights if they are the best; return the entries for the history."""
        p = self.progress
        began = time.perf_counter()
        self.callbacks.on_stage_start("validating", len(self.task.split.validation))
        with self.state.eval_weights():
            stoppable = CallbackList([self.callbacks, StopCallback(self.stop)])
            metrics = evaluate(self.model, self.task, "validation", "transductive", callbacks=stoppable)
            monitor = self.settings.training.monitor
            value = metrics[monitor]
            if value is None:
                raise RunError(f"monitor={monitor} is not defined on the validation events. Choose another monitor.")
            gain = value - p.best_metric if LINK_METRICS[monitor].higher_is_better else p.best_metric - value
            if p.best_epoch == 0 or gain > self.settings.training.min_delta * abs(p.best_metric):
                p.best_metric, p.best_epoch = value, epoch
                self.best_validation = metrics
                self.state.record_best()
                self.folder.write_tensors(
                    "model.safetensors", self.state.best, {"epoch": epoch, f"validation_{monitor}": value}
                )
        seconds = time.perf_counter() - began
        shown = {k: metrics[k] for k in dict.fromkeys([*summary_metrics(ranks=True), monitor]) if k in metrics}
        return {"validation": shown, "validation_seconds": seconds}

    def _stop_if_requested(self) -> None:
        """Raise `TrainingStopped` if any process received a signal: in all processes, after the same batch."""
        signum = self.task.group.all_reduce_max(self.stop.signum or 0)
        if signum:
            self.stop.signum = Signals(signum)
        self.stop.raise_if_requested()

    def _save(self) -> None:
        """Write a checkpoint. RunError if a weight is not finite: the checkpoint before it stays."""
        self._check_weights(self.progress.epoch + 1)
        self.progress.loss = float(self.loss)
        self.folder.write_checkpoint(self.state.state_dict(), vars(self.progress))
        self.last_checkpoint = time.perf_counter()

    def _save_after_loss(self, lost: ProcessLostError) -> BaseException:
        """Write a checkpoint after another process is lost, and return the error to raise.

        The failed all-reduce changed nothing here, so the state is that before the batch.
        """
        saved = ""
        if self.device.type == "cpu":  # a GPU may still be waiting for the all-reduce
            self._save()
            saved = f" Saved after {self._position_text()}."
        if self.stop.signum is not None:  # the other processes were asked to stop too, and have stopped
            return TrainingStopped(self.stop.signum, self._position_text() if saved else "")
        return ProcessLostError(f"{lost}{saved}")

    def _position_text(self) -> str:
        p = self.progress
        epoch = "refit, epoch" if p.phase == "refit" else "epoch"
        return f"{p.events:,} of {len(self.task.split.train):,} events of {epoch} {p.epoch + 1}"

    def _mean_loss(self, epoch: int) -> float:
        """Return the mean loss of the epoch so far. RunError if it is not finite."""
        loss = float(self.loss) / self.progress.events
        if not np.isfinite(loss):
            raise self._divergence_error("The loss is no longer a number", epoch)
        return loss

    def _check_weights(self, epoch: int) -> None:
        """RunError if a weight is not finite: the loss of a diverging step is computed before its update."""
        if not self.state.is_finite():
            raise self._divergence_error("The weights are no longer numbers", epoch)

    def _divergence_error(self, what: str, epoch: int) -> RunError:
        p, path = self.progress, self.folder.path
        saved = f"The best weights, of epoch {p.best_epoch}, are kept in {path}. " if p.best_epoch else ""
        return RunError(
            f"{what} in epoch {epoch}. {saved}Try a smaller learning rate (--set lr=0.0003, with another --out), "
            "or features of a smaller scale."
        )


def check_distributed_support(settings: Settings, group: ProcessGroup) -> None:
    """Raise SettingError if a stateful model is to train in several processes or micro-batches."""
    if not models.find_model(settings.model).network.is_stateful:
        return
    if group.world_size > 1:
        raise SettingError(
            f"{settings.model} keeps a memory between batches, so it trains in one process: start it without torchrun "
            "and without --processes."
        )
    if settings.training.micro_batches:
        raise SettingError(
            f"{settings.model} keeps a memory between batches, so it trains on whole batches: set micro_batches=0."
        )
