"""The learned head: identity at the start, folding, and parts that can part."""

from __future__ import annotations

import copy

import pytest
import torch

from dsearch.attention.late_interaction import RerankerIdentity
from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.second_stage import SecondStage
from dsearch.errors import DimensionMismatch, InvalidRequest

SHAPES = [(1, "linear"), (1, "low-rank"), (1, "mlp"), (3, "low-rank"), (3, "mlp")]


def trained(heads: int = 1, query_side: str | None = None) -> Head:
    head = Head(8, heads=heads, rank=3, query_side=query_side).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return head


def embeddings(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.nn.functional.normalize(
        torch.randn(count, 8, generator=generator, dtype=torch.float64), dim=-1
    )


@pytest.mark.parametrize(("heads", "query_side"), SHAPES)
def test_untrained_head_is_the_identity(heads: int, query_side: str) -> None:
    head, e = Head(8, heads=heads, query_side=query_side).double(), embeddings(5)
    queries = head.queries(e)
    assert queries.shape == (5, heads, 8)
    torch.testing.assert_close(queries, e.unsqueeze(1).expand(-1, heads, -1))
    for projected in (head.fold(e), head.keys(e), head.values(e)):
        assert torch.equal(projected, e)
    assert head.temperature.item() == pytest.approx(0.05)
    assert head.keyword_weight.tolist() == [1.0] * heads
    assert head.distance_from_identity().item() == 0


@pytest.mark.parametrize(("heads", "query_side"), SHAPES)
def test_folding_gives_the_score_of_projected_keys(heads: int, query_side: str) -> None:
    head, documents = trained(heads, query_side), embeddings(7)
    queries = head.queries(embeddings(5))
    torch.testing.assert_close(
        head.fold(queries) @ documents.T, queries @ (documents @ head.key_projection().T).T
    )
    torch.testing.assert_close(head.keys(documents), documents @ head.key_projection().T)


def test_queries_keep_their_length() -> None:
    e = embeddings(5) * torch.tensor([[0.5], [1.0], [2.0], [1e-3], [0.0]], dtype=torch.float64)
    queries = trained().queries(e)
    torch.testing.assert_close(queries.norm(dim=-1).squeeze(1), e.norm(dim=-1))
    assert torch.isfinite(queries).all()


def test_heads_part_under_training() -> None:
    head = Head(8, heads=2, rank=2)
    head.queries(embeddings(4).float()).square().sum(-1)[..., 0].sum().backward()
    logits = head.queries(embeddings(4).float()) @ embeddings(6).float().T
    (-logits.softmax(-1)[:, :, 0].log().mean()).backward()
    assert head.query_in.grad is not None
    assert not torch.allclose(head.query_in.grad[0], head.query_in.grad[1])


@pytest.mark.parametrize(("heads", "query_side"), SHAPES)
def test_every_part_of_the_query_side_learns_and_is_pulled_back(heads: int, query_side: str) -> None:
    head = Head(8, heads=heads, rank=3, query_side=query_side).double()
    for _ in range(2):  # what stands before zeros has no gradient in the first step
        logits = head.queries(embeddings(4)) @ embeddings(6).T / head.temperature
        head.zero_grad()
        (-logits.softmax(-1)[..., 0].log().mean() + 1e-3 * head.distance_from_identity()).backward()
        with torch.no_grad():
            for parameter in head.query_parameters():
                assert parameter.grad is not None
                parameter -= 0.01 * parameter.grad
    assert all(parameter.grad.any() for parameter in head.query_parameters() if parameter.grad is not None)
    assert head.distance_from_identity() > 0
    names = {"linear": 1, "low-rank": 2, "mlp": 3}
    assert len(head.query_parameters()) == names[query_side]
    other = Head(**head.config()).double()
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(other.queries(embeddings(4)), head.queries(embeddings(4)))


def test_the_shifts_of_a_hidden_layer_are_pulled_to_zero_too() -> None:
    head = Head(8, rank=3, query_side="mlp")
    with torch.no_grad():
        head.query_bias += 0.5
    assert head.distance_from_identity().item() == pytest.approx(3 * 0.25)


def test_a_hidden_layer_is_no_linear_map() -> None:
    head, e = trained(1, "mlp"), embeddings(3)
    with torch.no_grad():
        one, other = head._moved_by(e), head._moved_by(2 * e)
    assert not torch.allclose(2 * one, other)


@pytest.mark.parametrize(("heads", "query_side"), SHAPES)
def test_gradients_are_exact(heads: int, query_side: str) -> None:
    head, documents = trained(heads, query_side), embeddings(4)

    def scores(e: torch.Tensor) -> torch.Tensor:
        return head.fold(head.queries(e)) @ documents.T / head.temperature

    assert torch.autograd.gradcheck(scores, embeddings(3).requires_grad_())


def test_bad_sizes() -> None:
    with pytest.raises(InvalidRequest, match="query_side='deep'; use one of linear, low-rank, mlp"):
        Head(8, query_side="deep")
    with pytest.raises(InvalidRequest, match="'linear' with 2 heads, which would stay alike"):
        Head(8, heads=2, query_side="linear")
    with pytest.raises(InvalidRequest, match="heads=0"):
        Head(8, heads=0)
    with pytest.raises(DimensionMismatch, match=r"use \[batch, 8\]"):
        Head(8).queries(torch.zeros(2, 9))


@pytest.mark.parametrize(("heads", "query_side"), SHAPES)
def test_a_settled_head_leaves_out_what_changes_nothing(heads: int, query_side: str) -> None:
    head = Head(8, heads=heads, rank=2, query_side=query_side)
    states = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = (head.queries(states), head.fold(states), head.keys(states), head.values(states))
    head.settle()
    with torch.inference_mode():
        found = (head.queries(states), head.fold(states), head.keys(states), head.values(states))
        assert found[1] is found[2] is found[3] is states
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("heads", "query_side"), SHAPES)
@pytest.mark.parametrize("how", ["trained", "loaded", "copied and changed", "moved"])
def test_a_settled_head_that_is_changed_after_all_uses_everything(
    heads: int, query_side: str, how: str
) -> None:
    other = Head(8, heads=heads, rank=2, query_side=query_side)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.1
    head = Head(8, heads=heads, rank=2, query_side=query_side).settle()
    if how == "loaded":
        head.load_state_dict(other.state_dict())
    else:
        head = copy.deepcopy(head) if how.startswith("copied") else head
        head = head.double().float() if how == "moved" else head
        with torch.no_grad():
            for mine, theirs in zip(head.parameters(), other.parameters(), strict=True):
                mine.copy_(theirs)
    states = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for function in ("queries", "fold", "keys", "values"):
            torch.testing.assert_close(getattr(head, function)(states), getattr(other, function)(states))


def test_a_settled_head_has_all_its_gradients() -> None:
    head = Head(8).settle()
    states = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    (head.values(head.keys(head.fold(head.queries(states)))) ** 3).sum().backward()
    for name in ("query_delta", "key_delta", "value_delta"):
        gradient = head.get_parameter(name).grad
        assert gradient is not None
        assert gradient.abs().sum() > 0


def test_training_starts_from_the_mean_of_a_tuned_search() -> None:
    """Two heads start from three: not from the largest keyword weight, nor the first."""
    tuned = Head(8, heads=3)
    with torch.no_grad():
        tuned.keyword_weight.copy_(torch.tensor([0.5, 1.0, 3.0]))
        tuned.hop_strength.fill_(0.25)
    tuned.weigh_keywords(1.7, 0.4)
    start = Head(8, heads=2)
    start.start_from(tuned)
    assert start.keyword_weight.tolist() == [1.5, 1.5]
    assert start.hop_strength.item() == 0.25
    assert start.bm25 is not None
    assert start.bm25.tolist() == pytest.approx([1.7, 0.4])


def test_what_is_loaded_replaces_all_parts_and_decay_pulls_values_too() -> None:
    head, plain = Head(8), Head(8)
    head.weigh_keywords(0.9, 0.4)
    head.load_state_dict(plain.state_dict())
    assert head.bm25 is None
    with torch.no_grad():
        head.value_delta[0, 0] = 3.0
    assert head.distance_from_identity().item() == 9.0


def test_a_stage_that_is_loaded_asks_the_reranker_that_it_was_fitted_to() -> None:
    """Its name is not among the tensors; the version's record has put it there."""
    reranker = RerankerIdentity("some/model", "cross-encoder", "0" * 64)
    head = Head(8).reranking(SecondStage(reranker=reranker))
    state = {**head.state_dict()}
    head.load_state_dict(state)
    assert head.second_stage is not None
    assert head.second_stage.reranker == reranker
    bare = Head(8)
    bare.load_state_dict(state)
    assert bare.second_stage is not None
    assert bare.second_stage.reranker == RerankerIdentity("", "", "")
