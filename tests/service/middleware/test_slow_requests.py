"""What counts as too slow, by a clock of the test's own: no server, and nothing waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dsearch.service.middleware import slow_clients
from dsearch.service.middleware.slow_clients import PatientProtocol, SlowClientLimits

LIMITS = SlowClientLimits(header_s=4, body_bytes_per_s=100, window_s=10, answer_s=60, connections=3)


class Clock:
    """Seconds that pass only when told to."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(slow_clients, "time", made)
    return made


class Transport:
    """A connection that notes what is done to it."""

    def __init__(self) -> None:
        self.unread, self.written = 0, b""
        self.closed = self.aborted = False

    def get_extra_info(self, _: str) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def write(self, content: bytes) -> None:
        self.written += content

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


class Served:
    """uvicorn's protocol, which has nothing to do here."""

    def __init__(self, *_: Any) -> None:
        self.received = b""

    def connection_made(self, _: object) -> None: ...
    def connection_lost(self, _: object) -> None: ...

    def data_received(self, data: bytes) -> None:
        self.received += data


@pytest.fixture
def protocol(monkeypatch: pytest.MonkeyPatch) -> type[PatientProtocol]:
    monkeypatch.setattr(slow_clients, "AutoHTTPProtocol", Served)
    return slow_clients.patient_protocol(LIMITS)


def connected(protocol: type[PatientProtocol]) -> PatientProtocol:
    connection = protocol(None, None, {})
    connection.connection_made(Transport())
    return connection


def received(request: Any, *messages: tuple[float, bool], clock: Clock) -> None:
    """Receive parts of a body, each after so many seconds, and whether more follow."""

    async def parts() -> None:
        for after_s, more in messages:

            async def receive(after_s: float = after_s, more: bool = more) -> dict[str, Any]:
                clock.now += after_s
                return {"type": "http.request", "more_body": more}

            await request.receive(receive)

    asyncio.run(parts())


def test_a_body_is_judged_by_the_time_of_its_window_alone(clock: Clock) -> None:
    request = slow_clients._Request()
    received(request, (9.0, True), clock=clock)
    assert not request.too_slow(LIMITS, clock.now)  # 9 s are no window yet
    received(request, (1.0, True), clock=clock)
    request.bytes = 1000
    assert not request.too_slow(LIMITS, clock.now)  # 100 bytes a second, just so
    received(request, (9.0, True), clock=clock)
    assert not request.too_slow(LIMITS, clock.now)  # the window begins anew
    received(request, (1.0, True), clock=clock)
    request.bytes = 999
    assert request.too_slow(LIMITS, clock.now)


def test_time_in_which_the_server_does_not_read_is_its_own(clock: Clock) -> None:
    request = slow_clients._Request()
    received(request, (9.0, True), clock=clock)
    clock.now += 3600
    assert not request.too_slow(LIMITS, clock.now)
    received(request, (1.0, True), clock=clock)
    assert request.too_slow(LIMITS, clock.now)


def test_a_wait_that_goes_on_counts(clock: Clock) -> None:
    async def scenario() -> list[bool]:
        request, never = slow_clients._Request(), asyncio.Event()

        async def receive() -> Any:
            await never.wait()

        task = asyncio.create_task(request.receive(receive))
        await asyncio.sleep(0)
        seen = [request.too_slow(LIMITS, clock.now + after_s) for after_s in (9.9, 10.0, 15.0, 20.0)]
        task.cancel()
        return seen

    assert asyncio.run(scenario()) == [False, True, False, True]


def test_a_body_that_is_read_is_not_slow_any_more(clock: Clock) -> None:
    request = slow_clients._Request()
    received(request, (60.0, False), clock=clock)
    assert not request.too_slow(LIMITS, clock.now)


def test_headers_have_their_seconds_from_their_first_byte(
    clock: Clock, protocol: type[PatientProtocol]
) -> None:
    connection = connected(protocol)
    for seconds, closed in ((4.0, False), (4.1, True)):
        connection.look(1000.0 + seconds)
        assert connection.transport.closed is closed
    other = connected(protocol)
    other.end(other.begin())  # answered; the next request has not begun
    other.look(1000.0 + 3600)
    assert not other.transport.closed
    assert not other.transport.aborted  # there is nothing that it could read
    clock.now += 3600
    other.data_received(b"GET ")
    clock.now += 1
    other.data_received(b"/ ")  # does not begin the wait anew
    other.look(clock.now + 3.1)
    assert other.transport.closed


def test_a_body_in_many_small_parts_is_as_fast_as_their_sum(
    clock: Clock, protocol: type[PatientProtocol]
) -> None:
    connection = connected(protocol)
    request = connection.begin()
    received(request, (10.0, True), clock=clock)
    for _ in range(100):
        connection.data_received(b"x" * 10)
    connection.look(clock.now)
    assert not connection.transport.closed
    received(request, (10.0, True), clock=clock)
    connection.data_received(b"x" * 999)
    connection.look(clock.now)
    assert connection.transport.closed


def test_an_answer_is_given_up_when_none_of_it_is_read(clock: Clock, protocol: type[PatientProtocol]) -> None:
    connection = connected(protocol)
    connection.begin()
    transport = connection.transport
    for seconds, unread in ((10, 500), (69, 400), (70, 400), (128, 400)):
        transport.unread = unread
        connection.look(1000.0 + seconds)
        assert not transport.aborted, seconds
    connection.look(1000.0 + 130)  # 61 s after the last part was read
    assert transport.aborted


def test_the_longest_waiting_one_makes_room(clock: Clock, protocol: type[PatientProtocol]) -> None:
    connections = []
    for _ in range(LIMITS.connections):
        connections.append(connected(protocol))
        clock.now += 1
    connections[0].begin()  # answers are not cut off
    newest = connected(protocol)
    aborted = [connection.transport.aborted for connection in (*connections, newest)]
    assert aborted == [False, True, False, False]
    newest.connection_lost(None)
    assert newest not in protocol.connections
    connected(protocol)
    assert sum(one.transport.aborted for one in protocol.connections) == 1


def test_headers_above_their_bytes_are_refused_and_the_next_count_anew(
    clock: Clock, protocol: type[PatientProtocol]
) -> None:
    async def scenario(*parts: int) -> Transport:
        connection = connected(protocol)
        for size in parts:
            if size:
                connection.data_received(b"a" * size)
            else:
                connection.end(connection.begin())
            await asyncio.sleep(0)
        return connection.transport

    most = LIMITS.header_bytes
    assert not asyncio.run(scenario(most)).closed
    assert not asyncio.run(scenario(most, 0, most)).closed
    refused = asyncio.run(scenario(most, 1))
    assert refused.closed
    assert refused.written.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")


def test_connections_are_looked_at_often_enough() -> None:
    assert SlowClientLimits().look_every_s == 1.0
    assert SlowClientLimits(header_s=2).look_every_s == 0.5
    assert SlowClientLimits(window_s=1).look_every_s == 0.25


def test_a_request_ends_for_its_connection_however_it_is_answered() -> None:
    told: list[str] = []

    class _Connection:
        def begin(self) -> str:
            told.append("begun")
            return "request"

        def end(self, request: str) -> None:
            told.append(f"{request} ended")

    async def failing(*_: Any) -> None:
        raise RuntimeError("of the application")

    scope: Any = {"type": "http", "state": {slow_clients._STATE: _Connection()}}
    unused: Any = None
    with pytest.raises(RuntimeError, match="of the application"):
        asyncio.run(slow_clients.WatchBodies(failing)(scope, unused, unused))
    assert told == ["begun", "request ended"]
