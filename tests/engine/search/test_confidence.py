"""Evidence of rankings: of the first stage in its own order, and of each head by its share."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.long_documents import WORDS
from support.fakes import HashingEncoder

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.engine import Collection, SearchEngine, SearchLayer
from dsearch.engine.models import confidence as module
from dsearch.engine.models.confidence import confidences, evidence_of_rankings
from dsearch.engine.snapshot import query_tokens
from dsearch.evaluation.confidence import (
    EVIDENCE,
    Calibration,
    Logistic,
    evidence_rows,
)
from dsearch.types import Document

QUERIES = ["bread cheese", "mango", "honey and pear"]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collection]:
    with SearchEngine(tmp_path_factory.mktemp("staged"), encoder=HashingEncoder) as engine:
        made = engine.create("staged")
        documents = [
            Document(f"d{n}", f"{WORDS[n % 16]} {WORDS[n * 5 % 16]} {WORDS[n * 3 % 16]}") for n in range(40)
        ]
        made.ingest(documents, second_stage=True)
        yield made


def head_of(heads: int) -> Head:
    head = Head(32, heads=heads, rank=4)
    with torch.no_grad():
        for parameter in [*head.query_parameters(), head.mixture_logits]:
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(heads))
    head.second_stage = SecondStage(strength=2.0)
    with torch.no_grad():
        head.second_stage.feature_weights += torch.linspace(-1.0, 1.0, len(head.second_stage.feature_weights))
    return head.eval()


def output_of(staged: Collection, head: Head, stages: int) -> tuple[Any, SearchLayer]:
    snapshot = staged.snapshot
    states = staged.query_states(QUERIES, "hybrid")
    tokens = HashingEncoder().encode_tokens(QUERIES, "query")[1]
    layer = SearchLayer(snapshot, head, stages=stages, candidates=25)
    with torch.inference_mode():
        asked = [query_tokens(of, text, snapshot) for of, text in zip(tokens, QUERIES, strict=True)]
        return layer.ranked(states, QUERIES, asked), layer


@pytest.mark.parametrize("heads", [1, 3])
def test_it_is_that_of_the_first_stage_though_the_second_orders_otherwise(
    staged: Collection, heads: int
) -> None:
    head = head_of(heads)
    (first, plain), (second, layer) = output_of(staged, head, 1), output_of(staged, head, 2)
    assert not np.array_equal(first.positions, second.positions)
    expected, found = (
        evidence_of_rankings(first, plain.head, plain.temperature),
        evidence_of_rankings(second, layer.head, layer.temperature),
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 3])
def test_parts_of_heads_are_mixed_by_their_shares(staged: Collection, heads: int) -> None:
    head = head_of(heads)
    output, layer = output_of(staged, head, 1)
    shares = head.mixture.detach().numpy().astype(np.float64)[:, None]
    dense, keyword = ((part.numpy() * shares).sum(1) for part in (output.dense, output.keyword))
    expected = evidence_rows(
        output.scores.double().numpy(),
        dense,
        keyword,
        output.weights.double().numpy(),
        output.positions >= 0,
    )
    np.testing.assert_allclose(
        evidence_of_rankings(output, layer.head, layer.temperature), expected, atol=1e-6
    )
    assert expected.any(axis=1).all()


def test_a_hundred_candidates_count(staged: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.CANDIDATES == 100
    output, layer = output_of(staged, head_of(1), 1)
    whole = evidence_of_rankings(output, layer.head, layer.temperature)
    monkeypatch.setattr(module, "CANDIDATES", 5)
    few = evidence_of_rankings(output, layer.head, layer.temperature)
    np.testing.assert_allclose(few[:, 0], whole[:, 0])
    assert (few[:, 4] != whole[:, 4]).any()  # the entropy is of five


@pytest.mark.parametrize("source", ["judgements", "documents"])
def test_a_probability_is_said_only_where_judgements_gave_it(
    staged: Collection, unchecked: None, source: str
) -> None:
    output, layer = output_of(staged, head_of(1), 1)
    estimates = [
        SimpleNamespace(fits=fits, right=right) for fits, right in ((True, 0.8), (False, 0.9), (True, 0.1))
    ]
    given: list[Any] = []

    def estimated(rows: np.ndarray) -> list[Any]:
        given.append(rows)
        return estimates

    calibration: Any = SimpleNamespace(estimates=estimated, source=source, queries=70, floor=0.25)
    found = confidences(output, layer.head, layer.temperature, calibration)
    (rows,) = given
    np.testing.assert_array_equal(rows, evidence_of_rankings(output, layer.head, layer.temperature))
    assert [one.verdict for one in found] == ["likely", "nothing fits", "unlikely"]
    expected = [0.8, 0.9, 0.1] if source == "judgements" else [None] * 3
    assert [one.probability for one in found] == expected
    assert {(one.fitted_on, one.queries, one.floor) for one in found} == {(source, 70, 0.25)}


def test_it_is_of_a_hybrid_search_in_the_order_of_its_scores(collection: Collection) -> None:
    logistic = Logistic([0.0] * len(EVIDENCE), [1.0] * len(EVIDENCE), [0.0] * len(EVIDENCE), 0.0)
    collection.calibrations.keep("v0", Calibration(logistic, logistic, 0.1, 0.2, "judgements", 60, 20))
    assert collection.search("bread").confidence is not None
    others: list[dict[str, Any]] = [
        {"mode": "dense"},
        {"mode": "keyword"},
        {"sort": "number"},
        {"vector": [1.0, *[0.0] * 31]},
    ]
    for options in others:
        assert collection.search("bread", **options).confidence is None, options
