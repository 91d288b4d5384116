"""What readers share: bytes, plain or gzip, as text or as numbered lines, and the problems of a source.

Problems are collected so that one bad line does not reject the rest of the batch.

Files are UTF-8, UTF-16 and UTF-32 by their marks, or of an older encoding. Bytes that are not UTF-8 are UTF-8
with damage if any line beyond ASCII is valid UTF-8: a file of an older encoding hardly ever has one. Only
files without such a line are decoded by a detected encoding.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from dsearch.corpus.records import BadRecord
from dsearch.errors import InvalidSource, MissingExtra

if TYPE_CHECKING:
    from charset_normalizer.models import CharsetMatch


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """A skipped record: the file, its first line (None: the whole file), and the reason."""

    source: str
    line: int | None
    message: str

    def __str__(self) -> str:
        """`file:line: message`, which editors and terminals can follow."""
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{place}: {self.message}"


class Problems:
    """Count all problems and keep the first few; if strict, raise at the first one instead.

    Attributes:
        count: number of records or files skipped.
        first: first `keep` problems, in order.
        sources: files and folders that were not read to their end.
        skipped: source → ids that its skipped records may have.
        passed_over: number of files in folders without a reader, by suffix; not problems.
        remarks: what a reader should know of sources that were read all the same.
    """

    def __init__(
        self,
        strict: bool = False,
        keep: int = 100,
        on_problem: Callable[[SourceProblem], None] | None = None,
    ) -> None:
        self.strict = strict
        self.keep = keep
        self.on_problem = on_problem
        self.count = 0
        self.first: list[SourceProblem] = []
        self.sources: set[str] = set()
        self.skipped: dict[str, set[str]] = {}
        self.passed_over: Counter[str] = Counter()
        self.remarks: list[SourceProblem] = []

    def remark(self, source: str, message: str) -> None:
        """Record a remark on a source that is read all the same; the first `keep` are kept."""
        if len(self.remarks) < self.keep:
            self.remarks.append(SourceProblem(source, None, message))

    def add(
        self, source: str, line: int | None, message: str, *, skipped: Iterable[str] | None = None
    ) -> None:
        """Record a problem and pass it to `on_problem`.

        Args:
            source: a file or a folder.
            line: first line of the record; None for the whole source.
            message: the reason.
            skipped: ids that the skipped record may have; None: the source is not read to its end, so that
                any of its documents may be among what is skipped.

        Raises:
            InvalidSource: when strict.
        """
        problem = SourceProblem(source, line, message)
        if self.strict:
            raise InvalidSource(str(problem))
        self.count += 1
        if skipped is None:
            self.sources.add(source)
        else:
            self.skipped.setdefault(source, set()).update(skipped)
        if len(self.first) < self.keep:
            self.first.append(problem)
        if self.on_problem is not None:
            self.on_problem(problem)


ByteStream: TypeAlias = io.RawIOBase | io.BufferedIOBase
"""What files, standard input, `io.BytesIO` and open gzip files are."""

GZIP_MARK = b"\x1f\x8b"
WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")  # of UTF-16 and UTF-32


@contextmanager
def opened(path: Path) -> Iterator[ByteStream]:
    """Open a file's bytes; gzip is detected by its first two bytes, not by its name."""
    with path.open("rb") as file:
        yield unzipped(file)


def unzipped(stream: ByteStream) -> ByteStream:
    """Return `stream`, decompressed if it is gzip."""
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)
    if buffered.peek(2)[:2] == GZIP_MARK:
        return gzip.open(buffered, "rb")
    return buffered


def beginning(stream: ByteStream, size: int) -> tuple[bytes, ByteStream]:
    """Read the first `size` bytes; also return a stream of all of them, from the start."""
    start = b""
    while len(start) < size and (more := stream.read(size - len(start))):
        start += more
    return start, io.BufferedReader(_Again(start, stream))


class _Again(io.RawIOBase):
    """Stream of bytes that were read already, and of the rest."""

    def __init__(self, start: bytes, rest: ByteStream) -> None:
        self._start, self._rest = start, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._start[: len(buffer)] or self._rest.read(len(buffer)) or b""
        self._start = self._start[len(content) :]
        buffer[: len(content)] = content
        return len(content)


def decoded_lines(
    stream: ByteStream,
    name: str,
    problems: Problems,
    ids_of: Callable[[str], Iterable[str]] = lambda _line: (),
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end); a line that is not UTF-8 is a problem.

    Args:
        stream: the bytes.
        name: what messages call them.
        problems: collects the lines that are skipped.
        ids_of: returns the ids that a skipped line may have.
    """
    for number, raw in raw_lines(stream, name, problems):
        try:
            yield number, raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            readable = raw.decode("utf-8", errors="surrogateescape")
            problems.add(name, number, not_utf8(error), skipped=ids_of(readable))


def raw_lines(stream: ByteStream, name: str, problems: Problems) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, bytes of the line), without a UTF-8 byte order mark.

    Unreadable bytes (a broken disk, a truncated gzip file) are a problem and end the source.
    """
    number = 0
    try:
        for number, raw in enumerate(stream, start=1):
            if number == 1 and raw.startswith(WIDE_MARKS):
                problems.add(name, 1, "UTF-16 or UTF-32; only UTF-8 is read, save the file as UTF-8")
                return
            yield number, raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
    except (OSError, EOFError, zlib.error) as error:
        problems.add(name, number + 1, f"cannot be read from here on: {error}")


def not_utf8(error: UnicodeDecodeError) -> str:
    """Message about bytes that are not UTF-8."""
    return f"byte {error.start + 1} (0x{error.object[error.start]:02x}) is not UTF-8; save the file as UTF-8"


# In order of preference: texts of the Latin script fit several equally well.
CANDIDATES = (
    "cp1252",
    "cp1250",
    "cp1251",
    "koi8_r",
    "cp1253",
    "cp1254",
    "cp1255",
    "cp1256",
    "shift_jis",
    "euc_jp",
    "gb18030",
    "big5",
    "euc_kr",
)
SAMPLE = 1 << 16  # bytes from the first one beyond ASCII: detection takes some 10 ms
_LONGEST = 4  # bytes of a character

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decoded(raw: bytes) -> tuple[str, str | None]:
    """Decode a file; also return its encoding, or None for UTF-8.

    Raises:
        BadRecord: neither UTF-8 nor text of a detected encoding, with the line of the first bad byte.
    """
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            try:
                text = raw[len(mark) :].decode(encoding)
            except UnicodeDecodeError as error:
                raise BadRecord(f"begins with the mark of {encoding} and is not: {error}") from error
            return text, None if encoding == "utf-8" else encoding
    try:
        return raw.decode("utf-8"), None
    except UnicodeDecodeError as error:
        encoding = detected(raw)
        line = raw.count(b"\n", 0, error.start) + 1
        if encoding is None:
            raise BadRecord(not_utf8(error), line) from error
        try:
            return raw.decode(encoding), encoding
        except UnicodeDecodeError:
            raise BadRecord(f"{not_utf8(error)}; it resembles {encoding}", line) from error


def detected(raw: bytes) -> str | None:
    """Detect the encoding of bytes that are not UTF-8; None for binary data and damaged UTF-8."""
    from charset_normalizer import from_bytes

    start = next((at for at, byte in enumerate(raw) if byte > 127), len(raw))
    sample = raw[raw.rfind(b"\n", 0, start) + 1 :][:SAMPLE]
    if b"\0" in sample or any(_is_utf8(line) for line in sample.splitlines() if not line.isascii()):
        return None
    matches: list[CharsetMatch] = []
    for cut in range(_LONGEST):
        if not matches:  # the sample may end within a character
            matches = list(from_bytes(sample[: len(sample) - cut], cp_isolation=list(CANDIDATES)))
    equal = [
        name
        for match in matches
        if (match.chaos, match.coherence) == (matches[0].chaos, matches[0].coherence)
        for name in match.could_be_from_charset
    ]
    return next((name for name in CANDIDATES if name in equal), None)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def optional(module: str, *, extra: str, what: str) -> ModuleType:
    """Import the module of an extra.

    Args:
        module: its import name.
        extra: extra of dsearch that installs it.
        what: input that needs the package, for the message.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{what} need {module.partition('.')[0]}, which is not installed or not whole ({error}); "
            f"run pip install 'dsearch[{extra}]', or in a checkout pip install '.[{extra}]'"
        ) from error
