"""Refusals on real connections: the connection lives on, whatever was sent ahead, and no answers pile up."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI
from support.patience import LATEST_S
from support.service.in_thread import served_in_thread
from support.service.overload import SEARCH, fill

from dsearch.engine import Collection

pytestmark = pytest.mark.server

BODY = json.dumps({"query": "cat", "limit": 1}).encode()
HEAD = f"POST {SEARCH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
REQUEST = f"{HEAD}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def address(listening: socket.socket, served: uvicorn.Server) -> tuple[str, int]:
    return listening.getsockname()


@pytest.fixture
def served(app: FastAPI, papers: Collection, listening: socket.socket) -> Iterator[uvicorn.Server]:
    with served_in_thread(app, listening) as server:
        yield server


def ask(
    connection: http.client.HTTPConnection, method: str = "POST", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection.request(method, SEARCH, BODY, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    named = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, named, answer.read()


def read_answers(connection: socket.socket, count: int) -> list[int]:
    """The status of each."""
    file, found = connection.makefile("rb"), []
    for _ in range(count):
        found.append(int(file.readline().split()[1]))
        length = 0
        while (line := file.readline()) != b"\r\n":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        file.read(length)
    return found


def test_a_connection_is_refused_again_and_again_and_then_answered(
    app: FastAPI, address: tuple[str, int]
) -> None:
    """Thirty requests are more bytes than the headers of one may be."""
    places = fill(app.state.service.admission)
    with socket.create_connection(address, timeout=LATEST_S) as connection:
        for _ in range(30):
            connection.sendall(REQUEST)
            assert read_answers(connection, 1) == [503]
        connection.sendall(REQUEST[:40])
        time.sleep(0.05)
        connection.sendall(REQUEST[40:-5])
        assert read_answers(connection, 1) == [503]  # what is still to come of a body is passed over
        connection.sendall(REQUEST[-5:])
        for place in places:
            place.leave()
        connection.sendall(REQUEST)
        assert read_answers(connection, 1) == [200]
    metrics = http.client.HTTPConnection(*address, timeout=LATEST_S)
    metrics.request("GET", "/metrics")
    assert (
        b'dsearch_rejections_total{reason="overloaded",worker="server"} 31.0' in metrics.getresponse().read()
    )


def test_many_requests_in_one_piece_are_all_answered(app: FastAPI, address: tuple[str, int]) -> None:
    """As deep as Python's stack is: behind the first, which is answered, they wait for each other."""
    with socket.create_connection(address, timeout=LATEST_S) as connection:
        connection.sendall(REQUEST)
        assert read_answers(connection, 1) == [200]
        admission, until = app.state.service.admission, time.monotonic() + LATEST_S
        while admission.requests and time.monotonic() < until:  # it leaves its place behind its answer
            time.sleep(0.001)
        fill(admission)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + REQUEST * 1500)
        assert read_answers(connection, 1501) == [200] + [503] * 1500


def test_what_has_no_body_or_is_to_end_is_refused_so(app: FastAPI, address: tuple[str, int]) -> None:
    fill(app.state.service.admission)
    connection = http.client.HTTPConnection(*address, timeout=LATEST_S)
    status, headers, body = ask(connection, "HEAD")
    assert (status, body) == (503, b"")
    assert int(headers["content-length"]) > 0
    status, headers, body = ask(connection)
    assert (status, json.loads(body)["code"], headers["retry-after"]) == (503, "overloaded", "1")
    assert "date" in headers
    assert "connection" not in headers
    app.state.service.leaving = True
    assert ask(connection)[1]["connection"] == "close"


def test_whoever_does_not_read_waits(app: FastAPI, served: uvicorn.Server, address: tuple[str, int]) -> None:
    """What is refused to a client that reads nothing must not pile up in the server."""
    fill(app.state.service.admission)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(1)
        connection.connect(address)
        with contextlib.suppress(TimeoutError):
            for _ in range(400):  # 16 MB of answers, of which the kernel takes a part
                connection.sendall(REQUEST * 50)
        (asking,) = served.server_state.connections
        kept: list[int] = [0]
        until = time.monotonic() + LATEST_S
        while (
            not kept[-1] or len(set(kept[-10:])) > 1
        ):  # until the kernel takes no more, and then nothing happens
            assert time.monotonic() < until
            time.sleep(0.1)
            kept.append(asking.transport.get_write_buffer_size())
            assert kept[-1] < 2**20
