"""Headers of every answer: what browsers must not do with it, and the request's id."""

from __future__ import annotations

from starlette.types import Message

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # the icons inside the stylesheet of /docs
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

# As they are sent: made into bytes once, not for every answer.
UNLESS_GIVEN = [
    (name.lower().encode("ascii"), value.encode("ascii"))
    for name, value in {**HEADERS, "Cache-Control": "no-store"}.items()
]
_NAMES = frozenset((*(name for name, _ in UNLESS_GIVEN), b"x-request-id", b"connection"))


def add_headers(start: Message, request_id: str, *, close: bool) -> None:
    """Add them to ASGI's start of an answer, unless it has its own.

    Args:
        start: the message.
        request_id: of the request.
        close: whether the connection ends with this answer.
    """
    given = start["headers"]
    there = {name.lower() for name, _ in given}
    if there.isdisjoint(_NAMES):
        headers = [*given, *UNLESS_GIVEN]
    else:
        replaced = (b"x-request-id", b"connection") if close else (b"x-request-id",)
        headers = [header for header in given if header[0].lower() not in replaced]
        headers += [header for header in UNLESS_GIVEN if header[0] not in there]
    headers.append((b"x-request-id", request_id.encode("ascii")))
    if close:
        headers.append((b"connection", b"close"))
    start["headers"] = headers
