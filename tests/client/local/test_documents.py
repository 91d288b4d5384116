"""Documents of an engine in this process: numbered, counted, and refused one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.fakes import HashingEncoder

import dsearch
from dsearch.client import LocalEngine
from dsearch.client.wire import SHOWN_PROBLEMS
from dsearch.errors import CorruptData, InvalidDocument, InvalidRequest
from dsearch.types import Document, EmbeddedDocument


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    with dsearch.open(tmp_path / "home", encoder=HashingEncoder) as opened:
        opened.create_collection("food")
        opened.create_collection("given", dimension=2)
        yield opened


def given(id: str, *embedding: float) -> EmbeddedDocument:
    return EmbeddedDocument(id, f"text of {id}", embedding=list(embedding))


def test_a_document_refused_for_its_embedding_leaves_its_id_free(engine: LocalEngine) -> None:
    """Within a batch the first of an id counts; one that could not be stored is none."""
    written = engine.upsert("given", [given("a", 1.0), given("b", 0.0, 1.0)])
    assert (written.inserted, written.refused) == (1, 1)
    assert [(problem.line, "(id 'a')" in problem.detail) for problem in written.problems] == [(1, True)]
    more = [given(str(number), 1.0, 0.0) for number in range(1000)]
    again = engine.upsert("given", [given("c", 1.0), *more[:999], given("c", 1.0, 0.0)])
    assert (again.inserted, again.refused) == (1000, 1)
    same = engine.upsert("given", [given("c", 1.0), *more[:999], given("c", 1.0, 0.0)])
    assert (same.inserted, same.updated, same.unchanged, same.refused) == (0, 0, 1000, 1)
    assert engine.get("given", "c").text == "text of c"


def test_an_id_that_comes_twice_is_refused_with_the_number_of_the_first(engine: LocalEngine) -> None:
    documents = [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}, {"id": "a", "text": "z"}]
    written = engine.upsert("food", documents)
    assert (written.inserted, written.refused) == (2, 1)
    [problem] = written.problems
    assert problem.line == 3
    assert "1" in problem.detail
    assert engine.get("food", "a").text == "x"


def test_what_was_written_is_counted_and_problems_are_shown_up_to_a_number(engine: LocalEngine) -> None:
    first = engine.upsert("food", [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}])
    assert (first.inserted, first.updated, first.unchanged) == (2, 0, 0)
    bad = [{"id": f"bad{number}", "words": 1} for number in range(SHOWN_PROBLEMS + 5)]
    second = engine.upsert("food", [*bad, {"id": "a", "text": "x"}, {"id": "b", "text": "new"}])
    assert (second.inserted, second.updated, second.unchanged) == (0, 1, 1)
    assert second.refused == SHOWN_PROBLEMS + 5
    assert [problem.line for problem in second.problems] == list(range(1, SHOWN_PROBLEMS + 1))
    assert second.sequence > first.sequence
    with pytest.raises(InvalidDocument, match=r"^none of 2 documents can be stored; the first: "):
        engine.upsert("food", bad[:2])
    assert engine.upsert("food", []).inserted == 0


def test_embeddings_are_one_for_each_document(engine: LocalEngine) -> None:
    documents = [Document("a", "x"), {"id": "b", "text": "y"}]
    written = engine.upsert("given", documents, embeddings=np.eye(2, dtype=np.float32))
    assert written.inserted == 2
    assert engine.search("given", vector=[0.0, 1.0]).hits[0].id == "b"
    with pytest.raises(InvalidRequest, match=r"^1 embedding for 2 documents; give one each$"):
        engine.upsert("given", documents, embeddings=[[1.0, 0.0]])
    with pytest.raises(InvalidDocument, match=r"\(id 'a'\)"):
        engine.upsert("given", documents, embeddings=[[0.0] * 3, [0.0] * 3])


def test_collections_are_listed_without_those_that_are_damaged(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [info.name for info in engine.collections()] == ["food", "given"]
    describe = engine.engine.collection

    def failing(name: str) -> object:
        if name == "food":
            raise CorruptData("damaged")
        return describe(name)

    monkeypatch.setattr(engine.engine, "collection", failing)
    assert [info.name for info in engine.collections()] == ["given"]
