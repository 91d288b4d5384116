"""Explanations are exact: the parts of a score add up to it, with one head and with several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.explained_parts import checked_parts

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection
from dsearch.engine.ranking.explain import _past_queries, explained
from dsearch.types import Document, Mode


def head_of(heads: int) -> Head:
    torch.manual_seed(heads)
    head = Head(32, heads=heads, rank=4)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return head


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("mode", ["hybrid", "dense", "keyword"])
@pytest.mark.parametrize("hops", [1, 2])
def test_parts_add_up_to_every_score(collection: Collection, heads: int, mode: Mode, hops: int) -> None:
    collection.upsert([Document("fresh", "cheese and bread and numbers", title="honey bread")])
    version = collection.add_model(head_of(heads), {})
    result = collection.search(
        "cheese and bread with honey honey +bread",
        mode=mode,
        model=version,
        hops=hops,
        hop_strength=0.7,
        explain=True,
        limit=50,
    )
    assert "fresh" in [hit.id for hit in result.hits]
    for hit in result.hits:
        parts = checked_parts(hit, heads)
        assert set(parts.terms) <= {"chees", "bread", "honey"}
        assert bool(parts.terms) == (mode != "dense")
        if heads == 1:
            assert (parts.shares, parts.mixing) == ([1.0], 0.0)


def test_mixing_is_the_formula_of_the_module(collection: Collection) -> None:
    head = head_of(3)
    version = collection.add_model(head, {})
    found = collection.attend(["cheese and bread"], model=version).output
    t, m = head.temperature.item(), head.mixture.detach().double()
    logits = (found.dense + found.keyword)[0].double() / t
    partition = logits.logsumexp(-1)
    weights = (logits - partition[:, None]).exp()
    hits = collection.search("cheese and bread", model=version, explain=True, limit=50).hits
    for column, hit in enumerate(hits):
        assert hit.explain is not None
        shares = m * weights[:, column] / (m * weights[:, column]).sum()
        assert hit.explain.shares == pytest.approx(shares.tolist(), abs=1e-4)
        mixing = t * ((shares * (m.log() - partition - shares.log())).sum() + (m * partition).sum())
        assert hit.explain.mixing == pytest.approx(mixing.item(), abs=1e-4)


def test_a_term_counts_as_much_as_leaving_it_out_costs(collection: Collection) -> None:
    """Each term's part is its share of b(q, d): part over the sum of the query's idf."""
    hit = collection.search("cheese bread", mode="keyword", explain=True).hits[0]
    assert hit.explain is not None
    alone = {
        term: {one.id: one for one in collection.search(word, mode="keyword", limit=50).hits}.get(hit.id)
        for term, word in (("chees", "cheese"), ("bread", "bread"))
    }
    ratios = {term: hit.explain.terms[term][0] / one.score for term, one in alone.items() if one is not None}
    assert set(ratios) == set(hit.explain.terms)
    assert sum(ratios.values()) <= 1.0 + 1e-6  # a term alone divides by its own idf, here by that of both


def test_the_part_of_a_reranker_is_none_of_the_second_stage(collection: Collection) -> None:
    found = collection.attend(["cheese and bread"]).output
    both = {"second": torch.full_like(found.scores, 0.75), "reranked": torch.full_like(found.scores, 0.5)}
    head = collection.head("v0")
    parts = explained(found._replace(**both), head, head.temperature)(0, 0, {})
    assert (parts.second_stage, parts.reranker) == (0.25, 0.5)


@pytest.mark.usefixtures("unchecked")  # layer and output are stand-ins
def test_past_queries_are_those_with_a_part_and_the_largest_first() -> None:
    """Five of them; a query whose words are not kept is None."""
    parts = np.array([0.0, 0.5, -2.0, 0.1, 0.0, 0.3, 1.0, -0.2], np.float32)
    memory = SimpleNamespace(texts=[f"q{row}" if row else "" for row in range(8)])
    asked: list[tuple[int, int]] = []

    def sources(recalled: object, query: int, position: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append((query, position))
        return np.arange(8)[::-1], parts

    layer: Any = SimpleNamespace(memory=SimpleNamespace(sources=sources, memory=memory))
    output: Any = SimpleNamespace(recalled=object(), positions=np.array([[3, 9], [4, 7]]))
    past = _past_queries(output, layer)
    assert past is not None
    assert [(one.query, round(one.part, 4)) for one in past(1, 0)] == [
        ("q5", -2.0),
        ("q1", 1.0),
        ("q6", 0.5),
        ("q2", 0.3),
        (None, -0.2),
    ]
    assert asked == [(1, 4)]
    parts[:] = [0, 0, 0, 0.5, 0, 0, 0, 0]
    assert [one.query for one in past(0, 1) or []] == ["q4"]
    memory.texts = None
    assert [one.query for one in past(0, 1) or []] == [None]
    output.recalled = None
    assert _past_queries(output, layer) is None
