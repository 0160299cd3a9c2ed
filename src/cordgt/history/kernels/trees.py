"""Questions about the past on CUDA: trees, pair history and distances, one launch each.

Twins: `cordgt.history.context._sample_plain`, `TemporalIndex._meetings_plain`, `cordgt.history.distance`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from cordgt.history.kernels.index_arrays import IndexArrays
from cordgt.history.kernels.rng import below, child

MOST_HOPS = 3
MOST_SLOTS = 4096  # of a tree with each hop padded to a power of two, which one program holds


def draws_trees(fanout: tuple[int, ...]) -> bool:
    """True where `sample_trees` takes this shape."""
    return 1 <= len(fanout) <= MOST_HOPS and math.prod(triton.next_power_of_2(n) for n in fanout) <= MOST_SLOTS


def steps(longest: int) -> int:
    """How many probes a binary search over so many entries takes."""
    return max(longest, 1).bit_length()


@triton.jit
def lower_bound(values, start, stop, target, n_steps):
    """First place in values[start:stop] (ascending) that is not less than target; stop if there is none."""
    for _ in range(n_steps):
        middle = (start + stop) >> 1
        open_ = start < stop
        less = tl.load(values + middle, mask=open_, other=0) < target
        start = tl.where(open_ & less, middle + 1, start)
        stop = tl.where(open_ & (less == 0), middle, stop)
    return start


@triton.jit
def _hop(
    row_start, nbr, pos, nbr_degree, node, key, degree, exists, slot, first, real, n, out_node, out_pos, tree_at,
    PARENTS: tl.constexpr, CHILDREN: tl.constexpr, LATEST: tl.constexpr,
):  # fmt: skip
    """Draw ``n`` (padded to CHILDREN) events of each parent and store them, every LATEST-th of them its latest ones.

    All parents' values are (PARENTS,). ``exists`` marks real parents; ``slot`` is a parent's place in its hop,
    ``first`` the first slot of the children's hop, and ``real`` says which parents have a place to write their children
    to. The children's values come back, flattened.
    """
    j = tl.arange(0, CHILDREN)
    keys = child(key[:, None], j[None, :])
    d = degree[:, None] + tl.zeros((PARENTS, CHILDREN), tl.int64)
    rank = below(keys, d)
    if LATEST > 0:
        rank = tl.where(((j + 1) % LATEST == 0)[None, :], d - 1 - (j // LATEST)[None, :], rank)
    there = real[:, None] & (j < n)[None, :]
    drawn = there & exists[:, None] & (rank >= 0) & (d > 0)
    at = tl.load(row_start + node, mask=exists & (degree > 0), other=0)[:, None] + rank
    child_node = tl.load(nbr + at, mask=drawn, other=-1).to(tl.int64)
    child_pos = tl.load(pos + at, mask=drawn, other=-1).to(tl.int64)
    child_degree = tl.load(nbr_degree + at, mask=drawn, other=0).to(tl.int64)
    child_slot = slot[:, None] * n + j[None, :]
    where = tree_at[:, None] + first + child_slot
    tl.store(out_node + where, child_node, mask=there)
    tl.store(out_pos + where, child_pos, mask=there)
    many: tl.constexpr = PARENTS * CHILDREN
    tree = tree_at[:, None] + tl.zeros((PARENTS, CHILDREN), tl.int64)
    return (
        tl.reshape(child_node, (many,)),
        tl.reshape(keys, (many,)),
        tl.reshape(child_degree, (many,)),
        tl.reshape(drawn, (many,)),
        tl.reshape(child_slot, (many,)),
        tl.reshape(there, (many,)),
        tl.reshape(tree, (many,)),
    )


@triton.jit
def _trees(
    row_start, nbr, pos, nbr_degree, root, cut, epoch, seed_key, out_node, out_pos, n_roots, n_nodes, n_steps,
    size, start1, start2, start3, n1, n2, n3,
    ROOTS: tl.constexpr, P1: tl.constexpr, P2: tl.constexpr, P3: tl.constexpr, LATEST: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * ROOTS + tl.arange(0, ROOTS)
    real = i < n_roots
    u = tl.load(root + i, mask=real, other=-1)
    limit = tl.load(cut + i, mask=real, other=0)
    key = child(seed_key.to(tl.uint64) + tl.zeros((ROOTS,), tl.uint64), tl.load(epoch) + tl.zeros((ROOTS,), tl.int64))
    key = child(child(key, u), limit)
    known = real & (u >= 0) & (u < n_nodes)
    begin = tl.load(row_start + u, mask=known, other=0)
    end = tl.load(row_start + u + 1, mask=known, other=0)
    degree = lower_bound(pos, begin, end, limit, n_steps) - begin
    tree_at = i * size
    tl.store(out_node + tree_at, u, mask=real)
    tl.store(out_pos + tree_at, tl.full((ROOTS,), -1, tl.int64), mask=real)
    slot = tl.zeros((ROOTS,), tl.int64)
    node, key, degree, exists, slot, real, tree_at = _hop(
        row_start, nbr, pos, nbr_degree, u, key, degree, known, slot, start1, real, n1, out_node, out_pos, tree_at,
        ROOTS, P1, LATEST,
    )  # fmt: skip
    if P2 > 0:
        node, key, degree, exists, slot, real, tree_at = _hop(
            row_start, nbr, pos, nbr_degree, node, key, degree, exists, slot, start2, real, n2, out_node, out_pos,
            tree_at, ROOTS * P1, P2, LATEST,
        )  # fmt: skip
        if P3 > 0:
            _hop(
                row_start, nbr, pos, nbr_degree, node, key, degree, exists, slot, start3, real, n3, out_node, out_pos,
                tree_at, ROOTS * P1 * P2, P3, LATEST,
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
    latest: int,
) -> tuple[Tensor, Tensor]:
    """Nodes and positions of the trees, (..., C) int64 each; ``seed_key`` is the hashed seed, epoch 0-dim int64.

    ``latest``: every so many-th draw of a slot takes its latest events in turn; 0: none does.
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
        index.row_start, index.nbr, index.pos, index.nbr_degree, root.contiguous(), cut.contiguous(), epoch, seed_key,
        node, pos, n_roots, index.n_nodes, steps(index.max_degree), size, *(*starts[1:-1], 0, 0)[:3], n1, n2, n3,
        ROOTS=roots, P1=padded[0], P2=padded[1], P3=padded[2], LATEST=latest,
    )  # fmt: skip
    return node, pos


@triton.jit
def _degrees(row_start, pos, node, cut, out, n, n_nodes, n_steps, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(node + i, mask=i < n, other=-1)
    known = (u >= 0) & (u < n_nodes)
    begin = tl.load(row_start + u, mask=known, other=0)
    end = tl.load(row_start + u + 1, mask=known, other=0)
    limit = tl.load(cut + i, mask=i < n, other=0)
    tl.store(out + i, lower_bound(pos, begin, end, limit, n_steps) - begin, mask=i < n)


def degree(index: IndexArrays, node: Tensor, cut: Tensor) -> Tensor:
    """How many events each node has before its cut; node and cut of one shape."""
    out = torch.empty(node.shape, dtype=torch.int64, device=node.device)
    if node.numel():
        _degrees[(triton.cdiv(node.numel(), 128),)](
            index.row_start, index.pos, *(x.to(torch.int64).contiguous() for x in (node, cut)), out, node.numel(),
            index.n_nodes, steps(index.max_degree), BLOCK=128,
        )  # fmt: skip
    return out


@triton.jit
def _meetings(pair_start, pair_nbr, pair_pos_start, pair_pos, node, other, cut, n_nodes, nbr_steps, pos_steps):
    """Count and last position, -1 if none, of each pair's events before ``cut``; all vectors of one shape."""
    known = (node >= 0) & (node < n_nodes)
    begin = tl.load(pair_start + node, mask=known, other=0).to(tl.int64)
    end = tl.load(pair_start + node + 1, mask=known, other=0).to(tl.int64)
    pair = lower_bound(pair_nbr, begin, end, other, nbr_steps)
    met = pair < end
    met = met & (tl.load(pair_nbr + pair, mask=met, other=-1).to(tl.int64) == other)
    first = tl.load(pair_pos_start + pair, mask=met, other=0).to(tl.int64)
    past = tl.load(pair_pos_start + pair + 1, mask=met, other=0).to(tl.int64)
    stop = lower_bound(pair_pos, first, past, cut, pos_steps)
    count = stop - first
    return count, tl.load(pair_pos + stop - 1, mask=count > 0, other=-1).to(tl.int64)


@triton.jit
def _all_meetings(
    pair_start, pair_nbr, pair_pos_start, pair_pos, node, other, cut, out_count, out_last, n, n_nodes,
    nbr_steps, pos_steps, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = i < n
    u = tl.load(node + i, mask=real, other=-1)
    v = tl.load(other + i, mask=real, other=-1)
    limit = tl.load(cut + i, mask=real, other=0)
    count, last = _meetings(pair_start, pair_nbr, pair_pos_start, pair_pos, u, v, limit, n_nodes, nbr_steps, pos_steps)
    tl.store(out_count + i, count, mask=real)
    tl.store(out_last + i, last, mask=real)


def meetings(index: IndexArrays, node: Tensor, other: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and last positions for node, other and cut of one shape."""
    n = node.numel()
    count, last = (torch.empty(node.shape, dtype=torch.int64, device=node.device) for _ in range(2))
    if n:
        _all_meetings[(triton.cdiv(n, 128),)](
            index.pair_start, index.pair_nbr, index.pair_pos_start, index.pair_pos,
            *(x.to(torch.int64).contiguous() for x in (node, other, cut)), count, last, n, index.n_nodes,
            steps(index.max_pairs), steps(index.max_meetings), BLOCK=128,
        )  # fmt: skip
    return count, last


@triton.jit
def _distances(
    pair_start, pair_nbr, pair_pos_start, pair_pos, elapsed, trees, hop, t, pair_cut, out_td, out_sd,
    n_others, n_relations, size, n_nodes, nbr_steps, pos_steps, absent, beyond,
    ALPHA: tl.constexpr, BETA: tl.constexpr, NEVER_MET: tl.constexpr, CORRELATED: tl.constexpr,
    SLOTS: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """A program for each (query, relation): TD and SD of the nodes of tree ``of`` to the root of tree ``to``."""
    query, relation = tl.program_id(0).to(tl.int64) // n_relations, tl.program_id(0) % n_relations
    of = relation
    to = relation
    if CORRELATED:  # the order of `cordgt.history.distance.relations`
        kind = (relation + n_others - 1) // n_others
        other_end = (relation + n_others - 1) % n_others + 1
        of = tl.where(kind <= 1, 0, other_end)
        to = tl.where((kind == 1) | (kind == 2), other_end, 0)
    c = tl.arange(0, SLOTS)
    real = c < size
    own = (query * (n_others + 1) + of) * size
    theirs = (query * (n_others + 1) + to) * size
    node = tl.load(trees + own + c, mask=real, other=-1)
    root = tl.load(trees + theirs)
    now = tl.load(t + query)
    limit = tl.load(pair_cut + query)
    count, last_pos = _meetings(
        pair_start, pair_nbr, pair_pos_start, pair_pos, node, root + tl.zeros((SLOTS,), tl.int64),
        limit + tl.zeros((SLOTS,), tl.int64), n_nodes, nbr_steps, pos_steps,
    )  # fmt: skip
    last = tl.load(elapsed + last_pos, mask=count > 0, other=0.0)
    share = last / tl.maximum(now, 2.2250738585072014e-308)
    td = ALPHA * share / tl.maximum(count, 1).to(tl.float64) + BETA * (1.0 - share)
    td = tl.where(count > 0, td, NEVER_MET)
    td = tl.where((node == root) & (node >= 0), 0.0, td)
    nearest = tl.zeros((SLOTS,), tl.int32) + beyond
    for start in range(0, size, OTHERS):
        k = start + tl.arange(0, OTHERS)
        other = tl.load(trees + theirs + k, mask=k < size, other=-2)
        hops = tl.load(hop + k, mask=k < size, other=0).to(tl.int32)
        same = node[:, None] == other[None, :]
        nearest = tl.minimum(nearest, tl.min(tl.where(same, hops[None, :], beyond), axis=1))
    sd = tl.where((node >= 0) & (nearest < beyond), nearest, absent)
    at = (query * n_relations + relation) * size + c
    tl.store(out_td + at, td, mask=real)
    tl.store(out_sd + at, sd.to(tl.int64), mask=real)


def distances(
    index: IndexArrays,
    trees: Tensor,
    hop: Tensor,
    hops: int,
    t: Tensor,
    pair_cut: Tensor,
    *,
    correlated: bool,
    alpha: float,
    beta: float,
    never_met: float,
    absent: int,
) -> tuple[Tensor, Tensor]:
    """TD (B, R, C) float64 and SD (B, R, C) int64 of the relations between the trees (B, 1 + M, C) of each query."""
    n, n_trees, size = trees.shape
    correlated = correlated and n_trees > 1
    n_relations = 3 * n_trees - 2 if correlated else n_trees
    td = torch.empty((n, n_relations, size), dtype=torch.float64, device=trees.device)
    sd = torch.empty((n, n_relations, size), dtype=torch.int64, device=trees.device)
    if n:
        _distances[(n * n_relations,)](
            index.pair_start, index.pair_nbr, index.pair_pos_start, index.pair_pos, index.elapsed, trees.contiguous(),
            hop, t.contiguous(), pair_cut.contiguous(), td, sd, n_trees - 1, n_relations, size, index.n_nodes,
            steps(index.max_pairs), steps(index.max_meetings), absent, hops + 1,
            ALPHA=float(alpha), BETA=float(beta), NEVER_MET=float(never_met), CORRELATED=correlated,
            SLOTS=triton.next_power_of_2(size), OTHERS=16, enable_fp_fusion=False,  # to the last bit as on the CPU
        )  # fmt: skip
    return td, sd


@triton.jit
def _ask(
    position, batch_start, src, dst, tie_start, elapsed, pool, epoch, key, out_src, out_dst, out_t, out_cut,
    out_pair_cut, n, n_pool, n_steps, EVENT: tl.constexpr, PAPER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = i < n
    at = tl.load(position + i, mask=real, other=0)
    start = tl.load(batch_start + i, mask=real, other=0)
    true = tl.load(dst + at)
    place = lower_bound(pool, tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64) + n_pool, true, n_steps)
    there = tl.load(pool + tl.minimum(place, n_pool - 1)) == true
    drawn = child(key.to(tl.uint64) + tl.zeros((BLOCK,), tl.uint64), tl.load(epoch) + tl.zeros((BLOCK,), tl.int64))
    drawn = below(child(drawn, at), n_pool - there.to(tl.int64))
    negative = tl.load(pool + drawn + (there & (drawn >= place)).to(tl.int64))
    own = tl.load(tie_start + at).to(tl.int64)
    so_far = tl.minimum(own, start)
    cut, pair_cut = own, own
    if EVENT == 0:
        pair_cut = so_far
        cut = own if PAPER else so_far
    tl.store(out_src + i, tl.load(src + at), mask=real)
    tl.store(out_dst + 2 * i, true, mask=real)
    tl.store(out_dst + 2 * i + 1, negative, mask=real)
    tl.store(out_t + i, tl.load(elapsed + at), mask=real)
    tl.store(out_cut + i, cut, mask=real)
    tl.store(out_pair_cut + i, pair_cut, mask=real)


def ask(
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
    """Source, candidates (B, 2), time, cut and pair_cut of the events at ``position``, each against one of the pool."""
    n = len(position)
    out_dst = torch.empty((n, 2), dtype=torch.int64, device=position.device)
    out_src, cut, pair_cut = (torch.empty_like(position) for _ in range(3))
    t = torch.empty(n, dtype=torch.float64, device=position.device)
    if n:
        _ask[(triton.cdiv(n, 128),)](
            position.contiguous(), batch_start.contiguous(), src, dst, index.tie_start, index.elapsed, pool, epoch, key,
            out_src, out_dst, t, cut, pair_cut, n, len(pool), steps(len(pool)), EVENT=visibility == "event",
            PAPER=visibility == "paper", BLOCK=128,
        )  # fmt: skip
    return out_src, out_dst, t, cut, pair_cut
