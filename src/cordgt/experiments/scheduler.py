"""Run cells in one process or in several, within a time budget.

The work is not divided in advance: each process walks the list and claims the first cell that is neither finished nor
claimed. So several processes, calls or machines can share one folder without knowing of each other.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import CordgtError
from cordgt.experiments.cells import Cell, CellResult, CellStore
from cordgt.experiments.measurements import run_cell
from cordgt.plugins import LoadedPlugins
from cordgt.runtime.signals import SignalInterrupt, TrainingStopped, defer_signals, raise_on_signal, time_limit
from cordgt.runtime.worker_processes import RelayCallback, exit_with_parent, parent_pid
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.training.devices import choose_device


@dataclass
class WorkResult:
    """How the cells of a call ended."""

    n_finished: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # by cell label: the error message
    n_claimed_elsewhere: int = 0  # another process runs them
    n_too_long: int = 0  # not started: they need more than the remaining time
    stopped: TrainingStopped | None = None  # by a signal
    out_of_time: bool = False


@dataclass(frozen=True)
class TimeBudget:
    """The time at which to stop, on the monotonic clock, and the seconds of the whole call."""

    deadline: float = math.inf
    seconds: float = math.inf

    @classmethod
    def from_minutes(cls, minutes: float | None) -> TimeBudget:
        return cls() if minutes is None else cls(time.monotonic() + 60 * minutes, 60 * minutes)

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def allows(self, expected: float | None) -> bool:
        """Return whether to start a cell: it fits, its time is unknown, or it would not fit into any such call."""
        return expected is None or expected <= self.seconds_left or expected > self.seconds


def expected_seconds(
    cell: Cell, finished: Sequence[CellResult], device: str = "cpu", elapsed: float = 0.0
) -> float | None:
    """Predict the remaining seconds of a cell from finished ones of its kind, data, model and device type.

    Finished cells of the same variant are preferred. ``elapsed`` is the time of earlier attempts. None if unknown.
    """
    similar = [k for k in finished if (k["kind"], k["data"], k["model"]) == (cell.kind, cell.data, cell.model)]
    similar = [k for k in similar if k["device"].startswith(device)]
    similar = [k for k in similar if k["variant"] == cell.variant] or similar
    if not similar:
        return None
    return max(0.0, sum(k["seconds"] for k in similar) / len(similar) - elapsed)


def run_cells(
    cells: Sequence[Cell],
    store: CellStore,
    *,
    device: str = "auto",
    limits: TimeBudget | None = None,
    keep: bool = False,
    callbacks: Callback = NO_CALLBACK,
    should_continue: Callable[[], bool] = lambda: True,
    workers: int = 1,
) -> WorkResult:
    """Run cells in this process, one of ``workers``. A cell that fails with a `CordgtError` does not stop the others.

    A signal stops the call: a training saves a checkpoint after its batch, anything else starts again next time.
    """
    result = WorkResult()
    try:
        with raise_on_signal():
            _run_unfinished(
                cells, store, result, device, limits or TimeBudget(), keep, callbacks, should_continue, workers
            )
    except SignalInterrupt as interrupted:  # between two cells
        result.stopped = TrainingStopped(interrupted.signum)
    store.remove_empty_folders()
    return result


def _run_unfinished(
    cells: Sequence[Cell],
    store: CellStore,
    result: WorkResult,
    device: str,
    limits: TimeBudget,
    keep: bool,
    callbacks: Callback,
    should_continue: Callable[[], bool],
    workers: int,
) -> None:
    device_type = choose_device(device).type
    for cell in cells:
        if limits.seconds_left <= 0 or not should_continue():
            result.out_of_time = limits.seconds_left <= 0
            break
        if store.read(cell) is not None:
            continue
        expected = None
        if limits.seconds < math.inf:
            expected = expected_seconds(cell, store.read_all(cell.kind), device_type, store.elapsed_seconds(cell))
        with store.claim(cell) as is_ours:
            if not is_ours:
                result.n_claimed_elsewhere += 1
                continue
            if store.read(cell) is not None:  # another process finished it in the meantime
                store.remove_run(cell, keep=True)
                continue
            if not limits.allows(expected):
                result.n_too_long += 1
                continue
            callbacks.on_message(f"{cell.label}: {'resumes' if store.elapsed_seconds(cell) > 0 else 'starts'}")
            callbacks.on_run_start(cell.label)
            try:
                with time_limit(limits.deadline):
                    cell_result = run_cell(cell, store, device=device, callbacks=callbacks, keep=keep, workers=workers)
            except (TrainingStopped, SignalInterrupt) as signaled:
                stopped = signaled if isinstance(signaled, TrainingStopped) else TrainingStopped(signaled.signum)
                result.out_of_time = stopped.is_timeout
                result.stopped = None if stopped.is_timeout else stopped
                saved = f", saved after {stopped.resume_point}" if stopped.resume_point else ""
                callbacks.on_message(f"{cell.label}: stopped{saved}")
                break
            except CordgtError as error:
                result.failures[cell.label] = str(error)
                callbacks.on_message(f"Error: {cell.label}: {error}")
                continue
            result.n_finished += 1
            callbacks.on_run_end(cell.label, {"seconds": cell_result["seconds"], "metrics": _summary(cell_result)})


def _summary(result: CellResult) -> dict[str, Any]:
    """Return the metrics that a progress line shows."""
    test = result["figures"].get("test", {})
    if result["kind"] == "ranking":
        return {"MRR": test["transductive"]["mrr"]}
    if "auc" in test:
        return {"AUC": test["auc"]}
    return {setting: test[setting]["ap"] for setting in SETTINGS if setting in test}


# -------------------- several processes


def run_cells_in_processes(
    cells: Sequence[Cell],
    store: CellStore,
    workers: int,
    *,
    device: str = "auto",
    limits: TimeBudget | None = None,
    keep: bool = False,
    callbacks: Callback = NO_CALLBACK,
) -> WorkResult:
    """Call `run_cells` in several processes, distributed over the GPUs.

    A signal to this process is forwarded once: each training saves a checkpoint after its batch.
    """
    limits, total = limits or TimeBudget(), WorkResult()
    callbacks.on_stage_start("trainings", len(cells))
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    n_threads = max(1, torch.get_num_threads() // workers)
    processes = []
    for number, worker_device in enumerate(_assign_devices(device, workers)):
        options = {"device": worker_device, "keep": keep, "n_threads": n_threads, "workers": workers}
        options |= {"seconds_left": limits.seconds_left, "seconds": limits.seconds}
        arguments = (LoadedPlugins(), number, list(cells), store, options, messages)
        process = context.Process(target=_worker, args=arguments)
        process.start()
        processes.append(process)
    with defer_signals() as stop:
        is_forwarded = False
        while any(process.is_alive() for process in processes):
            if stop.signum is not None and not is_forwarded:
                is_forwarded, total.stopped = True, TrainingStopped(stop.signum)
                for process in processes:
                    process.terminate()
            _relay_message(messages, total, callbacks, timeout=0.2)
        while _relay_message(messages, total, callbacks, timeout=0.0):
            pass
    for process in processes:
        process.join()
        if process.exitcode not in (0, None) and total.stopped is None:
            total.failures.setdefault(
                f"process {process.pid}", f"the worker process ended with exit code {process.exitcode}"
            )
    store.remove_empty_folders()
    return total


def _assign_devices(device: str, workers: int) -> list[str]:
    n_gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return [f"cuda:{k % n_gpus}" if n_gpus > 1 else device for k in range(workers)]


def _relay_message(messages: Any, total: WorkResult, callbacks: Callback, timeout: float) -> bool:
    """Handle one message of the workers; return False if none comes within ``timeout`` seconds."""
    try:
        message = messages.get(timeout=timeout) if timeout else messages.get_nowait()
    except queue.Empty:
        return False
    if isinstance(message, WorkResult):
        total.failures |= message.failures
        total.n_too_long = max(total.n_too_long, message.n_too_long)
        total.out_of_time |= message.out_of_time
        return True
    for method, *arguments in message:
        getattr(callbacks, method)(*arguments)
        if method == "on_run_end":
            total.n_finished += 1
            callbacks.on_step(1)
    return True


def _worker(
    _plugins: LoadedPlugins, number: int, cells: list[Cell], store: CellStore, options: dict[str, Any], messages: Any
) -> None:
    """Run cells in a worker process, which ignores Ctrl-C and obeys the SIGTERM that the main process forwards.

    SIGTERM stops a training after its batch, and anything else like Ctrl-C: a killed process could leave the queue
    locked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(options["n_threads"])
    parent = parent_pid()
    exit_with_parent(parent)
    limits = TimeBudget(time.monotonic() + options["seconds_left"], options["seconds"])
    result = WorkResult()
    time.sleep(0.05 * number)  # claim the first cells in their order
    try:
        result = run_cells(
            cells,
            store,
            device=options["device"],
            limits=limits,
            keep=options["keep"],
            callbacks=RelayCallback(messages),
            should_continue=lambda: os.getppid() == parent,
            workers=options["workers"],
        )
    except KeyboardInterrupt:
        pass  # between two trainings or while reading data: nothing to save
    except Exception as error:  # a bug: the main process reports it, the other workers continue
        traceback.print_exc()
        result.failures[f"worker {number}"] = f"{type(error).__name__}: {error}"
    messages.put(replace(result, stopped=None))  # this exception cannot be unpickled
    with suppress(OSError, ValueError):
        messages.close()
        messages.join_thread()
