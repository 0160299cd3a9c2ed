"""Working off cells: in this process or in several, within a limit of time, each cell by one process at a time.

Processes do not divide the cells among themselves: each goes through the list and takes the first that is neither
finished nor claimed. So two of them, two calls, or two machines on one folder need not know of each other.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import CordgtError
from cordgt.experiments.cells import Cell, Store
from cordgt.experiments.measurements import run_cell
from cordgt.runtime.signals import Interrupted, Stopped, interruptible, listening, time_limit
from cordgt.tasks.run_metrics import SETTINGS
from cordgt.training.devices import choose_device


@dataclass
class Outcome:
    """How the cells of a call ended."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # label -> why
    elsewhere: int = 0  # claimed by another process
    unfit: int = 0  # not begun: they would have taken longer than the time left
    stopped: Stopped | None = None  # by a signal
    out_of_time: bool = False


@dataclass(frozen=True)
class Limits:
    """When to stop, on the monotonic clock: ``ends``; and how long all of it may take."""

    ends: float = math.inf
    seconds: float = math.inf

    @classmethod
    def of_minutes(cls, minutes: float | None) -> Limits:
        return cls() if minutes is None else cls(time.monotonic() + 60 * minutes, 60 * minutes)

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    def fits(self, expected: float | None) -> bool:
        """Whether a cell may be begun: it ends in time, or nobody knows, or no call of this length could hold it."""
        return expected is None or expected <= self.left or expected > self.seconds


def expected_seconds(
    cell: Cell, finished: Sequence[dict[str, Any]], device: str = "cpu", spent: float = 0.0
) -> float | None:
    """How long a cell will take, by finished ones of its kind, data and model, less what was spent; None if unknown.

    ``device``: its type, cpu or cuda; cells of the other say nothing. A cell of its variant says more than others.
    """
    alike = [k for k in finished if (k["kind"], k["data"], k["model"]) == (cell.kind, cell.data, cell.model)]
    alike = [k for k in alike if k["device"].startswith(device)]
    same = [k for k in alike if k["variant"] == cell.variant] or alike
    if not same:
        return None
    return max(0.0, sum(k["seconds"] for k in same) / len(same) - spent)


def work(
    cells: Sequence[Cell],
    store: Store,
    *,
    device: str = "auto",
    limits: Limits | None = None,
    keep: bool = False,
    callbacks: Callback = NO_CALLBACK,
    go_on: Callable[[], bool] = lambda: True,
) -> Outcome:
    """Work off cells in this process. A cell that fails for a reason a person can mend does not stop the others.

    A signal ends it wherever it is: a training saves after its batch, anything else begins anew next time.
    """
    outcome = Outcome()
    try:
        with interruptible():
            _work_off(cells, store, outcome, device, limits or Limits(), keep, callbacks, go_on)
    except Interrupted as interrupted:  # between two cells
        outcome.stopped = Stopped(interrupted.asked)
    store.sweep()
    return outcome


def _work_off(
    cells: Sequence[Cell],
    store: Store,
    outcome: Outcome,
    device: str,
    limits: Limits,
    keep: bool,
    callbacks: Callback,
    go_on: Callable[[], bool],
) -> None:
    on = choose_device(device).type
    for cell in cells:
        if limits.left <= 0 or not go_on():
            outcome.out_of_time = limits.left <= 0
            break
        if store.read(cell) is not None:
            continue
        expected = None
        if limits.seconds < math.inf:
            expected = expected_seconds(cell, store.every(cell.kind), on, store.spent(cell))
        with store.claimed(cell) as ours:
            if not ours:
                outcome.elsewhere += 1
                continue
            if store.read(cell) is not None:  # finished by another process meanwhile
                store.clear(cell, keep=True)
                continue
            if not limits.fits(expected):
                outcome.unfit += 1
                continue
            callbacks.on_message(f"{cell.label}: {'goes on' if store.spent(cell) > 0 else 'begins'}")
            callbacks.on_run_start(cell.label)
            try:
                with time_limit(limits.ends):
                    found = run_cell(cell, store, device=device, callbacks=callbacks, keep=keep)
            except (Stopped, Interrupted) as ended:
                stopped = ended if isinstance(ended, Stopped) else Stopped(ended.asked)
                outcome.out_of_time = stopped.by_clock
                outcome.stopped = None if stopped.by_clock else stopped
                saved = f", saved after {stopped.saved}" if stopped.saved else ""
                callbacks.on_message(f"{cell.label}: stopped{saved}")
                break
            except CordgtError as error:
                outcome.failed[cell.label] = str(error)
                callbacks.on_message(f"Error: {cell.label}: {error}")
                continue
            outcome.done += 1
            callbacks.on_run_end(cell.label, {"seconds": found["seconds"], "figures": _short(found)})


def _short(found: dict[str, Any]) -> dict[str, Any]:
    """The figures that a line has room for."""
    test = found["figures"].get("test", {})
    if found.get("kind") == "ranking":
        return {"MRR": test["transductive"]["mrr"]}
    if "auc" in test:
        return {"AUC": test["auc"]}
    return {setting: test[setting]["ap"] for setting in SETTINGS if setting in test}


# -------------------- several processes


def work_in_processes(
    cells: Sequence[Cell],
    store: Store,
    workers: int,
    *,
    device: str = "auto",
    limits: Limits | None = None,
    keep: bool = False,
    callbacks: Callback = NO_CALLBACK,
) -> Outcome:
    """`work` in several processes at once; on a machine with several GPUs they are spread over them.

    A signal to this process is passed on once: each training saves after its batch.
    """
    limits, total = limits or Limits(), Outcome()
    callbacks.on_stage_start("trainings", len(cells))
    context = multiprocessing.get_context("spawn")
    said: Any = context.Queue()
    share = max(1, torch.get_num_threads() // workers)
    started = []
    for number, own in zip(range(workers), _devices(device, workers), strict=True):
        options = {"device": own, "left": limits.left, "whole": limits.seconds, "keep": keep, "threads": share}
        process = context.Process(target=_worker, args=(number, list(cells), store, options, said))
        process.start()
        started.append(process)
    with listening() as stop:
        passed_on = False
        while any(process.is_alive() for process in started):
            if stop.asked is not None and not passed_on:
                passed_on, total.stopped = True, Stopped(stop.asked)
                for process in started:
                    process.terminate()
            _hear(said, total, callbacks, wait=0.2)
        while _hear(said, total, callbacks, wait=0.0):
            pass
    for process in started:
        process.join()
        if process.exitcode not in (0, None) and total.stopped is None:
            total.failed.setdefault(f"process {process.pid}", f"ended with code {process.exitcode}")
    store.sweep()
    return total


def _devices(device: str, workers: int) -> list[str]:
    several = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return [f"cuda:{k % several}" if several > 1 else device for k in range(workers)]


def _hear(said: Any, total: Outcome, callbacks: Callback, wait: float) -> bool:
    """Take one message of the workers, if there is one within ``wait`` seconds. True: there was one."""
    try:
        message = said.get(timeout=wait) if wait else said.get_nowait()
    except queue.Empty:
        return False
    if isinstance(message, Outcome):
        total.failed |= message.failed
        total.unfit = max(total.unfit, message.unfit)
        total.out_of_time |= message.out_of_time
        return True
    for method, *arguments in message:
        getattr(callbacks, method)(*arguments)
        if method == "on_run_end":
            total.done += 1
            callbacks.on_step(1)
    return True


class RelayCallback(Callback):
    """Sends runs, epochs and messages of a worker to the first process.

    A message is a list of calls, each the name of a method and its arguments. The epochs of several workers mix, so
    each comes with the name of its run.
    """

    def __init__(self, queue: Any) -> None:
        self.queue, self.run = queue, ""

    def on_run_start(self, name: str) -> None:
        self.run = name

    def on_run_end(self, name: str, result: dict[str, Any]) -> None:
        self.queue.put([("on_run_end", name, result)])

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        self.queue.put([("on_run_start", self.run), ("on_epoch_end", record)])

    def on_message(self, text: str) -> None:
        self.queue.put([("on_message", text)])


def _end_with(parent: int) -> None:
    """Stop this process as a signal would where the first one is gone, so that nothing trains on unseen."""
    while os.getppid() == parent:
        time.sleep(2)
    os.kill(os.getpid(), signal.SIGTERM)


def _worker(number: int, cells: list[Cell], store: Store, options: dict[str, Any], said: Any) -> None:
    """One of the processes. Ctrl-C reaches all of them at once: only SIGTERM counts here, which the first passes on.

    It ends a training after its batch, and anything else as Ctrl-C would: killed outright, a process could take a lock
    of the queue with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(options["threads"])
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    limits = Limits(time.monotonic() + options["left"], options["whole"])
    outcome = Outcome()
    time.sleep(0.05 * number)  # so that the first cells are claimed in their order
    try:
        outcome = work(
            cells,
            store,
            device=options["device"],
            limits=limits,
            keep=options["keep"],
            callbacks=RelayCallback(said),
            go_on=lambda: os.getppid() == parent,
        )
    except KeyboardInterrupt:
        pass  # between two trainings, or while data was read: nothing to save
    except Exception as error:  # a mistake of ours: told by the first process, and the others go on
        traceback.print_exc()
        outcome.failed[f"worker {number}"] = f"{type(error).__name__}: {error}"
    said.put(replace(outcome, stopped=None))  # an exception with arguments of its own does not survive the queue
    with suppress(OSError, ValueError):
        said.close()
        said.join_thread()
