"""Documents of the same text are one hit, with their number: on pages, with thresholds, and over shards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster_checks import require_same, sharded
from support.service.service_fakes import WORDS, WordEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.engine.search.arrangement import collapsed, text_name
from dsearch.errors import InvalidCursor, InvalidRequest
from dsearch.search_options import SearchOptions
from dsearch.types import Document, Hit

QUERY = "river music cat"
COPIES = 30


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Every text three times: alike, with other white space, and under another title."""
    draw = np.random.default_rng(1)
    with SearchEngine(tmp_path_factory.mktemp("copies") / "home", encoder=WordEncoder) as engine:
        collection = engine.create("copies")
        texts = [" ".join(draw.choice(WORDS, size=8)) for _ in range(COPIES)]
        documents = [
            Document(f"d{i:02d}{form}", text.replace(" ", gap), title, {"n": i % 4})
            for i, text in enumerate(texts)
            for form, gap, title in (("a", " ", ""), ("b", "  ", ""), ("c", " ", "music"))
        ]
        collection.ingest([*documents[:80], Document("empty", "", "river"), Document("void", "", "river")])
        collection.upsert(documents[80:])
        yield collection


def by_hand(collection: Collection, **options: Any) -> list[tuple[str, int]]:
    """The first of each text in the plain ranking, and how many follow."""
    plain = collection.search(QUERY, limit=200, **options).hits
    names = [" ".join((hit.text or hit.title).split()) for hit in plain]
    times = Counter(names)
    firsts = [number for number, name in enumerate(names) if name not in names[:number]]
    return [(plain[number].id, times[names[number]] - 1) for number in firsts]


def shown(hits: list[Hit]) -> list[tuple[str, int]]:
    return [(hit.id, hit.duplicates) for hit in hits]


def test_the_best_of_each_text_is_shown_with_the_number_of_the_others(copies: Collection) -> None:
    hits = copies.search(QUERY, limit=200, collapse=True).hits
    assert shown(hits) == by_hand(copies)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    assert len(hits) == COPIES + 1
    assert {hit.duplicates for hit in hits} == {1, 2}
    assert hits[0].to_dict()["duplicates"] == hits[0].duplicates
    plain = copies.search(QUERY, limit=200).hits
    assert len(plain) == 3 * COPIES + 2
    assert all("duplicates" not in hit.to_dict() for hit in plain)


def test_with_a_threshold_only_what_reaches_it_counts(copies: Collection) -> None:
    least = copies.search(QUERY, limit=25).hits[-1].score
    hits = copies.search(QUERY, limit=200, collapse=True, score_threshold=least).hits
    assert shown(hits) == by_hand(copies, score_threshold=least)


def test_pages_go_on_and_no_text_comes_twice(copies: Collection) -> None:
    whole = copies.search(QUERY, limit=200, collapse=True).hits
    page = copies.search(QUERY, limit=7, collapse=True)
    hits = list(page.hits)
    with pytest.raises(InvalidCursor):
        copies.search(QUERY, limit=7, cursor=page.next_cursor)  # of another ranking
    while page.next_cursor is not None:
        page = copies.search(QUERY, limit=7, collapse=True, cursor=page.next_cursor)
        hits += page.hits
    assert shown(hits) == shown(whole)


def test_together_with_groups_and_diversity(copies: Collection) -> None:
    diverse = copies.search(QUERY, limit=200, collapse=True, diversity=0.5).hits
    assert sorted(shown(diverse)) == sorted(by_hand(copies))
    group_of = {hit.id: hit.metadata.get("n") for hit in copies.search(QUERY, limit=200).hits}
    groups = [group_of[id] for id, _ in by_hand(copies)]
    firsts = [
        one for at, one in enumerate(by_hand(copies)) if groups[at] is None or groups[at] not in groups[:at]
    ]
    grouped = copies.search(QUERY, limit=200, collapse=True, group_by="n").hits
    assert shown(grouped) == firsts
    assert len(firsts) == 5  # of each of four, and the one without
    with pytest.raises(InvalidRequest, match="collapse"):
        copies.search_batch([QUERY] * 33, collapse=True)


def test_without_words_nothing_is_the_same() -> None:
    assert text_name(Document("a", "", "")) == text_name(Document("b", " \n", " ")) == -1
    assert text_name(Document("a", "x  y", "one")) == text_name(Document("b", "x\ny", "two"))
    assert text_name(Document("a", "", "one")) != text_name(Document("b", "", "two"))
    order, copies = collapsed([7, -1, 5, -1, 7, -1])
    assert (order.tolist(), copies.tolist()) == ([0, 1, 2, 3, 5], [1, 0, 0, 0, 1, 0])


@pytest.mark.parametrize("options", [{}, {"score_threshold": 0.5}, {"limit": 5, "offset": 3}])
def test_shards_collapse_as_one_machine(copies: Collection, tmp_path: Path, options: Any) -> None:
    copies.refresh()
    chosen = {"limit": 40, **options, "collapse": True}
    with sharded(copies, tmp_path / "shards", 3) as shards:
        (answer,) = shards.search([QUERY], "v0", SearchOptions(**chosen))
        require_same(answer, copies.search(QUERY, **chosen))
        assert any(hit.duplicates for hit in answer.hits)
