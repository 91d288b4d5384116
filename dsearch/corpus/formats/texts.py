"""Text and Markdown files: each is one document with its path as id."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from dsearch.corpus.formats.lines import WIDE_MARKS, ByteStream, not_utf8
from dsearch.corpus.records import BadRecord
from dsearch.types import Document

ATX_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
SETEXT_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
FENCE = re.compile(r" {0,3}(```|~~~)")


def read_text(stream: ByteStream, identity: str) -> Document:
    """Read a text file: the title is the file's name without its suffixes.

    Raises:
        BadRecord: not UTF-8 (with the line), or blank.
    """
    return Document(id=identity, title=stem(identity), text=_content(stream))


def read_markdown(stream: ByteStream, identity: str) -> Document:
    """Read a Markdown file: its first heading becomes the title, otherwise the file's name.

    Raises:
        BadRecord: not UTF-8 (with the line), or blank.
    """
    title, text = split_heading(_content(stream))
    return Document(id=identity, title=title or stem(identity), text=text)


def split_heading(markdown: str) -> tuple[str, str]:
    """Split into (text of the first heading, everything else); the title is empty without a heading.

    Headings are `# …` or underlined with `=` or `-` (CommonMark 4.2, 4.3), outside of fenced code.
    """
    lines = markdown.splitlines()
    fence = ""
    for number, line in enumerate(lines):
        mark = FENCE.match(line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        if mark or fence:
            continue
        heading = ATX_HEADING.match(line)
        if heading and heading[1]:
            return heading[1].strip(), "\n".join(lines[:number] + lines[number + 1 :]).strip()
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if SETEXT_UNDERLINE.match(below) and _paragraph(lines, number):
            return line.strip(), "\n".join(lines[:number] + lines[number + 2 :]).strip()
    return "", markdown.strip()


def _paragraph(lines: list[str], number: int) -> bool:
    """True if a line is a paragraph of its own, so that an underline makes it a heading."""
    alone = number == 0 or not lines[number - 1].strip()
    return alone and bool(re.match(r" {0,3}[^\s>|*+-]", lines[number]))


def _content(stream: ByteStream) -> str:
    raw = stream.read()
    if raw.startswith(WIDE_MARKS):
        raise BadRecord("UTF-16 or UTF-32; only UTF-8 is read, save the file as UTF-8")
    try:
        text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadRecord(not_utf8(error), line) from error
    if not text.strip():
        raise BadRecord("empty: the file says nothing")
    return text.strip()


def stem(identity: str) -> str:
    """Name of a file without its folder and suffixes: the default title."""
    name = PurePosixPath(identity).name.removesuffix(".gz")
    return PurePosixPath(name).stem
