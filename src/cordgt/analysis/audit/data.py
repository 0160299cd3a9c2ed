"""What is to be known about data before a figure on it is believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cordgt.analysis.audit.checks import FAIL, NOTE, OK, WARNING, Check
from cordgt.errors import DataError
from cordgt.events.describe import n_repeated
from cordgt.events.stream import EventStream
from cordgt.tasks.link import split_of
from cordgt.tasks.protocol import Protocol


def audit_data(stream: EventStream, protocol: Protocol) -> list[Check]:
    """What there is to know about a stream before a figure on it is believed. FAIL where none can be had."""
    checks = [_ties(stream), _duplicates(stream), _gaps(stream)]
    try:
        split = split_of(stream, replace(protocol, mask_nodes=0.0))
    except DataError as error:
        return [*checks, Check("split", "training, validation, test", FAIL, str(error)), _destinations(stream, None)]
    test = split.test
    sizes = f"{len(split.train):,}, {len(split.validation):,} and {len(test):,} events"
    few = len(test) < 100
    checks.append(
        Check("split", "training, validation, test", WARNING if few else OK, sizes + (": few" if few else ""))
    )
    checks += [_repetition(stream, split.validation[0], test), _newness(stream, split.new_node, test)]
    return [*checks, _destinations(stream, test)]


def _ties(stream: EventStream) -> Check:
    sizes = np.bincount(stream.tie_start)
    share, largest = sizes[sizes > 1].sum() / stream.n_events, int(sizes.max())
    told = f"{share:.1%} of the events share their time with another; at most {largest:,} share one"
    many = largest > 0.05 * stream.n_events and largest > 10
    if many:
        told += ": they do not see each other, so much of the past is missing from their queries"
    return Check("ties", "events at one time", WARNING if many else NOTE, told)


def _duplicates(stream: EventStream) -> Check:
    n, loops = n_repeated(stream), int((stream.src == stream.dst).sum())
    many = n > 0.01 * stream.n_events
    told = f"{n:,} events repeat another in pair, time and features ({n / stream.n_events:.1%}); {loops:,} self-loops"
    return Check("duplicates", "events that are there twice", WARNING if many else NOTE, told)


def _gaps(stream: EventStream) -> Check:
    span = stream.elapsed[-1]
    if span == 0:
        return Check("gaps", "time between events", WARNING, "all events share one time")
    step = np.diff(stream.elapsed)
    at = int(step.argmax())
    share = step[at] / span
    when = stream.time.format_one(stream.t[at])
    told = f"the longest is {share:.1%} of the span, after {when} (event {at + 1:,} of {stream.n_events:,})"
    return Check("gaps", "time between events", WARNING if share > 0.1 else NOTE, told)


def _repetition(stream: EventStream, trained: int, test: np.ndarray) -> Check:
    low, high = np.minimum(stream.src, stream.dst), np.maximum(stream.src, stream.dst)
    order = np.lexsort((np.arange(stream.n_events), high, low))
    fresh = np.ones(stream.n_events, dtype=bool)
    fresh[1:] = (low[order][1:] != low[order][:-1]) | (high[order][1:] != high[order][:-1])
    first = np.empty(stream.n_events, dtype=np.int64)
    first[order] = order[np.maximum.accumulate(np.where(fresh, np.arange(stream.n_events), 0))]
    again, long_known = (first[test] < stream.tie_start[test]).mean(), (first[test] < trained).mean()
    told = f"{again:.1%} of the test events repeat an earlier pair, {long_known:.1%} one of the training period"
    if again > 0.8:
        told += ": remembering pairs is nearly enough, see the floors and --negatives historical"
    return Check("repetition", "test events and earlier pairs", WARNING if again > 0.8 else NOTE, told)


def _newness(stream: EventStream, new: np.ndarray, test: np.ndarray) -> Check:
    src, dst = new[stream.src[test]], new[stream.dst[test]]
    told = (
        f"{(src | dst).mean():.1%} of the test events touch a node that is not in the training period, "
        f"{(src & dst).mean():.1%} two; {new.sum():,} of {stream.n_nodes:,} nodes"
    )
    return Check("new nodes", "test events and nodes of the training", NOTE, told)


def _destinations(stream: EventStream, test: np.ndarray | None) -> Check:
    """Of the test events, or of all of them where the stream cannot be split."""
    counts = np.bincount(stream.dst if test is None else stream.dst[test])
    n, most = len(np.unique(stream.dst)), counts.max() / counts.sum()
    told = f"{n:,} destinations; the most frequent has {most:.1%} of the {'events' if test is None else 'test events'}"
    if n < 2:
        return Check("destinations", "what negatives are drawn from", FAIL, "one destination: nothing to tell it from")
    few = n < 20 or most > 0.5
    return Check(
        "destinations", "what negatives are drawn from", WARNING if few else NOTE, told + (": few" if few else "")
    )
