"""Where each known dataset is published, and the names of its files there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cordgt.io.datasets.download import DownloadError, read_json
from cordgt.io.datasets.gowalla import FILES as GOWALLA_FILES

# The publishers' lists of files, with sizes and checksums. SNAP and TGB publish none.
ZENODO = "https://zenodo.org/api/records/7213796"  # DGB, "Towards Better Evaluation for Dynamic Link Prediction"
FIGSHARE = "https://api.figshare.com/v2/articles/22126586"  # Gowalla with categories: 36,001,959 check-ins
SNAP = "https://snap.stanford.edu/jodie"
TGB = "https://object-arbutus.alliancecan.ca/swift/v1/14c95234f6cd4a21a47deafe20cce2a7/tgb"
HUGGING_FACE = "https://huggingface.co"


@dataclass(frozen=True)
class Source:
    """A dataset's published files.

    ``kind`` selects the conversion: "jodie" (``user,item,time,label,features``), "dgb" (an archive with
    ``ml_NAME.csv`` and its features), "gowalla" (check-ins to be filtered), "tgb" (an archive with an edge list) or
    "tgb-seq" (``src,dst,time,split``).
    """

    kind: str
    published_name: str  # the dataset's name in the published files
    homepage: str


_DGB_PAGE = "https://zenodo.org/records/7213796"
_GOWALLA_PAGE = "https://figshare.com/articles/dataset/gowalla_data/22126586"
_TGB_PAGE = "https://tgb.complexdatalab.com/docs/linkprop/"
# Patent is left out: part of its events is in no split.
TGB_SEQ = ("ML-20M", "Taobao", "Yelp", "GoogleLocal", "Flickr", "YouTube", "WikiLink")
SOURCES: dict[str, Source] = {
    **{name: Source("jodie", name, f"{SNAP}/{name}.csv") for name in ("reddit", "wikipedia", "lastfm", "mooc")},
    "uci": Source("dgb", "uci", _DGB_PAGE),
    "enron": Source("dgb", "enron", _DGB_PAGE),
    "social_evolution": Source("dgb", "SocialEvo", _DGB_PAGE),
    "flights": Source("dgb", "Flights", _DGB_PAGE),
    "food": Source("gowalla", "food", _GOWALLA_PAGE),
    "outdoors": Source("gowalla", "outdoors", _GOWALLA_PAGE),
    "tgbl-review": Source("tgb", "tgbl-review-v2", _TGB_PAGE),
    "tgbl-coin": Source("tgb", "tgbl-coin-v2", _TGB_PAGE),
    **{name: Source("tgb-seq", name, f"https://huggingface.co/datasets/TGB-Seq/{name}") for name in TGB_SEQ},
}


@dataclass(frozen=True)
class RemoteFile:
    """A file to download; ``checksum`` (``md5:…``) and ``size`` in bytes are None if the publisher gives none."""

    name: str
    url: str
    checksum: str | None = None
    size: int | None = None


def list_remote_files(name: str) -> list[RemoteFile]:
    """Return the files of a dataset in the publisher's current list. DownloadError if the list has changed."""
    source = SOURCES[name]
    if source.kind == "jodie":
        return [RemoteFile(f"{name}.csv", f"{SNAP}/{name}.csv")]
    if source.kind == "tgb":
        return [RemoteFile(f"{source.published_name}.zip", f"{TGB}/{source.published_name}.zip")]
    if source.kind == "tgb-seq":
        wanted, listing = [f"{name}.csv"], _list_hugging_face(f"TGB-Seq/{name}")
    elif source.kind == "dgb":
        wanted, listing = [f"{source.published_name}.zip"], _list_files(ZENODO, _parse_zenodo)
    else:
        wanted, listing = list(GOWALLA_FILES), _list_files(FIGSHARE, _parse_figshare)
    files = {file.name: file for file in listing}
    for file_name in wanted:
        if file_name not in files:
            raise DownloadError(f"{source.homepage} no longer lists {file_name}.")
    return [files[file_name] for file_name in wanted]


def _list_files(url: str, parse: Callable[[Any], RemoteFile]) -> list[RemoteFile]:
    """Return the files in a publisher's answer, ``{"files": […]}``. DownloadError if it has another form."""
    answer = read_json(url)
    try:
        return [parse(file) for file in answer["files"]]
    except (KeyError, TypeError, ValueError):
        raise DownloadError(f"{url} does not answer as it used to.") from None


def _list_hugging_face(repository: str) -> list[RemoteFile]:
    """Return the files of a dataset at Hugging Face: ``[{"path", "size", "lfs": {"oid", "size"}}]``."""
    url = f"{HUGGING_FACE}/api/datasets/{repository}/tree/main"
    answer = read_json(url)
    files = []
    try:
        for file in answer:
            path, lfs = str(file["path"]), file.get("lfs")
            checksum = None if lfs is None else f"sha256:{lfs['oid']}"  # small files have no published SHA-256
            address = f"{HUGGING_FACE}/datasets/{repository}/resolve/main/{path}"
            files.append(RemoteFile(path, address, checksum, int(file["size"])))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DownloadError(f"{url} does not answer as it used to.") from None
    return files


def _parse_zenodo(file: Any) -> RemoteFile:
    """Parse ``{"key", "size", "checksum": "md5:…", "links": {"self"}}``."""
    return RemoteFile(str(file["key"]), str(file["links"]["self"]), str(file["checksum"]), int(file["size"]))


def _parse_figshare(file: Any) -> RemoteFile:
    """Parse ``{"name", "size", "computed_md5", "download_url"}``."""
    return RemoteFile(str(file["name"]), str(file["download_url"]), f"md5:{file['computed_md5']}", int(file["size"]))
