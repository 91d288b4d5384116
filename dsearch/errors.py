"""Errors that dsearch raises on purpose, in one tree.

Each message states the invalid input, the allowed values and the remedy; `code` is stable and `status` is the
HTTP status of the service's response.

    DsearchError
    ├── InvalidRequest          422  a value out of range, of the wrong type or shape
    │   ├── InvalidDocument     422  a document that cannot be stored
    │   ├── InvalidSource       422  a file that cannot be read as what it claims to be
    │   ├── InvalidCursor       422  a cursor that did not come from an answer, or of another search
    │   └── DimensionMismatch   422  a vector of the wrong length
    ├── NotFound                404
    │   ├── CollectionNotFound, DocumentNotFound, ModelNotFound
    ├── Gone                    410  a generation or a model that no longer exists or is no longer served
    ├── Conflict                409
    │   ├── CollectionExists, EncoderMismatch, HomeLocked, Cancelled, NotInCluster
    ├── CorruptData             500  stored bytes that are not what was written
    ├── UnsupportedFormat       500  data of a newer or unknown format version
    ├── ProcessDied             500  work in a process of its own ended without a result
    └── Unavailable             503
        ├── EncoderUnavailable  503  the encoder has no weights here, or settings that are not supported
        ├── RerankerUnavailable 503  the reranker of a version is not on this machine, or another one
        ├── MissingExtra        503  a part of dsearch that was not installed
        ├── ShardsMissing       503  no copy of a shard answers
        └── InsufficientStorage 507  the disk is full

Parts of messages: `Command` (a `dsearch` command that a reader is told to run), a number with its noun, the
time that is left.

The library names a command and its arguments. The command line, when it shows the message, adds the `--home`
that it was started with; over HTTP and in Python the command stands without one.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """A command that takes `--home`.

    Attributes:
        name: the command, for example "refresh" or "feedback clear".
        arguments: the words behind it; words in capitals stand for what the reader has to choose.
    """

    name: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.line()

    def line(self, home: str | None = None) -> str:
        """The command as it is typed.

        Args:
            home: folder of the collections, named right behind the command; left out when None.
        """
        words = self.arguments if home is None else ("--home", home, *self.arguments)
        return " ".join(["dsearch", self.name, *map(shlex.quote, words)])


def amount(count: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun: `1 query`, `3 queries`.

    Args:
        count: the number.
        singular: the noun of one, with what stands between it and the number.
        plural: of several, where it is more than the ending: `"hit is", "hits are"`.
    """
    if plural is None:
        plural = f"{singular[:-1]}ies" if re.search("[^aeiou]y$", singular) else f"{singular}s"
    return f"{count} {singular if count == 1 else plural}"


class DsearchError(Exception):
    """Base of all errors raised on purpose; `str(error)` is fit to be shown to a user.

    Args:
        message: problem and remedy, complete without the hint.
        hint: command that carries the remedy out; `str(error)` ends in it.
    """

    code = "error"
    status = 500

    def __init__(self, *message: object, hint: Command | None = None):
        super().__init__(*message)
        self.hint = hint

    @property
    def message(self) -> str:
        """The text without the command of `hint`."""
        return super().__str__()

    def __str__(self) -> str:
        return self.text()

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `code`, `detail` (the text) and, where there is one, the `hint`."""
        hint = {} if self.hint is None else {"hint": asdict(self.hint)}
        return {"code": self.code, "detail": str(self), **hint}

    def text(self, home: str | None = None) -> str:
        """The text with the command of `hint`, which names `home` where one is given."""
        return self.message if self.hint is None else f"{self.message} with: {self.hint.line(home)}"


class InvalidRequest(DsearchError):
    """A value out of range, of the wrong type or of the wrong shape."""

    code = "invalid_request"
    status = 422


class AnswerTooLarge(InvalidRequest):
    """An answer above the limit; ask with fewer queries or candidates."""

    code = "answer_too_large"


class InvalidDocument(InvalidRequest):
    """A document that cannot be stored."""

    code = "invalid_document"


class InvalidSource(InvalidRequest):
    """A file whose content does not match its type; the message names file and line."""

    code = "invalid_source"


class InvalidCursor(InvalidRequest):
    """A cursor that is not from an answer, or is from the answer to another request."""

    code = "invalid_cursor"


class DimensionMismatch(InvalidRequest):
    """A vector whose length is not the collection's."""

    code = "dimension_mismatch"


class NotFound(DsearchError):
    """Something named in the request does not exist."""

    code = "not_found"
    status = 404


class CollectionNotFound(NotFound):
    """No collection of that name in this home."""

    code = "collection_not_found"


class DocumentNotFound(NotFound):
    """No document of that id in the collection."""

    code = "document_not_found"


class ModelNotFound(NotFound):
    """No model of that version in the collection."""

    code = "model_not_found"


class Gone(DsearchError):
    """A generation or model that was deleted, or that this release no longer serves."""

    code = "gone"
    status = 410


class Conflict(DsearchError):
    """The request contradicts the present state."""

    code = "conflict"
    status = 409


class CollectionExists(Conflict):
    """A collection of that name exists already."""

    code = "collection_exists"


class EncoderMismatch(Conflict):
    """The collection was encoded by another encoder than the one available here."""

    code = "encoder_mismatch"


class HomeLocked(Conflict):
    """Another process is writing to this home; `url` is the address of its server, if it is one."""

    code = "home_locked"
    url: str | None = None


class Cancelled(Conflict):
    """A long operation was cancelled on request; it changed nothing."""

    code = "cancelled"


class NotInCluster(Conflict):
    """A route that needs the whole collection, for a collection that lies in shards."""

    code = "not_in_cluster"


class CorruptData(DsearchError):
    """Stored bytes differ from those written."""

    code = "corrupt_data"


class UnsupportedFormat(DsearchError):
    """Data of a format version that this release does not read."""

    code = "unsupported_format"


class ProcessDied(DsearchError):
    """A child process ended without a result: killed, or out of memory."""

    code = "process_died"


class AccessDenied(DsearchError):
    """A request that its sender may not make."""

    code = "access_denied"
    status = 403


class KeyMissing(AccessDenied):
    """A request without an API key, or with an unknown one."""

    code = "key_missing"
    status = 401


class ScopeTooNarrow(AccessDenied):
    """An API key whose scope does not allow this."""

    code = "scope_too_narrow"


class Unavailable(DsearchError):
    """The service cannot answer just now."""

    code = "unavailable"
    status = 503


class EncoderUnavailable(Unavailable):
    """The encoder has no weights on this machine, or settings that are not supported."""

    code = "encoder_unavailable"


class RerankerUnavailable(Unavailable):
    """The reranker of a version is not on this machine, or is not the one that it was trained with."""

    code = "reranker_unavailable"


class MissingExtra(Unavailable):
    """A required package is not installed; the message names the extra."""

    code = "missing_extra"


class ShardsMissing(Unavailable):
    """No copy of some shards responds; they are being restarted."""

    code = "shards_missing"


class InsufficientStorage(Unavailable):
    """The disk is full; searches continue, writes resume when there is space again."""

    code = "insufficient_storage"
    status = 507
