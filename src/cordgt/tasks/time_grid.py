"""TimeGrid: streams whose events happen at few times with equal steps, such as one for each year.

Between two steps nothing happens, so a horizon counts as the number of steps in it. Steps are counted from the last
visible event of the stream. A thousandth of the time counts too: no probability is exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_TIMES = 64  # a stream with more distinct times is continuous
MIN_TIMES = 3
MAX_TOLERANCE = 0.02  # of a step: years differ by a day
OFF_GRID = 1e-3  # share of the time between the steps that counts


@dataclass(frozen=True)
class TimeGrid:
    """The step of a stream, and by what share of it steps differ. Step 0: time is continuous."""

    step: float = 0.0
    tolerance: float = 0.0

    @classmethod
    def find(cls, elapsed: np.ndarray) -> TimeGrid:
        """Return the grid of ascending event times; the default if there is none."""
        n_times = 1 + int((np.diff(elapsed) > 0).sum()) if len(elapsed) else 0
        if not MIN_TIMES <= n_times <= MAX_TIMES:
            return cls()
        gaps = np.diff(np.unique(elapsed))
        step = float(np.median(gaps))
        error = float(np.abs(gaps / step - np.maximum(np.round(gaps / step), 1.0)).max())
        return cls(step, error + 1e-9) if error <= MAX_TOLERANCE else cls()

    def start(self, since: np.ndarray) -> np.ndarray:
        """Return the time of the last step, for times since the last visible event."""
        return self._steps_before(since) * self.step if self.step else since

    def length(self, since: np.ndarray, horizon: np.ndarray) -> np.ndarray:
        """Return how much time counts in a horizon that begins ``since`` after the last visible event."""
        if not self.step:
            return np.asarray(horizon, dtype=np.float64) + 0.0 * since
        end = np.floor((since + horizon) / self.step + self.tolerance)
        n_steps = np.where(horizon > 0, np.maximum(end - self._steps_before(since), 0.0), 0.0)
        length: np.ndarray = n_steps * self.step + OFF_GRID * horizon
        return length

    def next_step(self, since: np.ndarray, wait: np.ndarray) -> np.ndarray:
        """Return waits that end within the tolerance before or after a step, at that step; other waits as they are."""
        if not self.step:
            return wait
        step = np.round((since + wait) / self.step) * self.step
        is_step = (step >= since) & (np.abs(since + wait - step) <= 2 * self.tolerance * self.step)
        return np.where(is_step, step - since, wait)

    def _steps_before(self, since: np.ndarray) -> np.ndarray:
        """Return the number of steps that are certainly over."""
        steps: np.ndarray = np.maximum(np.floor(since / self.step - self.tolerance), 0.0)
        return steps
