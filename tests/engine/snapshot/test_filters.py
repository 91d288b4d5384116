"""A filtered search is the search among what the filter lets through: nothing else is found, nothing lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.fakes import HashingEncoder
from support.guarded import guarded

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, PassageOptions, SearchEngine
from dsearch.engine.search.attend import AttendResult
from dsearch.errors import InvalidRequest
from dsearch.lru_cache import LruCache
from dsearch.types import Document, Mode

checked = guarded(LruCache, "_entries", "_sizes", free=("__len__",))


WORDS = [
    "apple",
    "bread",
    "cheese",
    "dough",
    "egg",
    "flour",
    "grape",
    "honey",
    "ice",
    "juice",
    "kale",
    "lemon",
]
MODES: tuple[Mode, ...] = ("hybrid", "dense", "keyword")


def many(count: int, seed: int = 0) -> list[Document]:
    draw = np.random.default_rng(seed)

    def metadata() -> dict[str, Any]:
        made: dict[str, Any] = {"n": int(draw.integers(8)), "by": {"name": str(draw.choice(["ann", "bob"]))}}
        if draw.random() < 0.7:
            made["tags"] = draw.choice(["x", "y", "z"], size=int(draw.integers(3))).tolist()
        if draw.random() < 0.3:
            made["done"] = bool(draw.random() < 0.5)
        return made

    return [
        Document(
            f"d{i:03}",
            " ".join(draw.choice(WORDS, size=5)),
            title=f"{draw.choice(WORDS)} {i}",
            metadata=metadata(),
        )
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collection, dict[str, Document]]]:
    """260 documents in a generation, 20 fresh ones, of both some deleted, replaced, and changed in part."""
    encoder = HashingEncoder()
    with SearchEngine(tmp_path_factory.mktemp("filters") / "home", encoder=lambda: encoder) as engine:
        collection = engine.create("many")
        documents = {document.id: document for document in many(280)}
        collection.ingest([*documents.values()][:260])
        collection.upsert([*documents.values()][260:])
        for id in ("d003", "d044", "d265"):
            collection.delete([id])
            del documents[id]
        documents["d010"] = Document("d010", "apple honey", metadata={"n": 3, "tags": ["y"]})
        collection.upsert([documents["d010"]])
        for id in ("d020", "d270"):
            collection.update_metadata(id, {"n": 3, "by": {"name": "cid"}})
            old = documents[id]
            documents[id] = Document(id, old.text, old.title, {**old.metadata, "n": 3, "by": {"name": "cid"}})
        yield collection, documents


# ---- filters, and what they mean, in Python

NUMBERS = st.integers(-1, 8)
CONDITIONS = st.one_of(
    st.tuples(st.just("n"), st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte"]), NUMBERS),
    st.tuples(st.just("n"), st.sampled_from(["in", "nin"]), st.lists(NUMBERS, max_size=3)),
    st.tuples(st.just("tags"), st.sampled_from(["eq", "ne"]), st.sampled_from(["x", "y", "w"])),
    st.tuples(st.just("by.name"), st.just("eq"), st.sampled_from(["ann", "bob", "cid"])),
    st.tuples(st.just("done"), st.just("eq"), st.booleans()),
    st.tuples(st.sampled_from(["done", "tags", "nothing"]), st.just("exists"), st.booleans()),
).map(lambda part: {part[0]: {part[1]: part[2]}})
FILTERS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"and": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"or": parts}),
        inner.map(lambda part: {"not": part}),
    ),
    max_leaves=4,
)


def meets(metadata: dict[str, Any], filter: dict[str, Any]) -> bool:
    return all(_meets_entry(metadata, key, entry) for key, entry in filter.items())


def _meets_entry(metadata: dict[str, Any], key: str, entry: Any) -> bool:
    if key == "and":
        return all(meets(metadata, part) for part in entry)
    if key == "or":
        return any(meets(metadata, part) for part in entry)
    if key == "not":
        return not meets(metadata, entry)
    found: Any = metadata
    for step in key.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    values = found if isinstance(found, list) else [] if found is None else [found]
    for name, operand in entry.items():
        checks = {
            "eq": lambda o=operand: o in values,
            "ne": lambda o=operand: o not in values,
            "in": lambda o=operand: any(value in o for value in values),
            "nin": lambda o=operand: not any(value in o for value in values),
            "gt": lambda o=operand: any(value > o for value in values),
            "gte": lambda o=operand: any(value >= o for value in values),
            "lt": lambda o=operand: any(value < o for value in values),
            "lte": lambda o=operand: any(value <= o for value in values),
            "exists": lambda o=operand: (found is not None) == o,
        }
        if not checks[name]():
            return False
    return True


def by_hand(
    collection: Collection, ids: list[str], query: str, mode: Mode
) -> tuple[dict[str, float], dict[str, float]]:
    """Scores and weights among the documents `ids`, untrained; those of score −inf are left out."""
    rows = collection.store.rows_of(ids)
    embeddings = collection.store.embeddings([rows[id] for id in ids]).astype(np.float64)
    dense = embeddings @ HashingEncoder().encode_queries([query])[0].astype(np.float64)
    snapshot = collection.snapshot
    positions = snapshot.positions_of(np.array([rows[id] for id in ids], np.int64))
    keyword = snapshot.all_keyword_scores([query])[0][positions].astype(np.float64)
    scores = {"dense": dense, "keyword": keyword, "hybrid": dense + keyword}[mode]
    if mode == "keyword":
        scores = np.where(keyword > 0, scores, -math.inf)
        if not (keyword > 0).any():  # none of them holds a word: −inf less −inf has no meaning
            return {}, {}
    shifted = np.exp((scores - scores.max(initial=-math.inf)) / 0.05)
    weights = shifted / shifted.sum()
    kept = [n for n in range(len(ids)) if scores[n] > -math.inf]
    return {ids[n]: float(scores[n]) for n in kept}, {ids[n]: float(weights[n]) for n in kept}


@given(FILTERS, st.sampled_from(MODES), st.lists(st.sampled_from(WORDS), min_size=1, max_size=3))
def test_filtered_search_is_search_among_what_matches(
    written: tuple[Collection, dict[str, Document]], filter: dict[str, Any], mode: Mode, words: list[str]
) -> None:
    collection, documents = written
    query = " ".join(words)
    matching = [id for id, document in documents.items() if meets(document.metadata, filter)]
    result = collection.search(query, filter=filter, mode=mode, limit=1000, candidates=1000)
    found = {hit.id: hit for hit in result.hits}
    if not matching:
        assert not found
        return
    scores, weights = by_hand(collection, matching, query, mode)
    assert found.keys() == scores.keys()
    for id, hit in found.items():
        assert hit.score == pytest.approx(scores[id], abs=1e-5)
        assert hit.weight == pytest.approx(weights[id], abs=1e-5)
    if mode != "keyword" or len(scores) == len(matching):
        assert result.attention.covered_mass == pytest.approx(1.0)
    best = collection.search(query, filter=filter, mode=mode, limit=3).hits
    assert [hit.score for hit in best] == pytest.approx(sorted(scores.values(), reverse=True)[:3], abs=1e-5)
    assert all(hit.id in scores for hit in best)


def ids_of(attended: AttendResult) -> list[str]:
    return [id for id in attended.ids[0] if id]


def test_every_path_is_filtered(written: tuple[Collection, dict[str, Document]]) -> None:
    collection, documents = written
    filter = {"n": {"eq": 3}}
    matching = {id for id, document in documents.items() if document.metadata["n"] == 3}
    assert {hit.id for hit in collection.search("honey", filter=filter, limit=500).hits} == matching
    for one in collection.search_batch(["honey", "ice"], filter=filter, limit=500):
        assert {hit.id for hit in one.hits} == matching
    assert set(ids_of(collection.attend(["honey"], filter=filter, candidates=500))) == matching
    states = torch.as_tensor(HashingEncoder().encode_queries(["honey"]))
    assert set(ids_of(collection.attend(states, filter=filter, candidates=500))) == matching
    predicted = collection.predict(["honey"], field="n", filter=filter, candidates=500).predictions[0]
    assert (predicted.mean, predicted.candidates) == (pytest.approx(3.0), len(matching))
    similar = collection.similar(["d010"], filter=filter, limit=500).hits
    assert {hit.id for hit in similar} == matching - {"d010"}


def test_attention_scores_what_matches(written: tuple[Collection, dict[str, Document]]) -> None:
    collection, documents = written
    attended = collection.attend(["honey juice"], filter={"n": {"lte": 4}}, candidates=20)
    matching = [id for id, document in documents.items() if document.metadata["n"] <= 4]
    scores, _ = by_hand(collection, matching, "honey juice", "hybrid")
    best = sorted(scores.values(), reverse=True)[:5]
    assert attended.output.scores[0, :5].tolist() == pytest.approx(best, abs=1e-5)


def test_a_trained_head_and_several_hops_stay_within_the_filter(
    written: tuple[Collection, dict[str, Document]],
) -> None:
    collection, documents = written
    torch.manual_seed(1)
    head = Head(32, heads=2, rank=4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    version = collection.add_model(head, {})
    for filter in ({"n": {"lt": 6}}, {"n": {"eq": 2}, "by.name": {"eq": "ann"}}):
        matching = {id for id, document in documents.items() if meets(document.metadata, filter)}
        hits = collection.search(
            "kale lemon", filter=filter, model=version, hops=2, hop_strength=1.0, limit=20
        ).hits
        assert len(hits) == min(20, len(matching))
        assert {hit.id for hit in hits} <= matching


def test_long_documents_are_filtered_with_all_their_passages(engine: SearchEngine) -> None:
    collection = engine.create("long", passages=PassageOptions(tokens=16, overlap=4))
    documents = [
        Document(
            f"d{i:03}",
            " ".join(WORDS[(i + j) % 12] for j in range(4 + 30 * (i % 3 == 0))),
            metadata={"n": i % 4},
        )
        for i in range(300)
    ]
    collection.ingest(documents[:270])
    collection.upsert(documents[270:])
    for mode in MODES:
        everything = {hit.id: hit.score for hit in collection.search("kale lemon", mode=mode, limit=300).hits}
        matching = [id for id in everything if int(id[1:]) % 4 == 1]
        for limit in (5, 300):
            hits = collection.search("kale lemon", mode=mode, limit=limit, filter={"n": {"eq": 1}}).hits
            best = sorted((everything[id] for id in matching), reverse=True)[:limit]
            assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-5)
            assert {hit.id for hit in hits} <= set(matching)


def test_one_and_true_are_different_filters(written: tuple[Collection, dict[str, Document]]) -> None:
    collection, _ = written
    yes = collection.search("honey", filter={"done": {"eq": True}}, limit=500).hits
    one = collection.search("honey", filter={"done": {"eq": 1}}, limit=500).hits
    assert len(yes) > 0
    assert one == []


def test_a_filter_is_about_the_state_that_is_searched(engine: SearchEngine) -> None:
    """What was committed after a snapshot must not take documents out of it: equal stamps, equal answers."""
    collection = engine.create("moving")
    collection.ingest(many(30))
    state = collection.snapshot
    filter = {"n": {"gte": 0}}
    collection.store.upsert([Document("d001", "apple", metadata={"n": -1})], np.eye(1, 32, dtype=np.float32))
    collection.store.delete(["d002"])
    assert collection.filtered(state, filter).documents == 30
    collection.upsert([Document("new", "honey", metadata={"n": 5})])
    assert collection.filtered(state, filter).documents == 30
    assert collection.filtered(collection.snapshot, filter).documents == 29


def test_the_same_filter_is_looked_up_once(
    written: tuple[Collection, dict[str, Document]], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection, _ = written
    filter = {"n": {"in": [1, 6]}}
    first = collection.filtered(collection.snapshot, filter)
    asked_again = lambda *_: pytest.fail("asked again")  # noqa: E731
    monkeypatch.setattr(type(collection.store), "rows_matching_ever", asked_again)
    assert collection.filtered(collection.snapshot, filter) is first
    assert collection.search("honey", filter=filter).hits


def test_filters_of_a_replaced_generation_are_forgotten(engine: SearchEngine) -> None:
    collection = engine.create("forgetful")
    collection.ingest(many(10))
    for n in range(20):
        collection.filtered(collection.snapshot, {"n": {"eq": n}})
    assert len(collection._filtered.recent) == 8
    collection.refresh()
    collection.filtered(collection.snapshot, {"n": {"eq": 1}})
    assert len(collection._filtered.recent) == 1


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"n": [3]}, r"filter\.n: \[3\]; use a value, or an object of conditions"),
        ({"n": {"near": 3}}, "the condition 'near'"),
    ],
)
def test_what_is_no_filter_is_refused(collection: Collection, filter: object, message: str) -> None:
    for ask in (collection.search, lambda q, filter: collection.attend([q], filter=filter)):
        with pytest.raises(InvalidRequest, match=message):
            ask("apple", filter=filter)


def test_documents_that_match_are_deleted(engine: SearchEngine) -> None:
    collection = engine.create("shrinking")
    documents = many(60)
    collection.ingest(documents[:50])
    collection.upsert(documents[50:])
    receipt = collection.delete_matching({"n": {"lt": 4}})
    kept = {document.id for document in documents if document.metadata["n"] >= 4}
    assert receipt.deleted == 60 - len(kept)
    assert {hit.id for hit in collection.search("honey", limit=100).hits} == kept


@pytest.mark.parametrize(
    ("filter", "found"),
    [
        ({"and": [{"n": {"lt": 10}}, {"code": {"eq": "x"}}]}, {9}),
        ({"or": [{"n": {"lt": 2}}, {"code": {"exists": True}}]}, {0, 1, 5, 9}),
        ({"not": {"or": [{"n": {"lt": 8}}, {"code": {"eq": "x"}}]}}, {8}),
    ],
    ids=["and", "or", "not"],
)
def test_a_field_that_has_no_column_counts_beside_one_that_has(
    engine: SearchEngine, filter: dict[str, Any], found: set[int]
) -> None:
    """A value of it cannot be kept in one; the store answers then."""
    collection = engine.create("mixed")
    codes: dict[int, str] = {1: "a\0b", 5: "a", 9: "x"}
    documents = [Document(f"d{n}", "honey", metadata={"n": n, "code": codes.get(n)}) for n in range(10)]
    documents = [
        Document(one.id, one.text, metadata={k: v for k, v in one.metadata.items() if v is not None})
        for one in documents
    ]
    collection.ingest(documents[:7])
    collection.upsert(documents[7:])
    assert collection.snapshot.generation.fields is not None
    assert collection.snapshot.generation.fields.column(("code",)) is None
    assert {int(hit.id[1:]) for hit in collection.search("honey", filter=filter).hits} == found
