"""What columns are usually called, and the headers of published layouts. Names are compared in lower case."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Layout = Literal["", "ml", "jodie"]

_PAIRS = (
    ("src", "dst"), ("src", "dest"), ("src_id", "dst_id"), ("source", "target"), ("source", "destination"),
    ("source_id", "target_id"), ("from", "to"), ("from_id", "to_id"), ("fromnodeid", "tonodeid"), ("u", "i"),
    ("u", "v"), ("i", "j"), ("user", "item"), ("user_id", "item_id"), ("sender", "receiver"), ("sender", "recipient"),
    ("caller", "callee"), ("origin", "destination"), ("node1", "node2"), ("head", "tail"),
)  # fmt: skip
_PERSON = {
    "user", "userid", "user_id", "username", "customer", "customerid", "customer_id", "client", "client_id", "buyer",
    "visitor", "visitor_id", "viewer", "reader", "listener", "student", "student_id", "reviewer", "member",
}  # fmt: skip
_THING = {
    "item", "itemid", "item_id", "product", "productid", "product_id", "movie", "movieid", "movie_id", "song", "track",
    "artist", "page", "page_id", "book", "book_id", "course", "course_id", "business", "business_id", "shop", "store",
    "video", "video_id", "article", "article_id", "post", "post_id", "ad", "sku", "asin", "location", "location_id",
}  # fmt: skip
SRC = {a for a, _ in _PAIRS if a != "i"} | _PERSON
_DST = {b for _, b in _PAIRS if b != "j"} | _THING
_TIME = {
    "t", "time", "ts", "timestamp", "time_stamp", "date", "datetime", "date_time", "unixtime", "unix_time",
    "unix_timestamp", "unixreviewtime", "created_at", "event_time", "epoch",
}  # fmt: skip
# Taken for times only where none of those above is there.
_OTHER_TIME = {"when", "at", "occurred_at", "happened_at"}
LABEL = {"label", "state_label", "y"}
NODE = {"id", "ids", "node", "nodes", "node_id", "nodeid"}
FEATURE = re.compile(r"feature_\d+", re.IGNORECASE)
FEATURE_LIST = {"features", "msg"}
_ML_HEADER = ["u", "i", "ts", "label", "idx"]
_JODIE_HEADER = ["user_id", "item_id", "timestamp", "state_label"]


def layout_of(header: Sequence[str]) -> Layout:
    """The published layout that has this header: ``ml`` (ml_NAME.csv of TGAT and its kin), ``jodie``, or none."""
    names = [k.lower() for k in header]
    if names == _ML_HEADER or (names[1:] == _ML_HEADER and (names[0] == "" or names[0].startswith("unnamed"))):
        return "ml"
    if names[:4] == _JODIE_HEADER and len(names) == 5 and names[4].startswith("comma_separated_list"):
        return "jodie"
    return ""


def find_name(asked: str, names: Sequence[str]) -> int | None:
    """Position of a name, as spelt or else in another case if only one is so."""
    if asked in names:
        return names.index(asked)
    alike = [k for k, name in enumerate(names) if name.lower() == asked.lower()]
    return alike[0] if len(alike) == 1 else None


def named_in(names: Sequence[str], usual: set[str], taken: set[int] | None = None) -> list[int]:
    """Positions of the names that are among the usual ones, less those taken."""
    return [k for k, name in enumerate(names) if name.strip().lower() in usual and k not in (taken or set())]


def usual_times(names: Sequence[str], taken: set[int] | None = None) -> list[int]:
    """Candidates for the time: those with a usual name, else with one that is usual enough."""
    return named_in(names, _TIME, taken) or named_in(names, _OTHER_TIME, taken)


def usual_ends(names: Sequence[str], taken: set[int] | None = None) -> tuple[list[int], list[int]]:
    """Candidates for src and dst: those of the one complete usual pair, else all with a usual name."""
    low = [None if k in (taken or set()) else name.strip().lower() for k, name in enumerate(names)]
    pairs = [(low.index(a), low.index(b)) for a, b in _PAIRS if low.count(a) == 1 and low.count(b) == 1]
    if len(pairs) == 1:
        return [pairs[0][0]], [pairs[0][1]]
    return named_in(names, SRC, taken), named_in(names, _DST, taken)


def usual_partners(
    names: Sequence[str], src: int | None, dst: int | None, taken: set[int]
) -> tuple[list[int], list[int]]:
    """Candidates for the end that was not asked for: the usual partner of the one that was, else all usual names."""
    low = [name.strip().lower() for name in names]
    of_src = {b for a, b in _PAIRS if src is not None and a == low[src]}
    of_dst = {a for a, b in _PAIRS if dst is not None and b == low[dst]}
    return (
        named_in(names, of_dst, taken) or named_in(names, SRC | {"i"}, taken),
        named_in(names, of_src, taken) or named_in(names, _DST | {"j"}, taken),
    )


def are_people_and_things(src: str, dst: str) -> bool:
    """Whether the columns are called like users and items, whose ids then say nothing about each other."""
    return src.strip().lower() in _PERSON and dst.strip().lower() in _THING
