"""Manifests of a split generation, `release.json` and `shard.json`, and their verification.

    000012-5/release.json                    the shards with their digests; what every answer names
             000/shard.json                  every file of the shard with its size and SHA-256
                 documents.db …              the texts and metadata of its documents (a store of its own)
                 generations/000012/…        an ordinary generation of them (index/README.md)
                 frequencies.npy             df of each term in the whole generation
             001/…

A shard has the documents at positions `offset` to `offset + documents − 1` of the generation, so the shards
in their order are the generation in its order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsearch.errors import CorruptData, UnsupportedFormat
from dsearch.index.durable import file_digest, files_below
from dsearch.index.manifest import MANIFEST_NAME

RELEASE_NAME, SHARD_NAME, FREQUENCIES_NAME = "release.json", "shard.json", "frequencies.npy"
FORMAT = 1

# SQLite makes these when it opens the database; the lock file has no content.
_PASSING = ("-wal", "-shm", ".lock", "LOCK")
_AGAIN = "split the generation again, or copy the folder anew"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard, as its release names it."""

    name: str
    digest: str
    offset: int
    documents: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Release:
    """The content of release.json.

    Attributes:
        collection: its name.
        generation: the number of the generation that was split.
        sequence: the store's last operation that it contains.
        source: the digest of its manifest.
        documents: how many it has.
        dimension: of its embeddings.
        encoder: the identity of what made them.
        tokenizer: how its texts were cut into terms.
        shards: in the order of positions.
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
        """The release in `folder`; of its shards nothing is touched.

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
        """The manifest of the shard in `folder`, which must have this digest if one is given.

        Raises:
            CorruptData: missing, changed since it was written, or of another shard.
            UnsupportedFormat.
        """
        manifest = cls(**_read(folder / SHARD_NAME))
        if digest is not None and manifest.digest != digest:
            raise CorruptData(f"{folder / SHARD_NAME}: of another shard than the release names; {_AGAIN}")
        return manifest

    def verify(self, folder: Path) -> None:
        """Compare size and SHA-256 of every file with what was written.

        Of the generation that is its manifest, by which `Generation.open` proves the others.

        Raises:
            CorruptData: names the first file that is missing, a link, or not what was written.
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
    """Size and SHA-256 of every file of a shard, by its path in it."""
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
    """The content of a file that carries its own digest, without it."""
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
