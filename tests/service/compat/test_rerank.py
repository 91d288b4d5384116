"""Reranking of given texts: which members are read, what comes back, how many."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient
from support.service.service_fakes import WordEncoder

from dsearch.engine import Collection
from dsearch.engine.search.embed import token_count

TEXTS = ["river stone", "cat music", "cat", "cat"]


@pytest.fixture
def asked(client: TestClient, papers: Collection) -> Any:
    def ask(documents: Any, *, version: int = 2, status: int = 200, **more: Any) -> dict[str, Any]:
        body = {"model": "papers", "query": "cat", "documents": documents, **more}
        answer = client.post(f"/v{version}/rerank", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


def test_the_best_come_first_and_equal_ones_in_their_order(asked: Any) -> None:
    answer = asked(TEXTS)
    assert [result["index"] for result in answer["results"]] == [2, 3, 1, 0]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores[0] == scores[1] == pytest.approx(1.0)
    assert 0 <= scores[3] < scores[2] < 1
    assert all("document" not in result for result in answer["results"])
    assert answer["model"] == "papers@v0"
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    assert answer["usage"] == {"total_tokens": token_count(WordEncoder(), ["cat", *TEXTS])}
    assert len(answer["id"]) == 32
    assert asked(TEXTS, version=1)["meta"]["api_version"] == {"version": "1"}


def test_as_many_come_as_wanted(asked: Any) -> None:
    assert [result["index"] for result in asked(TEXTS, top_n=1)["results"]] == [2]
    assert len(asked(TEXTS, top_n=9)["results"]) == 4
    assert "documents" in str(asked([], status=422))
    assert "a positive integer" in asked(TEXTS, top_n=0, status=422)["detail"]


def test_documents_come_back_as_they_were_given(asked: Any) -> None:
    given = [{"text": "river", "page": 3}, "cat"]
    results = asked(given, return_documents=True)["results"]
    assert [result["document"] for result in results] == [{"text": "cat"}, {"text": "river", "page": 3}]


def test_members_of_objects_are_read_in_their_order_as_words_apart(asked: Any) -> None:
    """Two members are two texts: "stone" and "cat" are never the word "stonecat"."""
    given = [{"name": "stone", "text": "cat", "year": 7}, {"name": "cat"}]
    together = asked([*given, "stone cat"], rank_fields=["name", "year", "text"])["results"]
    scores = {result["index"]: result["relevance_score"] for result in together}
    assert scores[0] == scores[2] < scores[1]
    assert asked(["cat", "stone"], rank_fields=["name"])["results"][0]["index"] == 0


@pytest.mark.parametrize(
    ("document", "more", "detail"),
    [
        (" ", {}, "documents.1 is empty; give a text"),
        ({"name": "cat"}, {}, "documents.1 is empty; give a text in text"),
        ({"text": 7}, {}, "documents.1 is empty; give a text in text"),
        ({"text": "cat"}, {"rank_fields": ["a", "b"]}, "documents.1 is empty; give a text in a or b"),
    ],
)
def test_a_document_without_a_text_is_named(
    asked: Any, document: Any, more: dict[str, Any], detail: str
) -> None:
    assert asked(["cat", document], status=422, **more)["detail"] == detail


def test_the_model_is_looked_up_by_its_name(asked: Any) -> None:
    assert "no collection 'none'" in asked(["cat"], model="none", status=404)["detail"]
    assert "v7" in asked(["cat"], model="papers@v7", status=404)["detail"]
    assert asked(["cat"], model="papers@v0")["model"] == "papers@v0"
