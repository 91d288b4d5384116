"""Tokens of documents for the second stage: by the pass of the encoder that gives the embeddings.

Of a document's tokens those are kept that can make a match: not those of stop words and of signs, not those
nearly like an earlier one of the same document, and of a very long document as many as are spread evenly over
it. Passages overlap: what two of them share is kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64

from dsearch.encoder import TextEncoder, TextTokens, TokenEncoder
from dsearch.engine.indexing.chunking import PassageLengths, Pieces
from dsearch.errors import EncoderUnavailable
from dsearch.guide import guide
from dsearch.index.tokens.codec import TokenCodec
from dsearch.index.tokens.spool import TokenSpool
from dsearch.index.tokens.table import DocumentTokens, content_of
from dsearch.store import Passages
from dsearch.types import Document

DIMS = 64
BITS = 4
ALIKE = 0.9  # cosine above which a later token of a document adds nothing
MOST_TOKENS = 1024  # of a document
_FEWEST = 2000  # tokens that a projection is fitted to
_PARAGRAPHS = 48
_COMPARED = 256  # earlier tokens that one is compared with

Encoded = tuple[Float32[np.ndarray, "documents encoder_dim"], dict[int, Passages]]
Encode = Callable[[TextEncoder, Sequence[Document], PassageLengths | None], Encoded]


class RawTokens(NamedTuple):
    """The tokens of one document before they are rounded; spans count as in `content_of` the document."""

    states: Float32[np.ndarray, "tokens encoder_dim"]
    spans: Int64[np.ndarray, "tokens 2"]


def token_encoder(encoder: TextEncoder) -> TokenEncoder:
    """Return the encoder as one that gives token states.

    Raises:
        EncoderUnavailable: it gives none.
    """
    if not isinstance(encoder, TokenEncoder):
        raise EncoderUnavailable(
            f"encoder {encoder.identity.name!r} gives no token states, so there is no second stage with it; "
            "use a sentence-transformers model"
        )
    return encoder


def encode_with_tokens(
    encoder: TextEncoder, documents: Sequence[Document], cutting: PassageLengths | None
) -> tuple[Encoded, list[RawTokens]]:
    """As `chunking.encode`, with the tokens of each document, by one pass of the encoder.

    Raises:
        EncoderUnavailable: the encoder gives no token states.
    """
    pieces = Pieces.of(encoder, documents, cutting)
    embeddings, tokens = token_encoder(encoder).encode_tokens(pieces.texts)
    stops = [*pieces.first[1:], len(pieces.texts)]
    of_documents = [
        _joined(document, pieces.cut.get(place), tokens[start:stop])
        for place, (document, start, stop) in enumerate(zip(documents, pieces.first, stops, strict=True))
    ]
    return pieces.assembled(embeddings), of_documents


def _joined(
    document: Document, cut: tuple[str, list[tuple[int, int]]] | None, parts: Sequence[TextTokens]
) -> RawTokens:
    """The tokens of a document's passages, without what a passage repeats of the one before."""
    if cut is None:
        content = content_of(document.title, document.text)
        return RawTokens(parts[0].states, parts[0].spans + (len(content) - len(content.lstrip())))
    title, spans = cut
    states: list[np.ndarray] = []
    places: list[np.ndarray] = []
    done = 0
    for number, ((start, _), tokens) in enumerate(zip(spans, parts, strict=True)):
        lead = 0 if title else _blanks(document.text[start:]) + 1
        at = tokens.spans + lead
        in_text = at[:, 0] > len(title)
        # The text of a passage stands behind title and blank, as it does in the whole document.
        moved = np.where(in_text[:, None], at + (len(document.title) - len(title) + start), at)
        wanted = moved[:, 0] >= done if number == 0 else in_text & (moved[:, 0] >= done)
        states.append(tokens.states[wanted])
        places.append(moved[wanted])
        if wanted.any():
            done = int(moved[wanted][-1, 1])
    return RawTokens(np.concatenate(states), np.concatenate(places))


def _blanks(text: str) -> int:
    return len(text) - len(text.lstrip())


class TokenMaker:
    """Makes the tokens of documents, and keeps them until a generation has them.

    Args:
        spool: of the collection; its codec is fitted to the first documents if it has none.
        stop_words: whose tokens are left out.
    """

    def __init__(self, spool: TokenSpool, stop_words: Sequence[str]):
        self.spool = spool
        self._stop_words = frozenset(stop_words)

    def begin(
        self, encoder: TextEncoder, documents: Sequence[Document], cutting: PassageLengths | None
    ) -> None:
        """Fit the projection to documents; to paragraphs of the guide too where those have few tokens.

        Raises:
            EncoderUnavailable: the encoder gives no token states.
        """
        _, raw = encode_with_tokens(encoder, documents, cutting)
        states = [tokens.states for tokens in raw]
        if sum(map(len, states)) < _FEWEST:
            _, further = token_encoder(encoder).encode_tokens(_paragraphs())
            states += [tokens.states for tokens in further]
        dims = min(DIMS, encoder.identity.dimension // 2 * 2)
        self.spool.begin(TokenCodec.fit(np.concatenate(states), dims=dims, bits=BITS))

    def encode(
        self, encoder: TextEncoder, documents: Sequence[Document], cutting: PassageLengths | None
    ) -> tuple[Encoded, list[DocumentTokens]]:
        """Embeddings as `chunking.encode` gives them, and tokens, by one pass; after `begin`."""
        codec = self.spool.codec
        assert codec is not None
        return encode_rounded(encoder, documents, cutting, codec, self._stop_words)


def encode_rounded(
    encoder: TextEncoder,
    documents: Sequence[Document],
    cutting: PassageLengths | None,
    codec: TokenCodec,
    stop_words: Collection[str],
) -> tuple[Encoded, list[DocumentTokens]]:
    """Embeddings as `chunking.encode` gives them, and the tokens that are kept, by one pass.

    Args:
        encoder: the collection's, or one that was trained from it.
        documents: to be encoded.
        cutting: lengths of their passages.
        codec: projects and rounds the tokens.
        stop_words: whose tokens are left out.

    Raises:
        EncoderUnavailable: the encoder gives no token states.
    """
    encoded, raw = encode_with_tokens(encoder, documents, cutting)
    pairs = zip(documents, raw, strict=True)
    return encoded, [rounded_tokens(codec, document, tokens, stop_words) for document, tokens in pairs]


def rounded_tokens(
    codec: TokenCodec, document: Document, tokens: RawTokens, stop_words: Collection[str]
) -> DocumentTokens:
    """The tokens of a document that are kept, rounded."""
    content, stop_words = content_of(document.title, document.text), frozenset(stop_words)
    of_words = [is_of_word(content, start, end, stop_words) for start, end in tokens.spans.tolist()]
    wanted = np.flatnonzero(np.array(of_words, bool))
    if len(wanted) > MOST_TOKENS:
        wanted = wanted[np.linspace(0, len(wanted) - 1, MOST_TOKENS).astype(np.int64)]
    projected = codec.projected(tokens.states[wanted])
    new = distinct_tokens(projected)
    return DocumentTokens(codec.codes(projected[new]), tokens.spans[wanted][new].astype(np.int32))


def is_of_word(text: str, start: int, end: int, stop_words: frozenset[str]) -> bool:
    """True if a token is of a word that is no stop word."""
    piece = text[start:end].lower()
    if not any(character.isalnum() for character in piece):
        return False
    if piece not in stop_words:
        return True
    # As a part of another word it is none.
    return (start > 0 and text[start - 1].isalnum()) or (end < len(text) and text[end].isalnum())


def distinct_tokens(projected: Float32[np.ndarray, "tokens dims"]) -> Bool[np.ndarray, " tokens"]:
    """False for tokens nearly like one of the last that were kept before them."""
    new = np.ones(len(projected), bool)
    likeness = projected @ projected.T >= ALIKE
    later, earlier = np.nonzero(np.tril(likeness, -1))
    for token in np.unique(later[later - earlier <= _COMPARED]).tolist():  # all others are new
        first = max(0, token - _COMPARED)
        new[token] = not (likeness[token, first:token] & new[first:token]).any()
    return new


def _paragraphs() -> list[str]:
    """Paragraphs of the guide: English, on a subject of their own."""
    pages = [guide(topic) for topic in ("concepts", "finding", "training", "operating")]
    paragraphs = [paragraph for page in pages for paragraph in page.split("\n\n") if len(paragraph) > 200]
    return [paragraph[:600] for paragraph in paragraphs[::8]][:_PARAGRAPHS]
