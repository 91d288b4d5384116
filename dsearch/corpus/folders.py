"""List the files of a folder or a glob pattern."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

_MAGIC = "*?["


def files_below(folder: Path) -> Iterator[Path]:
    """Regular files below a folder, sorted by path, hidden ones left out; links to folders not followed."""
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
    """The files that a pattern matches, sorted; `**` stands for any folders, hidden files are left out.

    A folder that links lead to by many ways (to itself: by endlessly many) counts by the shortest.
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
