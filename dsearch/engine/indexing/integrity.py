"""`IntegrityProof`: background verification of the live generation's files against their digests.

After a clean closing (clean_close.py) an index is opened before all of it was read. The files are then
verified in the background. Once damage is found, nothing is answered from the index any more.
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
    """The proof of one open generation; starts at once where something is unproven.

    Args:
        generation: what is proven.
        proven_at: when its unproven files were last held against their digests, in seconds since 1970.
        remedy: command that builds the generation again, the hint of the error of damage.
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
            self._lease = Lease(generation.folder)  # beside the generation's own, which may end before
            self._thread = threading.Thread(target=self._run, args=(generation,), name="proof", daemon=True)
            self._thread.start()

    @property
    def problem(self) -> str | None:
        """Damage in words; None as long as none was found."""
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
        """Return if no damage is known.

        Raises:
            CorruptData: a file is not what was written; the message names it and the way out.
        """
        if self._damage is not None:
            raise CorruptData(self._damage.message, hint=self._damage.hint)

    def wait(self) -> None:
        """Wait for its end."""
        if self._thread is not None:
            self._thread.join()

    def cancel(self) -> None:
        """Stop it early, with the files unproven; safe to call twice."""
        self._cancelled.set()

    def _run(self, generation: Generation) -> None:
        with contextlib.suppress(OSError, AttributeError):  # where threads have priorities of their own
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
