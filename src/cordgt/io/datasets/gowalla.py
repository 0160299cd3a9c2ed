"""Filter Gowalla's check-ins by main category and period, which gives the paper's Food and Outdoors.

The published crawl has three files: check-ins (``userid, placeid, datetime``), spots with their categories, and the
tree of categories below the seven main ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cordgt.callbacks import NO_CALLBACK, Callback
from cordgt.errors import DataError
from cordgt.events.stream import EventStream, TimeAxis
from cordgt.files import short_message

CHECKINS, SPOTS, STRUCTURE = "gowalla_checkins.csv", "gowalla_spots_subset1.csv", "gowalla_category_structure.json"
FILES = (CHECKINS, SPOTS, STRUCTURE)


@dataclass(frozen=True)
class Selection:
    """A main category, and the period ``start <= time < end``, ISO dates in UTC."""

    category: str
    start: str
    end: str


SELECTIONS = {
    "outdoors": Selection("Outdoors", "2009-01-01", "2011-01-01"),  # "from Jan. 2009 to Dec. 2010"
    "food": Selection("Food", "2011-01-01", "2011-07-01"),  # "from Jan. 2011 to June 2011"
}


def filter_checkins(folder: Path, name: str, callbacks: Callback = NO_CALLBACK) -> EventStream:
    """Read a dataset from the three files in ``folder``: users and spots, times in seconds since the first event.

    A spot belongs to a main category if one of its categories lies below it. Categories that the tree does not list
    belong to none. DataError if a file is not as published.
    """
    selection = SELECTIONS[name]
    categories = read_category_ids(folder / STRUCTURE, selection.category)
    spot_ids = find_spots(folder / SPOTS, categories)
    users, spots, times = _select_checkins(folder / CHECKINS, spot_ids, selection, callbacks)
    description = f"at spots of {selection.category} from {selection.start} to before {selection.end}, UTC"
    if not len(users):
        raise DataError(f"{folder / CHECKINS} has no check-ins {description}.")
    seconds = (times - times.min()) // 1_000_000
    note = f"check-ins {description}"
    return EventStream.from_columns(
        users, spots, seconds, shared_ids=False, time=TimeAxis("number"), name=name, notes=(note,)
    )


def read_category_ids(path: Path, main: str) -> set[int]:
    """Return the ids of a main category and of every category below it."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        main_categories = {str(k["name"]): k for k in tree["spot_categories"]}
        return set(_subtree_ids(main_categories[main]))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{path} is not Gowalla's category structure: it has no main category {main}.") from None


def _subtree_ids(category: Any) -> list[int]:
    """Return the ids of a category and of those below it. An id is the number in ``/categories/89``."""
    ids = _parse_category_ids(str(category.get("url", "")))
    for child in category.get("spot_categories") or []:
        ids += _subtree_ids(child)
    return ids


def _parse_category_ids(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"/categories/(\d+)", text)]


def find_spots(path: Path, categories: set[int]) -> np.ndarray:
    """Return the ids of the spots in at least one of these categories, ascending."""
    found = []
    for batch in _read_batches(path, {"id": pa.int64(), "spot_categories": pa.string()}):
        texts = pc.fill_null(batch.column("spot_categories"), "").to_pylist()
        mask = [not categories.isdisjoint(_parse_category_ids(text)) for text in texts]
        found.append(np.asarray(batch.column("id").filter(pa.array(mask, pa.bool_()))))
    spots = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    if not len(spots):
        raise DataError(f"{path} has no spot in any of the {len(categories)} categories.")
    return spots


def _select_checkins(
    path: Path, spot_ids: np.ndarray, selection: Selection, callbacks: Callback
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return users, spots and times in microseconds of the check-ins at these spots in the period."""
    start, end = (TimeAxis("date").parse(day) for day in (selection.start, selection.end))
    types = {"userid": pa.int64(), "placeid": pa.int64(), "datetime": pa.string()}
    users, spots, times = [], [], []
    callbacks.on_stage_start("reading check-ins", None)
    for batch in _read_batches(path, types):
        place = np.asarray(batch.column("placeid"))
        nearest = np.minimum(np.searchsorted(spot_ids, place), len(spot_ids) - 1)
        rows = batch.filter(pa.array(spot_ids[nearest] == place))
        time = TimeAxis("date").parse_column(rows.column("datetime"))
        mask = (time >= start) & (time < end)
        users.append(np.asarray(rows.column("userid"))[mask])
        spots.append(np.asarray(rows.column("placeid"))[mask])
        times.append(time[mask])
        callbacks.on_step(batch.nbytes)
    return np.concatenate(users), np.concatenate(spots), np.concatenate(times)


def _read_batches(path: Path, types: dict[str, Any]) -> Any:
    """Yield record batches of a CSV file with only these columns. DataError if the file does not have them."""
    convert = csv.ConvertOptions(column_types=types, include_columns=list(types))
    parse = csv.ParseOptions(newlines_in_values=True)
    try:
        with csv.open_csv(path, parse_options=parse, convert_options=convert) as reader:
            yield from reader
    except (pa.ArrowInvalid, KeyError, pa.ArrowKeyError) as error:
        raise DataError(f"{path} is not Gowalla's file as published: {short_message(error)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from None
