"""`TextReranker`: a CrossEncoder or a MultiVectorEncoder of sentence-transformers as one function.

    scores(query, texts) → one number each, higher is better, without bounds

A cross-encoder gives its logit; a multi-vector model the sum over the query's tokens of the best token of the
text. What scale they have does not matter: the weight of a second stage is fitted to it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32

from dsearch.errors import InvalidRequest, MissingExtra, RerankerUnavailable, amount
from dsearch.lru_cache import LruCache

MOST_MODELS = 2  # that stay in memory
_BATCH = 32
_loaded = LruCache[str, "TextReranker"](MOST_MODELS)
_loading = threading.Lock()


class TextReranker:
    """A loaded reranker; one call at a time.

    Attributes:
        files: its name, kind and digest.

    Args:
        files: of the model.
        model: as sentence-transformers loads it.
    """

    def __init__(self, files: RerankerFiles, model: Any):
        self.files = files
        self._model = model
        self._state = state_of(files.folder)
        # A fast tokenizer changes its padding during a call, so it is not reentrant.
        self._using = threading.Lock()

    def scores(self, query: str, texts: Sequence[str]) -> Float32[np.ndarray, " texts"]:
        """Score a query with each text; texts beyond the model's window are cut.

        Raises:
            RerankerUnavailable: scores that are not finite.
        """
        if not texts:
            return np.zeros(0, np.float32)
        with self._using, torch.inference_mode():
            score = self._of_pairs if self.files.kind == "cross-encoder" else self._of_vectors
            scores = np.asarray(score(query, list(texts)), np.float32)
        if scores.shape != (len(texts),) or not np.isfinite(scores).all():
            raise RerankerUnavailable(
                f"reranker {self.files.name!r} gives scores that are not one finite number a text; use "
                "another model, or search with stages=1"
            )
        return scores

    @property
    def outdated(self) -> bool:
        """True if the folder has other files by now; a model without its folder stays as it is."""
        state = state_of(self.files.folder)
        return bool(state) and state != self._state

    def _of_pairs(self, query: str, texts: list[str]) -> Any:
        return self._model.predict(
            [(query, text) for text in texts],
            batch_size=_BATCH,
            activation_fn=torch.nn.Identity(),
            show_progress_bar=False,
        )

    def _of_vectors(self, query: str, texts: list[str]) -> Any:
        options = {"batch_size": _BATCH, "show_progress_bar": False}
        of_query = self._model.encode_query([query], **options)
        of_texts = self._model.encode_document(texts, **options)
        return self._model.similarity(of_query, of_texts)[0].float().cpu().numpy()


def load_reranker(name: str, *, fetch: bool = False, sha256: str | None = None) -> TextReranker:
    """Load a reranker on the CPU, once; the last few stay in memory.

    One whose files have changed since is loaded again, unless it is the one of the digest.

    Args:
        name: name of a model on the hub, or a folder.
        fetch: whether it may come over the network.
        sha256: digest of the files that it should have; None: as they are now.

    Raises:
        RerankerUnavailable: not on this machine, or not to be loaded.
        InvalidRequest: no name, a model of another kind, or one with several labels.
        MissingExtra: the installed sentence-transformers has no such kind.
    """
    name = whole_name(name)
    with _loading:
        present = _loaded.get(name)
        if present is not None and (present.files.sha256 == sha256 or not present.outdated):
            return present
        files = find_reranker(name, fetch=fetch)
        loaded = TextReranker(files, _load(files))
        _loaded.put(name, loaded)
        return loaded


def _load(files: RerankerFiles) -> Any:
    import sentence_transformers
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    class_name = "CrossEncoder" if files.kind == "cross-encoder" else "MultiVectorEncoder"
    load = getattr(sentence_transformers, class_name, None)
    if load is None:
        raise MissingExtra(
            f"reranker {files.name!r} is a {class_name}, which sentence-transformers "
            f"{sentence_transformers.__version__} does not have; install a newer one, or use a CrossEncoder"
        )
    try:
        model = load(str(files.folder), device="cpu", local_files_only=True)
    except Exception as error:  # of a damaged or foreign folder: the libraries raise many kinds
        raise RerankerUnavailable(
            f"reranker {files.name!r}: {files.folder} does not load as a {class_name} "
            f"({type(error).__name__}: {error}); give the folder or the name of one"
        ) from error
    labels = getattr(model, "num_labels", 1)
    if labels != 1:
        raise InvalidRequest(
            f"reranker {files.name!r} has {amount(labels, 'label')}; use a model with one, whose score "
            "says how well a "
            "text answers a query"
        )
    return model.eval()


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
