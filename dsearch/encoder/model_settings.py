"""Settings of a sentence-transformers model that dsearch does not follow: refused, or named.

    modules.json                        a Router: other modules for queries than for documents
    1_Pooling/config.json               include_prompt: false
    config_sentence_transformers.json   truncate_dim; prompts of other names than `query` and `document`

They are read from the model's files, so that an encoder that was exported before is refused too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from dsearch.encoder.text_encoder import Role

_ROLES: tuple[str, ...] = get_args(Role)
_ROUTERS = {"Router", "Asym"}  # the second in models saved before sentence-transformers 5
_CONFIG = "config_sentence_transformers.json"


def settings_problem(folder: Path) -> str | None:
    """Say why embeddings of the model in a folder would not be those that sentence-transformers gives.

    Returns:
        the setting and a remedy; None where they are the same.
    """
    config = _settings(folder / _CONFIG)
    if config.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        return None  # sentence-transformers takes the weights of such a model without its settings
    has_prompt = any(saved_prompts(folder).get(role) for role in _ROLES)
    for kind, settings in _modules(folder):
        if kind in _ROUTERS:
            return (
                f"its {kind} sends queries through other modules than documents, and dsearch would send both "
                "through the same; give an encoder without one"
            )
        if has_prompt and _settings(settings).get("include_prompt") is False:
            return (
                "its pooling leaves out the tokens of the prompt (include_prompt is false in "
                f"{settings.relative_to(folder).as_posix()}), and dsearch would pool them; give an encoder "
                "that pools them"
            )
    if (numbers := config.get("truncate_dim")) is not None:
        return (
            f"it cuts embeddings to {numbers} numbers (truncate_dim in {_CONFIG}), and dsearch does not; "
            "give a copy of its folder without this setting, which has whole embeddings, or another encoder"
        )
    return None


def unused_prompts(prompts: Mapping[str, str | None] | None) -> str | None:
    """Return a sentence that names prompts of other names than `query` and `document`; None without such.

    A model with a prompt for queries and one for documents has its others for tasks that dsearch does not do.

    Args:
        prompts: prefixes of texts, by their names.
    """
    given = [name for name, text in (prompts or {}).items() if text]
    others = [name for name in given if name not in _ROLES]
    if not others or set(_ROLES) <= set(given):
        return None
    return (
        f"the encoder has prompts named {', '.join(others)}: none of them is used, only those named "
        f"{' and '.join(_ROLES)} are"
    )


def saved_prompts(folder: Path) -> Mapping[str, Any]:
    """Return the prompts of the model in a folder, by their names."""
    prompts = _settings(folder / _CONFIG).get("prompts")
    return prompts if isinstance(prompts, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Class name of each module, and the file of its settings."""
    modules = _json(folder / "modules.json")
    for module in modules if isinstance(modules, list) else ():
        if isinstance(module, dict):
            kind, path = str(module.get("type", "")), str(module.get("path", ""))
            yield kind.rpartition(".")[2], folder / path / "config.json"


def _settings(file: Path) -> dict[str, Any]:
    content = _json(file)
    return content if isinstance(content, dict) else {}


def _json(file: Path) -> Any:
    """Content of a file; None without a file that sentence-transformers could read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
