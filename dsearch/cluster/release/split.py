"""Split a generation into shards: folders are rewritten, nothing is encoded.

A shard is self-contained: documents with metadata, embeddings, keys and postings. BM25's n and df are those
of the whole generation, so every shard computes the same logits as one machine.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import numpy as np

from dsearch.cluster.release.release import (
    FREQUENCIES_NAME,
    Release,
    ShardEntry,
    ShardManifest,
    digests_below,
)
from dsearch.engine.indexing.leases import Lease
from dsearch.engine.indexing.releases import ROWS_NAME
from dsearch.errors import Conflict, InvalidRequest
from dsearch.index import Generation, PassageTable
from dsearch.index.durable import publish_folder
from dsearch.index.tokens.codec import TokenCodec
from dsearch.index.tokens.table import DocumentTokens, tokens_of
from dsearch.store import Store

MAX_SHARDS = 10_000
_AT_A_TIME = 1024  # documents


def split(store: Store, generation: Generation, folder: Path, shards: int) -> Release:
    """Write a generation as `shards` shards into the new folder `folder`; atomic.

    Documents are distributed evenly by position; shards beyond the number of documents are empty.

    Args:
        store: store of the documents.
        generation: open generation of the store; later writes are not in the shards.
        folder: must not exist.
        shards: number of shards, 1 to 10,000.

    Raises:
        InvalidRequest: number of shards out of range, or generation without keyword index.
        Conflict: `folder` exists.
        InsufficientStorage, NotFound (documents that were purged since it was built).
    """
    if not 1 <= shards <= MAX_SHARDS:
        raise InvalidRequest(f"shards={shards}; use 1 to {MAX_SHARDS}")
    if generation.keyword is None:
        raise InvalidRequest(f"generation {generation.number} has no keyword index; build it again with one")
    if folder.exists():
        raise Conflict(f"{folder} exists; a release is never changed: give another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.parent / f".{folder.name}.splitting-{os.getpid()}-{uuid4().hex[:8]}"
    unfinished.mkdir()
    lease = Lease(unfinished)  # what a broken split leaves is removed
    try:
        bounds = np.linspace(0, len(generation), shards + 1).astype(np.int64).tolist()
        entries = [
            _write_shard(_Part(store, generation, start, stop), unfinished / f"{number:03d}", number)
            for number, (start, stop) in enumerate(pairwise(bounds))
        ]
        manifest = generation.manifest
        release = Release(
            collection=store.name,
            generation=generation.number,
            sequence=manifest.sequence,
            source=manifest.digest,
            documents=len(generation),
            dimension=manifest.encoder_dim,
            encoder=dict(manifest.encoder),
            tokenizer=None if manifest.keyword is None else manifest.keyword["tokenizer"],
            shards=tuple(entries),
        )
        release.write(unfinished)
        publish_folder(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    finally:
        lease.release()
    return release


@dataclass(frozen=True, slots=True)
class _Part:
    """Positions `start` to `stop` − 1 of a generation."""

    store: Store
    generation: Generation
    start: int
    stop: int

    def rows(self) -> Iterator[np.ndarray]:
        """Yield the store's rows in blocks."""
        for first in range(self.start, self.stop, _AT_A_TIME):
            yield self.generation.rows[first : min(first + _AT_A_TIME, self.stop)]

    def embeddings(self) -> Iterator[np.ndarray]:
        embeddings = self.generation.embeddings[self.start : self.stop]
        yield embeddings[:0]
        for first in range(0, len(embeddings), _AT_A_TIME):
            yield embeddings[first : first + _AT_A_TIME]

    def tokens(self) -> tuple[TokenCodec, Iterator[DocumentTokens | None]] | None:
        """Codec and tokens of the documents; None in a generation without."""
        table = self.generation.tokens
        return None if table is None else (table.codec, tokens_of(table, range(self.start, self.stop)))

    def passages(self) -> Iterator[PassageTable]:
        table = self.generation.passages
        low, high = np.searchsorted(table.owners, [self.start, self.stop]).tolist()
        long = np.unique(table.owners)
        first = slice(*np.searchsorted(long, [self.start, self.stop]).tolist())
        yield PassageTable(
            table.owners[low:high] - self.start,
            table.spans[low:high],
            table.first_spans[first],
            np.asarray(table.embeddings[low:high]),
        )


def _write_shard(part: _Part, folder: Path, number: int) -> ShardEntry:
    source, generation = part.store, part.generation
    assert generation.keyword is not None
    manifest = generation.manifest
    rows = [np.zeros(0, np.int64)]
    with Store.create(
        folder, name=source.name, encoder=source.encoder, dimension=source.dimension, passages=source.cutting
    ) as store:
        for block in part.rows():
            receipt = store.upsert(source.documents(block))
            rows.append(np.array(receipt.rows, np.int64))
    keyword = generation.keyword.part(part.start, part.stop)
    Generation.build(
        folder / "generations" / f"{generation.number:06d}",
        number=generation.number,
        sequence=manifest.sequence,
        rows=np.concatenate(rows),
        embeddings=part.embeddings(),
        passages=part.passages(),
        encoder=manifest.encoder,
        key_projection=generation.key_projection,
        dense_kind=manifest.dense["kind"],
        keyword=keyword,
        tokens=part.tokens(),
    )
    np.save(folder / FREQUENCIES_NAME, keyword.statistics.frequencies)
    np.save(folder / ROWS_NAME, np.asarray(generation.rows[part.start : part.stop]))
    shard = ShardManifest(
        collection=source.name,
        generation=generation.number,
        sequence=manifest.sequence,
        number=number,
        offset=part.start,
        documents=part.stop - part.start,
        total=keyword.statistics.documents,
        files=digests_below(folder),
    )
    shard.write(folder)
    return ShardEntry(folder.name, shard.digest, part.start, part.stop - part.start, shard.bytes)
