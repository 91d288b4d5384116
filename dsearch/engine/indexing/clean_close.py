"""Clean-close record: lets the next opening skip reading the whole index.

Verifying the index of a million documents takes seconds, and the closing process had done it already. The
file `clean-close.json` records the state at closing (operation, set digest, generation), the identity of each
file of the generation and of the database (size, inode, times), and the times when they were last verified by
their digests. If all of that still holds, the next opening skips the verification of large files and of the
documents, and does it in the background (state/live.py, store/proof.py).

Opening a collection for writing removes the file durably. A process that dies therefore leaves none, and the
next opening verifies everything before it answers. So does an opening after a restore or a copy of the home
(the files are new), a day after the last verification, and after damage.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dsearch.index import Generation
from dsearch.index.durable import FileIdentity, file_identity, sync_folder
from dsearch.store import GenerationRecord, Store
from dsearch.store.sqlite.schema import FILE_NAME as DATABASE

FILE_NAME = "clean-close.json"
TRUSTED_FOR_S = 24 * 3600.0

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CleanClose:
    """State of a collection at its last clean closing.

    Attributes:
        sequence: last operation of the store.
        digest: set digest of the store after that operation.
        generation: number of the live generation.
        manifest_digest: digest of that generation's manifest.
        proven_at: time when all its files were last verified, in seconds since 1970.
        files: identities of the files before that verification.
        documents_proven_at: time when all documents were last verified; None if they never were.
        database: identity of the closed database; None if the documents were never verified.
    """

    sequence: int
    digest: str
    generation: int
    manifest_digest: str
    proven_at: float
    files: Mapping[str, FileIdentity]
    documents_proven_at: float | None = None
    database: FileIdentity | None = None

    @classmethod
    def of(cls, store: Store, generation: Generation, proven_at: float) -> CleanClose:
        """Describe a store and its live generation at closing time."""
        sequence, digest = store.state_digest()
        return cls(
            sequence,
            digest.hex(),
            generation.number,
            generation.manifest.digest,
            proven_at,
            dict(generation.identities),
        )

    def still(self, store: Store) -> CleanClose:
        """Sequence and digest of the store's present state."""
        sequence, digest = store.state_digest()
        return replace(self, sequence=sequence, digest=digest.hex())

    def with_documents(self, store: Store, proven_at: float | None) -> CleanClose:
        """Add the closed database of a store, and when it was last verified."""
        with contextlib.suppress(OSError):
            if proven_at is not None:
                identity = file_identity(store.path / DATABASE)
                return replace(self, documents_proven_at=proven_at, database=identity)
        return replace(self, documents_proven_at=None, database=None)

    def documents_of(self, store: Store) -> float | None:
        """Time of the last verification of a store's database if that is the file as it was closed."""
        with contextlib.suppress(OSError):
            fresh = 0 <= time.time() - (self.documents_proven_at or 0.0) <= TRUSTED_FOR_S
            if fresh and file_identity(store.path / DATABASE) == self.database:
                return self.documents_proven_at
        return None

    def files_of(self, record: GenerationRecord) -> Mapping[str, FileIdentity] | None:
        """Return a generation's file identities at its last verification; None for another generation."""
        same = (record.number, record.manifest_digest) == (self.generation, self.manifest_digest)
        return self.files if same else None


def take_clean_close(store: Store) -> CleanClose | None:
    """Return the last writer's record if it matches the store; remove it if the store is open for writing.

    Raises:
        OSError: the file cannot be removed; a crash of this process would look like a clean closing.
    """
    path = store.path / FILE_NAME
    record = read_clean_close(path)
    if not store.readonly and path.exists():
        path.unlink()
        sync_folder(store.path)
    if record is None or (record.sequence, record.digest) != _present(store):
        return None
    return record if 0 <= time.time() - record.proven_at <= TRUSTED_FOR_S else None


def leave_clean_close(folder: Path, closed: CleanClose) -> None:
    """Write the record for the next opening. Errors are ignored: that opening then verifies everything.

    So it does after a power cut that takes the record: nothing is synced here.
    """
    path = folder / FILE_NAME
    unfinished = folder / f".{FILE_NAME}.writing"
    content = {"format": _FORMAT, **asdict(closed)}
    with contextlib.suppress(OSError):
        unfinished.write_text(json.dumps({**content, "checksum": _checksum(content)}, indent=1))
        os.replace(unfinished, path)


def read_clean_close(path: Path) -> CleanClose | None:
    """Read a record; None if the file is missing or incomplete."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        checksum = content.pop("checksum")
        if checksum != _checksum(content) or content.pop("format") != _FORMAT:
            return None
        files = {name: tuple(identity) for name, identity in content.pop("files").items()}
        database = content.pop("database", None)
        return CleanClose(**content, files=files, database=None if database is None else tuple(database))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _present(store: Store) -> tuple[int, str]:
    sequence, digest = store.state_digest()
    return sequence, digest.hex()


def _checksum(content: Mapping[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()
