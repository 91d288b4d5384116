"""Locate a reranker's files, and say which kind of model they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dsearch.errors import InvalidRequest, RerankerUnavailable

Kind = Literal["cross-encoder", "multi-vector"]

_FILES = ("*.safetensors", "pytorch_model*.bin", "*.json", "*.txt", "*.model")
# What other runtimes need is left on the hub.
_NOT_NEEDED = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.ot", "*.msgpack", "*.tflite", "coreml/*"]
_REACH_S = 10.0  # within which the hub answers one request
_KINDS: dict[str, Kind] = {
    "CrossEncoder": "cross-encoder",
    "MultiVectorEncoder": "multi-vector",
    "ColBERT": "multi-vector",
}


class RerankerFiles(NamedTuple):
    """A reranker on this machine.

    Attributes:
        name: name on the hub, or the whole path of a folder.
        folder: its folder.
        kind: kind of model.
        sha256: digest of weights, configuration and vocabulary.
    """

    name: str
    folder: Path
    kind: Kind
    sha256: str


def find_reranker(name: str, *, fetch: bool) -> RerankerFiles:
    """Find the files of a reranker.

    Args:
        name: name of a model on the hub, or a folder.
        fetch: whether it may come from the hub over the network; otherwise from its cache on this machine.

    Raises:
        RerankerUnavailable: no folder, and not to be had from the hub, or no weights in it.
        InvalidRequest: no name, or a model of another kind.
    """
    name = whole_name(name)
    folder = Path(name)
    if not folder.is_dir():
        folder = _from_hub(name, fetch=fetch)
    if not any(any(folder.rglob(pattern)) for pattern in _FILES[:2]):
        raise RerankerUnavailable(
            f"reranker {name!r}: no weights ({' or '.join(_FILES[:2])}) in {folder}; give the folder of a "
            "CrossEncoder or MultiVectorEncoder of sentence-transformers"
        )
    return RerankerFiles(name, folder, _kind_of(folder, name), _digest(folder))


def whole_name(name: str) -> str:
    """Return the name, or the whole path of a folder.

    Raises:
        InvalidRequest: nothing is named.
    """
    if not name.strip():
        raise InvalidRequest(
            f"reranker={name!r}; give the name of a CrossEncoder or MultiVectorEncoder, the folder of one, "
            "or leave it out"
        )
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() else name


def _from_hub(name: str, *, fetch: bool) -> Path:
    from huggingface_hub import snapshot_download

    silent = _out_of_reach() if fetch else None
    local = not fetch or silent is not None  # what the cache has does as well
    try:
        return Path(snapshot_download(name, ignore_patterns=_NOT_NEEDED, local_files_only=local))
    except Exception as error:  # the hub client raises a dozen kinds
        whence = "the Hugging Face hub did not give it" if fetch else "it is not in the cache of the hub here"
        if silent is not None:
            whence = f"neither is it in the hub's cache here, and {silent}"
        remedy = (
            "give the name of a CrossEncoder or MultiVectorEncoder while the hub is in reach, or a folder"
            if fetch
            else f"a search loads no model from the hub: run hf download {name}, or search with stages=1"
        )
        raise RerankerUnavailable(
            f"reranker {name!r} is not a folder, and {whence} ({type(error).__name__}); {remedy}"
        ) from error


def _out_of_reach() -> str | None:
    """Sentence that the hub does not answer; None if it does. One request: its client tries for minutes."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_REACH_S)
    except Exception as error:  # also of a client that is told to stay off line
        return f"the Hugging Face hub ({constants.ENDPOINT}) is out of reach ({type(error).__name__})"
    return None


def _kind_of(folder: Path, name: str) -> Kind:
    """The kind that the files name: a class head that is not among the weights would be drawn at random.

    Raises:
        InvalidRequest: another kind.
    """
    architectures: list[str] = _json(folder / "config.json").get("architectures") or []
    named = _json(folder / "config_sentence_transformers.json").get("model_type")
    classifies = any(of.endswith(("ForSequenceClassification", "ForCausalLM")) for of in architectures)
    kind = _KINDS.get(str(named))
    if kind is None and named is None:
        kind = "multi-vector" if "HF_ColBERT" in architectures else "cross-encoder" if classifies else None
    if kind is None:
        what = named or ", ".join(architectures) or "a model without config.json"
        raise InvalidRequest(
            f"reranker {name!r} is {what}; use a CrossEncoder or a MultiVectorEncoder of "
            "sentence-transformers, which score a query with a text"
        )
    return kind


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def state_of(folder: Path) -> list[tuple[Path, int, int]]:
    """Names, sizes and times of a model's files: they change when it is trained again; none if it is gone."""
    status = [(file, file.stat()) for file in _files_in(folder)]
    return [(file, of.st_size, of.st_mtime_ns) for file, of in status]


def _files_in(folder: Path) -> list[Path]:
    return sorted({file for pattern in _FILES for file in folder.rglob(pattern) if file.is_file()})


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in _files_in(folder):
        with file.open("rb") as stream:
            digest.update(file.relative_to(folder).as_posix().encode())
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
