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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from cordgt.callbacks import Callback
from cordgt.errors import CordgtError, RunError, is_out_of_memory
from cordgt.events.stream import EventStream
from cordgt.plugins import LoadedPlugins
from cordgt.runtime.distributed import current_group
from cordgt.runtime.signals import TrainingStopped, defer_signals
from cordgt.runtime.worker_processes import RelayCallback, exit_with_parent, parent_pid
from cordgt.tasks.run_metrics import RunMetrics
from cordgt.training.devices import choose_device
from cordgt.training.run_folder import RunFolder
from cordgt.training.settings import Settings
from cordgt.workflows.train import train_run

MPS_CONTROL = "nvidia-cuda-mps-control"
# Runs the service until the standard input closes, also because this process was killed; then removes its folder.
MPS_KEEPER = """
trap 'rm -rf "$1"' EXIT
mkdir "$1/pipe" "$1/log" && "$0" -d > /dev/null || exit 1
echo started
read -r _
echo quit | "$0" > /dev/null
"""
MAX_AT_ONCE = 6  # trainings on one GPU: more gain little, and each needs memory
FAILED, OUT_OF_MEMORY = 1, 3  # exit codes of a worker process
COMPUTE_MODE, SHARED_MODE = 20, 0  # of the CUDA driver: a device attribute, and its value for shared use


class SharedGpuMemoryError(RunError):
    """Memory ran out while several runs shared a GPU. One after the other may fit."""


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
    """Train a run for each entry, `MAX_AT_ONCE` at a time, and return their metrics in the same order.

    ``options`` are those of `train_run`. A signal is forwarded: each training saves a checkpoint after its batch.
    RunError if a run fails, SharedGpuMemoryError if it needs more memory; the others are stopped, and `--resume`
    continues them.
    """
    waiting = list(by_folder.items())
    failures: dict[str, str] = {}
    failed: dict[str, int] = {}  # exit codes of those that failed first: we end the others
    with defer_signals() as stop, shared_gpu(), _Workers() as workers:
        is_stopping = False
        while waiting or workers.n_alive:
            if not is_stopping:
                failed = workers.exit_codes()
                is_stopping = bool(failed) or stop.signum is not None
                if is_stopping:
                    waiting.clear()
                    workers.terminate()
            while waiting and workers.n_alive < MAX_AT_ONCE:
                name, settings = waiting.pop(0)
                workers.start(name, (name, stream, settings, out / name, options))
            _relay(workers.messages, callbacks, failures, timeout=0.1)
        while _relay(workers.messages, callbacks, failures, timeout=0.0):
            pass
    if stop.signum is not None:
        raise TrainingStopped(stop.signum)
    codes = failed or workers.exit_codes()
    failures = failures or {name: f"its process ended with exit code {code}." for name, code in codes.items()}
    if failures:
        name, reason = next(iter(failures.items()))
        kind = SharedGpuMemoryError if OUT_OF_MEMORY in codes.values() else RunError
        raise kind(f"{name}: {reason}")
    return [RunFolder(out / name).read_metrics() for name in by_folder]


class _Workers:
    """The worker processes, and the queue of their messages."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.messages: Any = self.context.Queue()
        self.processes: dict[str, Any] = {}
        self.inboxes: list[Any] = []  # each must live until its process has opened it

    def start(self, name: str, request: tuple[Any, ...]) -> None:
        content = bytes(ForkingPickler.dumps(request))  # an error here, not in the thread of the queue
        inbox: Any = self.context.Queue()  # unlike an argument, what it sends does not wait until the process is ready
        process = self.context.Process(target=_train, args=(LoadedPlugins(), inbox, self.messages))
        self.processes[name] = process
        process.start()
        inbox.put(content)
        inbox.cancel_join_thread()
        self.inboxes.append(inbox)

    @property
    def n_alive(self) -> int:
        return sum(process.is_alive() for process in self.processes.values())

    def exit_codes(self) -> dict[str, int]:
        """Return the exit codes of the processes that have failed."""
        return {name: process.exitcode for name, process in self.processes.items() if process.exitcode}

    def terminate(self) -> None:
        for process in self.processes.values():
            process.terminate()

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes, for example after an error of a callback. Their last messages are read, or they wait."""
        self.terminate()
        while self.n_alive:
            with suppress(queue.Empty):
                self.messages.get(timeout=0.1)
        for process in self.processes.values():
            process.join()


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
    exit_with_parent(parent_pid())
    relay, code, name = RelayCallback(messages), 0, ""
    try:
        name, stream, settings, out, options = ForkingPickler.loads(inbox.get())
        relay.on_run_start(name)
        run = train_run(stream, settings, out, callbacks=relay, **options)
        relay.on_run_end(name, dict(run.metrics))
    except KeyboardInterrupt:  # a training that stops has saved a checkpoint
        pass
    except CordgtError as error:
        messages.put([("failure", name, str(error))])
        code = OUT_OF_MEMORY if error.__context__ is not None and is_out_of_memory(error.__context__) else FAILED
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it has ended already, and still sends its last message
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
    folder = tempfile.mkdtemp(prefix="cordgt-mps-")
    own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    keeper = subprocess.Popen(
        ["sh", "-c", MPS_KEEPER, control, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | own,
        start_new_session=True,  # Ctrl-C does not end it
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    is_started = keeper.stdout.readline() == b"started\n"
    if is_started:
        os.environ |= own
    try:
        yield
    finally:
        if is_started:
            for name in own:
                del os.environ[name]
        keeper.stdin.close()
        keeper.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(timeout=20)
