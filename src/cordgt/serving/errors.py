"""Errors of the live service, each with the status of its HTTP answer."""

from __future__ import annotations

from cordgt.errors import CordgtError


class ServiceError(CordgtError):
    """A request cannot be answered. ``status`` is the HTTP status."""

    status = 500


class RequestError(ServiceError):
    """A value of a request is wrong."""

    status = 422


class LateEventError(ServiceError):
    """An event is earlier than the last accepted one."""

    status = 409


class FutureEventError(ServiceError):
    """An event is too far in the future."""

    status = 422


class KeyConflictError(ServiceError):
    """An idempotency key comes again with other events."""

    status = 409


class LogUnavailableError(ServiceError):
    """The event log cannot be written now; nothing was accepted."""

    status = 503


class NotReadyError(ServiceError):
    """The service is starting, stopping or broken."""

    status = 503


class TooBusyError(ServiceError):
    """Too many requests wait for an answer."""

    status = 503


class UnsupportedError(ServiceError):
    """This run cannot answer this question."""

    status = 501


class UnknownAnswerError(ServiceError):
    """An answer id does not belong to an answer of this service."""

    status = 404


class ModelGoneError(ServiceError):
    """The model of an earlier answer is no longer kept."""

    status = 410


class LogDamagedError(CordgtError):
    """The event log has lost events or was changed. The service does not start."""
