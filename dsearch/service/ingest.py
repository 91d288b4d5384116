"""Ingest a stream of JSON lines into a collection, block by block; a bad line is refused alone.

Every block is durable before the next is read. A stream therefore needs only the memory of one block, and the
sender is slowed to the pace of the encoder.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from dsearch.engine.indexing.own_vectors import embedding_problems
from dsearch.errors import DsearchError, InvalidDocument, amount
from dsearch.results import RefusedDocument
from dsearch.service import deadline
from dsearch.service.collections import Catalogue
from dsearch.service.errors import BodyTooLarge, DeadlinePassed, without_home
from dsearch.service.schemas.documents import DocumentGiven
from dsearch.service.wire import json as strict_json
from dsearch.service.wire.problems import ProblemAnswer, field_errors, in_body, problem_of
from dsearch.store import CheckedDocuments

BLOCK_LINES = 256
BLOCK_BYTES = 4 * 1024 * 1024
MAX_LINE_BYTES = 4 * 1024 * 1024
SHOWN_PROBLEMS = 100

_log = logging.getLogger(__name__)

Line = tuple[int, bytes]
"""A line's number, counted from 1, and its bytes."""


@dataclass(slots=True)
class StreamCounts:
    """Counts of the lines of one stream so far: stored and refused."""

    catalogue: Catalogue
    collection: str
    sequence: int | None = None
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    refused: int = 0
    problems: list[RefusedDocument] = field(default_factory=list)
    _lines: dict[str, int] = field(default_factory=dict)

    def take(self, lines: Sequence[Line]) -> None:
        """Store a block: durable and searchable on return."""
        documents, numbers = CheckedDocuments(), list[int]()
        for number, line in lines:
            try:
                self._add(number, line, documents)
                numbers.append(number)
            except (ValidationError, DsearchError) as error:
                self._refuse(number, error)
        with self.catalogue.writing(self.collection, encoder=bool(documents)) as collection:
            problems = embedding_problems(collection.store, documents)
            for place, problem in problems.items():
                self._refuse(numbers[place], problem, f"the document (id {documents[place].id[:80]!r}) ")
                del self._lines[documents[place].id]
            self.problems.sort(key=lambda problem: problem.line)
            documents = documents.without(problems)
            if not documents:
                self.sequence = collection.store.sequence
                return
            receipt = collection.upsert(documents)
        self.sequence = receipt.sequence
        self.inserted += receipt.inserted
        self.updated += receipt.updated
        self.unchanged += receipt.unchanged

    @property
    def stored(self) -> int:
        """Number of documents of the stream that are in the collection."""
        return self.inserted + self.updated + self.unchanged

    @property
    def nothing_stored(self) -> bool:
        """True if every line was refused."""
        return self.refused > 0 and self.stored == 0

    def problem_of(self, error: DsearchError) -> ProblemAnswer:
        """The answer to a stream that an error ended, with what was written before: its text cannot know."""
        if not self.stored:
            return problem_of(error, written=self.written())
        stored = amount(self.stored, "document")
        _log.warning("a stream to collection %s ended (%s) after %s", self.collection, error.code, stored)
        what = (
            f"{stored} of this stream {'is' if self.stored == 1 else 'are'} written "
            "and stay, and sending it again is safe, since they count as unchanged then"
        )
        if isinstance(error, DeadlinePassed):
            return problem_of(deadline.passed("write", what), written=self.written())
        return problem_of(error, before=f"{what}. What ended it: ", written=self.written())

    def written(self) -> dict[str, Any]:
        """`WriteResult`, as JSON; the sequence is null if no block was stored before an error."""
        counts = ("sequence", "inserted", "updated", "unchanged", "refused", "problems")
        return {name: getattr(self, name) for name in counts}

    def _add(self, number: int, line: bytes, documents: CheckedDocuments) -> None:
        document = DocumentGiven.model_validate(strict_json.parse(line)).document()
        if document.id in self._lines:
            raise InvalidDocument(
                f"id {document.id[:80]!r} stands on line {self._lines[document.id]} too, which came first; "
                "send each id once"
            )
        documents.add(document)
        self._lines[document.id] = number

    def _refuse(self, line: int, error: ValidationError | DsearchError, where: str = "") -> None:
        """Count a line; only those that the answer lists are described."""
        self.refused += 1
        if len(self.problems) >= SHOWN_PROBLEMS:
            return
        if isinstance(error, ValidationError):
            code, detail = InvalidDocument.code, field_errors(in_body(error)[:1])[0]["detail"]
        else:
            code, detail = error.code, without_home(str(error))
        self.problems.append(RefusedDocument(line, code, f"{where}{detail}"))


async def blocks(parts: AsyncIterable[bytes]) -> AsyncIterator[list[Line]]:
    """The lines of a stream that are not blank, in blocks.

    Raises:
        BodyTooLarge: a line above the limit.
    """
    lines = _Lines()
    block: list[Line] = []
    size = 0
    async for part in parts:
        for number, line in lines.finished_by(part):
            block.append((number, line))
            size += len(line)
            if len(block) >= BLOCK_LINES or size >= BLOCK_BYTES:
                yield block
                block, size = [], 0
    block += lines.finished_by(b"\n")
    if block:
        yield block


class _Lines:
    """Takes the parts of a stream, and splits them into lines."""

    def __init__(self) -> None:
        self._number = 1
        self._unfinished: list[bytes] = []
        self._length = 0

    def finished_by(self, part: bytes) -> Iterator[Line]:
        """Yield the lines that end in this part and are not blank.

        The event loop waits for this, and a part may be all line feeds: a blank line costs a comparison.

        Raises:
            BodyTooLarge: a line above the limit.
        """
        text, line_feed, rest = part.rpartition(b"\n")
        if not line_feed:
            self._keep(part)
            return
        lines = b"".join([*self._unfinished, text]).split(b"\n")
        first, self._number = self._number, self._number + len(lines)
        self._unfinished, self._length = [], 0
        for number, line in enumerate(lines, first):
            if line and not line.isspace():
                _require_short(len(line), number)
                yield number, line
        self._keep(rest)

    def _keep(self, rest: bytes) -> None:
        self._unfinished.append(rest)
        self._length += len(rest)
        _require_short(self._length, self._number)


def _require_short(length: int, number: int) -> None:
    if length > MAX_LINE_BYTES:
        raise BodyTooLarge(
            f"line {number} has more than {MAX_LINE_BYTES} bytes; end each document with a line feed"
        )
