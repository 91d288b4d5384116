"""Search compared with a reference in plain tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.index import KeywordIndex
from dsearch.types import Document

QUERY = "cheese and bread with honey"


def reference(
    documents: list[Document], query: str, encoder: HashingEncoder, mode: str, head: Head | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """Scores and weights by id, straight from the formulas of the guide, over every document."""
    texts = [document.content for document in documents]
    keys = torch.tensor(encoder.encode_documents(texts)).double()
    query_state = torch.tensor(encoder.encode_queries([query])).double()[0]
    keyword = torch.tensor(KeywordIndex.build(texts).scores([query])[0]).double()
    weight, temperature = 1.0, 0.05
    if head is not None:
        head = head.double()
        turned = query_state + head.query_delta[0] @ query_state
        query_state = query_state.norm() * turned / turned.norm()
        keys = keys @ (torch.eye(len(query_state)) + head.key_delta).T.double()
        weight, temperature = head.keyword_weight.item(), head.log_temperature.exp().item()
    dense = keys @ query_state
    scores = {"dense": dense, "keyword": weight * keyword, "hybrid": dense + weight * keyword}[mode]
    if mode == "keyword":
        scores = scores.masked_fill(keyword == 0, -torch.inf)
    weights = (scores / temperature).softmax(0)
    ids = [document.id for document in documents]
    return (
        dict(zip(ids, scores.tolist(), strict=True)),
        dict(zip(ids, weights.tolist(), strict=True)),
    )


def turned_head(dimension: int = 32, seed: int = 3) -> Head:
    head = Head(dimension)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.query_delta += 0.2 * torch.randn(head.query_delta.shape, generator=generator)
        head.key_delta += 0.1 * torch.randn(head.key_delta.shape, generator=generator)
        head.keyword_weight.fill_(0.6)
        head.log_temperature.fill_(math.log(0.08))
    return head.eval()


def assert_equals_reference(
    collection: Collection,
    documents: list[Document],
    encoder: HashingEncoder,
    mode: str,
    head: Head | None = None,
    **options: object,
) -> None:
    result = collection.search(QUERY, limit=1000, mode=mode, **options)  # type: ignore[arg-type]
    scores, weights = reference(documents, QUERY, encoder, mode, head)
    found = [hit.id for hit in result.hits]
    expected = sorted((id for id in scores if math.isfinite(scores[id])), key=lambda id: -scores[id])
    assert len(found) == len(expected)
    assert sorted(found) == sorted(expected)
    for hit in result.hits:
        assert hit.score == pytest.approx(scores[hit.id], abs=1e-5)
        assert hit.weight == pytest.approx(weights[hit.id], abs=1e-5)
    assert [hit.score for hit in result.hits] == sorted((hit.score for hit in result.hits), reverse=True)
    assert [hit.rank for hit in result.hits] == list(range(1, len(found) + 1))


def many_documents(count: int = 600) -> list[Document]:
    words = np.array([f"word{i}" for i in range(80)])
    generator = np.random.default_rng(0)
    return [
        Document(id=f"m{i}", text=" ".join(generator.choice(words, 12)), title=str(i)) for i in range(count)
    ]
