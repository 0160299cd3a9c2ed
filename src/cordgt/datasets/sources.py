"""Where known datasets are published, and how their files are called there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cordgt.datasets.download import Expected, Refused, read_json
from cordgt.datasets.gowalla import FILES as GOWALLA_FILES

# The publishers' own lists of files, with sizes and checksums. SNAP has none.
ZENODO = "https://zenodo.org/api/records/7213796"  # DGB, "Towards Better Evaluation for Dynamic Link Prediction"
FIGSHARE = "https://api.figshare.com/v2/articles/22126586"  # Gowalla with categories: 36,001,959 check-ins
SNAP = "https://snap.stanford.edu/jodie"


@dataclass(frozen=True)
class Source:
    """A dataset's published files.

    ``kind`` says how they are converted: "jodie" (``user,item,time,label,features``), "dgb" (an archive of
    ``ml_NAME.csv`` and its features) or "gowalla" (check-ins to be cut).
    """

    kind: str
    called: str  # the dataset's name in the published files
    place: str  # where to read about them


SOURCES: dict[str, Source] = {
    **{name: Source("jodie", name, f"{SNAP}/{name}.csv") for name in ("reddit", "wikipedia", "lastfm", "mooc")},
    "uci": Source("dgb", "uci", "https://zenodo.org/records/7213796"),
    "enron": Source("dgb", "enron", "https://zenodo.org/records/7213796"),
    "social_evolution": Source("dgb", "SocialEvo", "https://zenodo.org/records/7213796"),
    "flights": Source("dgb", "Flights", "https://zenodo.org/records/7213796"),
    "food": Source("gowalla", "food", "https://figshare.com/articles/dataset/gowalla_data/22126586"),
    "outdoors": Source("gowalla", "outdoors", "https://figshare.com/articles/dataset/gowalla_data/22126586"),
}
# What the DGB archive calls the others: a folder fetched by hand may hold these instead.
DGB_NAMES = {name: source.called for name, source in SOURCES.items() if source.kind != "gowalla"}


@dataclass(frozen=True)
class Remote:
    """A file to fetch."""

    name: str
    url: str
    expected: Expected


def remotes(name: str) -> list[Remote]:
    """The files of a dataset as its publisher lists them now. Refused where it lists them no more."""
    source = SOURCES[name]
    if source.kind == "jodie":
        return [Remote(f"{name}.csv", f"{SNAP}/{name}.csv", Expected())]
    wanted = [f"{source.called}.zip"] if source.kind == "dgb" else list(GOWALLA_FILES)
    listed = _zenodo(read_json(ZENODO)) if source.kind == "dgb" else _figshare(read_json(FIGSHARE))
    missing = [file for file in wanted if file not in listed]
    if missing:
        raise Refused(f"{source.place} does not list {missing[0]} any more.")
    return [listed[file] for file in wanted]


def _zenodo(given: Any) -> dict[str, Remote]:
    """Files of a Zenodo record: ``{"files": [{"key", "size", "checksum": "md5:…", "links": {"self"}}]}``."""
    try:
        return {
            str(f["key"]): Remote(
                str(f["key"]),
                str(f["links"]["self"]),
                Expected(int(f["size"]), md5=str(f["checksum"]).removeprefix("md5:")),
            )
            for f in given["files"]
        }
    except (KeyError, TypeError, ValueError):
        raise Refused(f"{ZENODO} does not answer as it used to.") from None


def _figshare(given: Any) -> dict[str, Remote]:
    """Files of a Figshare article: ``{"files": [{"name", "size", "computed_md5", "download_url"}]}``."""
    try:
        return {
            str(f["name"]): Remote(
                str(f["name"]), str(f["download_url"]), Expected(int(f["size"]), md5=str(f["computed_md5"]))
            )
            for f in given["files"]
        }
    except (KeyError, TypeError, ValueError):
        raise Refused(f"{FIGSHARE} does not answer as it used to.") from None
