"""Which candidates of shards are used, by proposals that are written down: no shard is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dsearch.attention.retrieval.head import Head
from dsearch.cluster.messages import PastQueries, Proposal, ProposalRequest
from dsearch.cluster.search.merge import merged, ranked_by_head

QUESTION = ProposalRequest(
    folded=np.zeros((1, 1, 4), np.float32),
    texts=["words"],
    mode="hybrid",
    candidates=2,
    filter=None,
    required=(),
    excluded=(),
    partition=False,
    keyword_weight=np.ones(1, np.float32),
    temperature=1.0,
)
OFFSETS = {0: 0, 1: 100}


def proposal(
    positions: list[int], dense: list[float], keyword: list[float] | None = None, **more: Any
) -> Proposal:
    """The candidates of a shard of fifty documents, for one query of one head."""
    return Proposal(
        documents=50,
        positions=np.array([positions], np.int64),
        dense=np.array([[dense]], np.float32),
        keyword=np.array([keyword or [0.0] * len(dense)], np.float32),
        keys=None,
        partition=None,
        **more,
    )


def remembered(memory: list[float], proposable: list[bool]) -> dict[str, Any]:
    return {"memory": np.array([memory], np.float32), "by_memory": np.array([proposable])}


def chosen(question: ProposalRequest, *proposals: Proposal) -> list[int]:
    candidates, _ = merged(dict(enumerate(proposals)), OFFSETS, question)
    return candidates.positions[0].tolist()


def test_each_leg_has_the_best_of_all_shards() -> None:
    here = proposal([3, 5, 9], [0.1, 0.9, 0.2], [0.0, 0.0, 2.0])
    there = proposal([101, 104], [0.8, 0.3], [0.0, 0.5])
    candidates, documents = merged({1: there, 0: here}, OFFSETS, QUESTION)
    assert documents == 100
    assert candidates.positions.tolist() == [[5, 9, 101, 104]]  # by position, whatever came first
    assert candidates.shards.tolist() == [[0, 0, 1, 1]]
    assert candidates.keys is None
    long, _ = merged({1: there, 0: replace(here, keys=here.positions[:, None])}, OFFSETS, QUESTION)
    assert long.keys is not None
    assert long.keys.tolist() == [[[5, 9, 1, 4]]]  # as the shards number them
    np.testing.assert_array_equal(candidates.dense[0, 0], np.array([0.9, 0.2, 0.8, 0.3], np.float32))
    assert candidates.keyword[0].tolist() == [0.0, 2.0, 0.0, 0.5]
    assert chosen(replace(QUESTION, mode="dense"), here, there) == [5, 101]
    assert chosen(replace(QUESTION, mode="keyword"), here, there) == [9, 104]
    assert chosen(replace(QUESTION, texts=None), here, there) == [5, 101]


def test_documents_without_a_word_are_no_candidates_of_the_keyword_leg() -> None:
    here = proposal([3, 5], [0.0, 0.0], [0.5, 0.0])
    assert chosen(replace(QUESTION, mode="keyword"), here, proposal([101], [1.0])) == [3]


def test_of_equals_the_first_position_is_chosen() -> None:
    here, there = proposal([7, 8], [0.5, 0.5]), proposal([100, 101], [0.5, 0.5])
    assert chosen(replace(QUESTION, mode="dense"), here, there) == [7, 8]


def test_documents_that_fit_are_all_candidates() -> None:
    here, there = proposal([3, 5, -1], [0.1, -0.9, 0.0]), proposal([101], [0.2])
    few = [replace(one, documents=1) for one in (here, there)]
    assert chosen(QUESTION, *few) == [3, 5, 101]
    assert chosen(replace(QUESTION, mode="dense"), here, there) == [3, 101]


def test_past_queries_propose_what_they_know_and_no_other() -> None:
    question = replace(QUESTION, mode="keyword", past=object.__new__(PastQueries))
    here = proposal([3, 5, 7], [0.0] * 3, **remembered([0.5, 0.0, 0.9], [True, True, False]))
    there = proposal([101, 102], [0.0] * 2, **remembered([0.25, 0.75], [True, True]))
    assert chosen(question, here, there) == [3, 102]  # 7 may not be proposed, 5 is unknown
    nothing = [replace(one, memory=np.zeros_like(one.memory)) for one in (here, there)]
    assert chosen(question, *nothing) == []
    candidates, _ = merged({0: here, 1: there}, OFFSETS, replace(question, candidates=9))
    assert candidates.memory is not None
    assert candidates.positions.tolist() == [[3, 101, 102]]
    assert candidates.memory.tolist() == [[0.5, 0.25, 0.75]]


def test_what_is_listed_beyond_the_candidates_is_marked() -> None:
    question = replace(QUESTION, mode="dense", candidates=1, depth=3)
    here = proposal([3, 5], [0.9, 0.8], is_extra=np.array([[False, False]]))
    there = proposal([101, 102], [0.7, 0.95], is_extra=np.array([[False, True]]))
    candidates, _ = merged({0: here, 1: there}, OFFSETS, question)
    assert candidates.is_extra is not None
    assert candidates.positions.tolist() == [[3, 5, 102]]
    assert candidates.is_extra.tolist() == [[False, True, True]]  # 102 is none of the candidates


def test_queries_of_fewer_candidates_are_padded() -> None:
    def twice(one: Proposal, second: list[float]) -> Proposal:
        return replace(
            one,
            positions=np.repeat(one.positions, 2, 0),
            dense=np.repeat(one.dense, 2, 0),
            keyword=np.array([one.keyword[0], second], np.float32),
        )

    here = twice(proposal([3, 5], [0.0, 0.0], [1.0, 2.0]), [0.0, 0.0])
    there = twice(proposal([101], [0.0], [0.0]), [3.0])
    candidates, _ = merged({0: here, 1: there}, OFFSETS, replace(QUESTION, mode="keyword"))
    assert candidates.positions.tolist() == [[3, 5], [101, -1]]
    assert candidates.shards.tolist() == [[0, 0], [1, -1]]
    assert candidates.keys is None
    assert candidates.keyword.tolist() == [[1, 2], [3, 0]]


def test_what_is_known_of_candidates_goes_with_them() -> None:
    """Keys, terms of a memory and what is listed behind follow the order of the hits."""
    question = replace(QUESTION, past=object.__new__(PastQueries), depth=3, texts=None)
    more: dict[str, Any] = {**remembered([0.25, 0.5, 0.75], [True] * 3)}
    more |= {"is_extra": np.array([[False, False, True]])}
    one = proposal([3, 5, 7], [0.1, 0.9, 0.5], [0.2, 0.4, 0.6], **more)
    candidates, _ = merged({0: one}, OFFSETS, replace(question, candidates=3))
    candidates = replace(candidates, keys=np.array([[[4, 5, 6]]]), is_extra=np.array([[False, True, True]]))
    with torch.inference_mode():
        output = ranked_by_head(candidates, torch.zeros(1, 1, 4), Head(4), question)
    assert output.positions.tolist() == [[7, 5, 3]]
    assert output.keys is not None
    assert output.keys.tolist() == [[[6, 5, 4]]]
    assert output.memory is not None
    assert output.memory.tolist() == [[0.75, 0.5, 0.25]]
    assert output.is_extra is not None
    assert output.is_extra.tolist() == [[True, True, False]]


def test_one_shard_with_long_documents_is_enough_to_tell_passages() -> None:
    here, there = proposal([3], [0.1]), proposal([101], [0.2])
    long = replace(there, keys=np.array([[[7]]], np.int64))
    for first, second, told in ((here, there, False), (here, long, True)):
        candidates, _ = merged({0: first, 1: second}, OFFSETS, QUESTION)
        assert (candidates.keys is not None) is told
