"""Triton kernels for degrees, pair interactions, trees, distances and training queries, one launch each.

Torch reference: `TemporalIndex`, `cordgt.history.context._sample_torch`, `cordgt.history.distance` and
`cordgt.tasks.link.LinkTask.queries`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.history.kernels.index_arrays import IndexArrays
from cordgt.history.kernels.rng import fold_in, randint

MAX_HOPS = 3
MAX_SLOTS = 4096  # of the last hop with fan-outs padded to powers of two; one program holds them


def supports_fanout(fanout: tuple[int, ...]) -> bool:
    """Return True if `sample_trees` handles these fan-outs."""
    return 1 <= len(fanout) <= MAX_HOPS and math.prod(triton.next_power_of_2(n) for n in fanout) <= MAX_SLOTS


def search_steps(longest: int) -> int:
    """Return the number of steps of a binary search over ``longest`` entries."""
    return max(longest, 1).bit_length()


def pair_search_steps(index: IndexArrays) -> tuple[int, int]:
    """Return the `search_steps` of `find_pair`: over the neighbors of a node, over the events of a pair."""
    return search_steps(index.max_pairs), search_steps(index.max_meetings)


@triton.jit
def lower_bound(values, start, stop, target, n_steps):
    """Return the first offset in values[start:stop] (ascending) with a value not less than target, or stop."""
    for _ in range(n_steps):
        middle = (start + stop) >> 1
        open_ = start < stop
        less = tl.load(values + middle, mask=open_, other=0) < target
        start = tl.where(open_ & less, middle + 1, start)
        stop = tl.where(open_ & (less == 0), middle, stop)
    return start


@triton.jit
def row_degree(row_start, pos, node, cut, n_nodes, n_steps):
    """Return the start of each node's row and the number of its events before ``cut``; 0 and 0 for unknown nodes."""
    known = (node >= 0) & (node < n_nodes)
    begin = tl.load(row_start + node, mask=known, other=0)
    end = tl.load(row_start + node + 1, mask=known, other=0)
    return begin, lower_bound(pos, begin, end, cut, n_steps) - begin


@triton.jit
def _hop(
    row_start, nbr, pos, nbr_degree, node, key, degree, exists, slot, first, in_range, n, out_node, out_pos, tree_at,
    PARENTS: tl.constexpr, CHILDREN: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Sample and store ``n`` (padded to CHILDREN) events of each parent, every STRIDE-th of them a latest one.

    Values of the parents are (PARENTS,). ``exists``: the parent is not padding. ``slot``: its number within its hop.
    ``first``: first slot of the children's hop. ``in_range``: the parent belongs to the tree, so its children are
    stored. Returns the same values for the children, flattened.
    """
    j = tl.arange(0, CHILDREN)
    keys = fold_in(key[:, None], j[None, :])
    d = degree[:, None] + tl.zeros((PARENTS, CHILDREN), tl.int64)
    rank = randint(keys, d)
    if STRIDE > 0:
        rank = tl.where(((j + 1) % STRIDE == 0)[None, :], d - 1 - (j // STRIDE)[None, :], rank)
    in_tree = in_range[:, None] & (j < n)[None, :]
    sampled = in_tree & exists[:, None] & (rank >= 0) & (d > 0)
    at = tl.load(row_start + node, mask=exists & (degree > 0), other=0)[:, None] + rank
    child_node = tl.load(nbr + at, mask=sampled, other=-1).to(tl.int64)
    child_pos = tl.load(pos + at, mask=sampled, other=-1).to(tl.int64)
    child_degree = tl.load(nbr_degree + at, mask=sampled, other=0).to(tl.int64)
    child_slot = slot[:, None] * n + j[None, :]
    out_at = tree_at[:, None] + first + child_slot
    tl.store(out_node + out_at, child_node, mask=in_tree)
    tl.store(out_pos + out_at, child_pos, mask=in_tree)
    N: tl.constexpr = PARENTS * CHILDREN
    tree = tree_at[:, None] + tl.zeros((PARENTS, CHILDREN), tl.int64)
    return (
        tl.reshape(child_node, (N,)),
        tl.reshape(keys, (N,)),
        tl.reshape(child_degree, (N,)),
        tl.reshape(sampled, (N,)),
        tl.reshape(child_slot, (N,)),
        tl.reshape(in_tree, (N,)),
        tl.reshape(tree, (N,)),
    )


@triton.jit
def _trees(
    row_start, nbr, pos, nbr_degree, root, cut, epoch, seed_key, out_node, out_pos, n_roots, n_nodes, n_steps,
    size, start1, start2, start3, n1, n2, n3,
    ROOTS: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, P3: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * ROOTS + tl.arange(0, ROOTS)
    in_range = i < n_roots
    u = tl.load(root + i, mask=in_range, other=-1)
    limit = tl.load(cut + i, mask=in_range, other=0)
    key = fold_in(seed_key.to(tl.uint64) + tl.zeros((ROOTS,), tl.uint64), tl.load(epoch) + tl.zeros((ROOTS,), tl.int64))
    key = fold_in(fold_in(key, u), limit)
    exists = in_range & (u >= 0) & (u < n_nodes)
    _, degree = row_degree(row_start, pos, u, limit, n_nodes, n_steps)
    tree_at = i * size
    tl.store(out_node + tree_at, u, mask=in_range)
    tl.store(out_pos + tree_at, tl.full((ROOTS,), -1, tl.int64), mask=in_range)
    slot = tl.zeros((ROOTS,), tl.int64)
    node, key, degree, exists, slot, in_range, tree_at = _hop(
        row_start, nbr, pos, nbr_degree, u, key, degree, exists, slot, start1, in_range, n1, out_node, out_pos, tree_at,
        ROOTS, P1, STRIDE,
    )  # fmt: skip
    if P2 > 0:
        node, key, degree, exists, slot, in_range, tree_at = _hop(
            row_start, nbr, pos, nbr_degree, node, key, degree, exists, slot, start2, in_range, n2, out_node, out_pos,
            tree_at, ROOTS * P1, P2, STRIDE,
        )  # fmt: skip
        if P3 > 0:
            _hop(
                row_start, nbr, pos, nbr_degree, node, key, degree, exists, slot, start3, in_range, n3, out_node,
                out_pos, tree_at, ROOTS * P1 * P2, P3, STRIDE,
            )  # fmt: skip


def sample_trees(
    index: IndexArrays,
    fanout: tuple[int, ...],
    starts: tuple[int, ...],
    root: Tensor,
    cut: Tensor,
    *,
    seed_key: int,
    epoch: Tensor,
    recent_stride: int,
) -> tuple[Tensor, Tensor]:
    """Return nodes and positions of the trees, (..., C) int64 each; ``seed_key``: hashed seed; ``epoch``: 0-dim int64.

    ``recent_stride``: see `cordgt.history.context.recent_stride`.
    """
    n_roots, size = root.numel(), starts[-1]
    node = torch.empty((*root.shape, size), dtype=torch.int64, device=root.device)
    pos = torch.empty_like(node)
    if n_roots == 0:
        return node, pos
    n1, n2, n3 = (*fanout, 0, 0)[:3]
    padded = [triton.next_power_of_2(n) if n else 0 for n in (n1, n2, n3)]
    widest = max(padded[0], padded[0] * padded[1], padded[0] * padded[1] * padded[2])
    roots = max(1, min(128, 1024 // widest))
    _trees[(triton.cdiv(n_roots, roots),)](
        *index.row_arrays, root.contiguous(), cut.contiguous(), epoch, seed_key, node, pos, n_roots, index.n_nodes,
        search_steps(index.max_degree), size, *(*starts[1:-1], 0, 0)[:3], n1, n2, n3,
        ROOTS=roots, P1=padded[0], P2=padded[1], P3=padded[2], STRIDE=recent_stride,
    )  # fmt: skip
    return node, pos


@triton.jit
def _degrees(row_start, pos, node, cut, out, n, n_nodes, n_steps, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(node + i, mask=i < n, other=-1)
    limit = tl.load(cut + i, mask=i < n, other=0)
    _, degree = row_degree(row_start, pos, u, limit, n_nodes, n_steps)
    tl.store(out + i, degree, mask=i < n)


def degree(index: IndexArrays, node: Tensor, cut: Tensor) -> Tensor:
    """Return the number of events of each node before its cut; node and cut have equal shapes."""
    out = torch.empty(node.shape, dtype=torch.int64, device=node.device)
    if node.numel():
        _degrees[(triton.cdiv(node.numel(), 128),)](
            index.row_start, index.pos, *(x.to(torch.int64).contiguous() for x in (node, cut)), out, node.numel(),
            index.n_nodes, search_steps(index.max_degree), BLOCK=128,
        )  # fmt: skip
    return out


@triton.jit
def find_pair(pair_start, pair_nbr, pair_pos_start, pair_pos, node, other, cut, n_nodes, nbr_steps, pos_steps):
    """Return count and last position (-1 if none) of each pair's events before ``cut``; all of equal shape."""
    known = (node >= 0) & (node < n_nodes)
    begin = tl.load(pair_start + node, mask=known, other=0).to(tl.int64)
    end = tl.load(pair_start + node + 1, mask=known, other=0).to(tl.int64)
    pair = lower_bound(pair_nbr, begin, end, other, nbr_steps)
    exists = pair < end
    exists = exists & (tl.load(pair_nbr + pair, mask=exists, other=-1).to(tl.int64) == other)
    first = tl.load(pair_pos_start + pair, mask=exists, other=0).to(tl.int64)
    past_last = tl.load(pair_pos_start + pair + 1, mask=exists, other=0).to(tl.int64)
    stop = lower_bound(pair_pos, first, past_last, cut, pos_steps)
    count = stop - first
    return count, tl.load(pair_pos + stop - 1, mask=count > 0, other=-1).to(tl.int64)


@triton.jit
def _pair_interactions(
    pair_start, pair_nbr, pair_pos_start, pair_pos, node, other, cut, out_count, out_last, n, n_nodes,
    nbr_steps, pos_steps, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    in_range = i < n
    u = tl.load(node + i, mask=in_range, other=-1)
    v = tl.load(other + i, mask=in_range, other=-1)
    limit = tl.load(cut + i, mask=in_range, other=0)
    count, last = find_pair(pair_start, pair_nbr, pair_pos_start, pair_pos, u, v, limit, n_nodes, nbr_steps, pos_steps)
    tl.store(out_count + i, count, mask=in_range)
    tl.store(out_last + i, last, mask=in_range)


def pair_interactions(index: IndexArrays, node: Tensor, other: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
    """Return counts and last positions for node, other and cut of equal shape."""
    n = node.numel()
    count, last = (torch.empty(node.shape, dtype=torch.int64, device=node.device) for _ in range(2))
    if n:
        _pair_interactions[(triton.cdiv(n, 128),)](
            *index.pair_arrays, *(x.to(torch.int64).contiguous() for x in (node, other, cut)), count, last, n,
            index.n_nodes, *pair_search_steps(index), BLOCK=128,
        )  # fmt: skip
    return count, last


@triton.jit
def _distances(
    pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, trees, hop, t, pair_cut, out_td, out_sd,
    n_candidates, n_relations, size, n_nodes, nbr_steps, pos_steps, sd_unseen, none,
    ALPHA: tl.constexpr, BETA: tl.constexpr, TD_UNSEEN: tl.constexpr, CORRELATED: tl.constexpr,
    SLOTS: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """One program per (query, relation): TD and SD of the nodes of tree ``of`` to the root of tree ``to``."""
    query, relation = tl.program_id(0).to(tl.int64) // n_relations, tl.program_id(0) % n_relations
    of = relation
    to = relation
    if CORRELATED:  # the order of `cordgt.history.distance.tree_relations`
        kind = (relation + n_candidates - 1) // n_candidates
        candidate = (relation + n_candidates - 1) % n_candidates + 1
        of = tl.where(kind <= 1, 0, candidate)
        to = tl.where((kind == 1) | (kind == 2), candidate, 0)
    c = tl.arange(0, SLOTS)
    in_range = c < size
    tree = (query * (n_candidates + 1) + of) * size
    target = (query * (n_candidates + 1) + to) * size
    node = tl.load(trees + tree + c, mask=in_range, other=-1)
    root = tl.load(trees + target)
    now = tl.load(t + query)
    limit = tl.load(pair_cut + query)
    count, last_pos = find_pair(
        pair_start, pair_nbr, pair_pos_start, pair_pos, node, root + tl.zeros((SLOTS,), tl.int64),
        limit + tl.zeros((SLOTS,), tl.int64), n_nodes, nbr_steps, pos_steps,
    )  # fmt: skip
    last = tl.load(elapsed + last_pos, mask=count > 0, other=0.0)
    ratio = last / tl.maximum(now, 2.2250738585072014e-308)
    td = ALPHA * ratio / tl.maximum(count, 1).to(tl.float64) + BETA * (1.0 - ratio)
    td = tl.where(count > 0, td, TD_UNSEEN)
    td = tl.where((node == root) & (node >= 0), 0.0, td)
    nearest = tl.zeros((SLOTS,), tl.int32) + none
    for start in range(0, size, OTHERS):
        k = start + tl.arange(0, OTHERS)
        other = tl.load(trees + target + k, mask=k < size, other=-2)
        hops = tl.load(hop + k, mask=k < size, other=0).to(tl.int32)
        same = node[:, None] == other[None, :]
        nearest = tl.minimum(nearest, tl.min(tl.where(same, hops[None, :], none), axis=1))
    sd = tl.where((node >= 0) & (nearest < none), nearest, sd_unseen)
    at = (query * n_relations + relation) * size + c
    tl.store(out_td + at, td, mask=in_range)
    tl.store(out_sd + at, sd.to(tl.int64), mask=in_range)


def distances(
    index: IndexArrays,
    trees: Tensor,
    hop: Tensor,
    n_hops: int,
    t: Tensor,
    pair_cut: Tensor,
    *,
    correlated: bool,
    alpha: float,
    beta: float,
    td_unseen: float,
    sd_unseen: int,
) -> tuple[Tensor, Tensor]:
    """Return TD (B, R, C) float64 and SD (B, R, C) int64 between the trees (B, 1 + M, C) of each query.

    ``hop`` (C,): hop of each slot. R as in `cordgt.history.distance.tree_relations`.
    """
    n, n_trees, size = trees.shape
    correlated = correlated and n_trees > 1
    n_relations = 3 * n_trees - 2 if correlated else n_trees
    td = torch.empty((n, n_relations, size), dtype=torch.float64, device=trees.device)
    sd = torch.empty((n, n_relations, size), dtype=torch.int64, device=trees.device)
    if n:
        _distances[(n * n_relations,)](
            *index.pair_arrays, index.elapsed, trees.contiguous(), hop, t.contiguous(), pair_cut.contiguous(), td, sd,
            n_trees - 1, n_relations, size, index.n_nodes, *pair_search_steps(index), sd_unseen, n_hops + 1,
            ALPHA=float(alpha), BETA=float(beta), TD_UNSEEN=float(td_unseen), CORRELATED=correlated,
            SLOTS=triton.next_power_of_2(size), OTHERS=16, enable_fp_fusion=False,  # bit for bit as on the CPU
        )  # fmt: skip
    return td, sd


@triton.jit
def _build_queries(
    position, batch_start, src, dst, tie_start, elapsed, pool, epoch, key, out_src, out_dst, out_t, out_cut,
    out_pair_cut, n, n_pool, n_steps, EVENT: tl.constexpr, PAPER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    in_range = i < n
    at = tl.load(position + i, mask=in_range, other=0)
    start = tl.load(batch_start + i, mask=in_range, other=0)
    true = tl.load(dst + at)
    rank = lower_bound(pool, tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64) + n_pool, true, n_steps)
    in_pool = tl.load(pool + tl.minimum(rank, n_pool - 1)) == true
    draw = fold_in(key.to(tl.uint64) + tl.zeros((BLOCK,), tl.uint64), tl.load(epoch) + tl.zeros((BLOCK,), tl.int64))
    draw = randint(fold_in(draw, at), n_pool - in_pool.to(tl.int64))
    negative = tl.load(pool + draw + (in_pool & (draw >= rank)).to(tl.int64))  # skips the true destination
    tie = tl.load(tie_start + at).to(tl.int64)
    batch_cut = tl.minimum(tie, start)
    cut, pair_cut = tie, tie
    if EVENT == 0:
        pair_cut = batch_cut
        cut = tie if PAPER else batch_cut
    tl.store(out_src + i, tl.load(src + at), mask=in_range)
    tl.store(out_dst + 2 * i, true, mask=in_range)
    tl.store(out_dst + 2 * i + 1, negative, mask=in_range)
    tl.store(out_t + i, tl.load(elapsed + at), mask=in_range)
    tl.store(out_cut + i, cut, mask=in_range)
    tl.store(out_pair_cut + i, pair_cut, mask=in_range)


def build_queries(
    index: IndexArrays,
    src: Tensor,
    dst: Tensor,
    pool: Tensor,
    position: Tensor,
    batch_start: Tensor,
    *,
    key: int,
    epoch: Tensor,
    visibility: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return source, candidates (B, 2), time, cut and pair_cut of the events at ``position``.

    The candidates are the true destination and a random negative from ``pool`` (ascending).
    """
    n = len(position)
    out_dst = torch.empty((n, 2), dtype=torch.int64, device=position.device)
    out_src, cut, pair_cut = (torch.empty_like(position) for _ in range(3))
    t = torch.empty(n, dtype=torch.float64, device=position.device)
    if n:
        _build_queries[(triton.cdiv(n, 128),)](
            position.contiguous(), batch_start.contiguous(), src, dst, index.tie_start, index.elapsed, pool, epoch, key,
            out_src, out_dst, t, cut, pair_cut, n, len(pool), search_steps(len(pool)), EVENT=visibility == "event",
            PAPER=visibility == "paper", BLOCK=128,
        )  # fmt: skip
    return out_src, out_dst, t, cut, pair_cut
