"""How long each phase of a job takes: import, read, index, epochs, evaluation, report and so on.

`PhaseTimes` is a callback. A phase begins with `Callback.on_phase_start`, a stage or an epoch, and lasts until the next
one begins. So every second of the job belongs to exactly one phase.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from numba.core import event

from cordgt.callbacks import Callback
from cordgt.runtime.profiling import seconds_since_start

# The phase of a stage, by the beginning of the stage's name. The first match counts.
PHASES = {
    "training counts": "counts",
    "validating": "validation",
    "choosing the weight": "blend",
    "evaluating: validation": "validation",
    "evaluating: test": "test",
    "evaluating: calibration": "calibration",
    "evaluating: probabilities": "probabilities",
    "evaluating: the report": "report",
    "first scorer": "first scorer",
    "budget": "first scorer",
}


@dataclass
class PhaseTime:
    """The time of one phase. ``compiling`` is the part in which Numba compiled loops that no cache had."""

    phase: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all threads
    compiling: float = 0.0


class PhaseTimes(Callback):
    """Measures the phases of a job, from the start of the process. Call `finish` once, at the end.

    On a GPU a phase ends when its work there is done.
    """

    def __init__(self) -> None:
        self.phases: dict[str, PhaseTime] = {}
        self.timer = event.TimingListener()
        event.register("numba:compile", self.timer)
        self._phase = "import"
        self._start = time.perf_counter() - seconds_since_start()
        self._last = self._start, 0.0, 0.0

    def on_phase_start(self, name: str) -> None:
        self.enter(name)

    def on_stage_start(self, name: str, total: int | None) -> None:
        self.enter(next((phase for start, phase in PHASES.items() if name.startswith(start)), name))

    def on_epoch_start(self, phase: str, epoch: int, n_epochs: int, n_events: int) -> None:
        self.enter("refit" if phase == "refit" else "epochs")

    def enter(self, phase: str) -> None:
        """End the current phase and begin another one, which may have had parts before."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        now = time.perf_counter(), time.process_time(), self.timer.duration if self.timer.done else 0.0
        entry = self.phases.setdefault(self._phase, PhaseTime(self._phase))
        entry.seconds += now[0] - self._last[0]
        entry.cpu_seconds += now[1] - self._last[1]
        entry.compiling += now[2] - self._last[2]
        self._phase, self._last = phase, now

    def finish(self) -> dict[str, Any]:
        """End the last phase and return ``{"seconds": …, "phases": [{"phase": …, "share": …}, …]}``."""
        self.enter("")
        event.unregister("numba:compile", self.timer)
        total = self._last[0] - self._start
        return {"seconds": total, "phases": [asdict(p) | {"share": p.seconds / total} for p in self.phases.values()]}
