"""What a call says goes before what was set, and reaches the search: without a server, by a recorder."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from dsearch.client.calls import FindOptions
from dsearch.errors import InvalidRequest
from dsearch.fields import MAX_DELETED_IDS
from dsearch.integrations.stored import every_document
from dsearch.types import Hit

langchain = pytest.importorskip("dsearch.integrations.langchain")


class Recorder:
    """An engine that notes each call; a search finds one hit."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args, options))
            return SimpleNamespace(hits=[Hit(1, "d1", 0.25, 3.5, "Title", "text", {"year": 7})])

        return call


def test_the_options_of_a_call_go_before_those_of_the_retriever() -> None:
    engine = Recorder()
    options = {"mode": "dense", "filter": {"year": 7}}
    retriever = langchain.DSearchRetriever(engine=engine, collection="papers", k=3, options=options)
    retriever.invoke("river")
    retriever.invoke("river", mode="keyword", k=9)
    retriever.invoke("river", filter=None)
    asked = {"limit": 3, "mode": "dense", "filter": {"year": 7}}
    assert engine.calls == [
        ("search", ("papers", "river"), asked),
        ("search", ("papers", "river"), {**asked, "limit": 9, "mode": "keyword"}),
        ("search", ("papers", "river"), {**asked, "filter": None}),
    ]


def test_options_of_a_store_reach_the_search() -> None:
    engine = Recorder()
    store = langchain.DSearchVectorStore(engine, "papers")
    (document,) = store.similarity_search("river", k=2, mode="dense")
    assert (document.id, document.page_content, document.metadata) == (
        "d1",
        "text",
        {"title": "Title", "year": 7},
    )
    assert store.similarity_search_with_score("river")[0][1] == 3.5
    assert store.similarity_search_with_relevance_scores("river", k=5)[0][1] == 0.25
    store.delete(["d1"], filter={"year": 7})
    assert engine.calls == [
        ("search", ("papers", "river"), {"limit": 2, "mode": "dense"}),
        ("search", ("papers", "river"), {"limit": 4}),
        ("search", ("papers", "river"), {"limit": 5}),
        ("delete_many", ("papers",), {"ids": ["d1"], "filter": {"year": 7}}),
    ]


def test_no_deletion_is_larger_than_a_server_takes() -> None:
    """Each adapter deletes as many documents as it is told to, or has, and none sends an empty request."""
    haystack = pytest.importorskip("dsearch.integrations.haystack")
    llama_index = pytest.importorskip("dsearch.integrations.llama_index")
    ids = [f"d{number}" for number in range(MAX_DELETED_IDS + 1)]
    page = SimpleNamespace(documents=[SimpleNamespace(id=id) for id in ids], next=None)
    deletions: dict[str, Callable[[Any, list[str]], Any]] = {
        "langchain": lambda engine, some: langchain.DSearchVectorStore(engine, "c").delete(some),
        "haystack": lambda engine, some: haystack.DSearchDocumentStore(engine=engine).delete_documents(some),
        "haystack, all": lambda engine, _: haystack.DSearchDocumentStore(
            engine=engine
        ).delete_all_documents(),
        "llama_index": lambda engine, some: llama_index.DSearchVectorStore(
            engine=engine, collection="c"
        ).delete_nodes(some),
        "llama_index, all": lambda engine, _: llama_index.DSearchVectorStore(
            engine=engine, collection="c"
        ).clear(),
    }
    for name, delete in deletions.items():
        for some in (ids, []):
            engine = Recorder()
            engine.documents = lambda *_, some=some, **__: (
                page if some else SimpleNamespace(documents=[], next=None)
            )
            delete(engine, some)
            parts = [options["ids"] for call, _, options in engine.calls if call == "delete_many"]
            assert [id for part in parts for id in part] == some, name
            assert all(1 <= len(part) <= MAX_DELETED_IDS for part in parts), name


def test_every_page_of_documents_is_read() -> None:
    """What is deleted or shown as all of them is all of them."""
    pages = {None: (["a", "b"], "second"), "second": (["c"], "third"), "third": ([], None)}
    asked: list[dict[str, Any]] = []

    def documents(collection: str, **options: Any) -> Any:
        asked.append({"collection": collection, **options})
        ids, following = pages[options["cursor"]]
        return SimpleNamespace(documents=ids, next=following)

    engine: Any = SimpleNamespace(documents=documents)
    assert [*every_document(engine, "papers", {"year": 7})] == ["a", "b", "c"]
    assert [one["cursor"] for one in asked] == [None, "second", "third"]
    assert all((one["collection"], one["filter"]) == ("papers", {"year": 7}) for one in asked)


def test_some_that_were_not_stored_are_told_though_others_were() -> None:
    engine = Recorder()
    refused = SimpleNamespace(inserted=1, refused=2, problems=[SimpleNamespace(detail="an id is too long")])
    engine.upsert = lambda *_: refused
    store = langchain.DSearchVectorStore(engine, "papers")
    with pytest.raises(InvalidRequest, match="2 documents were not stored; the first: an id is too long"):
        store.add_texts(["one", "two", "three"])


@pytest.mark.parametrize("given", ["metadatas", "ids"])
def test_one_of_each_is_given_for_a_text(given: str) -> None:
    store = langchain.DSearchVectorStore(Recorder(), "papers")
    value: list[Any] = [{}] if given == "metadatas" else ["a"]
    with pytest.raises(InvalidRequest, match=f"1 {given} for 2 texts; give one each"):
        store.add_texts(["one", "two"], **{given: value})


def _langchain(engine: Any, of_object: dict[str, Any], of_call: dict[str, Any]) -> None:
    retriever = langchain.DSearchRetriever(engine=engine, collection="c", k=7, options=of_object)
    retriever.invoke("river", **of_call)


def _langchain_store(engine: Any, of_object: dict[str, Any], of_call: dict[str, Any]) -> None:
    store = langchain.DSearchVectorStore(engine, "c")
    store.similarity_search("river", k=7, **of_object, **of_call)
    store.similarity_search_with_score("river", k=7, **of_object, **of_call)
    if "score_threshold" not in {**of_object, **of_call}:  # LangChain has one of its own
        store.similarity_search_with_relevance_scores("river", k=7, **of_object, **of_call)


def _haystack(engine: Any, of_object: dict[str, Any], of_call: dict[str, Any]) -> None:
    haystack = pytest.importorskip("dsearch.integrations.haystack")
    store = haystack.DSearchDocumentStore(engine=engine, collection="c")
    retriever = haystack.DSearchRetriever(store, top_k=7, options={**of_object, **of_call})
    retriever.run("river")
    store.search("river", top_k=7, **of_object, **of_call)


def _llama_index(engine: Any, of_object: dict[str, Any], of_call: dict[str, Any]) -> None:
    llama_index = pytest.importorskip("dsearch.integrations.llama_index")
    types = pytest.importorskip("llama_index.core.vector_stores.types")
    store = llama_index.DSearchVectorStore(engine=engine, collection="c", options=of_object)
    store.query(types.VectorStoreQuery(query_str="river", similarity_top_k=7), **of_call)
    retriever = llama_index.DSearchRetriever(engine, "c", k=7, options={**of_object, **of_call})
    retriever.retrieve("river")


def _dspy(engine: Any, of_object: dict[str, Any], of_call: dict[str, Any]) -> None:
    dspy = pytest.importorskip("dsearch.integrations.dspy")
    retriever = dspy.DSearchRetriever(engine, "c", 7, **of_object)
    retriever("river", **of_call)
    copy.deepcopy(retriever)("river", **of_call)


ADAPTERS = [_langchain, _langchain_store, _haystack, _llama_index, _dspy]
"""That of MTEB is in test_mteb.py, which is slow to import."""


@pytest.mark.parametrize("search", ADAPTERS)
def test_each_option_reaches_each_search_of_each_adapter(search: Callable[..., None]) -> None:
    """Given to the object or to its call; the number of documents is an argument of its own."""
    own = {"limit", "episode"} if search is _dspy else {"limit"}
    for name in {*get_type_hints(FindOptions)} - own:
        value: Any = {"year": 7} if name == "filter" else "dense" if name == "mode" else f"given-{name}"
        for of_object, of_call in (({name: value}, {}), ({}, {name: value})):
            engine = Recorder()
            search(engine, of_object, of_call)
            searches = [call for call in engine.calls if call[0] == "search"]
            assert searches, engine.calls
            for _, (collection, *_), options in searches:
                given = options.get(name)
                assert given in (value, {"and": [value]}), f"{name} of {of_object or of_call}: {options}"
                assert (collection, options["limit"]) == ("c", 7), name


@pytest.mark.parametrize(
    ("address", "remote"),
    [("http://127.0.0.1:8080", True), ("https://search.example", True), ("index", False), ("httpd", False)],
)
def test_a_store_of_haystack_is_of_a_server_or_of_a_folder(
    monkeypatch: pytest.MonkeyPatch, address: str, remote: bool
) -> None:
    haystack = pytest.importorskip("dsearch.integrations.haystack")
    opened: list[tuple[str, str]] = []
    for way in ("Client", "open"):
        monkeypatch.setattr(
            haystack.dsearch, way, lambda place, way=way: opened.append((way, place)) or Recorder()
        )
    haystack.DSearchDocumentStore(address)
    assert opened == [("Client" if remote else "open", address)]


def test_a_retriever_of_haystack_is_serialized_with_all_that_it_was_made_of() -> None:
    haystack = pytest.importorskip("dsearch.integrations.haystack")
    store = haystack.DSearchDocumentStore(engine=Recorder(), collection="c")
    store.address = "http://127.0.0.1:9"
    filters = {"field": "meta.a", "operator": "==", "value": 1}
    own = {"filters": filters, "top_k": 7, "options": {"mode": "dense"}}
    parameters = inspect.signature(haystack.DSearchRetriever.__init__).parameters
    assert {"self", "document_store", *own} == {*parameters}
    told = haystack.DSearchRetriever(store, **own).to_dict()["init_parameters"]
    assert {name: told[name] for name in own} == own
    assert told["document_store"]["init_parameters"] == {"address": store.address, "collection": "c"}
