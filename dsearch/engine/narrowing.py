"""States in which only what a filter lets through can be found; the last few are remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np

from dsearch.engine.filtering import matching
from dsearch.engine.snapshot import Snapshot
from dsearch.store import Store, parse_filter
from dsearch.store.filters import Filter

_RECENT = 8  # of one byte a document each


class NarrowedStates:
    """Narrows snapshots of one store to filters; for many threads.

    A row is one version of a document, so a filter holds for a snapshot whatever was written since: equal
    stamps give equal answers.
    """

    def __init__(self, store: Store):
        self._store = store
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, int, str], Snapshot] = OrderedDict()

    def forget(self) -> None:
        """Let go of all states, so that the generations they are of can go."""
        with self._lock:
            self._known.clear()

    def narrowed(self, state: Snapshot, filter: object | None) -> Snapshot:
        """`state` with nothing to be found but what `filter` lets through: JSON, or a tree that was parsed.

        Raises:
            InvalidRequest: not a filter.
        """
        if filter is None:
            return state
        tree = parse_filter(filter)
        generation = state.generation.number
        key = (generation, state.sequence, repr(tree))  # by repr: 1 and True are equal in Python
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        found = self._narrowed(state, tree)
        with self._lock:
            for other in [other for other in self._known if other[0] != generation]:
                del self._known[other]  # an index that was replaced is not kept in memory for its sake
            self._known[key] = found
            while len(self._known) > _RECENT:
                self._known.popitem(last=False)
        return found

    def _narrowed(self, state: Snapshot, tree: Filter) -> Snapshot:
        """By the fields that the generation keeps, and of fresh rows by the store; of all, without fields."""
        fields = state.generation.fields
        built = None if fields is None else matching(tree, fields)
        if built is None:
            return state.narrowed(self._store.rows_matching_ever(tree))
        fresh = state.fresh.rows
        if len(fresh):
            rows = self._store.rows_matching_ever(tree, after=int(fresh[0]) - 1)
            built = np.concatenate([built, np.isin(fresh, rows)])
        return state.among(built)
