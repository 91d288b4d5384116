"""Documents of an uploaded file, by the readers of the command line, with bounds on time, memory and text.

Formats of libraries are read in a process of their own: a file that is made to be slow or large ends that
process and nothing else.
"""

from __future__ import annotations

import gzip
import io
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from dsearch.corpus.files import type_of
from dsearch.corpus.formats.lines import GZIP_MARK
from dsearch.corpus.readers import kind_of, read_named
from dsearch.errors import Cancelled, InvalidSource
from dsearch.processes import Report, run_spawned
from dsearch.service.uploads.files import UploadedFile
from dsearch.types import Document

FIELD = "_upload"
"""Metadata of a document that an uploaded file gave: `file`, `part` and `parts`; of the first also `bytes`,
the size of its texts, and `created_at`."""
MAX_UNPACKED_BYTES = 64 * 1024 * 1024
MAX_TEXT_BYTES = 8 * 1024 * 1024
MAX_DOCUMENTS = 10_000
MAX_SECONDS = 120.0
MAX_MEMORY_BYTES = 2 * 1024**3
_OF_LIBRARIES = (".html", ".htm", ".pdf", ".docx", ".pptx", ".epub", ".parquet", ".arrow", ".mbox", ".eml")

Attributes = Mapping[str, str | float | bool]


def documents_of(
    upload: UploadedFile, place: Path, attributes: Attributes, *, stopping: Callable[[], bool] = lambda: False
) -> list[Document]:
    """Read an uploaded file as documents: the first has the file's id, further ones `ID#2` and so on.

    Args:
        upload: the file.
        place: where its bytes lie.
        attributes: metadata of every document.
        stopping: polled while a process of its own reads; True ends it.

    Raises:
        InvalidSource: no file of a kind that is read, damaged, without text, or above a limit.
        MissingExtra: the packages that read it are not installed.
        ProcessDied: reading it took too much memory.
        Cancelled: `stopping` returned True.
    """
    if kind_of(PurePath(upload.filename)) in _OF_LIBRARIES:
        ends = time.monotonic() + MAX_SECONDS
        try:
            read = run_spawned(
                read_apart,
                place,
                upload.filename,
                cancelled=lambda: stopping() or time.monotonic() > ends,
                memory_bytes=MAX_MEMORY_BYTES,
                threads=1,
            )
        except Cancelled:
            if stopping():
                raise
            raise InvalidSource(
                f"{upload.filename}: reading it takes more than {MAX_SECONDS:g} s; send a smaller file"
            ) from None
    else:
        read = _read(place, upload.filename)
    return _as_parts(read, upload, attributes)


def read_apart(report: Report, place: Path, filename: str) -> list[Document]:
    """`documents_of` in a process of its own."""
    return _read(place, filename)


def _read(place: Path, filename: str) -> list[Document]:
    documents: list[Document] = []
    size = 0
    for document in read_named(io.BytesIO(_unpack(place.read_bytes(), filename)), filename):
        documents.append(document)
        size += len(document.text.encode("utf-8", "replace"))
        if size > MAX_TEXT_BYTES or len(documents) > MAX_DOCUMENTS:
            raise InvalidSource(
                f"{filename}: more than {MAX_TEXT_BYTES} bytes of text or {MAX_DOCUMENTS} documents; split "
                "the file, or index it with dsearch index"
            )
    if not documents:
        raise InvalidSource(f"{filename}: it holds no document")
    return documents


def _unpack(content: bytes, filename: str) -> bytes:
    """The content, decompressed if it is gzip: a small file can stand for terabytes."""
    if content[:2] != GZIP_MARK:
        return content
    try:
        with gzip.open(io.BytesIO(content)) as packed:
            unpacked = packed.read(MAX_UNPACKED_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidSource(f"{filename}: cannot be read: {error}") from None
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise InvalidSource(f"{filename}: unpacks to more than {MAX_UNPACKED_BYTES} bytes; split it")
    return unpacked


def _as_parts(read: list[Document], upload: UploadedFile, attributes: Attributes) -> list[Document]:
    size = sum(len(document.text.encode("utf-8", "replace")) for document in read)
    facts = {"name": upload.filename, "type": type_of(kind_of(PurePath(upload.filename)))}
    documents: list[Document] = []
    for part, document in enumerate(read, start=1):
        own: dict[str, Any] = {"file": upload.id, "part": part, "parts": len(read)}
        if part == 1:
            own |= {"bytes": size, "created_at": int(time.time())}
        metadata = {**facts, **document.metadata, **attributes, FIELD: own}
        id = part_id(upload.id, part)
        documents.append(Document(id, document.text, title=document.title, metadata=metadata))
    return documents


def part_id(file: str, part: int) -> str:
    """The id of a file's document, by its number from 1."""
    return file if part == 1 else f"{file}#{part}"
