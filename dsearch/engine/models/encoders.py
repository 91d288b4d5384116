"""Query encoders of models: `models/v3/encoder/weights.safetensors`, put into a copy of the shared encoder.

A model saves only the weights that training changed (encoder/learning.py), under a digest in the model's
record. They apply to the collection's own encoder, whose identity the record names.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from dsearch.encoder import AutomaticEncoder, EncoderIdentity, TextEncoder
from dsearch.encoder.trained import TrainedChange, load_trained
from dsearch.errors import Command, CorruptData, EncoderMismatch, EncoderUnavailable
from dsearch.index.durable import file_digest
from dsearch.lru_cache import LruCache
from dsearch.store import Store

if TYPE_CHECKING:
    from dsearch.encoder import EncoderChange

WEIGHTS_NAME = "encoder/weights.safetensors"
KEPT = 2  # encoders in memory beside the collection's own: what answers, and what it is compared with


def write_change(folder: Path, change: EncoderChange, base: EncoderIdentity) -> dict[str, Any]:
    """Write the changed weights into a model's unfinished folder; return the entry for its record.

    Args:
        folder: of the model.
        change: what training changed.
        base: the encoder that it was learned on.
    """
    from safetensors.torch import save

    from dsearch.encoder import tuned_identity

    path = folder / WEIGHTS_NAME
    path.parent.mkdir()
    path.write_bytes(save({name: tensor.contiguous() for name, tensor in change.tensors.items()}))
    how = change.training
    return {
        "method": how.method,
        "rank": how.rank,
        "alpha": how.alpha,
        "identity": tuned_identity(base, file_digest(path)[1]).to_dict(),
    }


class ModelEncoders:
    """The encoders of a collection's models, loaded when they are first asked for; for many threads.

    Args:
        store: the collection's.
        base: gives the collection's own encoder.
    """

    def __init__(self, store: Store, base: Callable[[], TextEncoder]):
        self._store, self._base = store, base
        self._loading = threading.Lock()
        self._loaded = LruCache[str, TextEncoder](KEPT)
        self._described: dict[str, dict[str, Any] | None] = {}  # records never change: read once

    def of(self, version: str) -> TextEncoder:
        """Return the encoder of this version's query states: for most, the collection's own.

        Raises:
            ModelNotFound: no such version.
            CorruptData: the file is not what was registered.
            EncoderMismatch, EncoderUnavailable: as for the collection's own.
        """
        if version not in self._described:
            self._described[version] = self._store.model(version).record.get("query_encoder")
        described = self._described[version]
        if described is None:
            return self._base()
        encoder = self._loaded.get(version)
        if encoder is None:
            with self._loading:  # for seconds, in which those in memory answer
                encoder = self._loaded.get(version)
                if encoder is None:
                    encoder = self._load(version, described)
                    self._loaded.put(version, encoder)
        if isinstance(encoder, AutomaticEncoder) and version == self._store.live_model():
            encoder.start()  # an export, of what answers alone
        return encoder

    def prepare(self, version: str) -> None:
        """Load a version's encoder, if it has one of its own that can be loaded here.

        Raises:
            ModelNotFound, CorruptData: as `of`.
        """
        if "query_encoder" in self._store.model(version).record:
            with suppress(EncoderMismatch, EncoderUnavailable):  # a search says so
                self.of(version)

    def identity_of(self, version: str) -> EncoderIdentity:
        """Return the identity of a version's encoder; none is loaded.

        Raises:
            ModelNotFound.
        """
        described = self._store.model(version).record.get("query_encoder")
        return EncoderIdentity.from_dict(self._store.encoder if described is None else described["identity"])

    def check(self, version: str) -> None:
        """Check that the file is the registered one; no encoder is loaded.

        Raises:
            ModelNotFound, CorruptData.
        """
        record = self._store.model(version).record
        if "query_encoder" in record:
            verified_file(self._store, version, WEIGHTS_NAME, record["files"][WEIGHTS_NAME]["sha256"])

    def forget(self, version: str) -> None:
        """Drop the cached encoder of a deleted version."""
        self._loaded.drop(version)
        self._described.pop(version, None)

    def change_of(self, version: str) -> EncoderChange | None:
        """Return the change of the encoder that a version was stored with; None for the collection's own.

        Raises:
            ModelNotFound, CorruptData.
        """
        described = self._store.model(version).record.get("query_encoder")
        return None if described is None else self._change(version, described)

    def _load(self, version: str, described: dict[str, Any]) -> TextEncoder:
        base, identity = self._base(), EncoderIdentity.from_dict(described["identity"])
        self.check(version)  # an export of it is not answered by where the file is not the registered one

        def by_torch() -> TextEncoder:
            import torch

            from dsearch.encoder import tuned

            # A search may ask for it, and what is made under inference mode could never be trained on.
            with torch.inference_mode(False):
                return tuned(base, self._change(version, described), identity)

        training = {name: described[name] for name in ("method", "rank", "alpha")}
        file = self._store.path / "models" / version / WEIGHTS_NAME
        return load_trained(
            base, TrainedChange(base.identity.name, file.absolute(), training, identity), by_torch
        )

    def _change(self, version: str, described: dict[str, Any]) -> EncoderChange:
        from safetensors.torch import load_file  # pyright: ignore

        from dsearch.encoder import EncoderChange, EncoderTraining

        record = self._store.model(version).record
        sha256 = record["files"][WEIGHTS_NAME]["sha256"]
        place = verified_file(self._store, version, WEIGHTS_NAME, sha256)
        training = EncoderTraining(described["method"], described["rank"], described["alpha"])
        try:
            return EncoderChange(training, load_file(place))  # mapped: all weights may be large
        except (OSError, SafetensorError) as error:
            raise CorruptData(f"model {version}: {WEIGHTS_NAME} cannot be read ({error})") from error


def verified(store: Store, version: str, name: str, sha256: str) -> bytes:
    """The bytes of a model's file, if they are those that were registered.

    Raises:
        CorruptData: they are not, or cannot be read.
    """
    path = _place_of(store, version, name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(version, path, error) from error
    _require_registered(store, version, path, hashlib.sha256(content).hexdigest(), sha256)
    return content


def verified_file(store: Store, version: str, name: str, sha256: str) -> Path:
    """The place of a model's file, if its bytes are those that were registered; it is not held in memory.

    Raises:
        CorruptData: as `verified`.
    """
    path = _place_of(store, version, name)
    try:
        digest = file_digest(path)[1]
    except OSError as error:
        raise _unreadable(version, path, error) from error
    _require_registered(store, version, path, digest, sha256)
    return path


def _place_of(store: Store, version: str, name: str) -> Path:
    return store.path / "models" / version / name


def _unreadable(version: str, path: Path, error: OSError) -> CorruptData:
    return CorruptData(f"model {version}: {path} cannot be read ({error}); promote another version")


def _require_registered(store: Store, version: str, path: Path, digest: str, registered: str) -> None:
    if digest != registered:
        raise CorruptData(
            f"model {version}: {path} has SHA-256 {digest}, registered was {registered}; train again, or "
            "promote another version",
            hint=Command("promote", ("VERSION", "-c", store.name)),
        )
