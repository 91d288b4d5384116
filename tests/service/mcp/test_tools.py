"""The tools of agents, asked by the official SDK's client: over HTTP of a real server, and over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import mcp
import pytest
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from support.paths import SUPPORT
from support.service.service_fakes import WordEncoder, documents, serving
from support.warm.processes import VARIABLE, warm_start

from dsearch.engine import SearchEngine
from dsearch.service.keys import ApiKeys
from dsearch.types import Document

pytestmark = pytest.mark.server

T = TypeVar("T")
READING = ["search", "fetch", "list_collections"]
ERAS = ["auto", "legacy"]  # without sessions, and with the handshake of older agents


def with_notes(home: Path) -> Path:
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(40))
        engine.create("notes").ingest(
            [
                Document("a/b", "cat music\nlater", metadata={"url": "https://notes.example/1"}),
                Document("c", "river stone", "Rivers", {"_file": {"root": "/disk/notes", "path": "c"}}),
            ]
        )
    return home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_notes(tmp_path_factory.mktemp("open") / "home")


@pytest.fixture(scope="module")
def origin(home: Path) -> Iterator[str]:
    with serving(home) as (address, _):
        yield address


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A server that needs keys: its origin, and a key of each scope."""
    home = with_notes(tmp_path_factory.mktemp("locked") / "home")
    keys = {scope: ApiKeys(home).create(scope, scope)[0] for scope in ("read", "write")}
    with serving(home) as (address, _):
        yield address, keys


def over_http(origin: str, use: Callable[[Any], Awaitable[T]], *, mode: str = "auto", **headers: str) -> T:
    """Connect the SDK's client, and let `use` ask."""

    async def connect() -> T:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as sender,
            mcp.Client(streamable_http_client(f"{origin}/mcp", http_client=sender), mode=mode) as client,
        ):
            return await use(client)

    return asyncio.run(connect())


async def names(client: Any) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


def content(result: Any) -> Any:
    """What a tool answered: the same as text and as an object."""
    assert not result.is_error, result.content
    [item] = result.content
    assert json.loads(item.text) == result.structured_content
    return result.structured_content


def refusal(result: Any) -> str:
    assert result.is_error
    return result.content[0].text


@pytest.mark.parametrize("mode", ERAS)
def test_an_agent_searches_and_reads(origin: str, mode: str) -> None:
    async def use(client: Any) -> None:
        found = content(await client.call_tool("search", {"query": "cat music", "collection": "notes"}))
        assert found["results"][0] == {
            "id": "notes/a/b",
            "title": "cat music",
            "url": "https://notes.example/1",
        }
        read = content(await client.call_tool("fetch", {"id": "notes/a/b"}))
        assert read == {
            **found["results"][0],
            "text": "cat music\nlater",
            "metadata": {"url": "https://notes.example/1"},
        }

    over_http(origin, use, mode=mode)


def test_without_a_collection_all_are_searched_in_turn(origin: str) -> None:
    async def use(client: Any) -> None:
        found = content(await client.call_tool("search", {"query": "cat music river", "limit": 6}))
        assert len(found["results"]) == 6
        places = [one["id"].partition("/")[0] for one in found["results"]]
        assert places == ["notes", "papers", "notes", "papers", "papers", "papers"]
        address = found["results"][1]["url"]
        assert address.startswith(f"{origin}/v1/collections/papers/documents/d")
        async with httpx2.AsyncClient() as reader:
            assert (await reader.get(address)).json()["title"] == found["results"][1]["title"]

    over_http(origin, use)


@pytest.mark.parametrize(("said", "scheme"), [("https", "https"), ("gopher", "http")])
def test_behind_a_proxy_addresses_have_the_scheme_of_its_clients(origin: str, said: str, scheme: str) -> None:
    async def use(client: Any) -> None:
        found = content(await client.call_tool("search", {"query": "river", "collection": "papers"}))
        assert all(one["url"].startswith(f"{scheme}://127.0.0.1:") for one in found["results"])

    over_http(origin, use, **{"X-Forwarded-Proto": said})


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of the loopback")
def test_what_a_client_says_of_itself_is_no_word_of_a_proxy(origin: str) -> None:
    """Only a proxy on this machine is believed, or anybody could have the addresses of others."""
    asked = {"name": "search", "arguments": {"query": "river", "collection": "papers"}}
    headers = {"Accept": "application/json, text/event-stream", "X-Forwarded-Proto": "https"}
    with httpx2.Client(transport=httpx2.HTTPTransport(local_address="127.0.0.2"), headers=headers) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": asked}
        answer = client.post(f"{origin}/mcp", json=body)
    assert answer.status_code == 200
    assert "http://127.0.0.1:" in answer.text
    assert "https://127.0.0.1:" not in answer.text


def test_the_outcome_of_a_task_is_told(origin: str) -> None:
    """Over collections, each id is found again where its search found it; see also test_outcomes.py."""

    async def use(client: Any) -> None:
        asked = {"query": "cat music river", "limit": 6, "episode": "task"}
        results = content(await client.call_tool("search", asked))["results"]
        for result in results[:3]:
            content(await client.call_tool("fetch", {"id": result["id"], "episode": "task"}))
        useful = [results[0]["id"], results[1]["id"]]
        assert {id.partition("/")[0] for id in useful} == {"notes", "papers"}
        ended = {"episode": "task", "useful_ids": useful, "success": True}
        assert content(await client.call_tool("report_outcome", ended))["recorded"] == 3
        assert content(await client.call_tool("report_outcome", ended))["recorded"] == 0
        for arguments, told in (
            ({"episode": "other"}, "no search of it is remembered"),
            ({"useful_ids": ["papers/none"]}, "which no search of this episode showed"),
            ({"useful_ids": ["nowhere/x"]}, "which no search of this episode showed"),
            ({"success": "yes"}, "success"),
            ({"success": False}, "names another event already"),
        ):
            assert told in refusal(await client.call_tool("report_outcome", {**ended, **arguments}))

    over_http(origin, use)


def test_collections_are_listed(origin: str) -> None:
    async def use(client: Any) -> None:
        listed = content(await client.call_tool("list_collections", {}))["collections"]
        assert [(one["name"], one["documents"], one["model"]) for one in listed] == [
            ("notes", 2, "v0"),
            ("papers", 40, "v0"),
        ]

    over_http(origin, use)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("search", {}, "query is missing"),
        ("search", {"query": " "}, "use 1 to 8192 characters"),
        ("search", {"query": "cat", "limit": 0}, "limit=0; use an integer from 1 to 50"),
        ("search", {"query": "cat", "top": 3}, "unknown field 'top'; use query, collection, limit"),
        ("search", {"query": "cat", "collection": "none"}, "no collection 'none'; there are: notes, papers"),
        ("fetch", {"id": "papers"}, "use the id of a result of search"),
        ("fetch", {"id": "papers/nothing"}, "nothing"),
        (
            "remove",
            {},
            "no tool 'remove'; use search, fetch, list_collections, add_documents, report_outcome",
        ),
        (
            "add_documents",
            {"collection": "papers", "documents": []},
            "documents=[]; list should have at least 1 item",
        ),
        (
            "add_documents",
            {"collection": "papers", "documents": [{"id": 1.5}]},
            "documents.0.id=1.5; use a string",
        ),
    ],
)
def test_an_agent_is_told_what_to_do_better(
    origin: str, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async def use(client: Any) -> str:
        return refusal(await client.call_tool(tool, arguments))

    assert said in over_http(origin, use)


@pytest.mark.parametrize("mode", ERAS)
def test_a_scope_decides_which_tools_there_are(locked: tuple[str, dict[str, str]], mode: str) -> None:
    origin, keys = locked
    added = {"collection": "notes", "documents": [{"id": f"new-{mode}", "text": "lamp"}]}

    async def reader(client: Any) -> None:
        assert await names(client) == READING
        assert "needs write" in refusal(await client.call_tool("add_documents", added))

    async def writer(client: Any) -> None:
        assert await names(client) == [*READING, "add_documents", "report_outcome"]
        assert content(await client.call_tool("add_documents", added))["inserted"] == 1
        assert content(await client.call_tool("fetch", {"id": f"notes/new-{mode}"}))["text"] == "lamp"

    over_http(origin, reader, mode=mode, Authorization=f"Bearer {keys['read']}")
    over_http(origin, writer, mode=mode, Authorization=f"Bearer {keys['write']}")


@pytest.mark.parametrize(
    ("key", "said"),
    [("", "no API key; send one"), ("Bearer ds_00000000_" + "A" * 43, "this API key is not known")],
)
def test_without_a_key_no_tool_is_reached(locked: tuple[str, dict[str, str]], key: str, said: str) -> None:
    origin, _ = locked
    with pytest.raises(BaseException) as raised:  # an ExceptionGroup
        over_http(origin, names, **({"Authorization": key} if key else {}))
    error = raised.value
    while isinstance(error, BaseExceptionGroup):
        [error] = error.exceptions
    assert said in str(error)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Origin": "http://evil.example"}, 403, "origin_not_allowed"),
        ({"Host": "evil.example"}, 421, "host_not_allowed"),
    ],
)
def test_pages_and_names_of_others_are_refused(
    origin: str, headers: dict[str, str], status: int, code: str
) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    sent = {"Accept": "application/json, text/event-stream"}
    refused = httpx2.post(f"{origin}/mcp", json=body, headers=sent | headers)
    assert (refused.status_code, refused.json()["error"]["data"]["code"]) == (status, code)
    assert httpx2.post(f"{origin}/mcp", json=body, headers=sent).status_code == 200


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_there_are_no_sessions(origin: str, method: str) -> None:
    refused = httpx2.request(method, f"{origin}/mcp", headers={"Accept": "text/event-stream"})
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("mode", ERAS)
def test_an_agent_on_this_machine_starts_it(tmp_path: Path, mode: str) -> None:
    """Over stdin and stdout, in a process of its own, beside nothing else."""
    home = with_notes(tmp_path / "home")
    script = SUPPORT / "service" / "stdio_process.py"

    async def connect(*flags: str) -> list[str]:
        started = StdioServerParameters(
            command=sys.executable,
            args=["-IS", str(SUPPORT / "warm" / "command.py"), str(script), str(home), *flags],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: warm_start().address},
        )
        async with mcp.Client(started, mode=mode) as client:
            river = {"query": "river stone", "episode": f"stdio{len(flags)}", "collection": "notes"}
            found = content(await client.call_tool("search", river))
            assert found["results"][0]["id"] == "notes/c"
            assert found["results"][0]["url"] == "dsearch://notes/c"
            fetched = content(await client.call_tool("fetch", {"id": "notes/c"}))
            assert (fetched["text"], fetched["metadata"]) == ("river stone", {"_file": {"path": "c"}})
            ended = {"episode": f"stdio{len(flags)}", "useful_ids": ["notes/c"], "success": True}
            assert content(await client.call_tool("report_outcome", ended))["recorded"] == 1
            if flags:
                added = {"collection": "notes", "documents": [{"id": "new", "text": "lamp lamp"}]}
                assert content(await client.call_tool("add_documents", added))["inserted"] == 1
                found = content(await client.call_tool("search", {"query": "lamp", "collection": "notes"}))
                assert found["results"][0]["id"] == "notes/new"
            return await names(client)

    assert asyncio.run(connect()) == [*READING, "report_outcome"]
    assert asyncio.run(connect("--write")) == [*READING, "add_documents", "report_outcome"]
