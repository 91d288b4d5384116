"""Files as sources of documents: those of a folder or a pattern, their metadata, parts of very large ones.

A document that is a file has its path, folder, name, type, size, modification and title as metadata. The
file's own fields (front matter, an e-mail's sender) take precedence over these. Documents also have the
reserved field `_file`: `root`, the folder that was indexed, and `path` in it; for a record of a table also
`record`, its id there, and for a part of a large file `part`, its number. It tells which documents are to be
deleted with their file. A file that a client sent has no root; its path is the name that it was sent under.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dsearch.types import FILE_FIELD, Document

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

FIELD = FILE_FIELD

TYPES = {
    "text": ".txt .text",
    "markdown": ".md .markdown",
    "html": ".html .htm",
    "word": ".docx",
    "powerpoint": ".pptx",
    "mail": ".eml .mbox",
    "notebook": ".ipynb",
}
CODE = {
    "python": ".py .pyi",
    "javascript": ".js .mjs .cjs .jsx",
    "typescript": ".ts .tsx",
    "c": ".c .h",
    "c++": ".cc .cpp .cxx .hh .hpp",
    "c#": ".cs",
    "go": ".go",
    "rust": ".rs",
    "java": ".java",
    "kotlin": ".kt .kts",
    "scala": ".scala",
    "swift": ".swift",
    "ruby": ".rb",
    "php": ".php",
    "perl": ".pl .pm",
    "lua": ".lua",
    "r": ".r",
    "julia": ".jl",
    "haskell": ".hs",
    "ocaml": ".ml",
    "erlang": ".erl",
    "elixir": ".ex .exs",
    "clojure": ".clj",
    "dart": ".dart",
    "vue": ".vue",
    "css": ".css .scss",
    "sql": ".sql",
    "shell": ".sh .bash .zsh",
    "powershell": ".ps1",
    "protobuf": ".proto",
    "terraform": ".tf",
    "tex": ".tex .bib",
    "xml": ".xml",
    "json": ".json",
    "yaml": ".yaml .yml",
    "toml": ".toml",
    "ini": ".ini .cfg",
}
"""Source code and configuration, which are read as plain text: language and suffixes."""
CODE_SUFFIXES = " ".join(CODE.values()).split()

_TYPE_OF = {suffix: name for name, suffixes in {**TYPES, **CODE}.items() for suffix in suffixes.split()}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that documents come from.

    Attributes:
        file: path to open it, as messages name it.
        root: real path of the folder that was indexed; empty for a file that a client sent.
        path: path in that folder, with slashes: the id of its document. The name of a sent file.
        kind: suffix that selects the reader.
        size: bytes of a sent file, which is opened nowhere.
    """

    file: Path
    root: str
    path: str
    kind: str
    size: int = 0

    @property
    def label(self) -> str:
        """The file as messages name it."""
        return str(self.file) if self.root else self.path

    def described(self, document: Document, part: int = 0) -> Document:
        """Add the metadata of a document that is a file, or a part of one, by its number from 1."""
        place = PurePosixPath(self.path)
        facts: dict[str, Any] = {
            "path": self.path,
            "folder": "" if str(place.parent) == "." else str(place.parent),
            "name": place.name,
            "type": type_of(self.kind),
            "title": document.title,
        }
        facts |= self._state()
        own = self._origin(part=part) if part else self._origin()
        return replace(document, metadata={**facts, **document.metadata, FIELD: own})

    def recorded(self, document: Document) -> Document:
        """Add the metadata of a document that is a record of this file."""
        own = self._origin(record=document.id)
        return replace(document, metadata={"path": self.path, **document.metadata, FIELD: own})

    def _state(self) -> dict[str, Any]:
        """Size and time of change, as far as they are known."""
        if not self.root:
            return {"size": self.size}
        try:
            state = self.file.stat()
        except OSError:  # deleted since it was read
            return {}
        facts: dict[str, Any] = {"size": state.st_size}
        with suppress(OSError, ValueError, OverflowError):  # a year above 9999
            facts["modified"] = datetime.fromtimestamp(int(state.st_mtime), UTC).isoformat()
        return facts

    def _origin(self, **place: Any) -> dict[str, Any]:
        root = {"root": self.root} if self.root else {}
        return {**root, "path": self.path, **place}


def type_of(suffix: str) -> str:
    """Name of a type of files: of the language for source code, else mostly the suffix."""
    return _TYPE_OF.get(suffix, suffix.removeprefix("."))


RECORD = "record "
Key = tuple[str, str]
"""Real path of a file; number of the part, or id of the record."""


def sent_name_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the name of the sent file that a document came from; None if it came from none."""
    own = metadata.get(FIELD)
    if not isinstance(own, Mapping) or "root" in own:
        return None
    path = own.get("path")
    return path if isinstance(path, str) else None


def key_of(metadata: Mapping[str, Any]) -> tuple[str, Key] | None:
    """Return root and key of a document by its metadata; None if it came from no folder."""
    own = metadata.get(FIELD)
    if not isinstance(own, Mapping):
        return None
    root, path = own.get("root"), own.get("path")
    if not isinstance(root, str) or not isinstance(path, str) or not root:
        return None
    record = own.get("record")
    place = f"part {own.get('part', 1)}" if record is None else f"{RECORD}{record}"
    return root, (os.path.join(root, *PurePosixPath(path).parts), place)


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


LARGEST = 1 << 20  # bytes of a text that stays whole: what a collection stores in one document
PART = 1 << 18

_SEAMS = ("\n\n", "\n", " ")


def parts_of(document: Document) -> Iterator[tuple[int, Document]]:
    """Yield 0 and a document, or its parts from 1 if its text has more than 1 MiB, each of at most 256 KiB.

    A part ends at a blank line, else at a line's end, else between words. Parts depend only on the text
    before them, so adding to a file leaves the earlier ones. The first keeps the document's id; part n has
    the id `ID#n`.
    """
    if len(document.text) <= LARGEST // 4 or len(document.text.encode("utf-8", "replace")) <= LARGEST:
        yield 0, document
        return
    for number, text in enumerate(_cut(document.text), start=1):
        if number == 1:
            yield 1, replace(document, text=text)
        else:
            yield (
                number,
                replace(
                    document, id=f"{document.id}#{number}", title=f"{document.title} ({number})", text=text
                ),
            )


def _cut(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = at + _fitting(text, at)
        if end < len(text):
            end = next((seam_at for seam in _SEAMS if (seam_at := text.rfind(seam, at + 1, end)) > at), end)
        if part := text[at:end].strip():
            yield part
        at = end


def _fitting(text: str, at: int) -> int:
    """Number of characters from `at` on that fit into a part."""
    raw = text[at : at + PART].encode("utf-8", "surrogatepass")[:PART]
    return max(1, len(raw.decode("utf-8", "ignore")))
