"""What top-k attention may claim: search, sampled rest, covered mass."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from dsearch.attention import (
    attend,
    covered_mass,
    estimate_covered_mass,
    exact_attention,
    log_partition,
    sample_rest,
    sampled_attention,
    sampled_log_partition,
    top_k,
    top_k_attention,
)
from dsearch.attention.retrieval.topk import _best_of_groups
from dsearch.errors import DimensionMismatch, InvalidRequest


class TestSearch:
    @pytest.mark.parametrize("block_size", [1, 7, 100])
    def test_equals_a_full_sort(self, block_size):
        queries, keys = torch.randn(4, 8), torch.randn(50, 8)
        expected = (queries @ keys.T).sort(1, descending=True)
        found = top_k(queries, keys, 10, block_size=block_size)
        torch.testing.assert_close(found.scores, expected.values[:, :10])
        assert torch.equal(found.rows, expected.indices[:, :10])

    @given(
        scores=st.lists(st.integers(0, 2), min_size=1, max_size=12),
        k=st.integers(1, 14),
        block_size=st.integers(1, 12),
    )
    def test_ties_break_by_row_and_k_above_n_gives_n(self, scores, k, block_size):
        found = top_k(torch.ones(1, 1), torch.tensor(scores).float().unsqueeze(1), k, block_size=block_size)
        expected = sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:k]
        assert found.rows[0].tolist() == expected

    @given(most=st.sampled_from([0, 2, 9, 1000]), k=st.integers(1, 5), groups=st.integers(6, 9))
    def test_the_best_of_groups_are_the_best(self, most, k, groups):
        scores = torch.randint(-most, most + 1, (3, 4 * groups)).float()
        best, rows = torch.sort(scores, dim=1, descending=True, stable=True)
        found = _best_of_groups(scores, k, groups)
        assert torch.equal(found.scores, best[:, :k])
        assert torch.equal(found.rows, rows[:, :k])

    def test_of_nothing_and_of_a_memory_map(self, tmp_path):
        assert top_k(torch.ones(2, 3), torch.empty(0, 3), 5).rows.shape == (2, 0)
        keys = torch.randn(20, 3)
        np.save(tmp_path / "keys.npy", keys.numpy())
        on_disk = np.load(tmp_path / "keys.npy", mmap_mode="r")
        queries = torch.randn(2, 3)
        assert torch.equal(top_k(queries, on_disk, 4, block_size=6).rows, top_k(queries, keys, 4).rows)

    def test_half_precision_is_scored_in_single(self):
        queries, keys = torch.randn(4, 64).bfloat16(), torch.randn(500, 64).bfloat16()
        single = top_k(queries.float(), keys.float(), 10)
        assert torch.equal(top_k(queries, keys, 10, block_size=64).rows, single.rows)
        out = top_k_attention(queries, keys, k=10, samples=3)
        assert out.context.dtype == torch.float32

    def test_halves_are_multiplied_as_they_are_where_the_device_can(self, monkeypatch):
        """The product of torch for CUDA, by a stand-in: the same scores, and so the same rows."""
        import dsearch.attention.retrieval.topk as topk

        calls = []

        def product(queries, keys, dtype):
            assert (queries.dtype, keys.dtype, dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
            calls.append(1)
            return queries.float() @ keys.float()

        queries, keys = torch.randn(4, 64).bfloat16(), torch.randn(500, 64).bfloat16()
        expected = top_k(queries, keys, 10, block_size=200)
        monkeypatch.setattr(topk, "_multiplies_halves_into_single", lambda queries: True)
        library = torch.library.Library("aten", "IMPL")
        library.impl("mm.dtype", product, "CPU")
        try:
            found = top_k(queries, keys, 10, block_size=200)
            assert len(calls) == 3
            top_k(queries.float(), keys, 10)
            assert len(calls) == 3
        finally:
            library._destroy()
        assert torch.equal(found.rows, expected.rows)
        torch.testing.assert_close(found.scores, expected.scores)

    @pytest.mark.cuda
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("block_size", [128, 4096, None])
    def test_cuda_equals_cpu(self, dtype, block_size):
        queries, keys = (torch.randint(-9, 10, (n, 64)).to(dtype) for n in (70, 5000))  # exact sums, ties
        on_cpu = top_k(queries, keys, 10)
        on_card = top_k(queries.cuda(), keys.cuda(), 10, block_size=block_size)
        assert torch.equal(on_card.rows.cpu(), on_cpu.rows)
        torch.testing.assert_close(on_card.scores.cpu(), on_cpu.scores)

    def test_errors(self, unchecked):
        with pytest.raises(InvalidRequest, match=r"k=0, block_size=None; use 1 or more"):
            top_k(torch.ones(1, 2), torch.ones(3, 2), 0)
        with pytest.raises(DimensionMismatch, match=r"dimension 2, keys of 3"):
            top_k(torch.ones(1, 2), torch.ones(3, 3), 1)
        with pytest.raises(InvalidRequest, match=r"samples=-1; use 0"):
            top_k_attention(torch.ones(1, 2), torch.ones(3, 2), k=1, samples=-1)


class TestSampleOfTheRest:
    def test_it_is_uniform_over_the_rest_and_never_a_candidate(self):
        candidates = torch.tensor([[7, 2, -1], [0, 1, 9]])
        rows, rest = sample_rest(candidates, 10, 20_000)
        assert rest.tolist() == [8, 7]
        for query, taken in enumerate([{7, 2}, {0, 1, 9}]):
            counts = torch.bincount(rows[query], minlength=10) / 20_000
            others = [row for row in range(10) if row not in taken]
            assert counts[list(taken)].sum() == 0
            torch.testing.assert_close(
                counts[others], torch.full((len(others),), 1 / len(others)), atol=0.02, rtol=0
            )

    def test_empty_places_shift_nothing(self):
        candidates = torch.tensor([[-1] * 7 + [4]])
        rows, rest = sample_rest(candidates, 9, 5000)
        assert rest.tolist() == [8]
        counts = torch.bincount(rows[0], minlength=9) / 5000
        assert counts[4] == 0
        torch.testing.assert_close(counts[counts > 0], torch.full((8,), 1 / 8), atol=0.03, rtol=0)

        rows, _ = sample_rest(torch.tensor([[-1, -1]]), 2, 200)
        assert rows.unique().tolist() == [0, 1]

    def test_where_nothing_is_left(self):
        rows, rest = sample_rest(torch.tensor([[1, 0]]), 2, 3)
        assert rows.tolist() == [[-1, -1, -1]]
        assert rest.tolist() == [0]

    def test_a_seed_repeats_it(self):
        def draw():
            return sample_rest(torch.tensor([[1]]), 99, 5, torch.Generator().manual_seed(3))[0]

        assert torch.equal(draw(), draw())


class TestImportanceCorrection:
    """A corpus of 2 candidates and 3 others, small enough to enumerate every sample."""

    inside = torch.tensor([1.5, 0.5], dtype=torch.float64)
    outside = torch.tensor([0.4, -0.3, -1.0], dtype=torch.float64)

    def every_sample(self, m: int) -> torch.Tensor:
        return torch.stack([self.outside[list(rows)] for rows in itertools.product(range(3), repeat=m)])

    def log_estimates(self, m: int) -> torch.Tensor:
        samples = self.every_sample(m)
        return sampled_log_partition(self.inside.expand(len(samples), 2), samples, 3)

    def test_the_partition_function_is_estimated_without_bias(self):
        exact = torch.cat([self.inside, self.outside]).exp().sum()
        for m in (1, 2, 4):
            torch.testing.assert_close(self.log_estimates(m).exp().mean(), exact)

    def test_its_logarithm_is_biased_low_and_the_bias_falls_like_one_over_m(self):
        exact = torch.cat([self.inside, self.outside]).logsumexp(0)
        bias = [(exact - self.log_estimates(m).mean()).item() for m in (1, 2, 4, 8)]
        assert all(b > 0 for b in bias)
        ratios = [a / b for a, b in itertools.pairwise(bias)]
        assert ratios == pytest.approx([2, 2, 2], rel=0.05)
        variance = (3 * self.outside.exp()).var(correction=0)
        assert bias[-1] == pytest.approx((variance / 8 / (2 * exact.exp() ** 2)).item(), rel=0.02)

    def test_taking_the_top_exactly_shrinks_the_bias(self):
        everything = torch.cat([self.inside, self.outside])
        exact = everything.logsumexp(0)
        samples = torch.stack([everything[list(r)] for r in itertools.product(range(5), repeat=2)])
        none = torch.empty(len(samples), 0, dtype=torch.float64)
        without_top = exact - sampled_log_partition(none, samples, 5).mean()
        with_top = exact - self.log_estimates(2).mean()
        assert with_top < without_top / 2

    def test_as_m_grows_the_context_becomes_the_exact_one(self):
        values = torch.randn(5, 2, dtype=torch.float64)
        exact = torch.cat([self.inside, self.outside]).softmax(0) @ values
        error = []
        for m in (1, 3, 6):
            samples = self.every_sample(m)
            rows = torch.tensor(list(itertools.product(range(3), repeat=m)))
            out = sampled_attention(
                self.inside.expand(len(samples), 2),
                values[:2].expand(len(samples), 2, 2),
                samples,
                values[2:][rows],
                3,
            )
            error.append((out.context.mean(0) - exact).norm().item())
        assert error[0] > 2 * error[1] > 3 * error[2]

    def test_without_samples_it_is_bare_top_k(self):
        none = torch.empty(0, dtype=torch.float64)
        torch.testing.assert_close(sampled_log_partition(self.inside, none, 3), self.inside.logsumexp(0))

    def test_gradients(self, draw):
        def run(a, b, v, w):
            out = sampled_attention(a, v, b, w, torch.tensor([5, 6]))
            return out.context, out.log_partition

        assert gradcheck(run, (draw(2, 3), draw(2, 4), draw(2, 3, 2), draw(2, 4, 2)))


def test_a_generator_decides_the_sample_of_attention():
    queries, keys = torch.randn(2, 4), torch.randn(60, 4)

    def pooled(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return top_k_attention(queries, keys, k=3, samples=5, generator=generator).context

    torch.testing.assert_close(pooled(0), pooled(0), rtol=0, atol=0)
    assert not torch.equal(pooled(0), pooled(1))


class TestThreeGradients:
    """(a) exact, (b) sampled, (c) bare: what each does to a document outside the top k."""

    def setup_method(self):
        torch.manual_seed(0)
        self.queries = torch.randn(3, 4, dtype=torch.float64)
        self.keys = torch.randn(40, 4, dtype=torch.float64, requires_grad=True)

    def gradient(self, **kwargs):
        out = top_k_attention(self.queries, self.keys, k=5, **kwargs)
        return torch.autograd.grad(out.log_partition.sum(), self.keys)[0]

    def test_bare_top_k_never_moves_an_outsider_and_exact_always_does(self):
        (exact,) = torch.autograd.grad(log_partition(self.queries, self.keys).sum(), self.keys)
        rows = top_k(self.queries, self.keys, 5).rows.unique()
        outside = torch.ones(40, dtype=torch.bool).index_fill(0, rows, False)
        assert (exact[outside] != 0).all()
        assert (self.gradient()[outside] == 0).all()

    def test_the_mean_of_sampled_gradients_approaches_the_exact_one(self):
        (exact,) = torch.autograd.grad(log_partition(self.queries, self.keys).sum(), self.keys)

        def error(samples):
            mean = torch.stack([self.gradient(samples=samples) for _ in range(150)]).mean(0)
            return (mean - exact).norm().item()

        bare = (self.gradient() - exact).norm().item()
        assert error(32) < bare / 4

    def test_k_above_n_is_exact(self):
        exact = exact_attention(self.queries, self.keys)
        for samples in (0, 4):
            out = top_k_attention(self.queries, self.keys, k=99, samples=samples)
            torch.testing.assert_close(out.context, exact.context)
            torch.testing.assert_close(out.log_partition, exact.log_partition)
            assert out.rows.shape == (3, 40)

    def test_an_empty_corpus(self):
        out = top_k_attention(self.queries, self.keys[:0], k=3, samples=2)
        assert out.context.tolist() == [[0.0] * 4] * 3
        assert out.log_partition.tolist() == [-math.inf] * 3

    def test_weights_of_bare_top_k_are_attention_over_the_candidates(self):
        out = top_k_attention(self.queries, self.keys, k=5, temperature=2.0)
        chosen = self.keys[out.rows]
        expected = attend(self.queries.unsqueeze(1), chosen, score="dot", temperature=2.0)
        torch.testing.assert_close(out.context, expected.context.squeeze(1))
        torch.testing.assert_close(out.weights, expected.weights.squeeze(1))


class TestCoveredMass:
    def test_exact(self):
        logits = torch.log(torch.tensor([[5.0, 3.0, 1.0, 1.0]]))
        log_z = logits.logsumexp(-1)
        assert covered_mass(logits[:, :2], log_z).tolist() == pytest.approx([0.8])
        assert covered_mass(logits, log_z).tolist() == pytest.approx([1.0])
        assert covered_mass(logits[:, :0], log_z).tolist() == [0.0]

    def test_of_an_empty_corpus_all_is_covered(self):
        assert covered_mass(torch.empty(1, 0), torch.tensor([-math.inf])).tolist() == [1.0]

    def test_huge_logits(self):
        assert covered_mass(torch.tensor([[1e4]]), torch.tensor([1e4])).tolist() == [1.0]
        estimate, error = estimate_covered_mass(torch.tensor([[1e4]]), torch.tensor([[-1e4, -1e4]]), 9)
        assert (estimate.tolist(), error.tolist()) == ([1.0], [0.0])

    def test_the_estimate_is_right_within_its_stated_error(self):
        """Over many samples: little bias, and the stated error is the spread that is seen."""
        inside, outside = torch.randn(5).double() + 3, torch.randn(1000).double()
        exact = (inside.exp().sum() / (inside.exp().sum() + outside.exp().sum())).item()
        rows = torch.randint(1000, (400, 200))
        estimate, error = estimate_covered_mass(inside.expand(400, 5), outside[rows], 1000)
        assert estimate.mean().item() == pytest.approx(exact, abs=4 * estimate.std().item() / 20)
        assert error.mean().item() == pytest.approx(estimate.std().item(), rel=0.15)
        assert ((estimate - exact).abs() <= 1.96 * error).double().mean() > 0.85

    def test_equal_logits_leave_no_error(self):
        estimate, error = estimate_covered_mass(torch.zeros(1, 2), torch.zeros(1, 3), 8)
        assert (estimate.tolist(), error.tolist()) == (pytest.approx([0.2]), [0.0])

    def test_when_the_candidates_are_all(self):
        rows, rest = sample_rest(torch.tensor([[0, 1]]), 2, 3)
        sampled = torch.zeros(1, 3).masked_fill(rows < 0, -math.inf)
        assert estimate_covered_mass(torch.zeros(1, 2), sampled, rest).estimate.tolist() == [1.0]

    def test_one_sample_has_no_error(self):
        with pytest.raises(InvalidRequest, match=r"1 sample\(s\); a standard error needs 2 or more"):
            estimate_covered_mass(torch.zeros(1, 2), torch.zeros(1, 1), 8)
