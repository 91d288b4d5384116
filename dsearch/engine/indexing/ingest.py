"""The indexing path: store documents, embed them in batches, build a generation and publish it.

Each step is durable when it returns, so an interrupted run continues where it stopped: stored documents are
not stored again, and existing embeddings are not computed again.

Callers may supply embeddings of anything that has vectors. They are scaled to length 1, like an encoder's, so
that the inner product is the cosine, the initial temperature fits, and a kernel's width means the same
everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.encoder import TextEncoder
from dsearch.encoder.text_encoder import length_sorted_batches
from dsearch.engine.home import is_given
from dsearch.engine.indexing.chunking import PassageLengths, PassageOptions, encode, passage_table
from dsearch.engine.indexing.tokens import TokenKeeper
from dsearch.engine.options import (
    KeyOptions,
    keyword_text,
    language_of,
    require_kind,
    require_texts,
    search_fields_of,
)
from dsearch.errors import Conflict
from dsearch.index import Generation, PassageTable, Tokenizer
from dsearch.index.metadata import FieldsBuilder
from dsearch.store import Store
from dsearch.types import Document, Progress

OnProgress = Callable[[Progress], None]

_STORED_AT_A_TIME = 1024  # documents a transaction
_ENCODED_AT_A_TIME = 256  # documents between two commits of embeddings
_LONG_ENCODED_AT_A_TIME = 1_000_000  # characters of long documents: some 1,000 passages
_CHARACTERS_PER_TOKEN = 4  # for an estimate of the time left
_CHARACTERS_PER_DOCUMENT = 200  # what a document costs besides its text, as if it were text
_READ_AT_A_TIME = 8192  # rows a block, when a generation is built
_CUT_AT_A_TIME = 1024  # rows a block of passages; a document may have a thousand


@dataclass(frozen=True, slots=True)
class Ingestion:
    """Result of an indexing run."""

    inserted: int
    updated: int
    unchanged: int
    encoded: int
    elapsed_s: float
    deleted: int = 0


def store_documents(
    store: Store,
    documents: Iterable[Document],
    on_progress: OnProgress | None = None,
    tokens: TokenKeeper | None = None,
) -> tuple[int, int, int]:
    """Store documents without embeddings; return (inserted, updated, unchanged).

    `tokens`: of documents of which only metadata change, they stay.
    """
    counts = np.zeros(3, np.int64)
    started = time.monotonic()
    remaining = iter(documents)
    while batch := list(islice(remaining, _STORED_AT_A_TIME)):
        if tokens is None:
            receipt = store.upsert(batch)
        else:
            receipt = tokens.carry_over([document.id for document in batch], partial(store.upsert, batch))
        counts += (receipt.inserted, receipt.updated, receipt.unchanged)
        if on_progress is not None:
            on_progress(Progress("read", int(counts.sum()), 0, time.monotonic() - started))
    inserted, updated, unchanged = counts.tolist()
    return inserted, updated, unchanged


def encode_pending(
    store: Store,
    encoder: TextEncoder,
    on_progress: OnProgress | None = None,
    tokens: TokenKeeper | None = None,
) -> int:
    """Compute and store the missing embeddings; return the number of documents that had none.

    `tokens`: keeps those of the documents, if the collection has a second stage.
    """
    pending, cutting = store.pending(), PassageLengths.of(store)
    cost = pending.lengths + _CHARACTERS_PER_DOCUMENT
    if cutting is None and encoder.identity.max_tokens:  # what is beyond is not encoded
        cost = np.minimum(cost, encoder.identity.max_tokens * _CHARACTERS_PER_TOKEN)
    started, done, paid = time.monotonic(), 0, 0
    for batch in length_sorted_batches(pending.lengths, _ENCODED_AT_A_TIME):
        for part in [batch] if cutting is None else _of_bounded_length(batch, pending.lengths):
            rows = pending.rows[part]
            documents = store.documents(rows)
            if tokens is None:
                embeddings, further = encode(encoder, documents, cutting)
            else:
                (embeddings, further), of_documents = tokens.encode(encoder, documents)
                tokens.keep(rows.tolist(), of_documents)
            store.set_embeddings(rows, embeddings, {int(rows[at]): cut for at, cut in further.items()})
            done, paid = done + len(rows), paid + int(cost[part].sum())
            if on_progress is not None:
                elapsed_s, share = time.monotonic() - started, paid / int(cost.sum())
                on_progress(Progress("encode", done, len(pending.rows), elapsed_s, share))
    return done


def _of_bounded_length(
    batch: Int64[np.ndarray, " batch"], lengths: Int64[np.ndarray, " pending"]
) -> list[Int64[np.ndarray, " part"]]:
    """Split a batch, so that long documents increase neither memory nor the loss by an interruption."""
    before = np.cumsum(lengths[batch]) - lengths[batch]
    cuts = np.flatnonzero(np.diff(before // _LONG_ENCODED_AT_A_TIME)) + 1
    return np.split(batch, cuts)


@dataclass(frozen=True, slots=True)
class BuiltGeneration:
    """A generation whose files are complete, before it is registered."""

    number: int
    manifest_digest: str
    rows: int
    sequence: int
    record: dict[str, Any]


def build_generation(
    store: Store,
    *,
    keys: KeyOptions | None = None,
    language: str | None = None,
    search_fields: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> int:
    """Build a generation of everything searchable, register it and make it live; return its number."""
    built = build_files(
        store, keys=keys, language=language, search_fields=search_fields, on_progress=on_progress
    )
    publish(store, built)
    return built.number


def build_files(
    store: Store,
    *,
    key_projection: Float32[np.ndarray, "key_dim encoder_dim"] | None = None,
    keys: KeyOptions | None = None,
    language: str | None = None,
    search_fields: Sequence[str] | None = None,
    queries: Float32[np.ndarray, "queries key_dim"] | None = None,
    on_progress: OnProgress | None = None,
) -> BuiltGeneration:
    """Build the files of the next generation; `store` is only read, so another process can do it.

    Args:
        store: store of the documents.
        key_projection: W_g; None for the identity.
        keys: kind of its keys; that of the live generation when None.
        language: language of its texts; that of the live generation when None.
        search_fields: metadata fields with further words; those of the live generation when None.
        queries: sample queries to tune an approximate kind; derived from the keys when None.
        on_progress: receives each stage.
    """
    keys = keys or KeyOptions.of(store)
    language = language_of(store) if language is None else language
    searched = search_fields_of(store) if search_fields is None else tuple(search_fields)
    state = store.snapshot()
    number = store.next_generation_number()
    fields = FieldsBuilder()
    with closing(TokenKeeper(store)) as keeper:  # of a full disk, too
        manifest = Generation.build(
            generation_folder(store, number),
            number=number,
            sequence=state.sequence,
            rows=state.rows,
            embeddings=_embedding_blocks(store, state.rows),
            passages=_passage_blocks(store, state.rows),
            texts=_contents(store, state.rows, fields, searched),
            fields=fields,
            tokens=keeper.for_build(state.rows),
            encoder=store.encoder,
            key_projection=key_projection,
            dense_kind=keys.kind,
            recall_target=keys.recall_target,
            memory_bytes=keys.memory_bytes,
            queries=queries,
            tokenizer=Tokenizer.for_language(language),
            on_progress=on_progress,
        )
    record: dict[str, Any] = {"keys": keys.to_dict(), "dense": manifest.dense, "language": language}
    if searched:
        record["search_fields"] = list(searched)
    return BuiltGeneration(number, manifest.digest, len(state.rows), state.sequence, record)


def publish(store: Store, built: BuiltGeneration) -> None:
    """Register a generation and make it live.

    Raises:
        Conflict: later deletions were purged while it was built.
    """
    store.add_generation(
        built.number,
        manifest_digest=built.manifest_digest,
        rows=built.rows,
        snapshot=built.sequence,
        record=built.record,
    )
    store.publish_generation(built.number)


def generation_folder(store: Store, number: int) -> Path:
    """Return the folder of generation `number`."""
    return store.path / "generations" / f"{number:06d}"


def _embedding_blocks(store: Store, rows: np.ndarray) -> Iterator[np.ndarray]:
    if len(rows) == 0:
        yield np.zeros((0, store.dimension), np.float32)
    for start in range(0, len(rows), _READ_AT_A_TIME):
        yield store.embeddings(rows[start : start + _READ_AT_A_TIME])


def _passage_blocks(store: Store, rows: np.ndarray) -> Iterator[PassageTable]:
    for start in range(0, len(rows), _CUT_AT_A_TIME):
        block = rows[start : start + _CUT_AT_A_TIME]
        table = passage_table(store.passages(block), block, store.dimension)
        yield replace(table, owners=table.owners + start)


def _contents(
    store: Store, rows: np.ndarray, fields: FieldsBuilder, searched: Sequence[str]
) -> Iterator[str]:
    """Yield the text to index of each row, and add its metadata to `fields`: each row is read once."""
    for start in range(0, len(rows), _READ_AT_A_TIME):
        for document in store.documents(rows[start : start + _READ_AT_A_TIME]):
            fields.add(document.metadata)
            yield keyword_text(document, searched)


def require_dimension(store: Store, dimension: int) -> None:
    """Refuse a collection that has an encoder, or supplied embeddings of another length than `dimension`.

    Raises:
        Conflict: the message says what it has.
    """
    if not is_given(store):
        raise Conflict(
            f"collection {store.name!r} encodes texts, and dimension={dimension} is for embeddings of your "
            "own; leave it out, or make another collection"
        )
    if store.dimension != dimension:
        raise Conflict(
            f"collection {store.name!r} has embeddings of {store.dimension} numbers, not {dimension}; leave "
            "it out, or make another collection"
        )


def require_options(
    store: Store,
    dimension: int | None,
    language: str | None,
    search_fields: Sequence[str] | None,
    kind: str | None,
    passages: PassageOptions | None,
) -> None:
    """Refuse a collection that was made with other options; None accepts any.

    Raises:
        Conflict: the message says what it has.
    """
    if dimension is not None:
        require_dimension(store, dimension)
    require_texts(store, language, search_fields)
    require_kind(store, kind)
    if passages is not None:
        passages.require(store)
