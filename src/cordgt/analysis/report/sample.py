"""What a report looks at: test events, spread evenly over the split, with their scores and what was known of them.

So many events and no more, whatever the size of the split: a report must not cost more than a nightly run can spare.
The figures of the run stay those of the whole split.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.events.arrays import evenly
from cordgt.history.queries import Queries
from cordgt.models.base import LinkModel
from cordgt.tasks.link import LinkTask, score_queries, whole_pairs
from cordgt.tasks.metrics import ap_and_auc

AT_MOST = 2000  # test events, unless asked otherwise


@dataclass(frozen=True)
class Asked:
    """n test events and the negative of each, asked as in the evaluation. Arrays are (n,), on the host."""

    total: int  # events in the split
    position: np.ndarray  # in the stream, ascending
    true: Queries  # on the task's device, one candidate each: the event,
    drawn: Queries  # and what it is told apart from
    positive: np.ndarray  # logits
    negative: np.ndarray
    met: np.ndarray  # how often the pair had met before
    met_drawn: np.ndarray
    src_events: np.ndarray  # how many events each end had before
    dst_events: np.ndarray
    new_src: np.ndarray  # bool, True: in no training event
    new_dst: np.ndarray

    def __len__(self) -> int:
        return len(self.position)

    @property
    def lead(self) -> np.ndarray:
        """(n,) by how much each event's logit is above that of its negative."""
        return self.positive - self.negative

    @property
    def is_sample(self) -> bool:
        return len(self) < self.total


def ask(
    model: LinkModel,
    task: LinkTask,
    *,
    at_most: int | None = AT_MOST,
    callbacks: Callback = NO_CALLBACK,
) -> Asked:
    """Test events with their scores: all of them, or ``at_most`` so many, evenly spread; always the same ones."""
    positions, queries = task.evaluation_queries("test", "transductive")
    drawn = replace(queries, dst=queries.dst[:, 1:])
    if task.protocol.negatives.endswith("-pairs"):
        drawn, _ = whole_pairs(task, positions, queries)
    n = len(positions)
    kept = evenly(n, n if at_most is None else at_most)
    true, drawn = replace(queries, dst=queries.dst[:, :1]).take(kept), drawn.take(kept)
    positive, negative = _scores(model, task, true, drawn, callbacks)
    index, new = task.whole.index, task.split.new_node
    src, dst = (x[positions[kept]] for x in (task.stream.src, task.stream.dst))
    return Asked(
        total=n,
        position=positions[kept],
        true=true,
        drawn=drawn,
        positive=positive,
        negative=negative,
        met=index.pair_history(true.src, true.dst[:, 0], true.pair_cut)[0].cpu().numpy(),
        met_drawn=index.pair_history(drawn.src, drawn.dst[:, 0], drawn.pair_cut)[0].cpu().numpy(),
        src_events=index.degree(true.src, true.cut).cpu().numpy(),
        dst_events=index.degree(true.dst[:, 0], true.cut).cpu().numpy(),
        new_src=new[src],
        new_dst=new[dst],
    )


def _scores(
    model: LinkModel, task: LinkTask, true: Queries, drawn: Queries, callbacks: Callback
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of both; where they have their source in common, it is read once, as in the evaluation."""
    if task.protocol.negatives.endswith("-pairs"):
        positive, negative = (score_queries(model, task.whole, q, callbacks=callbacks)[:, 0] for q in (true, drawn))
        return positive, negative
    both = replace(true, dst=torch.cat([true.dst, drawn.dst], dim=1))
    found = score_queries(model, task.whole, both, callbacks=callbacks)
    return found[:, 0], found[:, 1]


# -------------------- in groups


@dataclass(frozen=True)
class Group:
    """Events of one kind: how well they are told from their negatives. All None where there are none."""

    name: str
    events: int
    ap: float | None
    wins: float | None  # share of the events scored above their own negative, ties counted half
    low: float | None  # 95 % interval of that share (Wilson)
    high: float | None


def group(name: str, asked: Asked, which: np.ndarray) -> Group:
    """Figures of the events where ``which`` (n,) is True."""
    positive, negative = asked.positive[which], asked.negative[which]
    n = len(positive)
    if n == 0:
        return Group(name, 0, None, None, None, None)
    ap = float(ap_and_auc(positive[None], negative[None])[0][0])
    wins = float(((positive > negative) + 0.5 * (positive == negative)).mean())
    return Group(name, n, ap, wins, *wilson(wins, n))


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n."""
    z = 1.959964
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(max(middle - half, 0.0)), float(min(middle + half, 1.0))


def by_newness(asked: Asked) -> list[Group]:
    """Pairs that had met, first meetings of nodes that training knew, and events of nodes it did not."""
    new = asked.new_src | asked.new_dst
    return [
        group("met before", asked, (asked.met > 0) & ~new),
        group("first meeting", asked, (asked.met == 0) & ~new),
        group("met before, an end new to the model", asked, (asked.met > 0) & new),
        group("first meeting, an end new to the model", asked, (asked.met == 0) & new),
    ]


ACTIVITY = (("none", 0, 0), ("1–2", 1, 2), ("3–9", 3, 9), ("10–31", 10, 31), ("32–99", 32, 99), ("100+", 100, 2**62))


def by_activity(asked: Asked, end: str) -> list[Group]:
    """Groups by how many events one end, "src" or "dst", had before."""
    events = asked.src_events if end == "src" else asked.dst_events
    return [group(name, asked, (events >= low) & (events <= high)) for name, low, high in ACTIVITY]


def over_time(asked: Asked, parts: int = 12, least: int = 25) -> list[tuple[int, int, Group]]:
    """Consecutive parts of the test period with about as many events each: first and last row, and their figures."""
    n = len(asked)
    parts = max(1, min(parts, n // least))
    edges = np.linspace(0, n, parts + 1).round().astype(int)
    found = []
    for a, b in pairwise(edges):
        which = np.zeros(n, dtype=bool)
        which[a:b] = True
        found.append((int(a), int(b) - 1, group("", asked, which)))
    return found


def precision_recall(asked: Asked) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision at every threshold, from the highest score down; ties are let through together."""
    scores = np.concatenate([asked.positive, asked.negative])
    order = np.argsort(-scores, kind="stable")
    true = order < len(asked)
    last = np.append(np.diff(scores[order]) != 0, True)
    hits = np.cumsum(true)[last]
    through = np.arange(1, len(scores) + 1)[last]
    return np.append(0.0, hits / max(len(asked), 1)), np.append(hits[:1] / through[:1], hits / through)


def staircase(asked: Asked) -> tuple[list[float], list[float]]:
    """`precision_recall` as it is drawn: in steps, since nothing is let through between two thresholds."""
    recall, precision = precision_recall(asked)
    return np.repeat(recall, 2)[1:-1].tolist(), np.repeat(precision[1:], 2).tolist()


def surprises(asked: Asked, rows: int) -> dict[str, np.ndarray]:
    """Rows of the most surprising events: first meetings foreseen, true events missed, and false alarms.

    Each the ``rows`` most extreme, fewer where there are fewer; of a tie, the earliest. A hit is above its negative and
    above a logit of 0, a miss below that, a false alarm above: where nothing is wrong, nothing is listed.
    """
    hit = (asked.met == 0) & (asked.positive > 0) & (asked.positive > asked.negative)
    return {
        "hits": _most(asked.positive, hit, rows),
        "misses": _most(-asked.positive, asked.positive < 0, rows),
        "alarms": _most(asked.negative, asked.negative > 0, rows),
    }


def surprises_by_lead(asked: Asked, rows: int) -> dict[str, np.ndarray]:
    """`surprises` of a model that ranks: first meetings furthest ahead of their negative, true events furthest behind.

    Only scores of one question compare then, so that there is no threshold; what a miss lost to is the false alarm.
    """
    return {
        "hits": _most(asked.lead, (asked.met == 0) & (asked.lead > 0), rows),
        "misses": _most(-asked.lead, asked.lead < 0, rows),
    }


def _most(of: np.ndarray, keep: np.ndarray, rows: int) -> np.ndarray:
    """The largest ``rows`` where ``keep`` is True, largest first; of a tie, the earliest."""
    there = np.flatnonzero(keep)
    return there[np.argsort(-of[there], kind="stable")[:rows]]
