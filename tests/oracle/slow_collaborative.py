"""Slow reference of the collaborative columns: their definition in plain loops, lists and sets."""

from __future__ import annotations

import math
from typing import NamedTuple

from .slow import History, to_event_count


class Visit(NamedTuple):
    """An event of a node with another one."""

    node: int
    pos: int
    rarity: float


def latest(history: History, node: int, cut: int, n: int, exclude: int | None = None) -> list[Visit]:
    """The latest ``n`` events of a node, latest first, without those with itself or with ``exclude``."""
    found = []
    for p in reversed(history.events_of(node, cut)[-n:]):
        other = history.partner(node, p)
        if other not in (node, exclude):
            found.append(Visit(other, p, 1 / math.log2(2 + history.degree(other, history.tie_start(p)))))
    return found


def distinct(visits: list[Visit]) -> dict[int, Visit]:
    """The latest visit of each visitor."""
    found: dict[int, Visit] = {}
    for visit in visits:
        found.setdefault(visit.node, visit)
    return found


def collaborative_columns(
    history: History, u: int, v: int, t: float, cut: int, *, partners: int, visits: int, sequences: int, steps: int
) -> list[float]:
    """The columns of a pair, before logarithms."""
    known = distinct(latest(history, u, cut, partners))
    own = distinct(latest(history, v, cut, visits, u))
    shared: set[int] = set()
    cosine = decayed = rare = 0.0
    follows = soon_last = soon = 0.0
    for rank, i in enumerate(known):
        visits_of = latest(history, i, cut, visits, u)
        visitors = distinct(visits_of)
        for w in visitors.keys() & own.keys():
            shared.add(w)
            term = 1 / math.sqrt(len(visitors) * len(own))
            cosine += term
            decayed += term / (1 + rank)
            rare += term / (1 + rank) * visitors[w].rarity
        for w, p, _ in visits_of if rank < sequences else []:
            later = [q for q in history.events_of(w, cut) if q > p][:steps]
            for step, q in enumerate(later, start=1):
                if history.partner(w, q) == v:
                    follows += rank == 0 and step == 1 and 1 / len(visits_of)
                    soon_last += rank == 0 and 1 / step / math.sqrt(len(visits_of))
                    soon += 1 / step / math.sqrt(len(visits_of)) / (1 + rank)
    common = known.keys() & own.keys()

    def age(node: int, back: int) -> float:
        events = history.events_of(node, cut)
        since = history.elapsed[events[-back]] if len(events) >= back else 0.0
        return to_event_count(t - since, t, cut)

    firsts = [age(node, max(1, history.degree(node, cut))) for node in (u, v)]
    return [
        len(shared), cosine, decayed, rare, len(common), sum(known[w].rarity for w in common), follows, soon_last, soon,
        soon / math.sqrt(max(1, history.degree(v, cut))), len(known), len(own), *firsts,
        *(age(node, back) for node in (u, v) for back in (4, 16, 64)),
    ]  # fmt: skip


def collaborative_features(
    history: History, u: int, v: int, t: float, cut: int, *, partners: int, visits: int, sequences: int, steps: int
) -> list[float]:
    """The columns of a pair, as models read them."""
    columns = collaborative_columns(
        history, u, v, t, cut, partners=partners, visits=visits, sequences=sequences, steps=steps
    )
    shares = (1, 2, 3, 5, 6, 7, 8, 9)
    return [0.25 * math.log(1 + (256 * x if k in shares else x)) for k, x in enumerate(columns)]
