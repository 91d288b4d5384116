"""Tokens of documents for the second stage: by the pass of the encoder that gives the embeddings.

Of a document's tokens those are kept that can make a match: not those of stop words and of signs, not those
nearly like an earlier one of the same document, and of a very long document as many as are spread evenly over
it. Passages overlap: what two of them share is kept once.

    encoder → tokens.db (beside, when a document is written) → tokens/ of the next generation

A row without tokens (a crash between the write of a document and that of its tokens, a lost tokens.db, a
generation that was deleted) is ranked without a second stage, and `fill` computes them: the next `dsearch
index` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int64

from dsearch.encoder import TextEncoder, TextTokens, TokenEncoder
from dsearch.engine.indexing.chunking import PassageLengths, Pieces, encode
from dsearch.engine.options import stop_words_of
from dsearch.errors import EncoderUnavailable
from dsearch.guide import guide
from dsearch.index import Manifest
from dsearch.index.token_spool import TokenSpool
from dsearch.index.tokens import FOLDER, DocumentTokens, TokenCodec, TokenTable, content_of
from dsearch.store import Passages, Store, WriteReceipt
from dsearch.types import Document, Progress

DIMS = 64
BITS = 4
ALIKE = 0.9  # cosine above which a later token of a document adds nothing
MOST_TOKENS = 1024  # of a document
_FEWEST = 2000  # tokens that a projection is fitted to
_PARAGRAPHS = 48
_COMPARED = 256  # earlier tokens that one is compared with

Encoded = tuple[Float32[np.ndarray, "documents encoder_dim"], dict[int, Passages]]
_FIRST = 64  # documents that the projection is fitted to, encoded once more for it
_AT_A_TIME = 256


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


class TokenKeeper:
    """Tokens by row of a store.

    Args:
        store: of the collection.
    """

    def __init__(self, store: Store):
        self._store = store
        self.spool = TokenSpool(store.path)
        self._built: tuple[int, Int64[np.ndarray, " rows"], TokenTable | None] | None = None

    @property
    def codec(self) -> TokenCodec | None:
        """The projection of the collection's tokens; None if it has no second stage."""
        codec = self.spool.codec
        if codec is None and (built := self._generation()[2]) is not None:
            codec = built.codec
            if not self._store.readonly:  # tokens.db was lost: go on with the projection that is in use
                self.spool.begin(codec)
        return codec

    @property
    def on(self) -> bool:
        """True if the collection has a second stage."""
        return self.codec is not None

    def begin(self, encoder: TextEncoder) -> None:
        """Give the collection a second stage: fit the projection to some of its documents.

        Where these have few tokens it is fitted to paragraphs of the guide, too.

        Raises:
            EncoderUnavailable: the encoder gives no token states.
        """
        if self.on:
            return
        rows = np.concatenate([self._store.rows(), self._store.pending().rows])
        spread = rows[np.linspace(0, len(rows) - 1, min(_FIRST, len(rows))).astype(np.int64)]
        documents = list(self._store.documents(spread)) if len(rows) else []
        _, raw = encode_with_tokens(encoder, documents, PassageLengths.of(self._store))
        states = [tokens.states for tokens in raw]
        if sum(map(len, states)) < _FEWEST:
            _, further = token_encoder(encoder).encode_tokens(_paragraphs())
            states += [tokens.states for tokens in further]
        dims = min(DIMS, encoder.identity.dimension // 2 * 2)
        self.spool.begin(TokenCodec.fit(np.concatenate(states), dims=dims, bits=BITS))

    def encode(
        self, encoder: TextEncoder, documents: Sequence[Document]
    ) -> tuple[Encoded, list[DocumentTokens] | None]:
        """Embed documents; with their tokens, by one pass, if the collection has a second stage."""
        cutting, codec = PassageLengths.of(self._store), self.codec
        if codec is None or not documents:
            return encode(encoder, documents, cutting), None
        return encode_rounded(encoder, documents, cutting, codec, stop_words_of(self._store))

    def keep(self, rows: Sequence[int], tokens: Sequence[DocumentTokens] | None) -> None:
        """Keep what `encode` gave for these rows."""
        if tokens is not None:
            self.spool.put(dict(zip(rows, tokens, strict=True)))

    def carry_over(self, ids: Sequence[str], write: Callable[[], WriteReceipt]) -> WriteReceipt:
        """Write documents, and carry the tokens of those whose texts stay over to their new rows."""
        if not self.on:
            return write()
        before = self._store.rows_of(ids)
        receipt = write()
        moved = {
            before[id]: row
            for id, row in zip(ids, receipt.rows, strict=True)
            if id in before and before[id] != row
        }
        tokens = self.of_rows(list(moved))
        self.spool.put({moved[row]: of_row for row, of_row in tokens.items() if of_row is not None})
        return receipt

    def of_rows(self, rows: Sequence[int]) -> dict[int, DocumentTokens | None]:
        """The tokens of each row; None where they are not known."""
        _, built, table = self._generation()
        wanted = np.array(rows, np.int64)
        beside = self.spool.get(wanted)
        by_row: dict[int, DocumentTokens | None] = {}
        at = np.searchsorted(built, wanted)
        for row, place in zip(wanted.tolist(), at.tolist(), strict=True):
            tokens_of_row = beside.get(row)
            if tokens_of_row is None and table is not None and place < len(built) and built[place] == row:
                tokens_of_row = table.document(place)
            by_row[row] = tokens_of_row
        return by_row

    def fresh_table(self, rows: Int64[np.ndarray, " fresh"]) -> TokenTable | None:
        """The tokens of rows that no generation has; None without a second stage."""
        codec = self.codec
        if codec is None:
            return None
        beside = self.spool.get(rows)
        return TokenTable.of(codec, [beside.get(row) for row in rows.tolist()])

    def extended(
        self,
        before: TokenTable | None,
        rows: Int64[np.ndarray, " fresh"],
        added: Int64[np.ndarray, " added"],
    ) -> TokenTable | None:
        """`fresh_table` of `rows` and `added`, whose first part is `before`."""
        if before is None or self.spool.codec is None:
            return self.fresh_table(np.concatenate([rows, added]))
        beside = self.spool.get(added)
        return before.extended([beside.get(row) for row in added.tolist()])

    def for_build(
        self, rows: Int64[np.ndarray, " rows"]
    ) -> tuple[TokenCodec, Iterator[DocumentTokens | None]] | None:
        """Codec and tokens of a generation of these rows; None without a second stage."""
        codec = self.codec
        if codec is None:
            return None

        def tokens() -> Iterator[DocumentTokens | None]:
            for start in range(0, len(rows), _AT_A_TIME):
                some = rows[start : start + _AT_A_TIME].tolist()
                by_row = self.of_rows(some)
                yield from (by_row[row] for row in some)

        return codec, tokens()

    def published(self, rows: Int64[np.ndarray, " rows"], fresh: Int64[np.ndarray, " fresh"]) -> None:
        """Remove from tokens.db what a generation of `rows` has, and what is neither there nor fresh."""
        if self.spool.codec is None or self._store.readonly:
            return
        self._built = None
        beside = self.spool.rows()
        built = self._generation()[1]  # no rows where the generation has no tokens
        built_rows = beside[np.isin(beside, rows) & np.isin(beside, built)]
        gone = beside[~np.isin(beside, rows) & ~np.isin(beside, fresh)]
        self.spool.forget([*built_rows.tolist(), *gone.tolist()])

    def missing(self) -> Int64[np.ndarray, " rows"]:
        """Searchable rows without tokens, ascending; none without a second stage."""
        if not self.on:
            return np.zeros(0, np.int64)
        rows = self._store.rows()
        _, built, table = self._generation()
        rows_with = self.spool.rows()
        if table is not None:
            rows_with = np.concatenate([rows_with, built[table.present]])
        return rows[~np.isin(rows, rows_with)]

    def fill(self, encoder: TextEncoder, on_progress: Callable[[Progress], None] | None = None) -> int:
        """Compute the tokens that are missing; return the number of documents."""
        missing, started = self.missing(), time.monotonic()
        for start in range(0, len(missing), _AT_A_TIME):
            rows = missing[start : start + _AT_A_TIME]
            _, tokens = self.encode(encoder, list(self._store.documents(rows)))
            self.keep(rows.tolist(), tokens)
            if on_progress is not None:
                done = start + len(rows)
                on_progress(Progress("tokens", done, len(missing), time.monotonic() - started))
        return len(missing)

    def close(self) -> None:
        """Close tokens.db."""
        self.spool.close()
        self._built = None

    def _generation(self) -> tuple[int, Int64[np.ndarray, " rows"], TokenTable | None]:
        """Number, rows and tokens of the live generation, each file compared with its digest once."""
        live = self._store.live_generation()
        number = 0 if live is None else live.number
        built = self._built
        if built is None or built[0] != number:
            built = number, np.zeros(0, np.int64), None
            folder = self._store.path / "generations" / f"{number:06d}"
            if live is not None and (folder / FOLDER).is_dir():
                manifest = Manifest.read(folder)
                names = [*manifest.files]
                tokens = [name for name in names if name.startswith(f"{FOLDER}/") or name == "rows.npy"]
                manifest.verify(folder, sizes_alone=[name for name in names if name not in tokens])
                rows = np.load(folder / "rows.npy", allow_pickle=False)
                built = number, rows, TokenTable.load(folder / FOLDER, len(rows))
            self._built = built  # only whole: a damaged file is reported each time
        return built
