"""Our kernels give what plain torch gives: on a Hopper card, and interpreted on a CPU.

    TRITON_INTERPRET=1 python -m pytest tests/attention/blockwise/test_card.py      where Triton is installed

Interpreted they run in float32, with whole numbers as inputs, whose sums no order of addition changes.
"""

from __future__ import annotations

import ast
import importlib
import math
import os
from pathlib import Path

import pytest
import torch

from dsearch.attention import ExactAttention, exact_attention, log_partition, top_k
from dsearch.attention.blockwise import card
from dsearch.attention.blockwise.blocks import Corpus, CorpusGradients
from dsearch.attention.blockwise.card import SearchPlan, kernels_for

F64 = torch.float64
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_card = [pytest.mark.cuda, pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU (H100, H200)")]
CPU = torch.device("cpu")
SMALL = SearchPlan(rows=64, keys=128, pairs=4, stages=2, warps=4)


@pytest.fixture(scope="module")
def interpreted():
    """The kernels' modules, by Triton's interpreter."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("set TRITON_INTERPRET=1, in an environment with Triton")
    search = importlib.import_module("dsearch.attention.blockwise.triton_search")
    attention = importlib.import_module("dsearch.attention.blockwise.triton_attention")
    try:
        search.group_maxima(torch.ones(1, 4), torch.ones(9, 4), SMALL)
    except Exception as error:
        pytest.skip(f"this Triton's interpreter does not run here: {error!r:.90}")
    return search, attention


def whole_numbers(rows: int, dim: int, most: int) -> torch.Tensor:
    return torch.randint(-most, most + 1, (rows, dim)).float()


def best_by_sorting(queries: torch.Tensor, keys: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, ties by row."""
    scores = queries.double() @ keys.double().T
    best, rows = torch.sort(scores, dim=1, descending=True, stable=True)
    return best[:, :k], rows[:, :k]


class TestInterpretedSearch:
    @pytest.mark.parametrize("most", [9, 1, 0])
    def test_with_few_many_and_only_ties(self, interpreted, most):
        queries, keys = whole_numbers(3, 40, most), whole_numbers(1501, 40, most)
        scores, rows = card.search_part(interpreted[0], queries, keys, 7, SMALL)
        expected, expected_rows = best_by_sorting(queries, keys, 7)
        assert torch.equal(scores.double(), expected)
        assert torch.equal(rows, expected_rows)

    @pytest.mark.parametrize("arranged", ["mixed", "sorted"])
    def test_with_duplicates(self, interpreted, arranged):
        """Forty keys many times over: ties at every cut."""
        keys = whole_numbers(40, 8, 3)[torch.randint(0, 40, (1500,))]
        if arranged == "sorted":
            keys = keys[(keys @ whole_numbers(8, 1, 2)).flatten().argsort()]
        queries = whole_numbers(2, 8, 2)
        scores, rows = card.search_part(interpreted[0], queries, keys, 9, SMALL)
        expected, expected_rows = best_by_sorting(queries, keys, 9)
        assert torch.equal(scores.double(), expected)
        assert torch.equal(rows, expected_rows)

    def test_a_sum_that_comes_out_otherwise_is_noticed(self, interpreted, monkeypatch):
        search = interpreted[0]
        call = search.group_maxima

        def other(*args):
            maxima, tile_maxima = call(*args)
            return maxima.nextafter(torch.tensor(math.inf)), tile_maxima

        monkeypatch.setattr(search, "group_maxima", other)
        queries, keys = whole_numbers(2, 8, 5), whole_numbers(1500, 8, 5)
        assert card.search_part(search, queries, keys, 3, SMALL) is None


class TestInterpretedAttention:
    @pytest.mark.parametrize("bias_rows", [0, 1, 5])
    @pytest.mark.parametrize("value_dim", [None, 0, 3])
    def test_equals_written_out(self, interpreted, value_dim, bias_rows):
        generator = torch.Generator().manual_seed(3)
        draw = [
            torch.randn(n, d, generator=generator) for n, d in ((5, 12), (300, 12), (300, value_dim or 0))
        ]
        queries, keys, values = (x.requires_grad_() for x in draw)
        bias = torch.randn(bias_rows, 300, generator=generator) if bias_rows else None
        if bias is not None:
            bias[:, ::3] = -math.inf
            bias[-1, :150] = -math.inf  # the whole first block of this query
        if bias_rows == 5:
            bias[2] = -math.inf
        temperature = torch.linspace(0.5, 2, 5)
        given = [queries, keys] if value_dim is None else [queries, keys, values]
        reference = exact_attention(*given, bias=bias, temperature=temperature, fused=False)
        weigh = [torch.randn(x.shape, generator=generator) for x in reference]
        if bias_rows == 5:
            weigh[1][2] = 0.0
        finite = reference.log_partition.masked_fill(reference.log_partition == -math.inf, 0.0)
        expected = torch.autograd.grad(
            (reference.context * weigh[0]).sum() + (finite * weigh[1]).sum(), given, materialize_grads=True
        )

        corpus = Corpus(
            keys=keys.detach(),
            values=None if value_dim is None else values.detach(),
            bias=bias,
            block_size=130,
            dtype=torch.float32,
            device=CPU,
        )
        with torch.no_grad():
            total = card.attend(interpreted[1], corpus, queries.detach(), temperature, ())
        assert total is not None
        context, log_z = total.finish()
        torch.testing.assert_close(context, reference.context, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(log_z, reference.log_partition, rtol=1e-5, atol=1e-5)
        gradients = CorpusGradients(
            queries=torch.zeros(5, 12),
            keys=torch.zeros(300, 12),
            values=None if value_dim is None else torch.zeros(300, value_dim),
            bias=None,
        )
        whole = type(total)(total.max, total.sum.masked_fill(total.sum == 0, 1.0), context)
        card.attend_backward(
            interpreted[1],
            corpus,
            queries.detach(),
            temperature,
            (),
            whole,
            ExactAttention(*weigh),
            gradients,
        )
        found = [gradients.queries, gradients.keys, gradients.values]
        for ours, theirs in zip(found, expected, strict=False):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)

    @pytest.mark.filterwarnings("ignore:overflow")
    def test_what_overflows_is_left_to_others(self, interpreted):
        """Logits that grow by more than float32 holds after the first rows; and hidden ones far from 0."""
        keys = torch.cat([torch.zeros(1100, 4), torch.full((9, 4), 60.0)])
        hidden = torch.zeros(1, len(keys))
        hidden[:, :1100] = -math.inf

        def attend(sign, temperature, bias=None):
            corpus = Corpus(sign * keys, None, bias, 4096, torch.float32, CPU)
            return card.attend(interpreted[1], corpus, torch.ones(1, 4), torch.tensor(temperature), ())

        assert attend(1, 3.0) is not None
        assert attend(1, 1.0) is None
        assert attend(-1, 1.0) is not None
        for sign in (-1, 1):
            total = attend(sign, 6.0, hidden)
            torch.testing.assert_close(total.finish().log_partition, torch.tensor([sign * 40 + math.log(9)]))
            assert attend(sign, 2.0, hidden) is None


def test_what_is_asked_of_the_kernels_is_in_their_modules():
    """Read, not imported: that takes Triton, and their module is chosen where the card is known."""
    here = Path(card.__file__).parent
    asked = {
        node.attr
        for node in ast.walk(ast.parse((here / "card.py").read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kernels"
    }
    modules = [ast.parse((here / f"triton_{task}.py").read_text("utf-8")) for task in ("search", "attention")]
    there = [node for module in modules for node in module.body]
    assert asked
    assert asked <= {node.name for node in there if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_without_such_a_card_they_decline():
    assert kernels_for("search", torch.ones(2, 8)) is None
    assert kernels_for("search", torch.ones(2, 8).bfloat16(), torch.ones(2, 8)) is None
    assert card.search(torch.ones(2, 8), torch.ones(90_000, 8), 3) is None


@pytest.mark.cuda
@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU (H100, H200)")
class TestSearchOnTheCard:
    """Against float64. Sums of small whole numbers are exact, so rows and ties are compared as they are."""

    @staticmethod
    def check(queries, keys, k, dtype=torch.bfloat16):
        found = card.search(queries.cuda().to(dtype), keys.cuda().to(dtype), k)
        assert found is not None
        expected, rows = best_by_sorting(queries.cuda().to(dtype), keys.cuda().to(dtype), k)
        assert torch.equal(found[0].double(), expected)
        assert torch.equal(found[1], rows)

    @pytest.mark.parametrize("most", [9, 1, 0])
    @pytest.mark.parametrize(
        ("batch", "documents", "dim", "k"),
        [
            (1, 30_001, 384, 10),
            (16, 100_003, 64, 100),
            (65, 257 * 256, 40, 200),
            (130, 60_000, 1024, 3),
            (3, 9_000, 8, 1),
        ],
    )
    def test_with_few_many_and_only_ties(self, batch, documents, dim, k, most):
        self.check(whole_numbers(batch, dim, most), whole_numbers(documents, dim, most), k)

    @pytest.mark.parametrize("arranged", ["mixed", "sorted"])
    @pytest.mark.parametrize("k", [1, 20, 150])
    def test_with_duplicates(self, arranged, k):
        keys = whole_numbers(400, 16, 3)[torch.randint(0, 400, (50_000,))]
        if arranged == "sorted":
            keys = keys[(keys @ whole_numbers(16, 1, 2)).flatten().argsort()]
        self.check(whole_numbers(70, 16, 2), keys, k)

    def test_in_float16_and_over_several_workspaces(self, monkeypatch):
        monkeypatch.setattr(card, "_WORKSPACE", 1 << 20)
        self.check(whole_numbers(300, 32, 3), whole_numbers(70_000, 32, 3), 12, torch.float16)

    @pytest.mark.parametrize("scale", [1.0, 1e3, 1e-4])
    @pytest.mark.parametrize("clustered", [False, True])
    def test_of_real_numbers(self, scale, clustered):
        """The k best in float64, but for scores that float32 does not tell apart."""
        keys = torch.randn(200_000, 384)
        if clustered:  # neighbours are alike, so a tile has many of the best
            keys = 0.1 * keys + torch.randn(200, 384).repeat_interleave(1000, 0)
        queries, keys = (x.cuda().bfloat16() for x in (scale * torch.randn(100, 384), keys))
        found = card.search(queries, keys, 100)
        assert found is not None
        scores = queries.double() @ keys.double().T
        kth = scores.topk(100, dim=1).values
        least = scores.abs().amax(1, keepdim=True) * 1e-6
        assert ((scores.gather(1, found[1]) - kth).abs() <= least).all()
        assert ((found[0].double() - kth).abs() <= least).all()
        assert all(len(row.unique()) == 100 for row in found[1])

    def test_again_and_again_the_same(self):
        """A race within a kernel would show as another number now and then."""
        queries, keys = (torch.randn(n, 384, device="cuda").bfloat16() for n in (1024, 400_000))
        first = card.search(queries, keys, 100)
        for _ in range(20):
            again = card.search(queries, keys, 100)
            assert again is not None
            assert torch.equal(again[0], first[0])
            assert torch.equal(again[1], first[1])

    @pytest.mark.parametrize(
        ("documents", "dim", "k"), [(5000, 32, 100), (30_000, 30, 5), (1, 8, 3), (0, 8, 3), (300, 64, 1000)]
    )
    def test_what_it_declines_is_searched_in_blocks(self, documents, dim, k):
        queries, keys = whole_numbers(5, dim, 2), whole_numbers(documents, dim, 2)
        half = [x.cuda().bfloat16() for x in (queries, keys)]
        assert card.search(*half, k) is None
        found = top_k(*half, k)
        expected, rows = best_by_sorting(queries, keys, k)
        assert torch.equal(found.scores.double().cpu(), expected)
        assert torch.equal(found.rows.cpu(), rows)

    def test_keys_at_odd_addresses_are_searched_in_blocks(self):
        keys = whole_numbers(1, 30_000 * 8 + 1, 2).cuda().bfloat16()[0, 1:].view(30_000, 8)
        queries = whole_numbers(2, 8, 2).cuda().bfloat16()
        assert card.search(queries, keys, 4) is None
        assert torch.equal(top_k(queries, keys, 4).rows, best_by_sorting(queries, keys, 4)[1])


@pytest.mark.cuda
@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU (H100, H200)")
class TestAttentionOnTheCard:
    @pytest.fixture(autouse=True)
    def served(self, monkeypatch):
        """Counts what our kernels served, so that no test passes by falling back."""
        import dsearch.attention.blockwise.exact as exact

        count = {"forward": 0, "backward": 0}

        def forward(*args):
            found = card.attend_on_card(*args)
            count["forward"] += found is not None
            return found

        def backward(*args):
            card.attend_on_card_backward(*args)
            count["backward"] += 1

        monkeypatch.setattr(exact, "attend_on_card", forward)
        monkeypatch.setattr(exact, "attend_on_card_backward", backward)
        return count

    @staticmethod
    def gradients(outputs, inputs):
        torch.manual_seed(1)
        loss = sum(
            (out.masked_fill(out == -math.inf, 0.0) * torch.randn(out.shape, device="cuda")).sum()
            for out in outputs
        )
        return torch.autograd.grad(loss, inputs, materialize_grads=True)

    def check(self, inputs, tolerance=1e-2, **options):
        """Against float64, by ‖ours − reference‖ / ‖reference‖."""
        half = [x.cuda().bfloat16().requires_grad_() for x in inputs]
        full = [x.detach().double().requires_grad_() for x in half]
        ours = exact_attention(*half, **options)
        double = {name: x.double() if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        reference = exact_attention(*full, **(double | {"fused": False}))
        pairs = [*zip(ours, reference, strict=True)]
        pairs += zip(self.gradients(ours, half), self.gradients(reference, full), strict=True)
        for a, b in pairs:
            assert torch.equal(a.isfinite(), b.isfinite())
            a, b = (x.double().masked_fill(~x.isfinite(), 0.0) for x in (a, b))
            assert (a - b).norm() <= tolerance * b.norm() + 1e-12, (
                a.shape,
                ((a - b).norm() / b.norm()).item(),
            )

    @pytest.mark.parametrize("bias_rows", [0, 1, 70])
    @pytest.mark.parametrize("value_dim", [None, 0, 3, 64])
    @pytest.mark.parametrize(
        ("dim", "documents"), [(64, 9000), (384, 20_000), (30, 4097), (768, 1), (8, 200)]
    )
    def test_forward_and_backward(self, served, dim, documents, value_dim, bias_rows):
        inputs = [torch.randn(70, dim), torch.randn(documents, dim)]
        if value_dim is not None:
            inputs.append(torch.randn(documents, value_dim))
        bias = None
        if bias_rows:
            bias = torch.randn(bias_rows, documents).cuda()
            if documents > 1:
                bias[:, ::3] = -math.inf
                bias[-1, : documents * 3 // 4] = -math.inf
        if bias_rows > 2:
            bias[2] = -math.inf
        self.check(inputs, bias=bias, temperature=dim**0.5, block_size=6000)
        assert min(served.values()) > 0

    @pytest.mark.parametrize("batch", [1, 64, 65, 300])
    def test_a_temperature_for_each_query(self, served, batch):
        temperature = torch.linspace(0.01, 1.0, batch).cuda()
        unit = [torch.nn.functional.normalize(torch.randn(n, 384)) for n in (batch, 20_000)]
        self.check(unit, temperature=temperature, tolerance=2e-2)
        assert min(served.values()) > 0

    def test_low_temperature_finds_a_document_far_better_than_all_before(self, served):
        """Logits of 25 at first, and one of 100 in a later block."""
        keys = torch.nn.functional.normalize(torch.randn(30_000, 384))
        queries = keys[-3:].clone()
        self.check([queries, keys], temperature=0.01, block_size=8192, tolerance=2e-2)
        assert min(served.values()) > 0

    def test_large_norms_are_left_to_others(self, served):
        inputs = [300 * torch.randn(5, 64), 3 * torch.randn(9000, 64)]
        half = [x.cuda().bfloat16() for x in inputs]
        ours = exact_attention(*half, block_size=2048)
        reference = exact_attention(*half, block_size=2048, fused=False)
        assert served["forward"] == 0
        torch.testing.assert_close(ours.context, reference.context)
        torch.testing.assert_close(ours.log_partition, reference.log_partition)

    def test_gradients_of_the_queries_alone_and_of_log_z(self, served):
        queries, keys = torch.randn(100, 384), torch.randn(50_000, 384)
        half = [x.cuda().bfloat16() for x in (queries, keys)]
        asked = half[0].clone().requires_grad_()
        double = half[0].double().requires_grad_()
        for run in (exact_attention, log_partition):
            ours = run(asked, half[1], temperature=20.0)
            theirs = run(double, half[1].double(), temperature=20.0, fused=False)
            ours, theirs = ((x,) if isinstance(x, torch.Tensor) else x for x in (ours, theirs))
            (a,), (b,) = self.gradients(ours, [asked]), self.gradients(theirs, [double])
            assert (a - b).norm() <= 1e-2 * b.norm()
        assert served == {"forward": 2, "backward": 2}

    def test_a_bias_by_a_function_and_one_that_learns(self, served):
        """The first is served; the gradient of the second is written out."""
        queries, keys = (torch.randn(n, 64, device="cuda").bfloat16() for n in (20, 9000))
        table = torch.randn(20, 9000, device="cuda")
        by_function = exact_attention(
            queries, keys, bias=lambda start, stop: table[:, start:stop], temperature=8.0, block_size=4096
        )
        learns = table.clone().requires_grad_()
        by_table = exact_attention(queries, keys, bias=learns, temperature=8.0, block_size=4096)
        torch.testing.assert_close(by_function.context, by_table.context)
        by_table.log_partition.sum().backward()
        torch.testing.assert_close(learns.grad.sum(1), torch.ones(20, device="cuda"), rtol=1e-3, atol=1e-3)
        assert served == {"forward": 2, "backward": 0}

    def test_again_and_again_the_same(self, served):
        queries, keys = (torch.randn(n, 384, device="cuda").bfloat16() for n in (1024, 200_000))
        queries.requires_grad_()

        def run():
            found = exact_attention(queries, keys, temperature=20.0)
            return [*found, *self.gradients(found, [queries])]

        first = run()
        for _ in range(10):
            assert all(torch.equal(a, b) for a, b in zip(run(), first, strict=True))

    def test_an_empty_corpus(self):
        queries = torch.randn(3, 8, device="cuda").bfloat16().requires_grad_()
        context, log_z = exact_attention(queries, torch.empty(0, 8, device="cuda").bfloat16())
        assert log_z.tolist() == [-math.inf] * 3
        context.sum().backward()
        assert queries.grad.abs().sum() == 0
