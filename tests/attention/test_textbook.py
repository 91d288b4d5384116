"""The examples that a chapter on queries, keys and values works through, each against its closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from dsearch.attention import (
    Database,
    MultiHeadAttention,
    attend,
    causal_mask,
    exact_attention,
    string_kernel,
)
from dsearch.errors import InvalidRequest

PEOPLE = {
    "Zhang": "Aston",
    "Lipton": "Zachary",
    "Li": "Mu",
    "Smola": "Alex",
    "Hu": "Rachel",
    "Werness": "Brent",
}


class TestDatabase:
    def test_exact_match_returns_the_value_with_weight_one(self):
        answer = Database(PEOPLE).ask("Li")
        assert (answer.value, answer.key, answer.weight) == ("Mu", "Li", 1.0)

    def test_an_absent_key_has_no_answer(self):
        assert Database(PEOPLE).ask("Turing") is None
        assert Database({}).ask("Li") is None
        assert Database({}).ask("Li", match="approximate") is None

    def test_approximate_match_finds_the_nearest_key(self):
        rest = {key: value for key, value in PEOPLE.items() if key != "Li"}
        assert Database(rest).ask("Li") is None
        answer = Database(rest).ask("Li", match="approximate")
        assert (answer.key, answer.value, answer.weight) == ("Lipton", "Zachary", 1.0)

    def test_approximate_match_prefers_the_exact_key(self):
        assert Database(PEOPLE).ask("Li", match="approximate").value == "Mu"

    def test_nothing_in_common_is_no_answer(self):
        assert Database({"abc": 1}).ask("xyz", match="approximate") is None

    def test_the_same_query_is_answered_otherwise_when_the_contents_change(self):
        contents = dict(PEOPLE)
        database = Database(contents)
        contents["Li"] = "Fei-Fei"
        assert database.ask("Li").value == "Fei-Fei"
        del contents["Li"]
        assert database.ask("Li") is None

    def test_the_same_code_serves_any_size(self):
        database = Database({f"key {n}": n for n in range(5000)})
        assert database.ask("key 4321").value == 4321
        assert database.weights("key 4321").sum() == 1

    def test_similarity_by_hand(self):
        assert string_kernel("fuzzy", ["Li"], ["Lipton", "Li", "li", "Hu"])[0].tolist() == pytest.approx(
            [2 * 2 / 8, 1, 2 * 1 / 4, 0]
        )
        assert Database({"li": 1}).ask("LI") is None
        assert Database({"li": 1}, ignore_case=True).ask("LI").value == 1

    def test_letters_with_an_accent_are_equal_however_they_are_written(self):
        assert Database({"caf\u00e9": 1}).ask("cafe\u0301").value == 1

    def test_no_match_weighs_nothing(self):
        for match in ("exact", "approximate"):
            assert Database({"abc": 1, "def": 2}).weights("xyz", match).tolist() == [0, 0]
            assert Database({}).weights("xyz", match).shape == (0,)

    def test_other_matches_are_refused(self, unchecked):
        with pytest.raises(InvalidRequest, match=r"match='fuzzy'; use exact or approximate"):
            Database(PEOPLE).ask("Li", match="fuzzy")

    def test_it_is_attention_with_one_hot_keys(self):
        """The same six pairs with vectors for keys: exact match is a score like any other."""
        keys, values = torch.eye(6), torch.arange(6.0).unsqueeze(-1)
        out = attend(keys[2:3], keys, values, score="exact_match")
        assert out.context.item() == 2.0
        assert out.weights.tolist() == [[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]
        assert attend(torch.zeros(1, 6), keys, values, score="exact_match").weights.sum() == 0


class TestSixTokens:
    """Six words of three numbers, attended by one head of size two."""

    inputs = torch.tensor(
        [
            [0.43, 0.15, 0.89],
            [0.55, 0.87, 0.66],
            [0.57, 0.85, 0.64],
            [0.22, 0.58, 0.33],
            [0.77, 0.25, 0.10],
            [0.05, 0.80, 0.55],
        ]
    )

    def test_weights_and_context_of_the_second_token(self):
        torch.manual_seed(123)
        query_weight, key_weight, value_weight = (torch.randn(3, 2) for _ in range(3))
        queries, keys, values = (self.inputs @ w for w in (query_weight, key_weight, value_weight))
        context, weights = attend(queries[1:2], keys, values)

        q, k, v = (x.double().numpy() for x in (queries[1], keys, values))
        exp = np.exp(k @ q / np.sqrt(2))
        np.testing.assert_allclose(weights[0].numpy(), exp / exp.sum(), atol=1e-6)
        np.testing.assert_allclose(context[0].numpy(), exp / exp.sum() @ v, atol=1e-6)
        assert weights[0].tolist() == pytest.approx(SECOND_TOKEN_WEIGHTS, abs=1e-4)
        assert context[0].tolist() == pytest.approx(SECOND_TOKEN_CONTEXT, abs=1e-4)

    def test_all_six_at_once(self):
        together = attend(self.inputs, self.inputs).context
        for token in range(6):
            one = attend(self.inputs[token : token + 1], self.inputs).context[0]
            torch.testing.assert_close(together[token], one)


# Computed once from the definition in NumPy's float64, from the weights that torch draws with seed 123.
SECOND_TOKEN_WEIGHTS = [0.1704, 0.1611, 0.1652, 0.1412, 0.2505, 0.1117]
SECOND_TOKEN_CONTEXT = [0.2854, 0.4081]


class TestMultiHead:
    @pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 12])
    @pytest.mark.parametrize("bias", [True, False])
    def test_it_is_torchs_with_the_same_weights(self, heads, bias):
        reference = torch.nn.MultiheadAttention(12, heads, bias=bias, batch_first=True)
        if bias:
            torch.nn.init.normal_(reference.in_proj_bias)
        tokens = torch.randn(2, 5, 12)
        mask = causal_mask(5)
        expected, expected_weights = reference(
            tokens, tokens, tokens, attn_mask=~mask, average_attn_weights=False
        )
        context, weights = MultiHeadAttention.from_torch(reference)(tokens, mask=mask)
        torch.testing.assert_close(context, expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)

    def test_cross_attention_with_other_sizes_is_torchs(self):
        reference = torch.nn.MultiheadAttention(8, 2, kdim=5, vdim=3, batch_first=True)
        queries, keys, values = torch.randn(2, 4, 8), torch.randn(2, 7, 5), torch.randn(2, 7, 3)
        padding = torch.rand(2, 7) > 0.6
        padding[:, 0] = False
        expected, _ = reference(queries, keys, values, key_padding_mask=padding)
        ours = MultiHeadAttention.from_torch(reference)
        context = ours(queries, keys, values, ~padding[:, None, None, :]).context
        torch.testing.assert_close(context, expected, atol=1e-6, rtol=1e-5)

    def test_the_past_does_not_see_the_future(self):
        module, tokens = MultiHeadAttention(6, 2), torch.randn(1, 5, 6)
        before = module(tokens, mask=causal_mask(5)).context
        tokens[0, 3:] += 1
        after = module(tokens, mask=causal_mask(5)).context
        assert torch.equal(before[0, :3], after[0, :3])
        assert not torch.equal(before[0, 3:], after[0, 3:])

    def test_a_query_that_may_see_nothing_gets_the_output_bias(self):
        module = MultiHeadAttention(6, 2)
        mask = torch.ones(3, 3, dtype=torch.bool)
        mask[1] = False
        context = module(torch.randn(1, 3, 6), mask=mask).context
        torch.testing.assert_close(context[0, 1], module.out.bias)

    def test_keys_stand_in_for_values_and_queries_for_keys(self):
        module, a, b = MultiHeadAttention(6, 3), torch.randn(2, 4, 6), torch.randn(2, 5, 6)
        assert torch.equal(module(a).context, module(a, a, a).context)
        assert torch.equal(module(a, b).context, module(a, b, b).context)

    @pytest.mark.parametrize("batch", [(), (2,)])
    def test_each_head_has_a_temperature_and_a_mask_of_its_own(self, batch):
        module, tokens = MultiHeadAttention(6, 2), torch.randn(*batch, 5, 6)
        temperatures = torch.tensor([0.5, 3.0])
        mask = torch.stack([causal_mask(5), ~torch.eye(5, dtype=torch.bool)])
        context, weights = module(tokens, mask=mask, temperature=temperatures)
        heads = []
        for head, rows in enumerate((slice(0, 3), slice(3, 6))):
            q, k, v = (part(tokens)[..., rows] for part in (module.query, module.key, module.value))
            logits = q @ k.mT / 3**0.5 / temperatures[head]
            expected = logits.masked_fill(~mask[head], -torch.inf).softmax(-1)
            torch.testing.assert_close(weights[..., head, :, :], expected)
            heads.append(expected @ v)
        torch.testing.assert_close(context, module.out(torch.cat(heads, -1)))

    def test_temperatures_of_heads_are_learned(self):
        module, tokens = MultiHeadAttention(6, 2).double(), torch.randn(3, 6, dtype=torch.float64)
        mask = torch.stack([causal_mask(3), torch.zeros(3, 3, dtype=torch.bool)])  # a head may see nothing
        temperatures = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)
        assert gradcheck(
            lambda x, t: module(x, mask=mask, temperature=t).context, (tokens.requires_grad_(), temperatures)
        )

    def test_temperatures_of_other_heads_are_refused(self):
        with pytest.raises(InvalidRequest, match=r"temperature of shape \[3\]; use a number, or \[2\]"):
            MultiHeadAttention(6, 2)(torch.ones(3, 6), temperature=torch.ones(3))

    def test_heads_that_do_not_divide_are_explained(self):
        with pytest.raises(InvalidRequest, match=r"heads=5 does not divide dim=12; use one of 1, 2, 3, 4"):
            MultiHeadAttention(12, 5)
        with pytest.raises(InvalidRequest, match=r"heads=0"):
            MultiHeadAttention(12, 0)

    def test_what_has_no_counterpart_is_refused(self):
        with pytest.raises(InvalidRequest, match=r"add_bias_kv or add_zero_attn is set"):
            MultiHeadAttention.from_torch(torch.nn.MultiheadAttention(4, 2, add_zero_attn=True))

    def test_gradients(self, draw):
        module = MultiHeadAttention(4, 2, key_dim=3).double()
        assert gradcheck(module, (draw(2, 3, 4), draw(2, 5, 3)))
        weight = module.query.weight

        def through_weights(w):
            return torch.func.functional_call(module, {"query.weight": w}, (x, y)).context

        x, y = draw(2, 3, 4).detach(), draw(2, 5, 3).detach()
        assert gradcheck(through_weights, weight)


class TestRecommender:
    """Cross-attention from a target item to what each user has used; keys and values are that history."""

    def test_a_user_is_recommended_what_resembles_their_history(self):
        kinds = torch.eye(3)  # novels, films, games
        histories = torch.stack([kinds[[0, 0, 1, 0]], kinds[[2, 2, 2, 1]]])  # [users, history, dim]
        present = torch.tensor([[True] * 4, [True, True, True, False]])  # the second user has three
        targets = kinds.expand(2, 3, 3)  # every user is asked about every item
        context, weights = attend(targets, histories, mask=present[:, None, :], temperature=0.25)
        interest = (context * targets).sum(-1)
        assert interest.argmax(-1).tolist() == [0, 2]
        assert weights[1, :, 3].tolist() == [0.0] * 3
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))

    def test_it_learns_which_of_the_history_matters(self):
        """Taste follows the latest item; mean pooling of the history cannot know, attention learns it."""
        generator = torch.Generator().manual_seed(1)
        items = torch.randn(100, 5, 4, generator=generator)
        age = torch.arange(5.0).flip(0).view(1, 5, 1).expand(100, 5, 1)
        taste = items[:, -1]
        module = MultiHeadAttention(4, 2, key_dim=5, value_dim=4)
        optimiser = torch.optim.Adam(module.parameters(), 0.05)
        query = torch.ones(100, 1, 4)
        for _ in range(60):
            optimiser.zero_grad()
            context = module(query, torch.cat([items, age], -1), items).context.squeeze(1)
            loss = (context - taste).square().mean()
            loss.backward()
            optimiser.step()
        average = (items.mean(1) - taste).square().mean()
        assert loss < average / 4


class TestCovariance:
    """With v = k and dot products, ∇_q Attention(q, D) is the covariance of the keys under the weights."""

    @pytest.mark.parametrize("attention", ["pooling", "blocks"])
    def test_the_jacobian_is_the_covariance(self, attention):
        query = torch.randn(4, dtype=torch.float64)
        keys = torch.randn(9, 4, dtype=torch.float64)

        def context(q):
            if attention == "pooling":
                return attend(q.unsqueeze(0), keys, score="dot").context[0]
            return exact_attention(q.unsqueeze(0), keys, block_size=4).context[0]

        jacobian = torch.autograd.functional.jacobian(context, query)
        weights = torch.softmax(keys @ query, 0)
        mean = weights @ keys
        covariance = (keys - mean).T @ ((keys - mean) * weights.unsqueeze(-1))
        torch.testing.assert_close(jacobian, covariance, atol=1e-12, rtol=0)
        assert torch.linalg.eigvalsh(jacobian).min() > -1e-12
