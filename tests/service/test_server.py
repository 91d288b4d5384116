"""A real server and a real client: nothing in between that a test client would smooth over."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.patience import LATEST_S
from support.service.sockets import ask

pytestmark = pytest.mark.server


def raw(origin: str, request: bytes, *, hang_up: bool = False) -> bytes:
    with socket.create_connection(
        ("127.0.0.1", int(origin.rpartition(":")[2])), timeout=LATEST_S
    ) as connection:
        connection.sendall(request)
        if hang_up:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


def test_it_answers(server: str) -> None:
    status, headers, body = ask(server, "POST", "/v1/collections/papers/search", {"query": "cat", "limit": 3})
    assert status == 200
    assert len(json.loads(body)["hits"]) == 3
    assert {name.lower() for name in headers} >= {"content-security-policy", "x-request-id"}
    assert "server" not in {name.lower() for name in headers}


def test_many_clients_at_once_get_their_own_answers(server: str) -> None:
    def search(i: int) -> tuple[int, int, str]:
        query = f"cat {['river', 'stone', 'music'][i % 3]}"
        _, _, body = ask(
            server, "POST", "/v1/collections/papers/search", {"query": query, "limit": 1 + i % 4}
        )
        hits = json.loads(body)["hits"]
        return i % 12, len(hits), hits[0]["id"]

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(search, range(96)))
    assert all(count == 1 + i % 4 for i, count, _ in answers)
    assert len({(i % 3, first) for i, _, first in answers}) == 3


def test_a_stream_without_a_length_is_stored(server: str) -> None:
    assert ask(server, "PUT", "/v1/collections/streamed")[0] == 201
    lines = (json.dumps({"id": str(i), "text": f"cat {i}"}).encode() + b"\n" for i in range(300))
    status, _, body = ask(
        server,
        "PUT",
        "/v1/collections/streamed/documents",
        b"".join(lines),
        {"Content-Type": "application/x-ndjson"},
    )
    assert (status, json.loads(body)["inserted"]) == (200, 300)
    chunks = b"".join(
        f"{len(line):x}\r\n".encode() + line + b"\r\n"
        for line in (json.dumps({"id": f"c{i}", "text": "dog"}).encode() + b"\n" for i in range(5))
    )
    answer = raw(
        server,
        b"PUT /v1/collections/streamed/documents HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"inserted":5' in answer


def test_a_client_that_goes_away_leaves_the_server_well(server: str) -> None:
    for cut in (10, 120, 200):
        body = json.dumps({"query": "cat"}).encode()
        request = (
            b"POST /v1/collections/papers/search HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n"
            + f"Content-Length: {len(body) + 100}\r\n\r\n".encode()
            + body
        )
        raw(server, request[:cut], hang_up=True)
    assert ask(server, "GET", "/readyz")[0] == 200


def test_a_body_declared_too_large_is_refused_before_it_is_sent(server: str) -> None:
    for path, media_type in (("search", "application/json"), ("documents", "application/x-ndjson")):
        method = "POST" if path == "search" else "PUT"
        answer = raw(
            server,
            f"{method} /v1/collections/papers/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Content-Type: {media_type}\r\nContent-Length: 99999999\r\n\r\n".encode(),
        )
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"a body of 99999999 bytes; use at most" in answer


def test_a_request_for_another_protocol_is_answered_as_a_plain_one(server: str) -> None:
    """There are no web sockets; a library for them that is installed changes nothing."""
    for protocol in (b"websocket", b"h2c"):
        answer = raw(
            server,
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: "
            + protocol
            + b"\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 200"), answer
