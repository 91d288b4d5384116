"""Errors that only the service raises, and texts of all errors as answers have them.

Errors of the engine name the files that they are about, which helps at a terminal. Clients over a network
learn a file's place in the home, and not where the home lies; of an encoder that is a folder, they learn the
folder's own name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dsearch.errors import AccessDenied, DsearchError, InvalidRequest, Unavailable


class InvalidJson(InvalidRequest):
    """A body that is not JSON, or is ambiguous JSON."""

    code = "invalid_json"


class UnknownQuery(InvalidRequest):
    """Feedback on a search that is not in the cache."""

    code = "unknown_query"


class OriginNotAllowed(AccessDenied):
    """A request from a page of another site."""

    code = "origin_not_allowed"


class BodyTooLarge(DsearchError):
    """A body, a line or a batch above its limit."""

    code = "body_too_large"
    status = 413


class UnsupportedMediaType(DsearchError):
    """A body of a type or an encoding that the route does not read."""

    code = "unsupported_media_type"
    status = 415


class HostNotAllowed(DsearchError):
    """A request for a host name that this server does not serve."""

    code = "host_not_allowed"
    status = 421


class RetryLater(Unavailable):
    """The service cannot answer just now; the answer's Retry-After says when to ask again."""

    retry_after_s = 1


class Overloaded(RetryLater):
    """The queue of requests is full."""

    code = "overloaded"


class DeadlinePassed(DsearchError):
    """The request timed out; a write of many documents says how many of them are stored."""

    code = "deadline_passed"
    status = 504


class NotReady(RetryLater):
    """The service is starting or stopping."""

    code = "not_ready"


_hidden: set[str] = set()
_encoders: dict[str, str] = {}  # folder → its own name


def hide_folder(folder: Path) -> None:
    """Let no answer of this process say where this folder lies."""
    _hidden.update(str(place) for place in (folder.absolute(), folder.resolve()))


def public_encoder(name: str) -> str:
    """Return the name of an encoder; of one that is a folder, the folder's own name.

    No text of this process has the folder from then on.
    """
    if name in _encoders or not name:
        return _encoders.get(name, name)
    path = Path(name).expanduser()
    if not (path.is_absolute() or path.is_dir()):
        return name  # of a hub, or of a package
    for written in (name, str(path.absolute()), str(path.resolve())):
        _encoders[written] = path.resolve().name
    return _encoders[name]


def without_home(text: str) -> str:
    """The text without paths of the machine: files of the home and encoders by their names."""
    for folder in sorted(_encoders, key=len, reverse=True):
        text = text.replace(folder, _encoders[folder])
    for folder in sorted(_hidden, key=len, reverse=True):
        text = text.replace(folder + os.sep, "").replace(folder, "the home")
    return text


def problem_members(error: DsearchError) -> dict[str, Any]:
    """The error as JSON: `code`, `detail` and, where there is one, `hint`."""
    return without_paths(error.to_dict())


def public_record(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a version, with the encoders and the reranker that it names by their own names."""
    for part in (record, *(part for part in record.values() if isinstance(part, dict))):
        for member in ("encoder", "identity", "base"):
            if isinstance(identity := part.get(member), dict) and isinstance(identity.get("name"), str):
                public_encoder(identity["name"])
    if isinstance(reranker := record.get("reranker"), list | tuple) and reranker:
        public_encoder(str(reranker[0]))
    return without_paths(record)


def without_paths(content: Any) -> Any:
    """JSON with each of its texts without paths of the machine."""
    if isinstance(content, str):
        return without_home(content)
    if isinstance(content, dict):
        return {name: without_paths(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_paths(value) for value in content]
    return content
