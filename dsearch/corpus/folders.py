"""List the files of a folder or a glob pattern."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

_MAGIC = "*?["


def files_below(folder: Path) -> Iterator[Path]:
    """Yield regular files below a folder, sorted by path, without hidden files and linked folders."""
    with os.scandir(folder) as entries:
        visible = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
    for entry in visible:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(Path(entry.path))
        elif entry.is_file():
            yield Path(entry.path)


def is_pattern(source: str) -> bool:
    """True if a source is a glob pattern: it has `*`, `?` or `[`, and no file has this very name."""
    return any(mark in source for mark in _MAGIC) and not os.path.lexists(source)


def matches(pattern: str) -> list[Path]:
    """Return the files that a pattern matches, sorted; `**` matches any folders, never hidden files.

    A folder that several links lead to counts once, by its shortest path.
    """
    paths = {Path(path) for path in glob.iglob(pattern, recursive=True, include_hidden=False)}
    once: dict[tuple[str, str], Path] = {}
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        if path.is_file():
            once.setdefault((os.path.realpath(path.parent), path.name), path)
    return sorted(once.values())


def base_of(pattern: str) -> Path:
    """Folder before the first wildcard; the ids of the files are relative to it."""
    parts = Path(pattern).parts
    plain = next((at for at, part in enumerate(parts) if any(mark in part for mark in _MAGIC)), len(parts))
    return Path(*parts[:plain])
