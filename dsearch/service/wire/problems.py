"""Errors as RFC 9457 problem documents, `{type, title, status, code, detail, …}`; headers of all answers.

`code` is stable and names the kind; `detail` says what was given, what is allowed and what to do. `type` is a
relative URL of the kind's description. An unexpected error shows a request id and nothing else.

The headers forbid browsers some uses of an answer, and carry the request's id.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from dsearch.declared import suggestion
from dsearch.errors import Command, DsearchError, KeyMissing, NotFound
from dsearch.index.durable import FULL, disk_error
from dsearch.service import errors as service_errors
from dsearch.service.errors import RetryLater, problem_members, without_home
from dsearch.service.wire.requests import SHOWN_ERRORS, repr_of

MEDIA_TYPE = "application/problem+json"
_SHAPES = {"model_attributes_type": "a JSON object", "model_type": "a JSON object", "list_type": "an array"}


class FieldError(BaseModel):
    """One field that was refused."""

    field: str = Field(description="where it stands, such as `limit` or `0.text`")
    detail: str


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "/problems/invalid_request",
                    "title": "A value out of range, of the wrong type or of the wrong shape.",
                    "status": 422,
                    "code": "invalid_request",
                    "detail": "limit=0; use an integer from 1 to 1000",
                    "errors": [{"field": "limit", "detail": "limit=0; use an integer from 1 to 1000"}],
                }
            ]
        }
    )

    type: str = Field(description="where the kind is described")
    title: str = Field(description="the kind in words; the same for every problem of this code")
    status: int
    code: str = Field(description="the kind, stable: program against this")
    detail: str = Field(description="what was given, what is allowed, what to do")
    hint: Command | None = Field(None, description="the command that does it, run in the server's home")
    errors: list[FieldError] | None = Field(None, description="each refused field")
    written: dict[str, Any] | None = Field(None, description="of a stream: what was stored before it failed")
    request_id: str | None = Field(
        None, description="of an unexpected error: look for it in the server's log"
    )


# ---- what can be answered


def kinds() -> dict[str, tuple[int, str]]:
    """Every code that an answer can have, with its status and title."""
    statuses = {"internal_error": (500, "An unexpected error of the server.")}
    statuses["method_not_allowed"] = (405, "The route is there, but not for this method.")
    for kind in _tree(DsearchError):
        statuses.setdefault(kind.code, (kind.status, (inspect.getdoc(kind) or "").split("\n")[0]))
    return dict(sorted(statuses.items()))


def _kind(code: str) -> tuple[int, str]:
    # The tree grows when a module is imported that adds to it; walking it is what an error would cost most.
    if code not in _statuses:
        _statuses.update(kinds())
    return _statuses[code]


_statuses: dict[str, tuple[int, str]] = {}


def documented(*kinds_of_error: type[DsearchError]) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that raises these."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for kind in kinds_of_error:
        title = kinds()[kind.code][1]
        description = by_status.setdefault(
            kind.status,
            {
                "description": "",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )
        examples = description["content"][MEDIA_TYPE].setdefault("examples", {})
        examples[kind.code] = {
            "value": {
                "type": f"/problems/{kind.code}",
                "title": title,
                "status": kind.status,
                "code": kind.code,
            }
            | {"detail": "…"}
        }
        description["description"] = ", ".join(f"`{code}`" for code in examples)
    return by_status


# ---- answers


def problem(
    code: str, detail: str, *, status: int | None = None, headers: dict[str, str] | None = None, **more: Any
) -> ProblemAnswer:
    """A problem document as an answer; members of `more` that are None are left out."""
    known_status, title = _kind(code)
    content = {"type": f"/problems/{code}", "title": title, "status": status or known_status, "code": code}
    content["detail"] = without_home(detail)
    content |= {name: value for name, value in more.items() if value is not None}
    return ProblemAnswer(content, status or known_status, headers)


class ProblemAnswer(Response):
    """A problem as an answer, in the shape that clients of the request's path parse.

    Args:
        content: problem document.
        status: of the answer.
        headers: further headers.
    """

    def __init__(self, content: dict[str, Any], status: int, headers: dict[str, str] | None = None):
        super().__init__(orjson.dumps(content), status, headers, MEDIA_TYPE)
        self._problem, self._more_headers = content, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as ASGI has it."""
        answer = self.shaped(shape_of(scope["path"]))
        await super(ProblemAnswer, answer).__call__(scope, receive, send)

    def shaped(self, shape: Shape | None) -> ProblemAnswer:
        """The same problem in another shape; None: as a problem document."""
        if shape is None:
            return self
        content, media_type = shape(self._problem)
        other = copy(self)
        other.body, other.media_type = orjson.dumps(content), media_type or MEDIA_TYPE
        other.init_headers(self._more_headers)
        return other


def problem_of(error: DsearchError, *, before: str = "", **more: Any) -> ProblemAnswer:
    """The answer to a request that raised `error`.

    Args:
        error: the error.
        before: text in front of the error's own.
        more: further members.
    """
    headers: dict[str, str] | None = None
    if isinstance(error, RetryLater):
        headers = {"Retry-After": str(error.retry_after_s)}
    elif isinstance(error, KeyMissing):
        headers = {"WWW-Authenticate": 'Bearer realm="dsearch"'}
    hint = problem_members(error).get("hint")
    return problem(error.code, f"{before}{error}", status=error.status, headers=headers, hint=hint, **more)


def install(app: FastAPI) -> None:
    """Let every error that a route of `app` raises on purpose be answered as a problem."""
    answers = {
        DsearchError: _of_dsearch,
        RequestValidationError: _of_validation,
        HTTPException: _of_routing,
        OSError: _of_disk,
    }
    for kind, answer in answers.items():
        app.add_exception_handler(kind, answer)


async def _of_dsearch(request: Request, error: Exception) -> Response:
    assert isinstance(error, DsearchError)
    return problem_of(error)


async def _of_disk(request: Request, error: Exception) -> Response:
    """Answer a full disk wherever it shows; any other error of the system is unexpected."""
    assert isinstance(error, OSError)
    if error.errno not in FULL:
        raise error
    return problem_of(disk_error(error, "the request was not carried out to its end"))


async def _of_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    refused = error.errors()
    errors = field_errors(refused[:SHOWN_ERRORS])
    detail = errors[0]["detail"]
    if len(refused) > 1:
        least = "" if len(refused) <= SHOWN_ERRORS else "at least "
        detail += f" (and {least}{len(refused) - 1} more, see errors)"
    return problem("invalid_request", detail, errors=errors)


def in_body(error: ValidationError) -> list[dict[str, Any]]:
    """The errors of a body that a route has validated itself, placed as FastAPI places them."""
    return [{**detail, "loc": ("body", *detail["loc"])} for detail in error.errors(include_url=False)]


def field_errors(errors: Sequence[Any]) -> list[dict[str, str]]:
    """pydantic's errors as `{field, detail}`: what was given and what is allowed."""
    return [_field_error(detail) for detail in errors]


def _field_error(error: dict[str, Any]) -> dict[str, str]:
    where, *place = error["loc"] or ("body",)  # FastAPI puts "body", "query" or "path" in front
    field = ".".join(str(part) for part in place) or str(where)
    kind, message = error["type"], error["msg"]
    if kind == "missing":
        return {"field": field, "detail": f"{field} is missing; see /docs for what the request has"}
    if kind == "unknown_field":
        return {"field": field, "detail": message if not place else f"{field}: {message}"}
    if kind == "value_error":  # raised by a model of ours: the whole sentence is in it
        return {"field": field, "detail": str(error["ctx"]["error"])}
    if kind in _SHAPES:
        message = f"use {_SHAPES[kind]}"
    said = message[:1].lower() + message[1:]
    if not place:
        received = f"a {field} of type {_json_type(error.get('input'))}"
        return {"field": field, "detail": f"{received}; {said}"}
    value = error.get("input")
    choices = error.get("ctx", {}).get("choices", "").split()
    meant = suggestion(value, choices) if isinstance(value, str) else ""
    return {"field": field, "detail": f"{field}={repr_of(value)}; {said}{meant}"}


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number" if isinstance(value, int | float) else "nothing")


async def _of_routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = repr_of(request.url.path)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.NOT_FOUND:
        return problem("not_found", f"no route {path}; see /docs for those that there are", headers=headers)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        use = headers.get("Allow", "another method")
        detail = f"{request.method[:20]} {path}; use {use}, or see /docs"
        return problem("method_not_allowed", detail, headers=headers)
    status = HTTPStatus(error.status_code)
    code = "invalid_request" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "internal_error"
    return problem(code, status.description or status.phrase, status=status, headers=headers)


def _tree(root: type[DsearchError]) -> Iterator[type[DsearchError]]:
    """`root` and all below it that belong to dsearch, the service's own included."""
    assert service_errors  # imported, so that its classes are in the tree
    if root is not DsearchError:
        yield root
    for kind in root.__subclasses__():
        if kind.__module__.startswith("dsearch."):
            yield from _tree(kind)


def describe(code: str) -> dict[str, Any]:
    """Describe a problem code, for the URL of its `type`.

    Raises:
        NotFound: no such code.
    """
    statuses = kinds()
    if code not in statuses:
        raise NotFound(f"no problem {code[:80]!r}; there are: {', '.join(statuses)}")
    status, title = statuses[code]
    return {"code": code, "status": status, "title": title}


# ---- errors as clients of other APIs parse them, by the path of the request
#
# A problem document gets further members for such a client and stays a problem document. JSON-RPC has no room
# for that: there the problem is the `data` of its error.

_SERVER_ERROR = -32000  # of those that JSON-RPC 2.0 leaves to servers

Shape = Callable[[dict[str, Any]], tuple[dict[str, Any], str | None]]
"""Problem document → content of the answer, and its media type if that differs."""


def shape_of(path: str) -> Shape | None:
    """The shape of errors of requests for `path`; None: the problem document as it is."""
    if path in _CLIENT_SHAPES:
        return _CLIENT_SHAPES[path]
    return _openai if path.startswith(_OPENAI_PATHS) else None


def _json_rpc(problem: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """As clients of the Model Context Protocol read it, whatever the status."""
    error = {"code": _SERVER_ERROR, "message": problem["detail"], "data": problem}
    return {"jsonrpc": "2.0", "id": None, "error": error}, "application/json"


def _openai(problem: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """With the members `error`, which clients of OpenAI's API read, and `message`, of Cohere's."""
    detail, errors = problem["detail"], problem.get("errors")
    error = {
        "message": detail,
        "type": _OPENAI_TYPES.get(problem["status"], "invalid_request_error")
        if problem["status"] < _SERVER_STATUS
        else "server_error",
        "param": errors[0]["field"] if errors else None,
        "code": problem["code"],
    }
    return {**problem, "error": error, "message": detail}, None


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_SERVER_STATUS = 500
_OPENAI_PATHS = ("/v1/embeddings", "/v1/models")
_CLIENT_SHAPES: dict[str, Shape] = {"/mcp": _json_rpc, "/v1/rerank": _openai, "/v2/rerank": _openai}
