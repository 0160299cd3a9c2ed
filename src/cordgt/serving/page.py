"""The page at ``/``, its files, and the questions that only it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from cordgt.errors import CordgtError
from cordgt.events.durations import format_duration, parse_horizon, time_units_per_second
from cordgt.events.stream import EventStream
from cordgt.serving.history_view import MAX_SEARCH_LENGTH, EventRate, HistoryView, describe_past, find_nodes, top_movers
from cordgt.serving.security import RefusedError
from cordgt.serving.service import Service

STATIC_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript"}

MAX_ITEMS = 1_000  # of an answer
HORIZONS = ("1m", "5m", "15m", "1h", "6h", "1d", "7d", "30d", "90d", "365d")  # that the page offers
MAX_HORIZONS = 4
Count = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="Most items to return.")]
NodeId = Annotated[str, Query(min_length=1, max_length=10_000, description="Node id.")]
SearchText = Annotated[str, Query(min_length=1, max_length=MAX_SEARCH_LENGTH, description="A part of the node id.")]
SideName = Annotated[
    Literal["src", "dst"] | None,
    Query(description="Id space of the node, if sources and destinations have separate ids."),
]


class PageSource:
    """What the page shows of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._horizons: tuple[str, list[dict[str, str]]] = ("", [])  # of a model id
        self.event_rate = EventRate()

    @property
    def model_name(self) -> str:
        """Name and id of the model that answers now."""
        model = self._service.model
        return f"{model.run.settings.model} ({model.id[:12]})"

    def horizons(self) -> list[dict[str, str]]:
        """Return horizons for `within`, ascending, with a text for people; none if the model has no activity."""
        model = self._service.model
        if self._horizons[0] != model.id:
            try:
                found = choose_horizons(model.run.forecaster.horizons, model.run.stream)
            except CordgtError:
                found = []
            self._horizons = (model.id, found)
        return self._horizons[1]

    async def history_view(self) -> HistoryView:
        """Return a snapshot of the history. It stays the same while events arrive."""
        stream: EventStream = await asyncio.wrap_future(self._service.call(lambda live: live.stream()))
        return HistoryView(stream.src, stream.dst, stream.elapsed, stream.t, stream.ids, stream.format_time)


def choose_horizons(calibrated: Sequence[float], stream: EventStream) -> list[dict[str, str]]:
    """Return a few horizons between the calibrated ones: round times if the stream has a clock."""
    if not calibrated:
        return []
    low, high = min(calibrated), max(calibrated)
    texts = [f"{horizon:.6g}" for horizon in sorted(calibrated)]
    if time_units_per_second(stream) is not None:
        texts = [text for text in HORIZONS if low <= parse_horizon(text, stream) <= high] or texts
    step = -(-len(texts) // MAX_HORIZONS)
    return [{"within": text, "label": format_duration(parse_horizon(text, stream), stream)} for text in texts[::step]]


def read_static(name: str) -> tuple[bytes, str]:
    """Return a file of the page and its media type. RefusedError (404) for any other name."""
    files = {entry.name: entry for entry in resources.files("cordgt.serving").joinpath("static").iterdir()}
    kind = STATIC_TYPES.get(name.rpartition(".")[2])
    if name not in files or kind is None:
        raise RefusedError(404, "There is no such file.")
    return files[name].read_bytes(), kind


def page_router(source: PageSource) -> APIRouter:
    """Return the routes of the page."""
    router = APIRouter()

    def static(name: str) -> Response:
        content, kind = read_static(name)
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    for path, name in (("/", "index.html"), ("/docs", "docs.html")):
        router.add_api_route(path, partial(static, name), methods=["GET", "HEAD"], include_in_schema=False)
    router.add_api_route("/static/{name}", static, include_in_schema=False)

    @router.get("/status")
    async def status() -> dict[str, Any]:
        """State of the stream: events, nodes, last time, events of each second, and horizons for "within"."""
        view = await source.history_view()
        return {
            "model": source.model_name,
            "cut": view.cut,
            "nodes": len(view.ids),
            "last_time": view.format_time(view.t[-1]) if view.cut else None,
            "events_per_second": source.event_rate.per_second(),
            "horizons": source.horizons(),
        }

    @router.get("/nodes")
    async def nodes(search: SearchText, n: Count = 20) -> dict[str, Any]:
        """Nodes whose id contains a text."""
        view = await source.history_view()
        return {"cut": view.cut, "nodes": await asyncio.to_thread(find_nodes, view, search, n)}

    @router.get("/history")
    async def history(node: NodeId, side: SideName = None, n: Count = 100) -> dict[str, Any]:
        """The latest events of a node, newest first, and its number of events over time."""
        return await asyncio.to_thread(describe_past, await source.history_view(), node, side, n)

    @router.get("/movers")
    async def movers(n: Count = 10) -> dict[str, Any]:
        """Nodes whose number of events changed most in the latest events."""
        return await asyncio.to_thread(top_movers, await source.history_view(), n)

    return router
