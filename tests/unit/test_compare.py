"""The paired bootstrap, compared with a slow one, and its sentences."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from cordgt.analysis.compare import SortedScores, _resample_counts, paired_bootstrap
from cordgt.analysis.remarks import difference_remark

Scores = tuple[np.ndarray, np.ndarray]


def some_scores(seed: int, n: int, *, tied: bool = False, lead: float = 0.8) -> Scores:
    rng = np.random.default_rng(seed)
    positive, negative = rng.normal(lead, 1, n), rng.normal(0, 1, n)
    return (positive.round(), negative.round()) if tied else (positive, negative)


def slow_ap_and_auc(scores: Scores, sample: np.ndarray) -> tuple[float, float]:
    """AP and AUC of resampled events, repeated ones counted again."""
    true = np.repeat([1, 0], len(sample))
    both = np.concatenate([scores[0][sample], scores[1][sample]])
    return average_precision_score(true, both), roc_auc_score(true, both)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("n", [1, 2, 17, 60])
def test_weights_give_the_metrics_of_repeated_events(n: int, tied: bool) -> None:
    scores = some_scores(n, n, tied=tied)
    rng = np.random.default_rng(5)
    samples = rng.integers(n, size=(9, n))
    weight = np.stack([np.bincount(row, minlength=n) for row in samples]).astype(np.float64)
    ap, auc = SortedScores.from_scores(*scores).ap_and_auc(weight)
    expected = np.array([slow_ap_and_auc(scores, row) for row in samples])
    np.testing.assert_allclose(ap, expected[:, 0], rtol=1e-12)
    np.testing.assert_allclose(auc, expected[:, 1], rtol=1e-12)


def test_resamples_are_draws_with_replacement() -> None:
    weight = _resample_counts(np.random.default_rng(0), 30, 500)
    assert weight.shape == (500, 30)
    assert (weight.sum(axis=1) == 30).all()
    assert weight.mean() == pytest.approx(1.0)
    assert weight.var() == pytest.approx(1 - 1 / 30, rel=0.05)


@pytest.mark.parametrize("tied", [False, True])
def test_the_interval_is_that_of_a_slow_bootstrap(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cordgt.analysis.compare.MAX_WEIGHTS", 7 * 40)  # several batches, the last one shorter
    n, resamples = 40, 60
    a, b = some_scores(1, n, tied=tied), some_scores(2, n, tied=tied, lead=1.2)
    ranks = [np.random.default_rng(k).integers(1, 9, n).astype(np.float64) for k in (3, 4)]
    found = paired_bootstrap([a, b], ranks, resamples=resamples, seed=11)
    rng = np.random.default_rng(11)
    differences = []
    for done in range(0, resamples, 7):
        for sample in rng.integers(n, size=(min(7, resamples - done), n)):
            one, other = slow_ap_and_auc(a, sample), slow_ap_and_auc(b, sample)
            mrr = [np.mean(1 / r[sample]) for r in ranks]
            differences.append((other[0] - one[0], other[1] - one[1], mrr[1] - mrr[0]))
    everything = np.arange(n)
    for i, name in enumerate(("ap", "auc", "mrr")):
        low, high = np.quantile([d[i] for d in differences], [0.025, 0.975])
        assert (found[name]["low"], found[name]["high"]) == pytest.approx((low, high))
        if name != "mrr":
            assert found[name]["a"] == pytest.approx(slow_ap_and_auc(a, everything)[i])
            assert found[name]["b"] == pytest.approx(slow_ap_and_auc(b, everything)[i])
        assert found[name]["difference"] == found[name]["b"] - found[name]["a"]


def test_equal_scores_have_no_difference() -> None:
    scores = some_scores(1, 50)
    for row in paired_bootstrap([scores, scores], resamples=40).values():
        assert row["difference"] == row["low"] == row["high"] == 0


def test_the_seed_determines_the_interval() -> None:
    a, b = some_scores(1, 50), some_scores(2, 50)
    assert paired_bootstrap([a, b], resamples=30, seed=4) == paired_bootstrap([a, b], resamples=30, seed=4)
    assert paired_bootstrap([a, b], resamples=30, seed=4) != paired_bootstrap([a, b], resamples=30, seed=5)


def test_pairing_narrows_the_interval() -> None:
    """The difference of two similar runs is more certain than that of two unrelated ones."""
    a = some_scores(1, 400)
    b = (a[0] + 0.1, a[1])
    similar = paired_bootstrap([a, b], resamples=200)["ap"]
    unrelated = paired_bootstrap([a, some_scores(2, 400, lead=0.9)], resamples=200)["ap"]
    assert similar["low"] > 0
    assert similar["high"] - similar["low"] < 0.2 * (unrelated["high"] - unrelated["low"])


def test_ten_thousand_events_take_seconds() -> None:
    a, b = some_scores(1, 10_000), some_scores(2, 10_000)
    found = paired_bootstrap([a, b], resamples=50)  # of 2000
    assert found["auc"]["low"] < found["auc"]["difference"] < found["auc"]["high"]


@pytest.mark.parametrize(
    ("low", "difference", "high", "words"),
    [
        (0.0031, 0.0042, 0.0055, "B is better on AP: +0.42 points (0.31 to 0.55)."),
        (-0.0055, -0.0042, -0.0031, "A is better on AP: +0.42 points (0.31 to 0.55)."),
        (-0.0011, 0.0002, 0.0015, "No clear difference in AP: +0.02 points (-0.11 to +0.15)."),
    ],
)
def test_difference_remark(low: float, difference: float, high: float, words: str) -> None:
    assert difference_remark("ap", {"low": low, "difference": difference, "high": high}) == words
