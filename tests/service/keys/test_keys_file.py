"""Losses of keys.json: cut, flipped, deleted, put back: nobody gets in, and the way out is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from support.guarded import guarded
from support.service.apps import patient_app
from support.syncs import synced_nodes

from dsearch.engine import SearchEngine
from dsearch.errors import CorruptData
from dsearch.service import keys as keys_module
from dsearch.service.keys import ApiKeys

checked = guarded(ApiKeys, "_keys", "_seen", "_sequence")


@pytest.fixture
def keys(tmp_path: Path) -> ApiKeys:
    return ApiKeys(tmp_path)


def again(keys: ApiKeys) -> ApiKeys:
    """As another process opens it."""
    return ApiKeys(keys.path.parent)


def test_a_flip_of_any_bit_is_noticed_or_changes_no_key(keys: ApiKeys) -> None:
    keys.create("web shop", "read")
    keys.create("owner", "admin")
    listed, whole = keys.list(), keys.path.read_bytes()
    refused = 0
    for place in range(len(whole)):
        for bit in (0, 3, 6):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            keys.path.write_bytes(flipped)
            try:
                assert again(keys).list() == listed
            except CorruptData:
                refused += 1
    assert refused > 2 * len(whole)  # the others are white space for white space
    keys.path.write_bytes(whole)
    assert again(keys).list() == listed


@pytest.mark.parametrize("length", [0, 1, 40, -1])
def test_a_file_that_was_cut_lets_nobody_in_until_it_is_moved_away(keys: ApiKeys, length: int) -> None:
    keys.create("web shop", "read")
    keys.path.write_bytes(keys.path.read_bytes()[:length])
    for refused in (again(keys).list, lambda: again(keys).create("other", "read")):
        with pytest.raises(CorruptData, match=r"move it away.*dsearch keys create --name NAME"):
            refused()
    keys.path.unlink()
    _, made = again(keys).create("other", "read")
    assert again(keys).list() == [made]


def test_a_file_that_was_deleted_opens_nothing_and_is_begun_again(keys: ApiKeys) -> None:
    key, _ = keys.create("web shop", "read")
    keys.path.unlink()
    with pytest.raises(CorruptData, match=r"keys\.json is missing though 1 changes.*make a new one with:"):
        _ = again(keys).has_keys
    fresh, made = again(keys).create("other", "read")
    assert again(keys).holder(fresh) == made
    assert again(keys).holder(key) is None


def test_a_copy_of_before_a_revocation_opens_nothing(keys: ApiKeys) -> None:
    key, made = keys.create("web shop", "read")
    shutil.copy(keys.path, before := keys.path.with_name("before"))
    keys.revoke(made.id)
    shutil.copy(before, keys.path)
    with pytest.raises(CorruptData, match="revocations may be lost"):
        again(keys).holder(key)


def test_a_deleted_file_that_comes_back_opens_nothing(keys: ApiKeys) -> None:
    key, _ = keys.create("web shop", "read")
    keys.create("owner", "admin")
    shutil.copy(keys.path, before := keys.path.with_name("before"))
    keys.path.unlink()
    again(keys).create("other", "read")
    shutil.copy(before, keys.path)
    with pytest.raises(CorruptData, match="revocations may be lost"):
        again(keys).holder(key)


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"sequence": 9, "digest": "0"}'])
def test_without_its_mark_the_file_counts(keys: ApiKeys, content: bytes | None) -> None:
    _, made = keys.create("web shop", "read")
    mark = keys.path.with_name("keys.mark")
    mark.unlink()
    if content is not None:
        mark.write_bytes(content)
    assert again(keys).list() == [made]
    again(keys).create("other", "read")
    keys.path.unlink()
    with pytest.raises(CorruptData, match="2 changes"):  # the mark is there again
        again(keys).list()


def test_a_home_that_gave_up_both_files_is_one_without_keys(keys: ApiKeys) -> None:
    keys.create("web shop", "read")
    keys.path.unlink()
    keys.path.with_name("keys.mark").unlink()
    assert not again(keys).has_keys


def test_a_file_of_an_earlier_release_is_read_and_gets_its_digest_with_the_next_change(keys: ApiKeys) -> None:
    key, made = keys.create("web shop", "read")
    content = json.loads(keys.path.read_text())
    keys.path.write_text(json.dumps({name: content[name] for name in ("format", "keys")}))
    keys.path.with_name("keys.mark").unlink()
    assert again(keys).holder(key) == made
    again(keys).create("other", "read")
    assert set(json.loads(keys.path.read_text())) == {"format", "keys", "sequence", "digest"}
    keys.path.write_text(keys.path.read_text().replace("web shop", "wet shop"))
    with pytest.raises(CorruptData, match="not what was written"):
        again(keys).list()


def test_file_and_mark_are_synced_in_that_order(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that is durable before its file would lock everybody out after a power cut."""
    synced = synced_nodes(monkeypatch)
    for change in (lambda: keys.create("a", "read"), lambda: keys.revoke(next(iter(keys.list())).id)):
        synced.clear()
        change()
        folder, mark = keys.path.parent, keys.path.with_name("keys.mark")
        assert synced == [path.stat().st_ino for path in (keys.path, folder, mark, folder)]


def test_after_the_last_revocation_the_service_says_how_to_make_a_key(engine: SearchEngine) -> None:
    keys = ApiKeys(engine.home.path)
    text, made = keys.create("somebody", "admin")
    with TestClient(patient_app(engine), base_url="http://localhost") as client:
        keys.revoke(made.id)
        for headers in ({}, {"Authorization": f"Bearer {text}"}):
            answered = client.get("/v1/collections", headers=headers)
            assert answered.status_code == 401
            assert answered.json()["detail"] == (
                "every key of this service was revoked; let it answer this machine without keys again "
                "(dsearch keys clear, and a restart), or make a new one where it runs with: "
                "dsearch keys create --name NAME --scope admin"
            )
        text, _ = ApiKeys(engine.home.path).create("again", "read")
        headers = {"Authorization": f"Bearer {text}"}
        assert client.get("/v1/collections", headers=headers).status_code == 200
        keys.path.unlink()
        answered = client.get("/v1/collections", headers=headers)
        assert (answered.status_code, answered.json()["code"]) == (500, "corrupt_data")
        assert "make a new one with: dsearch keys create" in answered.json()["detail"]


def test_a_key_that_is_revoked_again_was_revoked_when_it_was(
    keys: ApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made = keys.create("owner", "admin")
    times = iter(["2026-01-01T00:00:00+00:00", "2026-02-02T00:00:00+00:00"])
    monkeypatch.setattr(keys_module, "_now", lambda: next(times))
    for _ in range(2):
        assert keys.revoke(made.id).revoked == "2026-01-01T00:00:00+00:00"


def test_a_home_whose_keys_were_cleared_is_one_without_keys(keys: ApiKeys) -> None:
    text, key = keys.create("owner", "admin")
    keys.revoke(key.id)
    assert keys.clear() == 1
    assert keys.list() == again(keys).list() == []
    _, later = again(keys).create("owner", "admin")
    assert again(keys).list() == [later]
    assert again(keys).holder(text) is None
