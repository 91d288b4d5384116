"""Thresholds cut a ranking, cursors go on with it, whatever is written meanwhile."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search.hits import Cursor, PageRequest
from dsearch.errors import Conflict, Gone, InvalidCursor, InvalidRequest
from dsearch.types import Document, SearchResult, Stamp

WORDS = ["apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey"]


def many(count: int) -> list[Document]:
    return [
        Document(f"d{i:03}", f"{WORDS[i % 8]} {WORDS[i * 3 % 7]} thing{i}", metadata={"n": i})
        for i in range(count)
    ]


@pytest.fixture
def paged(engine: SearchEngine) -> Collection:
    collection = engine.create("paged")
    collection.ingest(many(300))
    return collection


def pages(collection: Collection, query: str, **options: Any) -> list[SearchResult]:
    found = [collection.search(query, **options)]
    while found[-1].next_cursor is not None:
        found.append(collection.search(query, **{**options, "offset": 0, "cursor": found[-1].next_cursor}))
    return found


def test_pages_are_one_ranking_even_though_it_changes_meanwhile(paged: Collection) -> None:
    whole = paged.search("apple honey", limit=100)
    first = paged.search("apple honey", limit=30)
    paged.upsert([Document("new", "apple honey")])
    paged.delete([first.hits[3].id, whole.hits[40].id])
    head = Head(32)
    with torch.no_grad():
        drawn = torch.randn(head.query_delta.shape, generator=torch.Generator().manual_seed(0))
        head.query_delta += 0.3 * drawn
    paged.promote(paged.add_model(head, {}))
    now = paged.search("apple honey", limit=30)
    assert [hit.id for hit in now.hits] != [hit.id for hit in first.hits]
    hits, cursor = list(first.hits), first.next_cursor
    while cursor is not None and len(hits) < 100:
        more = paged.search("apple honey", limit=35, cursor=cursor)
        assert more.stamp == first.stamp
        hits, cursor = hits + more.hits, more.next_cursor
    assert [hit.id for hit in hits[:100]] == [hit.id for hit in whole.hits]
    assert [hit.weight for hit in hits[:100]] == pytest.approx([hit.weight for hit in whole.hits], abs=1e-6)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))


def test_all_pages_together_are_all_candidates_once(paged: Collection) -> None:
    found = pages(paged, "apple honey", limit=17, filter={"n": {"lt": 90}})
    ids = [hit.id for page in found for hit in page.hits]
    assert sorted(ids) == [f"d{i:03}" for i in range(90)]
    assert all(len(page.hits) == 17 for page in found[:-1])


def test_a_ranking_longer_than_any_offset_is_paged_to_its_end(
    paged: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leg proposes the most that it may, and both together more."""
    for name, value in (("MAX_OFFSET", 20), ("MAX_LIMIT", 10)):
        monkeypatch.setattr(f"dsearch.engine.search.hits.{name}", value)
    found = pages(paged, "apple honey", limit=10, candidates=30)
    ids = [hit.id for page in found for hit in page.hits]
    assert len(ids) == len(set(ids)) == found[0].attention.candidates > 40


def test_offset_and_cursor_meet(paged: Collection) -> None:
    page = paged.search("apple", limit=5, offset=10)
    more = paged.search("apple", limit=5, cursor=page.next_cursor)
    assert [hit.rank for hit in more.hits] == [16, 17, 18, 19, 20]
    assert [hit.id for hit in more.hits] == [hit.id for hit in paged.search("apple", limit=5, offset=15).hits]


def test_a_batch_gives_cursors_that_single_searches_take(paged: Collection) -> None:
    batch = paged.search_batch(["apple", "honey"], limit=4)
    for one in batch:
        more = paged.search(one.query, limit=4, cursor=one.next_cursor)
        whole = paged.search(one.query, limit=8)
        assert [hit.id for hit in (*one.hits, *more.hits)] == [hit.id for hit in whole.hits]


def test_a_state_that_is_gone_is_said_to_be(paged: Collection) -> None:
    cursor = paged.search("apple").next_cursor
    paged.upsert([Document("new", "apple")])
    assert paged.search("apple", cursor=cursor).hits
    paged.refresh()
    with pytest.raises(Gone, match=r"generation 2, sequence \d+ is gone"):
        paged.search("apple", cursor=cursor)


def test_a_state_that_never_was_is_a_conflict(paged: Collection) -> None:
    cursor = paged.search("apple").next_cursor
    assert cursor is not None
    parts = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    parts[3] += 50
    forged = base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()
    with pytest.raises(Conflict, match="has only come to"):
        paged.search("apple", cursor=forged)


@pytest.mark.parametrize(
    "change",
    [
        {"query": "honey"},
        {"mode": "dense"},
        {"filter": {"n": {"lt": 200}}},
        {"model": "v0"},
        {"hops": 1},
        {"operators": False},
        {"score_threshold": 0.0},
        {"weight_threshold": 0.0},
        {"sort": "n"},
    ],
)
def test_a_cursor_belongs_to_its_question(paged: Collection, change: dict[str, Any]) -> None:
    cursor = paged.search("apple", limit=3).next_cursor
    assert paged.search("apple", limit=9, explain=True, highlight=True, coverage=False, cursor=cursor).hits
    with pytest.raises(InvalidCursor, match="it belongs to another search; repeat query, filter, mode"):
        paged.search(**{"query": "apple", "cursor": cursor, **change})
    with pytest.raises(InvalidRequest, match="cursor and offset=3; give one of the two"):
        paged.search("apple", offset=3, cursor=cursor)
    with pytest.raises(InvalidRequest, match="cursor and 2 queries"):
        paged.search_batch(["apple", "apple"], cursor=cursor)


@pytest.mark.parametrize("change", [{"query": "honey"}, {"vector": [0.0] * 31 + [1.0]}, {"vector": None}])
def test_a_cursor_of_a_search_by_vector_is_of_its_text_too(paged: Collection, change: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"query": "apple", "vector": [1.0] + [0.0] * 31, "limit": 3}
    cursor = paged.search(**asked).next_cursor
    assert paged.search(**asked, cursor=cursor).hits
    with pytest.raises(InvalidCursor):
        paged.search(**{**asked, **change}, cursor=cursor)


def encoded(parts: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


QUESTION = "0" * 16


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "é",
        "=" * 600,
        "A" * 600,
        encoded({}),
        encoded([]),
        encoded([1, 2, "v0", 3, 10, 100]),
        encoded([2, 2, "v0", 3, 10, 100, QUESTION]),
        encoded([1, 0, "v0", 3, 10, 100, QUESTION]),
        encoded([1, 2**70, "v0", 3, 10, 100, QUESTION]),
        encoded([1, 2, "../v0", 3, 10, 100, QUESTION]),
        encoded([1, 2, "v0", -1, 10, 100, QUESTION]),
        encoded([1, 2, "v0", 3, 0, 100, QUESTION]),
        encoded([1, 2, "v0", 3, 2**31, 100, QUESTION]),
        encoded([1, 2, "v0", 3, 10, 10**9, QUESTION]),
        encoded([1, 2, "v0", 3, 10, True, QUESTION]),
        encoded([1, 2, "v0", 3, 10.0, 100, QUESTION]),
        encoded("[" * 300),
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor, match="use the next_cursor of an answer, or none for the first page"):
        Cursor.parse(text, QUESTION)


def test_a_cursor_of_any_length_is_not_even_read() -> None:
    long = "0" * 600
    with pytest.raises(InvalidCursor, match="use the next_cursor of an answer"):
        Cursor.parse(encoded([1, 2, "v0", 3, 10, 100, long]), long)


@given(
    st.integers(1, 2**62),
    st.integers(0, 999_999_999),
    st.integers(0, 2**62),
    st.integers(1, 2**31 - 1),
    st.integers(1, 11_000),
)
def test_cursors_come_back_as_they_were(
    generation: int, model: int, sequence: int, offset: int, candidates: int
) -> None:
    cursor = Cursor(Stamp(generation, f"v{model}", sequence), offset, candidates, QUESTION)
    assert Cursor.parse(str(cursor), QUESTION) == cursor


@pytest.mark.parametrize("heads", [1, 3])
def test_thresholds_cut_the_ranking(paged: Collection, heads: int) -> None:
    torch.manual_seed(0)
    head = Head(32, heads=heads, rank=4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    version = paged.add_model(head, {})
    whole = paged.search("apple honey", limit=100, model=version).hits
    for name, values in (
        ("score_threshold", [hit.score for hit in whole]),
        ("weight_threshold", [hit.weight for hit in whole]),
    ):
        for threshold in (values[6], values[6] + 1e-6, values[0] + 1, -1e6):
            kept = [hit for hit, value in zip(whole, values, strict=True) if value >= threshold]
            options: dict[str, Any] = {name: threshold, "model": version, "limit": 100}
            result = paged.search("apple honey", **options)
            assert [hit.id for hit in result.hits] == [hit.id for hit in kept]
            cut = pages(paged, "apple honey", **{**options, "limit": 4})
            if len(kept) < 100:
                assert [hit.id for page in cut for hit in page.hits] == [hit.id for hit in kept]
    both = paged.search(
        "apple honey",
        model=version,
        limit=100,
        score_threshold=whole[8].score,
        weight_threshold=whole[3].weight,
    )
    assert [hit.id for hit in both.hits] == [hit.id for hit in whole if hit.weight >= whole[3].weight]


def test_an_offset_behind_a_threshold_gives_nothing(paged: Collection) -> None:
    result = paged.search("apple", offset=50, score_threshold=10.0)
    assert result.hits == []
    assert result.next_cursor is None


def test_later_pages_have_the_depth_of_the_first() -> None:
    stamp = Stamp(4, "v1", 9)
    first = PageRequest.of(None, limit=100, offset=40, question="apple")
    assert (first.offset, first.candidates, first.depth, first.pinned) == (40, 100, 140, None)
    second = PageRequest.of(first.after(100, stamp), limit=10, offset=0, question="apple")
    assert (second.offset, second.candidates, second.depth, second.pinned) == (140, 100, 140, stamp)
    third = PageRequest.of(second.after(10, stamp), limit=500, offset=0, question="apple")
    assert (third.offset, third.depth, third.pinned) == (150, 140, stamp)


def test_candidates_that_are_given_are_the_depth_too() -> None:
    first = PageRequest.of(None, limit=100, offset=40, question="apple", candidates=7)
    assert (first.candidates, first.depth) == (7, 7)
    cursor = first.after(5, Stamp(4, "v1", 9))
    later = PageRequest.of(cursor, limit=100, offset=0, question="apple", candidates=7)
    assert (later.offset, later.candidates, later.depth) == (45, 7, 7)
    with pytest.raises(InvalidRequest, match="cursor and offset=1; give one of the two"):
        PageRequest.of(cursor, limit=10, offset=1, question="apple")


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"limit": 0}, "use 1 to 1000"),
        ({"limit": 1001}, "use 1 to 1000"),
        ({"offset": -1}, "use 0 to 10000"),
        ({"offset": 10_001}, "use 0 to 10000"),
        ({"candidates": 0}, "use 1 to 11000"),
        ({"candidates": 11_001}, "use 1 to 11000"),
    ],
)
def test_each_bound_of_a_page_is_inclusive(options: dict[str, int], allowed: str) -> None:
    ((name, value),) = options.items()
    with pytest.raises(InvalidRequest, match=f"{name}={value}; {allowed}"):
        PageRequest.of(None, **{"limit": 1, "offset": 0, **options}, question="")
    inside = {name: min(max(value, int(allowed.split()[1])), int(allowed.split()[3]))}
    PageRequest.of(None, **{"limit": 1, "offset": 0, **inside}, question="")


def test_a_cursor_is_of_one_collection(engine: SearchEngine) -> None:
    for name in ("first", "second"):
        engine.create(name).ingest([Document(f"{name}{i}", f"apple {i}") for i in range(6)])
    engine.set_alias("live", "first")
    page, like = engine.collection("live").search("apple", limit=2), ["first0"]
    assert page.stamp == engine.collection("second").search("apple").stamp  # made alike, as each night
    alike = engine.collection("live").similar(like, limit=2)
    engine.collection("second").upsert([Document("first0", "apple 0")])
    again = engine.collection("first").search("apple", limit=2, cursor=page.next_cursor)
    assert [hit.rank for hit in again.hits] == [3, 4]
    engine.set_alias("live", "second")
    for ask in (
        lambda live: live.search("apple", limit=2, cursor=page.next_cursor),
        lambda live: live.similar(like, limit=2, cursor=alike.next_cursor),
    ):
        with pytest.raises(InvalidCursor, match=r"belongs to another search; .* in the same collection"):
            ask(engine.collection("live"))
