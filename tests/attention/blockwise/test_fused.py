"""The fused operators give what the written-out path gives."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention.tensors import CPU, F64, compare, drawn, gradients
from support.sizes import by_size
from torch.autograd import gradcheck

from dsearch.attention import ExactAttention, PartialAttention, exact_attention, log_partition, merge
from dsearch.attention.blockwise import fused as operators
from dsearch.attention.blockwise.fused import choose_fused, fused_block, fused_block_backward

quick = settings(max_examples=by_size(40, 400))


class TestBlock:
    @pytest.mark.parametrize("value_dim", [0, 1, 4, 7])
    @pytest.mark.parametrize("bias_rows", [0, 1, 3])
    def test_is_the_triple_of_its_logits(self, value_dim, bias_rows):
        queries, keys, values, bias = drawn(0, (3, 4), (20, 4), (20, value_dim), (bias_rows, 20))
        bias = bias if bias_rows else None
        logits = 0.7 * queries @ keys.T + (0.0 if bias is None else bias)
        ours = fused_block(queries, keys, values, bias, 0.7)
        compare(ours.finish(), PartialAttention.of(logits, values).finish())

    def test_where_nothing_may_be_attended_is_neutral(self):
        """The operator itself says log Z = 0 there, which would count as one document."""
        queries, keys, bias = drawn(0, (3, 4), (20, 4), (3, 20))
        bias[1] = -math.inf
        context, log_z = fused_block(queries, keys, keys, bias).finish()
        assert log_z[1] == -math.inf
        assert context[1].tolist() == [0.0] * 4
        assert log_z[[0, 2]].isfinite().all()

    def test_an_operator_that_says_nan_where_nothing_may_be_attended_is_neutral(self, monkeypatch):
        queries, keys, bias = drawn(0, (3, 4), (20, 4), (3, 20))
        bias[1] = -math.inf
        forward = operators._forward

        def with_nan(laid, scale):
            context, log_z = forward(laid, scale)
            context = context.clone()
            context[:, :, 1] = math.nan
            return context, log_z

        expected = fused_block(queries, keys, keys, bias).finish()
        monkeypatch.setattr(operators, "_forward", with_nan)
        compare(fused_block(queries, keys, keys, bias).finish(), expected)

    def test_whole_tiles_may_be_masked(self):
        """The operator works in tiles of 512 documents; −inf throughout the first ones leaves no trace."""
        queries, keys, bias = drawn(0, (3, 4), (1600, 4), (1, 1600), dtype=torch.float32)
        bias[:, :1100] = -math.inf
        ours = fused_block(queries, keys, keys, bias)
        reference = PartialAttention.of(queries @ keys[1100:].T + bias[:, 1100:], keys[1100:])
        compare(ours.finish(), reference.finish())

    @pytest.mark.parametrize("threads", [1, 4])
    def test_parts_of_a_block_are_merged(self, threads):
        """Few queries: the block is split so that every thread has some of it."""
        queries, keys, values, bias = drawn(0, (2, 4), (4096, 4), (4096, 3), (2, 4096))
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            ours = fused_block(queries, keys, values, bias)
            result = ours.finish()
            grads = fused_block_backward(
                queries,
                keys,
                values,
                bias,
                1.0,
                result,
                ExactAttention(torch.ones(2, 3, dtype=F64), result[1] * 0),
            )
        finally:
            torch.set_num_threads(before)
        compare(result, PartialAttention.of(queries @ keys.T + bias, values).finish())
        asked = [x.requires_grad_() for x in (queries, keys, values)]
        reference = PartialAttention.of(queries @ keys.T + bias, values).finish()
        compare(grads, torch.autograd.grad(reference.context.sum(), asked))

    def test_backward_needs_the_gradient_of_log_z_alone(self):
        """G = 0, so δ cannot be had by changing the context; the extra column has it."""
        queries, keys = (x.requires_grad_() for x in drawn(0, (3, 4), (20, 4)))
        weight = torch.tensor([1.0, -2.0, 0.5], dtype=F64)
        whole = exact_attention(queries, keys, fused=False)
        expected = torch.autograd.grad((whole.log_partition * weight).sum(), (queries, keys))
        plain = [x.detach() for x in (queries, keys, keys)]
        found = fused_block_backward(
            *plain,
            None,
            1.0,
            ExactAttention(*(x.detach() for x in whole)),
            ExactAttention(torch.zeros(3, 4, dtype=F64), weight),
        )
        compare([found.queries, found.keys + found.values], expected)

    def test_backward_where_nothing_was_attended_is_zero(self):
        """log Z = −∞, and exp(−∞ − (−∞)) would be NaN."""
        queries, keys, bias = drawn(0, (2, 4), (20, 4), (2, 20))
        bias[1] = -math.inf
        result = fused_block(queries, keys, keys, bias).finish()
        ones = ExactAttention(torch.ones(2, 4, dtype=F64), torch.ones(2, dtype=F64))
        found = fused_block_backward(queries, keys, keys, bias, 1.0, result, ones)
        alone = fused_block_backward(
            queries[:1],
            keys,
            keys,
            bias[:1],
            1.0,
            ExactAttention(*(x[:1] for x in result)),
            ExactAttention(*(x[:1] for x in ones)),
        )
        assert found.queries[1].tolist() == [0.0] * 4
        compare([found.queries[:1], *found[1:]], alone)

    @pytest.mark.parametrize(
        ("case", "shapes"),
        [("no documents", [(2, 4), (0, 4)]), ("no queries", [(0, 4), (5, 4)])],
    )
    def test_over_nothing_it_declines(self, case, shapes):
        """The operator for CPU would end the process: it divides by zero in C++."""
        queries, keys = drawn(0, *shapes)
        assert fused_block(queries, keys, keys) is None, case

    def test_types_it_would_have_to_round_it_declines(self):
        queries, keys, bias = drawn(0, (2, 4), (5, 4), (2, 5), dtype=torch.float32)
        assert fused_block(queries, keys.bfloat16(), keys) is None
        assert fused_block(*(x.bfloat16() for x in (queries, keys, keys)), bias) is None
        assert fused_block(*(x.half() for x in (queries, keys, keys))) is None
        assert fused_block(*(x.to("meta") for x in (queries, keys, keys))) is None


class TestCorpus:
    @given(
        documents=st.integers(1, 40),
        block_size=st.integers(1, 45),
        value_dim=st.sampled_from([None, 0, 2, 4, 6]),
        bias=st.sampled_from(["none", "full", "shared", "function"]),
        hidden=st.floats(0, 1),
        per_row=st.booleans(),
        seed=st.integers(0, 99),
    )
    @quick
    def test_equals_the_written_out_path_forward_and_backward(
        self, documents, block_size, value_dim, bias, hidden, per_row, seed
    ):
        queries, keys, values, table, mask = drawn(
            seed, (3, 4), (documents, 4), (documents, value_dim or 0), (3, documents), (3, documents)
        )
        table = table.masked_fill(mask.sigmoid() < hidden, -math.inf)
        if bias == "shared":
            table = table[:1]
        given_bias = {
            "none": None,
            "full": table,
            "shared": table,
            "function": lambda start, stop: table[:, start:stop],
        }[bias]
        temperature = torch.tensor([0.5, 1.0, 2.0] if per_row else 0.7, dtype=F64, requires_grad=True)
        inputs = [x.requires_grad_() for x in (queries, keys, values)] + [temperature]

        def run(fused):
            found = exact_attention(
                queries,
                keys,
                None if value_dim is None else values,
                bias=given_bias,
                temperature=temperature,
                block_size=block_size,
                fused=fused,
            )
            return found, gradients(found, inputs)

        (ours, our_grads), (reference, grads) = run(True), run(False)
        compare(ours, reference)
        compare(our_grads, grads)

    def test_gradcheck(self, draw, served):
        temperature = torch.tensor(0.7, dtype=F64, requires_grad=True)
        inputs = (draw(3, 4), draw(13, 4), draw(13, 2), temperature)
        bias = torch.randn(3, 13, dtype=F64)

        def run(q, k, v, t):
            return exact_attention(q, k, v, bias=bias, temperature=t, block_size=5, fused=True)

        assert gradcheck(run, inputs)
        assert min(served.values()) > 0

    def test_gradcheck_of_the_log_partition(self, draw, served):
        assert gradcheck(
            lambda q, k: log_partition(q, k, block_size=5, fused=True), (draw(3, 4), draw(13, 4))
        )
        assert min(served.values()) > 0

    def test_a_bias_that_learns_gets_its_gradient(self, draw, served):
        """No operator for CPU gives it: the forward is fused, the backward written out."""
        queries, keys, bias = draw(3, 4), draw(13, 4), draw(3, 13)
        assert gradcheck(
            lambda q, b: exact_attention(q, keys, bias=b, block_size=5, fused=True), (queries, bias)
        )
        weight, table = draw(1), torch.randn(3, 13, dtype=F64)

        def run(q, w):
            return exact_attention(
                q, keys, bias=lambda a, b, x: x * table[:, a:b], bias_parameters=[w], block_size=5, fused=True
            )

        assert gradcheck(run, (queries, weight))
        assert served["forward"] > 0
        assert served["backward"] == 0

    def test_single_precision_is_as_good_as_written_out(self, served):
        """Both against float64: 1e-5 relative, forward and backward."""
        double = [x.requires_grad_() for x in drawn(1, (5, 64), (3000, 64), (3000, 64))]
        single = [x.detach().float().requires_grad_() for x in double]
        reference = exact_attention(*double, temperature=4.0, fused=False)
        expected = gradients(reference, double)
        for fused in (True, False):
            ours = exact_attention(*single, temperature=4.0, block_size=512, fused=fused)
            compare(ours, [x.float() for x in reference], rtol=1e-5, atol=2e-6)
            for a, b in zip(gradients(ours, single), expected, strict=True):
                assert (a - b).abs().max() <= 1e-5 * b.abs().max()
        assert served == {"forward": 6, "backward": 6}

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    @pytest.mark.parametrize("spread", [1.0, 1e-4])
    def test_logits_that_float32_holds_badly_are_written_out(self, sign, spread, served):
        """exp(l − log Z) would be off by 1e-3 at 1e4: the answer is the written-out one, to the last bit."""
        queries = torch.tensor([[1e4 * sign]], requires_grad=True)
        keys = 1 + spread * torch.rand(40, 1)
        ours, reference = (
            exact_attention(queries, keys, block_size=16, fused=fused) for fused in (True, False)
        )
        compare(ours, reference, rtol=0, atol=0)
        compare(gradients(ours, [queries]), gradients(reference, [queries]), rtol=0, atol=0)
        assert served == {"forward": 1, "backward": 0}

    def test_a_later_block_may_turn_out_too_large(self, served):
        queries = torch.ones(1, 1, requires_grad=True)
        keys = torch.tensor([[1.0], [2.0], [1000.0], [999.0]])
        ours, reference = (
            exact_attention(queries, keys, block_size=2, fused=fused) for fused in (True, False)
        )
        compare(ours, reference, rtol=0, atol=0)
        assert served["forward"] == 2
        compare(gradients(ours, [queries]), gradients(reference, [queries]), rtol=0, atol=0)
        assert served["backward"] == 0

    def test_bfloat16_stays_so_and_is_summed_in_single(self, served):
        half = [x.requires_grad_() for x in drawn(2, (5, 16), (400, 16), (400, 16), dtype=torch.bfloat16)]
        full = [x.detach().float().requires_grad_() for x in half]
        ours = exact_attention(*half, temperature=2.0, block_size=64, fused=True)
        reference = exact_attention(*full, temperature=2.0, fused=False)
        assert ours.context.dtype == torch.float32
        compare(ours, reference, rtol=1e-2, atol=1e-2)
        for a, b in zip(gradients(ours, half), gradients(reference, full), strict=True):
            assert a.dtype == torch.bfloat16
            assert (a - b).abs().max() <= 2e-2 * b.abs().max()
        assert min(served.values()) > 0

    @pytest.mark.parametrize("what", ["queries", "keys", "bias", "temperature"])
    def test_bfloat16_beside_anything_finer_becomes_single(self, what):
        """Nothing that the caller did not round is rounded."""
        queries, keys, bias = drawn(3, (3, 16), (50, 16), (3, 50), dtype=torch.bfloat16)
        temperature: float | torch.Tensor = 0.3
        if what == "queries":
            queries = queries.float() + 1e-4
        elif what == "keys":
            keys = keys.float() + 1e-4
        elif what == "bias":
            bias = bias.float() + 1e-4
        else:
            temperature = torch.tensor([0.3, 0.31, 0.32])
        ours, reference = (
            exact_attention(queries, keys, bias=bias, temperature=temperature, block_size=20, fused=fused)
            for fused in (True, False)
        )
        compare(ours, reference, rtol=1e-5, atol=1e-5)

    def test_float16_becomes_single(self, served):
        """In float16 every weight below 6e-8 would be nothing, and a corpus has millions of those."""
        queries, keys = drawn(4, (3, 16), (50, 16), dtype=torch.float16)
        ours, reference = (exact_attention(queries, keys, temperature=4.0, fused=f) for f in (True, False))
        compare(ours, reference, rtol=1e-5, atol=1e-5)
        assert served["forward"] == 1

    def test_autocast_does_not_reach_in(self):
        queries, keys = drawn(0, (4, 64), (50, 64), dtype=torch.float32)
        outside = exact_attention(queries, keys, temperature=8.0, fused=True)
        with torch.autocast("cpu", torch.bfloat16):
            inside = exact_attention(queries, keys, temperature=8.0, fused=True)
        compare(inside, outside, rtol=0, atol=0)

    def test_shards_merge_to_the_whole(self):
        queries, keys = drawn(0, (3, 4), (30, 4))
        parts = [
            PartialAttention.of_result(*exact_attention(queries, k, fused=True)) for k in keys.tensor_split(4)
        ]
        compare(merge(parts).finish(), exact_attention(queries, keys, fused=False))

    def test_an_empty_corpus(self):
        queries = torch.randn(3, 4, requires_grad=True)
        context, log_z = exact_attention(queries, torch.empty(0, 4), fused=True)
        assert log_z.tolist() == [-math.inf] * 3
        context.sum().backward()
        assert queries.grad.abs().sum() == 0

    def test_a_backward_that_no_operator_serves_is_written_out(self, draw, monkeypatch):
        """Half of the blocks served and half not must not leave half a gradient."""
        import dsearch.attention.blockwise.fused as passes

        queries, keys = draw(3, 4), draw(20, 4)
        reference = exact_attention(queries, keys, fused=False)
        ours = exact_attention(queries, keys, block_size=5, fused=True)
        call, calls = passes.fused_block_backward, []

        def second_declines(*args):
            calls.append(1)
            return call(*args) if len(calls) == 1 else None

        monkeypatch.setattr(passes, "fused_block_backward", second_declines)
        compare(gradients(ours, (queries, keys)), gradients(reference, (queries, keys)))
        assert len(calls) == 2


class TestChoice:
    def test_by_device_and_widths(self):
        """On a CPU the forward, where values are as wide as keys; on CUDA that of bfloat16."""
        cuda = torch.device("cuda")
        assert choose_fused(None, CPU, same_width=True) == (True, False, False)
        assert choose_fused(None, CPU, same_width=False) == (False, False, False)
        assert choose_fused(None, torch.device("mps"), same_width=True) == (False, False, False)
        assert choose_fused(None, cuda, same_width=False) == (False, False, True)
        assert choose_fused(None, cuda, same_width=False, halves=True) == (True, False, True)
        assert choose_fused(True, CPU, same_width=False) == (True, True, True)
        assert choose_fused(False, cuda, same_width=True) == (False, False, False)

    def test_the_default_uses_it(self, served):
        queries, keys = drawn(0, (3, 4), (30, 4), dtype=torch.float32)
        exact_attention(queries, keys)
        log_partition(queries, keys)
        exact_attention(queries, keys, keys[:, :2])
        assert served == {"forward": 1, "backward": 0}
