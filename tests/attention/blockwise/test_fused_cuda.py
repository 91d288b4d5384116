"""What is handed to the operators for CUDA; and large sizes on this CPU, and on a GPU where there is one."""

from __future__ import annotations

import math

import pytest
import torch
from support.attention.tensors import compare, drawn, gradients

from dsearch.attention import exact_attention


class TestCallsForCuda:
    """What is handed to the operators for CUDA, without a card: the operators' own rules, on CPU tensors.

    The stand-ins compute the textbook formula, refuse what the kernels refuse (`kernel_forward.h` and
    `kernel_backward.h` of its `mem_eff_attention`) and return what they return, log Z padded to a multiple
    of 32 included. That the kernels themselves compute the same is for `TestOnDevices` on a card.
    """

    @pytest.fixture
    def operators(self, monkeypatch):
        import dsearch.attention.blockwise.fused as fused

        calls: list[str] = []

        def aligned(*tensors):
            for tensor in tensors:
                assert tensor.dim() == 4
                assert tensor.stride(-1) == 1
                assert tensor.data_ptr() % 16 == 0
                assert tensor.shape[-1] % 8 == 0
                assert all(
                    n == 1 or step % 8 == 0
                    for n, step in zip(tensor.shape[:3], tensor.stride(), strict=False)
                )

        def aligned_bias(bias, queries, keys):
            assert bias.dtype == queries.dtype
            assert bias.shape == (len(queries), 1, queries.shape[2], keys.shape[2])
            assert bias.stride(-1) == 1
            assert bias.data_ptr() % 16 == 0
            assert all(
                n == 1 or step % 8 == 0 for n, step in zip(bias.shape[:3], bias.stride(), strict=False)
            )
            assert bias.isfinite().all()  # tiles of −inf alone are NaN there

        def logits_of(queries, keys, bias, scale):
            logits = scale * queries.float() @ keys.float().mT
            return logits if bias is None else logits + bias

        def forward(queries, keys, values, bias, scale):
            logits = logits_of(queries, keys, bias, scale)
            return (logits.softmax(-1) @ values.float()).to(queries.dtype), logits.logsumexp(-1)

        def flash(
            queries, keys, values, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
        ):
            calls.append("flash")
            aligned(queries, keys, values)
            assert queries.dtype == torch.bfloat16
            assert queries.shape[-1] == values.shape[-1] <= 256
            context, log_z = forward(queries, keys, values, None, scale)
            none = torch.empty(0)
            return context, log_z, none, none, queries.shape[2], keys.shape[2], none, none, none

        def efficient(
            queries, keys, values, bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None
        ):
            calls.append("efficient")
            aligned(queries, keys, values)
            assert compute_log_sumexp
            if bias is not None:
                aligned_bias(bias, queries, keys)
            context, log_z = forward(queries, keys, values, bias, scale)
            log_z = torch.nn.functional.pad(log_z, (0, -log_z.shape[-1] % 32), value=math.inf)
            return context, log_z, torch.tensor(0), torch.tensor(0)

        def efficient_backward(
            grad,
            queries,
            keys,
            values,
            bias,
            out,
            log_z,
            seed,
            offset,
            dropout_p,
            mask,
            is_causal=False,
            *,
            scale=None,
        ):
            calls.append("backward")
            aligned(queries, keys, values, grad, out)
            assert log_z.shape == (len(queries), 1, -(-queries.shape[2] // 32) * 32)
            assert out.is_contiguous()
            assert dropout_p == 0.0
            assert list(mask) == [True, True, True, False]
            if bias is not None:
                aligned_bias(bias, queries, keys)
            log_z = log_z[..., : queries.shape[2], None]
            weights = (logits_of(queries, keys, bias, scale) - log_z).exp()
            delta = (grad.float() * out.float()).sum(-1, keepdim=True)
            grad_logits = weights * (grad.float() @ values.float().mT - delta)
            found = (
                scale * grad_logits @ keys.float(),
                scale * grad_logits.mT @ queries.float(),
                weights.mT @ grad.float(),
            )
            return *(x.to(queries.dtype) for x in found), None

        def first_that_can(operators, queries, keys, values, bias):
            same = queries.shape[-1] == values.shape[-1] <= 256 and queries.dtype == torch.bfloat16
            return next(name for name in operators if name != "flash" or (same and bias is None))

        monkeypatch.setattr(fused, "_device_type", lambda queries: "cuda")
        monkeypatch.setattr(fused, "_cuda_operator", first_that_can)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: type("Card", (), {"multi_processor_count": 2})
        )
        library = torch.library.Library("aten", "IMPL")
        library.impl("_scaled_dot_product_flash_attention", flash, "CPU")
        library.impl("_scaled_dot_product_efficient_attention", efficient, "CPU")
        library.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward, "CPU")
        yield calls
        library._destroy()

    @pytest.mark.parametrize("bias_rows", [0, 1, 5])
    @pytest.mark.parametrize("value_dim", [None, 0, 3, 8])
    @pytest.mark.parametrize(("dim", "documents"), [(16, 4096), (5, 4096), (16, 37)])
    def test_single_precision(self, operators, dim, documents, value_dim, bias_rows):
        queries, keys, values, bias = drawn(
            0,
            (5, dim),
            (documents, dim),
            (documents, value_dim or 0),
            (bias_rows, documents),
            dtype=torch.float32,
        )
        bias[:, ::3] = -math.inf
        if bias_rows == 5:
            bias[2] = -math.inf
        inputs = [
            x.requires_grad_() for x in ([queries, keys] if value_dim is None else [queries, keys, values])
        ]

        def run(fused):
            found = exact_attention(
                *inputs,
                bias=bias if bias_rows else None,
                temperature=torch.linspace(2, 4, 5),
                block_size=2048,
                fused=fused,
            )
            return found, gradients(found, inputs)

        (ours, our_grads), (reference, grads) = run(True), run(False)
        compare(ours, reference, rtol=1e-5, atol=1e-5)
        compare(our_grads, grads, rtol=1e-4, atol=1e-5)
        assert set(operators) == {"efficient", "backward"}

    @pytest.mark.parametrize(("dim", "expected"), [(64, "flash"), (384, "efficient")])
    def test_bfloat16(self, operators, dim, expected):
        queries, keys = (x.requires_grad_() for x in drawn(0, (5, dim), (4096, dim), dtype=torch.bfloat16))
        full = [x.detach().float().requires_grad_() for x in (queries, keys)]
        temperature = dim**0.5
        ours = exact_attention(queries, keys, temperature=temperature, block_size=2048, fused=True)
        reference = exact_attention(*full, temperature=temperature, fused=False)
        compare(ours, reference, rtol=1e-2, atol=1e-2)
        for a, b in zip(gradients(ours, [queries, keys]), gradients(reference, full), strict=True):
            assert (a - b).abs().max() <= 2e-2 * b.abs().max()
        assert set(operators) == {expected, "backward"}

    def test_an_address_that_is_not_aligned_is_copied(self, operators):
        memory = torch.randn(1 + 64 * 16)
        keys = memory[1:].view(64, 16)
        queries = torch.randn(5, 16)
        ours, reference = (exact_attention(queries, keys, temperature=4.0, fused=f) for f in (True, False))
        compare(ours, reference, rtol=1e-5, atol=1e-5)

    def test_few_queries_are_spread_over_the_processors(self, operators):
        import dsearch.attention.blockwise.fused as fused

        queries = torch.randn(5, 16)
        assert fused._parts(queries, 65_536) == 8  # 2 processors, 4 parts for each
        assert fused._parts(torch.randn(65, 16), 65_536) == 4
        assert fused._parts(queries, 65_537) == 1
        assert fused._parts(queries, 1024) == 2
        assert fused._parts(queries, 2050) == 1  # halves of 1025 would leave the bias of the second unaligned


CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", CUDA])
class TestOnDevices:
    """Fused against written out, forward and backward, at sizes that need more than one tile.

    On CUDA, bfloat16 of 64 dimensions takes flash attention, everything else the memory-efficient operator.
    """

    @pytest.mark.parametrize("bias_rows", [0, 1, 70])
    @pytest.mark.parametrize("value_dim", [None, 0, 3, 64])
    @pytest.mark.parametrize(("dim", "documents"), [(64, 9000), (384, 2048), (30, 4097)])
    def test_single_precision(self, served, device, dim, documents, value_dim, bias_rows):
        self.check(served, device, torch.float32, dim, documents, value_dim, bias_rows, tolerance=1e-4)

    @pytest.mark.parametrize("value_dim", [None, 0, 3, 64])
    @pytest.mark.parametrize(("dim", "documents"), [(64, 9000), (384, 2048), (30, 4097)])
    def test_bfloat16(self, served, device, dim, documents, value_dim):
        self.check(served, device, torch.bfloat16, dim, documents, value_dim, 0, tolerance=2e-2)

    @staticmethod
    def check(served, device, dtype, dim, documents, value_dim, bias_rows, tolerance):
        shapes = [(70, dim), (documents, dim)] + ([] if value_dim is None else [(documents, value_dim)])
        inputs = [x.to(device).requires_grad_() for x in drawn(0, *shapes, dtype=dtype)]
        bias = None
        if bias_rows:
            bias = drawn(1, (bias_rows, documents), dtype=dtype)[0].to(device)
            bias[:, ::3] = -math.inf
            bias[-1, : documents * 3 // 4] = -math.inf
        if bias_rows > 2:
            bias[2] = -math.inf

        def run(fused):
            found = exact_attention(*inputs, bias=bias, temperature=dim**0.5, block_size=6000, fused=fused)
            return found, gradients(found, inputs)

        (ours, our_grads), (reference, grads) = run(True), run(False)
        assert min(served.values()) > 0
        for a, b in zip([*ours, *our_grads], [*reference, *grads], strict=True):
            difference = (a - b).float().masked_fill(a == b, 0.0)
            largest = b.float().masked_fill(b == -math.inf, 0.0).abs()
            assert difference.numel() == 0 or difference.abs().max() <= tolerance * largest.max()

    def test_huge_logits_are_written_out(self, device):
        queries, keys = torch.full((1, 8), 1e4, device=device), torch.rand(40, 8, device=device)
        compare(*(exact_attention(queries, keys, fused=fused) for fused in (True, False)), rtol=0, atol=0)
