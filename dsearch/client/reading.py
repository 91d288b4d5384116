"""From the bytes of an answer to what a call returns."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dsearch.client.answers import Attention, Prediction, Proof
from dsearch.client.flow import Answer
from dsearch.errors import DsearchError, Unavailable
from dsearch.types import SearchResult, Stamp

if TYPE_CHECKING:
    import numpy as np
    from pydantic import TypeAdapter

T = TypeVar("T")
_FACTS = "answer"
_WRITTEN = "written"


def content_of(answer: Answer) -> Any:
    """The JSON of an answer.

    Raises:
        Unavailable: it is not JSON: something else than dsearch has answered.
    """
    import orjson

    try:
        return orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        raise Unavailable(
            f"status {answer.status} and a body that is not JSON; is something else at this address?"
        ) from None


def made(kind: type[T], content: Any) -> T:
    """`kind`, a dataclass, of JSON; names that it does not have come from a newer server, and are left."""
    return _adapter(kind).validate_python(content)


def search_result(query: str, content: Mapping[str, Any]) -> SearchResult:
    """The answer to one query."""
    return made(SearchResult, {**content, "query": query, "stamp": content})


def prediction(content: Mapping[str, Any]) -> Prediction:
    """A prediction; JSON has labels in a list, for true is not "true"."""
    labels = content["labels"]
    if labels is not None:
        labels = {one["label"]: one["share"] for one in labels}
    found = made(Prediction, {**content, "labels": None})
    return Prediction(**{**{name: getattr(found, name) for name in found.__slots__}, "labels": labels})


def tensors_of(content: bytes) -> tuple[Any, dict[str, np.ndarray]]:
    """What an answer in safetensors says beside its tensors (None when it says nothing), and the tensors.

    Raises:
        Unavailable: it is not safetensors.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return json.loads(header.get("__metadata__", {}).get(_FACTS, "null")), tensors
    except (SafetensorError, ValueError) as error:
        raise Unavailable(f"an answer that is not safetensors ({error}); ask again") from None


def attention(content: bytes) -> Attention:
    """The answer to `attend`."""
    facts, tensors = tensors_of(content)
    certificates = facts.get("certificates")
    return Attention(
        ids=facts["ids"],
        stamp=made(Stamp, facts),
        hops=facts["hops"],
        temperature=facts["temperature"],
        certificates=None if certificates is None else [made(Proof, one) for one in certificates],
        **tensors,
    )


def error_of(answer: Answer) -> DsearchError:
    """The error that a problem document describes: of the class that has its `code`, in this process too.

    One whose class belongs to the service alone becomes the nearest that this package has, with its code.
    """
    problem: dict[str, Any] = {}
    try:
        problem = json.loads(answer.content)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        code, detail = "unavailable", f"status {answer.status}, and no problem document to say why"
    kind = _kinds().get(code)
    if kind is None:
        nearest = {404: "not_found", 409: "conflict", 410: "gone", 429: "unavailable", 503: "unavailable"}
        fallback = "invalid_request" if 400 <= answer.status < 500 else "error"
        kind = _kinds()[nearest.get(answer.status, fallback)]
    error = kind(detail)
    error.code, error.status = code, answer.status
    if isinstance(problem, dict) and problem.get("written") is not None:
        error.__dict__[_WRITTEN] = problem["written"]
    return error


def written_before(error: DsearchError) -> Mapping[str, Any] | None:
    """What a stream had stored before this error ended it, or what it made of lines that were all bad."""
    return error.__dict__.get(_WRITTEN)


@functools.cache
def _adapter(kind: type[T]) -> TypeAdapter[T]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@functools.cache
def _kinds() -> dict[str, type[DsearchError]]:
    found: dict[str, type[DsearchError]] = {}
    waiting: list[type[DsearchError]] = [DsearchError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__ == DsearchError.__module__:
            found.setdefault(kind.code, kind)
            waiting += kind.__subclasses__()
    return found
