"""Embeddings and tokens of a query over shards come from one pass of the encoder, here or in a replica."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.cluster_checks import sharded
from support.fakes import HashingEncoder

from dsearch.cluster.ingress import EncodeRequest, EncoderReplica, Ingress
from dsearch.cluster.search.search import encode_queries
from dsearch.engine import Collection, SearchEngine
from dsearch.errors import ModelNotFound
from dsearch.search_options import SearchOptions
from dsearch.types import Document, Mode

TEXTS = ["apple bread", "cheese dough"]


class CountingEncoder(HashingEncoder):
    """Notes the texts of each pass."""

    passes: list[list[str]]

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        self.passes.append(list(texts))
        return super().encode_queries(texts)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    encoder = CountingEncoder()
    encoder.passes = []
    with SearchEngine(tmp_path_factory.mktemp("encoded") / "home", encoder=lambda: encoder) as made:
        documents = [Document(f"d{n}", text) for n, text in enumerate([*TEXTS, "egg flour", "grape"])]
        made.create("food").ingest(documents, second_stage=True)
        yield made


@pytest.fixture
def food(engine: SearchEngine) -> Collection:
    food = engine.collection("food")
    engine.query_cache.clear()
    food.query_token_cache.clear()
    passes(food).clear()
    return food


def passes(food: Collection) -> list[list[str]]:
    assert isinstance(food.encoder, CountingEncoder)
    return food.encoder.passes


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
def test_one_pass_gives_embeddings_and_tokens(food: Collection, mode: Mode) -> None:
    encoded = encode_queries(food, TEXTS, mode, "v0", True)
    assert passes(food) == [TEXTS]
    expected = torch.tensor(HashingEncoder().encode_queries(TEXTS))
    assert torch.equal(encoded.states, torch.zeros_like(expected) if mode == "keyword" else expected)
    assert encoded.tokens is not None
    assert [of.spans.tolist() for of in encoded.tokens] == [[[0, 5], [6, 11]], [[0, 6], [7, 12]]]


@pytest.mark.parametrize(("mode", "needed"), [("dense", [TEXTS]), ("keyword", [])])
def test_tokens_are_not_made_where_nobody_wants_them(food: Collection, mode: Mode, needed: list[Any]) -> None:
    assert encode_queries(food, TEXTS, mode, "v0", False).tokens is None
    assert passes(food) == needed
    assert len(food.query_token_cache) == 0


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        (SearchOptions(stages=2), 1),
        (SearchOptions(stages=2, highlight=True, highlight_by="meaning"), 1),
        (SearchOptions(highlight=True, highlight_by="meaning"), 1),
        (SearchOptions(), 0),
    ],
)
def test_a_search_over_shards_encodes_once(
    food: Collection, tmp_path: Path, options: SearchOptions, tokens: int
) -> None:
    with sharded(food, tmp_path / "two", 2) as search:
        assert search.search(["apple bread"], "v0", options)[0].hits
    assert passes(food) == [["apple bread"]]
    assert len(food.query_token_cache) == tokens


class Replicas:
    """Encoder replicas as a handle of Ray Serve shows them, in this process and without batches."""

    def __init__(self, replica: EncoderReplica):
        self._replica = replica
        self.encode = self

    def remote(self, request: EncodeRequest) -> Replicas:
        self._answer = asyncio.run(self._replica.encode([request]))[0]
        return self

    def result(self) -> Any:
        return self._answer


@pytest.fixture
def replica(engine: SearchEngine) -> EncoderReplica:
    made = EncoderReplica.__new__(EncoderReplica)  # without the process that it is of
    made._engine = engine  # pyright: ignore[reportPrivateUsage]
    made._lock = threading.Lock()  # pyright: ignore[reportPrivateUsage]
    return made


def test_a_replica_answers_each_request_with_its_own_part(food: Collection, replica: EncoderReplica) -> None:
    requests = [
        EncodeRequest("food", TEXTS[:1], "hybrid", "v0", True),
        EncodeRequest("food", ["egg"], "hybrid", "v0", False),
        EncodeRequest("food", ["egg"], "hybrid", "v9", False),
        EncodeRequest("food", TEXTS[1:], "hybrid", "v0", True),
    ]
    first, plain, unknown, last = asyncio.run(replica.encode(requests))
    assert passes(food) == [TEXTS, ["egg"]]  # equal requests are one pass
    assert isinstance(unknown, ModelNotFound)
    for (states, tokens), text in ((first, TEXTS[0]), (last, TEXTS[1])):
        assert np.array_equal(states, HashingEncoder().encode_queries([text]))
        expected = HashingEncoder().encode_tokens([text], "query")[1][0]
        assert [np.array_equal(*of) for of in zip(tokens[0], expected, strict=True)] == [True, True]
    assert plain[0].shape == (1, 32)
    assert plain[1] is None


def test_an_ingress_takes_both_from_one_answer(food: Collection, replica: EncoderReplica) -> None:
    ingress = Ingress({"home": "", "encoder": ""}, Replicas(replica))
    encode = ingress._encode  # pyright: ignore[reportPrivateUsage]
    encoded = encode("food", TEXTS, "hybrid", "v0", True)
    local = encode_queries(food, TEXTS, "hybrid", "v0", True)
    assert torch.equal(encoded.states, local.states)
    assert encoded.tokens is not None
    assert local.tokens is not None
    assert [of.states.tolist() for of in encoded.tokens] == [of.states.tolist() for of in local.tokens]
    assert encode("food", TEXTS, "hybrid", "v0", False).tokens is None
    with pytest.raises(ModelNotFound):
        encode("food", TEXTS, "hybrid", "v9", True)


def test_queries_are_encoded_for_the_version_that_answers() -> None:
    asked: list[tuple[Any, ...]] = []
    local: Any = SimpleNamespace(query_states=lambda *given: asked.append(given))
    encode_queries(local, TEXTS, "dense", "v3", False)
    assert asked == [(TEXTS, "dense", "v3", None)]
