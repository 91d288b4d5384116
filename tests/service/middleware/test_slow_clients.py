"""Slow clients against a real server: they are closed, and honest ones do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from support.patience import LATEST_S
from support.service.service_fakes import WordEncoder, documents, serving
from support.service.sockets import ask

from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.service.middleware import slow_clients
from dsearch.service.middleware.slow_clients import SlowClientLimits, patient_protocol

pytestmark = pytest.mark.server

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
    return socket.create_connection(("127.0.0.1", int(origin.rpartition(":")[2])), timeout=LATEST_S)


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


KINDS = (
    nothing,
    half_a_header,
    a_header_byte_now_and_then,
    a_body_that_never_comes,
    a_body_byte_now_and_then,
    half_a_second_request,
    a_stream_that_stops,
)


@pytest.mark.parametrize("dawdle", KINDS)
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


@pytest.fixture
def many_files() -> Iterator[None]:
    """A socket is an open file, and 1024 is the usual limit."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.usefixtures("many_files")
def test_a_thousand_slow_clients_are_closed_while_64_mib_come_through(
    tmp_path: Path,
) -> None:
    """With the limits that are the default: 15 s for headers, a body's least rate over 10 s."""
    with SearchEngine(tmp_path, encoder=WordEncoder) as made:
        made.create("papers").ingest(documents(60))
        made.create("streamed")
    with serving(tmp_path) as (origin, _):
        slow = [connected(origin) for _ in range(1000)]
        stop = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            try:
                dripping: list[socket.socket] = []
                for number, connection in enumerate(slow):
                    dawdle = KINDS[number % len(KINDS)]
                    if dawdle in (a_header_byte_now_and_then, a_body_byte_now_and_then):
                        dripping.append(connection)
                        connection.sendall(HEAD + b"X-Slow: ")
                    else:
                        dawdle(connection)
                pool.submit(_drip_all, dripping, stop)
                streamed = pool.submit(_stream_64_mib, origin)
                remaining = set(slow)
                deadline = time.monotonic() + LATEST_S
                asked = 0
                while (remaining or not streamed.done()) and time.monotonic() < deadline:
                    assert ask(origin, "POST", SEARCH, {"query": "cat"})[0] == 200
                    asked += 1
                    remaining -= {one for one in remaining if _hung_up(one)}
                    time.sleep(0.2)
                assert len(remaining) == 0
                status, _, body = streamed.result(timeout=120)
                assert (status, json.loads(body)["inserted"]) == (200, STREAMED)
                assert asked >= 10
            finally:
                stop.set()
                for connection in slow:
                    connection.close()


STREAMED, LINE_BYTES = 2040, 32 * 1024  # just below 64 MiB


def _stream_64_mib(origin: str) -> Any:
    line = json.dumps({"id": "%05d", "text": "cat", "metadata": {"pad": ""}})
    pad = "x" * (LINE_BYTES - len(line) - 10)
    line = json.dumps({"id": "%05d", "text": "cat", "metadata": {"pad": pad}})
    lines = b"".join((line % i).encode() + b"\n" for i in range(STREAMED))
    assert 63 * 2**20 < len(lines) <= 64 * 2**20
    headers = {"Content-Type": "application/x-ndjson", "X-Timeout-Ms": "600000"}
    return ask(origin, "PUT", "/v1/collections/streamed/documents", lines, headers, timeout_s=300)


def _drip_all(connections: list[socket.socket], stop: threading.Event) -> None:
    while not stop.wait(0.5):
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(b"a", socket.MSG_DONTWAIT)


def _hung_up(connection: socket.socket) -> bool:
    """Whether the other side has closed it; does not wait."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


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


@pytest.mark.parametrize(("bytes_per_s", "is_slow"), [(1000, False), (996, True)])
def test_a_body_is_slow_below_the_least_rate(
    monkeypatch: pytest.MonkeyPatch, bytes_per_s: int, is_slow: bool
) -> None:
    """By a clock of its own: a part in each quarter of a second, looked at after each."""
    now_s = [0.0]
    monkeypatch.setattr(slow_clients, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    limits = SlowClientLimits(body_bytes_per_s=1000, window_s=1)
    request = slow_clients._Request()

    async def part() -> dict[str, Any]:
        now_s[0] += 0.25
        request.bytes += bytes_per_s // 4
        return {"type": "http.request", "more_body": True}

    async def received() -> list[bool]:
        found = list[bool]()
        for _ in range(12):
            await request.receive(part)
            found.append(request.too_slow(limits, now_s[0]))
        return found

    assert asyncio.run(received()) == 3 * [False, False, False, is_slow]


def test_a_window_begins_anew_while_the_same_part_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that was fast enough for one window may pause for nearly another before it is slow."""
    now_s = [0.0]
    monkeypatch.setattr(slow_clients, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    limits = SlowClientLimits(body_bytes_per_s=1000, window_s=1)

    async def judged_at(*looks_s: float) -> list[bool]:
        request = slow_clients._Request()
        request.bytes += 2000
        awaited = asyncio.create_task(request.receive(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)  # it waits for a part that does not come
        judged = [request.too_slow(limits, look_s) for look_s in looks_s]
        awaited.cancel()
        return judged

    assert asyncio.run(judged_at(0.9, 1.1, 1.4, 2.0, 2.2)) == [False, False, False, False, True]


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
        deadline = time.monotonic() + LATEST_S
        while time.monotonic() < deadline:
            time.sleep(0.5)
            try:
                connection.sendall(b" ")
            except OSError:
                break
        else:
            pytest.fail("the connection was kept open")


def test_the_second_part_of_an_answer_does_not_wait_for_the_first() -> None:
    """Headers and body are two packets; 40 ms lie between them when the kernel collects what is written."""

    async def scenario() -> int:
        config = uvicorn.Config(lambda *_: None, http=patient_protocol(SlowClientLimits()), lifespan="off")
        config.load()
        made: list[Any] = []

        def protocol() -> Any:
            made.append(patient_protocol(SlowClientLimits())(config, uvicorn.server.ServerState(), {}))
            return made[-1]

        with socket.create_server(("127.0.0.1", 0)) as listening:  # as the command line binds it
            served = await asyncio.get_running_loop().create_server(protocol, sock=listening)
            _, writer = await asyncio.open_connection(*listening.getsockname())
            while not made or made[0].transport is None:
                await asyncio.sleep(0.001)
            accepted = made[0].transport.get_extra_info("socket")
            chosen = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
            served.close()
            return chosen

    assert asyncio.run(asyncio.wait_for(scenario(), LATEST_S)) != 0


def test_headers_without_end_are_refused(impatient: str) -> None:
    with connected(impatient) as connection:
        connection.sendall(HEAD)
        try:
            for i in range(10_000):
                connection.sendall(f"X-{i}: {'a' * 1000}\r\n".encode())
        except OSError:
            pass
        else:
            pytest.fail("ten megabytes of headers were read")
    assert ask(impatient, "GET", "/healthz")[0] == 200


def test_patience_is_above_zero() -> None:
    with pytest.raises(InvalidRequest, match="header_s=0; use a number above 0"):
        SlowClientLimits(header_s=0)


def test_answers_without_a_body_arrive(server: str) -> None:
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=LATEST_S)
    for _ in range(2):  # the connection stays as it should be
        for method, path in ("HEAD", "/ui/page.css"), ("HEAD", "/"), ("GET", "/healthz"):
            connection.request(method, path)
            answer: Any = connection.getresponse()
            assert answer.status in (200, 404, 405)
            assert bool(answer.read()) == (method == "GET")
    connection.close()
