"""Slow clients against a real server: they are closed, and honest ones do not notice."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from service_fakes import WordEncoder, documents, serving
from test_service_server import ask

from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.service.patience import Patience

SLOW = 40
SEARCH = "/v1/collections/papers/search"
HEAD = b"POST /v1/collections/papers/search HTTP/1.1\r\nHost: localhost\r\n"
STREAM = (
    b"PUT /v1/collections/streamed/documents HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that waits 2 s for headers and asks for 1000 bytes of a body in each second."""
    home: Path = tmp_path_factory.mktemp("slow") / "home"
    with SearchEngine(home, encoder=WordEncoder) as made:
        made.create("papers").ingest(documents(60))
        made.create("streamed")
    with serving(home, header_s=2, body_bytes_per_s=1000, window_s=1, answer_s=3) as served:
        yield served[0]


def connected(origin: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(origin.rpartition(":")[2])), timeout=30)


def closed(connection: socket.socket) -> bool:
    """Whether the server closes the connection while the client waits."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def nothing(_: socket.socket) -> None: ...


def half_a_header(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"X-Slow: ")


def a_header_byte_now_and_then(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"X-Slow: ")
    _drip(connection, b"a")


def a_body_that_never_comes(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{")


def a_body_byte_now_and_then(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    _drip(connection, b" ")


def half_a_second_request(connection: socket.socket) -> None:
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost:")


def a_stream_that_stops(connection: socket.socket) -> None:
    line = json.dumps({"id": "a", "text": "cat"}).encode() + b"\n"
    connection.sendall(STREAM + f"{len(line):x}\r\n".encode() + line + b"\r\n")


def _drip(connection: socket.socket, byte: bytes) -> None:
    def send() -> None:
        try:
            while True:
                connection.sendall(byte)
                time.sleep(0.2)
        except OSError:
            pass

    threading.Thread(target=send, daemon=True).start()


@pytest.mark.parametrize(
    "dawdle",
    [
        nothing,
        half_a_header,
        a_header_byte_now_and_then,
        a_body_that_never_comes,
        a_body_byte_now_and_then,
        half_a_second_request,
        a_stream_that_stops,
    ],
)
def test_slow_clients_are_closed_while_others_are_answered(
    impatient: str, dawdle: Callable[[socket.socket], None]
) -> None:
    slow = [connected(impatient) for _ in range(SLOW)]
    try:
        for connection in slow:
            dawdle(connection)
        for _ in range(5):
            assert ask(impatient, "POST", SEARCH, {"query": "cat"})[0] == 200
        with ThreadPoolExecutor(SLOW) as pool:
            assert all(pool.map(closed, slow))
        assert ask(impatient, "GET", "/readyz")[0] == 200
    finally:
        for connection in slow:
            connection.close()


def test_a_large_honest_stream_goes_through(impatient: str) -> None:
    lines = b"".join(
        json.dumps({"id": str(i), "text": "cat", "metadata": {"pad": "x" * 1600}}).encode() + b"\n"
        for i in range(1500)
    )
    status, _, body = ask(
        impatient,
        "PUT",
        "/v1/collections/streamed/documents",
        lines,
        {"Content-Type": "application/x-ndjson", "X-Timeout-Ms": "600000"},
    )
    assert (status, json.loads(body)["inserted"]) == (200, 1500)


def test_a_slow_stream_above_the_least_rate_goes_through(impatient: str) -> None:
    with connected(impatient) as connection:
        connection.sendall(STREAM)
        for i in range(12):
            line = json.dumps({"id": f"slow{i}", "text": "cat " * 250}).encode() + b"\n"
            connection.sendall(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            time.sleep(0.25)
        connection.sendall(b"0\r\n\r\n")
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"inserted":12' in answer


def test_one_connection_too_many_costs_the_idlest(tmp_path: Path) -> None:
    with SearchEngine(tmp_path, encoder=WordEncoder) as made:
        made.create("papers")
    with serving(tmp_path, header_s=600, connections=SLOW) as (origin, _):
        first = connected(origin)
        rest = [connected(origin) for _ in range(SLOW)]
        try:
            assert ask(origin, "GET", "/readyz")[0] in (200, 503)
            assert closed(first)
        finally:
            for connection in [first, *rest]:
                connection.close()


def test_an_answer_that_is_not_read_is_given_up(impatient: str) -> None:
    with connected(impatient) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"queries": ["cat dog"] * 200, "limit": 60, "explain": True}).encode()
        request = b"POST /v1/collections/papers/search/batch HTTP/1.1\r\nHost: localhost\r\n"
        request += b"Content-Type: application/json\r\n"
        for _ in range(3):  # more than the buffers of the system hold
            connection.sendall(request + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                connection.sendall(b" ")
            except OSError:
                break
        else:
            pytest.fail("the connection was kept open")


def test_patience_is_above_zero() -> None:
    with pytest.raises(InvalidRequest, match="header_s=0; use a number above 0"):
        Patience(header_s=0)
