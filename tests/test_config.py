"""Settings: defaults, where each value comes from, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dsearch.config import Settings, load_settings, settings_in_use
from dsearch.errors import InvalidRequest

DEFAULTS: dict[str, Any] = {
    "home": Path("index"),
    "encoder": "all-MiniLM-L6-v2",
    "next_encoder": None,
    "device": "cpu",
    "backend": "auto",
    "dtype": None,
    "cache": None,
    "threads": None,
    "api_key": None,
    "host": "127.0.0.1",
    "port": 8080,
    "hosts": "",
    "origins": "",
    "rerankers": "",
    "query_timeout_ms": 2000,
    "query_cache_bytes": 64 * 1024 * 1024,
    "rebuild_share": 0.05,
    "explore": 0.0,
    "task_memory_bytes": None,
    "model_upload_bytes": 512 * 1024 * 1024,
    "log_level": "warning",
    "log_format": "text",
}
BOUNDS: dict[str, tuple[list[Any], list[Any]]] = {
    "threads": ([1, 64], [0, -1]),
    "port": ([0, 65535], [-1, 65536]),
    "query_timeout_ms": ([1, 30_000], [0, 30_001]),
    "query_cache_bytes": ([0], [-1]),
    "rebuild_share": ([0, 1.5], [-0.1]),
    "explore": ([0, 0.2], [-0.1, 0.21]),
    "task_memory_bytes": ([1], [0]),
    "model_upload_bytes": ([1024 * 1024], [1024 * 1024 - 1]),
    "log_level": (["debug", "error"], ["loud"]),
    "log_format": (["json"], ["xml"]),
}


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a file, and no variable of ours."""
    for name in [name for name in os.environ if name.upper().startswith("DSEARCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults() -> None:
    assert load_settings().model_dump() == DEFAULTS
    assert {one.key: (one.value, one.source) for one in settings_in_use()} == {
        key: (value, "default") for key, value in DEFAULTS.items()
    }
    assert all(one.meaning for one in settings_in_use())


@pytest.mark.parametrize("name", BOUNDS)
def test_values_at_their_bounds(name: str) -> None:
    allowed, refused = BOUNDS[name]
    for value in allowed:
        assert getattr(load_settings(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(InvalidRequest, match=rf"settings: {name}: .*; use home, encoder"):
            load_settings(**{name: value})


def test_the_command_line_counts_before_variables_and_these_before_the_file(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "dsearch.toml").write_text('host = "file"\nhosts = "file"\nport = 1\n')
    monkeypatch.setenv("DSEARCH_HOST", "variable")
    monkeypatch.setenv("DSEARCH_HOSTS", "variable")
    settings = load_settings(host="given", port=None)
    assert (settings.host, settings.hosts, settings.port) == ("given", "variable", 1)
    sources = {one.key: one.source for one in settings_in_use()}
    assert (sources["host"], sources["port"], sources["device"]) == (
        "DSEARCH_HOST",
        "dsearch.toml",
        "default",
    )


def test_a_variable_counts_in_any_case_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("dsearch_port", "9001")
    (port,) = (one for one in settings_in_use() if one.key == "port")
    assert (port.value, port.source) == (9001, "DSEARCH_PORT")


def test_another_file_is_named_by_a_variable(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "dsearch.toml").write_text("port = 1\n")
    (bare / "other.toml").write_text("port = 2\n")
    monkeypatch.setenv("DSEARCH_CONFIG", "other.toml")
    assert load_settings().port == 2
    assert {one.key: one.source for one in settings_in_use()}["port"] == "other.toml"
    (bare / "folder.toml").mkdir()
    for name in ("none.toml", "folder.toml"):
        monkeypatch.setenv("DSEARCH_CONFIG", name)
        with pytest.raises(InvalidRequest, match=f"DSEARCH_CONFIG={name}: no such file"):
            load_settings()


def test_a_variable_without_a_name_leaves_the_usual_file(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "dsearch.toml").write_text("port = 1\n")
    monkeypatch.setenv("DSEARCH_CONFIG", "")
    assert load_settings().port == 1
    assert {one.key: one.source for one in settings_in_use()}["port"] == "dsearch.toml"


def test_a_file_may_begin_with_the_mark_of_its_encoding(bare: Path) -> None:
    """Some editors and shells of Windows put it there."""
    (bare / "dsearch.toml").write_text("port = 1234\n", encoding="utf-8-sig")
    assert load_settings().port == 1234
    assert {setting.key: setting.source for setting in settings_in_use()}["port"] == "dsearch.toml"


def test_unknown_keys_and_files_that_are_none_are_refused(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "dsearch.toml").write_text("prot = 1\n")
    with pytest.raises(InvalidRequest, match=r"settings: unknown key prot .*port\?\); use home, encoder"):
        load_settings()
    (bare / "dsearch.toml").write_text("port =\n")
    with pytest.raises(InvalidRequest, match=r"dsearch\.toml: not TOML"):
        load_settings()
    for encoding in ("latin-1", "utf-16"):
        (bare / "dsearch.toml").write_text("port = 1  # für\n", encoding)
        with pytest.raises(InvalidRequest, match=r"dsearch\.toml: not UTF-8; save it so"):
            load_settings()
    (bare / "dsearch.toml").unlink()
    monkeypatch.setenv("DSEARCH_PROT", "1")
    with pytest.raises(
        InvalidRequest, match=r"variable DSEARCH_PROT .*DSEARCH_PORT\?\); use DSEARCH_API_KEY, "
    ):
        load_settings()


def test_settings_do_not_change_and_keys_are_not_shown() -> None:
    settings = load_settings(api_key="ds_secret")
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]
    assert "ds_secret" not in repr(settings)
    assert isinstance(settings, Settings)


def test_a_misspelt_setting_is_met_with_the_nearest_name(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEARCH_ENCODR", "x")
    with pytest.raises(InvalidRequest, match=r"unknown variable DSEARCH_ENCODR \(did you mean DSEARCH_ENC"):
        load_settings()
    monkeypatch.delenv("DSEARCH_ENCODR")
    (bare / "dsearch.toml").write_text("quary_timeout_ms = 5\n")
    with pytest.raises(
        InvalidRequest, match=r"key quary_timeout_ms \(did you mean query_timeout_ms\?\); use"
    ):
        load_settings()
