"""Harder negatives: destinations with many events. A pure function of the events before the query."""

import torch
from torch import Tensor

import cordgt
from cordgt.history.index import TemporalIndex
from cordgt.history.queries import Queries
from cordgt.tasks.negatives import draw_integers

N_DRAWS = 4  # candidates for each negative; the most frequent of them wins


@cordgt.register_negatives("popular")
def popular(index: TemporalIndex, queries: Queries, pool: Tensor, n: int, key: Tensor) -> Tensor:
    """The most frequent of four random destinations, counted before the query."""
    drawn = pool[draw_integers(key, n * N_DRAWS, len(pool))]  # (B, n * 4)
    count = index.degree(drawn, queries.cut[:, None]).view(-1, n, N_DRAWS)
    best = count.argmax(dim=-1, keepdim=True)
    return torch.gather(drawn.view(-1, n, N_DRAWS), -1, best).squeeze(-1)  # (B, n)
