"""List the files of a folder or a glob pattern."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

GIT_IGNORE = ".gitignore"
COLLECTION = frozenset({"documents.db", "watermark"})  # of dsearch: a home may lie in the folder
NOT_ENTERED = frozenset({"node_modules", "__pycache__"})

OnError = Callable[[Path, OSError], None]

_MAGIC = "*?["


def files_below(folder: Path, on_error: OnError | None = None, ignored: bool = False) -> Iterator[Path]:
    """Yield regular files below a folder, sorted by path.

    Hidden files, linked folders, `node_modules`, `__pycache__`, Python's virtual environments, dsearch's
    collections and what `.gitignore` files of these folders name are left out.

    Args:
        folder: the folder.
        on_error: called with a folder that cannot be listed, or a link that cannot be followed, which is
            skipped; without it the error is raised.
        ignored: True to yield what `.gitignore` files name, too.
    """
    return _below(folder, on_error, None if ignored else ())


def _below(folder: Path, on_error: OnError | None, ignores: tuple[_Ignore, ...] | None) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            every = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        if on_error is None:
            raise
        on_error(folder, error)
        return
    names = {entry.name for entry in every}
    if "pyvenv.cfg" in names or names >= COLLECTION:
        return
    if ignores is not None and GIT_IGNORE in names:
        ignores = (*ignores, _Ignore.read(folder))
    for entry in every:
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name.startswith(".") or _is_ignored(ignores or (), folder, entry.name, is_folder):
            continue
        if is_folder:
            if entry.name not in NOT_ENTERED:
                yield from _below(Path(entry.path), on_error, ignores)
        elif _is_file(entry, on_error):
            yield Path(entry.path)


def _is_file(entry: os.DirEntry[str], on_error: OnError | None) -> bool:
    try:
        return entry.is_file()
    except OSError as error:  # a link that leads to itself, or into a folder that may not be read
        if on_error is None:
            raise
        on_error(Path(entry.path), error)
        return False


@dataclass(frozen=True, slots=True)
class _Ignore:
    """The rules of one `.gitignore` file; paths are relative to its folder."""

    folder: Path
    rules: GitIgnoreSpec

    @classmethod
    def read(cls, folder: Path) -> _Ignore:
        from pathspec import GitIgnoreSpec

        try:
            lines = (folder / GIT_IGNORE).read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        return cls(folder, GitIgnoreSpec.from_lines(filter(_is_rule, lines)))


def _is_rule(line: str) -> bool:
    """False for a malformed pattern, which ignores nothing, as in Git."""
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def _is_ignored(ignores: tuple[_Ignore, ...], folder: Path, name: str, is_folder: bool) -> bool:
    """True if the innermost file that has a rule for a path excludes it; see gitignore(5)."""
    for ignore in reversed(ignores):
        path = (folder / name).relative_to(ignore.folder).as_posix()
        include = ignore.rules.check_file(f"{path}/" if is_folder else path).include
        if include is not None:
            return include
    return False


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
