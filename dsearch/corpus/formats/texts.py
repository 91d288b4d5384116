"""Text, Markdown, reStructuredText and Org files: each is one document with its path as id."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from dsearch.corpus.formats.decoding import decoded
from dsearch.corpus.formats.front_matter import split_front_matter
from dsearch.corpus.formats.lines import ByteStream
from dsearch.corpus.records import BadRecord
from dsearch.types import Document

ATX_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
SETEXT_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
RST_HEADING = re.compile(r"^(\S.*)\n((?:=+|-+|~+|\^+|\*+|#+|\"+|\++))[ \t]*$", re.MULTILINE)
ORG_TITLE = re.compile(r"^#\+title:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
ORG_HEADLINE = re.compile(r"^\*+[ \t]+(\S.*)$", re.MULTILINE)
FENCE = re.compile(r" {0,3}(```|~~~)")


def read_text(stream: ByteStream, identity: str) -> Document:
    """Read a text file: the title is the file's name without its suffixes.

    Metadata `encoding` names a detected encoding (`decoding.py`), here and below.

    Raises:
        BadRecord: of no known encoding (with the line), or blank.
    """
    text, metadata = content(stream)
    return Document(id=identity, title=stem(identity), text=text, metadata=metadata)


def read_source(stream: ByteStream, identity: str) -> Document:
    """Read source code or configuration, otherwise as `read_text`: the title is the file's whole name."""
    text, metadata = content(stream)
    return Document(id=identity, title=PurePosixPath(identity).name, text=text, metadata=metadata)


def read_markdown(stream: ByteStream, identity: str) -> Document:
    """Read a Markdown file, otherwise as `read_text`.

    Front matter becomes metadata. Its `title` is the title, else the first heading, else the file's name.
    """
    text, metadata = content(stream)
    fields, text = split_front_matter(text)
    title = fields.get("title")
    if isinstance(title, str) and title.strip():
        del fields["title"]
    else:
        title, text = split_heading(text)
    return Document(
        id=identity, title=title.strip() or stem(identity), text=text.strip(), metadata=fields | metadata
    )


def read_rst(stream: ByteStream, identity: str) -> Document:
    """Read a reStructuredText file, otherwise as `read_text`: the title is its first underlined line."""
    text, metadata = content(stream)
    heading = RST_HEADING.search(text)
    title = heading[1].strip() if heading and len(heading[2]) >= len(heading[1].rstrip()) else ""
    return Document(id=identity, title=title or stem(identity), text=text, metadata=metadata)


def read_org(stream: ByteStream, identity: str) -> Document:
    """Read an Org file, otherwise as `read_text`: the title is `#+TITLE:`, else its first headline."""
    text, metadata = content(stream)
    heading = ORG_TITLE.search(text) or ORG_HEADLINE.search(text)
    return Document(
        id=identity, title=heading[1].strip() if heading else stem(identity), text=text, metadata=metadata
    )


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


def content(stream: ByteStream) -> tuple[str, dict[str, Any]]:
    """Read a text file; metadata name its encoding if that was detected.

    Raises:
        BadRecord: of no known encoding (with the line), or blank.
    """
    text, encoding = decoded(stream.read())
    if not text.strip():
        raise BadRecord("empty: the file says nothing")
    return text.strip(), {} if encoding is None else {"encoding": encoding}


def stem(identity: str) -> str:
    """Name of a file without its folder and suffixes: the default title."""
    name = PurePosixPath(identity).name.removesuffix(".gz")
    return PurePosixPath(name).stem
