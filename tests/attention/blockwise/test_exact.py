"""Blocked attention against the plain matrix, forward and backward."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import by_size
from support.warm.processes import run_warm
from torch.autograd import gradcheck

from dsearch.attention import exact_attention, log_partition
from dsearch.errors import DimensionMismatch, InvalidRequest

N = 13


def plain(queries, keys, values, bias=None, temperature=1.0):
    """The whole matrix at once."""
    logits = queries @ keys.T / torch.as_tensor(temperature).reshape(-1, 1)
    logits = logits if bias is None else logits + bias
    return logits.softmax(-1) @ values, logits.logsumexp(-1)


def gradients(outputs, inputs):
    """Gradients of a loss that weighs every output differently."""
    loss = sum(
        (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)).sum() for out in outputs
    )
    return torch.autograd.grad(loss, inputs)


def compare(ours, reference, **tolerance):
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


@pytest.fixture
def inputs(draw):
    temperature = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    return draw(3, 4), draw(N, 4), draw(N, 2), draw(3, N), temperature


@pytest.mark.parametrize("block_size", [1, 4, N, 100])
def test_equals_the_plain_matrix_forward_and_backward(inputs, block_size):
    queries, keys, values, bias, temperature = inputs
    ours = exact_attention(queries, keys, values, bias=bias, temperature=temperature, block_size=block_size)
    reference = plain(queries, keys, values, bias, temperature)
    compare(ours, reference)
    compare(gradients(ours, inputs), gradients(reference, inputs))


def test_gradcheck(inputs):
    def run(q, k, v, b, t):
        return exact_attention(q, k, v, bias=b, temperature=t, block_size=5)

    assert gradcheck(run, inputs)


def test_gradcheck_with_keys_for_values_and_a_temperature_per_row(inputs):
    queries, keys, *_ = inputs
    temperature = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda q, k, t: exact_attention(q, k, temperature=t, block_size=5), (queries, keys, temperature)
    )


def test_gradcheck_of_the_log_partition(inputs):
    queries, keys, _, bias, temperature = inputs
    assert gradcheck(
        lambda q, k, b, t: log_partition(q, k, bias=b, temperature=t, block_size=5),
        (queries, keys, bias, temperature),
    )


def test_gradcheck_of_a_shared_bias(inputs, draw):
    queries, keys, *_ = inputs
    assert gradcheck(lambda q, b: exact_attention(q, keys, bias=b, block_size=5), (queries, draw(1, N)))


def test_gradcheck_of_a_learned_bias_function(inputs, draw):
    """The keyword head: weight · b(q, d), with the weight learned and b read block by block."""
    queries, keys, values, table, _ = inputs
    weight, unused = draw(3, 1), draw(2)

    def bias(start, stop, w, _unused):
        return w * table.detach()[:, start:stop]

    def run(q, w, u):
        return exact_attention(q, keys, values, bias=bias, bias_parameters=[w, u], block_size=5)

    assert gradcheck(run, (queries, weight, unused))
    compare(run(queries, weight, unused), plain(queries, keys, values, weight * table))


def test_a_bias_function_without_parameters(inputs):
    queries, keys, values, bias, _ = inputs
    ours = exact_attention(queries, keys, values, bias=lambda a, b: bias[:, a:b].detach(), block_size=5)
    compare(ours, plain(queries, keys, values, bias))
    compare(gradients(ours, [queries]), gradients(plain(queries, keys, values, bias), [queries]))


def test_one_block_and_four_give_the_same_gradients_in_single_precision():
    inputs = [torch.randn(n, 16).requires_grad_() for n in (5, 40, 40)]
    one, four = (gradients(exact_attention(*inputs, block_size=b), inputs) for b in (40, 10))
    compare(one, four, rtol=1e-5, atol=1e-6)


def test_single_and_double_precision_agree():
    single = [torch.randn(n, 16).requires_grad_() for n in (5, 40, 40)]
    double = [x.detach().double().requires_grad_() for x in single]
    low, high = exact_attention(*single, block_size=16), exact_attention(*double, block_size=16)
    compare(low, [x.float() for x in high], rtol=1e-5, atol=1e-6)
    compare(gradients(low, single), [x.float() for x in gradients(high, double)], rtol=1e-5, atol=2e-6)


def test_half_precision_is_accumulated_in_single():
    """Equal to float32 on the rounded inputs; a bfloat16 sum of 4096 ones would stop at 256."""
    half = [torch.randn(n, 16).bfloat16().requires_grad_() for n in (5, 40, 40)]
    full = [x.detach().float().requires_grad_() for x in half]
    low, high = exact_attention(*half, block_size=16), exact_attention(*full, block_size=16)
    assert low.context.dtype == torch.float32
    compare(low, high)
    compare(gradients(low, half), [g.bfloat16() for g in gradients(high, full)])
    count = log_partition(torch.zeros(1, 2).bfloat16(), torch.zeros(4096, 2).bfloat16(), block_size=64)
    assert count.item() == pytest.approx(math.log(4096))


def test_autocast_does_not_round_the_logits():
    queries, keys = torch.randn(4, 64), torch.randn(50, 64)
    with torch.autocast("cpu", torch.bfloat16):
        inside = exact_attention(queries, keys)
    compare(inside, exact_attention(queries, keys), rtol=0, atol=0)


def test_minus_infinity_leaves_documents_out(inputs):
    queries, keys, values, bias, _ = inputs
    hidden = torch.rand(3, N) > 0.5
    hidden[1] = True  # nothing left for the second query
    masked = bias.masked_fill(hidden, -math.inf)
    ours = exact_attention(queries, keys, values, bias=masked, block_size=4)
    assert ours.context[1].tolist() == [0.0, 0.0]
    assert ours.log_partition[1] == -math.inf
    rows = [0, 2]
    compare([x[rows] for x in ours], plain(queries[rows], keys, values, masked[rows]))
    grads = gradients([ours.context], inputs[:4])
    assert all(g.isfinite().all() for g in grads)
    assert grads[0][1].tolist() == [0.0] * 4


def test_a_mask_in_one_block_only(inputs):
    """The first block is masked throughout, so the running maximum starts at −inf."""
    queries, keys, values, *_ = inputs
    bias = torch.zeros(1, N, dtype=torch.float64)
    bias[:, :4] = -math.inf
    ours = exact_attention(queries, keys, values, bias=bias, block_size=4)
    compare(ours, plain(queries, keys[4:], values[4:]))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_huge_logits_do_not_overflow(sign):
    queries = torch.tensor([[1e4 * sign]], requires_grad=True)
    keys = torch.tensor([[1.0], [-1.0], [1.0]])
    out = exact_attention(queries, keys, torch.tensor([[1.0], [2.0], [3.0]]), block_size=1)
    assert out.context.item() == pytest.approx(2.0)
    assert out.log_partition.item() == pytest.approx(1e4 + (math.log(2) if sign > 0 else 0))
    (out.context.sum() + out.log_partition.sum()).backward()
    assert queries.grad.item() == pytest.approx(sign)


def test_duplicated_keys_share_and_get_the_gradient(inputs):
    queries, keys, values, *_ = inputs
    rows = [0, 0, 1, 2]
    ours = exact_attention(queries, keys[rows], values[rows], block_size=2)
    reference = plain(queries, keys[rows], values[rows])
    compare(ours, reference)
    compare(gradients(ours, [keys, values]), gradients(reference, [keys, values]))


def test_an_empty_corpus_is_zero_and_minus_infinity(inputs):
    queries, keys, values, *_ = inputs
    context, log_z = exact_attention(queries, keys[:0], values[:0])
    assert context.tolist() == [[0.0, 0.0]] * 3
    assert log_z.tolist() == [-math.inf] * 3
    context.sum().backward()
    assert queries.grad.abs().sum() == 0


def test_no_queries(inputs):
    _, keys, values, *_ = inputs
    assert exact_attention(keys[:0], keys, values).context.shape == (0, 2)


def test_a_memory_map_is_read_in_blocks(tmp_path, inputs):
    queries, keys, values, *_ = inputs
    np.save(tmp_path / "keys.npy", keys.detach().numpy())
    on_disk = np.load(tmp_path / "keys.npy", mmap_mode="r")
    ours = exact_attention(queries, on_disk, values, block_size=4)
    reference = plain(queries, keys.detach(), values)
    compare(ours, reference)
    compare(gradients(ours, [queries, values]), gradients(reference, [queries, values]))
    compare(exact_attention(queries, on_disk, block_size=4), exact_attention(queries, keys, block_size=4))


@pytest.mark.skipif(sys.platform != "linux", reason="bounds memory as Linux does")
@pytest.mark.parametrize("fused", [True, False])
def test_a_corpus_larger_than_memory(tmp_path, fused):
    """256 MiB of keys, forward and backward, by a process that may allocate 64 MiB more than it had."""
    code = """
import resource, sys
import numpy as np, torch
from dsearch.attention import exact_attention

torch.set_num_threads(1)
rows, dim, fused = 1 << 20, 64, sys.argv[2] == "True"
keys = np.memmap(sys.argv[1], np.float32, "w+", shape=(rows, dim))  # zeros that take no room on the disk
keys[-1] = 1.0
queries = torch.full((2, dim), np.log(rows - 1) / dim, dtype=torch.float32, requires_grad=True)

def run():
    context, log_z = exact_attention(queries, keys, fused=fused)
    return context, log_z, torch.autograd.grad(context.sum(), queries)[0]

exact_attention(queries, keys[:9000], fused=fused).context.sum().backward()  # what is allocated once
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), resource.RLIM_INFINITY))
try:
    np.array(keys)
    sys.exit("the whole corpus fitted: nothing was tested")
except MemoryError:
    pass
context, log_z, gradient = run()
# The last key weighs as much as all the others: half of it is the context, and the covariance is 1/4.
np.testing.assert_allclose(context.detach().numpy(), 0.5, rtol=1e-4)
np.testing.assert_allclose(log_z.detach().numpy(), np.log(2 * (rows - 1)), rtol=1e-6)
np.testing.assert_allclose(gradient.numpy(), dim / 4, rtol=1e-3)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "keys.bin"), str(fused)]
    done = run_warm(command)
    assert done.returncode == 0, done.stderr


def test_nothing_of_the_size_of_the_corpus_is_made():
    """Peak allocation of forward and backward stays at blocks, not at [batch, documents]."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor) and not tensor._is_view():
                    self.numel = max(self.numel, tensor.numel())
            return out

    batch, documents, dim, block = 8, 4096, 4, 64
    queries, keys = torch.randn(batch, dim, requires_grad=True), torch.randn(documents, dim)
    with Largest() as largest:
        exact_attention(queries, keys, block_size=block).context.sum().backward()
    assert largest.numel <= block * max(batch, dim)


def test_it_works_inside_a_compiled_function():
    """In a process of its own: the checks of shapes that this suite adds cannot be traced."""
    code = """
import torch
from dsearch.attention import exact_attention

queries, keys = torch.randn(3, 4, requires_grad=True), torch.randn(13, 4)

def loss(queries):
    context, log_z = exact_attention(torch.tanh(queries), keys, block_size=5)
    return context.square().sum() + log_z.sum()

plain, compiled = loss(queries), torch.compile(loss, backend="aot_eager", fullgraph=True)(queries)
torch.testing.assert_close(compiled, plain)
torch.testing.assert_close(torch.autograd.grad(compiled, queries), torch.autograd.grad(plain, queries))
"""
    done = run_warm([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def test_a_gaussian_kernel_is_an_inner_product_and_a_bias():
    """|q − k|² = |q|² + |k|² − 2 q·k, and |q|² cancels: kernel regression over a corpus, exactly."""
    from dsearch.attention import attend

    queries, keys, values = torch.randn(3, 4), torch.randn(N, 4), torch.randn(N, 2)
    bias = -keys.square().sum(-1).unsqueeze(0) / 2
    expected = attend(queries, keys, values, score="gaussian").context
    torch.testing.assert_close(exact_attention(queries, keys, values, bias=bias).context, expected)


def test_the_gradient_of_the_log_partition_is_the_mean_key(inputs):
    queries, keys, *_ = inputs
    (gradient,) = torch.autograd.grad(log_partition(queries, keys, block_size=4).sum(), queries)
    torch.testing.assert_close(gradient, exact_attention(queries, keys).context.detach())


@given(documents=st.integers(0, 20), block_size=st.integers(1, 25), seed=st.integers(0, 99))
@settings(max_examples=by_size(25, 250))
def test_the_block_size_never_matters(documents, block_size, seed):
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (torch.randn(n, 3, generator=generator) for n in (2, documents))
    compare(
        exact_attention(queries, keys, block_size=block_size),
        exact_attention(queries, keys),
        atol=1e-6,
        rtol=1e-5,
    )


def test_errors(unchecked):
    queries, keys = torch.ones(2, 3), torch.ones(5, 3)
    with pytest.raises(DimensionMismatch, match=r"queries of dimension 3, keys of 4"):
        exact_attention(queries, torch.ones(5, 4))
    with pytest.raises(DimensionMismatch, match=r"4 values for 5 keys"):
        exact_attention(queries, keys, torch.ones(4, 1))
    with pytest.raises(DimensionMismatch, match=r"bias of shape \(2, 4\); use \(2, 5\) or \(1, 5\)"):
        exact_attention(queries, keys, bias=torch.ones(2, 4))
    with pytest.raises(InvalidRequest, match=r"block_size=0; use 1 or more"):
        exact_attention(queries, keys, block_size=0)
    with pytest.raises(InvalidRequest, match=r"temperature=0.0; use a number above 0"):
        exact_attention(queries, keys, temperature=0.0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cuda_equals_cpu(dtype):
    cpu = [torch.randn(n, 16).to(dtype).requires_grad_() for n in (5, 300, 300)]
    gpu = [x.detach().cuda().requires_grad_() for x in cpu]
    a, b = (exact_attention(*inputs, block_size=64, fused=False) for inputs in (cpu, gpu))
    compare([x.cpu() for x in b], a, rtol=1e-4, atol=1e-4)
    for x, y in zip(gradients(a, cpu), gradients([x.cpu() for x in b], gpu), strict=True):
        torch.testing.assert_close(y.cpu(), x, rtol=1e-2, atol=1e-3)
