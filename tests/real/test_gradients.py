"""One backward from a pooled context into the real encoder, on the query side and on the document side."""

from __future__ import annotations

import copy

import torch

from dsearch.attention.retrieval.head import Head
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine, SearchLayer
from dsearch.types import Document

TEXTS = [
    "A hash table maps keys to values in constant time.",
    "Gradient descent follows the slope of a loss.",
    "The cat slept on the warm windowsill all afternoon.",
    "Search engines rank documents by relevance to a query.",
    "Bread rises because yeast produces carbon dioxide.",
]
QUERIES = ["how do search engines order results", "why does dough rise"]


def test_one_backward_reaches_both_sides_of_the_encoder(real_engine: SearchEngine) -> None:
    collection = real_engine.create("five")
    collection.ingest([Document(id=str(i), text=text) for i, text in enumerate(TEXTS)])
    assert isinstance(real_engine.encoder, Encoder)
    # Two copies, so that gradients of the two sides can be told apart.
    asking, answering = copy.deepcopy(real_engine.encoder.model), copy.deepcopy(real_engine.encoder.model)
    asker = Encoder(asking, real_engine.encoder.identity)
    answerer = Encoder(answering, real_engine.encoder.identity)
    layer = SearchLayer(collection.snapshot, Head(384), hops=2, hop_strength=0.3)
    rows = collection.snapshot.rows(collection.snapshot.visible())
    contents = collection.store.contents(rows)
    target = torch.as_tensor(collection.snapshot.embeddings(collection.snapshot.visible()))[[2, 0]]

    def embed(positions):  # type: ignore[no-untyped-def]
        return answerer.embed([contents[p] for p in positions.ravel()], "document").reshape(
            *positions.shape, -1
        )

    def loss() -> torch.Tensor:
        out = layer(asker.embed(QUERIES, "query"), QUERIES, embed=embed)
        return (out.context - target).square().sum()

    first = loss()
    first.backward()
    for side in (asker, answerer):
        norms = [p.grad.norm().item() for p in side.parameters() if p.grad is not None]
        assert len(norms) > 90
        assert all(norm > 0 for norm in norms)
    head = layer.head
    for parameter in (
        head.query_delta,
        head.key_delta,
        head.value_delta,
        head.keyword_weight,
        head.log_temperature,
    ):
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0
    optimizer = torch.optim.Adam([*layer.parameters(), *asker.parameters(), *answerer.parameters()], lr=1e-4)
    optimizer.step()
    with torch.no_grad():
        assert loss() < first
