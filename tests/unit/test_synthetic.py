"""The synthetic stream: reproducible, consistent with its intensities, neither trivial nor impossible."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from cordgt.errors import SettingError
from cordgt.io.datasets.synthetic import DAY, Excitation, GroundTruth, SyntheticStream, synthetic_stream

SMALL = {"nodes": 30, "events": 300}


@cache
def middling(seed: int = 0) -> SyntheticStream:
    return synthetic_stream(nodes=90, events=3000, seed=seed)


@cache
def full(seed: int = 0) -> SyntheticStream:
    return synthetic_stream(seed=seed)


def with_events(truth: GroundTruth, keep: np.ndarray) -> GroundTruth:
    return dataclasses.replace(truth, src=truth.src[keep], dst=truth.dst[keep], t=truth.t[keep])


# --- the stream ---


def test_same_seed_gives_same_stream() -> None:
    one, two, other = (synthetic_stream(**SMALL, seed=seed) for seed in (5, 5, 6))
    assert one.stream.ids.names.equals(two.stream.ids.names)
    for column in ("src", "dst", "t"):
        np.testing.assert_array_equal(getattr(one.stream, column), getattr(two.stream, column))
    assert not np.array_equal(one.stream.t, other.stream.t)


@pytest.mark.parametrize(("nodes", "events"), [(4, 1), (7, 40), (30, 300)])
def test_sizes(nodes: int, events: int) -> None:
    made = synthetic_stream(nodes=nodes, events=events)
    assert made.stream.n_events == events
    assert made.stream.n_nodes <= nodes == len(made.truth.base_rate)
    assert made.stream.t.dtype == np.int64
    assert (made.stream.src != made.stream.dst).all()


def test_ground_truth_uses_the_ids_of_the_stream() -> None:
    stream, truth = full().stream, full().truth
    np.testing.assert_array_equal(stream.src, truth.src)
    np.testing.assert_array_equal(stream.dst, truth.dst)
    colour = [name.rsplit("-", 1)[0] for name in stream.ids.names.to_pylist()]
    of_colour = {(name, int(c)) for name, c in zip(colour, truth.community, strict=False)}
    assert len(of_colour) == len(set(colour)) == truth.community.max() + 1


def test_has_ties_repeats_and_both_directions() -> None:
    stream = full().stream
    assert 0 < (np.diff(stream.t) == 0).sum() < 50
    pairs = set(zip(stream.src.tolist(), stream.dst.tolist(), strict=True))
    assert len(pairs) < stream.n_events / 2
    assert any((b, a) in pairs for a, b in pairs)


def test_newcomers_have_no_events_before_they_join() -> None:
    stream, truth = full().stream, full().truth
    assert (stream.t >= truth.join_time[stream.src]).all()
    assert (stream.t >= truth.join_time[stream.dst]).all()
    assert (truth.join_time[: stream.n_nodes] > 0).sum() > 50


@pytest.mark.parametrize(
    "wrong",
    [{"nodes": 3}, {"events": 0}, {"days": 0}, {"newcomers": 1.0}, {"communities": 0}, {"nodes": 10, "communities": 6}],
)
def test_invalid_settings_raise(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingError):
        synthetic_stream(**wrong)


def test_unstable_process_raises() -> None:
    with pytest.raises(SettingError, match="not stable"):
        Excitation(repetition=0.6, closure=0.2)


# --- the intensity ---


def test_intensity_matches_hand_computation() -> None:
    excitation = Excitation(repetition=0.5, repetition_delay=10, closure=0.2, closure_delay=4, recent_window=100)
    base = np.array([[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]]) * 1e-4
    src, dst, t = np.array([1, 0, 2]), np.array([2, 1, 1]), np.array([5, 20, 20])
    truth = GroundTruth(
        base, np.array([1.0, 3.0, 1.0, 1.0]), np.zeros(4, int), np.array([0, 0, 0, 30]), excitation, src, dst, t
    )

    def again(*ago: int) -> float:
        return sum(0.5 * 0.1 * 0.9 ** (seconds - 1) for seconds in ago)

    def closing(ago: int) -> float:
        return 0.2 * 0.25 * 0.75 ** (ago - 1)

    # At 20, 0 and 1 have an event, and 2 is a recent partner of 1: closure of 0 and 2. 1 and 2 have one in the same
    # second, which does not count yet.
    np.testing.assert_allclose(truth.intensity(0, 1, 20), 1e-4 / 4)
    np.testing.assert_allclose(truth.intensity(0, 1, 23), (1e-4 + again(3)) / 4)
    np.testing.assert_allclose(truth.intensity(1, 0, 23), (1e-4 + again(3)) * 3 / 4)
    np.testing.assert_allclose(truth.intensity(1, 2, 23), (4e-4 + again(3, 18)) * 3 / 4)
    np.testing.assert_allclose(truth.intensity(0, 2, [20, 23]), [2e-4 / 2, (2e-4 + closing(3)) / 2])
    # 3 joins at 30; no self-loops.
    np.testing.assert_allclose(truth.intensity(0, 3, [29, 30]), [0, 3e-4 / 2])
    assert truth.intensity(2, 2, 23) == 0
    partners = truth.partner_probability(np.full(4, 1), np.arange(4), 23)
    rates = truth.intensity(1, np.arange(4), 23)
    np.testing.assert_allclose(partners, rates / rates.sum())


def test_intensity_depends_only_on_earlier_events() -> None:
    truth = synthetic_stream(**SMALL, seed=3).truth
    rng = np.random.default_rng(0)
    cuts = np.append(rng.integers(1, len(truth.t), 12), np.flatnonzero(np.diff(truth.t) == 0))
    everyone = np.arange(len(truth.base_rate))
    for at in truth.t[cuts]:
        earlier = truth.t < at
        later = dataclasses.replace(
            truth,
            src=np.where(earlier, truth.src, rng.permutation(truth.src)),
            dst=np.where(earlier, truth.dst, rng.permutation(truth.dst)),
        )
        now = truth.intensity(everyone[:, None], everyone, at)
        np.testing.assert_array_equal(now, with_events(truth, earlier).intensity(everyone[:, None], everyone, at))
        np.testing.assert_array_equal(now, later.intensity(everyone[:, None], everyone, at))


def test_intensity_before_the_first_event_is_the_base_rate() -> None:
    truth = synthetic_stream(**SMALL).truth
    empty = with_events(truth, truth.t < 0)
    both = empty.intensity(1, 2, 90 * DAY) + empty.intensity(2, 1, 90 * DAY)
    np.testing.assert_allclose(both, truth.base_rate[1, 2])


@pytest.mark.parametrize("seed", range(3))
def test_event_counts_match_the_intensity(seed: int) -> None:
    """The intensity of all pairs, summed over time, is the number of events, up to chance: three times 1 in 50."""
    truth = middling(seed).truth
    everyone = np.arange(len(truth.base_rate))
    n_seconds = 400
    at = (np.arange(n_seconds) + np.random.default_rng(1).random(n_seconds)) * truth.t[-1] / n_seconds
    rates = [truth.intensity(everyone[:, None], everyone, int(second)).sum() for second in at]
    assert np.mean(rates) * truth.t[-1] == pytest.approx(len(truth.t), rel=0.06)


@pytest.mark.parametrize("seed", range(3))
def test_partner_frequencies_match_partner_probability(seed: int) -> None:
    """Partner counts match the probabilities within four standard deviations."""
    truth = middling(seed).truth
    n, everyone = len(truth.t), np.arange(len(truth.base_rate))
    rates = truth.intensity(truth.src[:, None], everyone, truth.t[:, None])  # (E, N)
    probability = rates / rates.sum(axis=1, keepdims=True)
    chosen = everyone == truth.dst[:, None]
    np.testing.assert_allclose(truth.partner_probability(truth.src, truth.dst, truth.t), probability[chosen])

    met, met_lately, friend_of_friend = (np.zeros((n, len(everyone)), bool) for _ in range(3))
    last = np.full((len(everyone), len(everyone)), -np.inf)
    n_known = 0
    for event, (u, t) in enumerate(zip(truth.src, truth.t, strict=True)):
        for earlier in range(n_known, n_known := int(np.searchsorted(truth.t, t))):
            a, b = truth.src[earlier], truth.dst[earlier]
            last[a, b] = last[b, a] = truth.t[earlier]
        lately = last > t - DAY
        met[event], met_lately[event] = last[u] > -np.inf, lately[u]
        friend_of_friend[event] = lately[lately[u]].any(axis=0) & ~met[event]
    newcomer = np.broadcast_to(truth.join_time > 0, met.shape)
    neighbour = truth.community == truth.community[truth.src[:, None]]
    for kind in (met, met_lately, friend_of_friend, newcomer, neighbour):
        expected = (probability * kind).sum(axis=1)
        surprise = (chosen & kind).sum() - expected.sum()
        assert abs(surprise) < 4 * np.sqrt((expected * (1 - expected)).sum())


# --- best possible score ---


@pytest.mark.parametrize("seed", [0, 1])
def test_ground_truth_beats_pairs_seen_before(seed: int) -> None:
    truth = full(seed).truth
    test = np.arange(int(0.85 * len(truth.t)), len(truth.t))
    src, dst, t = truth.src[test], truth.dst[test], truth.t[test]
    pool = np.unique(truth.dst)
    random = np.random.default_rng(7).choice(pool, len(test))
    random = np.where(random == dst, pool[(np.searchsorted(pool, dst) + 1) % len(pool)], random)

    def seen(v: np.ndarray) -> np.ndarray:
        """Whether the pairs had an event before, in either direction."""
        met = np.full((len(truth.base_rate), len(truth.base_rate)), np.iinfo(np.int64).max)
        np.minimum.at(met, (truth.src, truth.dst), truth.t)
        return np.minimum(met, met.T)[src, v] < t

    is_event = np.repeat([1, 0], len(test))
    by_truth = [truth.partner_probability(src, v, t) for v in (dst, random)]
    by_rate = [truth.intensity(src, v, t) for v in (dst, random)]
    oracle = average_precision_score(is_event, np.concatenate(by_truth))
    rate = average_precision_score(is_event, np.concatenate(by_rate))
    repeat = average_precision_score(is_event, np.concatenate([seen(dst), seen(random)]))
    assert 0.96 < oracle < 0.995
    assert oracle - 0.02 < rate < oracle
    assert 0.80 < repeat < 0.88
