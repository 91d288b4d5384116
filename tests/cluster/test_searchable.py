"""Routes over a home whose collection lies in shards: answers, and the errors of what shards cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from starlette.testclient import TestClient
from support.cluster_checks import WORDS, Packed
from support.fakes import HashingEncoder
from support.service.apps import patient_app
from support.service.loading import until_loaded

from dsearch.attention.retrieval.head import Head
from dsearch.attention.retrieval.learned_score import new_score
from dsearch.cluster.collection import ClusterEngine, Releases, ShardedCollection
from dsearch.cluster.coordinator import LiveRelease
from dsearch.cluster.release import split
from dsearch.cluster.shards.shard import LocalShards
from dsearch.engine import Collection, Searchable, SearchEngine
from dsearch.errors import NotInCluster
from dsearch.types import Document

ORIGIN = "http://127.0.0.1"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterEngine]:
    """Two collections: "food" lies in two shards of this process, "plain" on this machine alone."""
    folder = tmp_path_factory.mktemp("home")
    with SearchEngine(folder / "home", encoder=HashingEncoder) as writer:
        for name in ("food", "plain"):
            texts = [f"{WORDS[i % 16]} {WORDS[i % 5]} number{i}" for i in range(60)]
            writer.create(name).ingest(
                [Document(f"d{i}", text, metadata={"n": i % 3}) for i, text in enumerate(texts)]
            )
        food = writer.collection("food")
        scored = Head(32)
        scored.score = new_score("additive", 32, 5)
        food.add_model(scored.eval(), {})
        writer.set_alias("today", "food")
        generation = food.snapshot.generation
        split(food.store, generation, folder / "release", 2)
    shards = LocalShards(folder / "release")
    live = LiveRelease(
        "food", str(folder / "release"), shards.release.digest, generation.number, [["a"], ["b"]], 1
    )
    opened = ClusterEngine(
        folder / "home",
        encoder=HashingEncoder,
        releases=Releases(lambda: {"food": asdict(live)}, lambda live: Packed(shards)),
    )
    yield opened
    opened.close()
    shards.close()


@pytest.fixture(scope="module")
def client(engine: ClusterEngine) -> Iterator[TestClient]:
    with TestClient(patient_app(engine), base_url=ORIGIN) as connected:
        yield connected


def answer(client: TestClient, method: str, path: str, **request: Any) -> str:
    """`ok`, or the code of the error."""
    response = client.request(method, f"/v1/collections/{path}".rstrip("/"), **request)
    return "ok" if response.is_success else response.json()["code"]


STAMP = {"generation": 2, "model": "v0", "sequence": 6}
CLICK = {"action_name": "click", "user_query": "apple", "object_id": "d1"}
READS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "search", {"json": {"query": "apple bread"}}),
    ("GET", "search?query=apple", {}),
    ("POST", "search/batch", {"json": {"queries": ["apple", "bread"]}}),
    ("POST", "search", {"json": {"query": "apple", "vector": [1.0] * 32}}),
    ("POST", "search/batch", {"json": {"vectors": [[1.0] * 32, [0.5] * 32]}}),
    ("GET", "", {}),
    ("GET", "documents", {}),
    ("GET", "documents/d1", {}),
    ("POST", "facets", {"json": {"fields": ["n"]}}),
    ("GET", "stats", {}),
    ("GET", "models", {}),
    ("GET", "models/v0/head", {}),
    ("POST", "feedback", {"json": [CLICK]}),
]
NEEDS_THE_INDEX: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "attend", {"json": {"queries": ["apple"]}}),
    ("POST", "similar", {"json": {"like": ["d1"]}}),
    ("POST", "predict", {"json": {"queries": ["apple"], "field": "n"}}),
    ("POST", "vjp", {"json": {"queries": ["apple"], "stamp": STAMP, "grad_context": [[0.0] * 32]}}),
]
WRITES: list[tuple[str, str, dict[str, Any], str]] = [
    ("PUT", "documents", {"json": [{"id": "x", "text": "apple"}]}, "conflict"),
    ("DELETE", "documents/d1", {}, "conflict"),
    ("POST", "documents/delete", {"json": {"ids": ["d1"]}}, "conflict"),
    ("PATCH", "documents/d1", {"json": {"metadata": {"n": 1}}}, "conflict"),
    ("POST", "models/v0/promote", {}, "conflict"),
    ("POST", "models/v7/promote", {}, "model_not_found"),
    ("POST", "models/rollback", {}, "conflict"),
    ("POST", "models/rollback-rows", {"json": {"sequence": 0}}, "conflict"),
    ("DELETE", "models/v1", {}, "conflict"),
    ("POST", "refresh", {}, "conflict"),
    ("DELETE", "", {}, "conflict"),
]


@pytest.mark.parametrize("name", ["food", "plain"])
@pytest.mark.parametrize(("method", "path", "request_"), READS)
def test_reads(client: TestClient, name: str, method: str, path: str, request_: dict[str, Any]) -> None:
    assert answer(client, method, f"{name}/{path}", **request_) == "ok"


@pytest.mark.parametrize(("method", "path", "request_"), NEEDS_THE_INDEX)
def test_routes_that_need_the_index(
    client: TestClient, method: str, path: str, request_: dict[str, Any]
) -> None:
    assert answer(client, method, f"food/{path}", **request_) == "not_in_cluster"
    assert answer(client, method, f"plain/{path}", **request_) == "ok"


@pytest.mark.parametrize("name", ["food", "plain"])
@pytest.mark.parametrize(("method", "path", "request_", "code"), WRITES)
def test_writes(
    client: TestClient, name: str, method: str, path: str, request_: dict[str, Any], code: str
) -> None:
    assert answer(client, method, f"{name}/{path}", **request_) == code


def test_metrics_and_readiness(client: TestClient) -> None:
    assert until_loaded(client).get("/readyz").json()["status"] == "ready"
    answer(client, "POST", "food/search", json={"query": "apple"})
    answer(client, "POST", "plain/search", json={"query": "apple"})
    metrics = client.get("/metrics").text
    assert 'dsearch_collection_documents{collection="plain"} 60.0' in metrics
    assert 'dsearch_collection_documents{collection="food"}' not in metrics


def test_both_are_searchable_and_shards_have_nothing_more(engine: ClusterEngine) -> None:
    sharded, local = engine.searchable("food"), engine.searchable("plain")
    assert isinstance(local, Collection)
    assert isinstance(sharded, ShardedCollection)
    assert not isinstance(sharded, Collection)
    assert isinstance(sharded, Searchable)
    assert isinstance(local, Searchable)
    offered = {name for name in dir(sharded) if not name.startswith("_")}
    assert offered == {name for name in dir(Searchable) if not name.startswith("_")}
    assert engine.searchable("food") is engine.searchable("today") is sharded


def test_a_model_of_parts_that_shards_do_not_know_is_refused(engine: ClusterEngine) -> None:
    with pytest.raises(NotInCluster, match="model v1 has a learned score"):
        engine.searchable("food").search("apple", model="v1")


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("v1", None),
        ("v2", "a second stage behind an encoder of its own"),
        ("v3", "documents of its own"),
        ("v4", "documents of its own and a learned score"),
    ],
)
def test_a_second_stage_needs_the_encoder_of_the_release(version: str, parts: str | None) -> None:
    staged, score = object(), object()
    heads = {"v1": (staged, None), "v2": (staged, None), "v3": (None, None), "v4": (None, score)}

    def head(name: str) -> Any:
        second_stage, learned_score = heads[name]
        return SimpleNamespace(second_stage=second_stage, learned_score=learned_score)

    local: Any = MagicMock()
    local.name, local.head = "food", head
    local.encoder_identity_of = {"v0": "e", "v1": "e", "v2": "other", "v3": "other", "v4": "e"}.get
    local.has_documents_of = ("v3", "v4").__contains__
    nothing: Any = None
    collection = ShardedCollection(local, nothing)
    if parts is None:
        assert collection._supported_head(version).second_stage is staged
    else:
        with pytest.raises(NotInCluster, match=f"^model {version} has {parts}, which"):
            collection._supported_head(version)


def test_a_batch_has_no_covered_mass_unless_it_is_wanted(engine: ClusterEngine) -> None:
    """As on one machine: it costs as much as the search."""
    for name in ("food", "plain"):
        collection = engine.searchable(name)
        queries = ["apple bread", "apple"]
        masses = [result.attention.covered_mass for result in collection.search_batch(queries)]
        assert masses == [None, None]
        wanted = collection.search_batch(queries, coverage=True)
        assert all(result.attention.covered_mass is not None for result in wanted)


def test_a_misspelt_field_of_a_filter_is_named(client: TestClient) -> None:
    """A field that some shards have is no error, and neither is one that nothing is near."""
    for name in ("food", "plain"):
        refused = client.post(f"/v1/collections/{name}/search", json=filtered("nn", 1))
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert "no document has the field 'nn' (did you mean n?)" in refused.json()["detail"]
        for field, value in (("n", 17), ("colour", 1)):
            answer = client.post(f"/v1/collections/{name}/search", json=filtered(field, value))
            assert answer.json()["hits"] == []


def test_a_misspelt_field_of_the_answer_is_named(client: TestClient) -> None:
    """As on one machine; a field that nothing is near is left out of the hits."""
    for name in ("food", "plain"):
        asked = {"query": "apple", "fields": "title,nn"}
        refused = client.post(f"/v1/collections/{name}/search", json=asked)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert "fields: no document has the field 'nn' (did you mean n?)" in refused.json()["detail"]
        for fields in ("title,n", "colour"):
            answer = client.post(f"/v1/collections/{name}/search", json=asked | {"fields": fields})
            assert answer.json()["hits"]


def filtered(field: str, value: int) -> dict[str, Any]:
    return {"query": "apple", "filter": {field: {"eq": value}}}
