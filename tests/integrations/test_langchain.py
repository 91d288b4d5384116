"""LangChain: its official suites, on a local engine and on a real server."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests
from support.service.service_fakes import documents

import dsearch
from dsearch.client import Client, LocalEngine
from dsearch.errors import InvalidRequest
from dsearch.integrations.langchain import DSearchRetriever, DSearchVectorStore

pytestmark = pytest.mark.server

Engine = Client | LocalEngine


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, engine: Engine, empty: str) -> VectorStore:  # pyright: ignore
        return DSearchVectorStore(engine, empty)


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _papers(self, engine: Engine, empty: str) -> None:
        engine.upsert(empty, documents(8))
        self._params = {"engine": engine, "collection": empty}

    @property
    def retriever_constructor(self) -> type[DSearchRetriever]:
        return DSearchRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return self._params

    @property
    def retriever_query_example(self) -> str:
        return "river music"


def test_documents_scores_and_options_are_the_engines(engine: Engine, empty: str) -> None:
    engine.upsert(empty, documents(20))
    store = DSearchVectorStore(engine, empty)
    chosen = {"filter": {"i": {"lt": 10}}, "mode": "dense"}
    hits = engine.search(empty, "river music", limit=3, **chosen).hits  # pyright: ignore
    found = store.similarity_search_with_score("river music", 3, **chosen)
    assert [(one.id, score) for one, score in found] == [
        (hit.id, pytest.approx(hit.score, abs=1e-6)) for hit in hits
    ]
    assert found[0][0].page_content == hits[0].text
    assert found[0][0].metadata == {"title": hits[0].title, **hits[0].metadata}
    shares = store.similarity_search_with_relevance_scores("river music", 3, **chosen)
    assert [share for _, share in shares] == pytest.approx([hit.weight for hit in hits], abs=1e-6)
    retriever = DSearchRetriever(engine=engine, collection=empty, k=3, options=chosen)
    assert [one.id for one in retriever.invoke("river music")] == [hit.id for hit in hits]
    as_retriever = store.as_retriever(search_kwargs={"k": 3, **chosen})
    assert [one.id for one in as_retriever.invoke("river music")] == [hit.id for hit in hits]


def test_a_collection_is_made_from_texts(engine: Engine) -> None:
    made = DSearchVectorStore.from_texts(
        ["river stone", "lamp"],
        metadatas=[{"n": 1}, {"n": 2}],
        ids=["a", "b"],
        engine=engine,
        collection="made",
    )
    assert made.similarity_search("lamp", k=1) == [Document("lamp", id="b", metadata={"n": 2})]
    assert made.delete(filter={"n": {"eq": 2}})
    assert made.get_by_ids(["b", "a"]) == [Document("river stone", id="a", metadata={"n": 1})]


def test_errors_say_what_to_do(engine: Engine, empty: str) -> None:
    store = DSearchVectorStore(engine, empty)
    with pytest.raises(InvalidRequest, match="1 ids for 2 texts; give one each"):
        store.add_texts(["a", "b"], ids=["1"])
    with pytest.raises(InvalidRequest, match="engine is missing; give engine="):
        DSearchVectorStore.from_texts(["a"])
    with pytest.raises(dsearch.DsearchError):
        store.similarity_search("lamp", k=0)
