"""Gowalla's check-ins cut by main category and period, as the paper's Food and Outdoors are.

Three files of the published crawl: check-ins (``userid, placeid, datetime``), spots with their categories, and which
category belongs to which of the seven main ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cordgt.errors import DataError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.files import short

CHECKINS, SPOTS, STRUCTURE = "gowalla_checkins.csv", "gowalla_spots_subset1.csv", "gowalla_category_structure.json"
FILES = (CHECKINS, SPOTS, STRUCTURE)


@dataclass(frozen=True)
class Cut:
    """A main category, and the period ``first <= time < past``, ISO dates in UTC."""

    category: str
    first: str
    past: str


CUTS = {
    "outdoors": Cut("Outdoors", "2009-01-01", "2011-01-01"),  # "from Jan. 2009 to Dec. 2010"
    "food": Cut("Food", "2011-01-01", "2011-07-01"),  # "from Jan. 2011 to June 2011"
}


def cut_checkins(folder: Path, name: str, progress: Callable[[int], None] | None = None) -> EventStream:
    """The dataset of that name from the three files in ``folder``: users and spots, times in seconds since the first.

    A spot counts where one of its categories lies under the main one; categories that the structure does not list
    belong to none. ``progress`` is told how many bytes of check-ins were read so far. DataError where a file is not as
    it was published.
    """
    cut = CUTS[name]
    wanted = category_ids(folder / STRUCTURE, cut.category)
    places = spots_of(folder / SPOTS, wanted)
    users, spots, times = _matching(folder / CHECKINS, places, cut, progress)
    if not len(users):
        raise DataError(
            f"{folder / CHECKINS} has no check-in at a spot of {cut.category} from {cut.first} to {cut.past}."
        )
    note = f"check-ins at spots of {cut.category} from {cut.first} to before {cut.past}, UTC"
    seconds = (times - times.min()) // 1_000_000
    return EventStream.from_columns(
        users, spots, seconds, shared_ids=False, time=TimeAxis("number"), name=name, notes=(note,)
    )


def category_ids(path: Path, main: str) -> set[int]:
    """The ids of a main category and of everything below it, in the published structure."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        top = {str(k["name"]): k for k in given["spot_categories"]}
        return set(_below(top[main]))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{path} is not Gowalla's category structure: it has no main category {main}.") from None


def _below(category: Any) -> list[int]:
    """The id in ``/categories/89`` of a category and of those below it."""
    found = [int(m) for m in re.findall(r"/categories/(\d+)", str(category.get("url", "")))]
    for inner in category.get("spot_categories") or []:
        found += _below(inner)
    return found


def spots_of(path: Path, wanted: set[int]) -> np.ndarray:
    """Ids of the spots with one of the categories, ascending: the column ``spot_categories`` names them by address."""
    found = []
    for batch in _batches(path, {"id": pa.int64(), "spot_categories": pa.string()}):
        written = pc.fill_null(batch.column("spot_categories"), "").to_pylist()
        kept = [any(int(m) in wanted for m in re.findall(r"/categories/(\d+)", text)) for text in written]
        found.append(np.asarray(batch.column("id").filter(pa.array(kept, pa.bool_()))))
    spots = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    if not len(spots):
        raise DataError(f"{path} has no spot of these categories ({len(wanted)} of them were looked for).")
    return spots


def _matching(
    path: Path, places: np.ndarray, cut: Cut, progress: Callable[[int], None] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Users, spots and times in microseconds of the check-ins that belong."""
    first, past = (TimeAxis("date").parse(day) for day in (cut.first, cut.past))
    kinds = {"userid": pa.int64(), "placeid": pa.int64(), "datetime": pa.string()}
    users, spots, times, read = [], [], [], 0
    for batch in _batches(path, kinds):
        place = np.asarray(batch.column("placeid"))
        at = np.minimum(np.searchsorted(places, place), len(places) - 1)
        here = batch.filter(pa.array(places[at] == place))
        when = TimeAxis("date").parse_column(here.column("datetime"))
        inside = (when >= first) & (when < past)
        users.append(np.asarray(here.column("userid"))[inside])
        spots.append(np.asarray(here.column("placeid"))[inside])
        times.append(when[inside])
        read += batch.nbytes
        if progress is not None:
            progress(read)
    return np.concatenate(users), np.concatenate(spots), np.concatenate(times)


def _batches(path: Path, kinds: dict[str, Any]) -> Any:
    """Record batches of a CSV file with just these columns. DataError where it is not such a file."""
    convert = csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
    parse = csv.ParseOptions(newlines_in_values=True)
    try:
        with csv.open_csv(path, parse_options=parse, convert_options=convert) as reader:
            yield from reader
    except (pa.ArrowInvalid, KeyError, pa.ArrowKeyError) as error:
        raise DataError(f"{path} is not Gowalla's file as published: {short(error)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
