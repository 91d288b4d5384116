"""Learned values, an output projection and a learned score of a version, by three doors, in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.attention.three_doors import DOORS, Doors
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.engine import Collection, SearchEngine
from dsearch.types import Document

TEXTS = [
    f"{a} {b}" for a in ("apple", "bread", "cheese", "dough", "egg") for b in ("red", "old", "new", "dry")
]
QUERIES = ["cheese bread", "old egg"]
T = 0.2


def head() -> Head:
    """W_V, W_O and an additive score away from their start."""
    made, generator = Head(32), torch.Generator().manual_seed(5)
    made.score = new_score("additive", 32, 6)
    output = made.open_output(1)
    with torch.no_grad():
        made.value_delta += 0.3 * torch.randn(32, 32, generator=generator)
        for parameter in [*made.score.parameters(), *output.parameters()]:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return made


HEAD = head()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    home = tmp_path_factory.mktemp("versions") / "home"
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        collection = engine.create("shop")
        collection.ingest(Document(f"p{n}", text) for n, text in enumerate(TEXTS))
        record = {"readout": {"field": "price", "kind": "number", "labels": None}}
        collection.promote(collection.add_model(HEAD, record))
        yield collection


def numbers(name: str) -> np.ndarray:
    return HEAD.state_dict()[name].double().numpy()


@pytest.mark.parametrize("door", DOORS)
def test_a_versions_score_values_and_projection_are_served(doors: Doors, door: str) -> None:
    keys = HashingEncoder().encode_documents(TEXTS).astype(np.float64)
    queries = HashingEncoder().encode_queries(QUERIES).astype(np.float64)
    w, u, v = (numbers(f"score.additive.{one}") for one in ("query_weight", "key_weight", "vector"))
    scores = np.tanh((queries @ w.T)[:, None] + (keys @ u.T)[None]) @ v  # vᵀ tanh(W q + U k)
    weights = np.exp(scores / T - (scores / T).max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    values = keys + keys @ numbers("value_delta").T
    contexts = weights @ values
    outputs = contexts @ numbers("output.weight").T + numbers("output.bias")
    options: dict[str, Any] = {"over": "all", "temperature": T, "mode": "dense"}

    attended = doors.attend(door, QUERIES, **options)
    assert attended["model"] == "v1"
    for query, result in enumerate(attended["results"]):
        assert result["weights"] == pytest.approx(np.sort(weights[query])[::-1], abs=1e-5)
        assert result["context"] == pytest.approx(contexts[query], abs=1e-4)
        assert result["output"] == pytest.approx(outputs[query], abs=1e-4)
    predicted = doors.predict(door, QUERIES, field="price", **options)
    assert predicted["model"] == "v1"
    for query, result in enumerate(predicted["results"]):
        assert (result["values"], result["without_field"]) == ("learned", 0)
        assert result["mean"] == pytest.approx(outputs[query, 0], abs=1e-4)
