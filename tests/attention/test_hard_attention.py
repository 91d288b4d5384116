"""Hard attention: REINFORCE against the enumerated expectation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

from dsearch.attention import (
    GeneralScore,
    SampledHardAttention,
    attend,
    masked_log_softmax,
    reinforce_loss,
    sample,
)
from dsearch.errors import InvalidRequest

LOGITS = torch.tensor([0.5, -0.2, 1.1], dtype=torch.float64)
REWARDS = torch.tensor([1.0, 5.0, -2.0], dtype=torch.float64)


def exact_gradient() -> torch.Tensor:
    """∇ Σ p_i r_i with respect to the logits."""
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad((logits.softmax(0) * REWARDS).sum(), logits)[0]


def estimate(actions: torch.Tensor, rewards: torch.Tensor = REWARDS) -> torch.Tensor:
    """One REINFORCE gradient (of the reward, so the loss's with its sign changed)."""
    logits = LOGITS.clone().requires_grad_()
    loss = reinforce_loss(masked_log_softmax(logits), actions, rewards[actions.clamp_min(0)])
    return -torch.autograd.grad(loss, logits)[0]


class TestReinforce:
    @pytest.mark.parametrize("samples", [2, 3])
    def test_it_is_unbiased_by_enumeration(self, samples):
        """The mean over every possible draw, each with its probability, is the exact gradient."""
        p = LOGITS.softmax(0)
        mean = torch.zeros(3, dtype=torch.float64)
        for draw in itertools.product(range(3), repeat=samples):
            mean += math.prod(p[a].item() for a in draw) * estimate(torch.tensor(draw))
        torch.testing.assert_close(mean, exact_gradient())

    def test_it_converges_to_the_exact_gradient(self):
        few, many = (estimate(sample(LOGITS.softmax(0), n)) for n in (100, 100_000))
        exact = exact_gradient()
        assert (many - exact).norm() < 0.02 * exact.norm()
        assert (many - exact).norm() < (few - exact).norm()

    def test_the_baseline_lowers_the_variance(self):
        """A reward that all share carries no signal; with the baseline it carries no noise either."""
        draws = [sample(LOGITS.softmax(0), 4) for _ in range(200)]
        near, far = (torch.stack([estimate(a, REWARDS + shift) for a in draws]) for shift in (0.0, 100.0))
        torch.testing.assert_close(near, far)

    def test_masked_and_empty_rows(self):
        weights = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        assert sample(weights, 4).tolist() == [[1] * 4, [-1] * 4]
        assert sample(torch.empty(2, 0), 3).tolist() == [[-1] * 3] * 2
        logits = torch.full((1, 2), -math.inf, requires_grad=True)
        loss = reinforce_loss(masked_log_softmax(logits), torch.full((1, 2), -1), torch.ones(1, 2))
        loss.sum().backward()
        assert logits.grad.tolist() == [[0.0, 0.0]]

    def test_draws_of_nothing_and_rewards_are_not_learned_from(self):
        log_weights = LOGITS.log_softmax(0).requires_grad_()
        rewards = torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
        reinforce_loss(log_weights, torch.tensor([1, -1, 2]), rewards).backward()
        # Less the mean of the others, 4 − 1 and 1 − 2.5, by three; the draw of nothing has no part.
        assert log_weights.grad.tolist() == pytest.approx([0.0, -3 / 3, 1.5 / 3])
        assert rewards.grad is None

    def test_one_sample_leaves_no_baseline(self):
        with pytest.raises(
            InvalidRequest, match=r"1 sample\(s\); the leave-one-out baseline needs 2 or more"
        ):
            reinforce_loss(torch.zeros(3), torch.tensor([0]), torch.ones(1))

    def test_gradients_of_the_surrogate(self, draw):
        actions, rewards = torch.tensor([[0, 2, 2], [1, 1, 0]]), torch.randn(2, 3).double()
        assert gradcheck(lambda x: reinforce_loss(masked_log_softmax(x), actions, rewards), draw(2, 4))


class TestSampledHardAttention:
    def test_each_look_is_one_of_the_values(self):
        queries, keys, values = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 6)
        looks = SampledHardAttention(7)(queries, keys, values)
        assert looks.context.shape == (2, 3, 7, 6)
        for b, m, s in itertools.product(range(2), range(3), range(7)):
            assert torch.equal(looks.context[b, m, s], values[b, looks.actions[b, m, s]])

    def test_the_mean_of_many_looks_is_soft_attention(self):
        queries, keys, values = torch.randn(1, 2, 4), torch.randn(1, 5, 4), torch.randn(1, 5, 3)
        looks = SampledHardAttention(20_000)(queries, keys, values)
        soft = attend(queries, keys, values).context
        torch.testing.assert_close(looks.context.mean(-2), soft, atol=0.05, rtol=0)

    def test_masked_keys_are_never_looked_at_and_nothing_gives_zeros(self):
        mask = torch.tensor([[[True, False, True]], [[False, False, False]]])
        looks = SampledHardAttention(50)(
            torch.randn(2, 1, 4), torch.randn(2, 3, 4), torch.ones(2, 3, 1), mask
        )
        assert not (looks.actions[0] == 1).any()
        assert looks.context[1].abs().sum() == 0
        empty = SampledHardAttention(3)(torch.randn(2, 1, 4), torch.empty(2, 0, 4), torch.empty(2, 0, 1))
        assert empty.context.tolist() == [[[[0.0]] * 3]] * 2

    def test_it_learns_where_to_look_from_rewards_alone(self):
        """Key i should be looked at for query i; nobody tells the module, it is paid when it does."""
        vectors = torch.randn(4, 4)
        module = SampledHardAttention(16, GeneralScore(4))
        optimiser = torch.optim.Adam(module.parameters(), 0.1)
        targets = torch.arange(4).unsqueeze(-1)
        generator = torch.Generator().manual_seed(0)
        keys = vectors[[1, 2, 3, 0]]  # the right key is not the similar one
        wanted = torch.tensor([[2], [3], [0], [1]])
        for _ in range(150):
            looks = module(vectors, keys, targets.float(), generator=generator)
            optimiser.zero_grad()
            module.loss(looks, (looks.actions == wanted).float()).mean().backward()
            optimiser.step()
        greedy = attend(vectors, keys, targets.float(), score=module.score, pooling="hard").context
        assert greedy.tolist() == wanted.float().tolist()


def test_a_generator_decides_where_it_looks():
    queries, keys = torch.randn(2, 3), torch.randn(40, 3)

    def looked_at(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return SampledHardAttention()(queries, keys, keys, generator=generator).actions.tolist()

    assert looked_at(0) == looked_at(0) != looked_at(1)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_generator_draws_the_same_on_a_gpu():
    """A training's generator is on the CPU, wherever the arithmetic is."""
    weights, drawn = torch.rand(4, 9), []
    for device in ("cpu", "cuda"):
        places = sample(weights.to(device), 5, torch.Generator().manual_seed(3))
        assert places.device.type == device
        drawn.append(places.cpu())
    assert torch.equal(*drawn)
