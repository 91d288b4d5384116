"""What a gradient needs of an attention, and gradients by themselves: against autograd through the layer."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.engine.layers import QUERIES, opened_head
from support.fakes import HashingEncoder

from dsearch.engine import Collection, SearchLayer
from dsearch.engine.search import gradients
from dsearch.engine.search.gradients import GradientQuery, attention_parts, vjp
from dsearch.errors import Conflict, DimensionMismatch, Gone, InvalidRequest, ModelNotFound
from dsearch.types import Document, Stamp

SCORES = ["dot", "scaled_dot_product", "cosine", "additive", "gaussian", "epanechnikov", "exact_match"]


def trained(collection: Collection, heads: int) -> str:
    version = collection.add_model(opened_head(heads), {})
    collection.promote(version)
    return version


def exact_layer(collection: Collection, **options) -> SearchLayer:
    head = copy.deepcopy(collection.head(collection.live_model)).double()
    return SearchLayer(collection.snapshot, head, **options)


def states_of(encoder: HashingEncoder, texts: list[str] = QUERIES) -> torch.Tensor:
    return torch.as_tensor(encoder.encode_queries(texts)).double()


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("score", SCORES)
def test_slopes_are_the_jacobian_of_the_dense_scores(
    collection: Collection, encoder: HashingEncoder, heads: int, score: str
) -> None:
    trained(collection, heads)
    options = {"mode": "dense", "score": score, "hops": 1}
    if score == "epanechnikov":
        options["width"] = 1.4  # some candidates are outside its support
    states = states_of(encoder)
    found = attention_parts(
        collection, GradientQuery(states, dtype="float64", options=options), include={"parts", "slopes"}
    )
    layer = exact_layer(collection, **options)
    expected = layer(states)
    np.testing.assert_allclose(found.weights, expected.weights.detach(), rtol=1e-12)
    for query in range(2):
        count = len(found.ids[query])

        def dense(state: torch.Tensor, query: int = query, count: int = count) -> torch.Tensor:
            return layer(torch.stack([state, states[1 - query]])).dense[0, :, :count]

        if score == "exact_match":
            assert not found.slopes.any()
            continue
        jacobian = torch.autograd.functional.jacobian(dense, states[query])
        np.testing.assert_allclose(found.slopes[query, :, :count], jacobian, atol=1e-11)
        assert not found.slopes[query, :, count:].any()


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("words", [True, False])
def test_vjp_is_what_autograd_gives(
    collection: Collection, encoder: HashingEncoder, heads: int, hops: int, words: bool
) -> None:
    trained(collection, heads)
    texts = QUERIES if words else None
    options = {"hops": hops, "hop_strength": None, "candidates": 6}
    states = states_of(encoder)
    asked = GradientQuery(states, texts, dtype="float64", options=options)
    answered = attention_parts(collection, asked, include={"slopes"})
    assert (answered.slopes is not None) == (hops == 1)
    layer = exact_layer(collection, **options, mode="hybrid" if words else "dense")
    states = states.clone().requires_grad_()
    found = layer(states, texts)
    contexts = torch.randn_like(found.context)
    ragged = [np.random.default_rng(7).standard_normal(len(ids)).tolist() for ids in answered.ids]
    padded = torch.zeros_like(found.weights)
    for query, row in enumerate(ragged):
        padded[query, : len(row)] = torch.tensor(row, dtype=torch.float64)
    loss = (found.context * contexts).sum() + (found.weights * padded).sum()
    loss = loss + (found.scores.masked_fill(found.scores == -torch.inf, 0.0) * padded).sum()
    parameters = dict(layer.head.named_parameters())
    expected = torch.autograd.grad(
        loss, [states, *parameters.values()], allow_unused=True, materialize_grads=True
    )
    # After a write the state that the stamp names is still the one that is asked.
    collection.upsert([Document("new", "apple bread cheese")])
    pinned = GradientQuery(states.detach(), texts, stamp=answered.stamp, dtype="float64", options=options)
    given = vjp(collection, pinned, context=contexts.numpy(), weights=ragged, scores=ragged)
    assert given.stamp == answered.stamp
    np.testing.assert_allclose(given.states, expected[0], atol=1e-12, rtol=1e-10)
    for (name, gradient), wanted in zip(given.head.items(), expected[1:], strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-12, rtol=1e-10, err_msg=name)


def test_a_head_that_a_search_loaded_has_gradients(collection: Collection) -> None:
    trained(collection, 2)
    collection._heads.drop("v1")
    collection.attend(QUERIES)  # loads the head under inference mode
    given = vjp(collection, GradientQuery(texts=QUERIES), context=np.ones((2, 32), np.float32))
    assert np.abs(given.head["value_delta"]).max() > 0
    assert collection.head(collection.live_model).value_delta.grad is None


def test_a_stamp_names_its_state_for_a_while(collection: Collection) -> None:
    first = attention_parts(collection, GradientQuery(texts=QUERIES))
    for number in range(8):
        collection.upsert([Document(f"new{number}", f"apple number{number}")])
    again = attention_parts(collection, GradientQuery(texts=QUERIES, stamp=first.stamp))
    assert (again.stamp, again.ids) == (first.stamp, first.ids)
    np.testing.assert_array_equal(again.weights, first.weights)
    collection.delete(["new3"])
    with pytest.raises(Gone, match=r"generation 2, sequence \d+ is gone; .* ask again, without the stamp"):
        attention_parts(collection, GradientQuery(texts=QUERIES, stamp=first.stamp))
    present = attention_parts(collection, GradientQuery(texts=QUERIES)).stamp
    collection.refresh()
    with pytest.raises(Gone):
        vjp(collection, GradientQuery(texts=QUERIES, stamp=present), context=np.ones((2, 32), np.float32))
    ahead = Stamp(present.generation + 9, "v0", present.sequence)
    with pytest.raises(Conflict, match="has only come to generation"):
        attention_parts(collection, GradientQuery(texts=QUERIES, stamp=ahead))


def test_a_model_of_a_stamp_that_is_gone_is_told_from_one_that_never_was(collection: Collection) -> None:
    trained(collection, 1)
    present = attention_parts(collection, GradientQuery(texts=QUERIES)).stamp
    for version in ("v2", "v7"):
        never = Stamp(present.generation, version, present.sequence)
        with pytest.raises(ModelNotFound):
            attention_parts(collection, GradientQuery(texts=QUERIES, stamp=never))
    collection.promote("v0")
    collection.delete_model("v1")
    with pytest.raises(Gone, match="model v1 is gone; ask again, without the stamp"):
        attention_parts(collection, GradientQuery(texts=QUERIES, stamp=present))
    with pytest.raises(ModelNotFound):
        attention_parts(collection, GradientQuery(texts=QUERIES, model="v1"))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({}, InvalidRequest, "no gradient given"),
        ({"context": np.ones((1, 32))}, DimensionMismatch, r"shape \[1, 32\]; use \[2, 32\]"),
        ({"weights": [[1.0]]}, InvalidRequest, "weights of 1 query, 2 were asked"),
        ({"scores": [[1.0], []]}, InvalidRequest, "scores.0 has 1 number; this query has 16 candidates"),
    ],
)
def test_gradients_that_fit_nothing_are_refused(
    collection: Collection, given: dict, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        vjp(collection, GradientQuery(texts=QUERIES), **given)


def test_what_would_be_too_large_is_refused_before_it_is_computed(collection: Collection) -> None:
    with pytest.raises(InvalidRequest, match="2 queries of 16 candidates with 2 arrays of vectors: 8192"):
        attention_parts(
            collection, GradientQuery(texts=QUERIES), include={"keys", "slopes"}, largest_bytes=8191
        )
    trained(collection, 2)
    exact = GradientQuery(texts=QUERIES, dtype="float64")
    with pytest.raises(InvalidRequest, match="with 3 arrays of vectors: 24576"):  # slopes of each head
        attention_parts(collection, exact, include={"keys", "slopes"}, largest_bytes=24_575)
    assert attention_parts(collection, exact, include={"keys", "slopes"}, largest_bytes=24_576).ids
    with pytest.raises(InvalidRequest, match="neither states nor texts"):
        attention_parts(collection, GradientQuery())


@pytest.mark.parametrize("over", ["candidates", "all"])
def test_a_table_is_pooled_and_has_a_gradient(collection: Collection, over: str) -> None:
    rows = np.random.default_rng(0).normal(size=(collection.snapshot.positions, 3))
    options: Any = {"over": over, "candidates": 4, "mode": "dense"}
    query = GradientQuery(texts=QUERIES, table=rows, dtype="float64", options=options)
    found = attention_parts(collection, query, include={"positions", "values"})
    if over == "candidates":
        pooled = np.einsum("qc,qcv->qv", found.weights, rows[found.positions])
        assert found.context == pytest.approx(pooled)
    assert found.values == pytest.approx(rows[found.positions])
    away = rows + 1e-4 * (direction := np.random.default_rng(1).normal(size=rows.shape))
    moved = attention_parts(collection, replace(query, table=away.tolist())).context - found.context
    upstream = np.ones_like(found.context)
    given = vjp(collection, replace(query, stamp=found.stamp), context=upstream)
    assert given.table is not None
    assert (given.table * direction).sum() == pytest.approx(moved.sum() / 1e-4)
    with pytest.raises(InvalidRequest, match="field and table; give one of the two"):
        attention_parts(collection, replace(query, field="number"))
    with pytest.raises(InvalidRequest, match="a table with rows of 1 to 2 numbers; use one length"):
        attention_parts(collection, replace(query, table=[[1.0], [1.0, 2.0]]))
    with pytest.raises(DimensionMismatch, match="a row for each position"):
        attention_parts(collection, replace(query, table=rows[1:]))


def test_a_list_of_the_metadata_is_no_field_to_pool(collection: Collection) -> None:
    for name, value, kind in (("tags", [1.0, 2.0], "a list"), ("size", {"x": 1}, "an object")):
        collection.upsert([Document("new", "cheese and bread", metadata={name: value})])
        query = GradientQuery(texts=QUERIES, field=name, options={"among": ["new"]})
        with pytest.raises(InvalidRequest, match=f"{name}' of document 'new' is {kind}; use a"):
            attention_parts(collection, query)


def test_slopes_of_many_candidates_are_computed_in_parts(
    collection: Collection, encoder: HashingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(collection, 2)
    query = GradientQuery(states_of(encoder), dtype="float64", options={"mode": "dense", "hops": 1})
    whole = attention_parts(collection, query, include={"slopes"}).slopes
    monkeypatch.setattr(gradients, "_AT_ONCE", 5)
    np.testing.assert_allclose(attention_parts(collection, query, include={"slopes"}).slopes, whole)


def test_only_documents_that_match_the_filter_are_attended_to(collection: Collection) -> None:
    query = GradientQuery(texts=QUERIES, filter={"number": {"lt": 5}})
    assert {id for ids in attention_parts(collection, query).ids for id in ids} == {f"d{n}" for n in range(5)}


def test_an_answer_in_float64_leaves_the_served_head_as_it_is(collection: Collection) -> None:
    version = trained(collection, 2)
    attention_parts(collection, GradientQuery(texts=QUERIES, dtype="float64"))
    assert {parameter.dtype for parameter in collection.head(version).parameters()} == {torch.float32}


def test_a_model_beside_a_stamp_of_another_is_refused(collection: Collection) -> None:
    trained(collection, 1)
    stamp = attention_parts(collection, GradientQuery(texts=QUERIES)).stamp
    assert attention_parts(collection, GradientQuery(texts=QUERIES, model="v1", stamp=stamp)).stamp == stamp
    with pytest.raises(InvalidRequest, match="model='v0' with a stamp of 'v1'; leave the model out"):
        attention_parts(collection, GradientQuery(texts=QUERIES, model="v0", stamp=stamp))
