"""`HomeEncoders`: the encoder that the collections of a home share, and the one that they migrate to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache

from dsearch.encoder import DEFAULT_ENCODER, Encoder, EncoderIdentity, TextEncoder
from dsearch.store import Store


class HomeEncoders:
    """Loads each encoder once, when it is needed for the first time.

    Args:
        own: gives the encoder of the home; the default encoder when None.
        following: gives the one that collections migrate to; None where they stay with `own`.
    """

    def __init__(
        self,
        own: Callable[[], TextEncoder] | None = None,
        following: Callable[[], TextEncoder] | None = None,
    ):
        self._lock = threading.RLock()
        self._load_own, self._load_following = own or _default_encoder, following
        self._own: TextEncoder | None = None
        self._following: TextEncoder | None = None
        self._migrated: dict[str, TextEncoder] = {}

    @property
    def own(self) -> TextEncoder:
        """The encoder of the home."""
        with self._lock:
            if self._own is None:
                self._own = self._load_own()
            return self._own

    @property
    def following(self) -> TextEncoder:
        """The encoder that collections migrate to; `own` where none was given."""
        with self._lock:
            if self._load_following is None:
                return self.own
            if self._following is None:
                self._following = self._load_following()
            return self._following

    def migrated(self, name: str, encoder: TextEncoder) -> None:
        """From now on collection `name` is opened with this encoder."""
        self._migrated[name] = encoder

    def forget(self, name: str) -> None:
        """Collection `name` is gone; another one of that name starts as any other."""
        self._migrated.pop(name, None)

    def of(self, store: Store) -> Callable[[], TextEncoder]:
        """Gives the encoder of a collection that is being opened, and stays with it.

        It is the one at hand that the collection was encoded by, `own` where none is: whether that fits, the
        collection says itself.
        """
        migrated = self._migrated.get(store.name)
        if migrated is not None:
            return lambda: migrated
        return cache(lambda: self._at_hand(EncoderIdentity.from_dict(store.encoder)))

    def _at_hand(self, identity: EncoderIdentity) -> TextEncoder:
        if self._load_following is None or identity.same(self.own.identity):
            return self.own
        return self.following if identity.same(self.following.identity) else self.own


def _default_encoder() -> TextEncoder:
    return Encoder.load(DEFAULT_ENCODER)
