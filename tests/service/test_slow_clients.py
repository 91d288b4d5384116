"""Clients that send almost nothing keep nobody out: a request takes its place when its body is in."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest
from support.patience import LATEST_S
from support.service.sockets import ask

from dsearch.cli.commands.serve import bound

pytestmark = pytest.mark.server

HEAD = b"POST /v1/collections/papers/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
STARTS = (b"", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{", HEAD + b"Transfer-Encoding: chunked\r\n\r\n")


def test_slow_clients_take_no_place(server: str) -> None:
    """More of them than searches may be in the service."""
    port = int(server.rpartition(":")[2])
    with ExitStack() as slow:
        for number in range(200):
            connection = socket.create_connection(("127.0.0.1", port), timeout=LATEST_S)
            slow.enter_context(connection)
            connection.sendall(STARTS[number % len(STARTS)])
        for _ in range(5):
            assert ask(server, "GET", "/v1/collections")[0] == 200
        assert ask(server, "GET", "/readyz")[0] == 200


def test_the_second_part_of_an_answer_does_not_wait_for_the_first() -> None:
    """Headers and body are two packets; 40 ms lie between them when the kernel collects what is written."""

    async def chosen() -> int:
        accepted = asyncio.get_running_loop().create_future()
        with bound("127.0.0.1", 0) as listening:
            served = await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listening)
            _, client = await asyncio.open_connection(*listening.getsockname())
            writer = await accepted
            option = writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            for end in (writer, client, served):
                end.close()
            return option

    assert asyncio.run(asyncio.wait_for(chosen(), LATEST_S)) != 0
