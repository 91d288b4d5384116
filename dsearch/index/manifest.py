"""manifest.json: the files of a generation, with the digests to verify them.

The file is canonical JSON (sorted keys, one fixed layout) and contains its own digest, so that any changed
byte in it is detected before a byte of another file is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dsearch.errors import CorruptData, UnsupportedFormat
from dsearch.index.durable import file_digest

MANIFEST_NAME = "manifest.json"
FORMAT = 3
# Format 2 has no passages and is written without any; format 1, never released, had neither phrases nor
# identifiers.
WITHOUT_PASSAGES = 2
OLDEST_FORMAT = 2

_REBUILD = "it is derived data: build the generation again"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of manifest.json; its fields are described in `index/manifest.schema.json`.

    `files` maps a relative path to {"bytes": size, "sha256": hex digest}.
    """

    number: int
    sequence: int
    created_at: str
    rows: int
    encoder_dim: int
    key_dim: int
    dense: dict[str, Any]
    keyword: dict[str, Any] | None
    encoder: dict[str, Any]
    files: dict[str, dict[str, Any]]
    passages: int = 0
    format: int = WITHOUT_PASSAGES

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest, and so of every file that it names."""
        return hashlib.sha256(_canonical(self._content())).hexdigest()

    def to_bytes(self) -> bytes:
        """The content of manifest.json.

        Raises:
            CorruptData: the manifest violates its schema.
        """
        content = self._content() | {"digest": self.digest}
        _check_schema(content, MANIFEST_NAME)
        return _canonical(content)

    def _content(self) -> dict[str, Any]:
        content = asdict(self)
        if self.format == WITHOUT_PASSAGES:
            del content["passages"]
        return content

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of the generation in `folder`; no other file is touched.

        Raises:
            CorruptData: missing, changed since it was written, or against its schema.
            UnsupportedFormat: written by a release with another format.
        """
        path = folder / MANIFEST_NAME
        try:
            raw = path.read_bytes()
            content = json.loads(raw)
            intact = raw == _canonical(content)
            digest = content.pop("digest")
            intact = intact and digest == hashlib.sha256(_canonical(content)).hexdigest()
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
            raise CorruptData(f"{path}: cannot be read ({error}); {_REBUILD}") from error
        # Checked before the format number: a flipped bit in that is damage, not a newer release.
        if not intact:
            raise CorruptData(f"{path}: changed since it was written; {_REBUILD}")
        _check_format(content.get("format"), path)
        _check_schema(content | {"digest": digest}, path)
        return cls(**content)

    def verify(self, folder: Path, *, sizes_alone: Collection[str] = ()) -> None:
        """Compare size and SHA-256 of every file with what was written; all bytes are read once.

        Args:
            folder: folder of the generation.
            sizes_alone: files of which only the size is compared.

        Raises:
            CorruptData: names the first file that is missing, a link, or not what was written.
        """
        for name, written in self.files.items():
            path = folder / name
            linked = path.is_symlink() or (path.parent != folder and path.parent.is_symlink())
            if linked or not path.is_file():
                raise CorruptData(f"{path}: missing or not a plain file; {_REBUILD}")
            size = path.stat().st_size
            if size != written["bytes"]:
                raise CorruptData(f"{path}: {size} bytes instead of {written['bytes']}; {_REBUILD}")
            if name in sizes_alone:
                continue
            try:
                digest = file_digest(path)[1]
            except OSError as error:
                raise CorruptData(f"{path}: cannot be read ({error}); check the disk; {_REBUILD}") from error
            if digest != written["sha256"]:
                raise CorruptData(f"{path}: SHA-256 differs from the manifest; {_REBUILD}")


@cache
def manifest_schema() -> Mapping[str, Any]:
    """The JSON Schema of manifest.json: from the installed package, or from `index/` of a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here, here.parents[1] / "index"):
        path = folder / "manifest.schema.json"
        if path.is_file():
            return json.loads(path.read_text("utf-8"))
    raise CorruptData(f"manifest.schema.json is missing beside {here}; install dsearch again")


def _check_format(number: Any, path: Path) -> None:
    if type(number) is not int or not OLDEST_FORMAT <= number <= FORMAT:
        raise UnsupportedFormat(
            f"{path}: format {number!r}; this release reads {OLDEST_FORMAT} to {FORMAT}: "
            "install the release that wrote it, or build the generation again with this one"
        )


def _check_schema(content: Mapping[str, Any], where: Path | str) -> None:
    # Imported here, since it takes a tenth of a second that only opening a generation needs.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(manifest_schema()).iter_errors(content))
    if error is not None:
        raise CorruptData(f"{where}: {error.json_path} {error.message}; {_REBUILD}")


def _canonical(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1, sort_keys=True)
    return (text + "\n").encode("utf-8")
