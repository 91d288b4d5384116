"""`TokenKeeper`: the tokens of a collection's documents, in the live generation or beside it.

    encoder → tokens.db (beside, when a document is written) → tokens/ of the next generation

Tokens are derived from documents. A row without them (a crash between the write of a document and that of its
tokens, a lost tokens.db, a generation that was deleted) is ranked without a second stage, and `fill` computes
them: the next `dsearch index` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Int64

from dsearch.encoder import TextEncoder
from dsearch.engine.indexing.chunking import PassageLengths, encode
from dsearch.engine.indexing.tokens import Encoded, TokenMaker
from dsearch.engine.options import stop_words_of
from dsearch.index import Manifest
from dsearch.index.tokens.codec import TokenCodec
from dsearch.index.tokens.spool import TokenSpool
from dsearch.index.tokens.table import FOLDER, DocumentTokens, TokenTable
from dsearch.store import Store, WriteReceipt
from dsearch.types import Document, Progress

_FIRST = 64  # documents that the projection is fitted to, encoded once more for it
_AT_A_TIME = 256


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

        Raises:
            EncoderUnavailable: the encoder gives no token states.
        """
        if self.on:
            return
        rows = np.concatenate([self._store.rows(), self._store.pending().rows])
        spread = rows[np.linspace(0, len(rows) - 1, min(_FIRST, len(rows))).astype(np.int64)]
        documents = list(self._store.documents(spread)) if len(rows) else []
        self.maker().begin(encoder, documents, PassageLengths.of(self._store))

    def encode(
        self, encoder: TextEncoder, documents: Sequence[Document]
    ) -> tuple[Encoded, list[DocumentTokens] | None]:
        """Embed documents; with their tokens, by one pass, if the collection has a second stage."""
        cutting = PassageLengths.of(self._store)
        if not self.on or not documents:
            return encode(encoder, documents, cutting), None
        return self.maker().encode(encoder, documents, cutting)

    def keep(self, rows: Sequence[int], tokens: Sequence[DocumentTokens] | None) -> None:
        """Keep what `encode` gave for these rows."""
        if tokens is not None:
            self.spool.put(dict(zip(rows, tokens, strict=True)))

    def moving(self, ids: Sequence[str], write: Callable[[], WriteReceipt]) -> WriteReceipt:
        """Write documents whose texts stay; their tokens go to their new rows.

        Of a document whose text changes they are replaced later, when it is encoded.
        """
        if not self.on:
            return write()
        before = self._store.rows_of(ids)
        receipt = write()
        moved = {
            before[id]: row
            for id, row in zip(ids, receipt.rows, strict=True)
            if id in before and before[id] != row
        }
        before_moving = self.of_rows(list(moved))
        self.spool.put({moved[row]: of for row, of in before_moving.items() if of is not None})
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

    def maker(self) -> TokenMaker:
        """Makes tokens with the stop words of the collection's language."""
        return TokenMaker(self.spool, stop_words_of(self._store))

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
