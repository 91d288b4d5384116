"""Every score and pooling over HTTP gives what Python gives; predictions come with their evidence."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from dsearch.engine import Collection

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
    assert set(POOLINGS) == {"soft", "hard", "uniform", "exp", "relu", "sigmoid"}


@pytest.mark.parametrize(
    ("route", "body", "detail"),
    [
        ("attend", {"queries": ["a"], "score": "near"}, "score='near'; use one of dot, scaled_dot_product"),
        ("attend", {"queries": ["a"], "pooling": "max"}, "pooling='max'; use one of soft, hard, uniform"),
        ("attend", {"queries": ["a"], "width": 0.5}, "only gaussian, epanechnikov, boxcar have a width"),
        ("attend", {"queries": ["a"], "temperature": 0}, "temperature=0; use a number above 0"),
        (
            "predict",
            {"queries": ["a"], "field": "x", "pooling": "relu"},
            "pooling='relu': a prediction is a mean",
        ),
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
