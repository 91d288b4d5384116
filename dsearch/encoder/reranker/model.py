"""`TextReranker`: a CrossEncoder or a MultiVectorEncoder of sentence-transformers as one function.

    scores(query, texts) → one number each, higher is better, without bounds

A cross-encoder gives its logit; a multi-vector model the sum over the query's tokens of the best token of the
text. What scale they have does not matter: the weight of a second stage is fitted to it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from dsearch.encoder.reranker.weights import RerankerFiles, find_reranker, state_of, whole_name
from dsearch.errors import InvalidRequest, MissingExtra, RerankerUnavailable, amount

MOST_MODELS = 2  # that stay in memory
_BATCH = 32
_loaded: OrderedDict[str, TextReranker] = OrderedDict()
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
            _loaded.move_to_end(name)
            return present
        files = find_reranker(name, fetch=fetch)
        _loaded[name] = TextReranker(files, _load(files))
        _loaded.move_to_end(name)
        while len(_loaded) > MOST_MODELS:
            _loaded.popitem(last=False)
        return _loaded[name]


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
