"""`QueryCache`: least-recently-used cache of query embeddings.

Entries are outputs of the encoder, so results are the same with and without the cache, up to the last bits in
which a batch of texts differs from the same texts one by one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from jaxtyping import Float32

from dsearch.errors import InvalidRequest

_OVERHEAD_BYTES = 256  # of an entry, beside its text and its numbers

Encode = Callable[[Sequence[str]], Float32[np.ndarray, "texts encoder_dim"]]


class QueryCache:
    """LRU cache, safe in many threads; several may encode the same new text at once, with equal results.

    Args:
        max_bytes: largest size of texts and embeddings, bookkeeping included; 0 disables the cache.
        on_encode: callback with the seconds of each call of the encoder.
    """

    def __init__(self, max_bytes: int, on_encode: Callable[[float], None] | None = None):
        if max_bytes < 0:
            raise InvalidRequest(f"max_bytes={max_bytes}; use a number of at least 0")
        self.max_bytes = max_bytes
        self.on_encode = on_encode
        self.hits = 0
        self.misses = 0
        self.bytes = 0
        self._lock = threading.Lock()
        self._states: OrderedDict[tuple[Hashable, str], Float32[np.ndarray, " encoder_dim"]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def states(
        self, encoder: Hashable, texts: Sequence[str], encode: Encode
    ) -> Float32[np.ndarray, "texts encoder_dim"]:
        """The embeddings of texts; those that are not kept are encoded, each text once, in one call.

        Args:
            encoder: key of the encoder: its identity and its version.
            texts: the queries.
            encode: the encoder.
        """
        keys = [(encoder, text) for text in texts]
        with self._lock:
            states = {key: self._states[key] for key in keys if key in self._states}
            for key in states:
                self._states.move_to_end(key)
            missing = [key for key in keys if key not in states]
            self.hits += len(keys) - len(missing)
            self.misses += len(missing)
        new = list(dict.fromkeys(missing))
        if new or not keys:
            started = time.perf_counter()
            encoded = encode([text for _, text in new])
            if self.on_encode is not None:
                self.on_encode(time.perf_counter() - started)
            if len(new) == len(keys):
                self._keep(new, encoded)
                return encoded
            self._keep(new, encoded)
            states.update(zip(new, encoded, strict=True))
        return np.array([states[key] for key in keys])

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._states.clear()
            self.bytes = 0

    def _keep(
        self, keys: Sequence[tuple[Hashable, str]], encoded: Float32[np.ndarray, "texts encoder_dim"]
    ) -> None:
        if not self.max_bytes:
            return
        with self._lock:
            for key, row in zip(keys, encoded, strict=True):
                if key not in self._states:
                    self._states[key] = row.copy()  # of its own: a view would keep the whole batch
                    self.bytes += _size(key, row)
            while self.bytes > self.max_bytes:
                self.bytes -= _size(*self._states.popitem(last=False))


def _size(key: tuple[Hashable, str], row: Float32[np.ndarray, " encoder_dim"]) -> int:
    return len(key[1].encode()) + row.nbytes + _OVERHEAD_BYTES
