"""Products with many keys are torch's own, by whichever library they are computed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dsearch import products
from dsearch.products import QuickLinear, product, quicken

SHAPES = [((3, 8), (5, 8)), ((2, 3, 8), (5, 8)), ((3, 8), (0, 8)), ((0, 8), (5, 8)), ((1, 384), (700, 384))]


def used(*_: object) -> Tensor:
    """In oneDNN's place."""
    raise AssertionError("oneDNN was used")


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_scores_are_torchs(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: torch.dtype) -> None:
    left, right = (torch.randn(shape, dtype=dtype) for shape in shapes)
    # Sums of 384 products in another order, of numbers up to some fifty.
    torch.testing.assert_close(product(left, right), left @ right.T, atol=1e-4, rtol=1e-5)


def test_sums_of_values_are_torchs_and_make_no_copy() -> None:
    weights, values = torch.rand(4, 2, 60), torch.randn(60, 8)
    torch.testing.assert_close(product(weights, values.T), weights @ values)


def test_rows_that_do_not_lie_side_by_side() -> None:
    left, right = torch.randn(3, 16)[:, ::2], torch.randn(8, 10).T
    torch.testing.assert_close(product(left, right), left @ right.T)


def test_what_wants_a_gradient_has_it() -> None:
    left, right = torch.randn(3, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    product(left, right).sum().backward()
    torch.testing.assert_close(left.grad, right.detach().sum(0).expand(3, 8))
    torch.testing.assert_close(right.grad, left.detach().sum(0).expand(5, 8))


def test_nan_and_infinity_stay_where_they_are() -> None:
    left, right = torch.ones(2, 8), torch.ones(3, 8)
    right[1, 2], right[2, 5] = torch.nan, torch.inf
    scores = product(left, right)
    assert (scores[:, 0] == 8).all()
    assert scores[:, 1].isnan().all()
    assert scores[:, 2].isposinf().all()


def test_a_torch_without_onednn_multiplies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_ONEDNN", None)
    left, right = torch.randn(3, 8), torch.randn(5, 8)
    assert torch.equal(product(left, right), left @ right.T)


@pytest.mark.filterwarnings("ignore:TF32")
def test_who_switches_onednn_off_gets_torchs_own_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_ONEDNN", used)
    left, right = torch.randn(3, 8), torch.randn(5, 8)
    with pytest.raises(AssertionError, match="used"):
        product(left, right)
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(product(left, right), left @ right.T)


class Layers(nn.Module):
    """Two linear layers, one within another module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.rest = nn.Sequential(nn.GELU(), nn.Linear(16, 4, bias=False))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.rest(self.first(inputs))


def test_a_quickened_model_is_the_same_model() -> None:
    model, inputs = Layers(), torch.randn(5, 3, 8)
    names = list(model.state_dict())
    with torch.inference_mode():
        before = model(inputs)
        quicken(model)
        torch.testing.assert_close(model(inputs), before)
    assert list(model.state_dict()) == names
    assert sum(isinstance(module, QuickLinear) for module in model.modules()) == 2
    model(inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Twice(nn.Linear):
    """A layer of somebody's own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_layers_of_another_class_keep_their_product() -> None:
    model, inputs = nn.Sequential(Twice(8, 4), nn.Linear(4, 2)), torch.randn(3, 8)
    with torch.inference_mode():
        before = model(inputs)
        quicken(model)
        torch.testing.assert_close(model(inputs), before)
    assert [type(module) for module in model] == [Twice, QuickLinear]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
def test_what_is_written_down_for_other_machines_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = Layers().eval(), torch.randn(2, 8)
    quicken(model)
    monkeypatch.setattr(products, "_ONEDNN", used)
    with torch.no_grad():
        with pytest.raises(AssertionError, match="used"):
            model(inputs)
        traced: Any = torch.jit.trace(model, inputs, check_trace=False)
        exported = torch.export.export(model, (inputs,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert model(inputs).dtype == torch.bfloat16
    assert "mkldnn" not in str(traced.inlined_graph)
    assert "mkldnn" not in str(exported.graph)
