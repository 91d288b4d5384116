"""`IntegrityProof`: background verification of the live generation's files against their digests.

After a clean closing (clean_close.py) an index opens before its files are verified; that happens in the
background. Once damage is found, the index answers no more requests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Literal

from dsearch.engine.indexing.leases import Lease
from dsearch.errors import CorruptData
from dsearch.hints import Command
from dsearch.index import Generation

ProofState = Literal["proven", "running", "damaged"]

_NICE = 10  # searches come first

_log = logging.getLogger(__name__)


class IntegrityProof:
    """Verification of an open generation; starts at once if files are unverified.

    Args:
        generation: generation to verify.
        proven_at: time of the last verification of its unverified files, in seconds since 1970.
        remedy: command that rebuilds the generation, the hint of the damage error.
    """

    def __init__(self, generation: Generation, proven_at: float | None = None, remedy: Command | None = None):
        self.number = generation.number
        self._remedy = remedy
        self._damage: CorruptData | None = None
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._proven_at: float | None = time.time()
        self._inherited = proven_at
        if generation.unproven:
            self._proven_at = None
            self._lease = Lease(generation.folder)  # the generation's own lease may end earlier
            self._thread = threading.Thread(target=self._run, args=(generation,), name="proof", daemon=True)
            self._thread.start()

    @property
    def problem(self) -> str | None:
        """Description of the damage; None without."""
        return None if self._damage is None else str(self._damage)

    @property
    def state(self) -> ProofState:
        """State of the verification."""
        if self.problem is not None:
            return "damaged"
        return "running" if self._proven_at is None else "proven"

    @property
    def proven_at(self) -> float | None:
        """Time of the last complete verification, here or earlier; None if a file is damaged."""
        if self.problem is not None:
            return None
        return self._inherited if self._proven_at is None else self._proven_at

    def require(self) -> None:
        """Raise CorruptData if a file is known to be damaged; the message names it and the remedy."""
        if self._damage is not None:
            raise CorruptData(self._damage.message, hint=self._damage.hint)

    def wait(self) -> None:
        """Wait for the verification to end."""
        if self._thread is not None:
            self._thread.join()

    def cancel(self) -> None:
        """Stop early, with files left unverified; safe to call twice."""
        self._cancelled.set()

    def _run(self, generation: Generation) -> None:
        with contextlib.suppress(OSError, AttributeError):  # if threads have priorities
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        folder = generation.folder
        try:
            generation.prove(self._cancelled.is_set)
            if not self._cancelled.is_set():
                self._proven_at = time.time()
        except CorruptData as error:
            self._damage = CorruptData(str(error), hint=self._remedy)
        except OSError as error:
            self._damage = CorruptData(
                f"{folder}: cannot be read ({error}); check the disk, then build the generation again",
                hint=self._remedy,
            )
        finally:
            self._lease.release()
        if self.problem is not None:
            _log.error("nothing is answered from a generation any more: %s", self.problem)
