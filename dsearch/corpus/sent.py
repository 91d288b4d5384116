"""Files that clients send, read in a process of their own within bounds on time, memory and text.

A file that is made to be slow or large, or that crashes a library, ends that process and is named; a new
process reads the others. Documents arrive block by block through a pipe, so a process that reads waits while
the caller stores: neither memory nor disk fills with what nobody has stored yet.
"""

from __future__ import annotations

import gzip
import io
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsearch.corpus.formats.lines import GZIP_MARK, Problems, SourceProblem
from dsearch.corpus.readers import read_sent
from dsearch.errors import Cancelled, DsearchError, InvalidSource, ProcessDied
from dsearch.processes import limit_memory, run_spawned
from dsearch.types import Document

MAX_FILE_BYTES = 64 * 1024 * 1024  # of a file, packed and unpacked, and of its texts
MAX_SECONDS = 120.0
MAX_MEMORY_BYTES = 2 * 1024**3
SHOWN_PROBLEMS = 20
_BLOCK_DOCUMENTS = 256
_BLOCK_CHARACTERS = 1024 * 1024
_ELSEWHERE = "split it, or index it with `dsearch index`, which has no such limit"


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file that a client sent.

    Attributes:
        name: as it was sent.
        place: file that holds its bytes.
        offset: where they begin there.
        size: their number.
    """

    name: str
    place: Path
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FileBegun:
    """A file that is being read, by its number from 0."""

    number: int


@dataclass(frozen=True, slots=True)
class FileBlock:
    """Some of the documents of a file that was read to its end."""

    number: int
    documents: list[Document]


@dataclass(frozen=True, slots=True)
class FileEnd:
    """The end of a file.

    Attributes:
        number: of the file, from 0.
        reason: why it has no documents; empty if it was read.
        skipped: number of records that cannot be read.
        problems: the first of them.
    """

    number: int
    reason: str = ""
    skipped: int = 0
    problems: tuple[SourceProblem, ...] = ()


ReadingEvent = FileBegun | FileBlock | FileEnd


def read_apart(
    files: Sequence[SentFile],
    numbers: Sequence[int],
    take: Callable[[ReadingEvent], object],
    *,
    cancelled: Callable[[], bool] | None = None,
) -> None:
    """Read files one after another: each begins, has its documents in blocks, and ends.

    Args:
        files: the files.
        numbers: which of them to read, ascending.
        take: receives what is read; while it runs, at most one block more is read.
        cancelled: polled; True ends the reading.

    Raises:
        Cancelled: `cancelled` returned True.
    """
    left = list(numbers)
    while left:
        reading = _Reading(left[0], take)
        try:
            run_spawned(
                read_files,
                {number: files[number] for number in left},
                on_progress=reading.take,
                cancelled=lambda reading=reading: reading.late or (cancelled is not None and cancelled()),
                threads=1,
            )
            return
        except Cancelled:
            if not reading.late or (cancelled is not None and cancelled()):
                raise
            reading.give_up(f"reading it takes more than {MAX_SECONDS:g} s; {_ELSEWHERE}")
        except ProcessDied:
            reading.give_up(f"reading it ended the process that read it; {_ELSEWHERE}")
        left = [number for number in left if number > reading.number]


class _Reading:
    """The file that one process reads now."""

    def __init__(self, first: int, take: Callable[[ReadingEvent], object]):
        self.number = first
        self._take, self._ended = take, False
        self._until = time.monotonic() + MAX_SECONDS

    @property
    def late(self) -> bool:
        """True if nothing has arrived for too long."""
        return time.monotonic() > self._until

    def take(self, event: Any) -> None:
        """Pass an event on."""
        self.number, self._ended = event.number, isinstance(event, FileEnd)
        self._take(event)
        self._until = time.monotonic() + MAX_SECONDS

    def give_up(self, reason: str) -> None:
        """End the file, unless it has ended."""
        if not self._ended:
            self._take(FileEnd(self.number, reason))


# ---- in the process


def read_files(report: Callable[[ReadingEvent], object], files: Mapping[int, SentFile]) -> None:
    """Read files by number, and report what `read_apart` passes on."""
    limit_memory(MAX_MEMORY_BYTES)
    for number, file in files.items():
        report(FileBegun(number))
        for event in _events(number, file):
            report(event)


def _events(number: int, file: SentFile) -> Iterator[FileBlock | FileEnd]:
    problems = Problems(keep=SHOWN_PROBLEMS)
    try:
        documents = _documents(file, problems)
    except DsearchError as error:
        yield FileEnd(number, str(error))
        return
    except MemoryError:
        yield FileEnd(number, f"reading it takes more than {MAX_MEMORY_BYTES} bytes of memory; {_ELSEWHERE}")
        return
    except Exception as error:  # of a library, for a file that is made to break it
        yield FileEnd(number, f"it cannot be read: {type(error).__name__}: {error}"[:1000])
        return
    if not documents:
        reason = problems.first[0].message if problems.first else "it holds no document"
        yield FileEnd(number, reason, problems.count, tuple(problems.first))
        return
    yield from (FileBlock(number, block) for block in _blocks(documents))
    yield FileEnd(number, "", problems.count, tuple(problems.first))


def _documents(file: SentFile, problems: Problems) -> list[Document]:
    if any(unicodedata.category(character) == "Cc" for character in file.name):
        raise InvalidSource(f"its name {file.name[:80]!r} has control characters; rename it")
    if file.size > MAX_FILE_BYTES:
        raise InvalidSource(f"it has {file.size} bytes, of at most {MAX_FILE_BYTES}; {_ELSEWHERE}")
    with file.place.open("rb") as stream:
        stream.seek(file.offset)
        content = stream.read(file.size)
    documents: list[Document] = []
    left = MAX_FILE_BYTES
    for document in read_sent(io.BytesIO(_unpacked(content)), file.name, file.size, problems):
        left -= len(document.text.encode("utf-8", "replace"))
        if left < 0:
            raise InvalidSource(f"it has more than {MAX_FILE_BYTES} bytes of text; {_ELSEWHERE}")
        documents.append(document)
    return documents


def _unpacked(content: bytes) -> bytes:
    """The content, decompressed if it is gzip: a small file can stand for terabytes."""
    if content[:2] != GZIP_MARK:
        return content
    try:
        with gzip.open(io.BytesIO(content)) as packed:
            unpacked = packed.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidSource(f"it cannot be read: {error}") from None
    if len(unpacked) > MAX_FILE_BYTES:
        raise InvalidSource(f"it unpacks to more than {MAX_FILE_BYTES} bytes; {_ELSEWHERE}")
    return unpacked


def _blocks(documents: Sequence[Document]) -> Iterator[list[Document]]:
    block: list[Document] = []
    characters = 0
    for document in documents:
        if block and (len(block) == _BLOCK_DOCUMENTS or characters + len(document.text) > _BLOCK_CHARACTERS):
            yield block
            block, characters = [], 0
        block.append(document)
        characters += len(document.text)
    if block:
        yield block
