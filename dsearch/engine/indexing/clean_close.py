"""What the last writer leaves when it closes a collection as it should: what the next opening may rely on.

Reading a million documents' index through takes seconds, and whoever closed it had done so. A file
`clean-close.json` says of which state that was (operation, set digest, generation), what each file of the
generation was then (size, inode, times), and when the files were last held against their digests. The next
opening takes large files as they are when all of that still holds, and holds them against their digests in
the background (proof.py).

It is removed, durably, by whoever opens the collection for writing: a process that dies leaves none, and then
everything is read before anything is answered. So it is after a backup was restored or a home copied, since
the files are others then; a day after the last proof; and after damage was found.
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
    """What was there at the last closing.

    Attributes:
        sequence: the store's last operation.
        digest: its set digest then.
        generation: the live one's number.
        manifest_digest: of that generation.
        proven_at: when all its files were last held against their digests, in seconds since 1970.
        files: what they were before that.
    """

    sequence: int
    digest: str
    generation: int
    manifest_digest: str
    proven_at: float
    files: Mapping[str, FileIdentity]

    @classmethod
    def of(cls, store: Store, generation: Generation, proven_at: float) -> CleanClose:
        """What there is to say of a store and its live generation, at their closing."""
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
        """The same of the store's present state."""
        sequence, digest = store.state_digest()
        return replace(self, sequence=sequence, digest=digest.hex())

    def files_of(self, record: GenerationRecord) -> Mapping[str, FileIdentity] | None:
        """What the files of a generation were when they were last proven; None for another one."""
        same = (record.number, record.manifest_digest) == (self.generation, self.manifest_digest)
        return self.files if same else None


def take_clean_close(store: Store) -> CleanClose | None:
    """What the last writer left, if it holds for the store as it is; a store open for writing has it no more.

    Raises:
        OSError: it cannot be removed, so a kill of this process could not be told from its closing.
    """
    path = store.path / FILE_NAME
    found = read_clean_close(path)
    if not store.readonly and path.exists():
        path.unlink()
        sync_folder(store.path)
    if found is None or (found.sequence, found.digest) != _present(store):
        return None
    return found if 0 <= time.time() - found.proven_at <= TRUSTED_FOR_S else None


def leave_clean_close(folder: Path, closed: CleanClose) -> None:
    """Let the next opening know. What fails here is no reason to fail: that one reads everything, then."""
    path = folder / FILE_NAME
    unfinished = folder / f".{FILE_NAME}.writing"
    content = {"format": _FORMAT, **asdict(closed)}
    with contextlib.suppress(OSError):
        unfinished.write_text(json.dumps({**content, "checksum": _checksum(content)}, indent=1))
        sync_file(unfinished)
        os.replace(unfinished, path)
        sync_folder(folder)


def read_clean_close(path: Path) -> CleanClose | None:
    """What a file says; None when there is none, or one that is not whole."""
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
