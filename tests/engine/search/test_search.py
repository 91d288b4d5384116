"""What is served equals a plain-tensor reference, for every mode, model and state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engine.reference import QUERY, assert_equals_reference, many_documents, reference, turned_head
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchEngine, System, evaluate, make_run
from dsearch.errors import InvalidRequest, ModelNotFound
from dsearch.types import Document, Query


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
def test_untrained_search_is_cosine_plus_keywords(
    collection: Collection, documents: list[Document], encoder: HashingEncoder, mode: str
) -> None:
    assert_equals_reference(collection, documents, encoder, mode)


@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
def test_trained_search_is_the_formula(
    collection: Collection, documents: list[Document], encoder: HashingEncoder, mode: str
) -> None:
    head = turned_head()
    version = collection.add_model(head, {})
    assert_equals_reference(collection, documents, encoder, mode, turned_head(), model=version)
    collection.promote(version)
    assert_equals_reference(collection, documents, encoder, mode, turned_head())


def test_candidates_hold_the_best_hits_and_say_how_much_they_cover(
    engine: SearchEngine, encoder: HashingEncoder
) -> None:
    documents = many_documents()
    collection = engine.create("many")
    collection.ingest(documents)
    for query in ("word1 word7", "word3 word50 word50 word2", "nothing known"):
        result = collection.search(query, limit=10, coverage=True)
        scores, weights = reference(documents, query, encoder, "hybrid")
        best = sorted(scores, key=lambda id: -scores[id])[:10]
        assert [hit.score for hit in result.hits] == pytest.approx([scores[id] for id in best], abs=1e-5)
        everything = collection.search(query, candidates=1000, coverage=True)
        assert everything.attention.covered_mass == 1.0
        covered = result.attention.covered_mass
        assert covered is not None
        assert 100 <= result.attention.candidates <= 200
        found = collection.attend([query])
        exact = sum(weights[id] for id in found.ids[0] if id)
        assert covered == pytest.approx(exact, abs=1e-5)


def test_batch_equals_single(collection: Collection) -> None:
    queries = [QUERY, "apple", "zebra crossing"]
    batch = collection.search_batch(queries, coverage=True)
    for query, result in zip(queries, batch, strict=True):
        single = collection.search(query)
        assert [hit.id for hit in single.hits] == [hit.id for hit in result.hits]
        assert [hit.score for hit in single.hits] == pytest.approx(
            [hit.score for hit in result.hits], abs=1e-6
        )
        assert result.attention.covered_mass == pytest.approx(single.attention.covered_mass)


def test_edges(engine: SearchEngine, collection: Collection) -> None:
    empty = engine.create("empty")
    for mode in ("hybrid", "dense", "keyword"):
        result = empty.search("anything", mode=mode)
        assert result.hits == []
        assert result.attention.candidates == 0
    assert len(collection.search("apple", limit=1000).hits) == 16
    assert collection.search("nosuchword", mode="keyword").hits == []
    assert collection.search_batch([]) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 0}, "limit=0; use 1 to 1000"),
        ({"limit": 1001}, "limit=1001; use 1 to 1000"),
        ({"offset": -1}, "offset=-1; use 0 to 10000"),
        ({"mode": "fuzzy"}, "mode='fuzzy'; use hybrid, dense or keyword"),
        ({"hops": 0}, "hops=0; use an integer of at least 1"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options_say_what_is_allowed(
    collection: Collection, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        collection.search("x", **options)  # type: ignore[arg-type]


def test_bad_queries(collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="query 1 is empty; give at least one word"):
        collection.search_batch(["fine", "  "])
    with pytest.raises(InvalidRequest, match="has bytes that are not UTF-8; give UTF-8"):
        collection.search("caf\udce9")
    with pytest.raises(InvalidRequest, match="the query is empty; give at least one word"):
        collection.search(" ")
    with pytest.raises(ModelNotFound):
        collection.search("x", model="v7")


def test_attend_takes_vectors(collection: Collection, encoder: HashingEncoder) -> None:
    states = torch.as_tensor(encoder.encode_queries([QUERY, "apple"]))
    by_vector = collection.attend(states)
    by_text = collection.attend([QUERY, "apple"], mode="dense")
    assert by_vector.ids == by_text.ids
    torch.testing.assert_close(by_vector.output.context, by_text.output.context)
    weights, keys = (
        by_vector.output.weights,
        torch.as_tensor(collection.snapshot.embeddings(by_vector.output.positions)),
    )
    torch.testing.assert_close(by_vector.output.context, torch.einsum("bc,bcd->bd", weights, keys))


def test_runs_have_the_served_ranking(collection: Collection) -> None:
    queries = [Query("q1", QUERY), Query("q2", "apple")]
    run = make_run(collection, queries, depth=5)
    for query in queries:
        served = collection.search(query.text, limit=5).hits
        assert run[query.id] == [(hit.id, pytest.approx(hit.score)) for hit in served]
    first = run["q1"][0][0]
    without = make_run(collection, queries, depth=5, exclude={"q1": {first}})
    assert first not in dict(without["q1"])
    assert len(without["q1"]) == 5
    assert without["q2"] == run["q2"]
    keyword = make_run(collection, queries, System("keyword"))
    assert len(keyword["q1"]) < 16


@pytest.mark.parametrize("hops", [None, 1, 2])
@pytest.mark.parametrize("hop_strength", [None, 0.7])
def test_a_run_has_the_settings_of_its_system(
    collection: Collection, hops: int | None, hop_strength: float | None
) -> None:
    head = turned_head()
    with torch.no_grad():
        head.hop_strength.fill_(0.2)
    version = collection.add_model(head, {})
    run = make_run(collection, [Query("q1", QUERY)], System("dense", version, hops, hop_strength))
    options = {"mode": "dense", "model": version, "hops": hops, "hop_strength": hop_strength}
    served = collection.search(QUERY, limit=100, **options).hits
    assert run["q1"] == [(hit.id, pytest.approx(hit.score)) for hit in served]


def test_the_best_by_keywords_are_proposed_wherever_they_are(collection: Collection) -> None:
    """Built and fresh rows are ranked together, and no more than asked for are looked at again."""
    collection.upsert([Document("alone", "bread bread")])
    collection.upsert([Document(f"n{n}", "apple " * (1 + n % 3) + "word " * n) for n in range(9)])
    collection.upsert([Document(f"same{n}", "mango alike") for n in range(40)])
    collection.delete(["n2"])
    state = collection.snapshot
    for query in ("apple", "apple word", "bread", "nothing", "mango alike"):
        every = state.all_keyword_scores([query])[0]
        every[state.excluded] = 0
        for k in (1, 4, 200):
            best = np.argsort(-every, kind="stable")[:k]
            best = best[every[best] > 0]
            (found,) = state.keyword_candidates([query], k)
            beside, _ = state.keyword_candidates([query, "apple"], k)  # which has more in new documents
            assert found[found >= 0].tolist() == beside[beside >= 0].tolist() == best.tolist()


def test_documents_that_are_left_out_of_a_run_are_made_up_for(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The candidates are as many as the depth and the most that one query leaves out."""
    monkeypatch.setattr(evaluate, "CANDIDATES", 1)
    queries, dense = [Query("q1", QUERY), Query("q2", "apple")], System("dense")
    every = make_run(collection, queries, dense, depth=9)
    left_out = {id for id, _ in every["q1"][:3]}
    run = make_run(collection, queries, dense, depth=4, exclude={"q1": left_out, "q2": set()})
    assert [id for id, _ in run["q1"]] == [id for id, _ in every["q1"][3:7]]
    assert [id for id, _ in run["q2"]] == [id for id, _ in every["q2"][:4]]


def test_a_run_tells_its_progress_and_goes_on_behind_each_block(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_QUERIES_AT_A_TIME", 2)
    queries = [Query(f"q{n}", text) for n, text in enumerate(["apple", "bread", "honey", "ice", "nut"])]
    done: list[int] = []
    run = make_run(collection, queries, depth=3, on_progress=done.append)
    assert done == [2, 4, 5]
    assert run == {query.id: make_run(collection, [query], depth=3)[query.id] for query in queries}
