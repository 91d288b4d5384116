"""A server of a home as a process of its own, its documents and the counts of `attack.py`."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLLECTION = "attacked"
URL = f"/v1/collections/{COLLECTION}"
WORDS = (
    *("apple", "bread", "cheese", "honey", "red", "green"),
    *("blue", "colour", "question", "answer", "thing", "filler"),
)
QUERIES = ("red apple", "honey bread", "blue cheese question")
STARTS_WITHIN_S = ANSWERS_WITHIN_S = 600.0  # on a busy machine
SHED = (503, 504)
BUSY = (*SHED, 507)  # and without space: what a server may say of itself that is no fault


@dataclass
class Outcome:
    """Counts of one round; `broken` has a line for each promise that was not kept."""

    name: str
    trials: int = 0
    seen: Counter[str] = field(default_factory=Counter[str])
    broken: list[str] = field(default_factory=list[str])

    def row(self) -> str:
        """The line of the table."""
        seen = ", ".join(f"{count} {what}" for what, count in sorted(self.seen.items()))
        return f"{self.name:<9} {self.trials:>7} {len(self.broken):>7}  {seen}"


class Server:
    """`dsearch serve` of a home, as a process of its own; started anew after each kill."""

    def __init__(self, home: Path, encoder: str | None):
        self.home, self.port = home, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.bearer = ""  # a key, once the home needs one
        self._encoder = encoder

    def start(self) -> None:
        """Start, and return when it is ready."""
        given = [] if self._encoder is None else ["--encoder", self._encoder]
        command = [
            sys.executable,
            "-m",
            "dsearch",
            "serve",
            "--home",
            str(self.home),
            "--port",
            str(self.port),
            *given,
        ]
        log = (self.home.parent / "server.log").open("ab")
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < until and self.process.poll() is None:
            with suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/readyz")[0] == 200:
                    return
            time.sleep(0.05)
        raise SystemExit(f"the server did not start; see {self.home.parent / 'server.log'}")

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            own = {"Authorization": f"Bearer {self.bearer}"} if self.bearer else {}
            sent = {"Content-Type": "application/json", **own, **headers}
            connection.request(method, path, content, sent)
            answer = connection.getresponse()
            text = answer.read()
            with suppress(ValueError):
                return answer.status, json.loads(text)
            return answer.status, text.decode("latin-1")
        finally:
            connection.close()

    def patient(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """As `ask`, again while the server sheds load: on a busy machine that breaks no promise."""
        until, answered = time.monotonic() + ANSWERS_WITHIN_S, (0, {})
        while time.monotonic() < until:
            with suppress(OSError, http.client.HTTPException):
                answered = self.ask(method, path, body, **headers)
                if answered[0] not in SHED:
                    break
            time.sleep(0.1)
        return answered

    def raw(self, sent: bytes) -> bytes:
        """Send bytes as they are; return the answer up to the end of the connection."""
        parts: list[bytes] = []
        # A request whose end was cut off would be waited for much longer.
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=3) as connection:
            connection.sendall(sent)
            while part := connection.recv(65536):
                parts.append(part)
        return b"".join(parts)

    def rankings(self) -> list[list[str]]:
        """The ids that each query finds."""
        return [
            [hit["id"] for hit in self.patient("POST", f"{URL}/search", {"query": query})[1]["hits"]]
            for query in QUERIES
        ]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the process."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def documents(count: int, prefix: str, generator: random.Random) -> list[dict[str, Any]]:
    """Documents of a few words each."""
    return [
        {
            "id": f"{prefix}-{number}",
            "title": generator.choice(WORDS),
            "text": " ".join(generator.choices(WORDS, k=12)) + f" {number % 64}",
            "metadata": {"number": number},
        }
        for number in range(count)
    ]


def filled(server: Server, generator: random.Random) -> None:
    """Make the collection that everything below attacks."""
    server.start()
    assert server.patient("PUT", URL, {})[0] in (200, 201)
    body = documents(60, "first", generator)
    assert server.patient("PUT", f"{URL}/documents", body)[0] in (200, 201), "documents were refused"
