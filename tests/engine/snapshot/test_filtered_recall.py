"""Filtered search against exact search for every way to keep keys: what is served, not what is proposed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from dsearch.encoder import TextEncoder
from dsearch.engine import Collection, SearchEngine
from dsearch.index import DENSE_KINDS
from dsearch.types import Document

COUNT, DIMENSION, QUERIES, TOP = 6000, 32, 40, 10
SHARES = {"half": 2, "twentieth": 20, "two hundredth": 200}


def no_encoder() -> TextEncoder:
    raise AssertionError("nothing here needs an encoder")


def clustered(count: int, seed: int) -> np.ndarray:
    """Many small clusters, so that a filter may take all near neighbours away."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((200, DIMENSION))
    drawn = centres[rng.integers(0, 200, count)] + 0.5 * rng.standard_normal((count, DIMENSION))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


EMBEDDINGS, ASKED = clustered(COUNT, 0), clustered(QUERIES, 1)
# Which documents pass is drawn, not the clusters they are in.
NUMBERS = np.random.default_rng(2).permutation(COUNT)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("recall") / "home", encoder=no_encoder) as engine:
        made = engine.create("many", dimension=DIMENSION)
        documents = [
            Document(f"d{row}", "x", metadata={name: int(number) % every for name, every in SHARES.items()})
            for row, number in enumerate(NUMBERS)
        ]
        made.store.upsert(documents, EMBEDDINGS)
        yield made


def recall(collection: Collection, share: str) -> float:
    passing = np.flatnonzero(NUMBERS % SHARES[share] == 0)
    truth = passing[np.argsort(-(ASKED @ EMBEDDINGS[passing].T), axis=1, kind="stable")[:, :TOP]]
    filter = {share: {"eq": 0}}
    found = collection.attend(torch.as_tensor(ASKED), mode="dense", filter=filter).ids
    hits = [len({f"d{row}" for row in true} & set(ids[:TOP])) for ids, true in zip(found, truth, strict=True)]
    return sum(hits) / truth.size


@pytest.mark.parametrize("kind", DENSE_KINDS)
def test_the_first_ten_of_what_passes_are_found(collection: Collection, kind: str) -> None:
    collection.refresh(kind=kind)
    assert collection.snapshot.generation.dense.kind == kind
    for share in SHARES:
        assert recall(collection, share) >= 0.99, share
