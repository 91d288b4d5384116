"""What tests of shards share: a split collection, and what equal answers are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dsearch.cluster.packing import pack, unpack
from dsearch.cluster.release import split
from dsearch.cluster.search.search import ShardedSearch, encode_queries
from dsearch.cluster.shards.shard import LocalShards
from dsearch.engine import Collection
from dsearch.types import SearchResult

WORDS = ["apple", "bread", "cheese", "dough", "egg", "flour", "grape", "honey", "ice", "juice", "kale"]
WORDS += ["lemon", "mango", "nut", "oat", "pear"]
TOLERANCE = 1e-5


class Packed:
    """Shards of this process, asked and answering through what travels between processes."""

    def __init__(self, shards: LocalShards):
        self._shards = shards

    def ask(self, method: str, requests: Mapping[int, Any]) -> dict[int, Any]:
        arrived = {shard: unpack(pack(record)) for shard, record in requests.items()}
        return {shard: unpack(pack(answer)) for shard, answer in self._shards.ask(method, arrived).items()}


@contextmanager
def sharded(collection: Collection, folder: Path, shards: int) -> Iterator[ShardedSearch]:
    """The present generation of a collection, in shards of this process."""
    split(collection.store, collection.snapshot.generation, folder, shards)
    local = LocalShards(folder)
    try:
        yield ShardedSearch(
            local.release,
            Packed(local),
            collection.head,
            partial(encode_queries, collection),
        )
    finally:
        local.close()


def require_same(found: SearchResult, expected: SearchResult) -> None:
    """Equal to 1e-5; documents whose scores tie to that may stand in any order."""
    # The sequence of one machine counts what became live as well; shards have that of the documents.
    assert (found.stamp.generation, found.stamp.model) == (expected.stamp.generation, expected.stamp.model)
    assert found.attention.candidates == expected.attention.candidates
    assert found.attention.entropy == pytest.approx(expected.attention.entropy, abs=1e-4)
    assert (found.attention.covered_mass is None) == (expected.attention.covered_mass is None)
    if expected.attention.covered_mass is not None:
        assert found.attention.covered_mass == pytest.approx(expected.attention.covered_mass, abs=TOLERANCE)
    assert (found.next_cursor is None) == (expected.next_cursor is None)
    assert len(found.hits) == len(expected.hits)
    near = 1e-5
    for ours, theirs in zip(found.hits, expected.hits, strict=True):
        assert ours.rank == theirs.rank
        assert ours.weight == pytest.approx(theirs.weight, abs=TOLERANCE)
        assert ours.score == pytest.approx(theirs.score, abs=TOLERANCE)
    scores = [hit.score for hit in expected.hits]
    by_id = {hit.id: hit for hit in expected.hits}
    for ours in found.hits:
        theirs = by_id.get(ours.id)
        if theirs is None:  # it ties with the last one that is shown
            assert ours.score == pytest.approx(scores[-1], abs=near) or ours.score == pytest.approx(
                scores[0], abs=near
            )
            continue
        assert ours.score == pytest.approx(theirs.score, abs=near)
        assert (ours.title, ours.text, ours.metadata) == (theirs.title, theirs.text, theirs.metadata)
        assert ours.highlights == theirs.highlights
        assert ours.passage == theirs.passage
        assert ours.duplicates == theirs.duplicates
        assert (ours.explain is None) == (theirs.explain is None)
        if ours.explain is not None and theirs.explain is not None:
            assert ours.explain.dense == pytest.approx(theirs.explain.dense, abs=near)
            assert ours.explain.keyword == pytest.approx(theirs.explain.keyword, abs=near)
            assert ours.explain.head_weights == pytest.approx(theirs.explain.head_weights, abs=near)
            assert ours.explain.second_stage == pytest.approx(theirs.explain.second_stage, abs=near)
            assert ours.explain.shares == pytest.approx(theirs.explain.shares, abs=1e-4)
            assert set(ours.explain.terms) == set(theirs.explain.terms)
            for word, parts in theirs.explain.terms.items():
                assert ours.explain.terms[word] == pytest.approx(parts, abs=near), word
