"""A shard's part of training, for documents of one passage each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsearch.cluster.messages import ShardAttendRequest
from dsearch.cluster.training import attend
from dsearch.errors import NotInCluster

FOLDED = np.array([[[1.0, 0.0], [0.0, 1.0]]], np.float32)
EMBEDDINGS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], np.float32)


def state(**more: Any) -> Any:
    def with_bm25(weighting: Any) -> Any:
        assert weighting == (1.2, 0.75)
        return SimpleNamespace(all_keyword_scores=lambda texts: np.array([[0.0, 2.0, 1.0]], np.float32))

    generation = SimpleNamespace(embeddings=EMBEDDINGS)
    return SimpleNamespace(**{"passages": None, "generation": generation, "with_bm25": with_bm25, **more})


def request(texts: list[str] | None) -> ShardAttendRequest:
    return ShardAttendRequest(FOLDED, texts, np.array([0.5, 1.0], np.float32), 0.5, (1.2, 0.75))


@pytest.mark.parametrize("texts", [None, ["cat"]])
def test_context_and_partition_are_those_of_a_softmax_over_all_documents(texts: list[str] | None) -> None:
    answer = attend(state(), request(texts))
    scores = np.einsum("bhd,nd->bhn", FOLDED, EMBEDDINGS)
    if texts is not None:
        scores = scores + np.array([0.5, 1.0])[None, :, None] * np.array([0.0, 2.0, 1.0])
    weights = np.exp(scores / 0.5)
    partition = weights.sum(-1)
    np.testing.assert_allclose(answer.log_partition, np.log(partition), rtol=1e-5)
    context = np.einsum("bhn,nd->bhd", weights / partition[..., None], EMBEDDINGS)
    np.testing.assert_allclose(answer.context, context, rtol=1e-5)


def test_long_documents_are_refused() -> None:
    """Their best passage depends on the query: first passages alone would be another loss."""
    with pytest.raises(NotInCluster, match="documents with several passages do not train over shards"):
        attend(state(passages=object()), request(None))
