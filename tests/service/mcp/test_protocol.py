"""Agents' calls of tools: which are listed, what is refused, and in which words."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp")

from dsearch.errors import CollectionNotFound, CorruptData
from dsearch.service.errors import hide_folder
from dsearch.service.mcp import protocol, tools
from dsearch.service.mcp.protocol import protocol_server
from dsearch.service.mcp.tools import TOOLS, ToolCaller

READING = ["search", "fetch", "list_collections"]
WRITING = ["add_documents", "report_outcome"]


class _Caller:
    """Somebody with a key of a scope."""

    def __init__(self, scope: str):
        self.scope = scope

    def may(self, tool: Any) -> bool:
        return self.scope == "write" or tool.scope == "read"


def server(scope: str = "write", service: Any = None) -> Any:
    return protocol_server(service, lambda context: _Caller(scope))  # type: ignore[arg-type,return-value]


def listed(scope: str) -> list[Any]:
    handle = _handler(server(scope), "tools/list")
    return asyncio.run(handle(None, None)).tools


def called(name: str, arguments: dict[str, Any] | None = None, scope: str = "write") -> Any:
    handle = _handler(server(scope), "tools/call")
    return asyncio.run(handle(None, SimpleNamespace(name=name, arguments=arguments)))


def _handler(made: Any, method: str) -> Any:
    return made.get_request_handler(method).handler


def refusal(*args: Any) -> str:
    result = called(*args)
    assert result.is_error
    return result.content[0].text


def test_tools_beyond_the_scope_are_not_listed() -> None:
    assert [tool.name for tool in listed("read")] == READING
    assert [tool.name for tool in listed("write")] == READING + WRITING


def test_a_tool_says_what_it_does() -> None:
    hints = {
        tool.name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint)
        for tool in listed("write")
    }
    assert hints == {
        "search": (True, False),
        "fetch": (True, False),
        "list_collections": (True, False),
        "add_documents": (False, True),
        "report_outcome": (False, False),
    }
    for tool in listed("write"):
        declared = TOOLS[tool.name]
        assert (tool.title, tool.description) == (declared.title, declared.description)
        assert tool.input_schema["properties"].keys() == declared.arguments.model_fields.keys()
        assert tool.output_schema["properties"].keys() == declared.answer.model_fields.keys()
        assert tool.annotations.idempotent_hint
        assert not tool.annotations.open_world_hint


def test_an_unknown_tool_is_answered_with_those_that_may_be_used() -> None:
    """No key learns of tools that it cannot use."""
    assert refusal("find", {}, "read") == "no tool 'find'; use search, fetch, list_collections"
    assert refusal("find", {}, "write").endswith("list_collections, add_documents, report_outcome")


def test_a_tool_beyond_the_scope_names_the_key_that_it_needs() -> None:
    assert refusal("add_documents", {}, "read") == (
        "this API key has scope read; add_documents needs write (dsearch keys create --scope write)"
    )


def test_wrong_arguments_are_named_and_the_first_five_at_most() -> None:
    assert "query" in refusal("search", None)
    assert "unknown field 'words'" in refusal("search", {"query": "cat", "words": 1})
    wrong = [{"id": "", "text": "x"}] * 9
    assert refusal("add_documents", {"collection": "papers", "documents": wrong}).count("; use") == 5
    assert refusal("search", {"query": "cat", "limit": 0}).count("limit=0; use an integer from 1 to 50") == 1


def test_errors_are_answers_and_unexpected_ones_tell_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(error: Exception) -> None:
        async def run(*_: Any) -> Any:
            raise error

        tool = TOOLS["search"]
        fields = {name: getattr(tool, name) for name in tool.__dataclass_fields__} | {"run": run}
        monkeypatch.setitem(TOOLS, "search", tools.AgentTool(**fields))

    failing(CollectionNotFound("no collection 'x'"))
    assert refusal("search", {"query": "cat"}) == "no collection 'x'"
    hide_folder(Path("/home/ann/index"))
    failing(CorruptData("/home/ann/index/papers/documents.db is damaged"))
    assert refusal("search", {"query": "cat"}) == "papers/documents.db is damaged"
    failing(ValueError("/home/ann/secret"))
    with caplog.at_level(logging.ERROR, logger=protocol.__name__):
        assert refusal("search", {"query": "cat"}) == "an unexpected error; the server's log has it"
    assert "tool 'search' failed" in caplog.text
    assert "/home/ann/secret" in caplog.text


def test_an_answer_is_the_same_as_text_and_as_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Service:
        catalogue = SimpleNamespace(describe_all=list)

        async def read(self, work: Any) -> Any:
            return work()

    handle = _handler(server("read", _Service()), "tools/call")
    result = asyncio.run(handle(None, SimpleNamespace(name="list_collections", arguments=None)))
    assert result.structured_content == {"collections": []}
    assert result.content[0].text == '{"collections":[]}'
    assert not result.is_error


def test_the_caller_is_that_of_each_request() -> None:
    seen: list[Any] = []

    def caller_of(context: Any) -> ToolCaller:
        seen.append(context)
        return _Caller("read")  # type: ignore[return-value]

    made = protocol_server(None, caller_of)  # type: ignore[arg-type]
    asyncio.run(_handler(made, "tools/list")("first", None))
    asyncio.run(_handler(made, "tools/call")("second", SimpleNamespace(name="x", arguments={})))
    assert seen == ["first", "second"]
