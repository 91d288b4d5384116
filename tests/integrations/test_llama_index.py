"""LlamaIndex: its vector store and retriever, also under an index, on a local engine and a real server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from support.late import late
from support.service.service_fakes import documents

import dsearch
from dsearch.client import Client, LocalEngine
from dsearch.errors import InvalidRequest

llama_index = late("llama_index.core")
schema = late("llama_index.core.schema")
stores = late("llama_index.core.vector_stores.types")
utils = late("llama_index.core.vector_stores.utils")
adapter = late("dsearch.integrations.llama_index")

pytestmark = pytest.mark.server

Engine = Client | LocalEngine


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    pytest.importorskip("llama_index.core", reason="llama-index-core is not installed (extra llama-index)")


def nodes() -> list[schema.TextNode]:
    texts = ["river stone", "lamp music", "cat and dog", "river music"]
    return [
        schema.TextNode(
            id_=f"n{i}",
            text=text,
            metadata={"i": i, "dc.title": text, "tags": ["a", "b"] if i % 2 else ["a"]},
            relationships={schema.NodeRelationship.SOURCE: schema.RelatedNodeInfo(node_id=f"doc{i % 2}")},
        )
        for i, text in enumerate(texts)
    ]


@pytest.fixture
def store(engine: Engine, empty: str) -> adapter.DSearchVectorStore:
    made = adapter.DSearchVectorStore(engine=engine, collection=empty)
    assert made.add(nodes()) == ["n0", "n1", "n2", "n3"]
    return made


def test_nodes_come_back_whole(store: adapter.DSearchVectorStore) -> None:
    result = store.query(stores.VectorStoreQuery(query_str="river", similarity_top_k=2))
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
    retriever = adapter.DSearchRetriever(engine, empty, k=3, options=chosen)
    for found in (retriever.retrieve("river music"), asyncio.run(retriever.aretrieve("river music"))):
        assert [(item.node.node_id, item.score) for item in found] == [
            (hit.id, pytest.approx(hit.score, abs=1e-6)) for hit in hits
        ]
        assert found[0].node.get_content() == hits[0].text
        assert found[0].node.metadata == {"title": hits[0].title, **hits[0].metadata}


def test_an_index_over_the_store_searches_by_text(store: adapter.DSearchVectorStore) -> None:
    index = llama_index.VectorStoreIndex.from_vector_store(store, embed_model=llama_index.MockEmbedding(1))
    only = stores.MetadataFilters(
        filters=[stores.MetadataFilter(key="i", value=0, operator=stores.FilterOperator.GT)]
    )
    found = index.as_retriever(similarity_top_k=1, filters=only).retrieve(schema.QueryBundle("river"))
    assert [item.node.node_id for item in found] == ["n3"]
    index.insert_nodes([schema.TextNode(id_="n9", text="stone lamp")])
    assert [node.get_content() for node in store.get_nodes(["n9", "missing"])] == ["stone lamp"]


def test_nodes_are_deleted_by_source_id_and_filter(store: adapter.DSearchVectorStore) -> None:
    store.delete("doc0")
    assert {node.node_id for node in store.get_nodes()} == {"n1", "n3"}
    low = stores.MetadataFilters(filters=[stores.MetadataFilter(key="i", value=1)])
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
    ("EQ", "i", 1, {"n1"}),
    ("NE", "i", 1, {"n0", "n2", "n3"}),
    ("GTE", "i", 2, {"n2", "n3"}),
    ("LT", "i", 1, {"n0"}),
    ("LTE", "i", 1, {"n0", "n1"}),
    ("IN", "i", [0, 3], {"n0", "n3"}),
    ("NIN", "i", [0, 3], {"n1", "n2"}),
    ("ANY", "tags", ["b", "c"], {"n1", "n3"}),
    ("ALL", "tags", ["a", "b"], {"n1", "n3"}),
    ("CONTAINS", "tags", "b", {"n1", "n3"}),
    ("IS_EMPTY", "missing", None, {"n0", "n1", "n2", "n3"}),
    ("EQ", "dc.title", "lamp music", {"n1"}),  # one key, though it has a dot
]


def test_filters_mean_what_they_mean_in_llama_index(store: adapter.DSearchVectorStore) -> None:
    for operator, key, value, expected in FILTERS:
        meant = stores.FilterOperator[operator]
        only = stores.MetadataFilters(filters=[stores.MetadataFilter(key=key, value=value, operator=meant)])
        assert {node.node_id for node in store.get_nodes(filters=only)} == expected, operator
    by_id = {node.node_id: node.metadata for node in nodes()}
    either = [stores.MetadataFilter(key="i", value=0), stores.MetadataFilter(key="i", value=1)]
    for condition, expected in (
        (stores.FilterCondition.AND, set()),
        (stores.FilterCondition.OR, {"n0", "n1"}),
        (stores.FilterCondition.NOT, {"n2", "n3"}),
    ):
        plain = stores.MetadataFilters(filters=[*either], condition=condition)
        reference = utils.build_metadata_filter_fn(by_id.__getitem__, plain)
        assert {id for id in by_id if reference(id)} == expected, condition
        inner = stores.MetadataFilters(filters=[*either], condition=condition)
        found = store.get_nodes(filters=stores.MetadataFilters(filters=[inner]))
        assert {node.node_id for node in found} == expected, condition
    sources = stores.VectorStoreQuery(query_str="river", similarity_top_k=9, doc_ids=["doc1"])
    assert set(store.query(sources).ids or []) == {"n1", "n3"}


def test_an_empty_text_is_empty(store: adapter.DSearchVectorStore) -> None:
    store.add(
        [schema.TextNode(id_=f"e{i}", text="river", metadata={"tag": tag}) for i, tag in enumerate("x ")]
    )
    store.engine.update_metadata(store.collection, "e1", {"tag": ""})
    empty = stores.MetadataFilter(key="tag", value=None, operator=stores.FilterOperator.IS_EMPTY)
    found = store.get_nodes(filters=stores.MetadataFilters(filters=[empty]))
    assert {node.node_id for node in found} == {"n0", "n1", "n2", "n3", "e1"}


def test_filters_of_a_query_narrow_those_of_the_store(store: adapter.DSearchVectorStore) -> None:
    """A store may be bound to a part of a collection, by tenant: no query leaves it."""
    bound = store.model_copy(update={"options": {"filter": {"i": {"gte": 2}}}})
    below = stores.MetadataFilters(
        filters=[stores.MetadataFilter(key="i", value=3, operator=stores.FilterOperator.LT)]
    )
    for options, expected in (
        ({}, {"n2", "n3"}),
        ({"filters": below}, {"n2"}),
        ({"doc_ids": ["doc1"]}, {"n3"}),
        ({"filters": below, "doc_ids": ["doc1"]}, set()),
    ):
        asked = stores.VectorStoreQuery(query_str="river cat music", similarity_top_k=9, **options)  # pyright: ignore
        assert set(bound.query(asked).ids or []) == expected, options


def test_a_node_has_the_metadata_of_its_document_as_it_stands(store: adapter.DSearchVectorStore) -> None:
    store.engine.update_metadata(store.collection, "n0", {"i": 7, "tags": None, "new": True})
    (node,) = store.get_nodes(["n0"])
    assert node.metadata == {"i": 7, "dc.title": "river stone", "new": True}
    own = schema.TextNode(id_="own", text="x", metadata={"doc_id": "the user's", "i": 1})
    store.add([own])
    (node,) = store.get_nodes(["own"])
    assert node.metadata == {"doc_id": "the user's", "i": 1}


class Recorder:
    """An engine that notes how diverse the hits of a search are to be."""

    diversity: float

    def search(self, *_: object, diversity: float, **__: object) -> SimpleNamespace:
        self.diversity = diversity
        return SimpleNamespace(hits=[])


def test_modes_leave_a_leg_out(store: adapter.DSearchVectorStore) -> None:
    def scores(**query: object) -> list[float]:
        asked = stores.VectorStoreQuery(query_str="river", similarity_top_k=4, **query)  # pyright: ignore
        return [round(score, 5) for score in store.query(asked).similarities or []]

    engine, name = store.engine, store.collection

    def expected(mode: str) -> list[float]:
        return [round(hit.score, 5) for hit in engine.search(name, "river", limit=4, mode=mode).hits]

    assert scores(mode=stores.VectorStoreQueryMode.TEXT_SEARCH) == expected("keyword")
    assert scores(mode=stores.VectorStoreQueryMode.HYBRID, alpha=1.0) == expected("dense")
    assert scores(mode=stores.VectorStoreQueryMode.HYBRID, alpha=0.0) == expected("keyword")
    assert scores(mode=stores.VectorStoreQueryMode.HYBRID, alpha=0.5) == expected("hybrid") == scores()
    apart = [round(hit.score, 5) for hit in engine.search(name, "river", limit=4, diversity=0.75).hits]
    assert scores(mode=stores.VectorStoreQueryMode.MMR, mmr_threshold=0.25) == apart
    for threshold, diversity in ((0.0, 1.0), (1.0, 0.0), (None, 0.5)):
        asked = stores.VectorStoreQuery(
            query_str="river", mode=stores.VectorStoreQueryMode.MMR, mmr_threshold=threshold
        )
        recorder = Recorder()
        adapter.DSearchVectorStore(engine=recorder, collection=name).query(asked)
        assert recorder.diversity == diversity, threshold
    store.options = {"mode": "keyword"}
    assert scores() == expected("keyword")  # what a query does not say, the store's options do
    assert scores(mode=stores.VectorStoreQueryMode.HYBRID) == expected("hybrid") != expected("keyword")
    assert scores(alpha=1.0) == expected("dense")


def test_what_there_is_none_of_is_refused_with_a_way_out(store: adapter.DSearchVectorStore) -> None:
    with pytest.raises(InvalidRequest, match="give query_str"):
        store.query(stores.VectorStoreQuery(query_embedding=[1.0]))
    with pytest.raises(InvalidRequest, match="query mode 'svm'; use default, hybrid"):
        store.query(stores.VectorStoreQuery(query_str="x", mode=stores.VectorStoreQueryMode.SVM))
    with pytest.raises(InvalidRequest, match="use filters or doc_ids"):
        store.query(stores.VectorStoreQuery(query_str="x", node_ids=["n1"]))
    match = stores.MetadataFilter(key="i", value="x", operator=stores.FilterOperator.TEXT_MATCH)
    with pytest.raises(InvalidRequest, match="filter operator 'text_match'; use ==, !="):
        adapter.filter_of(stores.MetadataFilters(filters=[match]))
    with pytest.raises(dsearch.DsearchError, match=r"can be stored"):
        store.add([schema.TextNode(id_="", text="x")])
