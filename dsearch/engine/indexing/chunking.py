"""Split long documents into passages, and embed each passage.

A document is split if it is longer than a passage: the encoder's window, or the smaller limit of the
collection. Splits follow the structure of the text (corpus/chunk.py). Each passage is encoded with the
document's title in front, as context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float32

from dsearch.corpus.chunk import CountTokens, cut, definition_starts
from dsearch.corpus.files import CODE
from dsearch.encoder import TextEncoder, TokenCounter, WordEncoder, WordTokens
from dsearch.errors import Command, Conflict, InvalidRequest, amount
from dsearch.index import PassageTable
from dsearch.index.tokens import content_of
from dsearch.store import Passages, Store
from dsearch.types import Document

MIN_TOKENS = 16
_OVERLAP_SHARE = 8  # 32 of 256 tokens
_TITLE_SHARE = 4  # the title takes at most this fraction of a passage's tokens

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PassageLengths:
    """Passage lengths of a collection, fixed when it is created.

    Attributes:
        tokens: maximum number of tokens of an encoded passage, title and special tokens included.
        overlap: maximum number of tokens shared with the previous passage.
    """

    tokens: int
    overlap: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for the store."""
        return asdict(self)

    @classmethod
    def of(cls, store: Store) -> PassageLengths | None:
        """Read the cutting of a collection; None if documents are not cut."""
        stored = store.cutting
        return None if stored is None else cls(int(stored["tokens"]), int(stored["overlap"]))


@dataclass(frozen=True, slots=True)
class PassageOptions:
    """Requested passage options of a collection; None keeps the present value or the encoder's default.

    Attributes:
        tokens: maximum number of tokens of a passage; the encoder's window when None.
        overlap: maximum number of tokens shared with the previous passage; an eighth of `tokens` when None.
        none: True to split no documents; text beyond the encoder's window is then not encoded.
    """

    tokens: int | None = None
    overlap: int | None = None
    none: bool = False

    def cutting(self, encoder: TextEncoder) -> PassageLengths | None:
        """Return the cutting of a new collection.

        Raises:
            InvalidRequest: number out of range, numbers beside `none`, or an encoder that counts no tokens.
        """
        explicit = self.tokens is not None or self.overlap is not None
        if self.none:
            if explicit:
                raise InvalidRequest("passages are turned off; leave their tokens and overlap out")
            return None
        window = encoder.identity.max_tokens
        if not isinstance(encoder, TokenCounter) or window < MIN_TOKENS:
            if explicit:
                raise InvalidRequest(
                    f"encoder {encoder.identity.name!r} counts no tokens, so documents cannot be cut for it; "
                    "leave the tokens and the overlap of passages out"
                )
            return None
        tokens = window if self.tokens is None else self.tokens
        overlap = tokens // _OVERLAP_SHARE if self.overlap is None else self.overlap
        if not MIN_TOKENS <= tokens <= window:
            raise InvalidRequest(
                f"passages of {amount(tokens, 'token')}; use {MIN_TOKENS} to {window}, the window of "
                f"{encoder.identity.name!r}"
            )
        if not 0 <= overlap < tokens / 2:
            raise InvalidRequest(
                f"an overlap of {amount(overlap, 'token')}; use 0 to {(tokens - 1) // 2}, less than half a "
                "passage"
            )
        return PassageLengths(tokens, overlap)

    def require(self, store: Store) -> None:
        """Check that the options equal those of an existing collection.

        Raises:
            Conflict: its documents are cut differently, or not at all; the message names the remedy.
        """
        present = PassageLengths.of(store)
        if present is None:
            differs = self.tokens is not None or self.overlap is not None
        else:
            differs = self.none or (self.tokens or present.tokens, present.overlap) != (
                present.tokens,
                present.overlap if self.overlap is None else self.overlap,
            )
        if differs:
            what = "does not cut long documents: what is beyond the encoder's window is not encoded"
            if present is not None:
                what = (
                    f"cuts long documents into passages of {amount(present.tokens, 'token')}, "
                    f"{present.overlap} shared"
                )
            raise Conflict(
                f"collection {store.name!r} {what}, and that stays. Leave the options for passages out, or "
                "index the sources into a new collection",
                hint=Command("index", ("SOURCE", "-c", "NEW_NAME")),
            )


@dataclass(frozen=True, slots=True)
class Pieces:
    """Documents as the texts that are encoded: one of a short document, one for each passage of a long one.

    Attributes:
        texts: of all documents, in order.
        first: the number of each document's first text.
        cut: title and spans of each long document, by place.
    """

    texts: list[str]
    first: list[int]
    cut: dict[int, tuple[str, list[Span]]]

    @classmethod
    def of(
        cls, encoder: TextEncoder, documents: Sequence[Document], cutting: PassageLengths | None
    ) -> Pieces:
        """Cut documents."""
        cut = spans_of(encoder, documents, cutting)
        texts: list[str] = []
        first: list[int] = []
        for place, document in enumerate(documents):
            first.append(len(texts))
            if place in cut:
                title, spans = cut[place]
                texts += [f"{title} {document.text[start:end]}".strip() for start, end in spans]
            else:
                texts.append(document.content)
        return cls(texts, first, cut)

    def assembled(
        self, embeddings: Float32[np.ndarray, "texts encoder_dim"]
    ) -> tuple[Float32[np.ndarray, "documents encoder_dim"], dict[int, Passages]]:
        """The embedding of each document, and the further passages of long ones by place."""
        if not self.cut:
            return embeddings, {}
        further = {
            place: Passages(
                np.array(spans, np.int64),
                embeddings[self.first[place] + 1 : self.first[place] + len(spans)].copy(),
            )
            for place, (_, spans) in self.cut.items()
        }
        return embeddings[self.first], further


def encode(
    encoder: TextEncoder, documents: Sequence[Document], cutting: PassageLengths | None
) -> tuple[Float32[np.ndarray, "documents encoder_dim"], dict[int, Passages]]:
    """Encode documents; also return the further passages of long ones by place in `documents`.

    Without long documents the result equals the encoder's for their contents.
    """
    pieces = Pieces.of(encoder, documents, cutting)
    return pieces.assembled(encoder.encode_documents(pieces.texts))


def spans_of(
    encoder: TextEncoder, documents: Sequence[Document], cutting: PassageLengths | None
) -> dict[int, tuple[str, list[Span]]]:
    """Return title and passage spans of each long document, by place in `documents`."""
    if cutting is None or not isinstance(encoder, TokenCounter):
        return {}
    # A token has at least one byte, so most documents need no token count.
    contents = [document.content.encode("utf-8", "surrogatepass") for document in documents]
    marks = encoder.token_counts([""])[0]
    maybe = [place for place, content in enumerate(contents) if len(content) + marks > cutting.tokens]
    if not maybe:
        return {}
    whole = [documents[place].content for place in maybe]
    words = encoder.word_tokens(whole) if isinstance(encoder, WordEncoder) else None
    counts = encoder.token_counts(whole) if words is None else [len(tokens) + marks for tokens in words]
    cut: dict[int, tuple[str, list[Span]]] = {}
    for number, (place, count) in enumerate(zip(maybe, counts, strict=True)):
        if count > cutting.tokens:
            tokens = None if words is None else words[number]
            title, spans = _cut(encoder, documents[place], cutting, marks, tokens)
            if len(spans) > 1:
                cut[place] = title, spans
    return cut


def _cut(
    counter: TokenCounter,
    document: Document,
    cutting: PassageLengths,
    marks: int,
    words: WordTokens | None,
) -> tuple[str, list[Span]]:
    """Cut a document; `words` are the tokens of its content, if parts can be counted by them."""
    raw = content_of(document.title, document.text)
    lead = len(raw) - len(raw.lstrip())

    def count(texts: Sequence[str]) -> list[int]:
        return [tokens - marks for tokens in counter.token_counts(texts)]

    def count_at(offset: int, spans: Sequence[Span]) -> list[int]:
        spans_in_raw = np.array(spans, np.int64).reshape(-1, 2) + offset
        if words is None:
            return count([raw[start:end] for start, end in spans_in_raw])
        counts = words.counts(spans_in_raw - lead)
        crossed = np.flatnonzero(counts < 0)
        if len(crossed):
            counts[crossed] = count([raw[start:end] for start, end in spans_in_raw[crossed]])
        return counts.tolist()

    title, most = document.title, (cutting.tokens - marks) // _TITLE_SHARE
    title_tokens = count_at(0, [(0, len(title))])[0]
    if title_tokens > most:
        title = _shortened(title, most, count)
        title_tokens = count([title])[0]
    size = cutting.tokens - marks - title_tokens
    kind = document.metadata.get("type")
    seams = definition_starts(document.text, kind) if isinstance(kind, str) and kind in CODE else ()
    overlap = min(cutting.overlap, (size - 1) // 2)
    in_text = partial(count_at, len(document.title) + 1)
    return title, cut(document.text, size, overlap, count, seams, count_parts=in_text)


def _shortened(title: str, most: int, count: CountTokens) -> str:
    """Return the first words that fit, of a title that does not."""
    words, low = title.split(), 0
    high = len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count([" ".join(words[:middle])])[0] <= most else (low, middle - 1)
    return " ".join(words[:low])


def passage_table(cut: Mapping[int, Passages], rows: np.ndarray, dimension: int) -> PassageTable:
    """Build the table of passages for an index.

    Args:
        cut: passages by row, ascending.
        rows: all rows, ascending; owners are places among them.
        dimension: length of an embedding.
    """
    if not cut:
        return PassageTable.empty(dimension)
    places = np.searchsorted(rows, np.fromiter(cut, np.int64))
    counts = [len(passages.embeddings) for passages in cut.values()]
    return PassageTable(
        owners=np.repeat(places, counts).astype(np.int64),
        spans=np.concatenate([passages.spans[1:] for passages in cut.values()]),
        first_spans=np.stack([passages.spans[0] for passages in cut.values()]),
        embeddings=np.concatenate([passages.embeddings for passages in cut.values()]),
    )
