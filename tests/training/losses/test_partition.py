"""The partition over the corpus and its hand-written gradient, against logsumexp and autograd."""

from __future__ import annotations

import pytest
import torch
from support.training.opened_heads import both_ways, unit
from support.training.opened_heads import seeded as seeded  # a fixture for every test here

from dsearch.training.losses import listwise
from dsearch.training.losses.listwise import whole_partition

path = both_ways(listwise)


def written_out(
    queries: torch.Tensor,
    corpus: torch.Tensor,
    temperature: torch.Tensor,
    keyword: torch.Tensor | None,
    keyword_weight: torch.Tensor,
) -> torch.Tensor:
    logits = torch.einsum("bhd,nd->bhn", queries, corpus) / temperature
    if keyword is not None:
        logits = logits + keyword_weight[:, None] / temperature * keyword[:, None]
    return logits.logsumexp(-1)


@pytest.mark.parametrize("held", [1, 40, 1 << 22])  # logits at a time: each document alone, a few, all
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("with_keywords", [True, False])
def test_value_and_gradients_are_those_of_autograd(
    held: int, heads: int, with_keywords: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwise, "_BLOCK_LOGITS", held)
    queries = unit(4, heads, 8).requires_grad_()
    temperature = torch.tensor(0.07, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(heads, dtype=torch.float64, requires_grad=True)
    corpus, upstream = unit(30, 8), torch.randn(4, heads, dtype=torch.float64)
    keyword = torch.rand(4, 30, dtype=torch.float64) if with_keywords else None
    found = whole_partition(queries, corpus, temperature, keyword, weight)
    expected = written_out(queries, corpus, temperature, keyword, weight)
    torch.testing.assert_close(found, expected)
    learning = [queries, temperature, *([weight] if with_keywords else [])]
    for mine, theirs in zip(
        torch.autograd.grad(found, learning, upstream),
        torch.autograd.grad(expected, learning, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_temperature_that_is_given_gets_no_gradient() -> None:
    queries = unit(3, 1, 8).requires_grad_()
    found = whole_partition(queries, unit(9, 8), torch.tensor(0.05, dtype=torch.float64))
    found.sum().backward()
    assert queries.grad is not None
    assert torch.isfinite(queries.grad).all()


@pytest.mark.usefixtures("path")
def test_stored_embeddings_and_keyword_scores_that_want_gradients_have_them() -> None:
    queries, corpus = unit(4, 2, 8), unit(30, 8).requires_grad_()
    temperature, weight = torch.tensor(0.07, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
    keyword = torch.rand(4, 30, dtype=torch.float64, requires_grad=True)
    for wanting in (corpus, keyword):
        given = [one if one is wanting else one.detach() for one in (corpus, keyword)]
        found = whole_partition(queries, given[0], temperature, given[1], weight)
        expected = written_out(queries, given[0], temperature, given[1], weight)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), wanting), torch.autograd.grad(expected.sum(), wanting)
        )


@pytest.mark.parametrize("held", [1, 1 << 22])
def test_logits_of_thousands_neither_overflow_nor_vanish(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listwise, "_BLOCK_LOGITS", held)
    queries = unit(3, 1, 8).requires_grad_()
    corpus, temperature = unit(20, 8), torch.tensor(1e-4, dtype=torch.float64)
    found = whole_partition(queries, corpus, temperature)
    torch.testing.assert_close(found, written_out(queries, corpus, temperature, None, torch.zeros(3, 1)))
    (gradient,) = torch.autograd.grad(found.sum(), queries)
    nearest = corpus[(queries[:, 0] @ corpus.T).argmax(1)]
    torch.testing.assert_close(gradient[:, 0], nearest / temperature)


def test_nothing_of_the_size_of_the_corpus_is_kept_for_the_backward() -> None:
    queries = unit(4, 1, 8).requires_grad_()
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        whole_partition(queries, unit(1000, 8), torch.tensor(0.05, dtype=torch.float64))
    assert kept
    assert all(1000 not in shape for shape in kept)


def test_what_is_not_a_number_stays_so() -> None:
    queries = unit(2, 1, 8)
    queries[0, 0, 3] = torch.nan
    found = whole_partition(queries, unit(9, 8), torch.tensor(0.05, dtype=torch.float64))
    assert found.isnan().tolist() == [[True], [False]]
