"""Head and body of an answer are one write; nothing is kept back for longer than an answer takes."""

from __future__ import annotations

import http.client
from typing import Any
from urllib.parse import urlsplit

import pytest

from dsearch.service.middleware.one_write import OneWrite

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Below:
    """A transport that notes what it is given."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.got.append(data)

    def close(self) -> None:
        self.got.append(b"closed")

    def abort(self) -> None:
        self.got.append(b"aborted")

    def get_write_buffer_size(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("written", "got"),
    [
        ([HEAD, b"body", HEAD, b"more"], [HEAD + b"body", HEAD + b"more"]),
        ([HEAD, b"b", b"ody"], [HEAD + b"b", b"ody"]),
        ([STREAM, b"1\r\nx\r\n"], [STREAM, b"1\r\nx\r\n"]),
        ([EMPTY], [EMPTY]),
        ([CONTINUE, HEAD, b"body"], [CONTINUE, HEAD + b"body"]),
        ([HEAD, b"x" * 100_000], [HEAD, b"x" * 100_000]),
    ],
)
def test_what_is_written_together(written: list[bytes], got: list[bytes]) -> None:
    below = Below()
    transport = OneWrite(below)
    for data in written:
        transport.write(data)
    assert below.got == got


def test_a_head_that_is_kept_back_is_written_at_the_end_and_counted_before() -> None:
    for end, left in ("flush", [HEAD]), ("close", [HEAD, b"closed"]), ("abort", [b"aborted"]):
        below = Below()
        transport = OneWrite(below)
        transport.write(HEAD)
        assert (below.got, transport.get_write_buffer_size()) == ([], len(HEAD) + 7)
        getattr(transport, end)()
        transport.flush()
        assert (below.got, transport.get_write_buffer_size()) == (left, 7)


def test_answers_without_a_body_arrive(server: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(server).netloc, timeout=10)
    for _ in range(2):  # the connection stays as it should be
        for method, path in ("HEAD", "/ui/page.css"), ("HEAD", "/"), ("GET", "/healthz"):
            connection.request(method, path)
            answer: Any = connection.getresponse()
            assert answer.status in (200, 404, 405)
            assert bool(answer.read()) == (method == "GET")
    connection.close()
