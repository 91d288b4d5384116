"""Text, Markdown, reStructuredText and Org files and notebooks: each is one document with its path as id."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import orjson

from dsearch.corpus.formats.lines import ByteStream, decoded
from dsearch.corpus.records import BadRecord, plain_json
from dsearch.types import Document

ATX_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$")
SETEXT_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
RST_HEADING = re.compile(r"^(\S.*)\n((?:=+|-+|~+|\^+|\*+|#+|\"+|\++))[ \t]*$", re.MULTILINE)
ORG_TITLE = re.compile(r"^#\+title:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
ORG_HEADLINE = re.compile(r"^\*+[ \t]+(\S.*)$", re.MULTILINE)
FENCE = re.compile(r" {0,3}(```|~~~)")


def read_text(stream: ByteStream, identity: str) -> Document:
    """Read a text file: the title is the file's name without its suffixes.

    Metadata `encoding` names a detected encoding (`decoded`), here and below.

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


MOST = 64 * 1024  # characters

_BLOCK = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(.*?\n)??\1[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """Split a text into its front matter and the rest; text with none, or a malformed one, is all rest.

    Dates become ISO 8601. An alias of YAML (`*name`) counts as malformed: a few of them can stand for
    gigabytes.
    """
    block = _BLOCK.match(text, 0, MOST)
    if block is None or (block.end() < len(text) and text[block.end() - 1] != "\n"):
        return {}, text  # none, or one that is cut in its last line
    try:
        content = (_toml if block[1] == "+++" else _yaml)(block[2] or "")
    except ValueError:
        return {}, text
    if not isinstance(content, Mapping):
        return {}, text
    fields = {str(name): plain_json(value) for name, value in content.items()}
    return fields, text[block.end() :]


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)  # its error is a ValueError
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _yaml(text: str) -> Any:
    import yaml

    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("an alias")
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, LookupError, AttributeError) as error:  # `!!bool x`, `!!int ""`
        raise ValueError(str(error)) from error


def read_notebook(stream: ByteStream, identity: str) -> Document:
    """Read a notebook: the text of its cells, a blank line between; code stays between fences.

    The title is the first heading of its Markdown, else the file's name. Metadata: `language`.

    Raises:
        BadRecord: not a notebook, or without text.
    """
    try:
        notebook: Any = orjson.loads(stream.read())
        cells = notebook["cells"] if "cells" in notebook else notebook["worksheets"][0]["cells"]  # format 3
        language = _language(notebook)
        parts = [part for cell in cells if (part := _part(cell, language))]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadRecord(f"not a Jupyter notebook ({type(error).__name__}: {error})") from error
    title, text = split_heading("\n\n".join(parts))
    if not text and not title:
        raise BadRecord("no cell of this notebook has text")
    return Document(
        id=identity,
        title=title or stem(identity),
        text=text,
        metadata={"language": language} if language else {},
    )


def _language(notebook: Any) -> str:
    about = notebook.get("metadata", {})
    name = about.get("language_info", {}).get("name") or about.get("kernelspec", {}).get("language")
    return name if isinstance(name, str) else ""


def _part(cell: Any, language: str) -> str:
    lines = cell.get("source", cell.get("input", ""))
    text = ("".join(lines) if isinstance(lines, list) else lines).strip()
    return f"```{language}\n{text}\n```" if text and cell["cell_type"] == "code" else text
