"""Data-parallel training: each process computes a shard of every batch, and all hold the same weights.

A query sees a pure function of ``cut``, and random numbers are hashes, so processes exchange only sums of gradients and
scores. ``torchrun`` or `cordgt.runtime.launch` starts the processes; otherwise there is one.

CPU tensors use Gloo, GPU tensors NCCL. A lost process is noticed at once if its system reports it, otherwise after
``CORDGT_WAIT_MINUTES``.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cordgt.errors import RunError, SettingError
from cordgt.runtime.launch import PARENT_PIPE, RENDEZVOUS

T = TypeVar("T")

TIMEOUT_VARIABLE = "CORDGT_WAIT_MINUTES"  # timeout of a collective operation
REPORT_DELAY = 0.5  # seconds that other processes wait, so that the main process reports an error that all have


class ProcessLostError(RunError):
    """Another process of this training has ended or does not respond."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one training, and the rank of this one. Only rank 0, the main process, writes and prints.

    Every method but `shard` is a collective: all processes must call it, in the same order. ProcessLostError if one
    does not.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0

    def shard(self, n: int, chunk: int = 1) -> slice:
        """Return this process's slice of ``n`` items, cut between chunks of ``chunk`` items; it may be empty."""
        n_chunks = -(-n // chunk)
        start, stop = (min(n, n_chunks * rank // self.world_size * chunk) for rank in (self.rank, self.rank + 1))
        return slice(start, stop)

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world_size > 1:
            _run_collective(lambda: dist.all_reduce(tensor))
        return tensor

    def all_reduce_max(self, value: int) -> int:
        """Return the largest of the processes' numbers."""
        if self.world_size == 1:
            return value
        result = torch.tensor(value)
        _run_collective(lambda: dist.all_reduce(result, dist.ReduceOp.MAX))
        return int(result)

    def broadcast(self, value: T) -> T:
        """Return the main process's value in every process."""
        if self.world_size == 1:
            return value
        values: list[Any] = [value]
        _run_collective(lambda: dist.broadcast_object_list(values, src=0, device=torch.device("cpu")))
        return values[0]

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        _run_collective(lambda: dist.all_gather_object(values, value))
        return values

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the main process's tensors, on the CPU, in every process. Other processes may pass none."""
        if self.world_size == 1:
            return dict(tensors)
        ready = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
        layouts = self.broadcast({name: (x.shape, x.dtype) for name, x in ready.items()})
        if not self.is_main_process:
            ready = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in layouts.items()}
        for x in ready.values():
            if x.numel():
                _run_collective(lambda x=x: dist.broadcast(x.view(-1).view(torch.uint8), src=0))  # type: ignore[misc]
        return ready


def _run_collective(collective: Callable[[], Any]) -> None:
    """Call ``collective``; ProcessLostError for a backend error. Out-of-memory errors pass through."""
    try:
        collective()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "allocate memory" in str(error):  # out of host memory
            raise
        if _ignores_sigterm_after_loss and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ProcessLostError(
            f"Another process of this training ended or does not respond: {_reason(error)}."
        ) from None


def _reason(error: Exception) -> str:
    """Return a library's message without source locations and guesses."""
    first = re.sub(r"^(\[\S*:\d+\]\s*)+", "", str(error).split("\n")[0])
    return " ".join(first.partition(" This is typically")[0].split()).rstrip(".")[:300]


SINGLE_PROCESS = ProcessGroup()
_group = SINGLE_PROCESS
_ignores_sigterm_after_loss = False


def ignore_sigterm_after_loss() -> None:
    """Ignore SIGTERM once another process is lost, for a command that ends soon anyway.

    torchrun then terminates the remaining processes; this leaves them time to save and to report the error.
    """
    global _ignores_sigterm_after_loss
    _ignores_sigterm_after_loss = True


def is_distributed() -> bool:
    """Return whether this process was started as one of several."""
    has_rendezvous = RENDEZVOUS in os.environ or {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return has_rendezvous and "RANK" in os.environ and _env_int("WORLD_SIZE", 1) > 1


def current_group() -> ProcessGroup:
    """Return the group that this process has joined, or `SINGLE_PROCESS`."""
    return _group


def init_process_group() -> ProcessGroup:
    """Join the other processes on the first call, and return the group.

    `SINGLE_PROCESS` if the process was started alone. RunError if the processes do not find each other.
    """
    global _group
    if _group.world_size > 1 or not is_distributed():
        return _group
    rank, size = _env_int("RANK", 0), _env_int("WORLD_SIZE", 1)
    if RENDEZVOUS in os.environ:
        rendezvous: dict[str, Any] = {
            "init_method": f"file://{os.environ[RENDEZVOUS]}",
            "rank": rank,
            "world_size": size,
        }
        _exit_with_parent(_env_int(PARENT_PIPE, -1))
    else:
        rendezvous = {"init_method": "env://"}
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        if not dist.is_initialized():  # the calling program may have done so
            dist.init_process_group(backend, timeout=timedelta(minutes=_timeout_minutes()), **rendezvous)
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"The {size} processes of this training cannot connect to each other: {_reason(error)}."
        ) from None
    _group = ProcessGroup(dist.get_rank(), dist.get_world_size())
    return _group


def destroy_process_group() -> None:
    """Leave the group. Call it only after success: it waits for the other processes."""
    global _group
    if _group.world_size > 1 and dist.is_initialized():
        dist.destroy_process_group()
    _group = SINGLE_PROCESS


def local_device(name: str) -> str:
    """Return this process's device: if distributed, ``cuda`` and ``auto`` mean the GPU of its local rank.

    SettingError if the machine has more processes than GPUs.
    """
    if not is_distributed() or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    local_rank, n_gpus = _env_int("LOCAL_RANK", 0), torch.cuda.device_count()
    if local_rank >= n_gpus:
        raise SettingError(
            f"There are more processes than GPUs ({n_gpus}) on {socket.gethostname()}. Use --device cpu."
        )
    return f"cuda:{local_rank}"


def check_same_inputs(group: ProcessGroup, inputs: Mapping[str, str]) -> None:
    """Raise RunError if a process was started with other data or settings than the main process."""
    all_inputs = group.all_gather((socket.gethostname(), dict(inputs)))
    first = all_inputs[0][1]
    for rank, (host, own) in enumerate(all_inputs):
        names = [name for name in first.keys() | own.keys() if first.get(name) != own.get(name)]
        if names:
            differences = "; ".join(
                f"{k} is {own.get(k, 'not set')} (process 0: {first.get(k, 'not set')})" for k in sorted(names)
            )
            raise RunError(
                f"The processes have different inputs. In process {rank} on {host}, {differences}. "
                "Start all processes with the same command on the same data."
            )


def claim_error_report(error: BaseException) -> str | None:
    """Return a prefix for the error message if this process should print it, or None if another process does.

    The first process to call this prints. The others wait `REPORT_DELAY` first: so the main process reports an error
    that all have, and the process that failed reports before the others notice its loss.
    """
    if _group.world_size == 1:
        return ""
    if not _group.is_main_process or isinstance(error, ProcessLostError):
        time.sleep(REPORT_DELAY)
    try:
        first = dist.distributed_c10d._get_default_store().add("error_reported", 1) == 1
    except RuntimeError:  # the process that held the store has ended
        first = _group.rank <= 1
    if not first:
        return None
    return "" if _group.is_main_process else f"process {_group.rank} on {socket.gethostname()}: "


def _exit_with_parent(pipe: int) -> None:
    """Terminate this process when its parent, which holds the other end of ``pipe``, has ended for any reason."""
    if pipe < 0:
        return

    def wait() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _env_int(name: str, default: int) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        raise SettingError(f"{name}={os.environ[name]} is not an integer. torchrun sets it.") from None


def _timeout_minutes() -> float:
    try:
        minutes = float(os.environ.get(TIMEOUT_VARIABLE, 10))
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise SettingError(
            f"{TIMEOUT_VARIABLE}={os.environ[TIMEOUT_VARIABLE]}: a number of minutes above 0 is expected."
        )
    return minutes
