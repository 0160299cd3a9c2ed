"""The HTTP interface of a `Service`: endpoints and error answers. Needs FastAPI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

import cordgt
from cordgt.errors import CordgtError
from cordgt.serving.errors import ServiceError
from cordgt.serving.page import PageSource, page_router
from cordgt.serving.security import Limits, SecurityMiddleware, Tokens, error_body
from cordgt.serving.service import Service
from cordgt.serving.telemetry import Telemetry

# What parameters mean; the page /docs shows it.
N_MEANING = "Most partners or nodes to return."
AT_MEANING = "A time: only earlier events are visible. Without it: all events."
WITHIN_MEANING = "A length of time such as 7d: adds the probability of an event within it."
NEW_ONLY_MEANING = "Only partners without an earlier event with the source."
EXCLUDE_MEANING = "None of these ids."
CANDIDATES_MEANING = "Only these ids. Unknown ones are left out."
Number = Annotated[int, Query(description=N_MEANING)]
At = Annotated[str | None, Query(description=AT_MEANING)]
Within = Annotated[str | None, Query(description=WITHIN_MEANING)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EventsRequest(_Request):
    """Events to add. They are accepted together or not at all."""

    events: list[dict[str, Any]] | dict[str, Any] = Field(
        examples=[[{"src": "alice", "dst": "bob", "time": 1700000000}]],
        description="One event or many: src, dst, time, and features if the history has them.",
    )
    key: str | None = Field(None, max_length=200, description="Idempotency key: a retry with it is harmless.")


class EventsReceipt(BaseModel):
    """Acknowledges events that are on disk."""

    accepted: int
    cut: int = Field(description="Number of visible events after these.")
    late: int = Field(0, description="Events that got the time of the last accepted one (--late accept).")
    repeated: bool = Field(False, description="The key was known; the events were accepted before.")


class RecommendRequest(_Request):
    """A question with a long list of candidates."""

    source: str | int = Field(description="Id of the source.")
    n: int = Field(10, ge=1, description=N_MEANING)
    at: str | float | int | None = Field(None, description=AT_MEANING)
    new_only: bool = Field(False, description=NEW_ONLY_MEANING)
    exclude: list[str | int] = Field([], description=EXCLUDE_MEANING)
    candidates: list[str | int] | None = Field(None, description=CANDIDATES_MEANING)
    within: str | float | int | None = Field(None, description=WITHIN_MEANING)


class ScoreRequest(_Request):
    """Pairs to score."""

    pairs: list[dict[str, Any]] = Field(
        examples=[[{"src": "alice", "dst": "bob"}]], description="Objects with src and dst."
    )
    at: str | float | int | None = Field(None, description=AT_MEANING)


class ReplayRequest(_Request):
    """An earlier answer."""

    answer_id: str = Field(max_length=2000, description="The answer_id of an earlier answer.")


class ModelRequest(_Request):
    """The model to answer with: a run folder, or the one before the current."""

    run: str | None = Field(None, description="A run folder. Without it: the run that the service was started with.")
    rollback: bool = Field(False, description="Go back to the model before the current one.")


def create_app(
    service: Service, *, tokens: Tokens | None = None, limits: Limits | None = None, insecure: bool = False
) -> FastAPI:
    """Return the ASGI application of a service. It closes the service when it shuts down.

    ``insecure``: requests that need no token may come from any host.
    """
    telemetry = Telemetry(service)
    limits = limits or Limits()
    page = PageSource(service)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    # The page /docs of FastAPI loads scripts from another site, so the service has its own.
    app = FastAPI(
        title="CorDGT",
        version=cordgt.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.telemetry = telemetry
    _add_error_handlers(app)

    @app.middleware("http")
    async def log_request(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        start = time.perf_counter()
        response = await call_next(request)
        telemetry.on_request(request, response.status_code, time.perf_counter() - start)
        return response

    app.add_middleware(SecurityMiddleware, tokens=tokens, limits=limits, insecure=insecure)  # the outermost one

    @app.post("/events")
    async def add_events(request: EventsRequest) -> EventsReceipt:
        """Add events. The answer comes after they are on disk."""
        limits.check_events(len(request.events) if isinstance(request.events, list) else 1)
        # Shielded: a request that runs out of time must not cancel the receipt under the committer.
        receipt = await asyncio.shield(asyncio.wrap_future(service.add_events(request.events, request.key)))
        if not receipt.repeated:
            telemetry.n_events.inc(receipt.accepted)
            page.event_rate.record(receipt.accepted)
        return EventsReceipt(**vars(receipt))

    @app.get("/recommend")  # with ?source=…, for ids such as "..", which cannot stand in a path
    @app.get("/recommend/{source:path}")
    async def recommend(
        source: str,
        n: Number = 10,
        at: At = None,
        new_only: Annotated[bool, Query(description=NEW_ONLY_MEANING)] = False,
        exclude: Annotated[list[str], Query(description=EXCLUDE_MEANING)] = [],  # noqa: B006
        candidates: Annotated[list[str] | None, Query(description=CANDIDATES_MEANING)] = None,
        within: Within = None,
    ) -> dict[str, Any]:
        """Return the most likely partners of a source. Repeat exclude and candidates for several ids."""
        limits.check_candidates(len(exclude) + len(candidates or ()))
        answer = service.recommend(
            source, n=n, at=at, new_only=new_only, exclude=exclude, candidates=candidates, within=within
        )
        return await asyncio.wrap_future(answer)

    @app.post("/recommend")
    async def recommend_from_list(request: RecommendRequest) -> dict[str, Any]:
        """Return the most likely partners of a source, with long lists in the body."""
        limits.check_candidates(len(request.exclude) + len(request.candidates or ()))
        options = {name: value for name, value in request if name != "source"}
        return await asyncio.wrap_future(service.recommend(request.source, **options))

    @app.post("/score")
    async def score(request: ScoreRequest) -> dict[str, Any]:
        """Return the scores of pairs."""
        limits.check_candidates(len(request.pairs))
        return await asyncio.wrap_future(service.score(request.pairs, at=request.at))

    @app.post("/replay")
    async def replay(request: ReplayRequest) -> dict[str, Any]:
        """Return an earlier answer again."""
        return await asyncio.wrap_future(await asyncio.to_thread(service.replay, request.answer_id))

    @app.get("/active")
    async def active(
        within: Annotated[str, Query(description="A length of time such as 7d.")],
        n: Number = 10,
        at: At = None,
        role: Annotated[str, Query(description="source or destination: what the nodes act as.")] = "source",
    ) -> dict[str, Any]:
        """Return the nodes that are most likely to act within a time such as 7d."""
        return await asyncio.wrap_future(service.active(within, n=n, at=at, role=role))

    @app.get("/next/{source:path}")
    async def next_event(source: str, n: Number = 3, at: At = None) -> dict[str, Any]:
        """Return when a source acts next, and with whom."""
        return await asyncio.wrap_future(service.next_event(source, n=n, at=at))

    @app.get("/model")
    async def model() -> dict[str, Any]:
        """Return the model that answers now."""
        return service.model.description

    @app.post("/model")
    async def change_model(request: Annotated[ModelRequest, Body()]) -> dict[str, Any]:
        """Answer with another run, or with the model before the current one."""
        if request.rollback:
            loaded = await asyncio.to_thread(service.roll_back)
        else:
            loaded = await asyncio.to_thread(service.swap_model, request.run)
        return loaded.description

    @app.get("/quality")
    async def quality() -> dict[str, Any]:
        """Return how well the model predicted the latest events."""
        return await asyncio.to_thread(service.quality.summary)

    app.include_router(page_router(page))

    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """Return 200 while the process runs."""
        return {"status": "ok"}

    @app.get("/health/ready")
    async def ready(response: Response) -> dict[str, Any]:
        """Return 200 if the service can take events and answer, else 503 with the reason."""
        is_ready, reason = service.readiness()
        response.status_code = 200 if is_ready else 503
        return {"ready": is_ready, "reason": reason, "cut": service.cut}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(await asyncio.to_thread(telemetry.render), media_type=telemetry.content_type)

    return app


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with ``{"error": text}``, never with the input or a stack trace.

    `SecurityMiddleware` answers errors that nobody expects.
    """

    def respond(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
        return Response(error_body(message), status, headers, "application/json")

    @app.exception_handler(CordgtError)
    async def on_cordgt_error(request: Request, error: CordgtError) -> Response:
        return respond(error.status if isinstance(error, ServiceError) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def on_invalid_request(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first.get("loc", ()))[:200]
        return respond(422, f"{where}: {first.get('msg', 'it is not valid')}.")

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        return respond(error.status_code, str(error.detail), error.headers)
