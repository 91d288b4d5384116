"""Jupyter notebooks: the sources of their cells, without outputs."""

from __future__ import annotations

from typing import Any

import orjson

from dsearch.corpus.formats.lines import ByteStream
from dsearch.corpus.formats.texts import split_heading, stem
from dsearch.corpus.records import BadRecord
from dsearch.types import Document


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
