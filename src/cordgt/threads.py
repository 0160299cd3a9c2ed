"""How many threads compute: torch's number, whoever asks first."""

from __future__ import annotations

import numba
import torch


def keep_threads() -> int:
    """The number of threads that torch was given, for torch and for the compiled loops from now on.

    numba and torch share one OpenMP: numba's first parallel loop sets the number of threads of both to its own, the
    number of cores, whatever `OMP_NUM_THREADS` or `torch.set_num_threads` said. Sums would then be split otherwise from
    that moment on, and the last bits of a training would depend on it. So numba starts here, and torch's number is put
    back. A smaller number that numba was given stays.
    """
    n = torch.get_num_threads()
    numba.set_num_threads(min(n, numba.get_num_threads()))
    torch.set_num_threads(n)
    return n
