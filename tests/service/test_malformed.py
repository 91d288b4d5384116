"""Bytes that are not an HTTP request end their own connection and nothing else."""

from __future__ import annotations

import random
import socket
from urllib.parse import urlsplit

import pytest
from support.patience import LATEST_S
from support.service.sockets import ask
from support.sizes import by_size


def answer_to(origin: str, sent: bytes) -> bytes:
    """Everything that the server sends until it closes the connection."""
    host, port = urlsplit(origin).netloc.split(":")
    parts: list[bytes] = []
    with socket.create_connection((host, int(port)), timeout=LATEST_S) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"POST /v1/collections HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/collections HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
    ids=lambda sent: repr(sent)[:24],
)
def test_a_malformed_request_is_refused_and_its_connection_closed(server: str, sent: bytes) -> None:
    head, _, _ = answer_to(server, sent).partition(b"\r\n\r\n")
    status, *headers = head.decode().lower().split("\r\n")
    assert status == "http/1.1 400 bad request"
    assert "connection: close" in headers
    assert ask(server, "GET", "/healthz")[0] == 200


def test_no_mutated_request_ends_in_an_error_of_the_server(server: str) -> None:
    whole = b"POST /v1/collections/things/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    generator = random.Random(3)
    for _ in range(by_size(60, 2000)):
        sent = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            sent[generator.randrange(len(sent))] = generator.randrange(256)
        answered = answer_to(server, bytes(sent))
        assert not answered.startswith(b"HTTP/1.1 5"), bytes(sent)
    assert ask(server, "GET", "/healthz")[0] == 200
