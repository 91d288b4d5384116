"""API keys: nothing is open without one but what is listed, and a key opens no more than its scope."""

from __future__ import annotations

import hmac
import json
import os
import re
from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from filelock import FileLock, Timeout
from starlette.testclient import TestClient
from support.service.apps import patient_app
from support.service.problems import problem_in
from support.service.service_fakes import ORIGIN

from dsearch.engine import Collection, SearchEngine
from dsearch.errors import CorruptData, InvalidRequest, NotFound
from dsearch.service import keys as keys_module
from dsearch.service.keys import ApiKeys, is_open, needed_scope

SEARCH = "/v1/collections/papers/search"


@pytest.fixture
def keys(engine: SearchEngine) -> ApiKeys:
    return ApiKeys(engine.home.path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def operations(app: FastAPI) -> list[tuple[str, str]]:
    """Every method and path of the description, and of what is not described."""
    described = [
        (method.upper(), re.sub(r"\{[^}]*\}", "x", path))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    ]
    assert len(described) >= 19
    plain = [("GET", getattr(route, "path", "")) for route in app.routes if not isinstance(route, APIRoute)]
    return described + [(method, path) for method, path in plain if path] + [("GET", "/openapi.json")]


# ---- without keys, and when there are some


def test_no_key_is_needed_before_one_was_made(client: TestClient, papers: Collection) -> None:
    assert client.get(SEARCH, params={"query": "cat"}).status_code == 200


def test_with_keys_every_route_needs_one(
    app: FastAPI, client: TestClient, papers: Collection, keys: ApiKeys
) -> None:
    keys.create("somebody", "admin")
    opened = set()
    for method, path in operations(app):
        answered = client.request(method, path)
        if is_open(path) or answered.status_code != 401:
            opened.add(path)
            continue
        assert problem_in(answered)["code"] == "key_missing", path
        assert answered.headers["www-authenticate"].startswith("Bearer")
        assert answered.headers["x-content-type-options"] == "nosniff"
    guide = {"/guide", "/guide/{topic}", "/guide/{name}.png"}
    assert opened <= {"/healthz", "/readyz", "/", "/docs", *guide}
    assert client.get("/nothing").status_code == 401  # not even which routes there are
    assert client.get("/ui/app.js").status_code == 200
    assert client.get("/ui/../v1/collections").status_code == 401


def test_elsewhere_than_on_this_machine_a_key_is_needed_from_the_start(engine: SearchEngine) -> None:
    with TestClient(patient_app(engine, require_key=True), base_url=ORIGIN) as client:
        assert client.get("/v1/collections").status_code == 401
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer ds_00000000_" + "A" * 43},
        {"Authorization": "Basic {key}"},
        {"Authorization": "Bearer {key}x"},
        {"Authorization": "Bearer {shorter}"},
        {"X-Api-Key": "{key}"},
    ],
)
def test_what_is_no_key_opens_nothing(client: TestClient, keys: ApiKeys, given: dict[str, str]) -> None:
    key, _ = keys.create("somebody", "admin")
    headers = {name: value.format(key=key, shorter=key[:-1]) for name, value in given.items()}
    assert client.get("/v1/collections", headers=headers).status_code == 401
    assert client.get("/v1/collections", headers=bearer(key)).status_code == 200


@pytest.mark.parametrize("given", ["bearer {key}", "BEARER {key}", "Bearer   {key} "])
def test_the_scheme_is_told_without_its_case_or_blanks(client: TestClient, keys: ApiKeys, given: str) -> None:
    key, _ = keys.create("somebody", "read")
    headers = {"Authorization": given.format(key=key)}
    assert client.get("/v1/collections", headers=headers).status_code == 200


def test_a_revoked_key_opens_nothing_at_once_and_keys_stay_required(
    client: TestClient, keys: ApiKeys
) -> None:
    key, made = keys.create("somebody", "read")
    assert client.get("/v1/collections", headers=bearer(key)).status_code == 200
    keys.revoke(made.id)
    assert client.get("/v1/collections", headers=bearer(key)).status_code == 401
    refused = client.get("/v1/collections")
    assert refused.status_code == 401
    assert "every key of this service was revoked" in refused.json()["detail"]
    keys.path.unlink()
    keys.path.with_name("keys.mark").unlink()  # even so, until the server is started again
    assert client.get("/v1/collections").status_code == 401


def test_a_damaged_file_opens_nothing(client: TestClient, keys: ApiKeys) -> None:
    key, _ = keys.create("somebody", "admin")
    keys.path.write_text('{"format": 1, "keys": [')
    answered = client.get("/v1/collections", headers=bearer(key))
    assert (answered.status_code, answered.json()["code"]) == (500, "corrupt_data")
    assert client.get("/healthz").status_code == 200


# ---- scopes


@pytest.mark.parametrize(
    "path",
    [
        "/v1/collections/papers/train/search",
        "/v1/collections/papers/models/search",
        "/v1/collections/search",
        "/v1/collections/papers/search\n",
        "/v1/collections/papers/documents\nx",
    ],
)
def test_a_path_that_only_looks_like_a_search_needs_more(path: str) -> None:
    assert needed_scope("POST", path) == "admin"


def test_the_key_is_named_to_the_routes(app: FastAPI, client: TestClient, keys: ApiKeys) -> None:
    @app.get("/v1/who")
    async def who(request: Request) -> dict[str, str | None]:
        return {"id": request.state.key_id}

    assert client.get("/v1/who").json() == {"id": None}
    key, made = keys.create("somebody", "read")
    assert client.get("/v1/who", headers=bearer(key)).json() == {"id": made.id}


# ---- the file


def test_the_file_holds_no_key_and_is_its_owners(keys: ApiKeys) -> None:
    key, made = keys.create("web shop", "read")
    text = keys.path.read_text()
    assert key not in text
    assert key.removeprefix(f"ds_{made.id}_") not in text
    assert json.loads(text)["keys"][0]["sha256"] == made.sha256
    if os.name == "posix":
        assert keys.path.stat().st_mode & 0o777 == 0o600
    assert ApiKeys(keys.path.parent).list() == [made]


def test_the_file_is_synced_before_it_takes_the_place_of_the_old_one(
    keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename may reach the medium before the content does: after a power cut the file would be empty."""
    synced: list[tuple[int, int]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        state = os.fstat(descriptor)
        synced.append((state.st_ino, state.st_size))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    _, made = keys.create("web shop", "read")
    for change in (lambda: keys.create("other", "write"), lambda: keys.revoke(made.id)):
        synced.clear()
        change()
        state = keys.path.stat()
        assert (state.st_ino, state.st_size) in synced
        assert synced[1][0] == keys.path.parent.stat().st_ino  # the new name, too: a revocation stays one


def test_a_change_waits_for_that_of_another_process(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads the file, adds its key and writes: without a lock of the file one of two would be lost."""
    _, made = keys.create("web shop", "read")
    monkeypatch.setattr(keys_module, "FileLock", lambda path, timeout: FileLock(path, timeout=0))
    other = ApiKeys(keys.path.parent)
    with other._alone():  # pyright: ignore[reportPrivateUsage]
        for change in (lambda: keys.create("other", "read"), lambda: keys.revoke(made.id)):
            with pytest.raises(Timeout):
                change()
        assert keys.list() == [made]
    keys.create("other", "read")
    assert len(other.list()) == 2


def test_secrets_are_compared_in_constant_time_known_or_not(
    keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One comparison of equal lengths for a key, a wrong secret, an unknown id and what is no key at all."""
    key, made = keys.create("web shop", "read")
    compared: list[tuple[int, int]] = []

    def noted(one: str, other: str) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", noted)
    given = [key, f"ds_{made.id}_" + "A" * 43, "ds_00000000_" + "A" * 43, "nothing"]
    assert [keys.holder(one) for one in given] == [made, None, None, None]
    assert compared == [(64, 64)] * 4


def test_keys_differ_and_stay_apart(keys: ApiKeys) -> None:
    made = [keys.create(f"k{i}", "read") for i in range(20)]
    assert len({text for text, _ in made}) == len({key.id for _, key in made}) == 20
    for text, key in made:
        assert keys.holder(text) == key
        assert keys.holder(text.replace(key.id, made[0][1].id)) in (None, made[0][1])
    mixed = made[0][0].replace(made[0][1].id, made[1][1].id)
    assert keys.holder(mixed) is None


def test_what_cannot_be_a_key_is_refused(keys: ApiKeys, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="scope='root'; use read, write, admin"):
        keys.create("x", "root")
    for name in ("", "  ", "x" * 101, "a\nb"):
        with pytest.raises(InvalidRequest, match="use 1 to 100 printable characters"):
            keys.create(name, "read")
    with pytest.raises(NotFound, match="no key 'nobody'; there are: none yet"):
        keys.revoke("nobody")
    keys.path.parent.mkdir(exist_ok=True)
    right = {"id": "a", "name": "x", "scope": "read", "created": "", "sha256": ""}
    strange = json.dumps({"format": 1, "keys": [right, {**right, "id": "b", "scope": "root"}]})
    for text in ("[]", '{"format": 2, "keys": []}', '{"format": 1, "keys": [{"id": "x"}]}', "\xff", strange):
        keys.path.write_text(text, encoding="latin-1")
        with pytest.raises(CorruptData, match="no key opens anything"):
            keys.list()


# ---- other sites' pages


def test_origins_can_be_allowed_and_are_told_so(engine: SearchEngine, keys: ApiKeys) -> None:
    site = "https://search.example"
    keys.create("somebody", "read")
    with TestClient(patient_app(engine, origins=[site]), base_url=ORIGIN) as client:
        asked = {"Origin": site, "Access-Control-Request-Method": "POST"}
        granted = client.options(SEARCH, headers=asked)
        assert granted.status_code == 200
        assert granted.headers["access-control-allow-origin"] == site
        answered = client.get("/healthz", headers={"Origin": site})
        assert answered.headers["access-control-allow-origin"] == site
        other = client.get("/healthz", headers={"Origin": "https://evil.example"})
        assert other.status_code == 403
        assert "access-control-allow-origin" not in other.headers
