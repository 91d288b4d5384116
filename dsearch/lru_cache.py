"""`LruCache`: the entries that were used last, as many as fit; for many threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Values by key; the least recently used make room.

    Args:
        max_entries: largest number of entries; None for no bound.
        max_bytes: largest sum of sizes; None for no bound.
        size_of: approximate bytes of an entry, for `max_bytes`; called without the lock.

    Attributes:
        bytes: sum of the sizes, with `max_bytes`.
    """

    def __init__(
        self,
        max_entries: int | None = None,
        *,
        max_bytes: int | None = None,
        size_of: Callable[[Key, Value], int] | None = None,
    ):
        self._max_entries, self._max_bytes, self._size_of = max_entries, max_bytes, size_of
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._sizes: dict[Key, int] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return a value; None if it is not here."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def get_all(self, keys: Iterable[Key]) -> dict[Key, Value]:
        """Return the values that are here."""
        with self._lock:
            entries = self._entries
            here = {key: entries[key] for key in keys if key in entries}
            for key in here:
                entries.move_to_end(key)
        return here

    def put(self, key: Key, value: Value) -> None:
        """Keep a value."""
        self.put_all({key: value})

    def put_all(self, values: Mapping[Key, Value]) -> None:
        """Keep values; a batch larger than `max_entries` stays whole until the next one."""
        size_of = self._size_of
        sizes = {} if size_of is None else {key: size_of(key, value) for key, value in values.items()}
        with self._lock:
            for key, value in values.items():
                self._drop(key)
                size = sizes.get(key, 0)
                if self._max_bytes is None or size <= self._max_bytes:
                    self._entries[key] = value
                    if sizes:
                        self._sizes[key] = size
                        self.bytes += size
            most = None if self._max_entries is None else max(self._max_entries, len(values))
            while (most is not None and len(self._entries) > most) or (
                self._max_bytes is not None and self.bytes > self._max_bytes
            ):
                self._drop(next(iter(self._entries)))

    def drop(self, key: Key) -> None:
        """Forget a value, if it is here."""
        with self._lock:
            self._drop(key)

    def drop_where(self, condition: Callable[[Key], bool]) -> None:
        """Forget the values whose keys meet a condition."""
        with self._lock:
            for key in [key for key in self._entries if condition(key)]:
                self._drop(key)

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._entries.clear()
            self._sizes.clear()
            self.bytes = 0

    def _drop(self, key: Key) -> None:
        if key in self._entries:
            del self._entries[key]
            self.bytes -= self._sizes.pop(key, 0)
