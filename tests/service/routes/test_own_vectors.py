"""Vectors of one's own over HTTP: what is answered, and that hostile ones are refused and cost nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from support.service.apps import patient_app
from support.service.service_fakes import ORIGIN

from dsearch.encoder import TextEncoder
from dsearch.engine import Collection, SearchEngine

DIMENSION = 4
PATH = "/v1/collections/images"


def no_encoder() -> TextEncoder:
    raise AssertionError("nothing here needs an encoder")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    with SearchEngine(tmp_path_factory.mktemp("home"), encoder=no_encoder) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(engine: SearchEngine) -> Iterator[TestClient]:
    """A server that has no encoder, and a collection that was filled in three ways."""
    with TestClient(patient_app(engine), base_url=ORIGIN) as connected:
        assert connected.put(PATH, json={"dimension": DIMENSION}).status_code == 201
        assert connected.put(PATH, json={"dimension": DIMENSION}).status_code == 200
        lines = "\n".join(json.dumps(document(number)) for number in range(4, 8))
        bodies: list[tuple[str, bytes]] = [
            ("application/json", json.dumps([document(number) for number in range(4)]).encode()),
            ("application/x-ndjson", lines.encode()),
            ("application/x-safetensors", tensors([document(number) for number in range(8, 12)])),
        ]
        for kind, body in bodies:
            answer = put(connected, body, kind)
            assert (answer.status_code, answer.json()["inserted"]) == (200, 4), answer.text
        yield connected


def vector(number: int) -> list[float]:
    angle = number / 12 * math.pi
    return [math.cos(angle), math.sin(angle), 0.0, 0.0]


def document(number: int, **changes: Any) -> dict[str, Any]:
    whole = {"id": f"i{number}", "text": f"image number{number}", "embedding": vector(number)}
    return {**whole, "metadata": {"label": number % 3}, **changes}


def tensors(documents: list[dict[str, Any]]) -> bytes:
    rows = np.array([one["embedding"] for one in documents], np.float32)
    bare = [{name: value for name, value in one.items() if name != "embedding"} for one in documents]
    return save({"embeddings": rows}, {"documents": json.dumps(bare)})


def put(client: TestClient, body: bytes, kind: str = "application/json") -> Any:
    return client.put(f"{PATH}/documents", content=body, headers={"Content-Type": kind})


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


class TestAnswers:
    def test_texts_need_an_encoder(self, client: TestClient) -> None:
        answer = client.post(f"{PATH}/search", json={"query": "image"})
        assert answer.json()["code"] == "encoder_mismatch"
        assert "Search it with a vector" in answer.json()["detail"]

    def test_a_document_without_text_is_found_by_its_vector_only(self, client: TestClient) -> None:
        bare = {"id": "bare", "embedding": [0.0, 0.0, 1.0, 0.0], "label": 7}
        assert put(client, json.dumps([bare]).encode()).json()["inserted"] == 1
        found = client.post(f"{PATH}/search", json={"vector": bare["embedding"], "limit": 1})
        assert ids(found) == ["bare"]
        assert client.get(f"{PATH}/documents/bare").json()["text"] == ""
        words = client.post(f"{PATH}/search", json={"query": "image", "mode": "keyword", "limit": 50})
        assert "bare" not in ids(words)
        patched = client.patch(f"{PATH}/documents/bare", json={"metadata": {"label": 8}})
        assert patched.status_code == 200, patched.text
        again = {**bare, "label": 9}
        again.pop("embedding")
        assert put(client, json.dumps([again]).encode()).json()["updated"] == 1  # its vector stays
        asked = {"vectors": [bare["embedding"]], "field": "label", "pooling": "hard"}
        predicted = client.post(f"{PATH}/predict", json=asked).json()["results"][0]
        assert (predicted["evidence"][0]["id"], predicted["mean"]) == ("bare", 9)
        two = [{"id": "bare"}, {"id": "more"}]
        rows = np.array([bare["embedding"], vector(3)], np.float32)
        stored = put(
            client, save({"embeddings": rows}, {"documents": json.dumps(two)}), "application/x-safetensors"
        )
        assert stored.json()["inserted"] == 1
        client.post(f"{PATH}/documents/delete", json={"ids": ["bare", "more"]})


class TestRefusals:
    def test_another_dimension_and_an_encoder_are_named(self, client: TestClient) -> None:
        answer = client.put(PATH, json={"dimension": 5})
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "has embeddings of 4 numbers, not 5" in answer.json()["detail"]

    def test_a_line_is_refused_alone(self, client: TestClient) -> None:
        wrong: list[dict[str, Any]] = [
            document(31, embedding=[1.0, 0.0]),
            document(32, embedding=[0.0] * DIMENSION),
            document(33, embedding=None),
        ]
        lines = [document(30), *wrong, document(36)]
        answer = put(client, "\n".join(map(json.dumps, lines)).encode(), "application/x-ndjson").json()
        assert (answer["inserted"], answer["refused"]) == (2, 3)
        assert [problem["line"] for problem in answer["problems"]] == [2, 3, 4]
        reasons = [problem["detail"] for problem in answer["problems"]]
        assert "has an embedding of 2 numbers; this collection's have 4" in reasons[0]
        assert "has length 0;" in reasons[1]
        assert "has no embedding, and this collection has no encoder; give embedding, 4 numbers" in reasons[2]
        client.post(f"{PATH}/documents/delete", json={"ids": ["i30", "i36"]})

    def test_tensors_are_stored_whole_or_not_at_all(self, client: TestClient) -> None:
        bare = [{"id": "x", "text": "x", "value": 2.5}, {"id": "y", "text": "y"}]
        rows = np.array([vector(1), vector(2)], np.float32)
        listed = {"documents": json.dumps(bare)}
        bodies = [
            save({"embeddings": rows * np.float32(0)}, listed),
            save({"embeddings": rows * np.float32("nan")}, listed),
            save({"embeddings": rows[:1]}, listed),
            save({"embeddings": rows[:, :3].copy()}, listed),
            save({"embeddings": rows[0]}, listed),
            save({"embeddings": rows.astype(np.int64)}, listed),
            save({"embeddings": rows[:, None].copy()}, listed),
            save({"vectors": rows}, listed),
            save({"embeddings": rows, "values": rows}, listed),
            save({"embeddings": rows}),
            save({"embeddings": rows}, {"documents": "{"}),
            save({"embeddings": rows}, {"documents": '{"id": "x"}'}),
            save({"embeddings": rows}, {"documents": json.dumps([{"id": 1}, {}])}),
            save(
                {"embeddings": rows},
                {"documents": json.dumps([{**bare[0], "embedding": vector(3)}, bare[1]])},
            ),
            b"",
            b"\xff" * 100,
        ]
        for body in bodies:
            answer = put(client, body, "application/x-safetensors")
            assert answer.status_code in (400, 422), answer.text
            assert answer.json()["detail"]
        assert client.get(f"{PATH}/documents/x").status_code == 404
        good = save({"embeddings": rows.astype(np.float64)}, listed)
        assert put(client, good, "application/x-safetensors").json()["inserted"] == 2
        assert client.get(f"{PATH}/documents/x").json()["value"] == 2.5
        client.post(f"{PATH}/documents/delete", json={"ids": ["x", "y"]})


HOSTILE = st.lists(
    st.one_of(
        st.floats(allow_nan=True, allow_infinity=True),
        st.sampled_from([0.0, -0.0, 1e-320, 1e308, 1e39, 3.4e38, 1e20]),
        st.integers(-(10**400), 10**400),
        st.booleans(),
        st.none(),
        st.text(max_size=3),
    ),
    max_size=2 * DIMENSION,
)


CALLS = ["search", "batch", "similar", "attend", "predict", "write"]


class TestHostileVectors:
    """Whatever stands in place of a vector: an answer, or a refusal that says why; the documents stay."""

    @settings(max_examples=120, deadline=None)
    @given(hostile=HOSTILE, call=st.sampled_from(CALLS))
    def test_a_call_answers_or_says_why_not(
        self, client: TestClient, engine: SearchEngine, hostile: list[Any], call: str
    ) -> None:
        collection: Collection = engine.collection("images")
        before = collection.describe().documents
        bodies: dict[str, tuple[str, str, Any]] = {
            "search": ("POST", "search", {"vector": hostile}),
            "batch": ("POST", "search/batch", {"vectors": [vector(1), hostile]}),
            "similar": ("POST", "similar", {"like": ["i1"], "vector": hostile}),
            "attend": ("POST", "attend", {"vectors": [hostile]}),
            "predict": ("POST", "predict", {"vectors": [hostile], "field": "label"}),
            "write": ("PUT", "documents", [document(40, embedding=hostile)]),
        }
        method, route, body = bodies[call]
        content = json.dumps(body).encode()  # NaN and Infinity as Python writes them, too
        answer = client.request(
            method, f"{PATH}/{route}", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (200, 400, 413, 422), answer.text
        if answer.status_code == 200:
            assert all(isinstance(number, int | float) for number in hostile)
            assert "NaN" not in answer.text
        else:
            assert answer.json()["detail"]
        if call == "write" and answer.status_code == 200:
            client.delete(f"{PATH}/documents/i40")
        assert collection.describe().documents == before
        assert ids(client.post(f"{PATH}/search", json={"vector": vector(5), "limit": 1})) == ["i5"]
