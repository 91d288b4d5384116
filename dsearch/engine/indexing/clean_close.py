"""Clean-close record: lets the next opening skip reading the whole index.

Verifying the index of a million documents takes seconds, and the closing process had done it already. The
file `clean-close.json` records the state at closing (operation, set digest, generation), the identity of each
file of the generation (size, inode, times), and the time when the files were last verified by their digests.
If all of that still holds, the next opening skips the verification of large files and does it in the
background (integrity.py).

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
from dsearch.index.durable import FileIdentity, sync_file, sync_folder
from dsearch.store import GenerationRecord, Store

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
    """

    sequence: int
    digest: str
    generation: int
    manifest_digest: str
    proven_at: float
    files: Mapping[str, FileIdentity]

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
    """Write the record for the next opening. Errors are ignored: that opening then verifies everything."""
    path = folder / FILE_NAME
    unfinished = folder / f".{FILE_NAME}.writing"
    content = {"format": _FORMAT, **asdict(closed)}
    with contextlib.suppress(OSError):
        unfinished.write_text(json.dumps({**content, "checksum": _checksum(content)}, indent=1))
        sync_file(unfinished)
        os.replace(unfinished, path)
        sync_folder(folder)


def read_clean_close(path: Path) -> CleanClose | None:
    """Read a record; None if the file is missing or incomplete."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        checksum = content.pop("checksum")
        if checksum != _checksum(content) or content.pop("format") != _FORMAT:
            return None
        files = {name: tuple(identity) for name, identity in content.pop("files").items()}
        return CleanClose(**content, files=files)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _present(store: Store) -> tuple[int, str]:
    sequence, digest = store.state_digest()
    return sequence, digest.hex()


def _checksum(content: Mapping[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()
