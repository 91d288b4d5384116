"""Every score and pooling over HTTP gives what Python gives; predictions come with their evidence."""

from __future__ import annotations

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.service.shapes import checked

from dsearch.engine import Collection
from dsearch.service.schemas.answers import AttendAnswer, PredictAnswer
from dsearch.types import Document

URL = "/v1/collections/papers"
SCORES = [
    "dot",
    "scaled_dot_product",
    "cosine",
    "general",
    "additive",
    "gaussian",
    "epanechnikov",
    "boxcar",
    "exact_match",
]


def test_the_scores_offered_are_those_there_are() -> None:
    from dsearch.attention import POOLINGS
    from dsearch.attention import SCORES as REGISTERED

    assert set(SCORES) == set(REGISTERED)
    assert set(POOLINGS) == {"soft", "hard", "uniform"}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("pooling", ["soft", "hard", "uniform"])
def test_attend_scores_and_pools_as_python_does(
    client: TestClient, papers: Collection, score: str, pooling: str
) -> None:
    options = {"mode": "dense", "score": score, "pooling": pooling, "candidates": 20}
    if score in ("gaussian", "epanechnikov", "boxcar"):
        options["width"] = 1.3
    if score == "exact_match":
        options["match_field"] = "text"
    answered = client.post(f"{URL}/attend", json={"queries": ["river stone"], **options})
    assert answered.status_code == 200, answered.text
    checked(AttendAnswer, answered.json())
    expected = papers.attend(["river stone"], **options)  # type: ignore[arg-type]
    got = answered.json()["results"][0]
    ids = [id for id in expected.ids[0] if id]
    assert got["ids"] == ids
    np.testing.assert_array_equal(np.float32(got["weights"]), expected.output.weights[0, : len(ids)].numpy())
    if pooling == "hard" and ids:
        assert sorted(got["weights"], reverse=True)[:1] == [1.0]


def test_predict_pools_a_field(client: TestClient, papers: Collection) -> None:
    papers.upsert(
        [
            Document(id=f"p{i}", text=f"price tag {i}", metadata={"price": 10.0 * i, "kind": "ab"[i % 2]})
            for i in range(6)
        ]
    )
    asked = {"queries": ["price tag 3"], "field": "price", "candidates": 50, "evidence": 2}
    answered = client.post(f"{URL}/predict", json=asked)
    assert answered.status_code == 200, answered.text
    checked(PredictAnswer, answered.json())
    got = answered.json()["results"][0]
    expected = papers.predict(["price tag 3"], field="price", candidates=50, evidence=2).predictions[0]
    assert (got["kind"], got["mean"], got["spread"]) == ("number", expected.mean, expected.spread)
    assert [one["id"] for one in got["evidence"]] == [one.id for one in expected.evidence]
    assert got["evidence"][0]["id"] == "p3"
    labels = client.post(f"{URL}/predict", json={**asked, "field": "kind"}).json()["results"][0]
    assert labels["labels"][0]["label"] == "b"
    assert sum(one["share"] for one in labels["labels"]) == pytest.approx(1)
    nothing = client.post(f"{URL}/predict", json={**asked, "field": "colour"}).json()["results"][0]
    assert (nothing["kind"], nothing["mean"], nothing["labels"]) == (None, None, None)
    assert nothing["without_field"] > 0


@pytest.mark.parametrize(
    ("route", "body", "detail"),
    [
        ("attend", {"queries": ["a"], "score": "near"}, "score='near'; use one of dot, scaled_dot_product"),
        ("attend", {"queries": ["a"], "pooling": "max"}, "pooling='max'; use one of soft, hard, uniform"),
        ("attend", {"queries": ["a"], "width": 0.5}, "only gaussian, epanechnikov, boxcar have a width"),
        ("attend", {"queries": ["a"], "temperature": 0}, "temperature=0; use a number above 0"),
        ("predict", {"queries": ["a"]}, "field"),
        ("predict", {"queries": ["a"], "field": "x", "evidence": -1}, "evidence=-1; use an integer from 0"),
    ],
)
def test_bad_requests_say_what_is_allowed(
    client: TestClient, papers: Collection, route: str, body: dict[str, object], detail: str
) -> None:
    answered = client.post(f"{URL}/{route}", json=body)
    assert answered.status_code == 422
    assert detail in answered.json()["detail"]
