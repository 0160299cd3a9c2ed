"""Checks of a stream: what to know about the data before trusting a metric on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cordgt.analysis.audit.checks import FAIL, NOTE, OK, WARNING, Check
from cordgt.errors import DataError
from cordgt.events.describe import count_duplicates
from cordgt.events.stream import EventStream
from cordgt.tasks.link import split_stream
from cordgt.tasks.protocol import Protocol


def audit_data(stream: EventStream, protocol: Protocol) -> list[Check]:
    """Return the checks of a stream. FAIL means that no metric can be computed on it."""
    checks = [_check_ties(stream), _check_duplicates(stream), _check_gaps(stream)]
    try:
        split = split_stream(stream, replace(protocol, mask_nodes=0.0))
    except DataError as error:
        failure = Check("split", "training, validation, test", FAIL, str(error))
        return [*checks, failure, _check_destinations(stream, None)]
    test = split.test
    sizes = f"{len(split.train):,}, {len(split.validation):,} and {len(test):,} events"
    few = len(test) < 100
    return [
        *checks,
        Check(
            "split", "training, validation, test", WARNING if few else OK, f"{sizes}: few test events" if few else sizes
        ),
        _check_repetition(stream, split.validation[0], test),
        _check_new_nodes(stream, split.new_node, test),
        _check_destinations(stream, test),
    ]


def _warn_if(condition: bool, name: str, compared: str, detail: str, advice: str = "") -> Check:
    """A warning with ``advice`` if the condition holds, otherwise a note."""
    if not condition:
        return Check(name, compared, NOTE, detail)
    return Check(name, compared, WARNING, f"{detail}: {advice}" if advice else detail)


def _check_ties(stream: EventStream) -> Check:
    sizes = np.bincount(stream.tie_start)
    share, largest = sizes[sizes > 1].sum() / stream.n_events, int(sizes.max())
    detail = f"{share:.1%} of the events share their time with another; at most {largest:,} share one time"
    advice = "they do not see each other, so their queries miss much of the recent history"
    is_large = largest > 0.05 * stream.n_events and largest > 10
    return _warn_if(is_large, "ties", "events at the same time", detail, advice)


def _check_duplicates(stream: EventStream) -> Check:
    n, n_loops = count_duplicates(stream), int((stream.src == stream.dst).sum())
    share = n / stream.n_events
    detail = f"{n:,} events repeat another in pair, time and features ({share:.1%}); {n_loops:,} self-loops"
    return _warn_if(share > 0.01, "duplicates", "identical events", detail)


def _check_gaps(stream: EventStream) -> Check:
    span = stream.elapsed[-1]
    if span == 0:
        return Check("gaps", "time between events", WARNING, "all events have the same time")
    steps = np.diff(stream.elapsed)
    i = int(steps.argmax())
    share, start = steps[i] / span, stream.format_time(stream.t[i])
    detail = f"the longest is {share:.1%} of the time range, after {start} (event {i + 1:,} of {stream.n_events:,})"
    return _warn_if(share > 0.1, "gaps", "time between events", detail)


def _check_repetition(stream: EventStream, train_end: int, test: np.ndarray) -> Check:
    low, high = np.minimum(stream.src, stream.dst), np.maximum(stream.src, stream.dst)
    pair_key = low.astype(np.int64) * stream.n_nodes + high
    _, first_event, pair = np.unique(pair_key, return_index=True, return_inverse=True)
    first = first_event[pair[test]]  # position of the first event of each test pair
    repeated, in_training = (first < stream.tie_start[test]).mean(), (first < train_end).mean()
    detail = f"{repeated:.1%} of the test events repeat an earlier pair, {in_training:.1%} one of the training period"
    advice = "remembering pairs is nearly enough; compare with the baselines and --negatives historical"
    return _warn_if(repeated > 0.8, "repetition", "test events and earlier pairs", detail, advice)


def _check_new_nodes(stream: EventStream, is_new: np.ndarray, test: np.ndarray) -> Check:
    src, dst = is_new[stream.src[test]], is_new[stream.dst[test]]
    detail = (
        f"{(src | dst).mean():.1%} of the test events have a node that is not in the training period, "
        f"{(src & dst).mean():.1%} have two; {is_new.sum():,} of {stream.n_nodes:,} nodes are new"
    )
    return Check("new nodes", "test events and training nodes", NOTE, detail)


def _check_destinations(stream: EventStream, test: np.ndarray | None) -> Check:
    """Check the destinations of the test events, or of all events if the stream cannot be split."""
    n = len(np.unique(stream.dst))
    if n < 2:
        detail = "only one destination: there is no negative to compare it with"
        return Check("destinations", "candidates for negatives", FAIL, detail)
    counts = np.bincount(stream.dst if test is None else stream.dst[test])
    share = counts.max() / counts.sum()
    events = "events" if test is None else "test events"
    detail = f"{n:,} destinations; the most frequent has {share:.1%} of the {events}"
    return _warn_if(n < 20 or share > 0.5, "destinations", "candidates for negatives", detail, "few candidates")
