"""Tensors whose headers say anything: every route that takes them answers, never with a 5xx."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from support.service.problems import require_an_answer
from support.sizes import by_size

from dsearch.engine import Collection

ROUTES = [("POST", "heads"), ("POST", "models"), ("POST", "models/save"), ("PUT", "documents")]
HEADERS = {"Content-Type": "application/x-safetensors"}
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1}
NAMES = ["embeddings", "query_delta", "query_out", "score.x", "output.weight", "query_encoder/a", ""]
METADATA = [{}, {"documents": "[]"}, {"documents": "["}, {"request": "{}"}, {"record": "9" * 5000}]


def body(header: Any, content: bytes) -> bytes:
    written = json.dumps(header).encode()
    return len(written).to_bytes(8, "little") + written + content


@pytest.mark.parametrize(("method", "route"), ROUTES)
@pytest.mark.parametrize(
    "shape",
    [[1] * 64, [1] * 65, [1] * 1000, [0] * 65, [2**63, 0], [0, 2**63], [0, 2**62, 2**62], [2**64 - 1, 0]],
    ids=lambda shape: f"{len(shape)} of {max(shape)}",
)
def test_any_shape_gets_an_answer(
    client: TestClient, papers: Collection, method: str, route: str, shape: list[int]
) -> None:
    """Torch has 64 dimensions, and 63 bits for each and for their product."""
    content = bytes(0 if 0 in shape else 4)
    offsets = [0, len(content)]
    for name in ("embeddings", "query_delta", "query_encoder/a"):
        described = {name: {"dtype": "F32", "shape": shape, "data_offsets": offsets}}
        sent = body({"__metadata__": {"documents": "[]"}, **described}, content)
        answer = client.request(method, f"/v1/collections/papers/{route}", content=sent, headers=HEADERS)
        assert answer.status_code == 422, answer.text
        require_an_answer(answer)


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_metadata_may_be_null(client: TestClient, papers: Collection, method: str, route: str) -> None:
    sent = body({"__metadata__": None}, b"")
    answer = client.request(method, f"/v1/collections/papers/{route}", content=sent, headers=HEADERS)
    assert answer.status_code == 422, answer.text
    require_an_answer(answer)


SIZES = st.integers(0, 3) | st.sampled_from([32, 2**31, 2**62, 2**63, 2**64 - 1, -1, 1.5, "1", None])


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file of safetensors in which something may be wrong."""
    header: Any = {}
    if draw(st.booleans()):
        header["__metadata__"] = draw(st.sampled_from([*METADATA, [], "x", None]))
    content = b""
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        shape = draw(st.lists(SIZES, max_size=4))
        dtype = draw(st.sampled_from([*BYTES, "C64", "F4", "X"]))
        count = 1
        for size in shape:
            count *= size if isinstance(size, int) and 0 <= size < 64 else 0
        part = bytes([draw(st.sampled_from([0, 63, 255]))]) * (count * BYTES.get(dtype, 1))
        end = len(content) + len(part) + draw(st.sampled_from([0] * 8 + [-1, 4, 2**63]))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(content), end]}
        content += part
    return body(draw(st.just(header) | st.sampled_from([[], None, 0, {"a": 1}])), content)


@given(files(), st.sampled_from(ROUTES))
@settings(max_examples=by_size(80, 1000), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_header_gets_an_answer(
    client: TestClient, papers: Collection, sent: bytes, route: tuple[str, str]
) -> None:
    method, path = route
    require_an_answer(client.request(method, f"/v1/collections/papers/{path}", content=sent, headers=HEADERS))
