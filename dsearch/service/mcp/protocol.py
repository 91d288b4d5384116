"""`protocol_server`: the tools as a server of the Model Context Protocol, by the official SDK (extra mcp)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import orjson
from mcp.server import Server, ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel, ValidationError

from dsearch.errors import DsearchError, InvalidRequest, ScopeTooNarrow
from dsearch.service.errors import without_home
from dsearch.service.mcp.tools import TOOLS, AgentTool, ToolCaller
from dsearch.service.state import Service
from dsearch.service.wire.problems import field_errors, in_body
from dsearch.service.wire.requests import repr_of
from dsearch.version import __version__

_INSTRUCTIONS = (
    "Search the user's own documents: search gives ids, titles and addresses, best first; fetch gives the "
    "whole text of one. Ask again in other words if nothing fits. Give the calls of a task the same episode, "
    "and end it with report_outcome where that is listed: the search learns what helped."
)
SHOWN_ERRORS = 5  # an agent reads them all
_log = logging.getLogger(__name__)

CallerOf = Callable[[ServerRequestContext[Any, Any]], ToolCaller]


def protocol_server(service: Service, caller_of: CallerOf) -> Server[Any]:
    """The protocol server of a service's tools, for any transport.

    Args:
        service: does the work.
        caller_of: who calls, by the request that came. Tools beyond the caller's scope are not listed.
    """

    async def list_tools(
        context: ServerRequestContext[Any, Any], _: PaginatedRequestParams | None
    ) -> ListToolsResult:
        caller = caller_of(context)
        return ListToolsResult(tools=[_declared(tool) for tool in TOOLS.values() if caller.may(tool)])

    async def call_tool(
        context: ServerRequestContext[Any, Any], call: CallToolRequestParams
    ) -> CallToolResult:
        try:
            answer = await _call(service, call.name, call.arguments or {}, caller_of(context))
        except DsearchError as error:
            return _refusal(without_home(str(error)))
        except Exception:
            _log.exception("tool %s failed", repr_of(call.name))
            return _refusal("an unexpected error; the server's log has it")
        content = answer.model_dump(mode="json")
        text = TextContent(type="text", text=orjson.dumps(content).decode())
        return CallToolResult(content=[text], structured_content=content)

    return Server(
        "dsearch",
        version=__version__,
        title="dsearch",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _call(service: Service, name: str, arguments: dict[str, Any], caller: ToolCaller) -> BaseModel:
    """Check and call a tool.

    Raises:
        InvalidRequest: no such tool, wrong arguments.
        ScopeTooNarrow: the key's scope does not allow it.
        DsearchError: what the tool raises.
    """
    usable = [tool for tool in TOOLS.values() if caller.may(tool)]
    tool = TOOLS.get(name)
    if tool is None:
        raise InvalidRequest(f"no tool {repr_of(name)}; use {', '.join(item.name for item in usable)}")
    if tool not in usable:
        raise ScopeTooNarrow(
            f"this API key has scope {caller.scope}; {name} needs {tool.scope} "
            f"(dsearch keys create --scope {tool.scope})"
        )
    try:
        parsed = tool.arguments.model_validate(arguments)
    except ValidationError as error:
        wrong = field_errors(in_body(error)[:SHOWN_ERRORS])
        raise InvalidRequest("; ".join(item["detail"] for item in wrong)) from None
    return await tool.run(service, parsed, caller)


def _refusal(message: str) -> CallToolResult:
    """An error that the agent reads, to do better."""
    return CallToolResult(content=[TextContent(type="text", text=message)], is_error=True)


def _declared(tool: AgentTool) -> Tool:
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.arguments.model_json_schema(),
        output_schema=tool.answer.model_json_schema(mode="serialization"),
        annotations=ToolAnnotations(
            read_only_hint=not tool.call.place.writes,
            destructive_hint=tool.replaces,
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )
