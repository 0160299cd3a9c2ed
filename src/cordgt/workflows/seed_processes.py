"""Train several seeds on one GPU at once, each in a process of its own.

A small model leaves much of a GPU idle, and a training is more than its GPU's work: processes overlap both. Each run
is a call of `train_run`, so it equals a run of its own, to the bit. Where NVIDIA's Multi-Process Service is installed,
the processes' kernels run at the same time; otherwise the GPU switches between the processes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cordgt.callbacks import Callback
from cordgt.errors import CordgtError, RunError
from cordgt.events.stream import EventStream
from cordgt.plugins import LoadedPlugins
from cordgt.runtime.distributed import current_group
from cordgt.runtime.relay import RelayCallback, exit_with_parent
from cordgt.runtime.signals import TrainingStopped, defer_signals
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.devices import choose_device
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import Settings
from cordgt.workflows.train import train_run

MPS_CONTROL = "nvidia-cuda-mps-control"
COMPUTE_MODE, SHARED_MODE = 20, 0  # of the CUDA driver: a device attribute, and its value for shared use


def can_share_gpu(stream: EventStream, device: str, options: Mapping[str, Any]) -> bool:
    """Return whether runs may train at once: on a GPU that processes may share, with a stream in memory."""
    is_simple = stream.backing is None and isinstance(options.get("init"), str | Path | None)
    is_cuda = choose_device(device).type == "cuda"
    return is_simple and is_cuda and current_group().world_size == 1 and _allows_several_processes()


def _allows_several_processes() -> bool:
    """Return whether the GPU is in the default compute mode; in an exclusive mode only one process may use it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    mode = ctypes.c_int(-1)
    return driver.cuDeviceGetAttribute(ctypes.byref(mode), COMPUTE_MODE, 0) == 0 and mode.value == SHARED_MODE


def train_in_processes(
    stream: EventStream, by_folder: Mapping[str, Settings], out: Path, callbacks: Callback, options: dict[str, Any]
) -> list[RunMetrics]:
    """Train a run for each entry, all at once, and return their metrics in the same order.

    ``options`` are those of `train_run`. A signal is forwarded: each training saves a checkpoint after its batch.
    RunError if a run fails; the others are stopped, and `--resume` continues them.
    """
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    failures: dict[str, str] = {}
    with defer_signals() as stop, shared_gpu():
        workers, inboxes = {}, []
        for name, settings in by_folder.items():
            inbox: Any = context.Queue()  # unlike an argument, what it sends does not wait until the process is ready
            workers[name] = context.Process(target=_train, args=(LoadedPlugins(), inbox, messages))
            workers[name].start()
            inbox.put((name, stream, settings, out / name, options))
            inbox.cancel_join_thread()
            inboxes.append(inbox)  # it must live until the process has opened it
        try:
            is_stopping = False
            while any(worker.is_alive() for worker in workers.values()):
                failed = [name for name, worker in workers.items() if worker.exitcode]
                if (failed or stop.signum is not None) and not is_stopping:
                    is_stopping = True
                    for worker in workers.values():
                        worker.terminate()
                _relay(messages, callbacks, failures, timeout=0.1)
            while _relay(messages, callbacks, failures, timeout=0.0):
                pass
        finally:  # after an error of a callback
            for worker in workers.values():
                worker.terminate()
                worker.join()
    if stop.signum is not None:
        raise TrainingStopped(stop.signum)
    for name, worker in workers.items():
        if name in failures or worker.exitcode:
            reason = failures.get(name, f"its process ended with exit code {worker.exitcode}.")
            raise RunError(f"{name}: {reason}")
    return [RunFolder(out / name).read_metrics() for name in by_folder]


def _relay(messages: Any, callbacks: Callback, failures: dict[str, str], timeout: float) -> bool:
    """Handle one message of the workers; return False if none comes within ``timeout`` seconds."""
    try:
        calls = messages.get(timeout=timeout) if timeout else messages.get_nowait()
    except queue.Empty:
        return False
    for method, *arguments in calls:
        if method == "failure":
            failures.setdefault(*arguments)
        else:
            getattr(callbacks, method)(*arguments)
    return True


def _train(_plugins: LoadedPlugins, inbox: Any, messages: Any) -> None:
    """Train one run in a worker process, which ignores Ctrl-C and obeys the SIGTERM that the main process forwards."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    relay, code, name = RelayCallback(messages), 0, ""
    try:
        name, stream, settings, out, options = inbox.get()
        relay.on_run_start(name)
        run = train_run(stream, settings, out, callbacks=relay, **options)
        relay.on_run_end(name, dict(run.metrics))
    except KeyboardInterrupt:  # a training that stops has saved a checkpoint
        pass
    except CordgtError as error:
        messages.put([("failure", name, str(error))])
        code = 1
    messages.close()
    messages.join_thread()
    raise SystemExit(code)


@contextmanager
def shared_gpu() -> Iterator[None]:
    """Run NVIDIA's Multi-Process Service for the processes that start within the block, if it is installed.

    A service of the user's own, named by ``CUDA_MPS_PIPE_DIRECTORY``, is used as it is.
    """
    control = shutil.which(MPS_CONTROL)
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="cordgt-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in own.values():
            Path(path).mkdir()
        started = subprocess.run([control, "-d"], env=os.environ | own, capture_output=True, check=False)
        if started.returncode:
            yield
            return
        os.environ |= own
        try:
            yield
        finally:
            for name in own:
                del os.environ[name]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([control], input=b"quit\n", env=os.environ | own, capture_output=True, timeout=20)
