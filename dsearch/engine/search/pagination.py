"""Cursors for pagination: the place in a ranking, with the state, model and depth that produced it.

A page requested by cursor continues the ranking of the first page, whatever was written or promoted since:
no hit is shown twice and none is left out. The ranking therefore ends where its documents end. A first page
with a larger `limit` lists more of them, by deeper legs; the candidates, which share the attention, stay the
same, and with them the weight of every hit. If the state no longer exists the answer is an error, never
another ranking.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from dsearch.attention_options import CANDIDATES
from dsearch.errors import InvalidCursor, InvalidRequest
from dsearch.search_options import MAX_CURSOR_CHARACTERS, MAX_LIMIT, MAX_OFFSET, SearchOptions
from dsearch.types import Stamp

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a ranking.

    Attributes:
        stamp: what the ranking was made from.
        offset: hits before the place.
        depth: how many each leg proposed for it.
        question: a digest of all that the ranking depends on beside these.
    """

    stamp: Stamp
    offset: int
    depth: int
    question: str

    def __str__(self) -> str:
        stamp = self.stamp
        state = f'{stamp.generation},"{stamp.model}",{stamp.sequence}'
        written = f'[{_FORMAT},{state},{self.offset},{self.depth},"{self.question}"]'  # no text of others
        return base64.urlsafe_b64encode(written.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str, question: str) -> Cursor:
        """Parse a cursor, for a search whose question is `question`.

        Raises:
            InvalidCursor: it did not come from an answer, or from the answer to another question.
        """
        parts = _parts(text) if len(text) <= MAX_CURSOR_CHARACTERS else None
        if parts is None or not _fit(parts):
            raise InvalidCursor(
                f"cursor={text[:80]!r}; use the next_cursor of an answer, or none for the first page"
            )
        _, generation, model, sequence, offset, depth, request_digest = parts
        if request_digest != question:
            raise InvalidCursor(
                "cursor: it belongs to another search; repeat query, filter, mode and all other options of "
                "the first page (limit, explain, highlight and coverage may differ)"
            )
        return cls(Stamp(generation, model, sequence), offset, depth, request_digest)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Start of an answer within a ranking.

    Attributes:
        question: digest of everything that decides the ranking, apart from its state.
        offset: number of hits before the start.
        candidates: how many each leg proposes to share the attention.
        depth: how many each leg proposes to be listed; at least as many.
        pinned: state and model of the first page; None for a first page.
    """

    question: str
    offset: int
    candidates: int
    depth: int
    pinned: Stamp | None = None

    @classmethod
    def of(
        cls,
        cursor: str | None,
        *,
        limit: int,
        offset: int,
        question: object,
        candidates: int | None = None,
    ) -> PageRequest:
        """Return the place that a request names, by cursor or by offset.

        Args:
            cursor: `next_cursor` of the page before.
            limit: hits of a page.
            offset: hits before the first page.
            question: all that the ranking depends on beside its state, of which only `repr` counts.
            candidates: how many each leg proposes, to share the attention and to be listed; when None 100
                share it, and as many are listed as the page needs.

        Raises:
            InvalidRequest: limit, offset or candidates out of range, or both cursor and offset.
            InvalidCursor: not a cursor, or one of another question.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidRequest(f"limit={limit}; use 1 to {MAX_LIMIT}")
        if not 0 <= offset <= MAX_OFFSET:
            raise InvalidRequest(f"offset={offset}; use 0 to {MAX_OFFSET}")
        if candidates is not None and not 1 <= candidates <= MAX_OFFSET + MAX_LIMIT:
            raise InvalidRequest(f"candidates={candidates}; use 1 to {MAX_OFFSET + MAX_LIMIT}")
        digest = hashlib.sha256(repr(question).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        shared = candidates or CANDIDATES
        if cursor is None:
            return cls(digest, offset, shared, candidates or max(shared, limit + offset))
        if offset:
            raise InvalidRequest(f"cursor and offset={offset}; give one of the two")
        parsed = Cursor.parse(cursor, digest)
        return cls(digest, parsed.offset, shared, max(shared, parsed.depth), parsed.stamp)

    @classmethod
    def of_batch(cls, queries: Sequence[object], chosen: SearchOptions, filter: object) -> list[PageRequest]:
        """Return the place that the options of a search name in the ranking of each query.

        Args:
            queries: the texts, with what stands in place of their embeddings.
            chosen: the options.
            filter: that of the options, parsed.

        Raises:
            InvalidRequest, InvalidCursor: see `of`.
        """
        rules = chosen.ranking(filter)
        return [
            cls.of(
                chosen.cursor,
                limit=chosen.limit,
                offset=chosen.offset,
                question=(query, rules),
                candidates=chosen.candidates,
            )
            for query in queries
        ]

    def after(self, hits: int, stamp: Stamp) -> str:
        """Return the cursor behind the next `hits` hits of this ranking, which has that stamp."""
        return str(Cursor(stamp, self.offset + hits, self.depth, self.question))


def _parts(text: str) -> list[Any] | None:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        read = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, UnicodeError, ValueError, RecursionError):
        return None
    return cast("list[Any]", read) if isinstance(read, list) else None


def _fit(parts: list[Any]) -> bool:
    """Return True if these are the parts of a cursor, each within its bounds: cursors are not signed."""
    if [type(part) for part in parts] != [int, int, str, int, int, int, str]:
        return False
    written, generation, model, sequence, offset, depth, _ = parts
    return (
        written == _FORMAT
        and 0 < generation < 2**63
        and 0 <= sequence < 2**63
        and re.fullmatch(r"v[0-9]{1,9}", model, re.ASCII) is not None
        and 0 < offset <= MAX_OFFSET + MAX_LIMIT
        and 0 < depth <= MAX_OFFSET + MAX_LIMIT
    )
