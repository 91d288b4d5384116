"""A stream of lines in blocks of so many lines and bytes; refused lines are counted, and a hundred told."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from dsearch.errors import InvalidDocument
from dsearch.search_options import SearchOptions
from dsearch.service import ingest
from dsearch.service.errors import BodyTooLarge
from dsearch.service.ingest import StreamCounts, blocks
from dsearch.service.searching import Searches
from dsearch.service.wire.problems import field_errors


class Sent:
    """Parts of a body, and how many of them were read."""

    def __init__(self, parts: Iterable[bytes]):
        self.parts, self.read = parts, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            self.read += 1
            yield part


def read(sent: Sent) -> list[list[tuple[int, bytes]]]:
    async def collect() -> list[list[tuple[int, bytes]]]:
        return [block async for block in blocks(sent)]

    return asyncio.run(collect())


def test_lines_are_numbered_and_those_that_are_blank_left_out() -> None:
    found = read(Sent([b'{"a"', b":1}\n\n  \n{}", b'\n"last"']))
    assert found == [[(1, b'{"a":1}'), (4, b"{}"), (5, b'"last"')]]
    assert read(Sent([])) == read(Sent([b"\n\n"])) == []


def test_a_block_is_bounded_in_lines_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "BLOCK_LINES", 4)
    monkeypatch.setattr(ingest, "BLOCK_BYTES", 100)
    assert [len(block) for block in read(Sent([b"1\n" * 9]))] == [4, 4, 1]
    assert [len(block) for block in read(Sent([b"x" * 49 + b"\n"] * 5))] == [3, 2]
    assert [len(block) for block in read(Sent([b"x" * 50 + b"\n"] * 5))] == [2, 2, 1]


def test_a_line_without_end_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "MAX_LINE_BYTES", 1000)
    assert [len(block) for block in read(Sent([b"x" * 1000 + b"\n"]))] == [1]
    sent = Sent([b"x" * 400] * 50)
    with pytest.raises(BodyTooLarge, match="line 1 has more than 1000 bytes"):
        read(sent)
    assert sent.read == 3
    with pytest.raises(BodyTooLarge, match="line 2 has more than 1000 bytes"):
        read(Sent([b"{}\n" + b"x" * 1001 + b"\n"]))


def test_each_line_has_a_bound_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the parts of a body cut the lines."""
    monkeypatch.setattr(ingest, "MAX_LINE_BYTES", 100)
    line = b"x" * 99 + b"\n"
    for size in (1, 60, 100, 150, 1000):
        body = line * 10
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        (block,) = read(Sent(parts))
        assert block == [(number, line[:-1]) for number in range(1, 11)], size


def test_a_hundred_problems_are_told_and_all_are_counted() -> None:
    counts = StreamCounts(None, "papers")  # type: ignore[arg-type]
    for line in range(1, 151):
        counts._refuse(line, InvalidDocument("no"))  # pyright: ignore[reportPrivateUsage]
    assert (counts.refused, len(counts.problems), counts.problems[-1].line) == (150, 100, 100)
    assert counts.nothing_stored
    counts.unchanged = 1
    assert not counts.nothing_stored


def test_lines_that_are_not_listed_are_not_described(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[int] = []

    def describe(errors: Sequence[Any]) -> list[dict[str, str]]:
        described.append(len(errors))
        return field_errors(errors)

    monkeypatch.setattr(ingest, "field_errors", describe)
    assert client.put("/v1/collections/notes").status_code == 201
    headers = {"Content-Type": "application/x-ndjson"}
    answer = client.put("/v1/collections/notes/documents", content="{}\n" * 300, headers=headers).json()
    assert (answer["written"]["refused"], len(answer["written"]["problems"])) == (300, 100)
    assert described == [1] * 100


def test_an_id_whose_line_was_refused_may_come_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a later block: of one block, the first line with an id counts."""
    monkeypatch.setattr(ingest, "BLOCK_LINES", 1)
    url = "/v1/collections/images"
    assert client.put(url, json={"dimension": 2}).status_code == 201

    def line(*embedding: float) -> bytes:
        return json.dumps({"id": "a", "text": "a", "embedding": embedding}).encode() + b"\n"

    body = line(0.0, 0.0) + line(0.6, 0.8) + line(math.sqrt(0.5), math.sqrt(0.5))
    answer: Any = client.put(
        f"{url}/documents", content=body, headers={"Content-Type": "application/x-ndjson"}
    ).json()
    assert (answer["inserted"], answer["updated"], answer["refused"]) == (1, 0, 2)
    assert [problem["line"] for problem in answer["problems"]] == [1, 3]
    assert "stands on line 2 too" in answer["problems"][1]["detail"]


def test_an_id_that_a_refused_line_of_its_block_has_is_not_said_to_be_stored(client: TestClient) -> None:
    url = "/v1/collections/images"
    assert client.put(url, json={"dimension": 2}).status_code == 201
    lines = [
        {"id": id, "text": id, "embedding": of} for id, of in (("a", [3, 4]), ("a", [0, 1]), ("b", [0, 1]))
    ]
    body = "\n".join(map(json.dumps, lines))
    headers = {"Content-Type": "application/x-ndjson"}
    answer: Any = client.put(f"{url}/documents", content=body, headers=headers).json()
    told = {problem["line"]: problem["detail"] for problem in answer["problems"]}
    assert told[2] == "id 'a' stands on line 1 too, which came first; send each id once", answer


def test_what_became_of_each_block_is_added_up(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "BLOCK_LINES", 1)
    url = "/v1/collections/notes"
    assert client.put(url).status_code == 201

    def stored(*texts: str) -> tuple[int, int, int]:
        lines = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(texts)]
        headers = {"Content-Type": "application/x-ndjson"}
        answer = client.put(f"{url}/documents", content="\n".join(lines), headers=headers).json()
        assert answer["sequence"] == client.get(url).json()["sequence"]
        return answer["inserted"], answer["updated"], answer["unchanged"]

    assert stored() == (0, 0, 0)
    assert stored("cat", "dog", "lamp") == (3, 0, 0)
    assert stored("cat", "dog", "lamp") == (0, 0, 3)
    assert stored("river", "stone", "lamp", "music") == (1, 2, 1)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 64),
        ({"candidates": 256}, 64),
        ({"candidates": 1024}, 16),
        ({"limit": 1000}, 16),
        ({"limit": 24, "offset": 1000}, 16),
        ({"limit": 1000, "offset": 1000, "candidates": 8192}, 2),
        ({"limit": 1000, "candidates": 20_000}, 1),
        ({"cursor": "x"}, 1),
    ],
)
def test_a_batch_of_searches_is_bounded_in_candidates(options: dict[str, Any], most: int) -> None:
    assert Searches(None, "papers", SearchOptions(**options)).largest_batch == most  # type: ignore[arg-type]


def test_a_stream_out_of_time_says_how_much_is_stored_and_may_be_sent_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take = StreamCounts.take

    def slow(self: StreamCounts, lines: Sequence[tuple[int, bytes]]) -> None:
        take(self, lines)
        time.sleep(0.4)

    monkeypatch.setattr(ingest, "BLOCK_LINES", 2)
    monkeypatch.setattr(StreamCounts, "take", slow)
    body = b"".join(b'{"id": "s%d", "text": "cat"}\n' % number for number in range(40))
    headers = {"Content-Type": "application/x-ndjson", "X-Timeout-Ms": "1000"}
    client.put("/v1/collections/streamed")
    url = "/v1/collections/streamed/documents"
    answer = client.put(url, content=body, headers=headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (504, "deadline_passed")
    stored = problem["written"]["inserted"]
    assert 0 < stored < 40
    assert client.get("/v1/collections/streamed").json()["documents"] == stored
    assert f"{stored} document" in problem["detail"]
    assert [record.message for record in caplog.records if f"after {stored} document" in record.message]
    monkeypatch.setattr(StreamCounts, "take", take)
    again = client.put(url, content=body, headers={"Content-Type": "application/x-ndjson"}).json()
    assert (again["inserted"], again["unchanged"]) == (40 - stored, stored)
