"""AP and AUC, compared with scikit-learn and with counting; near-equal scores, merged one tie at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from cordgt.models.base import SCORE_TOLERANCE
from cordgt.tasks.metrics import is_constant, link_metrics
from cordgt.tasks.ties import find_contenders, merge_near_ties

from . import slow

coarse = st.sampled_from((-2.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0))
fine = st.floats(-50, 50, allow_nan=False)
scores = st.one_of(
    st.lists(st.tuples(coarse, coarse), min_size=1, max_size=70),
    st.lists(st.tuples(fine, fine), min_size=1, max_size=70),
    st.lists(st.tuples(st.just(0.5), st.just(0.5)), min_size=1, max_size=70),
)


def by_sklearn(pos: np.ndarray, neg: np.ndarray) -> tuple[float, float]:
    truth = np.r_[np.ones(len(pos)), np.zeros(len(neg))]
    both = np.r_[pos, neg]
    return float(average_precision_score(truth, both)), float(roc_auc_score(truth, both))


def test_ap_and_auc_by_hand() -> None:
    """Ranked: 0.9 true, 0.8 wrong, 0.7 true and wrong, 0.1 true, 0 wrong; batches of 2 and a last one of 1.

    AP = (1/1 + 2/4 + 3/5) / 3. Of 9 pairs 0.9 wins 3, 0.7 wins 1 and a half, 0.1 wins 1. First batch: 0.9 and 0.7
    against 0.8 and 0: AP (1 + 2/3) / 2, AUC 3/4; second: 0.1 against 0.7: AP 1/2, AUC 0.
    """
    got = link_metrics(np.array([0.9, 0.7, 0.1]), np.array([0.8, 0.0, 0.7]), batch_size=2)
    assert got["ap"] == pytest.approx(0.7)
    assert got["auc"] == pytest.approx(5.5 / 9)
    assert got["ap_batch"] == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert got["auc_batch"] == pytest.approx(3 / 8)
    assert got["events"] == 3


@settings(max_examples=150)
@given(pairs=scores, batch_size=st.sampled_from((1, 2, 7, 30, 71)), dtype=st.sampled_from((np.float32, np.float64)))
def test_link_metrics(pairs: list[tuple[float, float]], batch_size: int, dtype: type[np.floating]) -> None:
    pos, neg = np.array(pairs, dtype=dtype).T
    got = link_metrics(pos, neg, batch_size=batch_size)
    expected = slow.link_metrics(pos.tolist(), neg.tolist(), batch_size)
    assert got.keys() == expected.keys()
    assert got == pytest.approx(expected, abs=1e-12)
    assert all(type(got[name]) is float for name in ("ap", "auc", "ap_batch", "auc_batch"))  # goes to JSON as it is


@settings(max_examples=60)
@given(pairs=scores, batch_size=st.sampled_from((2, 30)))
def test_link_metrics_equal_sklearn(pairs: list[tuple[float, float]], batch_size: int) -> None:
    pos, neg = np.array(pairs).T
    got = link_metrics(pos, neg, batch_size=batch_size)
    batches = [by_sklearn(pos[i : i + batch_size], neg[i : i + batch_size]) for i in range(0, len(pos), batch_size)]
    means = np.mean(batches, axis=0)
    assert (got["ap"], got["auc"]) == pytest.approx(by_sklearn(pos, neg), abs=1e-12)
    assert (got["ap_batch"], got["auc_batch"]) == pytest.approx((means[0], means[1]), abs=1e-12)


@pytest.mark.parametrize("n", [1, 29, 30, 31, 60, 1003])
def test_shorter_last_batch(n: int) -> None:
    rng = np.random.default_rng(n)
    pos, neg = rng.normal(0.5, 1, n).round(1), rng.normal(0, 1, n).round(1)
    got = link_metrics(pos, neg)
    batches = [by_sklearn(pos[i : i + 30], neg[i : i + 30]) for i in range(0, n, 30)]
    assert got["events"] == n
    assert (got["ap"], got["auc"]) == pytest.approx(by_sklearn(pos, neg), abs=1e-12)
    assert (got["ap_batch"], got["auc_batch"]) == pytest.approx(tuple(np.mean(batches, axis=0)), abs=1e-12)


@given(pairs=scores)
def test_order_within_a_batch_does_not_matter(pairs: list[tuple[float, float]]) -> None:
    pos, neg = np.array(pairs).T
    forward, backward = link_metrics(pos, neg, len(pos)), link_metrics(pos[::-1], neg[::-1], len(pos))
    assert forward == pytest.approx(backward, abs=1e-12)


def test_metrics_without_events_are_none() -> None:
    nothing = np.array([])
    assert link_metrics(nothing, nothing) == {"ap": None, "auc": None, "ap_batch": None, "auc_batch": None, "events": 0}


@pytest.mark.parametrize("n", [1, 3, 1000, 406_304])
def test_constant_scores_are_detected(n: int) -> None:
    """Exactly a half, both, also where rounding could creep in: that is how a training that collapsed is told."""
    same = np.full(n, 0.25, dtype=np.float32)
    assert is_constant(link_metrics(same, same))
    other = same.copy()
    other[0] = 0.5
    assert not is_constant(link_metrics(other, same))
    assert not is_constant(link_metrics(same[:0], same[:0]))


# Near-equal scores ---------------------------------------------------------------------------------------------------

# A few places on the axis, far from each other or not, and steps around them of up to three tolerances.
near = st.builds(
    lambda place, steps: place + steps * SCORE_TOLERANCE * max(1.0, abs(place)) / 4,
    st.sampled_from((-30.0, -1.0, -0.0, 0.0, 0.5, 0.500025, 30.0)),
    st.integers(-12, 12),
)
many = st.one_of(st.lists(near, max_size=60), st.lists(fine, max_size=60), st.lists(coarse, max_size=60))


def test_near_equal_scores_by_hand() -> None:
    """Above 1 the tolerance grows with the score that opens the tie."""
    e = SCORE_TOLERANCE
    scores = np.array([0.5, 0.5 - 0.6 * e, 0.5 - 1.2 * e, 10 - 9 * e, 10.0, -3.0])
    assert merge_near_ties(scores).tolist() == [0.5, 0.5, 0.5 - 1.2 * e, 10.0, 10.0, -3.0]
    assert merge_near_ties(scores, 0.0).tolist() == scores.tolist()
    assert merge_near_ties(scores.reshape(2, 3)).shape == (2, 3)
    assert merge_near_ties(np.empty((0, 2))).shape == (0, 2)


@settings(max_examples=200)
@given(scores=many, n=st.integers(1, 12), tolerance=st.sampled_from((SCORE_TOLERANCE, 0.0, 0.3)))
def test_contenders_have_the_best_after_ties(scores: list[float], n: int, tolerance: float) -> None:
    merged = slow.merge_near_ties(scores, tolerance)
    best = sorted(range(len(scores)), key=lambda i: (-merged[i], i))[:n]
    kept = find_contenders(np.array(scores), n, tolerance)
    among = merge_near_ties(np.array(scores)[kept], tolerance)
    order = np.lexsort((kept, -among))[:n]
    assert kept[order].tolist() == best and among[order].tolist() == [merged[i] for i in best]


@settings(max_examples=200)
@given(scores=many, tolerance=st.sampled_from((SCORE_TOLERANCE, 0.0, 0.3)))
def test_merge_near_ties(scores: list[float], tolerance: float) -> None:
    merged = merge_near_ties(np.array(scores), tolerance)
    assert merged.dtype == np.float64
    assert merged.tolist() == slow.merge_near_ties(scores, tolerance)
    assert merge_near_ties(merged, tolerance).tolist() == merged.tolist()
    for a, b in zip(scores, merged.tolist(), strict=True):
        assert slow.is_near(a, b, tolerance)


@settings(max_examples=100)
@given(scores=st.lists(near, min_size=1, max_size=40), data=st.data())
def test_merged_scores_do_not_depend_on_the_order(scores: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(scores))))
    expected = merge_near_ties(np.array(scores))[order]
    assert merge_near_ties(np.array(scores)[order]).tolist() == expected.tolist()


@settings(max_examples=100)
@given(
    pairs=st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=60), seed=st.integers(0, 9)
)
def test_rounding_does_not_change_ap_and_auc(pairs: list[tuple[int, int]], seed: int) -> None:
    """Equal inputs whose scores differ by rounding: the metrics are those of equal scores, exactly."""
    clean = np.array(pairs, dtype=np.float64)
    noise = np.random.default_rng(seed).uniform(-0.1, 0.1, clean.shape) * SCORE_TOLERANCE
    noisy = merge_near_ties(clean + noise)
    expected = link_metrics(*clean.T)
    assert link_metrics(*noisy.T) == expected
    everywhere = np.full_like(clean, 0.3) + noise
    assert is_constant(link_metrics(*merge_near_ties(everywhere).T))
