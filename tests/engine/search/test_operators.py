"""Phrases, required and excluded terms restrict; the other words rank."""

from __future__ import annotations

import pytest
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.index import DenseIndex
from dsearch.types import Document, Mode

TEXTS = {
    "a": "the beam search of a decoder",
    "b": "search the beam with a laser",
    "c": "a decoder in java",
    "d": "to be or not to be",
    "e": "python decoder and beam search in python",
}


@pytest.fixture
def texts(engine: SearchEngine) -> Collection:
    """Four built, one fresh."""
    collection = engine.create("texts")
    documents = [Document(id, text) for id, text in TEXTS.items()]
    collection.ingest(documents[:4])
    collection.upsert(documents[4:])
    return collection


def found(collection: Collection, query: str, mode: Mode = "hybrid", **options: bool) -> list[str]:
    return [hit.id for hit in collection.search(query, mode=mode, **options).hits]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "hybrid", "keyword"),
    [
        ('"beam search"', "ae", "ae"),
        ('decoder "beam search"', "ae", "ae"),
        ("decoder +python", "e", "e"),
        ("decoder -java", "abde", "ae"),
        ('decoder -"beam search"', "bcd", "c"),
        ("+beam -python decoder", "ab", "ab"),
        ("-java", "abde", "abde"),
        ("-java -beam", "d", "d"),
        ('"to be or not to be"', "d", "d"),
        ("+nowhere decoder", "", ""),
        ('"" decoder', "abcde", "ace"),
        ('decoder "beam', "abcde", "abce"),
    ],
)
def test_restrictions_hold_in_every_mode(texts: Collection, query: str, hybrid: str, keyword: str) -> None:
    assert sorted(found(texts, query)) == list(hybrid)
    assert sorted(found(texts, query, "dense")) == list(hybrid)
    assert sorted(found(texts, query, "keyword")) == list(keyword)


def test_the_words_rank_as_they_do_without_signs(texts: Collection) -> None:
    plain = {hit.id: hit for hit in texts.search("decoder python", explain=True).hits}
    signed = texts.search("decoder +python -java", explain=True).hits
    assert [hit.id for hit in signed] == ["e"]
    assert signed[0].explain is not None
    assert signed[0].score == pytest.approx(plain["e"].score)
    assert signed[0].weight == pytest.approx(1.0)
    assert signed[0].explain.terms == plain["e"].explain.terms  # type: ignore[union-attr]


def test_a_query_that_only_excludes_gives_the_rest_in_order(texts: Collection) -> None:
    result = texts.search("-java", mode="keyword", limit=2)
    assert [(hit.id, hit.score, hit.weight) for hit in result.hits] == [
        ("a", 0.0, pytest.approx(0.25)),
        ("b", 0.0, pytest.approx(0.25)),
    ]
    more = texts.search("-java", mode="keyword", limit=2, cursor=result.next_cursor)
    assert [hit.id for hit in more.hits] == ["d", "e"]
    assert more.next_cursor is None


def test_exclusion_alone_in_a_large_collection_asks_no_index(
    engine: SearchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = engine.create("large")
    collection.ingest([Document(f"d{i:03}", f"thing{i} {'odd' if i % 2 else 'even'}") for i in range(400)])
    monkeypatch.setattr(DenseIndex, "search", lambda *_, **__: pytest.fail("the index was asked"))
    result = collection.search("-odd", limit=5)
    assert [hit.id for hit in result.hits] == ["d000", "d002", "d004", "d006", "d008"]
    assert [hit.weight for hit in result.hits] == pytest.approx([1 / result.attention.candidates] * 5)


def test_a_batch_answers_each_query_by_its_own_restrictions(
    texts: Collection, encoder: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = ["decoder", "decoder -java", '"beam search"', "-java", "laser -java", "python"]
    singles = [texts.search(query, coverage=False) for query in queries]
    calls: list[list[str]] = []
    encode = encoder.encode_queries
    monkeypatch.setattr(encoder, "encode_queries", lambda asked: calls.append(list(asked)) or encode(asked))
    for one, single in zip(texts.search_batch(queries), singles, strict=True):
        assert one.query == single.query
        assert [hit.id for hit in one.hits] == [hit.id for hit in single.hits]
        assert [hit.score for hit in one.hits] == pytest.approx([hit.score for hit in single.hits])
    assert len(calls) == 1  # one call of the encoder for all of them
    assert "-java" not in " ".join(calls[0])


def test_signs_can_be_ordinary_characters(texts: Collection) -> None:
    assert sorted(found(texts, "decoder -java", operators=False)) == list("abcde")
    assert [id for id in texts.attend(["decoder -java"]).ids[0] if id].count("c") == 1


def test_restrictions_and_filters_meet(engine: SearchEngine) -> None:
    collection = engine.create("both")
    collection.ingest([Document(id, text, metadata={"n": n}) for n, (id, text) in enumerate(TEXTS.items())])
    hits = collection.search('"beam search"', filter={"n": {"gte": 1}}).hits
    assert [hit.id for hit in hits] == ["e"]
