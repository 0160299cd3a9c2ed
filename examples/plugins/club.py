"""A dataset: a club whose members meet a few friends again and again."""

import numpy as np
import pyarrow as pa

import cordgt

N_EVENTS, N_MEMBERS = 600, 40


@cordgt.register_dataset("club")
def club() -> pa.Table:
    """Return 600 meetings of 40 members."""
    rng = np.random.default_rng(0)
    member = rng.integers(N_MEMBERS, size=N_EVENTS)
    friend = (member + rng.integers(1, 4, size=N_EVENTS)) % N_MEMBERS
    return pa.table(
        {
            "src": [f"m{i}" for i in member],
            "dst": [f"m{i}" for i in friend],
            "time": np.sort(rng.integers(0, 10_000, size=N_EVENTS)),
        }
    )
