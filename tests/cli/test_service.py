"""`dsearch config`, `dsearch keys`, and where `dsearch serve` refuses to listen."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest
from support.fakes import HashingEncoder

from dsearch import service
from dsearch.cli import main
from dsearch.cli.commands.serve import is_loopback
from dsearch.cluster import connection, ingress
from dsearch.config import Settings
from dsearch.encoder import Encoder
from dsearch.service import telemetry
from dsearch.service.keys import ApiKeys


class Terminal(Protocol):
    def __call__(self, *arguments: str) -> tuple[int, str, str]: ...


@pytest.fixture
def dsearch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSEARCH_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dsearch", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_config_shows_every_key_with_its_source(
    dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dsearch.toml").write_text("port = 9000\nhost = '127.0.0.2'\n")
    monkeypatch.setenv("DSEARCH_PORT", "9001")
    code, out, _ = dsearch("config", "--json")
    assert code == 0
    shown = {one["key"]: one for one in json.loads(out)}
    assert shown.keys() == Settings.model_fields.keys()
    assert (shown["port"]["value"], shown["port"]["source"]) == (9001, "DSEARCH_PORT")
    assert (shown["host"]["value"], shown["host"]["source"]) == ("127.0.0.2", "dsearch.toml")
    assert (shown["device"]["value"], shown["device"]["source"]) == ("cpu", "default")
    kinds = [shown[name]["value"] for name in ("rebuild_share", "query_timeout_ms", "home", "cache")]
    assert kinds == [0.05, 2000, str(tmp_path / "home"), None]  # numbers are numbers
    assert all(one["meaning"] for one in shown.values())
    code, out, _ = dsearch("config")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == list(Settings.model_fields)
    assert "'9001'" in next(line for line in lines if line.startswith("port"))


def test_an_installation_without_its_encoder_is_a_failure(dsearch: Terminal) -> None:
    code, out, _ = dsearch("doctor", "--encoder", "nobody/nothing", "--json")
    report = json.loads(out)["encoder"]
    assert (code, report["name"], "folder" in report) == (1, "nobody/nothing", False)
    assert "nobody/nothing" in report["problem"]
    code, out, _ = dsearch("doctor", "--encoder", "all-MiniLM-L6-v2", "--json")
    report = json.loads(out)["encoder"]
    assert (code, "problem" in report, len(report["sha256"])) == (0, False, 64)


def test_keys_are_made_listed_and_revoked(dsearch: Terminal, tmp_path: Path) -> None:
    code, out, err = dsearch("keys", "create", "--name", "web shop", "--scope", "write")
    assert code == 0
    key = out.strip()
    assert "from now on every request needs a key" in err
    holder = ApiKeys(tmp_path / "home").holder(key)
    assert holder is not None
    assert (holder.name, holder.scope) == ("web shop", "write")
    code, out, err = dsearch("keys", "create", "--name", "other")
    assert "from now on" not in err
    made = json.loads(dsearch("keys", "create", "--name", "web shop", "--scope", "write", "--json")[1])
    again = ApiKeys(tmp_path / "home").holder(made["key"])
    assert again is not None
    assert (again.id, again.scope) == (made["id"], "write")
    assert dsearch("keys", "revoke", again.id)[0] == 0
    listed = json.loads(dsearch("keys", "list", "--json")[1])
    assert [one["scope"] for one in listed] == ["write", "read", "write"]
    assert [set(one) for one in listed] == [{"id", "name", "scope", "created", "revoked"}] * 3
    assert holder.sha256 not in dsearch("keys", "list", "--json")[1]
    assert key not in dsearch("keys", "list")[1]
    assert dsearch("keys", "revoke", holder.id)[0] == 0
    assert ApiKeys(tmp_path / "home").holder(key) is None
    assert "revoked" in dsearch("keys", "list")[1].splitlines()[0]
    for arguments, said in (
        (("revoke", "nobody"), "no key 'nobody'"),
        (("create", "--name", "x", "--scope", "root"), "use read, write, admin"),
    ):
        code, _, err = dsearch("keys", *arguments)
        assert code == 1
        assert said in err


def test_other_machines_are_not_served_without_a_key(dsearch: Terminal) -> None:
    for host in ("0.0.0.0", "192.168.1.2", "::", "search.example"):
        code, _, err = dsearch("serve", "--host", host)
        assert code == 1
        assert "there is no API key; bind to 127.0.0.1, or make one with: dsearch keys create" in err
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "", "localhost.example")] == [False] * 4


class Reached(Exception):
    """What a test looks at was called; nothing is served."""


@pytest.mark.parametrize(("host", "required"), [("127.0.0.1", False), ("0.0.0.0", True)])
@pytest.mark.parametrize("ray", [False, True])
def test_elsewhere_than_on_this_machine_every_request_needs_a_key(
    dsearch: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, required: bool, ray: bool
) -> None:
    """From start to end, also when the last key is removed while the server runs: the service is told so."""
    settings: list[Any] = []

    def create_app(*_: Any, **options: Any) -> None:
        settings.append(options["require_key"])
        raise Reached

    def deploy(chosen: ingress.IngressSettings, **_: Any) -> None:
        settings.append(chosen.require_key)
        raise Reached

    monkeypatch.setattr(service, "create_app", create_app)
    monkeypatch.setattr(telemetry, "set_up_logs", lambda *_: None)
    monkeypatch.setattr(connection, "connect", lambda _: None)
    monkeypatch.setattr(ingress, "deploy", deploy)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    ApiKeys(tmp_path / "home").create("web shop", "read")
    with pytest.raises(Reached):
        dsearch("serve", "--host", host, "--port", "0", *(("--ray", "auto") if ray else ()))
    assert settings == [required]


def test_keys_load_neither_torch_nor_fastapi(tmp_path: Path) -> None:
    code = (
        "import sys; from dsearch.service.keys import ApiKeys; "
        "assert not {'torch', 'fastapi', 'faiss'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
