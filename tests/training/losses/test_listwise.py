"""The default objective: one pass and the general way are one function, with one gradient."""

from __future__ import annotations

import pytest
import torch
from support.training.opened_heads import batch_of, opened_head, unit

from dsearch.training.losses import listwise
from dsearch.training.losses.listwise import listwise_cross_entropy


def both(
    monkeypatch: pytest.MonkeyPatch, *, learning: str = ""
) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Loss and gradients in one pass where that is possible, and without it."""
    answers: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
    for forced in (False, True):
        torch.manual_seed(3)
        head, corpus = opened_head(6, 1), unit(20, 6)
        batch = batch_of(head, corpus)
        assert batch.keyword is not None
        inputs = {"keyword": batch.keyword, "corpus": corpus, "states": batch.states}
        chosen = [*head.parameters()]
        if learning:
            chosen.append(inputs[learning].requires_grad_())
        if forced:
            monkeypatch.setattr(listwise, "_in_one_pass", lambda *_: False)
        loss = listwise_cross_entropy(
            head, inputs["states"], inputs["keyword"], corpus, batch.relevant, batch.target
        )
        gradients = torch.autograd.grad(loss, chosen, allow_unused=True)
        each = zip(gradients, chosen, strict=True)
        answers.append((loss.detach(), [torch.zeros_like(to) if of is None else of for of, to in each]))
        monkeypatch.undo()
    return answers


@pytest.mark.parametrize("learning", ["", "keyword", "corpus", "states"])
def test_whatever_learns_has_its_gradient_either_way(monkeypatch: pytest.MonkeyPatch, learning: str) -> None:
    """Keyword scores and embeddings that learn take the general way: in one pass they would have none."""
    (fast, first), (slow, second) = both(monkeypatch, learning=learning)
    torch.testing.assert_close(fast, slow)
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other)
    if learning:
        assert first[-1].abs().sum() > 0


@pytest.mark.parametrize(
    ("heads", "learning", "fast"),
    [(1, "", True), (2, "", False), (1, "corpus", False), (1, "keyword", False)],
)
def test_one_pass_is_for_one_head_over_what_does_not_learn(heads: int, learning: str, fast: bool) -> None:
    head, corpus = opened_head(6, heads), unit(20, 6)
    batch = batch_of(head, corpus)
    assert batch.keyword is not None
    if learning:
        {"corpus": corpus, "keyword": batch.keyword}[learning].requires_grad_()
    folded = head.fold(head.queries(batch.states))
    assert listwise._in_one_pass(head, folded, batch.keyword, corpus, None) is fast
