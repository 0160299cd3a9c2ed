"""Many processes, one training: each takes its part of every batch, and all of them keep the same weights.

What a query sees is a pure function of ``cut``, and draws are hashes, so processes need nothing of each other but sums:
of gradients, and of scores. They find each other as ``torchrun`` says, or `launch`; without either there is one alone.

Numbers on the CPU go through Gloo, on GPUs through NCCL. A process that is gone is noticed at once where its system
says so, else after ``CORDGT_WAIT_MINUTES``.
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

T = TypeVar("T")

MEETING = "CORDGT_MEETING"  # where processes of one machine meet, a file that `launch` names; torchrun has its own way
LIFELINE = "CORDGT_LIFELINE"  # a pipe that ends when the process that launched them does
WAIT = "CORDGT_WAIT_MINUTES"  # for a process that says nothing
POLITELY = 0.5  # seconds that others leave the first process to speak, where all have made the same mistake


class Lost(RunError):
    """Another process of this training is gone, or says nothing any more."""


@dataclass(frozen=True)
class Group:
    """The processes of one training, and which of them this is. The first one writes and speaks; ``rank`` is 0 there.

    Every method but `part` is a conversation: all processes call it, in the same order. `Lost` where one does not come.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def part(self, n: int, piece: int = 1) -> slice:
        """This process's part of ``n`` things in a row, whole pieces of them: some may get none where there are few."""
        pieces = -(-n // piece)
        start, stop = (min(n, pieces * rank // self.size * piece) for rank in (self.rank, self.rank + 1))
        return slice(start, stop)

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            _talking(lambda: dist.all_reduce(tensor))
        return tensor

    def largest(self, value: int) -> int:
        """The largest of the processes' numbers."""
        if self.size == 1:
            return value
        told = torch.tensor(value)
        _talking(lambda: dist.all_reduce(told, dist.ReduceOp.MAX))
        return int(told)

    def from_first(self, value: T) -> T:
        """What the first process has, whatever the others gave."""
        if self.size == 1:
            return value
        told: list[Any] = [value]
        _talking(lambda: dist.broadcast_object_list(told, src=0, device=torch.device("cpu")))
        return told[0]

    def from_all(self, value: T) -> list[T]:
        """What each process has, in order."""
        if self.size == 1:
            return [value]
        told: list[Any] = [None] * self.size
        _talking(lambda: dist.all_gather_object(told, value))
        return told

    def tensors_from_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`from_first` for tensors by name, of which others may have none yet; on the host."""
        if self.size == 1:
            return dict(tensors)
        ready = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
        kinds = self.from_first({name: (x.shape, x.dtype) for name, x in ready.items()})
        if not self.leads:
            ready = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in kinds.items()}
        for x in ready.values():
            if x.numel():
                _talking(lambda x=x: dist.broadcast(x.view(-1).view(torch.uint8), src=0))  # type: ignore[misc]
        return ready


def _talking(conversation: Callable[[], Any]) -> None:
    """`Lost` for what the libraries say of a process that does not answer. Memory that runs out is another matter."""
    try:
        conversation()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "allocate memory" in str(error):  # of the host
            raise
        if _outlives and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Lost(f"Another process of this training is gone or silent: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    """What a library said, without the places in its source, and without its guesses."""
    first = re.sub(r"^(\[\S*:\d+\]\s*)+", "", str(error).split("\n")[0])
    return " ".join(first.partition(" This is typically")[0].split()).rstrip(".")[:300]


ALONE = Group()
_joined = ALONE
_outlives = False


def outlive() -> None:
    """For a command, which ends soon: from the moment that another process is lost, SIGTERM is ignored.

    torchrun ends the others then; first it is said and saved.
    """
    global _outlives
    _outlives = True


def asked() -> bool:
    """Whether this process was started as one of several."""
    known = MEETING in os.environ or {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return known and "RANK" in os.environ and _number("WORLD_SIZE", 1) > 1


def current() -> Group:
    """The group that this process has joined; itself alone where it has joined none."""
    return _joined


def join() -> Group:
    """Meet the others, once; whoever was started alone stays alone. RunError where they do not find each other."""
    global _joined
    if _joined.size > 1 or not asked():
        return _joined
    rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if MEETING in os.environ:
        where: dict[str, Any] = {"init_method": f"file://{os.environ[MEETING]}", "rank": rank, "world_size": size}
        _live_with(_number(LIFELINE, -1))
    else:
        where = {"init_method": "env://"}
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        if not dist.is_initialized():  # a program around us may have done so
            dist.init_process_group(backend, timeout=timedelta(minutes=_minutes()), **where)
    except (RuntimeError, ValueError) as error:
        raise RunError(f"The {size} processes of this training do not find each other: {_reason(error)}.") from None
    _joined = Group(dist.get_rank(), dist.get_world_size())
    return _joined


def leave() -> None:
    """Part from the others, when all is well."""
    global _joined
    if _joined.size > 1 and dist.is_initialized():
        dist.destroy_process_group()
    _joined = ALONE


def own_device(name: str) -> str:
    """The device of this process where each has its own: ``cuda`` or ``auto`` is then the GPU of its number here.

    SettingError where a machine has more processes than GPUs.
    """
    if not asked() or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    mine, here = _number("LOCAL_RANK", 0), torch.cuda.device_count()
    if mine >= here:
        raise SettingError(f"There are more processes than GPUs ({here}) on {socket.gethostname()}. Use --device cpu.")
    return f"cuda:{mine}"


def check_same(group: Group, told: Mapping[str, str]) -> None:
    """RunError where a process was started with other data or settings than the first one; ``told`` by name."""
    everyone = group.from_all((socket.gethostname(), dict(told)))
    first = everyone[0][1]
    for rank, (host, own) in enumerate(everyone):
        names = [name for name in first.keys() | own.keys() if first.get(name) != own.get(name)]
        if names:
            shown = "; ".join(
                f"{k} is {own.get(k, 'not set')} and not {first.get(k, 'not set')}" for k in sorted(names)
            )
            raise RunError(
                f"The processes do not agree. In process {rank}, on {host}, {shown}, as in process 0. "
                "Start all of them with the same command on the same data."
            )


def speaks_for_all(error: BaseException) -> str | None:
    """Whether this process shall say what went wrong: the words to put before it, or None where another one does.

    The first to ask does. Where all have made the same mistake that is the first process, for the others wait a while;
    and what ends one process is said before the others notice that it is gone.
    """
    if _joined.size == 1:
        return ""
    if not _joined.leads or isinstance(error, Lost):
        time.sleep(POLITELY)
    try:
        first = dist.distributed_c10d._get_default_store().add("spoken", 1) == 1
    except RuntimeError:  # the store was with one that is gone
        first = _joined.rank <= 1
    if not first:
        return None
    return "" if _joined.leads else f"process {_joined.rank} on {socket.gethostname()}: "


def _live_with(pipe: int) -> None:
    """End with the process that launched this one, however that ended: it holds the other end of ``pipe``."""
    if pipe < 0:
        return

    def wait() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _number(name: str, otherwise: int) -> int:
    try:
        return int(os.environ.get(name, otherwise))
    except ValueError:
        raise SettingError(f"{name}={os.environ[name]} is no whole number; torchrun sets it.") from None


def _minutes() -> float:
    try:
        found = float(os.environ.get(WAIT, 10))
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise SettingError(f"{WAIT}={os.environ[WAIT]}: it is a number of minutes above 0.")
    return found
