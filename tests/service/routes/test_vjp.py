"""Attention and its gradients over HTTP, as JSON and as tensors, to the bit what Python gives; and heads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.loading import until_loaded
from support.service.shapes import checked

from dsearch.attention.retrieval.head import Head
from dsearch.engine import Collection, GradientQuery, SearchEngine, attention_parts, head_bytes, vjp
from dsearch.results import Attention, ModelAdded
from dsearch.service.schemas.answers import AttendAnswer, VjpAnswer
from dsearch.types import Document, Stamp

URL = "/v1/collections/papers"
TENSORS = {"Accept": "application/x-safetensors"}
QUERIES = ["river stone", "attention music head"]
EVERYTHING = ["keys", "values", "parts", "slopes"]


def moved_head(heads: int = 2, dimension: int = 32) -> Head:
    torch.manual_seed(4)
    head = Head(dimension, heads=heads, rank=3)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name != "hop_strength":
                parameter += 0.05 * torch.randn_like(parameter)
    return head


def facts_and_tensors(body: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    return json.loads(header["__metadata__"]["answer"]), load(body)


@pytest.fixture
def live(papers: Collection) -> Collection:
    papers.promote(papers.add_model(moved_head(), {}))
    return papers


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("words", [True, False])
def test_tensors_and_json_are_what_python_gives_to_the_bit(
    client: TestClient, live: Collection, dtype: Any, words: bool
) -> None:
    states = torch.as_tensor(live.encoder.encode_queries(QUERIES)).double()
    texts = QUERIES if words else None
    asked = GradientQuery(states=states, texts=texts, dtype=dtype, options={"candidates": 7})
    expected = attention_parts(live, asked, include=set(EVERYTHING))  # type: ignore[arg-type]
    body = {"vectors": states.tolist(), "queries": texts, "dtype": dtype, "candidates": 7}
    answered = client.post(f"{URL}/attend", json={**body, "include": EVERYTHING}, headers=TENSORS)
    assert answered.headers["content-type"] == TENSORS["Accept"]
    facts, tensors = facts_and_tensors(answered.content)
    assert facts["ids"] == expected.ids
    assert (facts["hops"], facts["temperature"]) == (1, expected.temperature)
    arrays = {
        name: array
        for name in Attention.__slots__
        if isinstance(array := getattr(expected, name), np.ndarray)
    }
    assert set(tensors) == {*arrays}
    assert set(arrays) > {"keys", "values", "dense", "keyword", "head_weights", "slopes"}
    for name, array in arrays.items():
        assert tensors[name].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(tensors[name], array)
    answered = client.post(f"{URL}/attend", json={**body, "include": EVERYTHING})
    checked(AttendAnswer, answered.json())
    assert answered.json()["temperature"] == expected.temperature
    for query, result in enumerate(answered.json()["results"]):
        count = len(expected.ids[query])
        for name, array in arrays.items():
            if name == "mixture":
                continue
            wanted = array[query]
            if wanted.ndim == 0:  # of the query, not of its documents
                assert result[name] == wanted
                continue
            if name in ("dense", "keyword", "head_weights", "slopes"):
                wanted = wanted[:, :count]
            elif name != "context":
                wanted = wanted[:count]
            np.testing.assert_array_equal(np.asarray(result[name], dtype), wanted, err_msg=name)


@pytest.mark.parametrize("tensors", [True, False])
def test_vjp_answers_the_gradients(client: TestClient, live: Collection, tensors: bool) -> None:
    first = client.post(f"{URL}/attend", json={"queries": QUERIES}).json()
    stamp = {name: first[name] for name in ("generation", "model", "sequence")}
    weights = [np.linspace(-1, 1, len(one["ids"])).tolist() for one in first["results"]]
    live.delete(["d007"])  # the state that the stamp names is still known
    body = {"queries": QUERIES, "stamp": stamp, "grad_weights": weights, "grad_context": [[0.5] * 32] * 2}
    expected = vjp(
        live,
        GradientQuery(texts=QUERIES, stamp=Stamp(**stamp)),
        context=np.full((2, 32), 0.5),
        weights=weights,
    )
    answered = client.post(f"{URL}/vjp", json=body, headers=TENSORS if tensors else {})
    assert answered.status_code == 200, answered.text
    if tensors:
        facts, found = facts_and_tensors(answered.content)
        head = {name.removeprefix("head."): found[name] for name in found if name != "states"}
    else:
        checked(VjpAnswer, answered.json())
        facts = found = answered.json()
        head = found["head"]
    assert {name: facts[name] for name in stamp} == stamp
    np.testing.assert_array_equal(np.float32(found["states"]), expected.states)
    assert set(head) == set(expected.head)
    for name, gradient in expected.head.items():
        np.testing.assert_array_equal(np.float32(head[name]), gradient, err_msg=name)
    short = client.post(f"{URL}/vjp", json={**body, "include": ["states"]}).json()
    assert ("states" in short, "head" in short) == (True, False)
    biased = {**body, "bias": [0.0] * live.snapshot.positions}
    for include in (["bias"], ["states"]):
        short = client.post(f"{URL}/vjp", json={**biased, "include": include}).json()
        assert [name for name in ("states", "head", "bias", "table") if name in short] == include


def test_a_head_is_read_changed_and_handed_in(client: TestClient, live: Collection) -> None:
    read = client.get(f"{URL}/models/v1/head")
    assert read.content == head_bytes(live.head("v1"))
    tensors = load(read.content)
    tensors["log_temperature"] = np.array(np.log(0.5), np.float32)
    body = save(tensors, {"record": json.dumps({"loss": 0.25})})
    added = client.post(f"{URL}/models?parent=v1", content=body, headers={"Content-Type": TENSORS["Accept"]})
    assert added.status_code == 201, added.text
    checked(ModelAdded, added.json())
    assert (added.json()["model"], added.json()["parent"]) == ("v2", "v1")
    assert live.live_model == "v1"
    listed = client.get(f"{URL}/models").json()["models"][-1]
    assert (listed["record"]["scope"], listed["record"]["uploaded"]) == ("uploaded", {"loss": 0.25})
    assert client.post(f"{URL}/models/v2/promote").status_code == 200
    assert client.post(f"{URL}/attend", json={"queries": ["cat"]}).json()["temperature"] == pytest.approx(0.5)


def test_a_head_needs_its_type_and_a_parent_and_a_bound(client: TestClient, live: Collection) -> None:
    assert client.post(f"{URL}/models", json={}).status_code == 415
    headers = {"Content-Type": TENSORS["Accept"]}
    large = client.post(f"{URL}/models", content=b"0" * 700_000, headers=headers)
    assert (large.status_code, large.json()["code"]) == (413, "body_too_large")
    orphan = client.post(f"{URL}/models?parent=v7", content=head_bytes(Head(32)), headers=headers)
    assert (orphan.status_code, orphan.json()["code"]) == (404, "model_not_found")


def test_a_head_alone_is_no_child_of_a_model_with_an_encoder(client: TestClient, live: Collection) -> None:
    live.add_model(Head(32), {"query_encoder": {}}, parent="v1")
    headers = {"Content-Type": TENSORS["Accept"]}
    lost = client.post(f"{URL}/models?parent=v2", content=head_bytes(Head(32)), headers=headers)
    assert (lost.status_code, lost.json()["code"]) == (409, "conflict")
    assert "model v2 has a query encoder of its own" in lost.json()["detail"]


def test_an_answer_that_would_be_too_large_is_refused(
    client: TestClient, live: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsearch.service.routes.search.MAX_JSON_VECTOR_BYTES", 1000)
    body = {"queries": ["cat"], "include": ["keys"]}
    refused = client.post(f"{URL}/attend", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "answer_too_large")
    assert "at most 1000 bytes in one answer" in refused.json()["detail"]
    assert client.post(f"{URL}/attend", json=body, headers=TENSORS).status_code == 200


def test_where_embeddings_are_given_nobody_waits_for_an_encoder(tmp_path: Path) -> None:
    def fail() -> NoReturn:
        raise AssertionError("the encoder was asked for")

    with SearchEngine(tmp_path / "home", encoder=fail) as engine:
        states = np.eye(4, dtype=np.float32)
        engine.create("given", dimension=4).upsert([Document(str(i), f"image {i}") for i in range(4)], states)
        with TestClient(patient_app(engine), base_url="http://127.0.0.1") as client:
            asked = {"vectors": states.tolist(), "stamp": None}
            answered = client.post("/v1/collections/given/attend", json=asked)
            assert [one["ids"][0] for one in answered.json()["results"]] == ["0", "1", "2", "3"]
            assert until_loaded(client).get("/readyz").status_code == 200
