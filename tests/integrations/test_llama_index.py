"""LlamaIndex: its vector store and retriever, also under an index, on a local engine and a real server."""

from __future__ import annotations

import asyncio

import pytest
from support.service.service_fakes import documents

import dsearch
from dsearch.client import Client, LocalEngine
from dsearch.errors import InvalidRequest

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed (extra llama-index)")

from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import NodeRelationship, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from dsearch.integrations.llama_index import DSearchRetriever, DSearchVectorStore, filter_of

pytestmark = pytest.mark.server

Engine = Client | LocalEngine


def nodes() -> list[TextNode]:
    texts = ["river stone", "lamp music", "cat and dog", "river music"]
    return [
        TextNode(
            id_=f"n{i}",
            text=text,
            metadata={"i": i, "dc.title": text, "tags": ["a", "b"] if i % 2 else ["a"]},
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"doc{i % 2}")},
        )
        for i, text in enumerate(texts)
    ]


@pytest.fixture
def store(engine: Engine, empty: str) -> DSearchVectorStore:
    made = DSearchVectorStore(engine=engine, collection=empty)
    assert made.add(nodes()) == ["n0", "n1", "n2", "n3"]
    return made


def test_nodes_come_back_whole(store: DSearchVectorStore) -> None:
    result = store.query(VectorStoreQuery(query_str="river", similarity_top_k=2))
    assert result.nodes is not None
    assert result.ids == [node.node_id for node in result.nodes]
    assert set(result.ids) == {"n0", "n3"}
    assert result.similarities == sorted(result.similarities or [], reverse=True)
    original = {node.node_id: node for node in nodes()}
    for node in result.nodes:
        assert node.to_dict() == original[node.node_id].to_dict()
        assert node.ref_doc_id == original[node.node_id].ref_doc_id


def test_scores_and_options_are_the_engines(engine: Engine, empty: str) -> None:
    engine.upsert(empty, documents(20))
    hits = engine.search(empty, "river music", limit=3, filter={"i": {"lt": 10}}, mode="dense").hits
    chosen = {"filter": {"i": {"lt": 10}}, "mode": "dense"}
    retriever = DSearchRetriever(engine, empty, k=3, options=chosen)
    for found in (retriever.retrieve("river music"), asyncio.run(retriever.aretrieve("river music"))):
        assert [(item.node.node_id, item.score) for item in found] == [
            (hit.id, pytest.approx(hit.score, abs=1e-6)) for hit in hits
        ]
        assert found[0].node.get_content() == hits[0].text
        assert found[0].node.metadata == {"title": hits[0].title, **hits[0].metadata}


def test_an_index_over_the_store_searches_by_text(store: DSearchVectorStore) -> None:
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(1))
    only = MetadataFilters(filters=[MetadataFilter(key="i", value=0, operator=FilterOperator.GT)])
    found = index.as_retriever(similarity_top_k=1, filters=only).retrieve(QueryBundle("river"))
    assert [item.node.node_id for item in found] == ["n3"]
    index.insert_nodes([TextNode(id_="n9", text="stone lamp")])
    assert [node.get_content() for node in store.get_nodes(["n9", "missing"])] == ["stone lamp"]


def test_nodes_are_deleted_by_source_id_and_filter(store: DSearchVectorStore) -> None:
    store.delete("doc0")
    assert {node.node_id for node in store.get_nodes()} == {"n1", "n3"}
    low = MetadataFilters(filters=[MetadataFilter(key="i", value=1)])
    store.delete_nodes(["n3"], filters=low)  # both have to hold
    assert {node.node_id for node in store.get_nodes()} == {"n1", "n3"}
    store.delete_nodes(["n3", "missing"])
    assert {node.node_id for node in store.get_nodes()} == {"n1"}
    store.clear()
    assert store.get_nodes() == []
    store.clear()
    with pytest.raises(InvalidRequest, match=r"neither node_ids nor filters; .* clear\(\)"):
        store.delete_nodes()


FILTERS = [
    (FilterOperator.EQ, "i", 1, {"n1"}),
    (FilterOperator.NE, "i", 1, {"n0", "n2", "n3"}),
    (FilterOperator.GTE, "i", 2, {"n2", "n3"}),
    (FilterOperator.LT, "i", 1, {"n0"}),
    (FilterOperator.LTE, "i", 1, {"n0", "n1"}),
    (FilterOperator.IN, "i", [0, 3], {"n0", "n3"}),
    (FilterOperator.NIN, "i", [0, 3], {"n1", "n2"}),
    (FilterOperator.ANY, "tags", ["b", "c"], {"n1", "n3"}),
    (FilterOperator.ALL, "tags", ["a", "b"], {"n1", "n3"}),
    (FilterOperator.CONTAINS, "tags", "b", {"n1", "n3"}),
    (FilterOperator.IS_EMPTY, "missing", None, {"n0", "n1", "n2", "n3"}),
    (FilterOperator.EQ, "dc.title", "lamp music", {"n1"}),  # one key, though it has a dot
]


def test_filters_mean_what_they_mean_in_llama_index(store: DSearchVectorStore) -> None:
    for operator, key, value, expected in FILTERS:
        only = MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])
        assert {node.node_id for node in store.get_nodes(filters=only)} == expected, operator
    either = [MetadataFilter(key="i", value=0), MetadataFilter(key="i", value=1)]
    for condition, expected in (
        (FilterCondition.AND, set()),
        (FilterCondition.OR, {"n0", "n1"}),
        (FilterCondition.NOT, {"n0", "n1", "n2", "n3"}),
    ):
        inner = MetadataFilters(filters=[*either], condition=condition)
        found = store.get_nodes(filters=MetadataFilters(filters=[inner]))
        assert {node.node_id for node in found} == expected, condition
    sources = VectorStoreQuery(query_str="river", similarity_top_k=9, doc_ids=["doc1"])
    assert set(store.query(sources).ids or []) == {"n1", "n3"}


def test_modes_leave_a_leg_out(store: DSearchVectorStore) -> None:
    def scores(**query: object) -> list[float]:
        asked = VectorStoreQuery(query_str="river", similarity_top_k=4, **query)  # pyright: ignore
        return [round(score, 5) for score in store.query(asked).similarities or []]

    engine, name = store.engine, store.collection

    def expected(mode: str) -> list[float]:
        return [round(hit.score, 5) for hit in engine.search(name, "river", limit=4, mode=mode).hits]

    assert scores(mode=VectorStoreQueryMode.TEXT_SEARCH) == expected("keyword")
    assert scores(mode=VectorStoreQueryMode.HYBRID, alpha=1.0) == expected("dense")
    assert scores(mode=VectorStoreQueryMode.HYBRID, alpha=0.5) == expected("hybrid") == scores()
    apart = [round(hit.score, 5) for hit in engine.search(name, "river", limit=4, diversity=0.75).hits]
    assert scores(mode=VectorStoreQueryMode.MMR, mmr_threshold=0.25) == apart


def test_what_there_is_none_of_is_refused_with_a_way_out(store: DSearchVectorStore) -> None:
    with pytest.raises(InvalidRequest, match="give query_str"):
        store.query(VectorStoreQuery(query_embedding=[1.0]))
    with pytest.raises(InvalidRequest, match="query mode 'svm'; use default, hybrid"):
        store.query(VectorStoreQuery(query_str="x", mode=VectorStoreQueryMode.SVM))
    with pytest.raises(InvalidRequest, match="use filters or doc_ids"):
        store.query(VectorStoreQuery(query_str="x", node_ids=["n1"]))
    match = MetadataFilter(key="i", value="x", operator=FilterOperator.TEXT_MATCH)
    with pytest.raises(InvalidRequest, match="filter operator 'text_match'; use ==, !="):
        filter_of(MetadataFilters(filters=[match]))
    with pytest.raises(dsearch.DsearchError, match=r"can be stored"):
        store.add([TextNode(id_="", text="x")])
