"""Split a generation into the shards of a release; manifests of both, and their verification.

    000012-5/release.json                    the shards with their digests; every answer names it
             000/shard.json                  every file of the shard with its size and SHA-256
                 documents.db …              the texts and metadata of its documents (a store of its own)
                 generations/000012/…        an ordinary generation of them (index/README.md)
                 frequencies.npy             df of each term in the whole generation
                 rows.npy                    the home's row of each document, by which a query memory names it
             001/…

A shard has the documents at positions `offset` to `offset + documents − 1` of the generation: the shards in
order are the generation in order.

Folders are rewritten, nothing is encoded. A shard is self-contained: documents with metadata, embeddings,
keys and postings. BM25's n and df are those of the whole generation, so every shard computes the same logits
as one machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from jaxtyping import Int64

from dsearch.engine.indexing.leases import Lease
from dsearch.engine.indexing.releases import RELEASE_NAME, ROWS_NAME
from dsearch.errors import Conflict, CorruptData, InvalidRequest, UnsupportedFormat
from dsearch.index import Generation, PassageTable
from dsearch.index.durable import file_digest, files_below, publish_folder
from dsearch.index.manifest import MANIFEST_NAME
from dsearch.index.tokens import DocumentTokens, TokenCodec, tokens_of
from dsearch.store import Store

SHARD_NAME, FREQUENCIES_NAME = "shard.json", "frequencies.npy"
FORMAT = 1

# SQLite creates these when it opens the database; the lock file is empty.
_PASSING = ("-wal", "-shm", ".lock", "LOCK")
_AGAIN = "split the generation again, or copy the folder anew"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """Entry of a shard in the manifest of its release."""

    name: str
    digest: str
    offset: int
    documents: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Release:
    """The content of release.json.

    Attributes:
        collection: name of the collection.
        generation: number of the generation that was split.
        sequence: last operation of the store that it contains.
        source: digest of its manifest.
        documents: number of documents.
        dimension: length of an embedding.
        encoder: identity of the encoder.
        tokenizer: settings of the tokenizer.
        shards: entries of the shards, by position.
    """

    collection: str
    generation: int
    sequence: int
    source: str
    documents: int
    dimension: int
    encoder: dict[str, Any]
    tokenizer: dict[str, Any] | None
    shards: tuple[ShardEntry, ...]
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """SHA-256 of the release, and so of every file of every shard."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()

    def owners(self, positions: Int64[np.ndarray, "*any"]) -> Int64[np.ndarray, "*any"]:
        """The shard of each position; −1 of −1."""
        offsets = np.array([entry.offset for entry in self.shards])
        # Of several shards at one offset only the last has documents.
        return np.where(positions < 0, -1, np.searchsorted(offsets, positions, side="right") - 1)

    def write(self, folder: Path) -> None:
        """Write release.json."""
        (folder / RELEASE_NAME).write_bytes(canonical(asdict(self) | {"digest": self.digest}))

    @classmethod
    def read(cls, folder: Path) -> Release:
        """Read the release in `folder`; its shards are not read.

        Raises:
            CorruptData: missing, or changed since it was written.
            UnsupportedFormat: written by a release of dsearch with another format.
        """
        content = _read(folder / RELEASE_NAME)
        shards = tuple(ShardEntry(**entry) for entry in content.pop("shards"))
        return cls(**content, shards=shards)


@dataclass(frozen=True, slots=True)
class ShardManifest:
    """The content of shard.json; `total` is the number of documents of the whole generation."""

    collection: str
    generation: int
    sequence: int
    number: int
    offset: int
    documents: int
    total: int
    files: dict[str, dict[str, Any]]
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest, and so of every file that it names."""
        return hashlib.sha256(canonical(asdict(self))).hexdigest()

    @property
    def bytes(self) -> int:
        """Size of the shard on disk."""
        return sum(entry["bytes"] for entry in self.files.values())

    def write(self, folder: Path) -> None:
        """Write shard.json."""
        (folder / SHARD_NAME).write_bytes(canonical(asdict(self) | {"digest": self.digest}))

    @classmethod
    def read(cls, folder: Path, digest: str | None = None) -> ShardManifest:
        """Read the manifest of the shard in `folder`, and compare it with `digest` if one is given.

        Raises:
            CorruptData: missing, changed since it was written, or of another shard.
            UnsupportedFormat.
        """
        manifest = cls(**_read(folder / SHARD_NAME))
        if digest is not None and manifest.digest != digest:
            raise CorruptData(f"{folder / SHARD_NAME}: of another shard than the release names; {_AGAIN}")
        return manifest

    def verify(self, folder: Path) -> None:
        """Verify size and SHA-256 of every file.

        Of the generation only the manifest: `Generation.open` verifies the other files by it.

        Raises:
            CorruptData: names the first file that is missing, a link, or changed.
        """
        for name, written in self.files.items():
            path = folder / name
            if name.startswith("generations/") and not name.endswith(f"/{MANIFEST_NAME}"):
                continue
            if path.is_symlink() or not path.is_file():
                raise CorruptData(f"{path}: missing or not a plain file; {_AGAIN}")
            if file_digest(path) != (written["bytes"], written["sha256"]):
                raise CorruptData(f"{path}: SHA-256 differs from {SHARD_NAME}; {_AGAIN}")


def digests_below(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file of a shard, by relative path."""
    digests: dict[str, dict[str, Any]] = {}
    for path in _content(folder):
        size, sha256 = file_digest(path)
        digests[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": sha256}
    return digests


def canonical(content: dict[str, Any]) -> bytes:
    """JSON in one fixed layout."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1, sort_keys=True)
    return (text + "\n").encode("utf-8")


def _content(folder: Path) -> Iterable[Path]:
    return (
        path for path in files_below(folder) if path.name != SHARD_NAME and not path.name.endswith(_PASSING)
    )


def _read(path: Path) -> dict[str, Any]:
    """Read a file that contains its own digest; return the content without it."""
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("digest")
        intact = digest == hashlib.sha256(canonical(content)).hexdigest()
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise CorruptData(f"{path}: cannot be read ({error}); {_AGAIN}") from error
    if not intact:
        raise CorruptData(f"{path}: changed since it was written; {_AGAIN}")
    if content.get("format") != FORMAT:
        raise UnsupportedFormat(f"{path}: format {content.get('format')!r}; this release reads {FORMAT}")
    return content


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
