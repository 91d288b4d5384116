"""`LiveState`: the documents that a collection shows, kept up to date with writes and builds.

The live generation, the rows written after it and the rows deleted since make one `Snapshot`. Readers take
the present one and keep it; a write or a build replaces it by one assignment.

After a clean closing (indexing/clean_close.py) an index opens before the files of its live generation are
verified: `IntegrityProof` compares them with their digests in the background. Once damage is found, the index
answers no more requests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Float32

from dsearch.engine.indexing.chunking import passage_table
from dsearch.engine.indexing.clean_close import CleanClose
from dsearch.engine.indexing.ingest import BuiltGeneration, generation_folder, publish
from dsearch.engine.indexing.leases import Lease, how_to_build, open_leased, open_live, release, tidy
from dsearch.engine.indexing.token_keeper import TokenKeeper
from dsearch.engine.indexing.tuning import with_tuned_parameters
from dsearch.engine.models.files import served_version
from dsearch.engine.options import keyword_texts
from dsearch.engine.snapshot.fresh import Fresh, GrowingMatrix
from dsearch.engine.snapshot.snapshot import Snapshot
from dsearch.engine.state.caches import KeptRerankings
from dsearch.engine.state.fields import KeptFields
from dsearch.errors import Command, Conflict, CorruptData, DsearchError, Gone, InvalidRequest
from dsearch.index import Generation, KeywordIndex
from dsearch.store import Store
from dsearch.types import Stamp

_DEAD = 256  # replaced fresh rows that may remain before the fresh rows are rebuilt
RECENT = 8  # states that gradient calls and cursors can still name after a write


class LiveState:
    """The present snapshot of a store. One thread at a time may call what changes it; any may read it first.

    Args:
        store: store of the documents.
        closed: record of the last clean close.
        tokens: tokens of the documents; of `store` when None.

    Attributes:
        pending: number of documents without an embedding when the present snapshot was taken.
    """

    def __init__(self, store: Store, closed: CleanClose | None = None, tokens: TokenKeeper | None = None):
        self._store = store
        self._tokens = TokenKeeper(store) if tokens is None else tokens
        self._fields = KeptFields(store)  # of a model's monotone features
        self._rerankings = KeptRerankings(store)
        self._closed = closed
        self._proof: IntegrityProof | None = None
        self._snapshot: Snapshot | None = None
        self._recent: tuple[Snapshot, ...] = ()
        self.pending = 0
        self._embeddings = GrowingMatrix(np.zeros((0, store.dimension), np.float32))
        self._changing = threading.RLock()

    @property
    def snapshot(self) -> Snapshot:
        """Present state, loaded on first use.

        Raises:
            CorruptData: documents or live generation are damaged; the message names the way out.
        """
        present = self.unverified
        self.require_sound()
        return present

    @property
    def unverified(self) -> Snapshot:
        """Present state, even if it is known to be damaged; not for answering."""
        present = self._snapshot
        if present is None:
            with self._changing:
                present = self._snapshot
                if present is None:
                    present = self._show(self._load())
        return present

    @property
    def proof(self) -> IntegrityProof | None:
        """Verification of the generation's files; None before they are opened."""
        return self._proof

    def require_sound(self) -> None:
        """Raise CorruptData if documents or live generation are known to be damaged; names the remedy."""
        self._store.require_sound()
        self.require_generation()

    def require_generation(self) -> None:
        """Raise CorruptData if the live generation is known to be damaged."""
        if self._proof is not None:
            self._proof.require()

    def require_readable(self) -> None:
        """Raise CorruptData or UnsupportedFormat if the live generation cannot be opened or is damaged.

        A build calls this, to which a state is of no use: keyword scores of all later documents would be
        computed for it.
        """
        with self._changing:
            if self._snapshot is None and (generation := open_live(self._store, self._closed)) is not None:
                release(generation)
        self.require_generation()

    def at(self, generation: int, sequence: int) -> Snapshot | None:
        """Return the state of that generation and operation if it is the present or a recent one."""
        for state in (self.snapshot, *self._recent):
            if (state.generation.number, state.sequence) == (generation, sequence):
                return state
        return None

    @property
    def stale(self) -> bool:
        """True if a build would produce other documents or other passages than the live generation has."""
        generation = self._store.live_generation()
        if generation is None:
            return True
        changes = self._store.changes_since(generation.snapshot)
        recut = self._snapshot is not None and self._snapshot.generation.recut
        return bool(len(changes.added) or len(changes.removed) or recut)

    @property
    def delta(self) -> int:
        """Number of documents written or deleted since the build, which make searches slower."""
        present = self.unverified
        gone = 0 if present.excluded is None else int(present.excluded[: present.built].sum())
        return len(present.fresh) + gone

    def close(self) -> CleanClose | None:
        """Release all states and their generations; return the record for the next opening."""
        closed = None
        if self._proof is not None:
            self._proof.cancel()
            self._proof.wait()
        if not self._store.failed:
            with suppress(DsearchError):
                closed = self._clean_close()
        for state in (self._snapshot, *self._recent):
            if state is not None:
                release(state.generation)
        self._snapshot, self._recent, self._proof = None, (), None
        return closed

    def forget_recent(self) -> None:
        """Release all states but the present one."""
        self._recent = ()

    def catch_up(self) -> None:
        """Show the store's latest documents: a new snapshot, swapped in by one assignment."""
        with self._changing:  # a first state that is being read may lack the write that this is called for
            present = self._snapshot
            if present is None:
                return
            live = self._store.live_generation()
            if live is not None and live.number != present.generation.number:
                self._show(self._load())  # another process has published it
            else:
                self._show(self._after(present))

    def key_projection(self) -> Float32[np.ndarray, "key_dim encoder_dim"] | None:
        """Projection of the next generation's keys: W_K of the live head, None for W_K = I."""
        import torch

        from dsearch.engine.models.files import load_head

        head = load_head(self._store, served_version(self._store))
        with torch.inference_mode():
            return _foldable(head.key_projection().numpy())

    def opened(self, built: BuiltGeneration) -> Generation:
        """Check and open a build; safe beside all other work."""
        return open_leased(generation_folder(self._store, built.number), built.manifest_digest)

    def publish(self, built: BuiltGeneration, generation: Generation) -> None:
        """Make a built generation live for every process, and release old ones.

        Raises:
            Conflict: later deletions were purged during the build; its files are removed.
        """
        try:
            publish(self._store, built)
        except Conflict:
            shutil.rmtree(generation.folder, ignore_errors=True)
            raise
        with self._changing:
            state = self._show(self._beside(generation))
            self._tokens.published(generation.rows, state.fresh.rows)
        tidy(self._store)

    def use_parameters(self, number: int, parameters: Mapping[str, int]) -> None:
        """Search the keys of generation `number` with other parameters, if it is the present one."""
        with self._changing:
            present = self.unverified
            if present.generation.number == number:
                self._show(replace(present, generation=present.generation.searched_with(parameters)))

    def _show(self, state: Snapshot) -> Snapshot:
        """Make `state` the present one. The last few earlier states of the same generation stay cached.

        States of a replaced generation are released, so that its index does not stay in memory.
        """
        if self._snapshot is not None:
            before = (self._snapshot, *self._recent)
            self._recent = tuple(old for old in before if old.generation is state.generation)[:RECENT]
        self._snapshot = state
        self.pending = self._store.count().pending
        if self._proof is None or self._proof.number != state.generation.number:
            if self._proof is not None:
                self._proof.cancel()  # its generation was replaced
            proven_at = None if self._closed is None else self._closed.proven_at
            self._proof = IntegrityProof(state.generation, proven_at, how_to_build(self._store.name))
        return state

    def _clean_close(self) -> CleanClose | None:
        if self._snapshot is None or self._proof is None:  # unused: the record of the opening still holds
            live, closed = self._store.live_generation(), self._closed
            same = closed is not None and live is not None and closed.files_of(live) is not None
            return closed.still(self._store) if closed is not None and same else None
        proven_at = self._proof.proven_at
        return None if proven_at is None else CleanClose.of(self._store, self._snapshot.generation, proven_at)

    def _load(self) -> Snapshot:
        generation = open_live(self._store, self._closed)
        if generation is None:
            name = self._store.name
            raise InvalidRequest(f"collection {name!r} was never built; build it", hint=how_to_build(name))
        return self._beside(with_tuned_parameters(self._store, generation))

    def _beside(self, generation: Generation) -> Snapshot:
        """Build the state of `generation` with later writes and deletions."""
        changes = self._store.changes_since(generation.manifest.sequence)
        fresh = self._fresh(changes.added, generation.keyword)
        state = Snapshot.of(generation, fresh, changes.removed, changes.sequence)
        return replace(state, fields=self._fields.of, reranked=self._rerankings.of)

    def _after(self, present: Snapshot) -> Snapshot:
        """Build the state after `present` from later writes and deletions.

        The cost depends on these alone, not on the number of writes since the last build.
        """
        changes, before = self._store.changes_since(present.sequence), present.fresh
        added, dead = changes.added, 0
        if present.excluded is not None:
            dead = int(present.excluded[present.built :].sum())
        in_order = len(added) == 0 or len(before) == 0 or added[0] > before.rows[-1]
        if not in_order or dead > max(_DEAD, len(before) // 2) or len(self._embeddings) != len(before):
            return self._beside(present.generation)
        if len(added) == 0:
            return present.later(before, changes.removed, changes.sequence)
        texts, embeddings = keyword_texts(self._store, added), self._store.embeddings(added)
        passages = passage_table(self._store.passages(added), added, self._store.dimension)
        tokens = self._tokens.extended(before.tokens, before.rows, added)
        fresh = before.extended(added, self._embeddings.appended(embeddings), texts, passages, tokens)
        return present.later(fresh, changes.removed, changes.sequence)

    def _fresh(self, rows: np.ndarray, keyword: KeywordIndex | None) -> Fresh:
        embeddings, texts = self._store.embeddings(rows), keyword_texts(self._store, rows)
        self._embeddings = GrowingMatrix(embeddings)
        passages = passage_table(self._store.passages(rows), rows, self._store.dimension)
        tokens = self._tokens.fresh_table(rows)
        return Fresh.of(rows, embeddings, texts, keyword or KeywordIndex.build([]), passages, tokens)


def no_such_state(name: str, stamp: Stamp, present: Snapshot) -> Gone | Conflict:
    """Return the error for a stamp whose state was replaced, or never was."""
    named = f"generation {stamp.generation}, sequence {stamp.sequence}"
    live = f"generation {present.generation.number}, sequence {present.sequence}"
    if stamp.generation > present.generation.number or stamp.sequence > present.sequence:
        return Conflict(
            f"{named}: collection {name!r} has only come to {live}; was this stamp of another "
            "collection, or of before a restore? Ask again and use the stamp of the answer"
        )
    return Gone(f"{named} is gone; collection {name!r} is at {live}: ask again, without the stamp")


def _foldable(projection: np.ndarray) -> np.ndarray | None:
    """Return W_K as the generation's W_g, or None (the identity) if its inverse is not precise enough."""
    well_conditioned = np.linalg.cond(projection.astype(np.float64)) < 1e3
    return projection if well_conditioned else None


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
