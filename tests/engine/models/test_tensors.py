"""Tensors that are handed in as a head: what is one, and what each refusal says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from dsearch.attention.retrieval.head import Head
from dsearch.engine.models.tensors import (
    ENCODER_PREFIX,
    MAX_HEADS,
    head_bytes,
    head_from_bytes,
    head_from_numbers,
    head_from_tensors,
    head_tensors,
    parts_from_file,
    require_head_alone,
)
from dsearch.errors import Conflict, DimensionMismatch, InvalidRequest

DIM = 4
TRAINING: dict[str, Any] = {}


def tensors(**options: Any) -> dict[str, Tensor]:
    return head_tensors(Head(DIM, **options))


def refusal(changed: dict[str, Tensor], dim: int = DIM) -> str:
    with pytest.raises(InvalidRequest) as refused:
        head_from_tensors(changed, dim)
    return str(refused.value)


@pytest.mark.parametrize(
    ("heads", "rank", "side"),
    [(1, DIM, "low-rank"), (MAX_HEADS, 1, "low-rank"), (2, 3, "mlp"), (1, 1, "mlp")],
)
def test_sizes_at_their_bounds_are_a_head(heads: int, rank: int, side: str) -> None:
    head = head_from_tensors(tensors(heads=heads, rank=rank, query_side=side), DIM)
    assert (head.heads, head.rank, head.query_side) == (heads, rank, side)
    assert not head.training


@pytest.mark.parametrize(("heads", "rank"), [(MAX_HEADS + 1, 1), (1, DIM + 1)])
def test_sizes_beyond_are_refused(heads: int, rank: int) -> None:
    message = refusal(tensors(heads=heads, rank=rank, query_side="low-rank"))
    noun = "head" if heads == 1 else "heads"
    assert message == f"{heads} query {noun} of rank {rank}; use 1 to {MAX_HEADS} of rank 1 to {DIM}"


@pytest.mark.parametrize("dimensions", [9, 64, 65, 1000])
@pytest.mark.parametrize("name", ["key_delta", "query_delta", "anything"])
def test_more_dimensions_than_a_weight_has_are_refused(dimensions: int, name: str, tmp_path: Path) -> None:
    """Torch does not compute with more than 64; a file may name any number."""
    described = {name: {"dtype": "F32", "shape": [1] * dimensions, "data_offsets": [0, 4]}}
    header = json.dumps(described).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    with pytest.raises(InvalidRequest, match=f"'{name}' has {dimensions} dimensions"):
        head_from_bytes(content, DIM)
    (tmp_path / "parts").write_bytes(content)
    with pytest.raises(InvalidRequest, match=f"'{name}' has {dimensions} dimensions"):
        parts_from_file(tmp_path / "parts", DIM, None)


def test_every_part_of_a_head_comes_back() -> None:
    head = Head(DIM, heads=2, rank=2)
    head.weigh_keywords(0.7, 0.3)
    head.open_output(3)
    head.open_excitation(5)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    for read in (
        head_from_tensors(head_tensors(head), DIM),
        head_from_bytes(head_bytes(head), DIM)[0],
        head_from_numbers({name: tensor.tolist() for name, tensor in head_tensors(head).items()}, DIM),
    ):
        assert read.keyword_weighting == pytest.approx((0.7, 0.3))
        came, sent = read.state_dict(), head.state_dict()
        assert came.keys() == sent.keys()
        for name, tensor in sent.items():
            torch.testing.assert_close(came[name], tensor, msg=name)


def test_half_precision_is_sent_as_single() -> None:
    assert {tensor.dtype for tensor in head_tensors(Head(DIM).half()).values()} == {torch.float32}


@pytest.mark.parametrize("log_temperature", [math.log(2e-6), math.log(5e5)])
def test_temperatures_within_their_bounds_are_taken(log_temperature: float) -> None:
    head_from_tensors({**tensors(), "log_temperature": torch.tensor(log_temperature)}, DIM)


@pytest.mark.parametrize("log_temperature", [math.log(5e-7), math.log(2e6)])
def test_temperatures_beyond_their_bounds_are_refused(log_temperature: float) -> None:
    message = refusal({**tensors(), "log_temperature": torch.tensor(log_temperature)})
    assert message.endswith("; use 1e-06 to 1e+06")


def test_numbers_that_cannot_be_are_refused_by_name() -> None:
    value = tensors()["value_delta"]
    for wrong in (math.nan, math.inf, -math.inf):
        changed = value.clone()
        changed[0, 1] = wrong
        message = refusal({**tensors(), "value_delta": changed})
        assert message.startswith("tensor 'value_delta' has numbers that are not finite")
    message = refusal({**tensors(), "value_delta": value.double()})
    assert message == "tensor 'value_delta' is float64; send float32"
    message = refusal({**tensors(), "value_delta": value[:3]})
    assert message == "tensor 'value_delta' of shape [3, 4]; use [4, 4]"


def test_tensors_too_many_and_too_few_are_named() -> None:
    lacking = tensors()
    del lacking["value_delta"]
    lacking["other"] = torch.zeros(1)
    assert refusal(lacking).startswith(
        "tensors that a head lacks or does not have: 'other', 'value_delta'; send "
    )
    many = {**tensors(), **{f"other{i}": torch.zeros(1) for i in range(6)}}
    assert "'other4' and 1 more; send" in refusal(many)
    five = {**tensors(), **{f"other{i}": torch.zeros(1) for i in range(5)}}
    assert "'other4'; send" in refusal(five)


def test_a_head_for_other_embeddings_is_refused() -> None:
    with pytest.raises(
        DimensionMismatch, match="a head for embeddings of 4 numbers; this collection's have 8"
    ):
        head_from_tensors(tensors(), 8)
    assert "no tensor 'query_delta' or 'query_out' of three dimensions" in refusal(
        {"query_delta": torch.zeros(4, 4)}
    )


@pytest.mark.parametrize("bm25", [(-1.0, 0.5), (1.2, 1.5)])
def test_a_keyword_weighting_out_of_range_is_refused(bm25: tuple[float, float]) -> None:
    head = Head(DIM)
    head.weigh_keywords(1.2, 0.75)
    with pytest.raises(InvalidRequest):
        head_from_tensors({**head_tensors(head), "bm25": torch.tensor(bm25)}, DIM)


def test_lists_that_are_no_numbers_are_refused() -> None:
    for wrong in ([[1.0], [1.0, 2.0]], "words", None, [["a"]]):
        with pytest.raises(InvalidRequest, match="tensor 'key_delta'"):
            head_from_numbers({**{n: t.tolist() for n, t in tensors().items()}, "key_delta": wrong}, DIM)
    huge = np.full((DIM, DIM), 1e300).tolist()
    with pytest.raises(InvalidRequest, match="tensor 'key_delta' has numbers that are not finite"):
        head_from_numbers({**{n: t.tolist() for n, t in tensors().items()}, "key_delta": huge}, DIM)


def test_an_encoder_is_sent_with_its_tensors_or_not_at_all(tmp_path: Path) -> None:
    def parts_from_bytes(content: bytes, *expected: Any) -> Any:
        (tmp_path / "sent").write_bytes(content)
        return parts_from_file(tmp_path / "sent", *expected)

    alone, change = parts_from_bytes(save(tensors()), DIM, None)
    assert (alone.encoder_dim, change) == (DIM, None)
    both = save({**tensors(), f"{ENCODER_PREFIX}layer.weight": torch.ones(2)})
    with pytest.raises(
        InvalidRequest, match=r"1 tensors under 'query_encoder/' and no encoder in the request"
    ):
        parts_from_bytes(both, DIM, None)
    with pytest.raises(
        InvalidRequest, match=r"0 tensors under 'query_encoder/' and an encoder in the request"
    ):
        parts_from_bytes(save(tensors()), DIM, TRAINING)
    for wrong in (torch.ones(2).double(), torch.tensor([1.0, math.nan])):
        sound = {**tensors(), f"{ENCODER_PREFIX}a": torch.ones(2), f"{ENCODER_PREFIX}z": torch.ones(2)}
        body = save({**sound, f"{ENCODER_PREFIX}layer.weight": wrong})
        with pytest.raises(
            InvalidRequest,
            match=r"'query_encoder/layer\.weight' (is float64|has numbers that are not finite)",
        ):
            parts_from_bytes(body, DIM, TRAINING)


@pytest.mark.parametrize(
    ("record", "lost"),
    [
        ({"memory": {}}, "a memory"),
        ({"query_encoder": {}}, "a query encoder"),
        ({"documents": {}}, "a query encoder"),
    ],
)
def test_a_parent_with_more_than_a_head_is_refused(record: dict[str, Any], lost: str) -> None:
    with pytest.raises(Conflict, match=rf"model v3 has {lost}"):
        require_head_alone("v3", record)
    require_head_alone("v3", {"files": {}})
