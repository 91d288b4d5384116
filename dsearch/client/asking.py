"""What goes into requests: paths, questions as JSON, documents in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import quote

from dsearch.client.answers import Written
from dsearch.client.flow import Request
from dsearch.errors import InvalidRequest
from dsearch.types import Document

BATCH_DOCUMENTS = 1000
BATCH_BYTES = 4 * 1024 * 1024
SHOWN_PROBLEMS = 100


def quoted(part: str) -> str:
    """A part of a path. One of dots alone would be taken for a step up, so dots are quoted, too."""
    return quote(part, safe="").replace(".", "%2E")


def path_of(*parts: str) -> str:
    """Of a collection, and of what is below it."""
    return "/v1/collections/" + "/".join(map(quoted, parts))


def question(
    collection: str, route: str, body: Mapping[str, Any], accept: str = "application/json"
) -> Request:
    """A POST of what is not None; what is left out is as the server has it."""
    given = {name: value for name, value in body.items() if value is not None}
    return Request("POST", f"{path_of(collection)}/{route}", {}, json_of(given), accept=accept)


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them: a stamp as an object."""
    stamp = options.get("stamp")
    return {**options, "stamp": asdict(stamp)} if stamp is not None else dict(options)


def json_of(content: Any) -> bytes:
    """JSON; NumPy's arrays are lists in it.

    Raises:
        InvalidRequest: there is something that JSON does not have.
    """
    import orjson

    try:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidRequest(f"not JSON ({error}); give text, finite numbers, lists and objects") from None


def batches(documents: Iterable[Document | Mapping[str, Any]]) -> Iterator[tuple[int, bytes]]:
    """NDJSON bodies, and how many documents come before each; one at least."""
    lines: list[bytes] = []
    size = before = 0
    for document in documents:
        lines.append(json_of(asdict(document) if isinstance(document, Document) else document))
        size += len(lines[-1])
        if len(lines) >= BATCH_DOCUMENTS or size >= BATCH_BYTES:
            yield before, b"\n".join(lines)
            before, lines, size = before + len(lines), [], 0
    if lines or not before:
        yield before, b"\n".join(lines)


def added(total: Written, more: Written, before: int) -> Written:
    """The sum of two; `before` documents came before those of `more`."""
    problems = [replace(problem, line=problem.line + before) for problem in more.problems]
    return Written(
        more.sequence,
        total.inserted + more.inserted,
        total.updated + more.updated,
        total.unchanged + more.unchanged,
        total.refused + more.refused,
        [*total.problems, *problems][:SHOWN_PROBLEMS],
    )
