"""Errors that only the service raises; all others are in dsearch/errors.py."""

from __future__ import annotations

from dsearch.errors import AccessDenied, DsearchError, InvalidRequest, Unavailable


class InvalidJson(InvalidRequest):
    """A body that is not JSON, or is ambiguous JSON."""

    code = "invalid_json"


class UnknownQuery(InvalidRequest):
    """Feedback on a search that is not in the cache."""

    code = "unknown_query"


class OriginNotAllowed(AccessDenied):
    """A request from a page of another site."""

    code = "origin_not_allowed"


class BodyTooLarge(DsearchError):
    """A body, a line or a batch above its limit."""

    code = "body_too_large"
    status = 413


class UnsupportedMediaType(DsearchError):
    """A body of a type or an encoding that the route does not read."""

    code = "unsupported_media_type"
    status = 415


class HostNotAllowed(DsearchError):
    """A request for a host name that this server does not serve."""

    code = "host_not_allowed"
    status = 421


class RetryLater(Unavailable):
    """The service cannot answer just now; the answer's Retry-After says when to ask again."""

    retry_after_s = 1


class Overloaded(RetryLater):
    """The queue of requests is full."""

    code = "overloaded"


class DeadlinePassed(DsearchError):
    """The request timed out; a write of many documents says how many of them are stored."""

    code = "deadline_passed"
    status = 504


class NotReady(RetryLater):
    """The service is starting or stopping."""

    code = "not_ready"
