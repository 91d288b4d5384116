"""Options of an application reach what they are for, and pages of other sites may do what they are let."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.loading import until_loaded
from support.service.service_fakes import ORIGIN, WordEncoder

from dsearch.engine import Collection, SearchEngine
from dsearch.service import app as app_module
from dsearch.service import create_app, deadline
from dsearch.service.deadline import QUERY_TIMEOUT_S
from dsearch.service.guard import LOOPBACK_HOSTS
from dsearch.service.keys import ApiKeys
from dsearch.training import confidence

SITE = "https://search.example"


def middleware(app: FastAPI) -> dict[str, dict[str, Any]]:
    return {each.cls.__name__: dict(each.kwargs) for each in app.user_middleware}  # type: ignore[attr-defined]


def test_options_reach_what_they_are_for(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class _Service(app_module.Service):
        def __init__(self, engine: SearchEngine, **options: Any):
            given.update(options)
            super().__init__(engine, **options)

    monkeypatch.setattr(app_module, "Service", _Service)
    chosen: dict[str, Any] = {
        "explore": 0.1,
        "open_engine": lambda: engine,
        "task_memory_bytes": 7,
        "device": "cuda",
        "migrates_to": "next",
        "rerankers": ["a"],
        "model_upload_bytes": 11,
    }
    edge: dict[str, Any] = {"hosts": ["h"], "origins": [SITE], "require_key": True, "query_timeout_s": 3.0}
    layers = middleware(create_app(engine, **chosen, **edge))
    assert given == chosen
    assert list(layers) == ["Guard", "CORSMiddleware", "Access", "Deadline"]
    assert layers["Deadline"] == {"query_timeout_s": 3.0}
    assert layers["Access"]["required"] is True
    assert (layers["Guard"]["hosts"], layers["Guard"]["origins"]) == (["h"], [SITE])
    assert layers["CORSMiddleware"]["allow_origins"] == [SITE]


def test_an_application_without_options_serves_this_machine_alone(engine: SearchEngine) -> None:
    app = create_app(engine)
    layers = middleware(app)
    assert "CORSMiddleware" not in layers
    assert layers["Guard"]["hosts"] == LOOPBACK_HOSTS
    assert layers["Access"]["required"] is False
    assert layers["Deadline"] == {"query_timeout_s": QUERY_TIMEOUT_S} == {"query_timeout_s": 2.0}
    assert app.state.service.impressions.explore == 0.0


@pytest.fixture
def shared(engine: SearchEngine, papers: Collection) -> TestClient:
    return TestClient(patient_app(engine, origins=[SITE]), base_url=ORIGIN)


@pytest.mark.parametrize("header", ["Authorization", "Content-Type", "X-Timeout-Ms", "X-Request-Id"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_a_page_of_a_named_site_may_send_each_header(shared: TestClient, method: str, header: str) -> None:
    asked = {
        "Origin": SITE,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": header,
    }
    answer = shared.options("/v1/collections/papers", headers=asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["access-control-allow-origin"] == SITE
    other = {**asked, "Access-Control-Request-Headers": "X-Other"}
    assert shared.options("/v1/collections/papers", headers=other).status_code == 400


def test_a_page_of_a_named_site_may_read_what_it_needs(shared: TestClient) -> None:
    answer = shared.get("/healthz", headers={"Origin": SITE})
    assert answer.headers["access-control-expose-headers"] == "X-Request-Id, Retry-After"
    assert shared.get("/healthz", headers={"Origin": "https://evil.example"}).status_code == 403


def test_a_preflight_needs_no_key(engine: SearchEngine) -> None:
    """A browser sends none with it."""
    ApiKeys(engine.home.path).create("somebody", "read")
    client = TestClient(patient_app(engine, origins=[SITE], require_key=True), base_url=ORIGIN)
    asked = {"Origin": SITE, "Access-Control-Request-Method": "GET"}
    assert client.options("/v1/collections", headers=asked).status_code == 200


def test_a_page_of_a_named_site_may_read_errors(
    engine: SearchEngine, papers: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the header a browser hides the answer: the page sees no 401, no 503 and no 504."""
    key, _ = ApiKeys(engine.home.path).create("somebody", "read")
    app = create_app(engine, origins=[SITE])
    bearer = {"Authorization": f"Bearer {key}"}
    with TestClient(app, base_url=ORIGIN) as client:

        def status(path: str, **headers: str) -> int:
            answer = client.get(path, headers={"Origin": SITE, **headers})
            assert answer.headers.get_list("access-control-allow-origin") == [SITE], path
            assert answer.headers["access-control-expose-headers"] == "X-Request-Id, Retry-After"
            assert answer.headers["vary"] == "Origin"
            plain = client.get(path, headers=headers)
            assert plain.status_code == answer.status_code
            assert "access-control-allow-origin" not in plain.headers
            return answer.status_code

        search = "/v1/collections/papers/search?query=cat"
        assert status("/v1/collections") == 401
        assert status("/v1/collections/none", **bearer) == 404
        assert status(search, **bearer, **{"X-Timeout-Ms": "soon"}) == 422
        assert status(search, **bearer) == 200
        monkeypatch.setattr(app.state.service.admission, "searches", 10_000)
        assert status(search, **bearer) == 503


def test_a_key_is_required_before_there_is_one_where_it_is_said(engine: SearchEngine) -> None:
    client = TestClient(patient_app(engine, require_key=True), base_url=ORIGIN)
    assert client.get("/v1/collections").status_code == 401
    assert client.get("/healthz").status_code == 200


def test_the_description_says_where_keys_are_needed(app: FastAPI) -> None:
    document = app.openapi()
    assert document["security"] == [{"key": []}, {}]
    assert document["paths"]["/healthz"]["get"]["security"] == []
    assert "security" not in document["paths"]["/v1/collections"]["get"]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert {"Problem", "DocumentGiven"} <= document["components"]["schemas"].keys()


def test_two_applications_share_no_more_than_their_declared_routes(
    client: TestClient, app: FastAPI, papers: Collection, tmp_path: Path
) -> None:
    """Routes are built once a process; engines, and routes added later, are of one application."""
    with SearchEngine(tmp_path / "other", encoder=WordEncoder) as engine:
        other = create_app(engine)
        other.add_api_route("/own", lambda: "own")
        with TestClient(other, base_url=ORIGIN) as asked:
            for _ in range(2):
                assert asked.get("/v1/collections").json()["collections"] == []
                (listed,) = client.get("/v1/collections").json()["collections"]
                assert listed["name"] == papers.name
            assert asked.get("/own").json() == "own"
            assert client.get("/own").status_code == 404
        described = other.openapi()["paths"]
        assert described.keys() - app.openapi()["paths"].keys() == {"/own"}
        assert {"401", "421"} <= described["/v1/collections"]["get"]["responses"].keys()


def test_a_server_whose_searches_have_stopped_is_not_ready(client: TestClient, app: FastAPI) -> None:
    assert until_loaded(client).get("/readyz").status_code == 200
    app.state.service.searching.stop()
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")
    assert client.get("/healthz").status_code == 200


def test_each_upload_has_its_calibration_even_after_one_that_failed(
    client: TestClient,
    app: FastAPI,
    papers: Collection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    calibrated: list[str] = []

    def calibrate(collection: Collection) -> None:
        calibrated.append(collection.name)
        if len(calibrated) == 1:
            raise OSError("the disk is full")

    monkeypatch.setattr(confidence, "calibrate_by_documents", calibrate)
    service = app.state.service
    service.calibrate_after_s = 0.0

    async def upload() -> None:
        deadline._present.set(asyncio.get_running_loop().time() - 1.0)  # of the write, which was answered
        service.calibrate_soon(papers.name)
        service.calibrate_soon(papers.name)  # soon after: the same one
        await service._calibrating[papers.name]

    for count in (1, 2, 3):
        client.portal.call(upload)  # type: ignore[union-attr]
        assert calibrated == count * [papers.name]
    assert service._calibrating == {}
    said = [record.getMessage() for record in caplog.records]
    assert said == ["collection papers could not be calibrated: the disk is full"]


@pytest.mark.parametrize(
    ("dimensions", "loaded"),
    [([], 1), ([None], 1), ([4], 0), ([4, None], 1)],
    ids=["none", "own", "given", "both"],
)
def test_the_encoder_is_loaded_at_the_start_unless_all_embeddings_are_given(
    tmp_path: Path, dimensions: list[int | None], loaded: int
) -> None:
    """Nor does the first upload to an empty service wait for it."""
    with SearchEngine(tmp_path / "home", encoder=WordEncoder) as made:
        for number, dimension in enumerate(dimensions):
            made.create(f"c{number}", dimension=dimension)
    asked: list[None] = []

    def encoder() -> WordEncoder:
        asked.append(None)
        return WordEncoder()

    with (
        SearchEngine(tmp_path / "home", encoder=encoder) as engine,
        TestClient(create_app(engine), base_url=ORIGIN) as client,
    ):
        assert until_loaded(client).get("/readyz").status_code == 200
        assert len(asked) == loaded
