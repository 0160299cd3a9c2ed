"""`recommend_all` in several processes of one machine, each with one thread and its own copy of the model."""

from __future__ import annotations

import multiprocessing
import signal
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import CordgtError, DataError, RunError, SettingError
from cordgt.inference.part_files import PartFiles, WritePart, parse_pattern, write_parquet
from cordgt.inference.recommend_all import (
    MANIFEST_SUBJECTS,
    PartProgress,
    RecommendAllJob,
    RecommendAllRequest,
    RecommendAllResult,
    Shard,
    recommend_all,
    unfinished_parts,
    write_part,
)
from cordgt.runtime.worker_processes import exit_with_parent, parent_pid

ERRORS = {error.__name__: error for error in (CordgtError, DataError, RunError, SettingError)}


def recommend_all_in_processes(
    request: RecommendAllRequest,
    output: str | Path,
    workers: int,
    *,
    shard: Shard | None = None,
    write: WritePart = write_parquet,
    callbacks: Callback = NO_CALLBACK,
    job: RecommendAllJob | None = None,
) -> RecommendAllResult:
    """`recommend_all` with ``workers`` processes. The files are the same.

    If a process fails, its error is raised, the others are ended, and finished parts stay.
    """
    shard = Shard() if shard is None else shard
    job = request.load() if job is None else job
    files = PartFiles(parse_pattern(output), job.manifest, MANIFEST_SUBJECTS)
    files.prepare()
    todo = unfinished_parts(files, shard)
    workers = min(workers, len(todo))
    if workers < 2:
        return recommend_all(request, output, shard=shard, write=write, callbacks=callbacks, job=job)
    progress = PartProgress(callbacks, job, todo, shard)
    context = multiprocessing.get_context("spawn")
    processes: dict[Any, Any] = {}  # by the parent's end of the pipe
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, request, files, write), daemon=True)
            process.start()
            theirs.close()
            processes[ours] = process
            ours.send(todo.pop(0))
        while processes:
            for pipe in wait(list(processes)):
                _handle(pipe, processes, todo, progress)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()
    return progress.result(files)


def _handle(pipe: Any, processes: dict[Any, Any], todo: list[int], progress: PartProgress) -> None:
    """Take one message of a worker: ("step", sources done), ("part",) or ("error", kind, text)."""
    try:
        kind, *values = pipe.recv()
    except (EOFError, OSError):
        process = processes[pipe]
        process.join()
        raise RunError(
            f"A worker process ended with exit code {process.exitcode}, perhaps because memory ran out. Finished parts "
            "are kept. Repeat the command with fewer --workers."
        ) from None
    if kind == "step":
        progress.on_step(values[0])
    elif kind == "error":
        raise ERRORS.get(values[0], RuntimeError)(values[1])
    else:
        progress.on_part_end()
        if todo:
            pipe.send(todo.pop(0))
        else:
            pipe.send(None)
            processes.pop(pipe).join()


class _RelaySteps(Callback):
    """Sends the steps of a worker to the main process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def on_step(self, n: int, loss: float | None = None) -> None:
        self.pipe.send(("step", n))


def _work(pipe: Connection, request: RecommendAllRequest, files: PartFiles, write: WritePart) -> None:
    """Write the parts whose numbers come through the pipe, until None comes or the main process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a parent that ignores it passes that on
    exit_with_parent(parent_pid())
    with suppress(EOFError, BrokenPipeError):  # the main process is gone
        try:
            job, relay = request.load(), _RelaySteps(pipe)
            while (number := pipe.recv()) is not None:
                write_part(job, files, number, write, relay)
                pipe.send(("part",))
        except CordgtError as error:
            pipe.send(("error", type(error).__name__, str(error)))
        except MemoryError as error:
            pipe.send(("error", "RunError", f"Memory ran out ({error}). Repeat the command with fewer --workers."))
