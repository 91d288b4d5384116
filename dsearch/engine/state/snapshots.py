"""`Snapshots`: the present snapshot of a collection and the last few, kept up to date with writes and builds.

The live generation, the rows written after it and the rows deleted since make one `Snapshot`. Readers take
the present one and keep it; a write or a build replaces it by one assignment.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Float32

from dsearch.engine.indexing.chunking import passage_table
from dsearch.engine.indexing.ingest import BuiltGeneration, generation_folder, publish
from dsearch.engine.indexing.leases import how_to_build, open_leased, open_live, release, tidy
from dsearch.engine.indexing.releases import tidy_releases
from dsearch.engine.indexing.tokens import TokenKeeper
from dsearch.engine.indexing.tuning import with_tuned_parameters
from dsearch.engine.models.files import served_version
from dsearch.engine.options import keyword_texts
from dsearch.engine.snapshot import Fresh, GrowingMatrix, Snapshot, keyword_of
from dsearch.engine.state.caches import RerankerScores
from dsearch.errors import Conflict, Gone, InvalidRequest
from dsearch.index import Generation, KeywordIndex
from dsearch.store import Store
from dsearch.types import Stamp

_DEAD = 256  # replaced fresh rows that may remain before the fresh rows are rebuilt
RECENT = 8  # states that gradient calls and cursors can still name after a write


class Snapshots:
    """The present snapshot of a store. One thread at a time may call what changes it; any may read it first.

    Args:
        store: store of the documents.
        tokens: tokens of the documents.

    Attributes:
        pending: number of documents without an embedding when the present snapshot was taken.
    """

    def __init__(self, store: Store, tokens: TokenKeeper):
        self._store, self._tokens = store, tokens
        self._reranker_scores = RerankerScores(store)
        self._snapshot: Snapshot | None = None
        self._recent: tuple[Snapshot, ...] = ()
        self.pending = 0
        self._embeddings = GrowingMatrix(np.zeros((0, store.dimension), np.float32))
        self._changing = threading.RLock()

    @property
    def present(self) -> Snapshot:
        """The present snapshot, loaded on first use.

        Raises:
            CorruptData: documents or live generation are damaged; the message names the way out.
        """
        present = self._snapshot
        if present is None:
            with self._changing:
                present = self._snapshot
                if present is None:
                    present = self._show(self._load())
        return present

    def require_readable(self) -> None:
        """Raise CorruptData or UnsupportedFormat if the live generation cannot be opened.

        A build calls this, to which a state is of no use: keyword scores of all later documents would be
        computed for it.
        """
        with self._changing:
            if self._snapshot is None and (generation := open_live(self._store)) is not None:
                release(generation)

    def at(self, generation: int, sequence: int) -> Snapshot | None:
        """Return the state of that generation and operation if it is the present or a recent one."""
        for state in (self.present, *self._recent):
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
        present = self.present
        gone = 0 if present.excluded is None else int(present.excluded[: present.built].sum())
        return len(present.fresh) + gone

    def close(self) -> None:
        """Release all states and their generations."""
        for state in (self._snapshot, *self._recent):
            if state is not None:
                release(state.generation)
        self._snapshot, self._recent = None, ()

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
        tidy_releases(self._store)

    def use_parameters(self, number: int, parameters: Mapping[str, int]) -> None:
        """Search the keys of generation `number` with other parameters, if it is the present one."""
        with self._changing:
            present = self.present
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
        return state

    def _load(self) -> Snapshot:
        generation = open_live(self._store)
        if generation is None:
            name = self._store.name
            raise InvalidRequest(f"collection {name!r} was never built; build it", hint=how_to_build(name))
        return self._beside(with_tuned_parameters(self._store, generation))

    def _beside(self, generation: Generation) -> Snapshot:
        """Build the state of `generation` with later writes and deletions."""
        changes = self._store.changes_since(generation.manifest.sequence)
        fresh = self._fresh(changes.added, keyword_of(generation))
        state = Snapshot.of(generation, fresh, changes.removed, changes.sequence)
        return replace(state, reranked=self._reranker_scores.of)

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

    def _fresh(self, rows: np.ndarray, keyword: KeywordIndex) -> Fresh:
        embeddings, texts = self._store.embeddings(rows), keyword_texts(self._store, rows)
        self._embeddings = GrowingMatrix(embeddings)
        passages = passage_table(self._store.passages(rows), rows, self._store.dimension)
        tokens = self._tokens.fresh_table(rows)
        return Fresh.of(rows, embeddings, texts, keyword, passages, tokens)


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
