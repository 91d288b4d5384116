"""`KeptLayers`: the layers that lately answered, so that one is not made for every search.

A layer over a state never changes while it only searches; making it costs as much as a tenth of a search.
Those of one state are kept: an index that was replaced is not held in memory for their sake.
"""

from __future__ import annotations

import threading

from dsearch.attention.head import Head
from dsearch.engine.layer import SearchLayer
from dsearch.engine.options import LayerOptions
from dsearch.engine.snapshot import Snapshot

_MOST = 16  # kinds of searches, of some kilobytes each


class KeptLayers:
    """Layers to search with, not to train; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: Snapshot | None = None
        self._layers: dict[tuple[object, ...], SearchLayer] = {}

    def __len__(self) -> int:
        return len(self._layers)

    def forget(self) -> None:
        """Let go of all, and of the state that they are over."""
        with self._lock:
            self._state, self._layers = None, {}

    def over(self, state: Snapshot, head: Head, options: LayerOptions) -> SearchLayer:
        """The layer of these options.

        Raises:
            InvalidRequest: options out of range.
        """
        if not isinstance(options.get("score", "dot"), str):  # somebody's own, which may learn
            return SearchLayer(state, head, **options)
        key = (id(head), *options.items())  # a layer that is kept keeps its head: ids stay theirs
        with self._lock:
            if state is not self._state:
                self._state, self._layers = state, {}
            layers = self._layers
        layer = layers.get(key)
        if layer is None:
            layer = SearchLayer(state, head, **options)
            if len(layers) >= _MOST:
                layers.clear()
            layers[key] = layer
        return layer
