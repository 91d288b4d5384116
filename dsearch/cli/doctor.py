"""`dsearch doctor`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import typer

from dsearch.cli import options
from dsearch.cli.session import print_json
from dsearch.errors import DsearchError

if TYPE_CHECKING:
    from dsearch.config import Settings

_PACKAGES = ("torch", "faiss-cpu", "sentence-transformers", "transformers", "bm25s", "numpy", "fastapi")
_BACKENDS = ("onnxruntime", "openvino")


def doctor(
    encoder: options.EncoderName = None, threads: options.Threads = None, json: options.AsJson = False
) -> None:
    """Say what this installation is: versions, encoder, FAISS and BLAS, threads, GPU, and what is wrong."""
    import platform

    from dsearch.config import load_settings

    settings = load_settings(encoder=encoder, threads=threads)
    from dsearch.threads import available_cores, set_threads

    count = set_threads(settings.threads)
    import faiss
    import torch
    from threadpoolctl import threadpool_info

    found: dict[str, Any] = {
        "dsearch": version("dsearch"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in (*_PACKAGES, *_BACKENDS)},
        "threads": {"budget": count, "cores": available_cores(), "pools": _pools(threadpool_info())},
        "faiss": faiss.get_compile_options().strip(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "encoder": {**_encoder(settings.encoder), **_runs_by(settings)},
        "home": str(settings.home),
    }
    if json:
        print_json(found)
    else:
        _print(found)
    if "problem" in found["encoder"]:
        raise typer.Exit(1)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _pools(pools: list[dict[str, Any]]) -> list[str]:
    return [f"{pool['internal_api']} {pool.get('version') or ''}: {pool['num_threads']}" for pool in pools]


def _encoder(name: str) -> dict[str, Any]:
    from dsearch.encoder.weights import find_weights

    try:
        weights = find_weights(name)
    except DsearchError as error:
        return {"name": name, "problem": str(error)}
    return {"name": name, "folder": str(weights.folder), "sha256": weights.sha256}


def _runs_by(settings: Settings) -> dict[str, Any]:
    """The back end that a start without --backend takes."""
    from dsearch.encoder import CACHE_NAME, choice_of

    if settings.backend not in (None, "auto"):
        return {"backend": settings.backend}
    try:
        known = choice_of(settings.encoder, settings.home / CACHE_NAME, dtype=settings.dtype)
    except DsearchError:
        return {}
    if known is not None:
        return {"backend": f"{known.backend} (measured; dsearch backends shows it)"}
    return {"backend": f"torch {settings.dtype or 'float32'}"}


def _print(found: dict[str, Any], indent: str = "") -> None:
    for key, value in found.items():
        if isinstance(value, dict):
            typer.echo(f"{indent}{key}")
            _print(value, indent + "  ")
        elif isinstance(value, list):
            typer.echo(f"{indent}{key:<22} {', '.join(map(str, value))}")
        else:
            typer.echo(f"{indent}{key:<22} {'none' if value is None else value}")
