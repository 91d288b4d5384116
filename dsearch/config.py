"""Settings of a process: defaults < dsearch.toml < DSEARCH_* variables < command line.

An unknown key is an error. Configuration stops at the edge: the command line and the service read it and pass
plain arguments on.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from dsearch.declared import suggestion
from dsearch.errors import InvalidRequest

DEFAULT_FILE = Path("dsearch.toml")
_PREFIX = "DSEARCH_"
_FILE_VARIABLE = "DSEARCH_CONFIG"


class Settings(BaseSettings):
    """Everything that can be set; each field is a key of dsearch.toml and, in capitals, DSEARCH_<FIELD>."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    home: Path = Field(Path("index"), description="folder of the built collections")
    encoder: str = Field(
        "all-MiniLM-L6-v2", description="a sentence-transformers model, or the folder of one"
    )
    next_encoder: str | None = Field(
        None,
        description="encoder that a running server migrates collections to (POST …/migrate), and that serves "
        "the migrated ones; the server's own when unset",
    )
    device: str = Field("cpu", description="device of the encoder and of training: cpu, cuda, cuda:N, mps")
    backend: str = Field(
        "auto",
        description="back end of the encoder: torch, openvino, or auto: OpenVINO where it is installed and "
        "equal to torch, exported once in the background; else torch",
    )
    dtype: str | None = Field(
        None,
        description="precision of the encoder: float32 or bfloat16; when unset what its back end does best",
    )
    cache: Path | None = Field(
        None,
        description="folder of exported encoders; the user's cache folder when unset, for all homes",
    )
    threads: int | None = Field(
        None, ge=1, description="threads of all native libraries; all cores when unset"
    )
    api_key: SecretStr | None = Field(
        None, description="API key that commands send to a running server, if it requires one"
    )
    host: str = Field("127.0.0.1", description="address that the service binds to")
    port: int = Field(8080, ge=0, le=65535, description="port that the service binds to")
    hosts: str = Field(
        "",
        description="host names that the service answers to besides those of this machine, comma-separated; "
        "* for any",
    )
    origins: str = Field(
        "", description="sites whose pages may use the service from a browser, comma-separated (CORS)"
    )
    rerankers: str = Field(
        "",
        description="rerankers that a training over HTTP may name, comma-separated: models on a hub, or "
        "folders; none by default, so that no request makes the server load a model",
    )
    query_timeout_ms: int = Field(
        2000, ge=1, le=30_000, description="timeout of a search without X-Timeout-Ms"
    )
    query_cache_bytes: int = Field(
        64 * 1024 * 1024, ge=0, description="size of the cache of query embeddings; 0 for none"
    )
    rebuild_share: float = Field(
        0.05,
        ge=0,
        description="share of a collection written or deleted since its last build from which the service "
        "rebuilds its index; 0 for never",
    )
    explore: float = Field(
        0.0,
        ge=0,
        le=0.2,
        description="share of search pages on which two random positions may swap, for learning from clicks",
    )
    task_memory_bytes: int | None = Field(
        None, ge=1, description="memory limit of a task (training, evaluation); none when unset"
    )
    model_upload_bytes: int = Field(
        512 * 1024 * 1024,
        ge=1024 * 1024,
        description="size of the largest trained model that clients may send (POST …/models/save); all "
        "weights of the default encoder are 91 MB",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="level of the log on stderr; info has a line for each request"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="format of the log: text for people, json with one object a line"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: command line, then variables, then the file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, _in_file(_file()))


def load_settings(**values: Any) -> Settings:
    """Settings of this process; what is None in `values` was not given.

    Raises:
        InvalidRequest: an unknown key, or a value that is not allowed; the message names both.
    """
    _check_variables()
    named = os.environ.get(_FILE_VARIABLE)
    if named and not Path(named).is_file():
        raise InvalidRequest(f"{_FILE_VARIABLE}={named}: no such file; unset it, or give a TOML file")
    try:
        return Settings(**{key: value for key, value in values.items() if value is not None})
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"{named or DEFAULT_FILE}: not TOML ({error})") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{named or DEFAULT_FILE}: not UTF-8; save it so ({error})") from error
    except ValidationError as error:
        problems = [_in_words(problem["loc"], problem["msg"], problem["type"]) for problem in error.errors()]
        raise InvalidRequest(
            f"settings: {'; '.join(problems)}; use {', '.join(Settings.model_fields)}"
        ) from error


def _in_words(place: Sequence[str | int], message: str, kind: str) -> str:
    key = ".".join(map(str, place))
    if kind != "extra_forbidden":
        return f"{key}: {message}"
    return f"unknown key {key}{suggestion(key, Settings.model_fields)}"


@dataclass(frozen=True, slots=True)
class SettingInUse:
    """One setting: its key, its value, where that comes from, and what it means."""

    key: str
    value: Any
    source: str
    meaning: str


def settings_in_use() -> list[SettingInUse]:
    """Every setting of this process.

    Raises:
        InvalidRequest: as `load_settings`.
    """
    settings = load_settings()
    file = _file()
    in_file = _in_file(file)
    variables = {name.upper() for name in os.environ}  # pydantic reads them in any case
    in_use: list[SettingInUse] = []
    for key, field in Settings.model_fields.items():
        variable = _PREFIX + key.upper()
        source = variable if variable in variables else str(file) if key in in_file else "default"
        in_use.append(SettingInUse(key, getattr(settings, key), source, field.description or ""))
    return in_use


def _file() -> Path:
    return Path(os.environ.get(_FILE_VARIABLE) or DEFAULT_FILE)


def _in_file(file: Path) -> dict[str, Any]:
    """Settings of the file, none without one. A mark of the encoding (BOM) before them is passed over."""
    return tomllib.loads(file.read_text(encoding="utf-8-sig")) if file.is_file() else {}


def _check_variables() -> None:
    allowed = {_PREFIX + name.upper() for name in Settings.model_fields} | {_FILE_VARIABLE}
    unknown = sorted(name for name in os.environ if name.startswith(_PREFIX) and name not in allowed)
    if unknown:
        named = ", ".join(f"{name}{suggestion(name, allowed)}" for name in unknown)
        raise InvalidRequest(f"unknown variable {named}; use {', '.join(sorted(allowed))}")
