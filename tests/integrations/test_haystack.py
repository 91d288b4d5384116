"""Haystack: its official suite for document stores, and the retriever in a pipeline."""

from __future__ import annotations

from typing import Any

import pytest
from support.service.service_fakes import documents

from dsearch.client import Client, LocalEngine
from dsearch.errors import InvalidRequest

pytest.importorskip("haystack", reason="haystack-ai is not installed (extra haystack)")

from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack.testing.document_store import (
    DeleteAllTest,
    DeleteByFilterTest,
    DocumentStoreBaseTests,
    UpdateByFilterTest,
)

from dsearch.integrations.haystack import DSearchDocumentStore, DSearchRetriever, filter_of

pytestmark = pytest.mark.server

Engine = Client | LocalEngine


class TestDocumentStore(DocumentStoreBaseTests, DeleteAllTest, DeleteByFilterTest, UpdateByFilterTest):
    """Embeddings are not stored (the collection has its own), and documents come by id, in any order."""

    @pytest.fixture
    def document_store(self, local: LocalEngine, empty_local: str) -> DSearchDocumentStore:
        return DSearchDocumentStore(engine=local, collection=empty_local)

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        def comparable(items: list[Document]) -> list[tuple[Any, ...]]:
            return sorted((item.id, item.content, sorted(item.meta.items())) for item in items)

        assert comparable(received) == comparable(expected)

    def test_write_documents(self, document_store: DSearchDocumentStore) -> None:
        doc = Document(content="test doc")
        assert document_store.write_documents([doc]) == 1
        with pytest.raises(DuplicateDocumentError, match=r"exists; use DuplicatePolicy\.OVERWRITE"):
            document_store.write_documents([doc])


def test_an_id_that_is_given_twice_is_a_duplicate(local: LocalEngine, empty_local: str) -> None:
    store = DSearchDocumentStore(engine=local, collection=empty_local)
    given = [Document(id=id, content=text) for id, text in (("a", "one"), ("b", "first"), ("b", "second"))]
    with pytest.raises(DuplicateDocumentError, match="id 'b' exists"):
        store.write_documents(given)
    assert store.count_documents() == 0
    assert store.write_documents(given, DuplicatePolicy.SKIP) == 2  # the first is there when the second comes
    assert [item.content for item in store.filter_documents()] == ["one", "first"]
    assert store.write_documents(given[1:], DuplicatePolicy.SKIP) == 0
    store.write_documents(given, DuplicatePolicy.OVERWRITE)
    assert [item.content for item in store.filter_documents()] == ["one", "second"]


def test_a_pipeline_finds_what_the_engine_finds(engine: Engine, empty: str) -> None:
    engine.upsert(empty, documents(20))
    pipeline = Pipeline()
    store = DSearchDocumentStore(engine=engine, collection=empty)
    pipeline.add_component("retriever", DSearchRetriever(store, top_k=3, options={"mode": "dense"}))
    below = {"field": "meta.i", "operator": "<", "value": 10}
    ran = pipeline.run({"retriever": {"query": "river music", "filters": below}})
    hits = engine.search(empty, "river music", limit=3, filter={"i": {"lt": 10}}, mode="dense").hits
    found = ran["retriever"]["documents"]
    assert [(item.id, item.score) for item in found] == [
        (hit.id, pytest.approx(hit.score, abs=1e-6)) for hit in hits
    ]
    assert found[0].content == hits[0].text
    assert found[0].meta == {"title": hits[0].title, **hits[0].metadata}


def test_filters_narrow_a_filter_among_the_options(engine: Engine, empty: str) -> None:
    engine.upsert(empty, documents(20))
    store = DSearchDocumentStore(engine=engine, collection=empty)
    retriever = DSearchRetriever(store, top_k=20, options={"filter": {"i": {"gte": 5}}})
    below = {"field": "meta.i", "operator": "<", "value": 10}
    found = retriever.run("river music", filters=below)["documents"]
    assert sorted(item.meta["i"] for item in found) == [5, 6, 7, 8, 9]
    assert len(retriever.run("river music")["documents"]) == 15
    own = DSearchRetriever(store, top_k=20, filters=below)
    assert len(own.run("river music")["documents"]) == 10
    above = {"field": "meta.i", "operator": ">=", "value": 17}  # a run's filters and number go first
    assert sorted(item.meta["i"] for item in own.run("river music", above)["documents"]) == [17, 18, 19]
    assert len(own.run("river music", filters={})["documents"]) == 20
    assert len(own.run("river music", top_k=2)["documents"]) == 2
    assert store.delete_by_filter(below) == 10
    with pytest.raises(FilterError, match="to delete every document, call delete_all_documents"):
        store.delete_by_filter({})
    assert store.count_documents() == 10


def test_a_pipeline_is_serialized_by_address(address: str, remote: Client) -> None:
    store = DSearchDocumentStore(address, "kept")
    store.write_documents([Document(content="river")], policy=DuplicatePolicy.OVERWRITE)
    retriever = DSearchRetriever(store, filters={"field": "x", "operator": "==", "value": None}, top_k=2)
    again = DSearchRetriever.from_dict(retriever.to_dict())
    assert again.to_dict() == retriever.to_dict()
    assert [item.content for item in again.run("river")["documents"]] == ["river"]
    with pytest.raises(InvalidRequest, match="give an address to serialize it"):
        DSearchDocumentStore(engine=remote, collection="kept").to_dict()
    with pytest.raises(InvalidRequest, match="give an address or an engine, and not both"):
        DSearchDocumentStore(address, engine=remote)


def test_what_cannot_be_stored_or_asked_for_is_named(engine: Engine, empty: str) -> None:
    store = DSearchDocumentStore(engine=engine, collection=empty)
    with pytest.raises(ValueError, match="has no text; only texts are stored"):
        store.write_documents([Document(blob=ByteStream(b"x"))])
    for wrong, kind in ((None, "NoneType"), ("", "str"), ({}, "dict")):  # what is empty is none, too
        with pytest.raises(ValueError, match=f"a list of haystack.Document; one is a {kind}"):
            store.write_documents([Document(content="river"), wrong])  # type: ignore[list-item]
    one, two = ({"field": "meta.a", "operator": "==", "value": value} for value in (1, 2))
    equal = [{"a": {"eq": value}} for value in (1, 2)]
    assert filter_of({"operator": "NOT", "conditions": [one, two]}) == {"not": {"and": equal}}
    nothing = {"or": [{"a": {"exists": False}}, {"a": {"eq": None}}]}
    listed = {"field": "meta.a", "operator": "in", "value": [None, 1]}
    assert filter_of(listed) == {"or": [nothing, equal[0]]}
    for filters, told in (
        ({"field": "meta.a", "operator": "~", "value": 1}, "operator='~'; use ==, !="),
        ({"operator": "XOR", "conditions": []}, "operator='XOR'; use"),
        ({"field": "meta.a", "operator": "==", "value": [1]}, "use a text, a number or a boolean"),
        ({"field": "meta.a", "operator": ">", "value": True}, "use a number or a time such as"),
    ):
        with pytest.raises(FilterError, match=told):
            filter_of(filters)
