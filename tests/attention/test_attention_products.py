"""Products with many keys are torch's own, by whichever library they are computed."""

import pytest
import torch
from torch import Tensor

from dsearch.attention import products
from dsearch.attention.products import product

SHAPES = [((3, 8), (5, 8)), ((2, 3, 8), (5, 8)), ((3, 8), (0, 8)), ((0, 8), (5, 8)), ((1, 384), (700, 384))]


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
    def used(*_: object) -> Tensor:
        raise AssertionError("oneDNN was used")

    monkeypatch.setattr(products, "_ONEDNN", used)
    left, right = torch.randn(3, 8), torch.randn(5, 8)
    with pytest.raises(AssertionError, match="used"):
        product(left, right)
    with torch.backends.mkldnn.flags(enabled=False):
        assert torch.equal(product(left, right), left @ right.T)
