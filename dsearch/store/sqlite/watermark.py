"""Watermark: a small file beside the database that records the last acknowledged operation.

SQLite recovers its write-ahead log up to the first frame whose checksum fails. A flipped bit there silently
drops every later transaction, acknowledged or not, and all digests inside the log agree with the rest. Only
a record outside the database reveals it. The file has two slots of 4,096 bytes (so that a torn sector never
touches both), each

    magic "dsearchW" · format u32 · zero u32 · sequence u64 · set digest [32] · SHA-256 of all that [32]

and zeros to its end; integers little-endian. A write goes to the slot that does not hold the newest mark and
is synced.

Crash windows. Operation n is: (1) commit to SQLite, synced; (2) write mark n; (3) sync it; (4) acknowledge.

| killed       | database | newest whole mark | on opening                                              |
|--------------|----------|-------------------|--------------------------------------------------------------|
| before 1     | n − 1    | n − 1             | equal: clean                                            |
| between 1, 2 | n        | n − 1             | one ahead: durable, unacknowledged; the next writer marks it |
| in 2         | n        | n − 1, other torn | the same                                                |
| after 2      | n        | n, or as above    | clean                                                   |

So a database is never behind its mark and never more than one ahead. Behind: acknowledged writes are missing.
More than one ahead, or equal with another set digest: one of the two files is not of this history. Equal with
the other slot torn: a mark was being written, so its operation had been committed, and the database does not
have it. All of these are CorruptData. The file also carries the writer's lock (flock), so the writer is one,
in all processes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sqlite3
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from dsearch.errors import (
    CorruptData,
    DsearchError,
    HomeLocked,
    InsufficientStorage,
    Unavailable,
    UnsupportedFormat,
)
from dsearch.store.sqlite.database import DatabaseFile, MarkedState, WatermarkEntry
from dsearch.store.sqlite.schema import DOCUMENTS

FORMAT = 1
SLOT_BYTES = 4096
_BODY = struct.Struct("<8sIIQ32s")
_MAGIC = b"dsearchW"
_ASKED_AGAIN_S = 0.002
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class WatermarkSlots:
    """Content of the slots: the newest whole mark, its slot, and True if the other is whole too."""

    newest: WatermarkEntry
    slot: int
    other_is_whole: bool


def create_watermark(folder: Path, mark: WatermarkEntry, of: DatabaseFile = DOCUMENTS) -> None:
    """Write a new file with `mark` in both slots and sync it (its folder is the caller's to sync)."""
    with open(folder / of.watermark, "xb") as file:
        file.write(_pack(mark) * 2)
        file.flush()
        sync_file(file.fileno())


def read_watermark(folder: Path, of: DatabaseFile = DOCUMENTS) -> WatermarkSlots:
    """Read the marks of a collection folder; raises CorruptData if none is readable."""
    try:
        content = (folder / of.watermark).read_bytes()
    except FileNotFoundError:
        raise of.lost(
            f"{folder / of.watermark} is missing, so acknowledged {of.written} may be as well"
        ) from None
    return _parse(content, folder, of)


class Watermark:
    """Writer's handle of the file: its lock, and the next slot to write."""

    def __init__(self, folder: Path, of: DatabaseFile = DOCUMENTS, *, create: bool = False) -> None:
        """Open and lock the file; raises HomeLocked or Unavailable when another writer has it.

        A file that is damaged in both slots, or with `create` one that was missing, counts as a mark of
        operation 0, and `unreadable` has the reason. Without `create` a missing one raises CorruptData.
        """
        self._folder, self._of = folder, of
        self.unreadable: CorruptData | None = None
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            self._file = os.open(folder / of.watermark, flags, 0o644)
        except FileNotFoundError:
            read_watermark(folder, of)
            raise
        try:
            self._lock(of.patience_s)
            try:
                self.marks = _parse(os.pread(self._file, 2 * SLOT_BYTES, 0), folder, of)
            except CorruptData as error:
                self.unreadable = error
                self.marks = WatermarkSlots(WatermarkEntry(0, bytes(32)), slot=0, other_is_whole=False)
        except BaseException:
            os.close(self._file)
            raise

    def write(self, mark: WatermarkEntry) -> None:
        """Write `mark` into the older slot and sync it.

        After an OSError nothing may be acknowledged. InsufficientStorage (a full disk, on file systems that
        never write in place) leaves the newest mark as it is; then the same mark may be written again.
        """
        slot = 1 - self.marks.slot
        packed = _pack(mark)
        try:
            written = 0
            while written < len(packed):  # a short write is followed by the error that cut it short
                at = slot * SLOT_BYTES + written
                written += os.pwrite(self._file, packed[written:], at) or _short(
                    self._folder / self._of.watermark
                )
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise unwritable(self._folder, error) from error
        sync_file(self._file)
        self.marks = WatermarkSlots(mark, slot, other_is_whole=self.unreadable is None)
        self.unreadable = None

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)

    def _lock(self, patience_s: float | None) -> None:
        deadline = time.monotonic() + (patience_s or 0.0)
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if patience_s is None:
                    raise HomeLocked(
                        f"{self._folder} is open for writing elsewhere; close that writer, or use "
                        "readonly=True"
                    ) from None
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{self._folder / self._of.watermark}: another process is writing; try again"
                    ) from None
                time.sleep(_ASKED_AGAIN_S)
            else:
                return


def check_database(
    folder: Path,
    marks: tuple[WatermarkEntry, WatermarkEntry],
    of: DatabaseFile = DOCUMENTS,
    *,
    before: WatermarkSlots,
    after: WatermarkSlots,
) -> None:
    """Compare a database's state with the watermark, read before and after it (a writer may be active).

    `marks` are the marks of the database's last commit and the one before. Raises CorruptData for every state
    that is not in the table of the module's docstring.
    """
    present, previous = marks
    oldest, newest = before.newest, after.newest
    torn = present.sequence == oldest.sequence and not before.other_is_whole
    if present.sequence < oldest.sequence or torn:
        raise of.lost(
            f"{folder}: acknowledged {of.written} are missing: {of.file} ends at operation "
            f"{present.sequence}, but its watermark shows that {oldest.sequence + torn} was committed"
        )
    if newest.sequence < previous.sequence:
        raise of.lost(
            f"{folder}: {of.file} is at operation {present.sequence}, its watermark at "
            f"{newest.sequence}: they are not of the same time"
        )
    if any(previous.sequence < seen.sequence < present.sequence for seen in (oldest, newest)):
        raise of.lost(
            f"{folder}: {of.file} went from operation {previous.sequence} to {present.sequence} in one "
            "commit, but its watermark has one between: they are not of the same history"
        )
    expected = {mark.sequence: mark.digest for mark in (previous, present)}
    for seen in (oldest, newest):
        if expected.get(seen.sequence, seen.digest) != seen.digest:
            raise of.lost(
                f"{folder}: at operation {seen.sequence} {of.file} holds other rows than its watermark "
                "acknowledged"
            )


def check_reading(
    connection: sqlite3.Connection,
    folder: Path,
    of: DatabaseFile = DOCUMENTS,
    *,
    before: WatermarkSlots | None,
) -> MarkedState:
    """Compare the state that a read transaction sees with the watermark, and return it.

    `before` are the marks before the transaction began; None if there were none. Raises CorruptData.
    """
    state = of.read_state(connection, folder)
    if before is None:  # the first operation was committed meanwhile
        before = WatermarkSlots(state.marks[0], 0, other_is_whole=True)
    check_database(folder, state.marks, of, before=before, after=read_watermark(folder, of))
    return state


def require_unwritten(folder: Path, marks: WatermarkSlots | None, of: DatabaseFile) -> None:
    """Check that no operation on a database without a state was acknowledged; raises CorruptData."""
    if marks is not None and marks.newest.sequence > 0:
        raise of.lost(
            f"{folder}: acknowledged {of.written} are missing: {of.file} has none, but its watermark shows "
            f"{marks.newest.sequence} writes"
        )


def unwritable(place: Path, error: OSError) -> DsearchError:
    """Error for a failed write, with its consequence."""
    if error.errno in _FULL:
        return InsufficientStorage(
            f"{place}: the disk is full; this write is not acknowledged. Free space and send it again; until "
            "then writes are refused and searches go on"
        )
    return Unavailable(f"{place}: cannot be written ({error}); check disk and permissions")


def sync_file(file: int) -> None:
    """Flush a file's content to the disk (macOS needs F_FULLFSYNC for that).

    Uses fdatasync if available: it omits the modification time, which would cost a journal entry.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        fcntl.fcntl(file, full)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:
        os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _short(path: Path) -> int:
    raise OSError(f"nothing was written to {path}")


def _pack(mark: WatermarkEntry) -> bytes:
    body = _BODY.pack(_MAGIC, FORMAT, 0, mark.sequence, mark.digest)
    return (body + hashlib.sha256(body).digest()).ljust(SLOT_BYTES, b"\0")


def _parse(content: bytes, folder: Path, of: DatabaseFile) -> WatermarkSlots:
    marks: list[tuple[WatermarkEntry, int]] = []
    for slot in range(2):
        packed = content[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
        body, checksum = packed[: _BODY.size], packed[_BODY.size : _BODY.size + 32]
        if len(packed) != SLOT_BYTES or hashlib.sha256(body).digest() != checksum:
            continue
        magic, version, _, sequence, digest = _BODY.unpack(body)
        if magic != _MAGIC or version != FORMAT:
            raise UnsupportedFormat(
                f"{folder / of.watermark} has format {version}; this release reads {FORMAT} to {FORMAT}"
            )
        marks.append((WatermarkEntry(sequence, digest), slot))
    if not marks:
        raise of.lost(f"{folder / of.watermark} is damaged in both slots")
    newest, slot = max(marks, key=lambda item: item[0].sequence)
    return WatermarkSlots(newest, slot, other_is_whole=len(marks) == 2)
