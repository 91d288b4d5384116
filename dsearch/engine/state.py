"""`LiveState`: which documents a collection shows, and how that follows what is written.

The generation that is live, the rows written after it and the rows deleted since make one `Snapshot`. Readers
take the present one and keep it; a write or a build puts another in its place by one assignment.
"""

from __future__ import annotations

import numpy as np
import torch

from dsearch.engine.indexing import OnProgress, build_generation, generation_folder
from dsearch.engine.models import load_head
from dsearch.engine.snapshot import Fresh, Snapshot
from dsearch.errors import InvalidRequest
from dsearch.index import Generation, KeywordIndex
from dsearch.store import Store

RECENT = 8  # states that gradient calls and cursors can still name after a write


class LiveState:
    """The present snapshot of a store. Only one thread at a time may call what changes it.

    Args:
        store: what is shown.
    """

    def __init__(self, store: Store):
        self._store = store
        self._snapshot: Snapshot | None = None
        self._recent: tuple[Snapshot, ...] = ()

    @property
    def snapshot(self) -> Snapshot:
        """The present state, loaded when it is first asked for.

        Raises:
            CorruptData: the live generation is damaged; the message names the way out.
        """
        present = self._snapshot
        if present is None:
            present = self._show(self._load())
        return present

    def at(self, generation: int, sequence: int) -> Snapshot | None:
        """The state of that generation and operation, if it is the present one or one of the last few."""
        for state in (self.snapshot, *self._recent):
            if (state.generation.number, state.sequence) == (generation, sequence):
                return state
        return None

    @property
    def stale(self) -> bool:
        """Whether a build would hold other documents than the live generation does."""
        generation = self._store.live_generation()
        if generation is None:
            return True
        changes = self._store.changes_since(generation.snapshot)
        return bool(len(changes.added) or len(changes.removed))

    def catch_up(self) -> None:
        """Let searches see what the store has: a new snapshot, swapped in by one assignment."""
        if self._snapshot is not None:
            present = self._snapshot
            changes = self._store.changes_since(present.generation.manifest.sequence)
            fresh = self._fresh(changes.added, present.generation.keyword)
            self._show(Snapshot.of(present.generation, fresh, changes.removed, changes.sequence))

    def build(self, on_progress: OnProgress | None = None) -> int:
        """Build a generation of the present documents, its keys projected by the live head; its number."""
        head = load_head(self._store, self._store.live_model())
        with torch.inference_mode():
            projection = head.key_projection().numpy()
        number = build_generation(self._store, key_projection=_foldable(projection), on_progress=on_progress)
        self._show(self._load())
        return number

    def _show(self, state: Snapshot) -> Snapshot:
        """Let `state` be the present one. Of those before it the last few stay, of the same generation.

        An index that was replaced is not kept in memory for their sake.
        """
        if self._snapshot is not None:
            before = (self._snapshot, *self._recent)
            self._recent = tuple(one for one in before if one.generation is state.generation)[:RECENT]
        self._snapshot = state
        return state

    def _load(self) -> Snapshot:
        live = self._store.live_generation()
        if live is None:
            name = self._store.name
            raise InvalidRequest(f"collection {name!r} was never built; run: dsearch refresh -c {name}")
        folder = generation_folder(self._store, live.number)
        generation = Generation.open(folder, digest=live.manifest_digest)
        changes = self._store.changes_since(live.snapshot)
        fresh = self._fresh(changes.added, generation.keyword)
        return Snapshot.of(generation, fresh, changes.removed, changes.sequence)

    def _fresh(self, rows: np.ndarray, keyword: KeywordIndex | None) -> Fresh:
        embeddings, texts = self._store.embeddings(rows), self._store.contents(rows)
        return Fresh.of(rows, embeddings, texts, keyword or KeywordIndex.build([]))


def _foldable(projection: np.ndarray) -> np.ndarray | None:
    """W_K as the generation's W_g, or None (the identity) where it could not be undone precisely."""
    well_conditioned = np.linalg.cond(projection.astype(np.float64)) < 1e3
    return projection if well_conditioned else None
