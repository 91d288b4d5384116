"""Every loss where its optimum is known, and against its definition written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dsearch.training.losses import objectives as losses

TARGET = torch.tensor([[0.5, 0.0, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ON_TARGET: list[Loss] = [
    losses.cross_entropy,
    losses.info_nce,
    losses.marginal_likelihood,
]


@pytest.fixture
def logits() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 5, dtype=torch.float64, requires_grad=True)


def minimised(loss: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, steps: int) -> torch.Tensor:
    found = start.detach().clone().requires_grad_()
    optimizer = torch.optim.Adam([found], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(found).backward()
        optimizer.step()
    return found.detach()


def test_cross_entropy_is_least_at_the_target(logits: torch.Tensor) -> None:
    target = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1], [0.1, 0.6, 0.1, 0.1, 0.1]], dtype=torch.float64)
    found = minimised(lambda given: losses.cross_entropy(given, target), logits, 400)
    torch.testing.assert_close(found.softmax(-1), target, atol=1e-3, rtol=0)
    entropy = -(target * target.log()).sum(-1).mean()
    torch.testing.assert_close(losses.cross_entropy(target.log(), target), entropy)


def test_info_nce_is_its_definition_and_spares_known_positives(logits: torch.Tensor) -> None:
    expected = 0.0
    for row, target in zip(logits.tolist(), TARGET.tolist(), strict=True):
        negatives = sum(
            torch.tensor(logit).exp().item() for logit, p in zip(row, target, strict=True) if p == 0
        )
        for logit, p in zip(row, target, strict=True):
            own = torch.tensor(logit).exp().item()
            expected -= p * torch.tensor(own / (own + negatives)).log().item() / 2
    assert losses.info_nce(logits, TARGET).item() == pytest.approx(expected)
    # Two positives far ahead: no loss left, whatever lies between them; cross entropy still sees a distance.
    ahead = torch.tensor([[40.0, 0.0, 30.0, 35.0, 0.0], [0.0, 40.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert losses.info_nce(ahead, TARGET).item() == pytest.approx(0, abs=1e-9)
    assert losses.cross_entropy(ahead, TARGET).item() > 1


def test_info_nce_without_negatives_is_nothing() -> None:
    alone = torch.zeros(1, 2, requires_grad=True)
    loss = losses.info_nce(alone, torch.tensor([[0.5, 0.5]]))
    loss.backward()
    assert loss.item() == 0
    assert alone.grad is not None
    assert alone.grad.tolist() == [[0.0, 0.0]]


def test_marginal_likelihood_needs_one_of_the_relevant(logits: torch.Tensor) -> None:
    weights = logits.softmax(-1)
    expected = -((weights * (TARGET > 0)).sum(-1)).log().mean()
    torch.testing.assert_close(losses.marginal_likelihood(logits, TARGET), expected)
    one = torch.tensor([[0.0, 0.0, 60.0, 0.0, 0.0], [0.0, 60.0, 0.0, 0.0, 0.0]])
    assert losses.marginal_likelihood(one, TARGET.float()).item() == pytest.approx(0, abs=1e-6)
    assert losses.cross_entropy(one, TARGET.float()).item() > 10


def test_teacher_divergence_is_zero_at_the_teacher(logits: torch.Tensor) -> None:
    teacher = torch.tensor([[3.0, 1.0, 2.0, 0.0, -9.0], [1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True, False], [True, True, False, False, False]])
    assert losses.teacher_divergence(teacher + 7, teacher, mask).item() == pytest.approx(0, abs=1e-12)
    found = minimised(lambda given: losses.teacher_divergence(given, teacher, mask), logits, 400)
    torch.testing.assert_close(found[0, :4].softmax(-1), teacher[0, :4].softmax(-1), atol=1e-3, rtol=0)
    wanted, given = teacher[1, :2].softmax(-1), logits[1, :2].softmax(-1)
    second = (wanted * (wanted / given).log()).sum()
    wanted, given = teacher[0, :4].softmax(-1), logits[0, :4].softmax(-1)
    first = (wanted * (wanted / given).log()).sum()
    torch.testing.assert_close(losses.teacher_divergence(logits, teacher, mask), (first + second) / 2)


@pytest.mark.parametrize("loss", ON_TARGET)
def test_a_constant_for_a_query_changes_nothing(logits: torch.Tensor, loss: Loss) -> None:
    shifted = logits + torch.tensor([[5.0], [-3.0]], dtype=torch.float64)
    torch.testing.assert_close(loss(shifted, TARGET), loss(logits, TARGET))


@pytest.mark.parametrize("loss", ON_TARGET)
def test_gradients_raise_the_relevant(logits: torch.Tensor, loss: Loss) -> None:
    gradient = torch.autograd.grad(loss(logits, TARGET), logits)[0]
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(2, dtype=torch.float64))
    assert gradient[1, 1] < 0
    assert (gradient[1, [0, 2, 3, 4]] > 0).all()
