"""Usual column names, by role, and the headers of published layouts. Names are compared in lower case."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

Layout = Literal["", "ml", "jodie"]

_ENDPOINT_PAIRS = (
    ("src", "dst"), ("src", "dest"), ("src_id", "dst_id"), ("source", "target"), ("source", "destination"),
    ("source_id", "target_id"), ("from", "to"), ("from_id", "to_id"), ("fromnodeid", "tonodeid"), ("u", "i"),
    ("u", "v"), ("i", "j"), ("user", "item"), ("user_id", "item_id"), ("sender", "receiver"), ("sender", "recipient"),
    ("caller", "callee"), ("origin", "destination"), ("node1", "node2"), ("head", "tail"),
)  # fmt: skip
_USER_NAMES = {
    "user", "userid", "user_id", "username", "customer", "customerid", "customer_id", "client", "client_id", "buyer",
    "visitor", "visitor_id", "viewer", "reader", "listener", "student", "student_id", "reviewer", "member",
}  # fmt: skip
_ITEM_NAMES = {
    "item", "itemid", "item_id", "product", "productid", "product_id", "movie", "movieid", "movie_id", "song", "track",
    "artist", "page", "page_id", "book", "book_id", "course", "course_id", "business", "business_id", "shop", "store",
    "video", "video_id", "article", "article_id", "post", "post_id", "ad", "sku", "asin", "location", "location_id",
}  # fmt: skip
SRC_NAMES = {a for a, _ in _ENDPOINT_PAIRS if a != "i"} | _USER_NAMES
DST_NAMES = {b for _, b in _ENDPOINT_PAIRS if b != "j"} | _ITEM_NAMES
_TIME_NAMES = {
    "t", "time", "ts", "timestamp", "time_stamp", "date", "datetime", "date_time", "unixtime", "unix_time",
    "unix_timestamp", "unixreviewtime", "created_at", "event_time", "epoch",
}  # fmt: skip
# Recognized only if no column has a name in _TIME_NAMES.
_LESS_COMMON_TIME_NAMES = {"when", "at", "occurred_at", "happened_at"}
LABEL_NAMES = {"label", "state_label", "y"}
NODE_NAMES = {"id", "ids", "node", "nodes", "node_id", "nodeid"}
FEATURE_PATTERN = re.compile(r"feature_\d+", re.IGNORECASE)
FEATURE_LIST_NAMES = {"features", "msg"}
_ML_HEADER = ["u", "i", "ts", "label", "idx"]
_JODIE_HEADER = ["user_id", "item_id", "timestamp", "state_label"]


def detect_layout(header: Sequence[str]) -> Layout:
    """Return the published layout with this header: ``ml`` (ml_NAME.csv, as for TGAT), ``jodie``, or empty."""
    names = [name.lower() for name in header]
    if names == _ML_HEADER or (names[1:] == _ML_HEADER and (names[0] == "" or names[0].startswith("unnamed"))):
        return "ml"
    if names[:4] == _JODIE_HEADER and len(names) == 5 and names[4].startswith("comma_separated_list"):
        return "jodie"
    return ""


def find_column(name: str, header: Sequence[str]) -> int | None:
    """Return the position of a column by exact name, or by the only name that differs just in case."""
    if name in header:
        return header.index(name)
    matches = [k for k, other in enumerate(header) if other.lower() == name.lower()]
    return matches[0] if len(matches) == 1 else None


def match_columns(header: Sequence[str], names: set[str], exclude: Collection[int] = ()) -> list[int]:
    """Return the positions of the columns with one of these names, without those in ``exclude``."""
    return [k for k, name in enumerate(header) if name.strip().lower() in names and k not in exclude]


def match_time_columns(header: Sequence[str], exclude: Collection[int] = ()) -> list[int]:
    """Return the candidates for the time column."""
    return match_columns(header, _TIME_NAMES, exclude) or match_columns(header, _LESS_COMMON_TIME_NAMES, exclude)


def match_endpoints(header: Sequence[str], exclude: Collection[int] = ()) -> tuple[list[int], list[int]]:
    """Return the candidates for src and dst: the only complete pair of usual names, else all with a usual name."""
    names = [None if k in exclude else name.strip().lower() for k, name in enumerate(header)]
    pairs = [(names.index(a), names.index(b)) for a, b in _ENDPOINT_PAIRS if names.count(a) == names.count(b) == 1]
    if len(pairs) == 1:
        return [pairs[0][0]], [pairs[0][1]]
    return match_columns(header, SRC_NAMES, exclude), match_columns(header, DST_NAMES, exclude)


def match_other_endpoint(
    header: Sequence[str], src: int | None, dst: int | None, exclude: Collection[int]
) -> tuple[list[int], list[int]]:
    """Return the candidates for src and dst if one of them is given: the usual partner of it, else all usual names."""
    names = [name.strip().lower() for name in header]
    partners_of_src = {b for a, b in _ENDPOINT_PAIRS if src is not None and a == names[src]}
    partners_of_dst = {a for a, b in _ENDPOINT_PAIRS if dst is not None and b == names[dst]}
    return (
        match_columns(header, partners_of_dst, exclude) or match_columns(header, SRC_NAMES | {"i"}, exclude),
        match_columns(header, partners_of_src, exclude) or match_columns(header, DST_NAMES | {"j"}, exclude),
    )


def are_users_and_items(src: str, dst: str) -> bool:
    """Whether two columns are named like users and items, whose ids are then separate."""
    return src.strip().lower() in _USER_NAMES and dst.strip().lower() in _ITEM_NAMES
