"""Logs: one JSON object a line, each with the id of its request.

Queries are never logged. Addresses contain queries and ids, so the log holds the declared route instead.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["json", "text"]
request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

access = logging.getLogger("dsearch.access")
"""One line for each answered request, at level INFO."""


class JsonLines(logging.Formatter):
    """`{"time", "level", "logger", "message", "request_id", …}`, and what `extra={"fields": {…}}` holds."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (id := request_id.get()) is not None:
            line["request_id"] = id
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logs(level: str = "info", format: LogFormat = "text") -> None:
    """Let this process write its logs to stderr; called by whoever runs a server, never by a library.

    Args:
        level: debug, info, warning or error; "info" has a line for each request.
        format: "json", or "text" for people.
    """
    handler = logging.StreamHandler(sys.stderr)
    if format == "json":
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of others
    logging.getLogger("dsearch").setLevel(level.upper())
