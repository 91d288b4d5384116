"""Trained changes of an encoder, served by the back end of the encoder itself.

A version with a query encoder of its own is exported as the encoder that it started from: in the background,
once on a machine, with the same verification; torch serves it until then. Its key in the cache is a digest of
both weights. A training leaves one export each, of the size of the model, so that only the last `KEPT` stay.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsearch.encoder.automatic import AutomaticEncoder, from_cache
from dsearch.encoder.backends import FLOAT, OPENVINO, TORCH
from dsearch.encoder.compiled import CompiledEncoder, Exporting
from dsearch.encoder.export_cache import export_folder
from dsearch.encoder.text_encoder import EncoderIdentity, TextEncoder
from dsearch.encoder.weights import Weights, find_weights
from dsearch.errors import CorruptData

if TYPE_CHECKING:
    from dsearch.encoder.encoder import Encoder

KEPT = 4


@dataclass(frozen=True, slots=True)
class TrainedChange:
    """A change of an encoder in a file.

    Attributes:
        base: name of the encoder that it was learned on.
        file: its tensors.
        training: method, rank and alpha, as in a model's record.
        identity: identity of the encoder with the change in it.
    """

    base: str
    file: Path
    training: dict[str, Any]
    identity: EncoderIdentity

    def to_json(self) -> str:
        """As text, for another process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> TrainedChange:
        """Read the output of `to_json`."""
        content = json.loads(text)
        identity = EncoderIdentity.from_dict(content["identity"])
        return cls(content["base"], Path(content["file"]), content["training"], identity)

    def load(self) -> Encoder:
        """Load the encoder by torch, in float32, with the change in it.

        Raises:
            CorruptData: the file is not the one that the identity names.
            EncoderUnavailable: as `Encoder.load`.
        """
        from safetensors.torch import load_file

        from dsearch.encoder.encoder import Encoder
        from dsearch.encoder.learning import EncoderChange, EncoderTraining, tuned, tuned_identity
        from dsearch.encoder.weights import digest_of_file

        encoder = Encoder.load(self.base)
        identity = tuned_identity(encoder.identity, digest_of_file(self.file))
        if identity.weights_sha256 != self.identity.weights_sha256:
            raise CorruptData(f"{self.file} is not the change of {self.base!r} that was registered")
        change = EncoderChange(EncoderTraining(**self.training), load_file(self.file))
        exact = replace(self.identity, backend=TORCH, dtype=FLOAT)
        return Encoder(tuned(encoder, change, exact).encoder.model, exact).eval()


def load_trained(
    base: TextEncoder, change: TrainedChange, load_torch: Callable[[], TextEncoder]
) -> TextEncoder:
    """Return the encoder with a change in it, by an export if there is one, else by torch.

    None is made before `AutomaticEncoder.start` is called.

    Args:
        base: the encoder that the change was learned on.
        change: the change.
        load_torch: loads the torch encoder with the change in it.
    """
    origin = base.origin if isinstance(base, AutomaticEncoder | CompiledEncoder) else None
    if origin is None:
        return load_torch()
    settings = origin.request.weights.settings_sha256
    request = replace(origin.request, load=load_torch, **_named(change, settings))
    cached = from_cache(request, origin.dtype, origin.batch_size)
    if cached.encoder is not None:
        return AutomaticEncoder(cached.encoder, identity=change.identity)
    encoder = AutomaticEncoder(load_torch(), cached.problem, identity=change.identity)
    if cached.problem is None:
        encoder.to_prepare(request, origin.dtype, origin.batch_size, again=cached.damaged)
    return encoder


def trained_request(change: TrainedChange, cache: Path) -> Exporting:
    """Return the request to export an encoder with a change in it, in a process of its own."""
    settings = find_weights(change.base).settings_sha256  # without its weights there is nothing to export
    return Exporting(max_tokens=None, cache=cache, load=change.load, **_named(change, settings))


def forget_earlier(request: Exporting) -> None:
    """Remove exports of earlier changes of the same encoder but for the last `KEPT`."""
    folder = export_folder(request)
    base, _, _ = request.name.rpartition("+")
    start = folder.name[: len(Path(base).name)]
    same = [
        other
        for other in request.cache.glob(f"{start}_????????????-{OPENVINO}-????????????????")
        if other.is_dir()
    ]
    for other in sorted(same, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(other, ignore_errors=True)


def _named(change: TrainedChange, settings_sha256: str) -> dict[str, Any]:
    """Name, weights and description of an encoder with a change in it; its settings are those of its base."""
    identity = change.identity
    weights = Weights(change.file.parent, identity.revision, identity.weights_sha256, settings_sha256)
    return {"name": identity.name, "weights": weights, "trained": change.to_json()}
