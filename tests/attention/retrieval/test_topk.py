"""What top-k attention may claim: search, gradients, covered mass."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsearch.attention import (
    attend,
    covered_mass,
    exact_attention,
    log_partition,
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
        out = top_k_attention(queries, keys, k=10)
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


class TestTwoGradients:
    """Exact and bare: what each does to a document outside the top k."""

    def setup_method(self):
        torch.manual_seed(0)
        self.queries = torch.randn(3, 4, dtype=torch.float64)
        self.keys = torch.randn(40, 4, dtype=torch.float64, requires_grad=True)

    def gradient(self):
        out = top_k_attention(self.queries, self.keys, k=5)
        return torch.autograd.grad(out.log_partition.sum(), self.keys)[0]

    def test_bare_top_k_never_moves_an_outsider_and_exact_always_does(self):
        (exact,) = torch.autograd.grad(log_partition(self.queries, self.keys).sum(), self.keys)
        rows = top_k(self.queries, self.keys, 5).rows.unique()
        outside = torch.ones(40, dtype=torch.bool).index_fill(0, rows, False)
        assert (exact[outside] != 0).all()
        assert (self.gradient()[outside] == 0).all()

    def test_k_above_n_is_exact(self):
        exact = exact_attention(self.queries, self.keys)
        out = top_k_attention(self.queries, self.keys, k=99)
        torch.testing.assert_close(out.context, exact.context)
        torch.testing.assert_close(out.log_partition, exact.log_partition)
        assert out.rows.shape == (3, 40)

    def test_an_empty_corpus(self):
        out = top_k_attention(self.queries, self.keys[:0], k=3)
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
