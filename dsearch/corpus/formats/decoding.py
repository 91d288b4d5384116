"""Decode text files: UTF-8, UTF-16 and UTF-32 by their marks, and detected older encodings.

Bytes that are not UTF-8 are UTF-8 with damage if any line beyond ASCII is valid UTF-8: a file of an older
encoding hardly ever has one. Only files without such a line are decoded by a detected encoding.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from dsearch.corpus.formats.lines import not_utf8
from dsearch.corpus.records import BadRecord

if TYPE_CHECKING:
    from charset_normalizer.models import CharsetMatch

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
