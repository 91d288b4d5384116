"""Files of a form (multipart/form-data, RFC 7578) that lies on disk: their names, and where their bytes are.

Bytes are not copied: a file is a span of the form. Names are kept as they were sent, folders and all, since
no name becomes a path. `filename*` (RFC 5987) takes precedence over `filename`, whose encoded words (RFC
2047) are decoded: some clients send names outside of ASCII in these ways, most as UTF-8.
"""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.header import decode_header
from pathlib import Path
from urllib.parse import unquote_to_bytes

from dsearch.errors import InvalidRequest
from dsearch.service.wire.requests import repr_of

MULTIPART = "multipart/form-data"
MAX_FILES = 1000
_MAX_HEADER_BYTES = 16 * 1024
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_PARAMETER = re.compile(r';\s*([\w!#$&+.^`|~*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"]*))', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')
_ENCODED_WORD = re.compile(r"=\?[\w-]+\?[bq]\?[^?\s]*\?=", re.IGNORECASE)
_BETWEEN_WORDS = re.compile(r"(?<=\?=)\s+(?==\?)")
_PLAIN_ENCODINGS = ("", "binary", "8bit", "7bit")
_EXAMPLE = 'Content-Disposition: form-data; name="file"; filename="notes.md"'


@dataclass(frozen=True, slots=True)
class FormFile:
    """A file of a form: its name, and where its bytes lie."""

    name: str
    offset: int
    size: int


def boundary_of(content_type: str) -> bytes:
    """The line that parts a form, by the header Content-Type; raises InvalidRequest without one."""
    match = _BOUNDARY.search(content_type.partition(";")[2])
    if match is None:
        raise InvalidRequest(f"Content-Type: {content_type[:80]}; add the boundary of the form")
    return (match[1] or match[2]).encode("latin-1", "replace")


def files_of_form(place: Path, boundary: bytes) -> list[FormFile]:
    """The files of a form. An input of a page in which no file was chosen is none.

    Args:
        place: file with the form.
        boundary: what parts it.

    Raises:
        InvalidRequest: not a form, a field that is not a file, no file, or too many.
    """
    if not place.stat().st_size:
        raise InvalidRequest(f"an empty form; send files, each as a part with {_EXAMPLE}")
    files: list[FormFile] = []
    with place.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as form:
        for start, end in _parts(form, b"--" + boundary):
            file = _file_of(form, start, end)
            if file.name or file.size:
                files.append(file)
            if len(files) > MAX_FILES:
                raise InvalidRequest(f"more than {MAX_FILES} files; send the others in another request")
    if not files:
        raise InvalidRequest(f"a form without a file; send each as a part with {_EXAMPLE}")
    return files


def _parts(form: mmap.mmap, mark: bytes) -> list[tuple[int, int]]:
    """Where each part begins, at its headers, and ends."""
    parts: list[tuple[int, int]] = []
    begin: int | None = None
    at = form.find(mark)
    while at >= 0:
        after = at + len(mark)
        last = form[after : after + 2] == b"--"
        line_end = form.find(b"\r\n", after)
        is_line = at == 0 or form[at - 2 : at] == b"\r\n"
        if is_line and (last or (line_end >= 0 and not form[after:line_end].strip(b" \t"))):
            if begin is not None:
                parts.append((begin, max(begin, at - 2)))
            if last:
                return parts
            begin = line_end + 2
        at = form.find(mark, after)
    what = "a form without its boundary" if begin is None else "a form that ends before its last boundary"
    raise InvalidRequest(f"{what}; send it whole, as {MULTIPART}")


def _file_of(form: mmap.mmap, start: int, end: int) -> FormFile:
    """The file that a part is."""
    head_end = form.find(b"\r\n\r\n", start, min(end, start + _MAX_HEADER_BYTES))
    if head_end < 0:
        raise InvalidRequest(f"a part of the form without headers; send {_EXAMPLE}")
    headers = _headers(form[start:head_end])
    encoding = headers.get("content-transfer-encoding", "").strip().lower()
    if encoding not in _PLAIN_ENCODINGS:
        raise InvalidRequest(
            f"Content-Transfer-Encoding: {encoding[:80]}; send the bytes of a file as they are"
        )
    parameters = {
        match[1].lower(): _ESCAPED.sub(r"\1", match[2]) if match[2] is not None else match[3].strip()
        for match in _PARAMETER.finditer(headers.get("content-disposition", ""))
    }
    name = _name_of(parameters)
    if name is None:
        field = repr_of(parameters.get("name", ""))
        raise InvalidRequest(f"the field {field} is not a file; send files only, each with {_EXAMPLE}")
    content = head_end + 4
    return FormFile(name, min(content, end), max(0, end - content))


def _headers(head: bytes) -> dict[str, str]:
    """Headers by name in lower case."""
    try:
        text = head.decode()
    except UnicodeDecodeError:
        text = head.decode("latin-1")
    lines = re.sub(r"\r\n[ \t]+", " ", text).split("\r\n")  # folded lines
    named = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in named}


def _name_of(parameters: dict[str, str]) -> str | None:
    """The name of a file by the parameters of its header; None for a field that has none."""
    charset, _, encoded = parameters.get("filename*", "").partition("'")
    if encoded:
        try:
            return unquote_to_bytes(encoded.partition("'")[2]).decode(charset)
        except (LookupError, UnicodeDecodeError):
            pass  # of no charset that is known: the other name has to do
    name = parameters.get("filename")
    return None if name is None else _ENCODED_WORD.sub(_decoded, _BETWEEN_WORDS.sub("", name))


def _decoded(word: re.Match[str]) -> str:
    """The text of an encoded word; the word itself where it is none."""
    try:
        ((content, charset),) = decode_header(word[0])
        return content.decode(charset or "ascii") if isinstance(content, bytes) else content
    except (LookupError, ValueError, HeaderParseError):
        return word[0]
