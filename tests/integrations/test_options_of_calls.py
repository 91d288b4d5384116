"""What a call says goes before what was set, and reaches the search: without a server, by a recorder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.errors import InvalidRequest
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


@pytest.mark.parametrize("given", ["metadatas", "ids"])
def test_one_of_each_is_given_for_a_text(given: str) -> None:
    store = langchain.DSearchVectorStore(Recorder(), "papers")
    value: list[Any] = [{}] if given == "metadatas" else ["a"]
    with pytest.raises(InvalidRequest, match=f"1 {given} for 2 texts; give one each"):
        store.add_texts(["one", "two"], **{given: value})
