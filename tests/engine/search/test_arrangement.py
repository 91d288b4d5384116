"""One hit for each value of a field, and diversity: against plain loops, over pages, with thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.service.service_fakes import WORDS, WordEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search.arrangement import POOL, diverse, first_of_each
from dsearch.errors import InvalidRequest
from dsearch.types import Document, Hit

QUERY = "river music cat"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    draw = np.random.default_rng(1)
    with SearchEngine(tmp_path_factory.mktemp("arranged") / "home", encoder=WordEncoder) as engine:
        collection = engine.create("papers")
        made = [
            Document(
                f"d{i:03d}",
                " ".join(draw.choice(WORDS, size=8)),
                metadata={"who": {"name": f"a{i % 7}"}, "n": i % 3} if i % 10 else {},
            )
            for i in range(120)
        ]
        collection.ingest(made[:100])
        collection.upsert(made[100:])
        yield collection


def shown(hits: list[Hit]) -> list[tuple[str, float, float]]:
    return [(hit.id, round(hit.score, 6), round(hit.weight, 6)) for hit in hits]


@pytest.mark.parametrize(("field", "key"), [("who.name", "who"), ("n", "n")])
def test_the_best_of_each_value_is_shown(papers: Collection, field: str, key: str) -> None:
    plain = papers.search(QUERY, limit=200, candidates=100).hits
    expected: list[Hit] = []
    values: set[str] = set()
    for hit in plain:
        value = repr(hit.metadata.get(key))
        if value == "None" or value not in values:
            expected.append(hit)
        values.add(value)
    grouped = papers.search(QUERY, limit=200, candidates=100, group_by=field).hits
    assert shown(grouped) == shown(expected)
    assert [hit.rank for hit in grouped] == list(range(1, len(expected) + 1))
    assert 5 < len(grouped) < len(plain)
    assert all(hit.explain for hit in papers.search(QUERY, limit=9, group_by=field, explain=True).hits)


def by_hand(collection: Collection, hits: list[Hit], strength: float) -> list[str]:
    rows = collection.store.rows_of([hit.id for hit in hits])
    vectors = {id: collection.store.embeddings([row])[0] for id, row in rows.items()}
    low, high = min(hit.score for hit in hits), max(hit.score for hit in hits)
    relevance = {hit.id: (hit.score - low) / (high - low) for hit in hits}
    order: list[str] = []
    while len(order) < len(hits):
        gains = {
            id: (1 - strength) * of
            - strength * max((float(vectors[id] @ vectors[other]) for other in order), default=0.0)
            for id, of in relevance.items()
            if id not in order
        }
        order.append(max(gains, key=lambda id: gains[id]))
    return order


@pytest.mark.parametrize("strength", [0.3, 0.7])
def test_diversity_is_maximal_marginal_relevance(papers: Collection, strength: float) -> None:
    plain = papers.search(QUERY, limit=100, mode="keyword", candidates=60).hits
    answer = papers.search(QUERY, limit=100, mode="keyword", candidates=60, diversity=strength)
    order = [hit.id for hit in answer.hits]
    assert order[:30] == by_hand(papers, plain, strength)[:30]
    assert sorted(order) == sorted(hit.id for hit in plain)
    assert order != [hit.id for hit in plain]
    assert answer.attention == papers.search(QUERY, limit=100, mode="keyword", candidates=60).attention


def test_candidates_behind_the_pool_follow_in_their_order(papers: Collection) -> None:
    plain = [hit.id for hit in papers.search(QUERY, limit=200).hits]
    diversified = [hit.id for hit in papers.search(QUERY, limit=200, diversity=0.5).hits]
    assert diversified[POOL:] == plain[POOL:]
    assert sorted(diversified[:POOL]) == sorted(plain[:POOL])
    assert diversified[:POOL] != plain[:POOL]
    assert len(plain) > POOL


def test_pages_continue_and_thresholds_come_first(papers: Collection) -> None:
    chosen: Any = {"group_by": "who.name", "diversity": 0.4}
    whole = papers.search(QUERY, limit=14, candidates=100, **chosen).hits
    first = papers.search(QUERY, limit=7, candidates=100, **chosen)
    assert first.next_cursor is not None
    second = papers.search(QUERY, limit=7, candidates=100, cursor=first.next_cursor, **chosen)
    assert shown([*first.hits, *second.hits]) == shown(whole)
    least = papers.search(QUERY, limit=20, candidates=100).hits[-1].score
    above = papers.search(QUERY, limit=100, candidates=100, score_threshold=least, diversity=0.9).hits
    assert len(above) == 20
    assert min(hit.score for hit in above) >= least


def test_each_query_of_a_batch_is_arranged_by_its_own_candidates(papers: Collection) -> None:
    queries = ["cat", "river music"]
    for chosen in ({"group_by": "who.name"}, {"diversity": 0.6}, {"collapse": True}, {"sort": "-n"}):
        options: Any = {"limit": 9, **chosen}
        together = papers.search_batch(queries, **options)
        assert [shown(one.hits) for one in together] == [
            shown(papers.search(query, **options).hits) for query in queries
        ]


def test_edges() -> None:
    assert first_of_each(["a", 1, "1", None, "a", True, None, 1.0]).tolist() == [0, 1, 2, 3, 5, 6]
    assert first_of_each([0, False, "0", [1.0, 2], 0.0, [1, 2.0], [1]]).tolist() == [0, 1, 2, 3, 6]
    assert diverse(np.array([2.0]), np.eye(1), 0.5).tolist() == [0]
    assert diverse(np.array([1.0, 1.0, 1.0]), np.eye(3), 0.0).tolist() == [0, 1, 2]
    alike = np.array([[1.0, 0], [1.0, 0], [0, 1.0]])
    assert diverse(np.array([3.0, 2.9, 1.0]), alike, 0.9).tolist() == [0, 2, 1]


def test_what_is_too_much_is_refused(papers: Collection) -> None:
    said = "group_by, collapse, diversity or sort with 33 queries; use at most 32"
    with pytest.raises(InvalidRequest, match=said):
        papers.search_batch(["cat"] * 33, group_by="n")
    with pytest.raises(InvalidRequest, match=r"diversity=1\.5; use a number from 0 to 1"):
        papers.search("cat", diversity=1.5)
    with pytest.raises(InvalidRequest):
        papers.search("cat", group_by="a..b")
