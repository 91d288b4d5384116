"""`StoreProof`: verification of `documents.db` in the background, at opening and from time to time.

Documents and embeddings are compared with their digests when they are read. But no read notices a row that a
damaged page has lost, and a filter reads metadata without their digests. So the whole database is verified
(verify.py): after opening, after a write to a damaged collection, and then periodically. Once damage is
known, nothing is answered; writes go on, since deleting the damaged documents repairs most of it.

The first answer waits for the first verification, for `WAITS_S` at most: about 20 µs a document. A larger
collection answers meanwhile. After a clean close nothing waits (engine/indexing/clean_close.py). Later
verifications pause between blocks of rows and take at most one hundredth of the time: damage that appears
while the collection is open is known within a minute, or a hundred times the duration of a verification.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dsearch.errors import Command, CorruptData, DsearchError
from dsearch.store.sqlite.connection import connect
from dsearch.store.verify import verify

WAITS_S = 10.0
EVERY_S = 60.0
_SHARE = 100  # pause between verifications, in durations of one
_LATER_S = 5.0  # after a clean close: a command is over before
_PAUSE_S = 0.002  # between blocks of rows, so that searches get Python's lock

_log = logging.getLogger(__name__)


class StoreProof:
    """Verification of one open database; its thread starts at once.

    Args:
        folder: folder of the collection.
        proven_at: time of the last verification of the file as it is, in seconds since 1970; None if it may
            have changed since, then the first answer waits.
        every_s: shortest pause between verifications.
        waits_s: longest time that an answer waits.
    """

    def __init__(
        self,
        folder: Path,
        proven_at: float | None = None,
        *,
        every_s: float = EVERY_S,
        waits_s: float = WAITS_S,
    ):
        self._folder, self._every_s, self._waits_s = folder, every_s, waits_s
        self._proven_at = proven_at
        self._damage: CorruptData | None = None
        self._clear = proven_at is not None  # no damage is known, and no answer waits
        self._changed = threading.Condition()
        self._begun_s = time.monotonic()
        self._due_s = self._begun_s + (_LATER_S if self._clear else 0.0)
        self._ended = 0  # verifications, those without an outcome too
        self._pauses = 0
        self._stopped = self._cancelled = False
        self._running: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._run, name="documents proof", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Description of the damage; None if none is known."""
        return None if self._damage is None else str(self._damage)

    @property
    def proven_at(self) -> float | None:
        """Time of the last complete verification, here or earlier; None without one, and after damage."""
        return None if self._damage is not None else self._proven_at

    def require(self) -> None:
        """Return if answers may be given; the first ones wait for the first verification.

        Raises:
            CorruptData: the database is damaged; the message names the damage and the remedy.
        """
        if self._clear:
            return
        with self._changed:
            remaining_s = max(0.0, self._begun_s + self._waits_s - time.monotonic())
            self._changed.wait_for(lambda: self._clear or self._damage or self._stopped, remaining_s)
            damage = self._damage
        if damage is not None:
            raise CorruptData(damage.message, hint=damage.hint)

    def again(self) -> None:
        """Verify once more if damage is known, since a write may have repaired it; answers wait for that."""
        if self._damage is not None:
            with self._changed:
                self._damage = None  # `_record` cleared `_proven_at`
                self._begun_s = self._due_s = time.monotonic()
                self._interrupt()

    def now(self) -> None:
        """Verify now, and return when it has ended."""
        with self._changed:
            self._interrupt()
            self._changed.wait_for(lambda: self._stopped or self._running is None)
            ended, self._due_s = self._ended, time.monotonic()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or self._ended > ended)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Verify nothing during the `with` block: a read transaction would hinder a vacuum."""
        with self._changed:
            self._pauses += 1
            self._interrupt()
            self._changed.wait_for(lambda: self._running is None)
        try:
            yield
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Stop; safe to call twice."""
        with self._changed:
            self._stopped = True
            self._interrupt()
        self._thread.join()

    # ---- its thread

    def _run(self) -> None:
        while self._wait_until_due():
            started_s = time.monotonic()
            damage = self._outcome()
            with self._changed:
                self._running = None
                if not self._cancelled:
                    self._record(damage)
                    ended_s = time.monotonic()
                    self._due_s = ended_s + max(self._every_s, _SHARE * (ended_s - started_s))
                self._changed.notify_all()

    def _wait_until_due(self) -> bool:
        """Wait for the time of the next verification; False to end."""
        with self._changed:
            while not self._stopped:
                remaining_s = self._due_s - time.monotonic()
                if self._pauses == 0 and remaining_s <= 0:
                    self._cancelled = False
                    with suppress(sqlite3.Error):  # no outcome then
                        self._running = connect(self._folder, writer=False)
                    return True
                self._changed.wait(None if self._pauses else remaining_s)
        return False

    def _outcome(self) -> CorruptData | Unknown | None:
        """Verify: the damage, None, or that nothing can be said just now."""
        connection = self._running
        if connection is None:
            return Unknown("cannot be opened")
        try:
            connection.execute("BEGIN")
            report = verify(connection, pace=self._pace)
        except (Unknown, sqlite3.Error, DsearchError) as error:
            return error if isinstance(error, CorruptData) else Unknown(str(error))
        finally:
            connection.close()
        return damaged(self._folder, report.unsound) if report.unsound else None

    def _record(self, damage: CorruptData | Unknown | None) -> None:
        self._ended += 1
        if isinstance(damage, Unknown):
            # The next read meets the same error and reports it; no verdict is none of damage.
            _log.warning("%s: documents.db could not be verified (%s)", self._folder, damage)
            self._clear = self._damage is None
            return
        if damage is not None and self._damage is None:
            _log.error("nothing is answered from a collection any more: %s", damage)
        self._damage, self._clear = damage, damage is None
        self._proven_at = None if damage is not None else time.time()

    def _pace(self) -> None:
        """Called between blocks of rows; raises Unknown to stop."""
        if self._cancelled:
            raise Unknown("cancelled")
        if self._clear:  # no answer waits
            time.sleep(_PAUSE_S)

    def _interrupt(self) -> None:
        self._cancelled = True
        if self._running is not None:
            with suppress(sqlite3.ProgrammingError):  # closed just now
                self._running.interrupt()
        self._changed.notify_all()


class Unknown(Exception):
    """A verification without an outcome: it was stopped, or the file could not be read just now."""


def damaged(folder: Path, findings: Sequence[str]) -> CorruptData:
    """Create the error of a damaged database."""
    first = " ".join(findings[0].split())[:300]  # SQLite's have several lines
    more = "" if len(findings) == 1 else f" and {len(findings) - 1} more findings"
    return CorruptData(
        f"{folder}: documents.db is damaged ({first}{more}), so nothing is answered from it. Delete "
        "documents that are named and upsert them again, else restore a backup or index again; list the "
        "findings",
        hint=Command("verify", (folder.name,)),
    )
