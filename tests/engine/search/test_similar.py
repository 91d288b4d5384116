"""More like this: Rocchio's query against plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.search.similar import ALPHA, BETA, GAMMA
from dsearch.errors import DocumentNotFound, InvalidCursor, InvalidRequest
from dsearch.types import Document


def by_hand(
    collection: Collection, like: list[str], unlike: list[str], query: str | None = None
) -> dict[str, float]:
    """The dense score of every document that is no example."""
    rows = collection.store.rows_of([document.id for document in collection.store.list()])
    embeddings = {id: collection.store.embeddings([row])[0].astype(np.float64) for id, row in rows.items()}
    turned = BETA * np.mean([embeddings[id] for id in like], axis=0)
    if unlike:
        turned -= GAMMA * np.mean([embeddings[id] for id in unlike], axis=0)
    if query is not None:
        turned += ALPHA * HashingEncoder().encode_queries([query])[0]
    turned /= np.linalg.norm(turned)
    return {id: float(e @ turned) for id, e in embeddings.items() if id not in (*like, *unlike)}


def test_the_constants_are_the_textbooks() -> None:
    assert (ALPHA, BETA, GAMMA) == (1.0, 0.75, 0.15)


@pytest.mark.parametrize(
    ("like", "unlike", "query"),
    [
        (["d1"], [], None),
        (["d1", "d2"], ["d3"], None),
        (["d1"], ["d5", "d6"], "honey and juice"),
        (["d1", "d1", "d2"], [], None),
    ],
)
def test_scores_are_rocchios(
    collection: Collection, like: list[str], unlike: list[str], query: str | None
) -> None:
    collection.upsert([Document("fresh", "bread and cheese")])
    result = collection.similar(like, unlike=unlike, query=query, mode="dense", limit=50)
    expected = by_hand(collection, [*dict.fromkeys(like)], unlike, query)
    assert {hit.id: pytest.approx(hit.score, abs=1e-5) for hit in result.hits} == expected
    assert [hit.score for hit in result.hits] == sorted((hit.score for hit in result.hits), reverse=True)
    assert result.query == (query or "")


def test_a_long_document_counts_with_all_its_passages(engine: SearchEngine) -> None:
    collection = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
    long = Document(
        "long", "apple bread cheese dough egg flour grape honey ice juice kale lemon mango nut oat pear"
    )
    others = [Document(word, f"{word} {word}") for word in long.text.split()]
    collection.ingest([long, *others[:8]])
    collection.upsert(others[8:])
    row = collection.store.rows_of(["long"])["long"]
    further = collection.store.passages(np.array([row]))[row].embeddings
    whole = np.concatenate([collection.store.embeddings([row]), further]).astype(np.float64).sum(0)
    whole /= np.linalg.norm(whole)
    tail = collection.store.embeddings([collection.store.rows_of(["apple"])["apple"]])[0].astype(np.float64)
    turned = (BETA * (whole + tail) / 2) / np.linalg.norm((whole + tail) / 2 * BETA)
    found = {hit.id: hit.score for hit in collection.similar(["apple", "long"], limit=50).hits}
    rows = collection.store.rows_of([document.id for document in others])
    assert set(found) == set(rows) - {"apple"}
    for id, score in found.items():
        assert score == pytest.approx(float(collection.store.embeddings([rows[id]])[0] @ turned), abs=1e-5)


def test_words_count_in_hybrid_search(collection: Collection) -> None:
    dense = {hit.id: hit for hit in collection.similar(["d1"], query="honey", mode="dense", limit=50).hits}
    hybrid = collection.similar(["d1"], query="honey", explain=True, limit=50).hits
    assert any(hit.explain and hit.explain.terms for hit in hybrid)
    for hit in hybrid:
        assert hit.explain is not None
        assert hit.explain.dense[0] == pytest.approx(dense[hit.id].score, abs=1e-6)
        assert hit.score == pytest.approx(hit.explain.dense[0] + hit.explain.keyword[0], abs=1e-6)


def test_without_a_query_no_encoder_is_needed(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "_give_encoder", lambda: pytest.fail("the encoder was loaded"))
    assert len(collection.similar(["d1"], limit=50).hits) == 15


def test_pages_filters_and_thresholds(collection: Collection) -> None:
    whole = collection.similar(["d1"], unlike=["d2"], filter={"number": {"lt": 12}}, limit=50).hits
    assert {hit.id for hit in whole} == {f"d{n}" for n in range(12)} - {"d1", "d2"}
    page = collection.similar(["d1"], unlike=["d2"], filter={"number": {"lt": 12}}, limit=4)
    collection.upsert([Document("new", "apple")])
    more = collection.similar(
        ["d1"], unlike=["d2"], filter={"number": {"lt": 12}}, limit=4, cursor=page.next_cursor
    )
    assert [hit.id for hit in (*page.hits, *more.hits)] == [hit.id for hit in whole[:8]]
    cut = collection.similar(["d1"], score_threshold=whole[2].score, limit=50).hits
    assert all(hit.score >= whole[2].score for hit in cut)


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"like": []}, InvalidRequest, "like is empty; give the id of at least one document"),
        ({"like": ["d1"], "unlike": ["d1"]}, InvalidRequest, "'d1' is in like and in unlike"),
        ({"like": ["nobody"]}, DocumentNotFound, "no document 'nobody'"),
        ({"like": ["d1"], "unlike": ["nobody"]}, DocumentNotFound, "no document 'nobody'"),
        ({"like": ["d1"], "mode": "keyword"}, InvalidRequest, "likeness is of meaning: use hybrid or dense"),
        ({"like": ["d1"], "query": " "}, InvalidRequest, "query is empty"),
        ({"like": [f"x{i}" for i in range(101)]}, InvalidRequest, "101 ids in like; use at most 100"),
    ],
)
def test_bad_questions_are_told_why(
    collection: Collection, asked: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        collection.similar(**asked)


def test_a_document_without_an_embedding_is_not_there_yet(collection: Collection) -> None:
    collection.store.upsert([Document("late", "no embedding yet")])
    with pytest.raises(DocumentNotFound, match="it has no embedding yet"):
        collection.similar(["late"])
    with pytest.raises(DocumentNotFound, match="document 'late' is not in the state"):
        collection.similar(["d1", "late", "d2"])


def test_examples_that_cancel_out_are_refused(collection: Collection) -> None:
    embedding = HashingEncoder().encode_documents(["apple bread"])
    collection.upsert([Document("plus", "apple bread")], embedding)
    collection.upsert([Document("minus", "its opposite")], -embedding)
    with pytest.raises(InvalidRequest, match="like and unlike cancel out"):
        collection.similar(["plus", "minus"])
    angles = 2 * np.pi * np.arange(5) / 5  # what is left of these five is rounding
    five = np.zeros((5, 32), np.float32)
    five[:, 0], five[:, 1] = np.cos(angles), np.sin(angles)
    collection.upsert([Document(id, f"{id} of five") for id in "abcde"], five)
    assert 0 < np.linalg.norm(five.sum(0)) < 1e-6
    with pytest.raises(InvalidRequest, match="like and unlike cancel out"):
        collection.similar([*"abcde"])


OTHER_QUESTIONS: list[dict[str, Any]] = [
    {"like": ["d4"]},
    {"unlike": ["d5"]},
    {"query": "honey"},
    {"vector": [0.0] * 31 + [1.0]},
    {"filter": {"number": {"lt": 9}}},
]


@pytest.mark.parametrize("change", OTHER_QUESTIONS, ids=lambda change: next(iter(change)))
def test_a_cursor_goes_on_with_the_same_question_alone(
    collection: Collection, change: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"like": ["d1"], "unlike": ["d2"], "limit": 3, "mode": "dense"}
    if "vector" in change:
        asked["vector"] = [1.0] + [0.0] * 31
    cursor = collection.similar(**asked).next_cursor
    assert len(collection.similar(**asked, cursor=cursor).hits) == 3
    with pytest.raises(InvalidCursor):
        collection.similar(**{**asked, **change}, cursor=cursor)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sort": "number", "diversity": 0.5}, "sort='number' and diversity=0.5; give one of the two"),
        ({"diversity": 5}, "diversity=5; use a number from 0 to 1"),
        ({"query": "app\udcff"}, "has bytes that are not UTF-8; give UTF-8"),
        ({"highlight_by": "mean"}, "highlight_by='mean'; use words or meaning"),
        ({"query": "x", "vector": [1.0], "sort": "number", "diversity": 0.5}, "give one of the two"),
    ],
)
def test_options_that_do_not_go_together_are_refused_as_in_searches(
    collection: Collection, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        collection.similar(["d1"], **options)
