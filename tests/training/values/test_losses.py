"""Pooled values: whom a document leaves out, and which candidates a search would pool."""

from __future__ import annotations

import pytest
import torch
from support.training.opened_heads import opened_head, unit

from dsearch.training.values import losses
from dsearch.training.values.losses import (
    SMOOTHING,
    _candidates,
    log_loss,
    loss_of_values,
    pooled_values,
    squared_error,
)


def test_candidates_are_the_nearest_and_those_with_a_word() -> None:
    """The nearest of any head, and the best of the words among documents that have one."""
    scores = torch.tensor([[[5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 9.0, 4.0, 5.0]]])
    assert _candidates(scores, None, 2).tolist() == [[True, True, True, False, True]]
    one = scores[:, :1]
    assert _candidates(one, None, 1).tolist() == [[True, False, False, False, False]]
    words = torch.tensor([[0.0, 0.0, 0.0, 0.7, 0.2]])
    assert _candidates(one, words, 1).tolist() == [[True, False, False, True, False]]
    assert _candidates(one, words, 3).tolist() == [[True, True, True, True, True]]
    assert _candidates(one, torch.zeros(1, 5), 2).tolist() == [[True, True, False, False, False]]
    assert _candidates(one, words, 99).all()


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("with_keywords", [True, False])
def test_a_document_is_no_evidence_for_itself(
    monkeypatch: pytest.MonkeyPatch, heads: int, with_keywords: bool
) -> None:
    torch.manual_seed(2)
    head, corpus = opened_head(6, heads), unit(9, 6)
    keyword = torch.rand(3, 9, dtype=torch.float64) if with_keywords else None
    own, values = torch.tensor([4, -1, 0]), torch.randn(9, 2, dtype=torch.float64)
    pooled = pooled_values(head, corpus[[4, 7, 0]], corpus, values, own, keyword=keyword)
    changed = values.clone()
    changed[[4, 7]] += torch.tensor([[100.0], [1.0]], dtype=torch.float64)
    again = pooled_values(head, corpus[[4, 7, 0]], corpus, changed, own, keyword=keyword)
    assert (again[0] - pooled[0]).abs().max() <= 1.0, "of the hundred of its own nothing comes"
    assert (again[1] - pooled[1]).abs().min() > 0.5, "what is no document leaves none out"
    monkeypatch.setattr(losses, "_PLAIN_LOGITS", 0)
    blocks = pooled_values(head, corpus[[4, 7, 0]], corpus, values, own, keyword=keyword)
    torch.testing.assert_close(blocks, pooled)


def test_a_document_that_is_alone_pools_nothing() -> None:
    head, corpus = opened_head(6, 1), unit(1, 6)
    values = torch.ones(1, 2, dtype=torch.float64)
    assert pooled_values(head, corpus, corpus, values, torch.tensor([0])).tolist() == [[0.0, 0.0]]
    assert pooled_values(head, corpus, corpus, values, torch.tensor([-1])).tolist() == [[1.0, 1.0]]


def test_losses_by_hand() -> None:
    predicted, wanted = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
    assert squared_error(predicted, wanted).tolist() == [2.5]
    shares, right = torch.tensor([[0.25, 0.75], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    expected = -torch.tensor([0.99 * 0.75 + 0.005, 0.005]).log()
    torch.testing.assert_close(log_loss(shares, right), expected)
    assert SMOOTHING == 0.01
    for kind in ("number", "vector"):
        assert loss_of_values(kind, predicted, wanted).tolist() == [2.5]  # type: ignore[arg-type]
    torch.testing.assert_close(loss_of_values("label", shares, right), expected)
