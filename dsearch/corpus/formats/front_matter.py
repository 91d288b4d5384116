"""Front matter of Markdown files: YAML between lines of `---`, TOML between lines of `+++`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from dsearch.corpus.records import plain_json

MOST = 64 * 1024  # characters

_BLOCK = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(.*?\n)??\1[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Split a text into its front matter and the rest; text with none, or a malformed one, is all rest.

    Dates become ISO 8601. An alias of YAML (`*name`) counts as malformed: a few of them can stand for
    gigabytes.
    """
    block = _BLOCK.match(text, 0, MOST)
    if block is None or (block.end() < len(text) and text[block.end() - 1] != "\n"):
        return {}, text  # none, or one that is cut in its last line
    try:
        content = (_toml if block[1] == "+++" else _yaml)(block[2] or "")
    except ValueError:
        return {}, text
    if not isinstance(content, Mapping):
        return {}, text
    fields = {str(name): plain_json(value) for name, value in content.items()}
    return fields, text[block.end() :]


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)  # its error is a ValueError
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _yaml(text: str) -> Any:
    import yaml

    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("an alias")
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, LookupError, AttributeError) as error:  # `!!bool x`, `!!int ""`
        raise ValueError(str(error)) from error
