"""Functions as evidence: they score held-out examples by a layer, one number each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from dsearch.encoder import EncoderIdentity
from dsearch.engine import Collection, CollectionLayer, EncodedDocuments, SearchLayer
from dsearch.engine.models.documents import encoded_state
from dsearch.errors import InvalidRequest

Score = Callable[[Any], Sequence[float] | torch.Tensor]
"""Scores held-out examples by a layer, one number each; more is better."""


def scores_by(score: Score, layer: torch.nn.Module) -> list[float]:
    """Scores of held-out examples by a layer, without gradients.

    Raises:
        InvalidRequest: not one number for each example.
    """
    was_training = layer.training
    layer.eval()
    try:
        with torch.no_grad():
            scores = torch.as_tensor(score(layer)).detach().cpu().double().numpy()
    finally:
        layer.train(was_training)
    if scores.ndim != 1:
        raise InvalidRequest(
            f"scores of shape {list(scores.shape)}; give one number for each held-out example: the gate "
            "compares example by example"
        )
    return scores.tolist()


def scores_over(
    collection: Collection,
    layer: SearchLayer,
    encoder: EncoderIdentity,
    documents: EncodedDocuments,
    score: Score,
) -> list[float]:
    """Scores of held-out examples by a layer over encoded documents, searched as the version will be.

    The documents are built in a temporary folder, as large as their generation will be.

    Args:
        collection: of the documents.
        layer: over the collection; it stays as it is.
        encoder: that encoded them.
        documents: all, encoded.
        score: scores examples by a layer.

    Raises:
        InvalidRequest: as `scores_by`.
    """
    with TemporaryDirectory() as folder:
        state = encoded_state(Path(folder), collection.store, documents, encoder)
        if isinstance(layer, CollectionLayer):
            return scores_by(score, layer.with_documents(state))
        over = copy.copy(layer)
        over.snapshot = state
        return scores_by(score, over)
