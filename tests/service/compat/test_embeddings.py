"""`/v1/embeddings`, `/v1/models` and rerank, asked by the official clients of a real server."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx2
import numpy as np
import pytest
import torch
from cohere.errors import NotFoundError, UnauthorizedError, UnprocessableEntityError
from support.late import late
from support.service.service_fakes import DIMENSION, WordEncoder, documents, serving

from dsearch.attention.retrieval.head import Head
from dsearch.client import Client
from dsearch.engine import SearchEngine
from dsearch.service.keys import ApiKeys

openai = late("openai")

pytestmark = pytest.mark.server

TEXTS = ["attention query", "river stone lamp", "music"]


def turned_head() -> Head:
    """One head whose query and key projections are far from the identity."""
    torch.manual_seed(3)
    head = Head(DIMENSION)
    with torch.no_grad():
        head.query_delta.copy_(torch.randn(1, DIMENSION, DIMENSION) / 4)
        head.key_delta.copy_(torch.randn(DIMENSION, DIMENSION) / 4)
    return head


def with_papers(home: Path) -> Path:
    with SearchEngine(home, encoder=WordEncoder) as engine:
        collection = engine.create("papers")
        collection.ingest(documents(40))
        assert collection.add_model(turned_head(), {}) == "v1"
    return home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_papers(tmp_path_factory.mktemp("compat") / "home")


@pytest.fixture(scope="module")
def origin(home: Path) -> Iterator[str]:
    with serving(home) as (address, _):
        yield address


@pytest.fixture(scope="module")
def client(origin: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{origin}/v1", api_key="none", max_retries=0) as connected:
        yield connected


@pytest.fixture(scope="module")
def ranker(origin: str) -> cohere.ClientV2:
    return cohere.ClientV2(api_key="none", base_url=origin)


def vectors(answer: Any) -> np.ndarray:
    return np.array([one.embedding for one in answer.data], np.float32)


# ---- embeddings


def test_texts_are_embedded_as_the_collection_embeds_documents(client: openai.OpenAI) -> None:
    """The client asks for base64 and decodes it."""
    answer = client.embeddings.create(model="papers", input=TEXTS)
    assert answer.model == "papers@v0:document"
    assert [one.index for one in answer.data] == [0, 1, 2]
    np.testing.assert_array_equal(vectors(answer), WordEncoder().encode_documents(TEXTS))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 12


def test_numbers_and_base64_are_the_same(client: openai.OpenAI, origin: str) -> None:
    as_numbers = client.embeddings.create(model="papers", input="river", encoding_format="float")
    body = {"model": "papers", "input": "river", "encoding_format": "base64"}
    sent = httpx2.post(f"{origin}/v1/embeddings", json=body).json()["data"][0]["embedding"]
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(sent), "<f4"), vectors(as_numbers)[0])


def test_both_sides_of_a_version_rank_as_the_collection_does(client: openai.OpenAI, origin: str) -> None:
    """By the vectors of the two sides alone: the order and the scores of a dense search by that version."""
    listed = httpx2.get(f"{origin}/v1/collections/papers/documents").json()["documents"]
    texts = [f"{one['title']} {one['text']}" for one in listed]
    there = vectors(client.embeddings.create(model="papers@v1:document", input=texts))
    asked = client.embeddings.create(model="papers@v1:query", input="music river")
    assert asked.model == "papers@v1:query"
    scores = there @ vectors(asked)[0]
    body = {"query": "music river", "mode": "dense", "model": "v1", "limit": 40}
    hits = httpx2.post(f"{origin}/v1/collections/papers/search", json=body).json()["hits"]
    mine = {one["id"]: score for one, score in zip(listed, scores, strict=True)}
    assert sorted(mine, key=lambda id: -mine[id])[:10] == [hit["id"] for hit in hits][:10]
    ratios = np.array([hit["score"] / mine[hit["id"]] for hit in hits])
    np.testing.assert_allclose(ratios, ratios[0], rtol=2e-4)
    untrained = vectors(client.embeddings.create(model="papers@v0:query", input="music river"))
    assert abs(float(untrained[0] @ vectors(asked)[0])) < 0.99


def test_the_side_can_be_a_member_of_the_request(client: openai.OpenAI) -> None:
    by_name = client.embeddings.create(model="papers@v1:query", input="river")
    by_member = client.embeddings.create(model="papers@v1", input="river", extra_body={"input_type": "query"})
    np.testing.assert_array_equal(vectors(by_name), vectors(by_member))
    with pytest.raises(openai.UnprocessableEntityError, match="leave one out"):
        client.embeddings.create(model="papers:query", input="river", extra_body={"input_type": "document"})


def test_fewer_dimensions_are_the_first_ones_at_length_1(client: openai.OpenAI) -> None:
    whole = vectors(client.embeddings.create(model="papers", input=TEXTS))
    short = vectors(client.embeddings.create(model="papers", input=TEXTS, dimensions=8))
    expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)


def test_models_are_listed(client: openai.OpenAI, origin: str) -> None:
    assert [one.id for one in client.models.list()] == ["papers", "papers@v0", "papers@v1"]
    assert client.models.retrieve("papers@v1:query").id == "papers@v1:query"
    with Client(origin) as own:
        own.set_alias("texts", "papers")
    assert client.embeddings.create(model="texts@v1", input="cat").model == "texts@v1:document"
    assert client.models.retrieve("texts@v1").id == "texts@v1"
    with pytest.raises(openai.NotFoundError, match="no model 'papers@v9'"):
        client.models.retrieve("papers@v9")


@pytest.mark.parametrize(
    ("asked", "status", "code", "param", "said"),
    [
        ({"model": "none"}, 404, "collection_not_found", None, "no collection 'none'; there are: papers"),
        ({"model": "papers@v9"}, 404, "model_not_found", None, "v9"),
        ({"model": "papers@3"}, 422, "invalid_request", None, "COLLECTION@VERSION"),
        ({"input": ""}, 422, "invalid_request", "input", "use a text, a list"),
        ({"input": ["a", " "]}, 422, "invalid_request", None, "input.1 is empty"),
        ({"input": " "}, 422, "invalid_request", None, "input.0 is empty"),
        ({"input": [1, 2, 3]}, 422, "invalid_request", None, "check_embedding_ctx_length=False"),
        ({"dimensions": 33}, 422, "invalid_request", None, "use an integer from 1 to 32"),
        ({"extra_body": {"truncate": "END"}}, 422, "invalid_request", "body", "unknown field 'truncate'"),
    ],
)
def test_errors_are_what_the_client_parses(
    client: openai.OpenAI, asked: dict[str, Any], status: int, code: str, param: str | None, said: str
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        client.embeddings.create(**{"model": "papers", "input": "river", **asked})
    error = raised.value
    assert (error.status_code, error.code, error.param) == (status, code, param)
    assert said in error.message


# ---- rerank


def test_texts_are_ordered_by_their_similarity(ranker: cohere.ClientV2, client: openai.OpenAI) -> None:
    answer = ranker.rerank(model="papers@v1", query="river", documents=TEXTS)
    scores = {one.index: one.relevance_score for one in answer.results}
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    there = vectors(client.embeddings.create(model="papers@v1:document", input=TEXTS))
    asked = vectors(client.embeddings.create(model="papers@v1:query", input="river"))[0]
    np.testing.assert_allclose([scores[n] for n in range(3)], (1 + there @ asked) / 2, atol=1e-6)
    assert answer.meta.api_version.version == "2"


def test_top_n_and_documents(origin: str) -> None:
    first = cohere.Client(api_key="none", base_url=origin)
    answer = first.rerank(model="papers", query="river", documents=TEXTS, top_n=1, return_documents=True)
    assert [(one.index, one.document.text) for one in answer.results] == [(1, TEXTS[1])]
    assert answer.meta.api_version.version == "1"
    objects = [{"title": "music", "text": "lamp"}, {"title": "river", "text": "lamp"}]
    answer = first.rerank(model="papers", query="river", documents=objects, rank_fields=["title"])
    assert answer.results[0].index == 1


def test_jina_reads_usage_and_model(origin: str) -> None:
    """Its clients are plain HTTP."""
    body = {"model": "papers", "query": "river", "documents": TEXTS, "top_n": 2, "return_documents": True}
    answer = httpx2.post(f"{origin}/v1/rerank", json=body).json()
    assert (answer["model"], answer["usage"]) == ("papers@v0", {"total_tokens": 15})
    assert answer["results"][0]["document"] == {"text": TEXTS[1]}
    assert len(answer["results"]) == 2


def test_errors_of_rerank(ranker: cohere.ClientV2) -> None:
    with pytest.raises(UnprocessableEntityError) as raised:
        ranker.rerank(model="papers", query="river", documents=["a", " "])
    assert raised.value.body["message"] == "documents.1 is empty; give a text"
    with pytest.raises(NotFoundError) as missing:
        ranker.rerank(model="rerank-english", query="river", documents=["a"])
    assert missing.value.body["message"].startswith("no collection 'rerank-english'; there are: papers")


# ---- keys


def test_keys_are_needed_and_come_as_the_clients_send_them(tmp_path: Path) -> None:
    home = with_papers(tmp_path / "home")
    made, _ = ApiKeys(home).create("reader", "read")
    with serving(home) as (origin, _):
        right = openai.OpenAI(base_url=f"{origin}/v1", api_key=made, max_retries=0)
        assert len(right.embeddings.create(model="papers", input="river").data) == 1
        wrong = openai.OpenAI(base_url=f"{origin}/v1", api_key="sk-none", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="this API key is not known") as raised:
            wrong.embeddings.create(model="papers", input="river")
        assert raised.value.code == "key_missing"
        assert (
            cohere.ClientV2(made, base_url=origin).rerank(model="papers", query="a", documents=["a"]).results
        )
        with pytest.raises(UnauthorizedError) as refused:
            cohere.ClientV2("none", base_url=origin).rerank(model="papers", query="a", documents=["a"])
        assert "this API key is not known" in refused.value.body["message"]
