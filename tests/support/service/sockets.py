"""Requests over a bare socket."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


def ask(
    origin: str,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 20,
) -> Any:
    connection = http.client.HTTPConnection(urlsplit(origin).netloc, timeout=timeout_s)
    try:
        content = json.dumps(body) if body is not None and not isinstance(body, bytes) else body
        connection.request(method, path, content, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()
