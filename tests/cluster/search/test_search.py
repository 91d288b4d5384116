"""States of a release and lost shards, as answers and refusals name them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.cluster.messages import ShardsLost
from dsearch.cluster.search.search import ShardedSearch
from dsearch.errors import Conflict, Gone, InvalidRequest, ShardsMissing
from dsearch.search_options import SearchOptions
from dsearch.types import Stamp


@pytest.fixture
def search() -> ShardedSearch:
    """Of generation 5 at sequence 50, in three shards of 60, 30 and 10 documents."""
    shards = [SimpleNamespace(documents=count, offset=0) for count in (60, 30, 10)]
    release: Any = SimpleNamespace(
        collection="food",
        generation=5,
        sequence=50,
        documents=100,
        shards=shards,
        tokenizer=None,
        dimension=2,
    )
    nothing: Any = None
    return ShardedSearch(release, nothing, nothing, nothing)


def test_an_answer_is_of_the_release_and_the_model(search: ShardedSearch) -> None:
    assert search._stamp(None, "v1") == Stamp(5, "v1", 50)
    assert search._stamp(Stamp(5, "v7", 50), "v1") == Stamp(5, "v7", 50)


@pytest.mark.parametrize(("generation", "sequence"), [(6, 50), (5, 51), (6, 49), (4, 51)])
def test_a_cursor_of_a_later_state_is_not_of_this_cluster(
    search: ShardedSearch, generation: int, sequence: int
) -> None:
    with pytest.raises(Conflict) as refused:
        search._stamp(Stamp(generation, "v1", sequence), "v1")
    assert str(refused.value) == (
        f"generation {generation}, sequence {sequence}: the cluster has generation 5, sequence 50; use the "
        "cursor of one of its answers"
    )


@pytest.mark.parametrize(("generation", "sequence"), [(4, 50), (5, 49), (4, 49)])
def test_a_cursor_of_an_earlier_state_is_gone(search: ShardedSearch, generation: int, sequence: int) -> None:
    with pytest.raises(Gone, match=rf"^generation {generation}, sequence {sequence} is gone; the cluster"):
        search._stamp(Stamp(generation, "v1", sequence), "v1")


def test_lost_shards_are_told_by_their_share_of_the_documents(search: ShardedSearch) -> None:
    assert search._share_of(frozenset()) == 0.0
    assert search._share_of(frozenset({0, 2})) == pytest.approx(0.7)
    assert str(search._missing(frozenset({1}))).startswith("1 of 3 shards with 30.0% of the documents do not")
    search.release.shards.clear()
    empty: Any = search.release
    empty.documents = 0
    assert search._share_of(frozenset()) == 0.0


def test_shards_that_are_lost_one_after_the_other_stay_left_out(
    search: ShardedSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[frozenset[int]] = []

    def answers(*arguments: Any) -> list[Any]:
        asked.append(arguments[5])
        if len(asked) <= 2:
            raise ShardsLost([2 - len(asked)])
        return []

    monkeypatch.setattr(search, "_answers", answers)
    assert search.search(["cat"], "v1", SearchOptions(partial=True)) == []
    assert asked == [frozenset(), {1}, {0, 1}]
    asked.clear()
    with pytest.raises(ShardsMissing, match=r"^1 of 3 shards with 30\.0%"):
        search.search(["cat"], "v1", SearchOptions())


def test_without_any_shard_there_is_no_part_of_an_answer(
    search: ShardedSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[frozenset[int]] = []

    def answers(*arguments: Any) -> list[Any]:
        asked.append(arguments[5])
        assert len(asked) < 4, "asked again and again"
        raise ShardsLost([len(asked) - 1])

    monkeypatch.setattr(search, "_answers", answers)
    with pytest.raises(ShardsMissing, match=r"^3 of 3 shards with 100\.0%"):
        search.search(["cat"], "v1", SearchOptions(partial=True))
    assert asked == [frozenset(), {0}, {0, 1}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "words"}, "mode='words'; use hybrid, dense or keyword"),
        ({"typos": True}, "typos"),
    ],
)
def test_what_shards_cannot_do_is_refused(
    search: ShardedSearch, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        search.search(["cat"], "v1", SearchOptions(**options))
    assert search.search([], "v1", SearchOptions()) == []
