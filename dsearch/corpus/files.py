"""Metadata of documents that come from files: path, folder, name, type, size, modification, title.

The file's own fields (front matter, an e-mail's sender) take precedence over these. Documents also have the
reserved field `_file`: `root`, the folder that was indexed, and `path` in it; for a record of a table also
`record`, its id there, and for a part of a large file `part`, its number. It tells which documents are to be
deleted with their file. A file that a client sent has no root; its path is the name that it was sent under.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from dsearch.types import FILE_FIELD, Document

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
