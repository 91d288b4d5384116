"""Manifests of a split generation, `release.json` and `shard.json`, and their verification.

    000012-5/release.json                    the shards with their digests; every answer names it
             000/shard.json                  every file of the shard with its size and SHA-256
                 documents.db …              the texts and metadata of its documents (a store of its own)
                 generations/000012/…        an ordinary generation of them (index/README.md)
                 frequencies.npy             df of each term in the whole generation
                 rows.npy                    the home's row of each document, by which a query memory names it
             001/…

A shard has the documents at positions `offset` to `offset + documents − 1` of the generation: the shards in
order are the generation in order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsearch.engine.indexing.releases import RELEASE_NAME
from dsearch.errors import CorruptData, UnsupportedFormat
from dsearch.index.durable import file_digest, files_below
from dsearch.index.manifest import MANIFEST_NAME

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
