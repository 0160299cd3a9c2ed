"""Metrics for Prometheus, and logs as lines of JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request

from cordgt.serving.service import Service

logger = logging.getLogger("cordgt.serving")


class Telemetry:
    """The metrics of a service, in a registry of its own."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, service: Service) -> None:
        self._service = service
        registry = self._registry = CollectorRegistry()
        self.n_events = Counter("cordgt_events_accepted", "Events accepted by this process.", registry=registry)
        self._requests = Counter("cordgt_requests", "Requests.", ["endpoint", "status"], registry=registry)
        self._seconds = Histogram(
            "cordgt_request_seconds",
            "Time to answer a request.",
            ["endpoint"],
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
            registry=registry,
        )
        Gauge("cordgt_cut", "Number of durable events.", registry=registry).set_function(lambda: service.cut)
        Gauge("cordgt_ready", "1 if the service is ready.", registry=registry).set_function(
            lambda: float(service.readiness()[0])
        )
        index = service.live.index_builder
        Gauge(
            "cordgt_index_builds", "How often the index was built: 1, and 1 more per compaction.", registry=registry
        ).set_function(lambda: float(index.n_builds))
        self._quality = Gauge(
            "cordgt_prequential", "Quality on the latest events.", ["metric", "partners"], registry=registry
        )
        self._quality_events = Gauge("cordgt_prequential_events", "Events in the window.", registry=registry)
        self._warning = Gauge("cordgt_prequential_warning", "1 if the quality has fallen.", registry=registry)
        self._model = Gauge("cordgt_model", "1 for the current model.", ["id", "name"], registry=registry)

    def on_request(self, request: Request, status: int, seconds: float) -> None:
        """Count and log a request."""
        route = request.scope.get("route")
        endpoint = getattr(route, "path", "unknown")
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)
        fields = {
            "method": request.method,
            "path": request.url.path,
            "status": status,
            "ms": round(1000 * seconds, 2),
        }
        logger.info("request", extra={"fields": fields})

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        summary = self._service.quality.summary()
        self._quality_events.set(summary["events"])
        self._warning.set(float(bool(summary["warning"])))
        for partners in ("random", "popular"):
            for metric, value in summary.get(partners, {}).items():
                self._quality.labels(metric, partners).set(value)
        if "calibration_error" in summary:
            self._quality.labels("calibration_error", "random").set(summary["calibration_error"])
        model = self._service.model
        self._model.clear()
        self._model.labels(model.id, model.run.settings.model).set(1)
        return generate_latest(self._registry)


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON. All text is escaped, so an id cannot forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(level: str = "info") -> None:
    """Write the logs of the service and of its web server as lines of JSON to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("cordgt.serving", "uvicorn", "uvicorn.error"):
        target = logging.getLogger(name)
        target.handlers, target.propagate = [handler], False
        target.setLevel(level.upper())
