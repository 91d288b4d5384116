"""Each setting of a server reaches what it is for, on this machine and on a cluster."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from support.cli.recorder import Recorder, holds
from support.cli.terminal import Terminal

from dsearch.cli.commands import serve as serve_module
from dsearch.config import Settings, load_settings
from dsearch.engine.indexing.ingest import Ingestion

EVERYWHERE = {
    "host": ("127.0.0.2", "127.0.0.2"),
    "hosts": ("one.example, two.example", "two.example"),
    "origins": ("https://a.example, https://b.example", "https://b.example"),
    "query_timeout_ms": ("1234", 1.234),
    "encoder": ("given-encoder", "given-encoder"),
    "device": ("cuda:1", "cuda:1"),
    "dtype": ("bfloat16", "bfloat16"),
    "backend": ("openvino", "openvino"),
    "cache": ("/given-cache", "/given-cache"),
    "explore": ("0.125", 0.125),
    "next_encoder": ("given-next", "given-next"),
    "log_level": ("debug", "debug"),
    "log_format": ("json", "json"),
}
HERE = {
    **EVERYWHERE,
    "rerankers": ("given-a, given-b", "given-b"),
    "task_memory_bytes": ("123456789", 123456789),
    "model_upload_bytes": ("12345678", 12345678),
    "port": ("12345", 12345),
}
ON_A_CLUSTER = {**EVERYWHERE, "threads": ("3", 3), "port": ("12345", 12345)}

OF_THE_ENGINE = {
    "home": "every command's",
    "threads": "set before anything is loaded",
    "query_cache_bytes": "cli/test_session.py",
    "rebuild_share": "cli/test_session.py",
    "api_key": "of commands that ask a server",
}
"""Settings of a server that are no part of what it is started with, and where they are tested."""


@pytest.fixture
def recorder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serve_module, "threading", MagicMock())  # nobody waits for a signal
    monkeypatch.setattr(serve_module, "signal", MagicMock())
    recorder = Recorder(Terminal(tmp_path / "home", capsys, monkeypatch), monkeypatch, by_server=False)
    recorder.outside.LOOPBACK_HOSTS = ()
    recorder.outside.store_documents.return_value = (0, 0, 0)
    return recorder


def lost(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, settings: dict[str, tuple[str, Any]], *options: str
) -> list[str]:
    """Settings whose value is in no call of `dsearch serve`."""
    missing = []
    without = recorder.calls("serve", *options)
    for name, (text, value) in settings.items():
        with monkeypatch.context() as one:
            one.setenv(f"DSEARCH_{name.upper()}", text)
            having = recorder.calls("serve", *options)
        if holds(without, value) or not holds(having, value):
            missing.append(f"{name}={text}: {recorder.refusal} {having}")
    return missing


def test_each_setting_reaches_the_server(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost(recorder, monkeypatch, HERE) == []


def test_no_setting_is_forgotten() -> None:
    assert {*HERE, *OF_THE_ENGINE} == {*Settings.model_fields}


def test_each_setting_reaches_the_cluster(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lost(recorder, monkeypatch, ON_A_CLUSTER, "--ray", "auto") == []


ENCODERS = {name: EVERYWHERE[name] for name in ("device", "dtype", "backend", "cache", "next_encoder")}


def test_each_setting_of_encoders_reaches_those_that_index_on_a_cluster(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given() -> Any:
        return [call for call in recorder.calls("index", "-c", "papers", "--ray", "auto") if _encodes(call)]

    for name, (text, value) in ENCODERS.items():
        with monkeypatch.context() as one:
            one.setenv(f"DSEARCH_{name.upper()}", text)
            assert holds(given(), value), name


def _encodes(call: Any) -> bool:
    return call[0] == "encode_on_cluster"


@pytest.mark.parametrize("command", [("serve",), ("index", "-c", "papers")])
def test_folders_of_encoders_are_found_from_any_folder(
    recorder: Recorder, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The processes of a cluster start elsewhere."""
    for name in ("encoder", "next_encoder", "cache"):
        (tmp_path / f"{name}-folder").mkdir()
        monkeypatch.setenv(f"DSEARCH_{name.upper()}", f"{name}-folder")
    calls = recorder.calls(*command, "--ray", "auto")
    for name in ("encoder", "next_encoder", "cache"):
        assert holds(calls, str(tmp_path / f"{name}-folder")), (name, calls)


@pytest.mark.parametrize("options", [(), ("--ray", "auto")])
def test_a_key_is_required_where_other_machines_reach(recorder: Recorder, options: tuple[str, ...]) -> None:
    for host, required in (("127.0.0.2", False), ("0.0.0.0", True), ("::1", False), ("10.0.0.7", True)):
        calls = recorder.calls("serve", "--host", host, *options)
        assert _pair(calls, required), (host, calls)


@pytest.mark.parametrize("options", [(), ("--ray", "auto")])
def test_an_address_of_ipv6_stands_in_brackets(recorder: Recorder, options: tuple[str, ...]) -> None:
    """Clients write it so in the Host header, and commands find the server by the address that it tells."""
    calls = recorder.calls("serve", "--host", "fd00::1", *options)
    assert holds(calls, "[fd00::1]"), calls  # among the hosts
    if options:
        return
    for host, here in (("fd00::1", "[fd00::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")):
        ((_, ((address,), _)),) = [
            (name, of) for name, *of in recorder.calls("serve", "--host", host) if name.endswith("announce")
        ]
        assert address.startswith(f"http://{here}:"), address


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), ("localhost", socket.AF_INET), ("::1", socket.AF_INET6)],
)
def test_a_server_listens_at_addresses_of_both_kinds(host: str, family: int) -> None:
    if family == socket.AF_INET6 and not _has_ipv6():
        pytest.skip("this machine has no address of IPv6")
    with serve_module.bound(host, 0) as listening:
        assert listening.family == family


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def _pair(record: Any, required: bool) -> bool:
    """`["require_key", …]` is somewhere in the record."""
    if not isinstance(record, list):
        return False
    return record == ["require_key", required] or any(_pair(item, required) for item in record)


def test_a_server_writes_to_its_home_and_keeps_the_index_current(recorder: Recorder) -> None:
    ((_, _, options),) = [call for call in recorder.calls("serve") if call[0] == "opened_engine"]
    assert ["readonly", False] in options
    assert ["rebuild", True] in options


@pytest.mark.parametrize("options", [(), ("--ray", "auto")])
def test_a_server_listens_where_it_was_told(recorder: Recorder, options: tuple[str, ...]) -> None:
    """Not only are requests for that host answered."""
    calls = recorder.calls("serve", "--host", "127.0.0.2", "--port", "12345", *options)
    (at,) = [places for name, places, _ in calls if name == "bound"]
    assert at == ["127.0.0.2", 12345]
    if options:
        ((_, _, deployed),) = [call for call in calls if call[0] == "deploy"]
        assert ["host", "127.0.0.2"] in deployed


@pytest.mark.parametrize("following", [None, "given-next"])
def test_collections_move_to_the_next_encoder_and_without_one_to_the_present(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, following: str | None
) -> None:
    monkeypatch.setenv("DSEARCH_ENCODER", "given-encoder")
    monkeypatch.setenv("DSEARCH_DEVICE", "cuda:1")
    if following is not None:
        monkeypatch.setenv("DSEARCH_NEXT_ENCODER", following)
    ((_, _, options),) = [call for call in recorder.calls("serve") if call[0] == "create_app"]
    assert ["migrates_to", following or "given-encoder"] in options
    assert ["device", "cuda:1"] in options  # of the tasks: that of the encoder is no proof of it


def test_a_release_is_that_of_its_number_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is split once."""
    split: list[int] = []

    def splitting(store: Any, generation: Any, folder: Path, shards: int) -> str:
        folder.mkdir(parents=True)
        split.append(shards)
        return f"{shards} shards"

    monkeypatch.setattr("dsearch.cluster.release.split", splitting)
    monkeypatch.setattr("dsearch.cluster.release.Release.read", lambda folder: folder.name)
    collection = MagicMock(stale=False)
    collection.store.path = tmp_path
    collection.snapshot.generation.number = 3
    collection.snapshot.generation.manifest.digest = "0123456789abcdef"
    made = {shards: serve_module._split(collection, shards) for shards in (2, 4)}
    assert [made[shards][0] for shards in (2, 4)] == ["2 shards", "4 shards"]
    assert serve_module._split(collection, 2) == (made[2][1].name, made[2][1])
    assert split == [2, 4]


@pytest.mark.parametrize("gone", [["a", "b"], []])
def test_documents_whose_files_are_gone_go_when_a_cluster_encodes(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, gone: list[str]
) -> None:
    collection = MagicMock()
    collection.delete.side_effect = lambda ids: MagicMock(deleted=len(ids))
    collection.ingest.return_value = Ingestion(0, 0, 0, 0, 0.0)
    recorder.outside.encode_on_cluster.return_value = 5
    report = serve_module.ingest_on_ray(collection, [], "auto", load_settings(), 1, MagicMock(), lambda: gone)
    assert (report.deleted, report.encoded) == (len(gone), 5)
    assert [call.args for call in collection.delete.call_args_list] == ([(gone,)] if gone else [])
