"""Aliases: second names for collections, so that what is searched under a name can be exchanged at once.

They are one small file of the home, `aliases.json`, with its own digest; a change is one rename of it, so
that everybody sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsearch.engine.home import Home
from dsearch.errors import CollectionExists, CorruptData, NotFound, UnsupportedFormat
from dsearch.index.durable import sync_file, sync_folder

FILE_NAME = "aliases.json"
FORMAT = 1


def read_aliases(home: Path) -> dict[str, str]:
    """Alias → collection.

    Raises:
        CorruptData: the file is not what was written.
        UnsupportedFormat: written by a newer release.
    """
    path = home / FILE_NAME
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        digest = content.pop("digest")
        intact = digest == _digest(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CorruptData(f"{path}: cannot be read ({error}); {_REMEDY}") from error
    if not intact:
        raise CorruptData(f"{path}: changed since it was written; {_REMEDY}")
    if content["format"] != FORMAT:
        raise UnsupportedFormat(f"{path}: format {content['format']}; this release reads {FORMAT}")
    return content["aliases"]


def set_alias(home: Home, alias: str, name: str) -> str | None:
    """Let `alias` stand for collection `name`; what it stood for before, None where there was no such alias.

    For the one process that writes to the home, as all changes here.

    Raises:
        CollectionNotFound, InvalidRequest (not a name), CollectionExists (a collection is called so).
    """
    home.folder(alias)  # its rules are those of collections' names
    home.existing(name)
    if alias in home.names():
        raise CollectionExists(f"collection {alias!r} is there; use another name for the alias")
    aliases = read_aliases(home.path)
    _write(home.path, {**aliases, alias: name})
    return aliases.get(alias)


def drop_alias(home: Home, alias: str) -> None:
    """Remove an alias; the collection stays.

    Raises:
        NotFound.
    """
    aliases = read_aliases(home.path)
    if alias not in aliases:
        there = f"there are: {', '.join(aliases)}" if aliases else "there is none"
        raise NotFound(f"no alias {alias[:80]!r}; {there}")
    del aliases[alias]
    _write(home.path, aliases)


def _write(home: Path, aliases: Mapping[str, str]) -> None:
    """Exchange all of them, durably and at once."""
    content: dict[str, Any] = {"format": FORMAT, "aliases": dict(sorted(aliases.items()))}
    unfinished = home / f".{FILE_NAME}.writing"
    unfinished.write_text(json.dumps({**content, "digest": _digest(content)}, indent=1) + "\n")
    sync_file(unfinished)
    unfinished.rename(home / FILE_NAME)
    sync_folder(home)


_REMEDY = "delete the file and set the aliases again with: dsearch alias NAME COLLECTION"


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
