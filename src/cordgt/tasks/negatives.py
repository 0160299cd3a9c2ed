"""Negative sampling. Each draw is a function of the seed and the event.

- `draw_negatives`: any destination of a pool except the true one.
- `mix_past_negatives`: in training, past partners of the source instead of some random negatives.
- `draw_hard_negatives`: a past neighbor of the source, but not at the query's time. A pure function of ``cut``.
- `draw_candidates`: many destinations at once, for ranking.

`NEGATIVES` has every kind by name. `register_negatives` adds one, for training and evaluation. Negatives that replace
the source too are in `cordgt.tasks.negative_pairs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from cordgt.errors import CordgtError, DataError, SettingError
from cordgt.history import rng
from cordgt.history.index import TemporalIndex, lower_bound, lower_bound_scalar
from cordgt.history.queries import Queries
from cordgt.history.rng import fold_in_u64, randint_u64
from cordgt.plugins import Registry, check_inputs, first_line

F = TypeVar("F", bound=Callable[..., Any])

_HASH_TAG = 0x6E6567  # makes these draws independent of those that sample history
_PAST_TAG = 0x70617374  # makes draws of past partners independent of the random ones


def check_pool(pool: Tensor) -> None:
    """Raise DataError if a pool has too few destinations to draw a negative for every event."""
    if len(pool) < 2:
        raise DataError(
            "There is only one destination, but negatives need at least two. "
            "Use data with more destinations, or draw negatives from all nodes (--set pool=nodes)."
        )


def negatives_key(seed: int) -> int:
    """Return the hashed seed of all draws in this module."""
    return rng.fold_in_int(rng.mix64_int(seed), _HASH_TAG)


def event_keys(position: Tensor, *, seed: int, epoch: Tensor | int = 0) -> Tensor:
    """Return the key (B,) of each event's draws: a hash of seed, epoch and position."""
    return rng.fold_in(rng.epoch_key(negatives_key(seed), epoch), position)


def draw_keys(key: Tensor, n: int) -> Tensor:
    """Return ``n`` keys (B, n) for each key (B,). The first ones do not depend on ``n``."""
    key = key.unsqueeze(-1)
    return torch.cat([key, rng.fold_in(key, torch.arange(1, n, device=key.device))], dim=-1)


def draw_integers(key: Tensor, n: int, high: Tensor | int) -> Tensor:
    """Return ``n`` integers in [0, high) for each key, (B, n) int64; 0 where ``high`` is 0.

    They are hashes: the same keys give the same numbers, on every device. ``high`` is a number, or (B, 1).
    """
    return rng.randint(draw_keys(key, n), high)


def draw_negatives(
    pool: Tensor, dst: Tensor, position: Tensor, *, seed: int, epoch: Tensor | int = 0, n: int = 1
) -> Tensor:
    """Draw ``n`` nodes of ``pool`` for each query, uniformly and never ``dst``: (B, n) int64.

    The source may be drawn, and a node may be drawn twice. Shapes: pool (P,) int64, ascending and distinct, P >= 2; dst
    and position (B,) int64.
    """
    key = draw_keys(event_keys(position, seed=seed, epoch=epoch), n)
    dst = dst.unsqueeze(-1)
    dst_rank = torch.searchsorted(pool, dst)
    in_pool = pool[dst_rank.clamp_max(len(pool) - 1)] == dst
    draw = rng.randint(key, len(pool) - in_pool.long())
    return pool[draw + (in_pool & (draw >= dst_rank)).long()]


def mix_past_negatives(
    index: TemporalIndex, queries: Queries, pool: Tensor, position: Tensor, *, key: Tensor | int, share: float
) -> Queries:
    """Replace a share of the random negatives by past partners of the source: the other ends of its visible events.

    Every visible event of the source is equally likely. A partner outside the pool is not used, and a source without
    events keeps its random negatives. The true destination may be drawn, as `past_log_ratio` expects. Shapes: pool (P,)
    ascending, position (B,) of the queries' events; ``key`` is that of the random negatives.
    """
    if len(index.nbr) == 0:
        return queries
    n = queries.dst.shape[1] - 1
    key = rng.fold_in(rng.fold_in(key, position), torch.full_like(position, _PAST_TAG)).unsqueeze(-1)
    key = rng.fold_in(key, torch.arange(n, device=pool.device))  # (B, n)
    src = queries.src.unsqueeze(-1).expand_as(key)
    degree = index.degree(queries.src, queries.cut).unsqueeze(-1)
    past = index.nbr[index.row_entry(src, rng.randint(rng.mix64(key), degree))].long()
    in_pool = pool[torch.searchsorted(pool, past).clamp_max(len(pool) - 1)] == past
    use_past = (rng.uniform(key) <= share) & (degree > 0) & in_pool
    negatives = torch.where(use_past, past, queries.dst[:, 1:])
    return replace(queries, dst=torch.cat([queries.dst[:, :1], negatives], dim=1))


def past_log_ratio(index: TemporalIndex, queries: Queries, pool_size: int, share: float) -> Tensor:
    """Compare how `mix_past_negatives` draws candidates with a uniform draw: the log of the ratio, (B, M) float32.

    A candidate that shares a fraction p of the source's visible events is drawn with the probability
    (1 - share) / pool_size + share * p.
    """
    n_common = index.pair_interactions(queries.src.unsqueeze(-1), queries.dst, queries.cut.unsqueeze(-1))[0]
    degree = index.degree(queries.src, queries.cut).unsqueeze(-1)
    ratio = 1.0 - share + share * pool_size * n_common.float() / degree.clamp_min(1).float()
    return torch.where(degree > 0, ratio.log(), 0.0)


def draw_hard_negatives(
    index: TemporalIndex,
    pool: np.ndarray,
    src: np.ndarray,
    cut: np.ndarray,
    own_start: np.ndarray,
    own_end: np.ndarray,
    position: np.ndarray,
    *,
    since: int,
    seed: int,
) -> np.ndarray:
    """Draw a pool node with a past event with the source, but none at the query's time; -1 if there is no such node.

    Past means the first ``cut`` events; an event counts in both directions. The first event of the pair must be at
    position ``since`` or later: 0 gives *historical* negatives, the end of training gives *inductive* ones, which
    training cannot have seen. The query's time is the events from ``own_start`` up to ``own_end``. All matching nodes
    are equally likely.

    Shapes: (B,) int64 each; pool (P,) ascending. The index is on the CPU.
    """
    keys = event_keys(torch.from_numpy(position), seed=seed)[:, None]
    return _hard_negatives(index, pool, src, cut, own_start, own_end, keys, since=since)[:, 0]


def _hard_negatives(
    index: TemporalIndex,
    pool: np.ndarray,
    src: np.ndarray,
    cut: np.ndarray,
    own_start: np.ndarray,
    own_end: np.ndarray,
    keys: Tensor,
    *,
    since: int,
) -> np.ndarray:
    """`draw_hard_negatives` with a draw for each of ``keys`` (B, n): (B, n)."""
    out = np.empty(tuple(keys.shape), dtype=np.int64)
    in_pool = np.zeros(max(index.n_nodes, int(pool.max(initial=-1)) + 1), dtype=np.bool_)
    in_pool[pool] = True
    arrays = (index.pair_start, index.pair_nbr, index.pair_pos_start, index.pair_pos)
    pair_start, pair_nbr, pair_pos_start, pair_pos = (a.numpy() for a in arrays)
    key = keys.numpy().view(np.uint64)
    _draw_hard_negatives(
        pair_start, pair_nbr, pair_pos_start, pair_pos, in_pool, src, cut, own_start, own_end, since, key, out
    )
    return out


@njit(inline="always")
def _is_eligible(pair, pair_nbr, pair_pos_start, pair_pos, in_pool, cut, own_start, own_end, since):  # type: ignore[no-untyped-def]
    first, end = pair_pos_start[pair], pair_pos_start[pair + 1]
    is_past = since <= pair_pos[first] < cut
    if not (is_past and in_pool[pair_nbr[pair]]):
        return False
    tied = lower_bound_scalar(pair_pos, first, end, own_start)
    return not (tied < end and pair_pos[tied] < own_end)


@njit(parallel=True, cache=True)
def _draw_hard_negatives(  # type: ignore[no-untyped-def]
    pair_start, pair_nbr, pair_pos_start, pair_pos, in_pool, src, cut, own_start, own_end, since, key, out
):
    for i in prange(len(src)):
        u = src[i]
        start, stop = pair_start[u], pair_start[u + 1]
        n = 0
        for pair in range(start, stop):
            if _is_eligible(pair, pair_nbr, pair_pos_start, pair_pos, in_pool, cut[i], own_start[i], own_end[i], since):
                n += 1
        for j in range(out.shape[1]):
            out[i, j] = -1
            left = randint_u64(key[i, j], n)
            if n > 0:
                for pair in range(start, stop):
                    if _is_eligible(
                        pair, pair_nbr, pair_pos_start, pair_pos, in_pool, cut[i], own_start[i], own_end[i], since
                    ):
                        if left == 0:
                            out[i, j] = pair_nbr[pair]
                            break
                        left -= 1


def draw_candidates(pool: np.ndarray, n: int, dst: np.ndarray, position: np.ndarray, *, seed: int) -> np.ndarray:
    """Draw ``n`` distinct nodes of the pool for each query, never ``dst``: (B, n) int64.

    If the pool has at most ``n`` nodes, all of them are returned, (B, P), with -1 in the place of ``dst``. Shapes:
    pool (P,) ascending; dst and position (B,).
    """
    if n >= len(pool):
        return np.where(pool == dst[:, None], -1, pool)
    out = np.empty((len(dst), n), dtype=np.int64)
    _draw_candidates(pool, dst, position, np.uint64(negatives_key(seed) % 2**64), out)
    return out


@njit(parallel=True, cache=True)
def _draw_candidates(pool, dst, position, key, out):  # type: ignore[no-untyped-def]
    """Floyd's algorithm for distinct draws: the j-th draw is at most its own bound, and is the bound if taken."""
    n = out.shape[1]
    for i in prange(len(dst)):
        query_key = fold_in_u64(fold_in_u64(key, 0), position[i])
        dst_rank = np.searchsorted(pool, dst[i])
        has_dst = dst_rank < len(pool) and pool[dst_rank] == dst[i]
        n_others = len(pool) - (1 if has_dst else 0)
        chosen = np.empty(n, dtype=np.int64)
        for j in range(n):
            bound = n_others - n + j
            draw = randint_u64(fold_in_u64(query_key, j), bound + 1)
            for k in range(j):
                if chosen[k] == draw:
                    draw = bound
                    break
            chosen[j] = draw
            out[i, j] = pool[draw + 1 if has_dst and draw >= dst_rank else draw]


# -------------------- kinds of negatives by name


@dataclass(frozen=True)
class NegativeRequest:
    """The inputs of a sampler: the events of a batch, and where their negatives come from."""

    index: TemporalIndex  # the history: of the training events in training, of all events at evaluation
    queries: Queries  # of the events; ``dst`` (B, 1) is the true destination
    pool: Tensor  # (P,) int64: the allowed destinations, ascending
    n: int  # negatives per event
    key: Tensor  # (B,) int64: hash of seed, epoch and event; all random numbers come from it
    train_end: int  # position of the first event after the training period

    def to(self, device: str) -> NegativeRequest:
        """Return this request on another device. Its index must be there already."""
        queries = Queries(**{name: value.to(device) for name, value in vars(self.queries).items()})
        return replace(self, queries=queries, pool=self.pool.to(device), key=self.key.to(device))


NEGATIVE_INPUTS = tuple(NegativeRequest.__dataclass_fields__)


class NegativeKind(NamedTuple):
    """One kind of negatives."""

    description: str
    draw: Callable[[NegativeRequest], Tensor] | None = None  # (B, n), -1: none. None: a path of its own
    on_host: bool = False  # True: gets its inputs on the CPU
    replaces_source: bool = False  # True: a negative is a whole pair, drawn for a batch at once; evaluation only
    may_be_true: bool = False  # True: the true destination may be its own negative; False: a random one replaces it

    def sample(self, name: str, request: NegativeRequest) -> Tensor:
        """Return negatives (B, n), -1 where there is none. SettingError if a registered sampler fails."""
        assert self.draw is not None
        tensors = {"pool": request.pool, "key": request.key, **vars(request.queries)}
        versions = {key: _version(x) for key, x in tensors.items()}
        try:
            found: Any = self.draw(request)  # of any type, if a plug-in is wrong
        except CordgtError:
            raise
        except Exception as error:
            raise SettingError(f"The negative sampler '{name}' failed: {type(error).__name__}: {error}") from error
        for key, x in tensors.items():
            if _version(x) != versions[key]:
                raise SettingError(
                    f"The negative sampler '{name}' changed its input '{key}'. Copy it first: x.clone()."
                )
        shape = (len(request.key), request.n)
        is_integer = isinstance(found, Tensor) and not found.is_floating_point() and found.dtype != torch.bool
        if not is_integer or tuple(found.shape) != shape:
            got = f"{tuple(found.shape)} {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            hint = " For NumPy, register it with on_host=True." if isinstance(found, np.ndarray) else ""
            raise SettingError(f"The negative sampler '{name}' returned {got}, but must return int64 {shape}.{hint}")
        found = found.long().contiguous()
        rank = torch.searchsorted(request.pool, found).clamp_max(len(request.pool) - 1)
        outside = found[(request.pool[rank] != found) & (found != -1)]
        if len(outside):
            raise SettingError(
                f"The negative sampler '{name}' returned the node index {int(outside[0])}, which is not in the pool. "
                "Return node indices of the pool, or -1."
            )
        return found if self.may_be_true else torch.where(found == request.queries.dst[:, :1], -1, found)


def _version(x: Tensor) -> int:
    """Return a number that changes when the tensor is changed in place; 0 where torch does not count."""
    return 0 if x.is_inference() else x._version


def _past_partners(request: NegativeRequest, since: int) -> Tensor:
    index, queries = request.index, request.queries
    t = queries.t.numpy()
    elapsed = index.elapsed.numpy()
    own_start, own_end = (np.searchsorted(elapsed, t, side=side).astype(np.int64) for side in ("left", "right"))
    ends = (queries.src.numpy(), queries.cut.numpy(), own_start, own_end)
    found = _hard_negatives(index, request.pool.numpy(), *ends, draw_keys(request.key, request.n), since=since)
    return torch.from_numpy(found)


def _popular(request: NegativeRequest) -> Tensor:
    """Return the destinations of random visible events, so that busy destinations are drawn more often."""
    index, cut = request.index, request.queries.cut.unsqueeze(-1)
    if len(index.pos) == 0:
        return torch.full((len(request.key), request.n), -1, device=request.key.device)
    position = draw_integers(request.key, request.n, cut)  # (B, n)
    src = index.src[position].long()
    start, end = index.row_start[src].long(), index.row_start[src + 1].long()
    entry = lower_bound(index.pos, start, end, position, index.max_degree).clamp_max(len(index.pos) - 1)
    is_indexed = (cut > 0) & (entry < end) & (index.pos[entry] == position)  # not so: an event of a masked node
    dst = index.nbr[entry].long()
    rank = torch.searchsorted(request.pool, dst).clamp_max(len(request.pool) - 1)
    return torch.where(is_indexed & (request.pool[rank] == dst), dst, -1)


NEGATIVES: Registry[NegativeKind] = Registry(
    "negatives",
    {
        "random": NegativeKind("any destination of the pool except the true one"),
        "random-any": NegativeKind(
            "any destination of the pool, the true one too, as in DyGLib",
            lambda request: request.pool[draw_integers(request.key, request.n, len(request.pool))],
            may_be_true=True,
        ),
        "popularity": NegativeKind("destinations as often as they were visited before", _popular),
        "historical": NegativeKind(
            "earlier partners that are not partners now", lambda request: _past_partners(request, 0), on_host=True
        ),
        "inductive": NegativeKind(
            "earlier partners that are not partners now, first met after training",
            lambda request: _past_partners(request, request.train_end),
            on_host=True,
        ),
        "historical-pairs": NegativeKind("past pairs, as in DGB and DyGLib", replaces_source=True),
        "inductive-pairs": NegativeKind("past pairs that training has not seen, as in DyGLib", replaces_source=True),
    },
    lambda name, function: register_negatives(name)(function),
)


def register_negatives(name: str, *, description: str = "", on_host: bool = False) -> Callable[[F], F]:
    """Register a function that draws negatives: for ``--set negatives=NAME`` and ``--set train_negatives=NAME``.

    Its parameters choose its inputs by name, see `NegativeRequest`: ``index, queries, pool, n, key, train_end``. It
    returns destinations (B, n) int64. Where it returns -1, or the true destination, a random negative is used.

    It must be a pure function of its inputs. `draw_integers` turns ``key`` into random numbers. ``on_host`` gives it
    its inputs on the CPU, for NumPy; otherwise they are on the device of the history.

    Examples:
        >>> from cordgt.tasks.negatives import draw_integers
        >>> @cordgt.register_negatives("first-half")
        ... def first_half(pool, n, key):
        ...     return pool[draw_integers(key, n, len(pool) // 2)]
        >>> cordgt.Run.load("runs/mine").evaluate(split="test", negatives="first-half")["protocol"]["negatives"]
        'first-half'
    """
    NEGATIVES.check_name(name)

    def register(function: F) -> F:
        inputs = check_inputs("negative sampler", name, function, NEGATIVE_INPUTS)

        def draw(request: NegativeRequest) -> Tensor:
            found = function(**{key: getattr(request, key) for key in inputs})
            return torch.from_numpy(found) if on_host and isinstance(found, np.ndarray) else found

        NEGATIVES.add(name, NegativeKind(description or first_line(function), draw, on_host), function)
        return function

    return register
