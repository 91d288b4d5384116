"""Strings of metadata fields are words of a document: built, fresh, updated, deleted, and over shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cluster_checks import require_same, sharded
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.options import checked_fields, keyword_text
from dsearch.errors import Conflict, InvalidRequest
from dsearch.search_options import SearchOptions
from dsearch.types import Document

FIELDS = ["authors", "about.tags"]


def paper(number: int, author: str, *tags: str) -> Document:
    metadata = {"authors": [author, 7, "Everybody"], "about": {"tags": list(tags)}, "other": "hidden"}
    return Document(f"d{number}", f"text number{number} of many", metadata=metadata)


@pytest.fixture
def papers(engine: SearchEngine) -> Collection:
    papers = engine.create("papers", search_fields=FIELDS)
    papers.ingest([paper(n, f"Author{n}", f"tag{n % 3}", "shared") for n in range(9)])
    return papers


def ids(collection: Collection, query: str) -> set[str]:
    return {hit.id for hit in collection.search(query, mode="keyword", limit=20).hits}


def test_words_of_the_fields_find_documents_and_others_do_not(papers: Collection) -> None:
    assert papers.describe().search_fields == FIELDS
    assert ids(papers, "author4") == {"d4"}
    assert ids(papers, "tag1") == {"d1", "d4", "d7"}
    assert len(ids(papers, "everybody")) == 9
    assert ids(papers, "hidden") == set()
    assert ids(papers, "+author4 shared") == {"d4"}
    hit = papers.search("author4 text", explain=True).hits[0]
    assert hit.explain is not None
    assert sum(hit.explain.terms["author4"]) > 0


def test_without_them_they_are_metadata(engine: SearchEngine) -> None:
    plain = engine.create("plain")
    plain.ingest([paper(0, "Author0", "tag0")])
    assert plain.describe().search_fields == []
    assert ids(plain, "author0 tag0") == set()


def test_writes_and_rebuilds_keep_them(papers: Collection) -> None:
    same_text = paper(4, "Renamed", "moved")
    papers.upsert([same_text, paper(10, "Newcomer", "tag1")])
    papers.delete(["d7"])

    def require_present() -> None:
        assert ids(papers, "author4") == set()
        assert ids(papers, "renamed") == ids(papers, "moved") == {"d4"}
        assert ids(papers, "tag1") == {"d1", "d10"}
        assert ids(papers, "newcomer") == {"d10"}

    require_present()
    fresh = papers.search("renamed text tag1", limit=20)
    papers.refresh()
    assert papers.describe().search_fields == FIELDS
    require_present()
    assert {hit.id for hit in papers.search("renamed text tag1", limit=20).hits} == {
        hit.id for hit in fresh.hits
    }
    papers.update_metadata("d10", {"authors": "Patched"})
    assert ids(papers, "newcomer") == set()
    assert ids(papers, "patched") == {"d10"}


def test_it_opens_with_them(papers: Collection, engine: SearchEngine) -> None:
    papers.upsert([paper(10, "Newcomer", "tag1")])
    home = engine.home.path
    engine.close()
    with SearchEngine(home, encoder=HashingEncoder()) as again:
        assert ids(again.collection("papers"), "newcomer") == {"d10"}
        assert ids(again.collection("papers"), "author3") == {"d3"}


def test_shards_answer_as_one_machine(papers: Collection, tmp_path: Path) -> None:
    with sharded(papers, tmp_path / "shards", 2) as shards:
        for query in ("author4 text", "tag1", "everybody number2"):
            (answer,) = shards.search([query], "v0", SearchOptions(explain=True))
            require_same(answer, papers.search(query, explain=True))


def test_other_fields_are_another_collection(papers: Collection, engine: SearchEngine) -> None:
    assert engine.collection_or_new("papers", search_fields=FIELDS[::-1]).name == papers.name
    assert engine.collection_or_new("papers").name == papers.name
    with pytest.raises(Conflict, match=r"searches the fields authors, about\.tags"):
        engine.collection_or_new("papers", search_fields=["authors"])
    with pytest.raises(InvalidRequest):
        engine.create("wrong", search_fields=["a..b"])
    with pytest.raises(InvalidRequest, match="use at most 16"):
        engine.create("many", search_fields=[f"f{n}" for n in range(17)])
    assert engine.names() == ["papers"]


def test_no_search_fields_are_other_ones_too(papers: Collection, engine: SearchEngine) -> None:
    with pytest.raises(Conflict, match=r"searches the fields authors, about\.tags"):
        engine.collection_or_new("papers", search_fields=[])


def test_fields_are_counted_once_and_sixteen_are_not_too_many() -> None:
    names = [f"f{number}" for number in range(16)]
    assert checked_fields([*names[:8], *names[:8]]) == tuple(names[:8])
    assert checked_fields(names) == tuple(names)
    with pytest.raises(InvalidRequest, match="17 search fields; use at most 16"):
        checked_fields([*names, "more"])


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"a": {"b": "deep"}}, ["deep"]),
        ({"a": {"b": ["one", 7, None, "two"]}}, ["one", "two"]),
        ({"a": "text"}, []),  # no field of a text is the text
        ({"a": ["text"]}, []),
        ({"a": {"b": {"c": "deeper"}}}, []),
        ({}, []),
    ],
    ids=["string", "list", "text", "texts", "map", "nothing"],
)
def test_the_words_of_a_field_are_strings_at_its_path(metadata: dict[str, Any], words: list[str]) -> None:
    document = Document("d", "of the text", metadata=metadata)
    assert keyword_text(document, ["a.b"]).splitlines() == ["of the text", *words]
