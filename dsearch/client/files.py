"""`add_files` of the clients: files that are given by paths or as bytes, as a form and for this process."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias
from urllib.parse import quote

from dsearch.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from dsearch.corpus.sent import SentFile

GivenFiles: TypeAlias = (
    "Iterable[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str] | bytes]"  # paths; or by name
)


def named_files(files: Any) -> dict[str, Path | bytes]:
    """Files by the names that they are sent under; of paths without names the file's own.

    Raises:
        InvalidRequest: no file, two of one name, not a file, or a name that is no text.
    """
    if isinstance(files, str | bytes | os.PathLike):
        raise InvalidRequest(f"files={str(files)[:80]!r}; give a list of paths, or names with paths or bytes")
    pairs = files.items() if isinstance(files, Mapping) else ((Path(path).name, path) for path in files)
    named: dict[str, Path | bytes] = {}
    for name, source in pairs:
        if name in named:
            raise InvalidRequest(
                f"two files of the name {name[:80]!r}; give names with paths: {{NAME: PATH}}"
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(
                f"the name {name[:80]!r} is not UTF-8; give another: {{NAME: PATH}}"
            ) from None
        if isinstance(source, bytes):
            named[name] = source
        elif Path(source).is_file():
            named[name] = Path(source)
        else:
            raise InvalidRequest(f"{source}: no such file; give paths of files")
    if not named:
        raise InvalidRequest("no files; give one or more")
    return named


@contextmanager
def form_of(files: Mapping[str, Path | bytes]) -> Generator[tuple[BinaryIO, str]]:
    """The files as a form, in a temporary file, and its content type.

    Raises:
        Unavailable: a file cannot be read, or the form cannot be written.
    """
    boundary = uuid.uuid4().hex
    with tempfile.TemporaryFile() as form:
        try:
            for name, source in files.items():
                named = f"form-data; name=\"file\"; filename*=UTF-8''{quote(name, safe='')}"
                form.write(f"--{boundary}\r\nContent-Disposition: {named}\r\n\r\n".encode())
                if isinstance(source, bytes):
                    form.write(source)
                else:
                    with source.open("rb") as opened:
                        shutil.copyfileobj(opened, form, 1 << 20)
                form.write(b"\r\n")
            form.write(f"--{boundary}--\r\n".encode())
        except OSError as error:
            raise Unavailable(
                f"the files could not be written to {tempfile.gettempdir()} before they are sent ({error}); "
                "free space there, or name another folder in TMPDIR"
            ) from error
        yield form, f"multipart/form-data; boundary={boundary}"


@contextmanager
def files_on_disk(files: Mapping[str, Path | bytes]) -> Generator[list[SentFile]]:
    """The files for this process, those that are bytes in a temporary folder."""
    from dsearch.corpus.sent import SentFile

    with tempfile.TemporaryDirectory() as folder:
        placed: list[SentFile] = []
        for number, (name, source) in enumerate(files.items()):
            place = source if isinstance(source, Path) else Path(folder, str(number))
            if isinstance(source, bytes):
                place.write_bytes(source)
            placed.append(SentFile(name, place, 0, place.stat().st_size))
        yield placed
