"""Hops, kernel regression, squeeze and excitation."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from dsearch.attention import (
    MultiHeadAttention,
    NadarayaWatson,
    SqueezeExcite,
    attend,
    attend_in_hops,
    masked_softmax,
    predict,
    refine,
    unit,
)


class TestHops:
    def test_an_empty_candidate_set_leaves_the_query_alone(self):
        queries = torch.randn(2, 3, 4, requires_grad=True)
        keys = torch.randn(2, 5, 4, requires_grad=True)
        weights = torch.zeros(2, 3, 5, requires_grad=True)
        strength = torch.tensor(1.0, requires_grad=True)
        refined = refine(queries, weights, keys, strength)
        assert torch.equal(refined, queries)
        refined.sum().backward()
        assert all(x.grad.isfinite().all() for x in (queries, keys, weights, strength))
        assert torch.equal(refine(queries, weights[..., :0], keys[:, :0], 1.0), queries)

    def test_a_zero_query_stays_zero_without_a_nan(self):
        queries = torch.zeros(1, 1, 3, requires_grad=True)
        refined = refine(queries, torch.ones(1, 1, 2), torch.randn(1, 2, 3), 1.0)
        refined.sum().backward()
        assert refined.abs().sum() == 0
        assert queries.grad.isfinite().all()

    def test_gradients_reach_everything_even_at_strength_zero(self, draw):
        for start in (0.0, 0.8):
            strength = torch.tensor(start, dtype=torch.float64, requires_grad=True)
            assert gradcheck(
                lambda q, x, k, g: refine(q, masked_softmax(x), k, g),
                (draw(2, 3, 4), draw(2, 3, 5), draw(2, 5, 4), strength),
            )
        strength = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
        refine(draw(2, 3, 4), masked_softmax(draw(2, 3, 5)), draw(2, 5, 4), strength)[0, 0, 0].backward()
        assert strength.grad != 0, "a hop can be learned from a start without one"

    def test_strong_hops_are_a_hopfield_network_that_completes_a_pattern(self):
        """ξ ← X softmax(β Xᵀ ξ): half of a stored pattern retrieves the whole one."""
        patterns = unit(torch.randn(20, 32))
        damaged = patterns[7].clone()
        damaged[16:] = 0
        state = damaged.expand(1, 1, 32)
        weights = attend(state, patterns, score="dot", temperature=0.05).weights
        hopfield = weights @ patterns
        refined = refine(state, weights, patterns, 1e6)
        torch.testing.assert_close(unit(refined), unit(hopfield), atol=1e-5, rtol=0)
        recalled = attend_in_hops(state, patterns, hops=4, strength=1e6, temperature=0.05).context
        assert torch.cosine_similarity(recalled[0, 0], patterns[7], dim=0) > 0.999


class TestRegression:
    """f(x) = 2 sin x + x, noisily sampled at 50 points of [0, 5]."""

    @pytest.fixture
    def samples(self):
        places = torch.rand(50, 1).sort(0).values * 5
        values = 2 * places.sin() + places + 0.3 * torch.randn(50, 1)
        grid = torch.linspace(0, 5, 100).unsqueeze(-1)
        return places, values, grid, 2 * grid.sin() + grid

    @pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov", "boxcar"])
    def test_it_recovers_a_curve_better_than_average_pooling(self, kernel, samples):
        places, values, grid, truth = samples
        curve = NadarayaWatson(kernel, 0.4)(grid, places, values).context
        average = (values.mean() - truth).square().mean()
        assert (curve - truth).square().mean() < average / 5

    @pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov"])
    def test_a_learned_width_beats_the_one_it_started_from(self, kernel, samples):
        places, values, grid, truth = samples
        model = NadarayaWatson(kernel, 3.0)
        before = (model(grid, places, values).context - truth).square().mean()
        optimiser = torch.optim.Adam(model.parameters(), 0.1)
        for _ in range(60):
            optimiser.zero_grad()
            model.leave_one_out_loss(places, values).backward()
            optimiser.step()
        after = (model(grid, places, values).context - truth).square().mean()
        assert 0.05 < model.score.width.item() < 1.5
        assert after < before / 4

    def test_gradients(self, draw):
        model = NadarayaWatson("gaussian", 0.7).double()
        assert gradcheck(lambda q, k, v: model(q, k, v).context, (draw(3, 1), draw(5, 1), draw(5, 2)))
        places, values, query = draw(4, 1).detach(), draw(4, 1).detach(), torch.zeros(1, 1).double()

        def of_the_width(log_width):
            state = {"score.log_width": log_width}
            return torch.func.functional_call(model, state, (query, places, values)).context

        assert gradcheck(of_the_width, torch.tensor(0.1, dtype=torch.float64, requires_grad=True))

    def test_the_spread_does_not_cancel_and_its_gradient_is_finite(self, draw):
        far = predict(torch.tensor([[0.5, 0.5]]), torch.tensor([[1e4], [1e4 + 1]]))
        assert far.spread.item() == pytest.approx(0.5)
        values = torch.tensor([[2.0], [2.0]], requires_grad=True)
        predict(torch.tensor([[0.5, 0.5]]), values).spread.sum().backward()
        assert values.grad.tolist() == [[0.0], [0.0]]
        assert gradcheck(lambda x, v: predict(masked_softmax(x), v), (draw(2, 5), draw(5, 2)))


class TestSqueezeExcite:
    def test_no_candidates(self):
        out = SqueezeExcite(8, 4)(torch.randn(3, 4), torch.empty(3, 0, 8))
        assert out.values.shape == (3, 0, 8)
        assert out.gate.isfinite().all()

    def test_it_learns_which_channel_matters_to_which_query(self):
        """The query names a channel; the gate learns to silence the other one."""
        module = SqueezeExcite(2, 2, reduction=1)
        queries = torch.eye(2).repeat(50, 1)
        values = torch.rand(100, 3, 2) + 0.5
        wanted = values * queries.unsqueeze(1)
        optimiser = torch.optim.Adam(module.parameters(), 0.05)
        for _ in range(150):
            optimiser.zero_grad()
            loss = (module(queries, values).values - wanted).square().mean()
            loss.backward()
            optimiser.step()
        assert loss < (values - wanted).square().mean() / 20

    def test_gradients(self, draw):
        module = SqueezeExcite(6, 2).double()
        torch.nn.init.normal_(module.expand.weight)
        assert gradcheck(module, (draw(2, 2), draw(2, 3, 6)))


def test_a_copy_of_torchs_module_keeps_its_precision() -> None:
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    ours = MultiHeadAttention.from_torch(theirs)
    tokens = torch.rand(2, 5, 8, dtype=torch.float64)
    expected, _ = theirs(tokens, tokens, tokens)
    torch.testing.assert_close(ours(tokens).context, expected, atol=1e-12, rtol=1e-12)


def test_keys_and_values_have_the_length_of_queries_unless_it_is_said() -> None:
    def shapes(**lengths: int) -> list[int]:
        module = MultiHeadAttention(6, 2, **lengths)
        return [
            module.query.in_features,
            module.key.in_features,
            module.value.in_features,
            module.out.in_features,
        ]

    assert shapes() == [6, 6, 6, 6]
    assert shapes(query_dim=4) == [4, 4, 4, 6]
    assert shapes(key_dim=5) == [6, 5, 5, 6]
    assert shapes(query_dim=4, key_dim=5) == [4, 5, 5, 6]
    assert shapes(value_dim=3) == [6, 6, 3, 6]
    own = MultiHeadAttention(6, 2, query_dim=4)(torch.ones(3, 4))
    assert (own.context.shape, own.weights.shape) == ((3, 6), (2, 3, 3))
    assert all(layer.bias is None for layer in MultiHeadAttention(6, 2, bias=False).children())
