"""The two losses against their definitions, written out over the whole corpus."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.training.opened_heads import batch_of, both_ways, opened_head, unit
from support.training.opened_heads import seeded as seeded  # a fixture for every test here

from dsearch.attention.retrieval.head import Head
from dsearch.training.losses import listwise, objectives

path = both_ways(listwise)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("with_keywords", [True, False])
def test_listwise_cross_entropy_is_its_definition(heads: int, with_keywords: bool) -> None:
    head, states, corpus = opened_head(8, heads), unit(4, 8), unit(20, 8)
    keyword = torch.rand(4, 20, dtype=torch.float64) if with_keywords else None
    relevant = torch.tensor([[3, 5], [0, 0], [7, 19], [2, 0]])
    target = torch.tensor([[0.75, 0.25], [1.0, 0.0], [0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    loss = objectives.listwise_cross_entropy(head, states, keyword, corpus, relevant, target)

    keys = corpus @ head.key_projection().T
    raw = torch.einsum("bhd,nd->bhn", head.queries(states), keys)
    if keyword is not None:
        raw = raw + head.keyword_weight[:, None] * keyword[:, None]
    weights = torch.einsum("h,bhn->bn", head.mixture, (raw / head.temperature).softmax(-1))
    wanted = torch.zeros(4, 20, dtype=torch.float64)
    wanted.scatter_add_(1, relevant, target)
    expected = -(wanted * weights.log()).sum(1).mean()
    torch.testing.assert_close(loss, expected)
    loss_gradient = torch.autograd.grad(loss, head.key_delta)[0]
    torch.testing.assert_close(loss_gradient, torch.autograd.grad(expected, head.key_delta)[0])


@pytest.mark.usefixtures("path")
def test_listwise_weighs_queries_by_the_sum_of_their_targets() -> None:
    batch = batch_of(opened_head(8, 1), unit(20, 8))
    weights = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64)
    loss = objectives.OBJECTIVES["listwise"]
    whole = loss(replace(batch, target=batch.target * weights[:, None]))
    single = ("states", "keyword", "relevant", "target", "scored", "teacher", "mask")
    losses = [loss(replace(batch, **{name: getattr(batch, name)[[i]] for name in single})) for i in range(4)]
    expected = (torch.stack(losses) * weights).mean()
    torch.testing.assert_close(whole, expected)
    learning = [batch.head.key_delta, batch.head.keyword_weight, batch.head.log_temperature]
    for one, other in zip(
        torch.autograd.grad(whole, learning), torch.autograd.grad(expected, learning), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("heads", [1, 3])
def test_retention_is_the_divergence(heads: int) -> None:
    head, documents, corpus = opened_head(8, heads), unit(5, 8), unit(30, 8)
    kept = objectives.retention(head, documents, corpus)
    frozen = (documents @ corpus.T / 0.05).log_softmax(-1)
    keys = corpus @ head.key_projection().T
    trained = (torch.einsum("bhd,nd->bhn", head.queries(documents), keys) / 0.05).log_softmax(-1)
    expected = (frozen.exp()[:, None] * (frozen[:, None] - trained)).sum(-1).mean()
    torch.testing.assert_close(kept, expected)
    gradient = torch.autograd.grad(kept, head.key_delta)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, head.key_delta)[0])


def test_retention_of_an_untrained_head_is_zero() -> None:
    kept = objectives.retention(Head(8).double(), unit(5, 8), unit(30, 8))
    assert kept.item() == pytest.approx(0, abs=1e-9)


DENOMINATORS = {
    "listwise": set(range(20)),
    "marginal": set(range(20)),
    "judged": {2, 3, 5, 7, 9, 11, 19},
    "teacher": {1, 2, 3, 6, 7, 8},
    "reinforce": set(range(20)),
}


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", sorted(DENOMINATORS))
def test_the_denominator_decides_which_documents_move(name: str, heads: int) -> None:
    """The gradient on a stored embedding is exactly 0 where a document has no part."""
    corpus = unit(20, 8).requires_grad_()
    batch = batch_of(opened_head(8, heads), corpus)
    if name == "reinforce":  # whatever is drawn has a grade of its own
        grades = torch.rand(4, 20, dtype=torch.float64)
        batch = replace(batch, relevant=torch.arange(20).expand(4, 20), target=grades)
    gradient = torch.autograd.grad(objectives.OBJECTIVES[name](batch), corpus)[0]
    moved = set(gradient.abs().sum(-1).nonzero()[:, 0].tolist())
    assert moved == DENOMINATORS[name]


def test_every_objective_has_its_documents_tested() -> None:
    assert DENOMINATORS.keys() == objectives.OBJECTIVES.keys()


@pytest.mark.parametrize("with_keywords", [True, False])
def test_pools_have_the_weights_of_their_definition(with_keywords: bool) -> None:
    batch = batch_of(opened_head(8, 3), unit(20, 8), with_keywords=with_keywords)
    listwise = objectives.OBJECTIVES["listwise"](batch)
    target = batch.target_over(batch.whole())
    torch.testing.assert_close(listwise, -(target * batch.log_weights(batch.whole())).sum(-1).mean())
    torch.testing.assert_close(target.sum(-1), torch.ones(4, dtype=torch.float64))
    assert target[0, [3, 5]].tolist() == [0.75, 0.25]
    assert batch.target_over(batch.judged)[1].tolist() == [0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("draws", [0, 29, 30])
def test_frozen_attention_is_the_same_computed_once_or_each_time(
    draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objectives, "_FROZEN_AT_A_TIME", 7)
    head, corpus = opened_head(8, 2), unit(30, 8)
    drawn = torch.tensor([4, 29, 4, 0])
    frozen = objectives.FrozenAttention(corpus, draws)
    assert (frozen._exact is not None) == (draws == 30)
    given = objectives.retention(head, corpus[drawn], corpus, frozen(drawn))
    torch.testing.assert_close(given, objectives.retention(head, corpus[drawn], corpus))


def test_grades_of_drawn_documents_give_in_expectation_the_gradient_of_the_expected_grade() -> None:
    head, corpus = opened_head(8, 2), unit(20, 8)
    batch = replace(batch_of(head, corpus), generator=torch.Generator())
    worth = batch.grades_of(torch.arange(20).expand(4, 20))
    weights = batch.log_weights(batch.whole()).exp()
    exact = torch.autograd.grad(-(weights * worth).sum(1).mean(), head.query_in)[0]
    estimates = torch.stack(
        [torch.autograd.grad(objectives.by_rewards(batch), head.query_in)[0] for _ in range(400)]
    )
    error = (estimates.mean(0) - exact).norm() / exact.norm()
    assert error < 4 * (estimates.std(0).norm() / 400**0.5) / exact.norm()
    assert error < 0.25


def test_rewards_are_shares_of_the_grades() -> None:
    batch = batch_of(opened_head(8, 1), unit(20, 8))
    shown = torch.tensor([[3, 5, 1], [9, 0, 9], [7, 19, 19], [0, 1, 2]])
    assert batch.grades_of(shown).tolist() == [
        [0.75, 0.25, 0.0],
        [1.0, 0.0, 1.0],
        [0.5, 0.5, 0.5],
        [0.0, 0.0, 1.0],
    ]
