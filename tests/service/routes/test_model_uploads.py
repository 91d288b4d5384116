"""`POST …/models`: a body that is no head of the collection, and any parent, gets a 4xx with its reason."""

from __future__ import annotations

import itertools

from fastapi.testclient import TestClient
from support.engine.head_mutations import PARENTS, mutations
from support.sizes import by_size

from dsearch.engine import Collection

MODELS = "/v1/collections/papers/models"
HEADERS = {"Content-Type": "application/x-safetensors"}


def test_mutated_bodies_with_and_without_a_parent_are_added_or_refused_in_words(
    client: TestClient, papers: Collection
) -> None:
    parents = itertools.cycle(PARENTS)
    bodies = mutations(papers.store.dimension, by_size(150, 3000), seed=4)
    added = 0
    for body, parent in zip(bodies, parents, strict=False):
        given = {} if parent is None else {"parent": parent}
        answered = client.post(MODELS, content=body, headers=HEADERS, params=given)
        if answered.status_code == 201:
            added += 1
            client.delete(f"{MODELS}/{answered.json()['model']}")  # there is a limit to their number
            continue
        assert 400 <= answered.status_code < 500, (parent, body[:300], answered.text)
        assert answered.headers["content-type"] == "application/problem+json"
        assert answered.json()["detail"]
    assert added > 0
